//! Hosts side by side: what a unit is worth, what published units promise, what a share of units buys.

use std::fmt::Write as _;

use evenkeel_experiment::study::Platforms;
use evenkeel_experiment::study::compare::letter;
use maud::html;

use super::figures::{estimate, figure, known};
use super::markdown::{cell, table};
use super::text::{outcome, said};
use crate::html::page;
use crate::table::{Field, Table, printable, wrap};

/// Headings of the shares of each host, as many as a page has room for.
const GOT: [&str; 6] = ["% got, A", "% got, B", "% got, C", "% got, D", "% got, E", "% got, F"];

/// A table of words: columns after `left` are aligned right.
struct Words {
    title: &'static str,
    headings: Vec<&'static str>,
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Words {
    fn text(&self, width: Option<u16>) -> String {
        let fields = self.headings.iter().enumerate().map(|(index, heading)| {
            let cell = move |row: &Vec<String>| row.get(index).cloned();
            let field = Field::text(heading, heading.to_uppercase(), cell);
            if index >= self.left { field.right() } else { field }
        });
        Table::new(fields.collect()).text(self.rows.iter(), width)
    }

    fn markdown(&self) -> String {
        table(&self.headings, self.left, self.rows.iter().cloned())
    }
}

/// What a unit is worth on each host.
fn worth(platforms: &Platforms) -> Words {
    let row = |(index, p): (usize, &evenkeel_experiment::study::compare::Platform)| {
        vec![
            format!("{}: {}", letter(index), p.name),
            p.host.cpu_model.clone().unwrap_or_else(|| "?".into()),
            p.host.cpus.map_or_else(|| "?".into(), |n| n.to_string()),
            p.host.kernel.clone().unwrap_or_else(|| "?".into()),
            known(p.alone_per_s),
            known(p.unit_per_s),
            p.of_first_pct.map_or_else(|| "?".into(), |pct| format!("{} %", figure(pct))),
        ]
    };
    Words {
        title: "What a unit is worth",
        headings: vec![
            "result",
            "processor",
            "CPUs",
            "kernel",
            "events/s alone",
            "events/s a unit",
            "a unit, of the first host",
        ],
        left: 4,
        rows: platforms.hosts.iter().enumerate().map(row).collect(),
    }
}

/// What published units promise, and what is measured.
fn promises(platforms: &Platforms) -> Words {
    let rows = platforms.promises.iter().map(|p| {
        vec![
            letter(p.host),
            match p.rate.as_str() {
                "one-thread" => "one thread".to_owned(),
                "threads" => "several threads".to_owned(),
                other => other.to_owned(),
            },
            figure(p.units[0]),
            format!("{} ({} units)", letter(p.from), figure(p.units[1])),
            estimate(Some(p.promised_per_s)),
            estimate(Some(p.measured_per_s)),
            estimate(Some(p.ratio)),
        ]
    });
    Words {
        title: "What published units promise",
        headings: vec![
            "host",
            "alone",
            "units",
            "from",
            "promised events/s",
            "measured events/s",
            "measured/promised",
        ],
        left: 2,
        rows: rows.collect(),
    }
}

/// What a share of units buys on each host.
fn shape(platforms: &Platforms) -> Words {
    let mut headings = vec!["units that compete", "of units", "% of units"];
    headings.extend(GOT.into_iter().take(platforms.hosts.len()));
    let rows = platforms.shape.iter().map(|row| {
        let mut cells = vec![row.units.clone(), row.own.to_string(), figure(row.of_units_pct)];
        cells.extend(row.share_pct.iter().take(GOT.len()).map(|share| estimate(*share)));
        cells
    });
    let title = match platforms.hosts.len() > GOT.len() {
        true => "What a share of units buys on the first six (JSON has all)",
        false => "What a share of units buys",
    };
    Words { title, headings, left: 1, rows: rows.collect() }
}

/// Tables that have rows, after the first.
fn further(platforms: &Platforms) -> Vec<Words> {
    [promises(platforms), shape(platforms)].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

pub fn platforms_text(platforms: &Platforms, width: Option<u16>) -> String {
    let columns = usize::from(width.unwrap_or(100)).min(110);
    let mut out = wrap(&platforms.verdict, columns);
    for verdict in &platforms.verdicts {
        out += &said(verdict, columns);
    }
    for missing in &platforms.missing {
        out += &wrap(&printable(&format!("missed: {missing}")), columns);
    }
    let _ = write!(out, "\n{}", worth(platforms).text(width));
    for table in further(platforms) {
        let _ = write!(out, "\n{}\n{}", table.title, table.text(width));
    }
    out
}

/// The same as GitHub tables.
pub fn platforms_markdown(platforms: &Platforms) -> String {
    let first = worth(platforms);
    let mut out = format!("# {}\n\n{}\n\n", first.title, platforms.verdict);
    for verdict in &platforms.verdicts {
        let _ = writeln!(out, "- {}: {}", outcome(verdict), cell(&verdict.text));
    }
    for missing in &platforms.missing {
        let _ = writeln!(out, "- missed: {}", cell(missing));
    }
    if !(platforms.verdicts.is_empty() && platforms.missing.is_empty()) {
        out.push('\n');
    }
    out += &first.markdown();
    for table in further(platforms) {
        let _ = write!(out, "\n## {}\n\n{}", table.title, table.markdown());
    }
    out
}

/// The same as a page.
pub fn platforms_html(platforms: &Platforms) -> String {
    let tables: Vec<Words> = std::iter::once(worth(platforms)).chain(further(platforms)).collect();
    let body = html! {
        h1 { "Hosts side by side" }
        div.answer id="answer" {
            p { (platforms.verdict) }
            @for v in &platforms.verdicts { p { b { (outcome(v)) } " " (v.text) } }
        }
        @for missing in &platforms.missing { p.note { (missing) } }
        @for table in &tables {
            h2 { (table.title) }
            div.wide { table {
                thead { tr { @for (index, heading) in table.headings.iter().enumerate() {
                    th class=[(index >= table.left).then_some("r")] { (heading) }
                } } }
                tbody { @for row in &table.rows { tr { @for (index, text) in row.iter().enumerate() {
                    td class=[(index >= table.left).then_some("r")] { (text) }
                } } } }
            } }
        }
    };
    page("evenkeel lab: platforms", &body)
}
