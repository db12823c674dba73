//! What a run of the loop did, as document, text and page: `plan`, `run` and `status` share all of it.

mod document;

use evenkeel_base::run::{
    ChangeRecord, Estimate, GovernorStatus, GuaranteeStatus, ProtectedStatus, RunRecord, SloStatus, Stage,
};
use serde_json::Value as Json;

use crate::effect::{effect_words, hours_words};
use crate::table::{Field, Kind, Table, Value};
use crate::time;
pub use document::{Document, DocumentKind, Fulfilment};

/// `0.951 [0.947, 0.955]`, or `?`.
pub fn estimate(estimate: Option<Estimate>, decimals: usize) -> String {
    estimate.map_or_else(|| "?".to_owned(), |e| e.in_words(decimals))
}

pub fn stage_table() -> Table<Stage> {
    let low = |pick: fn(&Stage) -> Option<Estimate>| move |s: &Stage| pick(s).map(|e| e.low);
    let high = |pick: fn(&Stage) -> Option<Estimate>| move |s: &Stage| pick(s).map(|e| e.high);
    Table::new(vec![
        Field::instant("started", "STARTED (UTC)", |s: &Stage| Some(s.started_ns)).documents_only(),
        Field::text("name", "STAGE", |s: &Stage| s.name.to_string()),
        Field::number("seconds", "SECONDS", 1, |s: &Stage| Some(s.seconds)),
        Field::number("cpu_pct", "CPU %", 1, |s: &Stage| s.cpu_pct.map(|e| e.value)),
        Field::number("cpu_pct_low", "LOW", 1, low(|s| s.cpu_pct)),
        Field::number("cpu_pct_high", "HIGH", 1, high(|s| s.cpu_pct)),
        Field::number("wait_per_ran", "WAIT/RAN", 3, |s: &Stage| s.wait_per_ran.map(|e| e.value)),
        Field::number("wait_per_ran_low", "LOW", 3, low(|s| s.wait_per_ran)).documents_only(),
        Field::number("wait_per_ran_high", "HIGH", 3, high(|s| s.wait_per_ran)).documents_only(),
        Field::number("fulfilment", "FULFILMENT", 3, |s: &Stage| s.fulfilment.map(|e| e.value)),
        Field::number("fulfilment_low", "LOW", 3, low(|s| s.fulfilment)),
        Field::number("fulfilment_high", "HIGH", 3, high(|s| s.fulfilment)),
        Field::new("fulfilment_estimated", "ESTIMATED", |s: &Stage| Value::Bool(s.fulfilment_estimated))
            .kind(Kind::Bool)
            .documents_only(),
        Field::new("kept", "KEPT", |s: &Stage| s.kept.map_or(Value::Absent, Value::Bool)).kind(Kind::Bool),
        Field::number("predicted_cpu_change_pct", "PREDICTED %", 1, |s: &Stage| {
            s.predicted.and_then(|p| p.cpu_change_pct)
        })
        .documents_only(),
        Field::number("predicted_wait_per_ran", "PREDICTED WAIT/RAN", 3, |s: &Stage| {
            s.predicted.and_then(|p| p.wait_per_ran)
        })
        .documents_only(),
        Field::text("why", "WHY", |s: &Stage| s.why.clone()),
    ])
}

/// The columns of changes; `when` adds the time of the write in text (documents always have it).
pub fn change_table(when: bool) -> Table<ChangeRecord> {
    let number = |name, pick: fn(&ChangeRecord) -> Option<i64>| {
        Field::new(name, name, move |c: &ChangeRecord| pick(c).map_or(Value::Absent, Value::Integer))
            .kind(Kind::Integer)
            .documents_only()
    };
    let at = Field::instant("at", "AT (UTC)", |c: &ChangeRecord| Some(c.at_ns));
    Table::new(vec![
        if when { at } else { at.documents_only() },
        number("tgid", |c| c.task.map(|t| i64::from(t.tgid))),
        number("tid", |c| c.task.map(|t| i64::from(t.tid))),
        number("start_time", |c| c.task.and_then(|t| i64::try_from(t.start_time).ok())),
        Field::text("comm", "COMMAND", |c: &ChangeRecord| c.comm.clone()).documents_only(),
        Field::text("group", "CGROUP", |c: &ChangeRecord| c.group.clone()).documents_only(),
        Field::text("target", "TARGET", ChangeRecord::target),
        Field::text("knob", "KNOB", |c: &ChangeRecord| c.knob.clone()),
        Field::text("from", "FROM", |c: &ChangeRecord| c.from.clone()),
        Field::text("to", "TO", |c: &ChangeRecord| c.to.clone()),
        Field::text("why", "WHY", |c: &ChangeRecord| c.why.clone()),
        Field::new("effect", "EFFECT", |c: &ChangeRecord| {
            c.effect.clone().map_or(Value::Unknown, Value::Text)
        }),
    ])
}

/// The columns of promised shares.
pub fn guarantee_table() -> Table<GuaranteeStatus> {
    Table::new(vec![
        Field::text("name", "GUARANTEE", |g: &GuaranteeStatus| g.name.clone()),
        Field::text("source", "SOURCE", |g: &GuaranteeStatus| g.source.clone()).documents_only(),
        Field::text("promise", "PROMISE", |g: &GuaranteeStatus| g.promise.clone()),
        Field::number("promised_pct", "%", 1, |g: &GuaranteeStatus| g.promised_pct).documents_only(),
        Field::number("promised_wait_p99_ms", "MS", 2, |g: &GuaranteeStatus| g.promised_wait_p99_ms)
            .documents_only(),
        Field::integer("priority", "PRIORITY", |g: &GuaranteeStatus| Some(i64::from(g.priority)))
            .documents_only(),
        Field::text("mean", "MEAN", |g: &GuaranteeStatus| g.mean.clone()).documents_only(),
        Field::text("state", "STATE", |g: &GuaranteeStatus| g.state.name()),
        Field::text("as_supply", "AS SUPPLY", |g: &GuaranteeStatus| {
            g.as_supply.map(|state| state.name().to_owned())
        }),
        Field::text("as_rate", "AS RATE", |g: &GuaranteeStatus| {
            g.as_rate.map(|state| state.name().to_owned())
        }),
        Field::number("got_pct", "GOT %", 1, |g: &GuaranteeStatus| g.got_pct),
        Field::number("while_runnable_pct", "WHILE RUNNABLE %", 1, |g: &GuaranteeStatus| {
            g.while_runnable_pct
        }),
        Field::number("rate_short_pct", "RATE SHORT %", 1, |g: &GuaranteeStatus| g.rate_short_pct)
            .documents_only(),
        Field::number("waited_pct", "WAITED %", 1, |g: &GuaranteeStatus| g.waited_pct),
        Field::number("wait_p99_ms", "WAIT P99 MS", 2, |g: &GuaranteeStatus| g.wait_p99_ms),
        Field::new("wait_p99_estimated", "ESTIMATED", |g: &GuaranteeStatus| {
            Value::Bool(g.wait_p99_estimated)
        })
        .documents_only(),
        Field::number("broken_min_day", "BROKEN MIN/DAY", 1, |g: &GuaranteeStatus| g.broken_min_day),
        Field::integer("tasks", "TASKS", |g: &GuaranteeStatus| Some(i64::from(g.tasks))),
        Field::text("lever", "LEVER", |g: &GuaranteeStatus| g.lever.clone()),
        Field::text("why", "WHY", |g: &GuaranteeStatus| g.why.clone()),
        Field::text("offers", "OFFERS", |g: &GuaranteeStatus| {
            (!g.offers.is_empty()).then(|| g.offers.join("\n"))
        })
        .documents_only(),
    ])
}

/// The columns of protected scopes.
pub fn protected_table() -> Table<ProtectedStatus> {
    Table::new(vec![
        Field::text("name", "SERVICE", |p: &ProtectedStatus| p.name.clone()),
        Field::number("bound_ms", "BOUND MS", 2, |p: &ProtectedStatus| p.bound_ms),
        Field::text("state", "STATE", |p: &ProtectedStatus| p.state.name()),
        Field::number("default_p99_ms", "WAIT P99 MS BEFORE", 2, |p: &ProtectedStatus| p.default_p99_ms),
        Field::number("p99_ms", "NOW", 2, |p: &ProtectedStatus| p.p99_ms),
        Field::number("limit_ms", "LIMIT", 2, |p: &ProtectedStatus| p.limit_ms),
        Field::integer("waits", "WAITS", |p: &ProtectedStatus| i64::try_from(p.waits).ok()),
        Field::new("estimated", "ESTIMATED", |p: &ProtectedStatus| Value::Bool(p.estimated)),
        Field::integer("tasks", "TASKS", |p: &ProtectedStatus| Some(i64::from(p.tasks))),
    ])
}

/// The columns of what services promise of their own requests; of others they are empty.
pub fn slo_table() -> Table<ProtectedStatus> {
    fn known<T>(service: &ProtectedStatus, of: impl Fn(&SloStatus) -> Option<T>) -> Option<T> {
        service.slo.as_ref().and_then(of)
    }
    type Pick = fn(&SloStatus) -> Option<f64>;
    let number = |name, title, decimals, pick: Pick| {
        Field::number(name, title, decimals, move |p: &ProtectedStatus| known(p, pick))
    };
    let percent = |name, title, pick: Pick| {
        Field::number(name, title, 2, move |p: &ProtectedStatus| known(p, pick).map(|share| 100.0 * share))
    };
    Table::new(vec![
        Field::text("name", "SLO OF", |p: &ProtectedStatus| p.name.clone()),
        Field::text("judged_by", "JUDGED BY", |p: &ProtectedStatus| {
            known(p, |slo| Some(if slo.kept.is_some() { "requests" } else { "waits" }.to_owned()))
        }),
        Field::text("state", "STATE", |p: &ProtectedStatus| {
            known(p, |slo| slo.kept).map_or("unknown", |kept| if kept { "kept" } else { "broken" })
        }),
        percent("allowed_pct", "ALLOWED %", |slo| Some(1.0 - slo.quantile)),
        percent("slow_pct", "SLOW %", |slo| slo.slow_share),
        percent("default_slow_pct", "BEFORE", |slo| slo.default_slow_share),
        percent("limit_pct", "LIMIT", |slo| Some(slo.limit_share)),
        number("requests", "REQUESTS", 0, |slo| slo.requests),
        Field::text("answered", "ANSWERED", |p: &ProtectedStatus| {
            known(p, |slo| slo.answered_ns).and_then(time::rfc3339)
        }),
        number("quantile", "QUANTILE", 3, |slo| Some(slo.quantile)).documents_only(),
        number("bound_ms", "BOUND MS", 2, |slo| Some(slo.bound_ms)).documents_only(),
        number("edge_ms", "EDGE MS", 2, |slo| slo.edge_ms).documents_only(),
        Field::text("endpoint", "ENDPOINT", |p: &ProtectedStatus| known(p, |slo| Some(slo.endpoint.clone())))
            .documents_only(),
        Field::text("histogram", "HISTOGRAM", |p: &ProtectedStatus| {
            known(p, |slo| Some(slo.histogram.clone()))
        })
        .documents_only(),
        Field::text("why", "WHY", |p: &ProtectedStatus| known(p, |slo| Some(slo.why.clone()))),
    ])
}

/// What services promise of their own requests, for documents: those that promise something.
pub fn slos(services: &[ProtectedStatus]) -> Vec<Json> {
    slo_table().json(services.iter().filter(|service| service.slo.is_some()))
}

/// A run's state for a terminal: settings, fulfilment before and now, stages, changes in force, own cost. Whether it is still at
/// work tells what may go on meanwhile.
pub fn text(record: &RunRecord, at_work: bool, width: Option<u16>) -> String {
    let mut out = summary(record);
    if !record.stages.is_empty() {
        out.push('\n');
        out.push_str(&stage_table().text(&record.stages, width));
    }
    if !record.guarantees.is_empty() {
        out.push('\n');
        out.push_str(&guarantee_table().text(&record.guarantees, width));
        for guarantee in record.guarantees.iter().filter(|g| !g.offers.is_empty()) {
            out.push_str(&format!(
                "\nWhat raises the rate of {}:\n",
                crate::table::printable(&guarantee.name)
            ));
            guarantee.offers.iter().for_each(|offer| out.push_str(&format!("    {offer}\n")));
        }
    }
    if !record.protected.is_empty() {
        out.push('\n');
        out.push_str(&protected_table().text(&record.protected, width));
    }
    if record.protected.iter().any(|service| service.slo.is_some()) {
        out.push('\n');
        let services = record.protected.iter().filter(|service| service.slo.is_some());
        out.push_str(&slo_table().text(services, width));
    }
    out.push('\n');
    if record.changes.is_empty() {
        out.push_str("No change is kept.");
        if at_work {
            out.push_str(&format!(" {MEANWHILE}"));
        }
        out.push('\n');
    } else {
        out.push_str(&change_table(false).text(&record.changes, width));
    }
    out
}

/// What goes on where a run at work keeps no change.
pub const MEANWHILE: &str =
    "While a trial is held, settings change from window to window; what is not kept is taken back.";

/// The heading lines of [`text`].
pub fn summary(record: &RunRecord) -> String {
    let estimated = record.stages.last().is_some_and(|stage| stage.fulfilment_estimated);
    let label = if estimated { " (estimated: got / (1 - waited))" } else { "" };
    let cpu = record.own_cost.cpu_pct.map_or_else(|| "?".to_owned(), |pct| format!("{pct:.2} %"));
    let rss = record.own_cost.rss_bytes.map_or_else(|| "?".to_owned(), time::bytes);
    let scope = if record.scope.is_empty() { "?".to_owned() } else { record.scope.join(" ") };
    let limit = record.governor.as_ref().map(limit_line).unwrap_or_default();
    let effect = record.effect_now.as_ref();
    let effect = effect.map_or_else(String::new, |now| {
        let hours = hours_words(now).map_or_else(String::new, |hours| format!("by hour     {hours}\n"));
        format!("effect      {}\n{hours}", effect_words(now))
    });
    let taken = record.taken_over.map_or_else(String::new, |taken| {
        let proved = time::instant(taken.proved_ns);
        format!(
            "taken over  {} settings, proved by the run before (pid {}) at {proved}\n",
            taken.settings, taken.pid
        )
    });
    format!(
        "scope       {}\nsettings    {}\n{taken}fulfilment  baseline {} -> now {}{label}\n{effect}{limit}own cost    {cpu} of one CPU, {rss}\n",
        crate::table::printable(&scope),
        if record.settings.is_empty() { "kernel default" } else { &record.settings },
        estimate(record.baseline, 3),
        estimate(record.now, 3),
    )
}

/// The limit against stolen CPU, as a line of [`summary`].
fn limit_line(governor: &GovernorStatus) -> String {
    let limit = match (governor.limit_pct, governor.found_pct) {
        (Some(pct), _) => format!("{pct:.1} % of one CPU"),
        (None, Some(pct)) => format!("{pct:.1} % of one CPU, the baseline"),
        (None, None) => "none".to_owned(),
    };
    format!("cpu limit   {limit}: {}\n", crate::table::printable(&governor.why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::TaskId;
    use evenkeel_base::run::TakenOver;
    use serde_json::json;

    #[test]
    fn what_was_taken_over_is_told_with_its_age() {
        let taken = TakenOver { settings: 3, pid: 123, proved_ns: 1_764_000_000_000_000_000, at_ns: 1 };
        let record = RunRecord { taken_over: Some(taken), ..RunRecord::default() };
        let line = "taken over  3 settings, proved by the run before (pid 123) at 2025-11-24T";
        assert!(summary(&record).contains(line), "{}", summary(&record));
        let shown = &json!(Document::of(&record, DocumentKind::Status))["taken_over"];
        assert_eq!((&shown["settings"], &shown["pid"]), (&json!(3), &json!(123)));
        assert!(shown["proved"].as_str().unwrap().starts_with("2025-11-24T"), "{shown}");
        assert_eq!(json!(Document::of(&RunRecord::default(), DocumentKind::Run))["taken_over"], Json::Null);
    }

    #[test]
    fn the_document_has_the_promised_fields() {
        let low_high = Estimate { value: 0.95, low: 0.94, high: 0.96 };
        let record = RunRecord {
            scope: vec!["all".into()],
            pid: 7,
            started_ns: 1_763_759_045_000_000_000,
            baseline: Some(low_high),
            stages: vec![Stage {
                name: "kernel default".into(),
                started_ns: 1_763_759_045_000_000_000,
                seconds: 3.0,
                fulfilment: Some(low_high),
                why: "baseline".into(),
                ..Stage::default()
            }],
            changes: vec![ChangeRecord {
                task: Some(TaskId { tgid: 1, tid: 2, start_time: 3 }),
                knob: "sched".into(),
                from: "a".into(),
                to: "b".into(),
                why: "c".into(),
                ..ChangeRecord::default()
            }],
            ..RunRecord::default()
        };
        let document = json!(Document::of(&record, DocumentKind::Status));
        assert_eq!(document["schema"], "evenkeel.status/v1");
        assert_eq!(document["fulfilment"]["baseline"], 0.95);
        assert_eq!(document["fulfilment"]["interval"]["baseline"], json!([0.94, 0.96]));
        assert_eq!(document["fulfilment"]["now"], Json::Null);
        let stage = &document["stages"][0];
        assert_eq!(stage["started"], "2025-11-21T21:04:05.000Z");
        assert_eq!((&stage["fulfilment"], &stage["kept"]), (&json!(0.95), &Json::Null));
        let change = &document["changes"][0];
        assert_eq!(
            (&change["tgid"], &change["tid"], &change["start_time"]),
            (&json!(1), &json!(2), &json!(3))
        );
        assert_eq!(change["effect"], Json::Null);
        assert_eq!(document["self"], json!({ "cpu_pct": null, "rss_bytes": null }));
        assert!(text(&record, false, Some(120)).contains("0.950 [0.940, 0.960]"));
        // What a trial does meanwhile is no matter once the run is over.
        let idle = |at_work| text(&RunRecord::default(), at_work, Some(120)).contains(MEANWHILE);
        assert!(idle(true) && !idle(false));
        assert_eq!(document["cpu_limit"], Json::Null);
        let governor =
            GovernorStatus { limit_pct: Some(19.8), why: "held".into(), ..GovernorStatus::default() };
        let text = summary(&RunRecord { governor: Some(governor), ..record });
        assert!(text.contains("cpu limit   19.8 % of one CPU: held\n"), "{text}");
    }
}
