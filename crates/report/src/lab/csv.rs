//! The tables as CSV: every run, every tenant, every verdict, the sources alongside.

use evenkeel_experiment::record::{Record, RunRecord, TenantRecord};
use evenkeel_experiment::study::{SourceComparison, SourceRow, Study, Verdict};

use super::figures::limits;
use super::text::{Row, rows};
use crate::table::{Field, Table, Value};

struct Run<'a> {
    point: &'a str,
    repetition: u32,
    tenant: &'a TenantRecord,
    run: &'a RunRecord,
}

pub fn files(record: &Record, study: &Study) -> Vec<(&'static str, String)> {
    let mut files = vec![
        ("runs.csv", runs(record)),
        ("tenants.csv", tenants(study)),
        ("verdicts.csv", verdicts(&study.verdicts)),
    ];
    if !study.sources.is_empty() {
        files.push(("sources.csv", sources(&study.sources)));
    }
    files
}

fn runs(record: &Record) -> String {
    let all: Vec<Run<'_>> = record
        .cells
        .iter()
        .flat_map(|cell| {
            cell.tenants.iter().flat_map(move |tenant| {
                tenant.runs.iter().map(move |run| Run {
                    point: &cell.point.label,
                    repetition: cell.repetition,
                    tenant,
                    run,
                })
            })
        })
        .collect();
    let integer = |n: Option<u64>| n.and_then(|n| i64::try_from(n).ok());
    let table: Table<Run<'_>> = Table::new(vec![
        Field::text("point", "", |r: &Run<'_>| r.point.to_owned()),
        Field::integer("repetition", "", |r: &Run<'_>| Some(i64::from(r.repetition))),
        Field::text("tenant", "", |r: &Run<'_>| r.tenant.name.clone()),
        Field::integer("units", "", move |r: &Run<'_>| integer(r.tenant.units)),
        Field::integer("run", "", |r: &Run<'_>| Some(i64::from(r.run.number))),
        Field::number("start_s", "", 6, |r: &Run<'_>| Some(r.run.start_s)),
        Field::number("end_s", "", 6, |r: &Run<'_>| Some(r.run.end_s)),
        Field::number("elapsed_s", "", 6, |r: &Run<'_>| Some(r.run.end_s - r.run.start_s)),
        Field::integer("events", "", move |r: &Run<'_>| integer(r.run.events)),
        Field::number("events_per_s", "", 3, |r: &Run<'_>| r.run.events_per_s),
        Field::number("user_s", "", 6, |r: &Run<'_>| r.run.account.user_s),
        Field::number("sys_s", "", 6, |r: &Run<'_>| r.run.account.sys_s),
        Field::number("waited_s", "", 6, |r: &Run<'_>| r.run.account.waited_s),
        Field::number("throttled_s", "", 6, |r: &Run<'_>| r.run.account.throttled_s),
        Field::integer("throttled_count", "", move |r: &Run<'_>| integer(r.run.account.throttled_count)),
        Field::number("stolen_s", "", 6, |r: &Run<'_>| r.run.account.stolen_s),
        Field::integer("voluntary", "", move |r: &Run<'_>| integer(r.run.account.voluntary)),
        Field::integer("involuntary", "", move |r: &Run<'_>| integer(r.run.account.involuntary)),
        Field::integer("migrations", "", move |r: &Run<'_>| integer(r.run.account.migrations)),
        Field::text("cpus", "", |r: &Run<'_>| r.run.cpus.as_ref().map(ToString::to_string)),
    ]);
    table.csv(all.iter())
}

fn tenants(study: &Study) -> String {
    let all: Vec<Row<'_>> = rows(study).collect();
    let table: Table<Row<'_>> = Table::new(vec![
        Field::text("point", "", |r: &Row<'_>| r.point.label.clone()),
        Field::text("tenant", "", |r: &Row<'_>| r.tenant.name.clone()),
        Field::integer("units", "", |r: &Row<'_>| r.tenant.units.and_then(|u| i64::try_from(u).ok())),
        Field::text("limits", "", |r: &Row<'_>| limits(r.tenant)),
        Field::integer("threads", "", |r: &Row<'_>| Some(i64::from(r.tenant.threads))),
        Field::integer("runs", "", |r: &Row<'_>| i64::try_from(r.tenant.runs).ok()),
        Field::number("run_mean_s", "", 6, |r: &Row<'_>| r.tenant.run_s.map(|s| s.mean)),
        Field::number("run_mean_low_s", "", 6, |r: &Row<'_>| Some(r.tenant.run_s?.mean_interval?[0])),
        Field::number("run_mean_high_s", "", 6, |r: &Row<'_>| Some(r.tenant.run_s?.mean_interval?[1])),
        Field::number("run_median_s", "", 6, |r: &Row<'_>| r.tenant.run_s.map(|s| s.median)),
        Field::number("run_min_s", "", 6, |r: &Row<'_>| r.tenant.run_s.map(|s| s.min)),
        Field::number("run_max_s", "", 6, |r: &Row<'_>| r.tenant.run_s.map(|s| s.max)),
        Field::number("run_p95_s", "", 6, |r: &Row<'_>| r.tenant.run_s.map(|s| s.p95)),
        Field::number("run_p99_s", "", 6, |r: &Row<'_>| r.tenant.run_s.map(|s| s.p99)),
        Field::number("gap_mean_s", "", 6, |r: &Row<'_>| r.tenant.gap_s.map(|s| s.mean)),
        Field::number("events_per_s", "", 3, |r: &Row<'_>| r.tenant.events_per_s.map(|s| s.mean)),
        Field::number("competing_per_s", "", 3, |r: &Row<'_>| r.tenant.competing_per_s.map(|s| s.value)),
        Field::number("predicted_per_s", "", 3, |r: &Row<'_>| r.tenant.predicted_per_s),
        Field::number("share_pct", "", 3, |r: &Row<'_>| r.tenant.share_pct.map(|s| s.value)),
        Field::number("weight_pct", "", 3, |r: &Row<'_>| r.tenant.weight_pct),
        Field::number("feasible_pct", "", 3, |r: &Row<'_>| r.tenant.feasible_pct),
        Field::number("elapsed_s", "", 6, |r: &Row<'_>| r.tenant.elapsed_s.map(|s| s.value)),
        Field::number("wait_per_run_s", "", 6, |r: &Row<'_>| r.tenant.wait_per_run_s.map(|s| s.value)),
        Field::number("cpu_pct", "", 3, |r: &Row<'_>| r.tenant.cpu_pct.map(|s| s.value)),
        Field::number("cpu_ms_per_event", "", 6, |r: &Row<'_>| r.tenant.cpu_ms_per_event.map(|s| s.value)),
        Field::number("user_s", "", 6, |r: &Row<'_>| r.tenant.user_s.map(|s| s.value)),
        Field::number("sys_s", "", 6, |r: &Row<'_>| r.tenant.sys_s.map(|s| s.value)),
        Field::number("waited_s", "", 6, |r: &Row<'_>| r.tenant.waited_s.map(|s| s.value)),
        Field::number("throttled_s", "", 6, |r: &Row<'_>| r.tenant.throttled_s.map(|s| s.value)),
        Field::number("stolen_s", "", 6, |r: &Row<'_>| r.tenant.stolen_s.map(|s| s.value)),
        Field::number("predicted_run_s", "", 6, |r: &Row<'_>| r.tenant.predicted_run_s),
        Field::text("unpredicted", "", |r: &Row<'_>| r.tenant.unpredicted.clone()),
        // Then `elapsed_s` is a lower bound.
        Field::new("cut_off", "", |r: &Row<'_>| Value::Bool(r.tenant.cut_off)),
    ]);
    table.csv(all.iter())
}

fn verdicts(verdicts: &[Verdict]) -> String {
    let table: Table<Verdict> = Table::new(vec![
        Field::text("id", "", |v: &Verdict| v.id.clone()),
        Field::text("about", "", |v: &Verdict| v.about.clone()),
        Field::new("holds", "", |v: &Verdict| v.holds.map_or(Value::Unknown, Value::Bool)),
        Field::number("value", "", 6, |v: &Verdict| v.test.value),
        Field::number("low", "", 6, |v: &Verdict| v.test.interval.and_then(|i| i[0])),
        Field::number("high", "", 6, |v: &Verdict| v.test.interval.and_then(|i| i[1])),
        Field::text("unit", "", |v: &Verdict| v.test.unit.clone()),
        Field::text("bound", "", |v: &Verdict| v.test.bound.clone()),
        Field::text("statistic", "", |v: &Verdict| v.test.statistic.clone()),
        Field::text("text", "", |v: &Verdict| v.text.clone()),
    ]);
    table.csv(verdicts)
}

fn sources(sources: &[SourceComparison]) -> String {
    struct Line<'a>(&'a SourceComparison, &'a SourceRow);
    let all: Vec<Line<'_>> = sources.iter().flat_map(|s| s.rows.iter().map(move |r| Line(s, r))).collect();
    let table: Table<Line<'_>> = Table::new(vec![
        Field::text("table", "", |l: &Line<'_>| l.0.name.clone()),
        Field::text("quantity", "", |l: &Line<'_>| l.0.quantity.clone()),
        Field::text("row", "", |l: &Line<'_>| l.1.label.clone()),
        Field::number("source", "", 6, |l: &Line<'_>| l.1.source),
        Field::number("predicted", "", 6, |l: &Line<'_>| l.1.predicted),
        Field::number("measured", "", 6, |l: &Line<'_>| l.1.measured.map(|m| m.value)),
        Field::number("low", "", 6, |l: &Line<'_>| l.1.measured.map(|m| m.low)),
        Field::number("high", "", 6, |l: &Line<'_>| l.1.measured.map(|m| m.high)),
    ]);
    table.csv(all.iter())
}
