//! A study as GitHub tables.

use std::fmt::Write as _;

use evenkeel_base::run::Estimate;
use evenkeel_base::text::bracketed;
use evenkeel_experiment::study::{PointStudy, Study};

use super::figures::{estimate, figure, host_line, known, limits, unpredicted, with_units};
use crate::time;

/// Text for a table's cell: nothing of it becomes markup or another column.
pub(crate) fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A table with a header; columns after `left` are aligned right.
pub(crate) fn table(header: &[&str], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut out = format!("| {} |\n|", header.join(" | "));
    for column in 0..header.len() {
        out += if column < left { " --- |" } else { " ---: |" };
    }
    out.push('\n');
    for row in rows {
        let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

/// A time; of a run that was cut off only a lower bound is known.
fn bound(cut_off: bool, time: Option<Estimate>) -> String {
    format!("{}{}", if cut_off { "more than " } else { "" }, estimate(time))
}

pub fn markdown(study: &Study) -> String {
    let mut out = format!("# {}\n\n", cell(&study.name));
    if !study.title.is_empty() {
        let _ = writeln!(out, "{}\n", cell(&study.title));
    }
    let _ = writeln!(
        out,
        "{}; begun {}; evenkeel {}.\n",
        cell(&host_line(&study.host)),
        time::to_the_second(&study.began),
        study.version
    );
    if !study.verdicts.is_empty() {
        out += "## Verdicts\n\n";
        out += &table(
            &["holds", "verdict", "test", "value", "bound"],
            3,
            study.verdicts.iter().map(|v| {
                let ends =
                    v.test.interval.map(|[low, high]| format!(" {}", bracketed(known(low), known(high))));
                vec![
                    super::text::outcome(v).to_owned(),
                    v.text.clone(),
                    v.test.statistic.clone(),
                    format!("{}{} {}", known(v.test.value), ends.unwrap_or_default(), v.test.unit)
                        .trim_end()
                        .to_owned(),
                    v.test.bound.clone(),
                ]
            }),
        );
        out.push('\n');
    }
    if !study.missed.is_empty() {
        out += "## Missed\n\n";
        for missed in &study.missed {
            let _ = writeln!(out, "- {}", cell(missed));
        }
        out.push('\n');
    }
    for source in &study.sources {
        let _ = writeln!(
            out,
            "## Next to published measurements: {}\n\n{}.\n",
            cell(&source.title),
            cell(&source.quantity)
        );
        out += &table(
            &["", "published", "predicted", study.made()],
            1,
            source.rows.iter().map(|row| {
                vec![row.label.clone(), known(row.source), known(row.predicted), estimate(row.measured)]
            }),
        );
        out.push('\n');
    }
    if !study.readings.is_empty() {
        out += "## Reading files, by share of the machine\n\n";
        out += &table(
            &["file", "limit", "share %", "real, s", "sys, s", "user, s"],
            2,
            study.readings.iter().map(|r| {
                vec![
                    r.file.clone(),
                    r.limit.clone(),
                    figure(r.share_pct),
                    bound(r.cut_off, r.real_s),
                    estimate(r.sys_s),
                    estimate(r.user_s),
                ]
            }),
        );
        out.push('\n');
    }
    for point in &study.points {
        out += &of_point(point);
    }
    out
}

fn of_point(point: &PointStudy) -> String {
    let mut out = String::new();
    let label = if point.label.is_empty() { "Tenants".to_owned() } else { cell(&point.label) };
    let _ = writeln!(out, "## {label}\n");
    if let Some(why) = &point.unavailable {
        let _ = writeln!(out, "Not available here: {}\n", cell(why));
        return out;
    }
    out += &table(
        &[
            "tenant",
            "limits",
            "runs",
            "events/s",
            "competing events/s",
            "share %",
            "of weights %",
            "feasible %",
            "predicted events/s",
            "run, s",
            "predicted run, s",
            "median",
            "min",
            "max",
            "p95",
            "wait a run, ms",
            "elapsed, s",
            "CPU %",
            "user, s",
            "sys, s",
        ],
        2,
        point.tenants.iter().map(|t| {
            let run =
                |of: fn(&evenkeel_experiment::study::stats::Summary) -> f64| known(t.run_s.as_ref().map(of));
            vec![
                with_units(t),
                limits(t),
                t.runs.to_string(),
                estimate(t.events_per_s.map(|s| s.estimate())),
                estimate(t.competing_per_s),
                estimate(t.share_pct),
                known(t.weight_pct),
                known(t.feasible_pct),
                known(t.predicted_per_s),
                estimate(t.run_s.map(|s| s.estimate())),
                known(t.predicted_run_s),
                run(|s| s.median),
                run(|s| s.min),
                run(|s| s.max),
                run(|s| s.p95),
                known(t.wait_per_run_s.map(|w| w.value * 1e3)),
                bound(t.cut_off, t.elapsed_s),
                known(t.cpu_pct.map(|c| c.value)),
                known(t.user_s.map(|c| c.value)),
                known(t.sys_s.map(|c| c.value)),
            ]
        }),
    );
    for why in unpredicted(point) {
        let _ = writeln!(out, "\nNo prediction: {}", cell(why));
    }
    for note in &point.notes {
        let _ = writeln!(out, "\n{}", cell(note));
    }
    out.push('\n');
    out
}
