//! What the loop does and has changed.

use evenkeel_base::run::{ChangeRecord, GuaranteeStatus, ProtectedStatus, RunRecord, Stage};
use evenkeel_report::run::{MEANWHILE, summary};
use ratatui::style::Style;

use super::{Canvas, Page, text, wrapped};
use crate::errand::Running;
use crate::model::Model;

pub fn draw(model: &Model, canvas: &mut Canvas<'_>, page: Page) {
    if model.running.is_none() {
        canvas.put(1, page.top, canvas.area.width, "reading …", Style::new());
        return;
    }
    text(&model.running_lines, model.running_list.top, canvas, page);
}

/// What is known, in lines of a width.
pub fn lines(running: Option<&Result<Running, String>>, width: usize) -> Vec<String> {
    let width = width.saturating_sub(2).max(20);
    let mut lines = Vec::new();
    match running {
        None => {}
        Some(Err(why)) => lines.extend(wrapped(&format!("What a loop does cannot be read: {why}"), width, 2)),
        Some(Ok(running)) => {
            running.headline.lines().for_each(|line| lines.extend(wrapped(line, width, 2)));
            if let Some(record) = &running.record {
                lines.push(String::new());
                at_work(record, width, &mut lines);
            }
        }
    }
    lines.into_iter().map(|line| format!(" {line}")).collect()
}

fn at_work(record: &RunRecord, width: usize, lines: &mut Vec<String>) {
    // Labels are 12 columns wide.
    summary(record).lines().for_each(|line| {
        let (label, value) = line.split_at_checked(12).unwrap_or(("", line));
        let mut value = wrapped(value, width, 12).into_iter();
        lines.push(format!("{label}{}", value.next().unwrap_or_default()));
        lines.extend(value);
    });
    let mut part = |heading: String, body: Vec<String>| {
        if !body.is_empty() {
            lines.push(String::new());
            lines.push(heading);
            lines.extend(body);
        }
    };
    let changes: Vec<String> = record.changes.iter().flat_map(|c| change(c, width)).collect();
    part(format!("CHANGES IN FORCE: {}", record.changes.len()), changes);
    if record.changes.is_empty() {
        part("CHANGES IN FORCE: none kept".to_owned(), wrapped(&format!("  {MEANWHILE}"), width, 2));
    }
    let guarantees = record.guarantees.iter().flat_map(|g| guarantee(g, width)).collect();
    part("GUARANTEES".to_owned(), guarantees);
    part("SERVICES".to_owned(), record.protected.iter().flat_map(|p| protected(p, width)).collect());
    // The newest first: it is what the loop is doing.
    part(
        "WHAT IT TRIED, newest first".to_owned(),
        record.stages.iter().rev().flat_map(|s| stage(s, width)).collect(),
    );
}

fn known(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "?".to_owned(), |value| format!("{value:.places$}"))
}

fn change(change: &ChangeRecord, width: usize) -> Vec<String> {
    let effect = change.effect.as_deref().unwrap_or("effect not measured yet");
    let what = format!("{} -> {}", evenkeel_store::moments::setting(change), change.to);
    let why = format!("{effect}; {}", change.why);
    indented(&what, &why, width)
}

/// A line, and its explanation below it.
fn indented(what: &str, why: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> =
        wrapped(&one_line(what), width - 2, 4).into_iter().map(|line| format!("  {line}")).collect();
    if !why.is_empty() {
        lines.extend(wrapped(&one_line(why), width - 6, 0).into_iter().map(|line| format!("      {line}")));
    }
    lines
}

fn one_line(text: &str) -> String {
    evenkeel_base::cut(text, 1000).replace('\n', " ")
}

fn guarantee(status: &GuaranteeStatus, width: usize) -> Vec<String> {
    let what = format!(
        "{} {} {}: got {} %, waited {} %",
        status.state,
        status.name,
        status.promise,
        known(status.got_pct, 1),
        known(status.waited_pct, 1)
    );
    indented(&what, &status.why, width)
}

fn protected(status: &ProtectedStatus, width: usize) -> Vec<String> {
    let bound = status.bound_ms.map_or_else(String::new, |ms| format!("bound {ms:.2}, "));
    let what = format!(
        "{} {}: 99 of 100 waits at most {} ms ({bound}before {}, limit {})",
        status.state,
        status.name,
        known(status.p99_ms, 2),
        known(status.default_p99_ms, 2),
        known(status.limit_ms, 2)
    );
    let slo = status.slo.as_ref().map_or_else(String::new, |slo| {
        format!(
            "judged by its {}: {} % of {} requests take longer than {} ms (before {}, limit {}) {}",
            if slo.kept.is_some() { "requests" } else { "waits" },
            known(slo.slow_share.map(|share| 100.0 * share), 2),
            known(slo.requests, 0),
            known(slo.edge_ms, 1),
            known(slo.default_slow_share.map(|share| 100.0 * share), 2),
            known(Some(100.0 * slo.limit_share), 2),
            slo.why
        )
    });
    indented(&what, &slo, width)
}

fn stage(stage: &Stage, width: usize) -> Vec<String> {
    let kept = match stage.kept {
        Some(true) => "kept",
        Some(false) => "taken back",
        None => "measured",
    };
    let at = evenkeel_report::time::short(stage.started_ns);
    let what = format!("{at} {}: {kept}, {:.0} s", stage.name, stage.seconds);
    indented(&what, stage.reason(), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RunRecord {
        RunRecord {
            scope: vec!["all".into()],
            settings: "least weight".into(),
            changes: vec![ChangeRecord {
                task: None,
                comm: None,
                group: Some("/work".into()),
                knob: "cpu.weight".into(),
                from: "100".into(),
                to: "1".into(),
                why: "background yields".into(),
                effect: Some("waits 8.58 -> 1.41 ms".into()),
                at_ns: 1,
            }],
            ..RunRecord::default()
        }
    }

    #[test]
    fn a_loop_at_work_shows_its_changes_with_their_effect() {
        let running =
            Running { headline: "An agent is running.\nRun 3:".into(), record: Some(Box::new(record())) };
        let text = lines(Some(&Ok(running)), 80).join("\n");
        for part in [
            "An agent is running.",
            "settings    least weight",
            "/work cpu.weight 100 -> 1",
            "8.58 -> 1.41 ms",
            "CHANGES IN FORCE: 1",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn no_loop_is_said_in_words_and_a_refusal_too() {
        let none = Running { headline: "No agent is running.\n".into(), record: None };
        assert_eq!(lines(Some(&Ok(none)), 80), [" No agent is running."]);
        assert!(lines(Some(&Err("run as root".into())), 80)[0].contains("run as root"));
        assert!(lines(None, 80).is_empty());
    }
}
