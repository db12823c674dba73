//! A fleet as text, JSON (`evenkeel.fleet/v1`) and CSV.

use std::fmt::Write as _;

use evenkeel_listen::fleet::host::{Finding, Host};
use evenkeel_report::table::Value;
use evenkeel_report::{Field, Table};
use serde_json::json;

use super::super::{Format, show};

/// A finding with its host.
struct Row<'a>(&'a Host, &'a Finding);

/// The whole answer.
pub fn shown(format: Format, hosts: &[Host], seconds: f64, lines: usize) -> String {
    let mut rows: Vec<Row<'_>> =
        hosts.iter().flat_map(|host| host.findings.iter().map(move |finding| Row(host, finding))).collect();
    let wait = |row: &Row<'_>| row.1.wait_pct.unwrap_or(0.0);
    rows.sort_by(|a, b| wait(b).total_cmp(&wait(a)));
    match format {
        Format::Json => format!("{:#}\n", document(hosts, &rows, seconds)),
        Format::Csv => findings().csv(&rows),
        Format::Text | Format::Svg => text(hosts, &rows, seconds, lines),
    }
}

fn sum(hosts: &[Host], of: fn(&Host) -> Option<f64>) -> Option<f64> {
    let known: Vec<f64> = hosts.iter().filter_map(of).collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

fn document(hosts: &[Host], rows: &[Row<'_>], seconds: f64) -> serde_json::Value {
    let read = hosts.iter().filter(|host| host.error.is_none()).count();
    json!({
        "schema": "evenkeel.fleet/v1",
        "summary": {
            "hosts": hosts.len(), "read": read, "starved": all(hosts, |h| h.starved), "throttled": all(hosts, |h| h.throttled),
            "stolen": count(rows, "stolen"), "promises_broken": all(hosts, |h| h.broken),
            "busy_pct": sum(hosts, |h| h.busy_pct), "steal_pct": sum(hosts, |h| h.steal_pct),
            "effect_cpu_pct": sum(hosts, |h| h.effect_cpu_pct), "hosts_with_effect": with_effect(hosts),
        },
        "hosts": host_table().json(hosts),
        "findings": findings().json(rows),
        "self": { "seconds": seconds, "rss_bytes": super::peak_bytes() },
    })
}

fn count(rows: &[Row<'_>], rule: &str) -> usize {
    rows.iter().filter(|row| row.1.rule == rule).count()
}

/// A sum over the hosts; the findings of each are the first ones only.
fn all(hosts: &[Host], of: fn(&Host) -> u64) -> u64 {
    hosts.iter().map(of).sum()
}

fn with_effect(hosts: &[Host]) -> usize {
    hosts.iter().filter(|host| host.effect_cpu_pct.is_some()).count()
}

fn host_table() -> Table<Host> {
    let whole = |n: u64| i64::try_from(n).ok();
    Table::new(vec![
        Field::text("target", "HOST", |host: &Host| host.target.clone()),
        Field::number("busy_pct", "BUSY %", 0, |host: &Host| host.busy_pct),
        Field::number("steal_pct", "STOLEN %", 1, |host: &Host| host.steal_pct),
        Field::integer("owners", "OWNERS", move |host: &Host| whole(host.owners)),
        Field::integer("findings", "FINDINGS", move |host: &Host| whole(host.findings.len() as u64)),
        Field::integer("promises", "PROMISES", move |host: &Host| whole(host.promises)),
        Field::integer("promises_broken", "BROKEN", move |host: &Host| whole(host.broken)),
        Field::text("settings", "SETTINGS", |host: &Host| host.settings.clone()),
        Field::number("trials", "TRIALS", 0, |host: &Host| host.trials).documents_only(),
        Field::number("kept", "KEPT", 0, |host: &Host| host.kept).documents_only(),
        Field::number("effect_cpu_pct", "EFFECT %", 1, |host: &Host| host.effect_cpu_pct),
        Field::number("effect_cpu_low_pct", "LOW", 1, |host: &Host| host.effect_cpu_low_pct).documents_only(),
        Field::number("effect_cpu_high_pct", "HIGH", 1, |host: &Host| host.effect_cpu_high_pct)
            .documents_only(),
        Field::integer("odd_values", "ODD", move |host: &Host| whole(host.odd_values)).documents_only(),
        Field::integer("values_left_out", "LEFT OUT", move |host: &Host| whole(host.left_out))
            .documents_only(),
        Field::text("error", "ERROR", |host: &Host| host.error.clone()),
    ])
}

fn findings<'a>() -> Table<Row<'a>> {
    Table::new(vec![
        Field::text("host", "HOST", |row: &Row<'_>| row.0.target.clone()),
        Field::text("rule", "FINDING", |row: &Row<'_>| row.1.rule),
        Field::text("kind", "KIND", |row: &Row<'_>| present(&row.1.kind)),
        Field::text("name", "NAME", |row: &Row<'_>| present(&row.1.name)),
        Field::text("pod", "POD", |row: &Row<'_>| present(&row.1.pod)),
        Field::number("cpu_pct", "CPU %", 1, |row: &Row<'_>| row.1.cpu_pct),
        Field::number("wait_pct", "WAIT %", 1, |row: &Row<'_>| row.1.wait_pct),
        Field::number("throttled_pct", "THROTTLED %", 1, |row: &Row<'_>| row.1.throttled_pct)
            .documents_only(),
        Field::new("wait_share", "WAIT SHARE", |row: &Row<'_>| {
            row.1.wait_share.map_or(Value::Absent, Value::Number)
        })
        .documents_only(),
        Field::text("over", "OVER", |row: &Row<'_>| row.1.over),
    ])
}

fn present(text: &str) -> Value {
    if text.is_empty() { Value::Absent } else { text.into() }
}

fn text(hosts: &[Host], rows: &[Row<'_>], seconds: f64, lines: usize) -> String {
    let silent: Vec<&Host> = hosts.iter().filter(|host| host.error.is_some()).collect();
    let mut text = format!(
        "{} of {} hosts read in {seconds:.1} s. Starved: {}, throttled: {}, promises broken: {}, hosts with stolen CPU: {}.\n",
        hosts.len() - silent.len(),
        hosts.len(),
        all(hosts, |host| host.starved),
        all(hosts, |host| host.throttled),
        all(hosts, |host| host.broken),
        count(rows, "stolen"),
    );
    if let Some(effect) = sum(hosts, |host| host.effect_cpu_pct) {
        let _ = writeln!(
            text,
            "Changes in force on {} bring {effect:+.1} % of one CPU in sum, as measured there.",
            evenkeel_base::text::count(with_effect(hosts), "host")
        );
    }
    let crowded = hosts.iter().filter(|host| host.left_out > 0).count();
    if crowded > 0 {
        let _ = writeln!(
            text,
            "More owners than are looked at ({}) on {}: some findings may be missing.",
            evenkeel_listen::fleet::host::MOST_OWNERS,
            evenkeel_base::text::count(crowded, "host")
        );
    }
    let more = |text: &mut String, all: usize, what: &str| {
        if all > lines {
            let _ = writeln!(text, "... and {} more {what} (-n)", all - lines);
        }
    };
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&findings().text(rows.iter().take(lines), show::width()));
        more(&mut text, rows.len(), "findings");
    }
    if !silent.is_empty() {
        text.push_str("\nNot read:\n");
        for host in silent.iter().take(lines) {
            let _ = writeln!(text, "  {}: {}", host.target, host.error.as_deref().unwrap_or("?"));
        }
        more(&mut text, silent.len(), "hosts");
    }
    text
}
