//! What a run of the loop did, as the document that `plan`, `run`, `status` and `history` share.

use evenkeel_base::run::{
    Estimate, GovernorStatus, Predicted, RunRecord, SelfCost, Stage, StageName, TakenOver,
};
use serde::Serialize;
use serde_json::Value as Json;

use super::{change_table, guarantee_table, protected_table, slos};
use crate::effect::EffectDocument;
use crate::time;

/// Which command speaks: the document is `evenkeel.<kind>/v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    Plan,
    Run,
    Status,
}

impl DocumentKind {
    pub fn schema(self) -> &'static str {
        match self {
            Self::Plan => "evenkeel.plan/v1",
            Self::Run => "evenkeel.run/v1",
            Self::Status => "evenkeel.status/v1",
        }
    }
}

/// The document of `plan`, `run` and `status`. Commands flatten it into their own.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    scope: &'a [String],
    pid: Option<u32>,
    started: Option<String>,
    settings: &'a str,
    pub fulfilment: Fulfilment,
    stages: Vec<StageDocument<'a>>,
    /// An object for each change.
    pub changes: Vec<Json>,
    guarantees: Vec<Json>,
    protected: Vec<Json>,
    slos: Vec<Json>,
    effect_now: Option<EffectDocument>,
    taken_over: Option<TakenOverDocument>,
    cpu_limit: Option<&'a GovernorStatus>,
    #[serde(rename = "self")]
    own_cost: SelfCost,
}

/// Fulfilment under the kernel's default and now.
#[derive(Debug, Serialize)]
pub struct Fulfilment {
    baseline: Option<f64>,
    pub now: Option<f64>,
    interval: FulfilmentIntervals,
}

#[derive(Debug, Serialize)]
struct FulfilmentIntervals {
    baseline: Option<[f64; 2]>,
    now: Option<[f64; 2]>,
}

#[derive(Debug, Serialize)]
struct StageDocument<'a> {
    name: &'a StageName,
    started: Option<String>,
    seconds: f64,
    fulfilment: Option<f64>,
    fulfilment_estimated: bool,
    cpu_pct: Option<f64>,
    wait_per_ran: Option<f64>,
    interval: StageIntervals,
    kept: Option<bool>,
    why: &'a str,
    predicted: Option<Predicted>,
}

#[derive(Debug, Serialize)]
struct StageIntervals {
    fulfilment: Option<[f64; 2]>,
    cpu_pct: Option<[f64; 2]>,
    wait_per_ran: Option<[f64; 2]>,
}

#[derive(Debug, Serialize)]
struct TakenOverDocument {
    settings: u64,
    pid: u32,
    proved: Option<String>,
    at: Option<String>,
}

fn value(estimate: Option<Estimate>) -> Option<f64> {
    estimate.map(|e| e.value)
}

fn interval(estimate: Option<Estimate>) -> Option<[f64; 2]> {
    estimate.map(|e| [e.low, e.high])
}

impl<'a> Document<'a> {
    /// Of what a run did so far.
    pub fn of(record: &'a RunRecord, kind: DocumentKind) -> Self {
        let taken_over = |taken: TakenOver| TakenOverDocument {
            settings: taken.settings,
            pid: taken.pid,
            proved: time::rfc3339(taken.proved_ns),
            at: time::rfc3339(taken.at_ns),
        };
        Self {
            schema: kind.schema(),
            scope: &record.scope,
            pid: (record.pid != 0).then_some(record.pid),
            started: (record.started_ns != 0).then(|| time::rfc3339(record.started_ns)).flatten(),
            settings: &record.settings,
            fulfilment: Fulfilment {
                baseline: value(record.baseline),
                now: value(record.now),
                interval: FulfilmentIntervals {
                    baseline: interval(record.baseline),
                    now: interval(record.now),
                },
            },
            stages: record.stages.iter().map(StageDocument::of).collect(),
            changes: change_table(false).json(&record.changes),
            guarantees: guarantee_table().json(&record.guarantees),
            protected: protected_table().json(&record.protected),
            slos: slos(&record.protected),
            effect_now: record.effect_now.as_ref().map(EffectDocument::of),
            taken_over: record.taken_over.map(taken_over),
            cpu_limit: record.governor.as_ref(),
            own_cost: record.own_cost,
        }
    }
}

impl<'a> StageDocument<'a> {
    fn of(stage: &'a Stage) -> Self {
        Self {
            name: &stage.name,
            started: time::rfc3339(stage.started_ns),
            seconds: stage.seconds,
            fulfilment: value(stage.fulfilment),
            fulfilment_estimated: stage.fulfilment_estimated,
            cpu_pct: value(stage.cpu_pct),
            wait_per_ran: value(stage.wait_per_ran),
            interval: StageIntervals {
                fulfilment: interval(stage.fulfilment),
                cpu_pct: interval(stage.cpu_pct),
                wait_per_ran: interval(stage.wait_per_ran),
            },
            kept: stage.kept,
            why: &stage.why,
            predicted: stage.predicted,
        }
    }
}
