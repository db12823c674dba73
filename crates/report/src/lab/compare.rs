//! Studies side by side: what changed, in means and in how runs are distributed.

use std::fmt::Write as _;

use evenkeel_base::run::Estimate;
use evenkeel_base::text::bracketed;
use evenkeel_experiment::study::Comparison;
use evenkeel_experiment::study::compare::{ComparedRow, DistributionRow, letter};
use maud::{PreEscaped, html};

use super::charts;
use super::figures::{estimate, known};
use super::markdown::{cell, table};
use super::text::said;
use crate::html::{figure as picture, page};
use crate::table::{Field, Table, printable, wrap};

/// Rows of distributions and sentences on a terminal; pages and documents have all.
const MOST: usize = 60;
const MOST_SAID: usize = 12;

fn quantity(name: &str) -> &'static str {
    match name {
        "events_per_s" => "events/s",
        "run_s" => "run, s",
        "elapsed_s" => "elapsed, s",
        "cpu_ms_per_event" => "CPU ms an event",
        "wait_per_run_s" => "wait a run, s",
        "waited_s" => "waited, s",
        _ => "?",
    }
}

/// A change without an interval says so.
fn change(changes: &[Option<Estimate>], index: usize) -> String {
    match changes.get(index).copied().flatten() {
        None => "?".to_owned(),
        Some(c) if c.low.is_finite() => {
            let [low, high] = [c.low, c.high].map(|end| format!("{end:+.1}"));
            format!("{:+.1} % {}", c.value, bracketed(low, high))
        }
        Some(c) => format!("{:+.1} % [no interval]", c.value),
    }
}

/// A value with its interval, or what the sample lacks for it.
fn distributed(row: &DistributionRow, index: usize) -> String {
    match (row.values.get(index).copied().flatten(), row.lacking.get(index).and_then(Option::as_ref)) {
        (None, Some(lacking)) => format!("({lacking})"),
        (value, _) => estimate(value),
    }
}

/// What stands above all tables: other hosts, other competition, what has no counterpart.
fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    if comparison.different_hosts {
        notes.push("The hosts differ: rates are those of different machines.".to_owned());
    }
    notes.extend(comparison.matched.iter().map(|m| m.note.clone()).filter(|note| !note.is_empty()));
    notes.extend(comparison.unmatched.iter().map(|why| format!("Not compared: {why}")));
    notes
}

/// How many figures changed, at which confidence.
fn answer(comparison: &Comparison) -> String {
    let verdicts = || {
        let of = comparison.distributions.iter().map(|r| r.verdict.as_str());
        comparison.rows.iter().map(|r| r.verdict.as_str()).chain(of).filter(|v| !v.is_empty())
    };
    let changed = verdicts().filter(|v| *v == "better" || *v == "worse").count();
    let level = comparison.level_pct.map_or_else(String::new, |level| {
        format!(
            " Verdicts hold together at 95 % (each at {level:.2} %), so they need more than the 95 % interval of a single \
             row."
        )
    });
    format!(
        "{changed} of {} figures changed beyond their interval and by at least 1 %.{level}",
        verdicts().count()
    )
}

const LACKING: &str = "`(n of m runs)`: the sample is too small for an interval of that quantile; it is worth n independent \
                       runs, and m are needed.";

fn is_lacking(comparison: &Comparison) -> bool {
    comparison.distributions.iter().any(|r| r.lacking.iter().any(Option::is_some))
}

const VALUES: [&str; 6] = ["A", "B", "C", "D", "E", "F"];
const CHANGES: [&str; 5] = ["A TO B", "A TO C", "A TO D", "A TO E", "A TO F"];

pub fn compare_text(comparison: &Comparison, width: Option<u16>) -> String {
    let columns = usize::from(width.unwrap_or(100)).min(110);
    let mut out = String::new();
    for (index, name) in comparison.studies.iter().enumerate() {
        let _ = writeln!(out, "{}: {}", letter(index), printable(name));
    }
    for note in notes(comparison) {
        out += &wrap(&printable(&note), columns);
    }
    out.push('\n');
    out += &wrap(&answer(comparison), columns);
    // What changed first.
    let mut verdicts: Vec<_> = comparison.verdicts.iter().collect();
    verdicts.sort_by_key(|v| match v.holds {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    });
    for verdict in verdicts.iter().take(MOST_SAID) {
        out += &said(verdict, columns);
    }
    if verdicts.len() > MOST_SAID {
        let _ = writeln!(out, "({} more in the page of --out and in JSON)", verdicts.len() - MOST_SAID);
    }
    out.push('\n');
    let count = comparison.studies.len();
    let mut fields: Vec<Field<ComparedRow>> = vec![
        Field::text("point", "POINT", |r: &ComparedRow| r.point.clone()),
        Field::text("tenant", "TENANT", |r: &ComparedRow| r.tenant.clone()),
        Field::text("quantity", "", |r: &ComparedRow| quantity(&r.quantity)),
    ];
    for (index, heading) in VALUES.into_iter().enumerate().take(count) {
        fields.push(
            Field::text(heading, heading, move |r: &ComparedRow| {
                known(r.values.get(index).copied().flatten().map(|e| e.value))
            })
            .right(),
        );
    }
    for (index, heading) in CHANGES.into_iter().enumerate().take(count.saturating_sub(1)) {
        fields.push(
            Field::text(heading, heading, move |r: &ComparedRow| change(&r.changes_pct, index)).right(),
        );
    }
    fields.push(Field::text("verdict", "", |r: &ComparedRow| r.verdict.clone()));
    out += &Table::new(fields).text(comparison.rows.iter(), width);
    if count > VALUES.len() {
        let _ = writeln!(out, "(columns of the first {}; the page of --out and JSON have all)", VALUES.len());
    }
    out += &distributions_text(comparison, count, width);
    out
}

/// Lengths of runs; of tenants without any the rates.
fn distributions_text(comparison: &Comparison, count: usize, width: Option<u16>) -> String {
    let of = |name: &str| -> Vec<&DistributionRow> {
        comparison.distributions.iter().filter(|r| r.quantity == name).collect()
    };
    let (name, rows) = match (of("run_s"), of("events_per_s")) {
        (rows, rates) if rows.is_empty() => ("Events a second of a run", rates),
        (rows, _) => ("Length of a run, seconds", rows),
    };
    if rows.is_empty() {
        return String::new();
    }
    let mut fields: Vec<Field<DistributionRow>> = vec![
        Field::text("point", "POINT", |r: &DistributionRow| r.point.clone()),
        Field::text("tenant", "TENANT", |r: &DistributionRow| r.tenant.clone()),
        Field::text("feature", "", |r: &DistributionRow| r.feature.clone()),
    ];
    for (index, heading) in VALUES.into_iter().enumerate().take(count) {
        fields.push(Field::text(heading, heading, move |r: &DistributionRow| distributed(r, index)).right());
    }
    for (index, heading) in CHANGES.into_iter().enumerate().take(count.saturating_sub(1)) {
        fields.push(
            Field::text(heading, heading, move |r: &DistributionRow| change(&r.changes_pct, index)).right(),
        );
    }
    fields.push(Field::text("verdict", "", |r: &DistributionRow| r.verdict.clone()));
    let mut out = format!("\n{name}\n");
    out += &Table::new(fields).text(rows.iter().copied().take(MOST), width);
    if rows.len() > MOST {
        let _ = writeln!(out, "({} more rows in the page of --out and in JSON)", rows.len() - MOST);
    }
    if is_lacking(comparison) {
        out += &wrap(LACKING, usize::from(width.unwrap_or(100)).min(110));
    }
    out
}

/// As GitHub tables.
pub fn compare_markdown(comparison: &Comparison) -> String {
    let names = || comparison.studies.iter().map(|name| cell(name));
    let heads = |first: [&str; 3]| -> Vec<String> {
        let mut header: Vec<String> = first.map(str::to_owned).to_vec();
        header.extend(names());
        header.extend(names().skip(1).map(|name| format!("change to {name}")));
        header.push("verdict".into());
        header
    };
    let mut out = String::from("# Comparison\n\n");
    for note in notes(comparison) {
        let _ = writeln!(out, "{}\n", cell(&note));
    }
    let _ = writeln!(out, "{}\n", answer(comparison));
    for verdict in &comparison.verdicts {
        let _ = writeln!(out, "- {}: {}", super::text::outcome(verdict), cell(&verdict.text));
    }
    out += if comparison.verdicts.is_empty() { "" } else { "\n" };
    let header = heads(["point", "tenant", "quantity"]);
    out += &table(
        &header.iter().map(String::as_str).collect::<Vec<_>>(),
        3,
        comparison.rows.iter().map(|r| {
            let mut row = vec![r.point.clone(), r.tenant.clone(), quantity(&r.quantity).to_owned()];
            row.extend(r.values.iter().map(|v| estimate(*v)));
            row.extend((0..r.changes_pct.len()).map(|index| change(&r.changes_pct, index)));
            row.push(r.verdict.clone());
            row
        }),
    );
    if comparison.distributions.is_empty() {
        return out;
    }
    out += "\n## How runs are distributed\n\n";
    if is_lacking(comparison) {
        let _ = writeln!(out, "{LACKING}\n");
    }
    let header = heads(["point", "tenant", "of each run"]);
    out += &table(
        &header.iter().map(String::as_str).collect::<Vec<_>>(),
        3,
        comparison.distributions.iter().map(|r| {
            let mut row =
                vec![r.point.clone(), r.tenant.clone(), format!("{}: {}", quantity(&r.quantity), r.feature)];
            row.extend((0..r.values.len()).map(|index| distributed(r, index)));
            row.extend((0..r.changes_pct.len()).map(|index| change(&r.changes_pct, index)));
            row.push(r.verdict.clone());
            row
        }),
    );
    out
}

fn class(verdict: &str) -> &'static str {
    match verdict {
        "better" => "good",
        "worse" => "bad",
        _ => "",
    }
}

pub fn compare_html(comparison: &Comparison) -> String {
    let rows = |quantity: &str| -> Vec<_> {
        let of = comparison.rows.iter().filter(|r| r.quantity == quantity);
        of.map(|r| (format!("{} {}", r.point, r.tenant).trim().to_owned(), r.values.clone()))
            .take(60)
            .collect()
    };
    let tails = || -> Vec<(String, Vec<Option<Estimate>>)> {
        let of = comparison.distributions.iter().filter(|r| r.quantity == "run_s");
        of.filter(|r| ["p50", "p90", "p99"].contains(&r.feature.as_str()))
            .filter(|r| r.values.iter().any(Option::is_some))
            .map(|r| (format!("{} {} {}", r.point, r.tenant, r.feature).trim().to_owned(), r.values.clone()))
            .take(60)
            .collect()
    };
    let names: Vec<&str> = comparison.studies.iter().map(String::as_str).collect();
    let tails = tails();
    let body = html! {
        style { (PreEscaped(charts::STYLE)) }
        h1 { "Side by side: " (comparison.studies.join(", ")) }
        div.answer id="answer" {
            p { (answer(comparison)) }
            @for note in notes(comparison) { p { (note) } }
        }
        @if !comparison.verdicts.is_empty() {
            ul id="verdicts" { @for v in &comparison.verdicts { li { b { (super::text::outcome(v)) } " " (v.text) } } }
        }
        @for (name, label) in [("events_per_s", "events a second"), ("run_s", "length of a run, seconds"), ("elapsed_s", "time until all runs are done, seconds")] {
            @let rows = rows(name);
            @if !rows.is_empty() {
                (picture(&format!("Each tenant's {label}, with 95 % intervals."), &charts::marks(&rows, &names, label)))
            }
        }
        div.wide { table id="changes" {
            thead { tr {
                th { "Point" } th { "Tenant" } th { "Quantity" }
                @for name in &comparison.studies { th.r { (name) } }
                @for name in comparison.studies.iter().skip(1) { th.r { "Change to " (name) } }
                th { "" }
            } }
            tbody { @for r in &comparison.rows { tr {
                td { (r.point) } td { (r.tenant) } td { (quantity(&r.quantity)) }
                @for v in &r.values { td.r { (estimate(*v)) } }
                @for index in 0..r.changes_pct.len() { td.r { (change(&r.changes_pct, index)) } }
                td class=(class(&r.verdict)) { (r.verdict) }
            } } }
        } }
        @if !comparison.distributions.is_empty() {
            h2 id="distributions" { "How runs are distributed" }
            @if !tails.is_empty() {
                (picture("The middle and the slow end of the lengths of runs, with 95 % intervals.", &charts::marks(&tails, &names, "length of a run, seconds")))
            }
            @if is_lacking(comparison) { p.sub { (LACKING.replace('`', "")) } }
            div.wide { table id="features" {
                thead { tr {
                    th { "Point" } th { "Tenant" } th { "Of each run" } th { "" }
                    @for name in &comparison.studies { th.r { (name) } }
                    @for name in comparison.studies.iter().skip(1) { th.r { "Change to " (name) } }
                    th { "" }
                } }
                tbody { @for r in &comparison.distributions { tr {
                    td { (r.point) } td { (r.tenant) } td { (quantity(&r.quantity)) } td { (r.feature) }
                    @for index in 0..r.values.len() { td.r { (distributed(r, index)) } }
                    @for index in 0..r.changes_pct.len() { td.r { (change(&r.changes_pct, index)) } }
                    td class=(class(&r.verdict)) { (r.verdict) }
                } } }
            } }
        }
    };
    page("evenkeel lab: comparison", &body)
}
