//! For people at a terminal.

use std::fmt::Write as _;

use super::{Blame, Host, Kind, Split, Target, ThrottledBy, Waits, by_name, span};
use crate::table::{self, printable};
use crate::{Field, Table, Value};

/// Width of the bars, characters.
const BAR: usize = 40;
/// Lines of the blame list, and columns of the matrix.
const CULPRITS: usize = 10;

fn bar(share: f64) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let mut out = "█".repeat(eighths / 8);
    if let Some(part) = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8) {
        out.push_str(part);
    }
    out
}

/// What a quota is, in words: `quota 50 ms per 100 ms (0.50 CPU)`.
pub(super) fn quota(by: &ThrottledBy) -> Option<String> {
    let (quota, period) = by.quota_usec.zip(by.period_usec)?;
    Some(format!(
        "quota {} per {} ({:.2} CPU)",
        span(quota as f64),
        span(period as f64),
        quota as f64 / period.max(1) as f64
    ))
}

/// The lines of a split: name, seconds, percent, remark.
fn lines(split: &Split) -> [(&'static str, Option<f64>); 5] {
    [
        ("ran", Some(split.ran_s)),
        ("waited", Some(split.waited_s)),
        ("throttled", split.throttled_s),
        ("stolen", split.stolen_s),
        ("slept", Some(split.slept_s)),
    ]
}

pub fn target_text(target: &Target, width: Option<u16>) -> String {
    let mut out = String::new();
    let threads =
        if target.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", target.threads) };
    let _ = writeln!(
        out,
        "{}: {:.1} s, {threads}{}\n",
        printable(&target.target),
        target.wall_s,
        if target.gone { ", gone before the end" } else { "" }
    );
    let total = target.split.total_s();
    let least = if target.at_least { ">=" } else { "  " };
    for (name, seconds) in lines(&target.split) {
        let Some(seconds) = seconds else {
            let _ = writeln!(out, "  {name:<10}        ?       ?");
            continue;
        };
        let share = if total > 0.0 { seconds / total } else { 0.0 };
        let line = format!("  {name:<10}{least}{seconds:>8.3} s {:>6.1} %  {}", 100.0 * share, bar(share));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    for by in target.throttled_by.iter().filter(|by| by.seconds.is_none_or(|s| s > 0.0)) {
        let group = by.cgroup.as_deref().unwrap_or("a group not seen");
        let seconds = by.seconds.map_or(String::new(), |s| format!("{s:.3} s "));
        let quota = quota(by).map_or(String::new(), |quota| format!(", {quota}"));
        let periods = by
            .periods
            .map_or(String::new(), |[throttled, all]| format!(", throttled in {throttled} of {all} periods"));
        let _ = writeln!(out, "  throttled {seconds}by {}{quota}{periods}", printable(group));
    }
    for (what, seconds) in [
        ("of the sleep: blocked on disk or locks", target.blocked_s),
        ("of the sleep: stopped by a signal or tracer", target.stopped_s),
        ("of the run: serving interrupts", target.interrupted_s),
    ] {
        if let Some(seconds) = seconds.filter(|s| *s >= 0.0005) {
            let _ = writeln!(out, "  {what} {seconds:.3} s");
        }
    }
    if let Some(vm) = &target.vm {
        let words = table::wrap(&vm.words(), usize::from(width.unwrap_or(100)).saturating_sub(2));
        let _ = writeln!(out, "\n  {}", words.replace('\n', "\n  ").trim_end());
    }
    if let Some(waits) = &target.wait_histogram_usec {
        let _ = write!(out, "\n{}", waits_text(waits, target));
    }
    if let Some(blame) = &target.blame {
        out.push_str(&blame_text(blame, target.split.waited_s, width));
    }
    for advice in &target.advice {
        let words =
            table::wrap(&printable(&advice.text), usize::from(width.unwrap_or(100)).saturating_sub(4));
        let _ = write!(out, "\n  -> {}", words.replace('\n', "\n     ").trim_end());
    }
    if !target.advice.is_empty() {
        out.push('\n');
    }
    for note in &target.notes {
        let _ = writeln!(out, "\n{}", printable(note));
    }
    out
}

fn waits_text(waits: &Waits, target: &Target) -> String {
    let known = |usec: Option<f64>| usec.map_or_else(|| "?".to_owned(), span);
    let count = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let mut out = format!(
        "{} waits in the run queue: p50 {}, p99 {}, max {}; preempted {}, gave way {}, moved {} times\n",
        waits.count,
        known(waits.p50_usec),
        known(waits.p99_usec),
        known(waits.max_usec),
        count(target.preemptions),
        count(target.voluntary),
        count(target.migrations),
    );
    let most = waits.buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    for bucket in &waits.buckets {
        let range = format!("{} to {}", span(bucket.from as f64), span(bucket.to as f64));
        let line = format!("  {range:>20} {:>9}  {}", bucket.count, bar(bucket.count as f64 / most as f64));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn blame_text(blame: &[Blame], waited_s: f64, width: Option<u16>) -> String {
    let blame = by_name(blame);
    if blame.is_empty() || waited_s < 0.0005 {
        return String::new();
    }
    let table = Table::new(vec![
        Field::number("share_pct", "SHARE %", 1, |row: &Blame| Some(row.share_pct)),
        Field::number("seconds", "SECONDS", 3, |row: &Blame| Some(row.seconds)),
        Field::text("kind", "KIND", |row: &Blame| if row.own { "own task" } else { row.kind.name() }),
        Field::new("tid", "TID", |row: &Blame| {
            row.tid.map_or(Value::Absent, |tid| Value::Integer(tid.into()))
        }),
        Field::text("name", "NAME", |row: &Blame| row.name.clone()),
        Field::new("container", "CONTAINER", |row: &Blame| row.place().into()),
        Field::new("cgroup", "CGROUP", |row: &Blame| row.cgroup.clone().into()),
    ]);
    let mut out = "\nwho ran on the CPU while it was runnable there:\n".to_owned();
    out.push_str(&table.text(blame.iter().take(CULPRITS), width));
    if blame.len() > CULPRITS {
        let rest: f64 = blame[CULPRITS..].iter().map(|row| row.share_pct).sum();
        let _ = writeln!(out, "{rest:>7.1}  {} others", blame.len() - CULPRITS);
    }
    out
}

/// The blame list as CSV.
pub fn blame_table() -> Table<Blame> {
    Table::new(vec![
        Field::text("kind", "KIND", |row: &Blame| row.kind.name()),
        Field::text("name", "NAME", |row: &Blame| row.name.clone()),
        Field::new("tgid", "TGID", |row: &Blame| {
            row.tgid.map_or(Value::Absent, |n| Value::Integer(n.into()))
        }),
        Field::new("tid", "TID", |row: &Blame| row.tid.map_or(Value::Absent, |n| Value::Integer(n.into()))),
        Field::new("container", "CONTAINER", |row: &Blame| row.container.clone().into()),
        Field::new("pod", "POD", |row: &Blame| row.pod.clone().into()),
        Field::new("cgroup", "CGROUP", |row: &Blame| row.cgroup.clone().into()),
        Field::new("own", "OWN", |row: &Blame| Value::Bool(row.own)),
        Field::number("seconds", "SECONDS", 3, |row: &Blame| Some(row.seconds)),
        Field::number("share_pct", "SHARE %", 1, |row: &Blame| Some(row.share_pct)),
    ])
}

/// The host-wide report: each group's split, then who took whose time.
pub fn host_text(host: &Host, width: Option<u16>) -> String {
    let mut out = format!("all: {:.1} s, {} CPUs\n\n", host.wall_s, host.cpus);
    let wall_s = host.wall_s.max(1e-9);
    let pct = move |seconds: Option<f64>| seconds.map(|s| 100.0 * s / wall_s);
    let groups = Table::new(vec![
        Field::text("name", "CONTAINER", |row: &super::Group| row.name.clone()),
        Field::number("ran", "RAN %", 1, move |row: &super::Group| pct(Some(row.split.ran_s))),
        Field::number("waited", "WAITED %", 1, move |row: &super::Group| pct(Some(row.split.waited_s))),
        Field::number("throttled", "THROTTLED %", 1, move |row: &super::Group| pct(row.split.throttled_s)),
        Field::number("stolen", "STOLEN %", 1, move |row: &super::Group| pct(row.split.stolen_s)),
        Field::new("p50", "P50", |row: &super::Group| spanned(row.wait_histogram_usec.p50_usec)).right(),
        Field::new("p99", "P99", |row: &super::Group| spanned(row.wait_histogram_usec.p99_usec)).right(),
        Field::new("max", "MAX", |row: &super::Group| spanned(row.wait_histogram_usec.max_usec)).right(),
    ]);
    out.push_str(&groups.text(&host.groups, width));
    out.push_str("\nwho ran while others were runnable on the same CPU:\n");
    let mut rows = matrix_rows(host);
    rows.truncate(2 * CULPRITS);
    out.push_str(&matrix_table().text(&rows, width));
    if host.at_least {
        let _ = writeln!(out, "\n{} events were lost: times are lower bounds", host.lost);
    }
    out
}

fn spanned(usec: Option<f64>) -> Value {
    usec.map_or(Value::Absent, |usec| Value::Text(span(usec)))
}

/// A cell of the matrix with its names.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixRow {
    /// Who waited.
    pub victim: String,
    /// What ran meanwhile.
    pub kind: Kind,
    pub culprit: String,
    /// For how long, seconds.
    pub seconds: f64,
    /// Percent of the victim's waiting.
    pub share_pct: f64,
}

/// The matrix as a list, longest first; what is less than half a millisecond is left out.
pub fn matrix_rows(host: &Host) -> Vec<MatrixRow> {
    let named = |cell: &super::Cell| {
        let column = host.culprits.get(cell.culprit)?;
        Some(MatrixRow {
            victim: host.groups.get(cell.victim)?.name.clone(),
            kind: column.kind,
            culprit: culprit_name(column),
            seconds: cell.seconds,
            share_pct: cell.share_pct,
        })
    };
    let mut rows: Vec<_> =
        host.matrix.iter().filter(|cell| cell.seconds >= 0.0005).filter_map(named).collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    rows
}

pub fn matrix_table() -> Table<MatrixRow> {
    Table::new(vec![
        Field::text("victim", "WAITED", |row: &MatrixRow| row.victim.clone()),
        Field::text("culprit", "WHILE THIS RAN", |row: &MatrixRow| row.culprit.clone()),
        Field::text("kind", "KIND", |row: &MatrixRow| row.kind.name()).documents_only(),
        Field::number("seconds", "SECONDS", 3, |row: &MatrixRow| Some(row.seconds)),
        Field::number("share_pct", "OF ITS WAIT %", 1, |row: &MatrixRow| Some(row.share_pct)),
    ])
}

/// A column's name, told what it is where that is not plain.
pub(super) fn culprit_name(column: &super::Column) -> String {
    match column.kind {
        Kind::Task | Kind::Container => column.name.clone(),
        Kind::Idle => "idle".to_owned(),
        Kind::KernelThread => format!("[{}]", column.name),
        kind => format!("{} {}", kind.name(), column.name),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{host, target};
    use super::*;

    #[test]
    fn a_target_in_words() {
        let text = target_text(&target(), None);
        assert!(
            text.starts_with("container:web: 5.0 s, 2 threads\n\n  ran            4.000 s   40.0 %  ███"),
            "{text}"
        );
        assert!(text.contains(
            "throttled 3.000 s by /docker/web, quota 50 ms per 100 ms (0.50 CPU), throttled in 40 of 50"
        ));
        assert!(text.contains("150 waits in the run queue: p50 12 us, p99 4.1 ms, max 28 ms; preempted 100"));
        assert!(text.contains("hog<script>") && text.contains("batch"), "{text}");
    }

    #[test]
    fn whoever_ran_is_named_with_its_pod() {
        let mut target = target();
        target.blame.iter_mut().flatten().for_each(|row| row.pod = Some("prod/batch-x2".into()));
        let text = target_text(&target, None);
        assert!(text.contains(" prod/batch-x2/batch "), "{text}");
    }

    #[test]
    fn lost_events_make_times_lower_bounds() {
        let mut target = target();
        target.at_least = true;
        assert!(
            target_text(&target, None).contains("  ran       >=   4.000 s"),
            "{}",
            target_text(&target, None)
        );
        target.split.throttled_s = None;
        assert!(target_text(&target, None).contains("  throttled         ?       ?\n"));
    }

    #[test]
    fn the_host_in_words() {
        let text = host_text(&host(), None);
        assert!(text.contains("WHILE THIS RAN") && text.contains("softirq NET_RX"), "{text}");
        assert!(text.contains("web         80.0      20.0         60.0"), "{text}");
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(
            (bar(0.0), bar(1.0), bar(0.5 + 1.0 / 320.0)),
            (String::new(), "█".repeat(40), "█".repeat(20) + "▏")
        );
    }
}
