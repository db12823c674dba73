//! What a run of the loop did: stages, changes, effects. Written by the agent, kept by the store, shown by reports.

use serde::{Deserialize, Serialize};

use crate::TaskId;

/// A measured value with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Best estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// One stage of a run: a time during which one set of settings was in force, or a trial of several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Such as `kernel default`, `trial batch+slice`, `hold batch+slice`.
    pub name: String,
    /// Wall clock at the start, nanoseconds since 1970.
    pub started_ns: u64,
    /// How long it was in force and measured, seconds.
    pub seconds: f64,
    /// CPU got by the scope, percent of one CPU.
    pub cpu_pct: Option<Estimate>,
    /// Time the scope's tasks waited per second of CPU they got (`run_delay` / ran).
    pub wait_per_ran: Option<Estimate>,
    /// CPU got / CPU wanted: exact for built-in loads, else the estimate got / (1 - waited fraction).
    pub fulfilment: Option<Estimate>,
    /// Whether `fulfilment` is only the estimate.
    pub fulfilment_estimated: bool,
    /// Whether the settings were kept afterwards; `None` for a stage that decided nothing.
    pub kept: Option<bool>,
    /// The decision in words.
    pub why: String,
}

/// One change made, with what it was before and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// The thread changed; `None` for a cgroup.
    pub task: Option<TaskId>,
    /// Its name.
    pub comm: Option<String>,
    /// The cgroup changed; `None` for a thread.
    pub group: Option<String>,
    /// Which property, see [`crate::Knob::name`].
    pub knob: String,
    /// Value before, as people read it.
    pub from: String,
    /// Value now.
    pub to: String,
    /// Reason.
    pub why: String,
    /// Measured effect in words; `None` until measured.
    pub effect: Option<String>,
    /// Wall clock, nanoseconds since 1970.
    pub at_ns: u64,
}

/// The agent's own cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SelfCost {
    /// Percent of one CPU over the run; `None` when it could not be read.
    pub cpu_pct: Option<f64>,
    /// Resident memory, bytes.
    pub rss_bytes: Option<u64>,
}

/// Everything a run did so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunRecord {
    /// Scope as the user gave it.
    pub scope: Vec<String>,
    /// The agent's pid.
    pub pid: u32,
    /// Wall clock at the start, nanoseconds since 1970.
    pub started_ns: u64,
    /// The scope's fulfilment under the kernel's default.
    pub baseline: Option<Estimate>,
    /// The scope's fulfilment now.
    pub now: Option<Estimate>,
    /// Name of the settings in force; `kernel default` when nothing was changed.
    pub settings: String,
    /// What was done, in order.
    pub stages: Vec<Stage>,
    /// Changes in force.
    pub changes: Vec<ChangeRecord>,
    /// The agent's own cost.
    pub own_cost: SelfCost,
}
