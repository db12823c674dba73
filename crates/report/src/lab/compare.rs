//! Studies side by side: what changed, and what a unit is worth on each host.

use std::fmt::Write as _;

use evenkeel_experiment::study::compare::ComparedRow;
use evenkeel_experiment::study::{Comparison, Platforms};
use maud::{PreEscaped, html};

use super::markdown::table;
use super::{charts, estimate, figure, known};
use crate::html::{figure as picture, page};
use crate::table::{Field, Table};

fn quantity(row: &ComparedRow) -> &'static str {
    match row.quantity.as_str() {
        "events_per_s" => "events/s",
        "run_s" => "run, s",
        "elapsed_s" => "elapsed, s",
        "cpu_ms_per_event" => "CPU ms an event",
        "wait_per_run_s" => "wait a run, s",
        _ => "?",
    }
}

fn change(row: &ComparedRow, index: usize) -> String {
    match row.changes_pct.get(index).copied().flatten() {
        None => "?".to_owned(),
        Some(c) if c.low.is_finite() => format!("{:+.1} % [{:+.1}, {:+.1}]", c.value, c.low, c.high),
        Some(c) => format!("{:+.1} % (no interval)", c.value),
    }
}

/// For a terminal.
pub fn compare_text(comparison: &Comparison, width: Option<u16>) -> String {
    let mut out = String::new();
    for (index, name) in comparison.studies.iter().enumerate() {
        let _ = writeln!(out, "{}: {}", letter(index), crate::table::printable(name));
    }
    if comparison.different_hosts {
        out += "The hosts differ: rates are those of different machines.\n";
    }
    out.push('\n');
    let mut fields: Vec<Field<ComparedRow>> = vec![
        Field::text("point", "POINT", |r: &ComparedRow| r.point.clone()),
        Field::text("tenant", "TENANT", |r: &ComparedRow| r.tenant.clone()),
        Field::text("quantity", "", |r: &ComparedRow| quantity(r)),
    ];
    const VALUES: [&str; 6] = ["A", "B", "C", "D", "E", "F"];
    const CHANGES: [&str; 5] = ["A TO B", "A TO C", "A TO D", "A TO E", "A TO F"];
    for (index, heading) in VALUES.into_iter().enumerate().take(comparison.studies.len()) {
        fields.push(
            Field::text(heading, heading, move |r: &ComparedRow| {
                known(r.values.get(index).copied().flatten().map(|e| e.value))
            })
            .right(),
        );
    }
    for (index, heading) in CHANGES.into_iter().enumerate().take(comparison.studies.len().saturating_sub(1)) {
        fields.push(Field::text(heading, heading, move |r: &ComparedRow| change(r, index)).right());
    }
    fields.push(Field::text("verdict", "", |r: &ComparedRow| r.verdict.clone()));
    out += &Table::new(fields).text(comparison.rows.iter(), width);
    out
}

fn letter(index: usize) -> String {
    u8::try_from(index)
        .ok()
        .filter(|i| *i < 26)
        .map_or_else(|| (index + 1).to_string(), |i| char::from(b'A' + i).to_string())
}

/// As GitHub tables.
pub fn compare_markdown(comparison: &Comparison) -> String {
    let mut header: Vec<String> = ["point", "tenant", "quantity"].map(str::to_owned).to_vec();
    header.extend(comparison.studies.iter().cloned());
    header.extend(comparison.studies.iter().skip(1).map(|name| format!("change to {name}")));
    header.push("verdict".into());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut out = String::from("# Comparison\n\n");
    if comparison.different_hosts {
        out += "The hosts differ: rates are those of different machines.\n\n";
    }
    out += &table(
        &header,
        3,
        comparison.rows.iter().map(|r| {
            let mut row = vec![r.point.clone(), r.tenant.clone(), quantity(r).to_owned()];
            row.extend(r.values.iter().map(|v| estimate(*v)));
            row.extend((0..r.changes_pct.len()).map(|index| change(r, index)));
            row.push(r.verdict.clone());
            row
        }),
    );
    out
}

/// One page.
pub fn compare_html(comparison: &Comparison) -> String {
    let rows = |quantity: &str| -> Vec<_> {
        let of = comparison.rows.iter().filter(|r| r.quantity == quantity);
        of.map(|r| (format!("{} {}", r.point, r.tenant).trim().to_owned(), r.values.clone()))
            .take(60)
            .collect()
    };
    let names: Vec<&str> = comparison.studies.iter().map(String::as_str).collect();
    let changed = comparison.rows.iter().filter(|r| r.verdict == "better" || r.verdict == "worse").count();
    let body = html! {
        style { (PreEscaped(charts::STYLE)) }
        h1 { "Side by side: " (comparison.studies.join(", ")) }
        p.answer id="answer" {
            (changed) " of " (comparison.rows.len()) " figures changed beyond their 95 % interval and by at least 1 %."
            @if comparison.different_hosts { " The hosts differ: rates are those of different machines." }
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
                td { (r.point) } td { (r.tenant) } td { (quantity(r)) }
                @for v in &r.values { td.r { (estimate(*v)) } }
                @for index in 0..r.changes_pct.len() { td.r { (change(r, index)) } }
                td class=(match r.verdict.as_str() { "better" => "good", "worse" => "bad", _ => "" }) { (r.verdict) }
            } } }
        } }
    };
    page("evenkeel lab: comparison", &body)
}

fn platform_rows(platforms: &Platforms) -> Vec<Vec<String>> {
    platforms
        .hosts
        .iter()
        .map(|p| {
            vec![
                p.name.clone(),
                p.host.cpu_model.clone().unwrap_or_else(|| "?".into()),
                p.host.cpus.map_or_else(|| "?".into(), |n| n.to_string()),
                p.host.kernel.clone().unwrap_or_else(|| "?".into()),
                known(p.alone_per_s),
                known(p.unit_per_s),
                p.of_first_pct.map_or_else(|| "?".into(), |pct| format!("{} %", figure(pct))),
            ]
        })
        .collect()
}

const PLATFORM_COLUMNS: [&str; 7] = [
    "result",
    "processor",
    "CPUs",
    "kernel",
    "events/s alone",
    "events/s a unit",
    "a unit, of the first host",
];

/// What a unit is worth on each host, for a terminal.
pub fn platforms_text(platforms: &Platforms, width: Option<u16>) -> String {
    let rows = platform_rows(platforms);
    let fields = PLATFORM_COLUMNS
        .into_iter()
        .enumerate()
        .map(|(index, heading)| {
            let field = Field::text(heading, heading, move |row: &Vec<String>| row.get(index).cloned());
            if index >= 4 { field.right() } else { field }
        })
        .collect();
    format!("{}\n\n{}", platforms.verdict, Table::new(fields).text(rows.iter(), width))
}

/// The same as a GitHub table.
pub fn platforms_markdown(platforms: &Platforms) -> String {
    format!(
        "# What a unit is worth\n\n{}\n\n{}",
        platforms.verdict,
        table(&PLATFORM_COLUMNS, 4, platform_rows(platforms))
    )
}
