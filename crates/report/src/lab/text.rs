//! A study on a terminal: verdicts, the table of readers of files where there are any, then a line a tenant.

use std::fmt::Write as _;

use evenkeel_base::run::Estimate;
use evenkeel_experiment::study::{PointStudy, Reading, Study, TenantStudy, Verdict};

use super::figures::{figure, host_line, known, with_units};
use crate::table::{Field, Table, printable, wrap};

/// Most lines of tenants; the report has all.
const MOST: usize = 60;

/// `holds`, `fails`, `undecided`.
pub(crate) fn outcome(verdict: &Verdict) -> &'static str {
    match verdict.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    }
}

/// A verdict with its answer before it, in lines of so many columns.
pub(crate) fn said(verdict: &Verdict, columns: usize) -> String {
    let mut out = String::new();
    let lines = wrap(&printable(&verdict.text), columns.saturating_sub(6));
    for (index, line) in lines.lines().enumerate() {
        let mark = if index == 0 { format!("{:>4}  ", outcome(verdict)) } else { "      ".to_owned() };
        let _ = writeln!(out, "{mark}{line}");
    }
    out
}

/// Verdicts and tenants, for `lab run` and `lab report`.
pub fn text(study: &Study, width: Option<u16>) -> String {
    let mut out = String::new();
    let title = if study.title.is_empty() { String::new() } else { format!(": {}", study.title) };
    let _ = writeln!(out, "{}{title}", printable(&study.name));
    let _ = writeln!(out, "{}", printable(&host_line(&study.host)));
    let columns = usize::from(width.unwrap_or(100)).min(110);
    if !study.verdicts.is_empty() {
        let _ = writeln!(out);
    }
    for verdict in &study.verdicts {
        out += &said(verdict, columns);
    }
    for missed in &study.missed {
        let _ = write!(out, "\nmissed: {}", wrap(&printable(missed), columns));
    }
    if !study.missed.is_empty() {
        out.push('\n');
    }
    if !study.readings.is_empty() {
        let _ = writeln!(out);
        out += &readings().text(&study.readings, width);
    }
    let rows: Vec<Row<'_>> = rows(study).collect();
    if !rows.is_empty() {
        let _ = writeln!(out);
        out += &table().text(rows.iter().take(MOST), width);
    }
    if rows.len() > MOST {
        let _ = writeln!(out, "({} more in the report)", rows.len() - MOST);
    }
    out
}

/// One tenant at one point.
pub(crate) struct Row<'a> {
    pub point: &'a PointStudy,
    pub tenant: &'a TenantStudy,
}

pub(crate) fn rows(study: &Study) -> impl Iterator<Item = Row<'_>> {
    study.points.iter().flat_map(|point| point.tenants.iter().map(move |tenant| Row { point, tenant }))
}

/// Before a time: of a run that was cut off only a lower bound is known.
fn bound(cut_off: bool) -> &'static str {
    if cut_off { ">" } else { "" }
}

/// `0.412 ±3.1 %`: half the interval, of the value.
fn spread(estimate: Option<Estimate>) -> String {
    match estimate {
        Some(e) if e.low < e.high && (e.high - e.low).is_finite() && e.value > 0.0 => {
            format!("{} ±{:.1} %", figure(e.value), 50.0 * (e.high - e.low) / e.value)
        }
        other => known(other.map(|e| e.value)),
    }
}

/// Readers of files by share of the machine: the source's empty tables.
fn readings() -> Table<Reading> {
    Table::new(vec![
        Field::text("file", "FILE", |r: &Reading| r.file.clone()),
        Field::text("limit", "LIMIT", |r: &Reading| r.limit.clone()),
        Field::text("share_pct", "SHARE %", |r: &Reading| figure(r.share_pct)).right(),
        Field::text("real_s", "REAL s", |r: &Reading| format!("{}{}", bound(r.cut_off), spread(r.real_s)))
            .right(),
        Field::text("sys_s", "SYS s", |r: &Reading| spread(r.sys_s)).right(),
        Field::text("user_s", "USER s", |r: &Reading| spread(r.user_s)).right(),
    ])
}

fn table<'a>() -> Table<Row<'a>> {
    Table::new(vec![
        Field::text("point", "POINT", |r: &Row<'a>| r.point.label.clone()),
        Field::text("tenant", "TENANT", |r: &Row<'a>| with_units(r.tenant)),
        Field::integer("runs", "RUNS", |r: &Row<'a>| i64::try_from(r.tenant.runs).ok()),
        Field::text("events_per_s", "EVENTS/s", |r: &Row<'a>| known(r.tenant.events_per_s.map(|s| s.mean)))
            .right(),
        Field::text("competing", "COMPETING", |r: &Row<'a>| known(r.tenant.competing_per_s.map(|s| s.value)))
            .right(),
        Field::text("share", "SHARE %", |r: &Row<'a>| known(r.tenant.share_pct.map(|s| s.value))).right(),
        Field::text("run_s", "RUN s", |r: &Row<'a>| known(r.tenant.run_s.map(|s| s.mean))).right(),
        Field::text("wait_ms", "WAIT ms", |r: &Row<'a>| {
            r.tenant.wait_per_run_s.map_or_else(|| "?".to_owned(), |w| figure(w.value * 1e3))
        })
        .right(),
        Field::text("cpu", "CPU %", |r: &Row<'a>| known(r.tenant.cpu_pct.map(|c| c.value))).right(),
        Field::text("elapsed", "ELAPSED s", |r: &Row<'a>| {
            format!("{}{}", bound(r.tenant.cut_off), known(r.tenant.elapsed_s.map(|e| e.value)))
        })
        .right(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_interval_stands_beside_a_value_that_has_one() {
        let of = |value, low, high| spread(Some(Estimate { value, low, high }));
        assert_eq!(of(2.0, 1.9, 2.1), "2 ±5.0 %");
        assert_eq!((of(2.0, 2.0, 2.0), spread(None)), ("2".to_owned(), "?".to_owned()));
        assert_eq!(of(2.0, f64::NEG_INFINITY, f64::INFINITY), "2");
    }
}
