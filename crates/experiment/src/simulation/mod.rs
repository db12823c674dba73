//! The experiment file: one TOML text for the simulator and the laboratory.
//!
//! ```toml
//! name = "guarantees"
//! duration_s = 20
//! [machine]
//! cpus = 1
//! [[task]]
//! name = "a"
//! kind = "open"
//! percent = 40
//! [[task]]
//! kind = "open"
//! percent = 30
//! nice = 5
//! count = 2
//! ```

use evenkeel_base::{CpuSet, SchedPolicy};
use serde::{Deserialize, Serialize};

mod build;
mod lines;

pub use build::ExperimentError;
pub(crate) use lines::{distance, line_of, parse_error};

/// An experiment as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name of the experiment.
    pub name: String,
    /// Measured time, seconds.
    #[serde(default = "ten")]
    pub duration_s: f64,
    /// Time before it that is not counted, seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// How often it is repeated, each time with another seed.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Seed of the first repetition.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// The machine simulated; the laboratory checks that the host has as many CPUs.
    pub machine: MachineSpec,
    /// Control groups, parents first.
    #[serde(default, rename = "group")]
    pub groups: Vec<GroupSpec>,
    /// Tasks.
    #[serde(rename = "task")]
    pub tasks: Vec<TaskSpec>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Physical cores (threads are counted apart).
    pub cpus: u32,
    /// Hardware threads a core.
    #[serde(default = "one")]
    pub threads_per_core: u32,
    /// NUMA nodes the cores are divided over.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Work two siblings do together, relative to one alone.
    #[serde(default = "smt")]
    pub smt_speedup: f64,
    /// Kernel release such as `6.1`.
    #[serde(default = "kernel")]
    pub kernel: String,
    /// Share of the time the hypervisor takes, percent.
    #[serde(default)]
    pub steal_pct: f64,
    /// In place of it, an instance type whose rule steals, such as `m3.medium`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Background work of a real host: kernel threads that wake so often a second on each CPU, for about 30 us.
    #[serde(default = "background")]
    pub background_per_s: f64,
}

/// A control group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Name, by which tasks refer to it.
    pub name: String,
    /// Name of the parent.
    pub parent: Option<String>,
    /// cgroup v2 weight, 1 to 10000.
    pub weight: Option<u64>,
    /// cgroup v1 shares, 2 to 262144.
    pub shares: Option<u64>,
    /// Quota, percent of one CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    #[serde(default = "period")]
    pub period_usec: u64,
    /// Burst, microseconds.
    #[serde(default)]
    pub burst_usec: u64,
    /// CPUs, such as `0-3`.
    pub cpus: Option<CpuSet>,
}

/// One or several equal tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Name; numbered when there are several.
    pub name: Option<String>,
    /// Name of its group.
    pub group: Option<String>,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// What it does.
    pub kind: Kind,
    /// For duty kinds: CPU wanted, percent of one CPU.
    pub percent: Option<f64>,
    /// For duty kinds: period, milliseconds.
    #[serde(default = "hundred")]
    pub period_ms: f64,
    /// For duty kinds: jitter of the period, percent.
    #[serde(default)]
    pub jitter_pct: f64,
    /// For `runs`: length of a run, seconds.
    #[serde(default = "ten")]
    pub run_s: f64,
    /// For `runs`: how many.
    #[serde(default = "one")]
    pub runs: u32,
    /// For `runs`: events a second of one undisturbed task.
    pub events_per_s: Option<f64>,
    /// For `job`: CPU seconds.
    pub work_s: Option<f64>,
    /// Scheduling policy: `other`, `batch`, `idle`, `fifo`, `rr`.
    #[serde(default = "other")]
    pub policy: SchedPolicy,
    /// Nice value.
    #[serde(default)]
    pub nice: i32,
    /// Own slice, milliseconds.
    pub slice_ms: Option<f64>,
    /// CPUs it is bound to.
    pub cpus: Option<CpuSet>,
    /// Start, seconds.
    #[serde(default)]
    pub start_s: f64,
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// See [`DutyKind::Wall`].
    Wall,
    /// See [`DutyKind::Closed`].
    Closed,
    /// See [`DutyKind::Open`].
    Open,
    /// See [`Load::Spin`].
    Spin,
    /// See [`Load::Runs`].
    Runs,
    /// See [`Load::Job`].
    Job,
    /// See [`Load::Idle`].
    Idle,
}

impl MachineSpec {
    /// A machine of so many cores without siblings, on one node, with the defaults of the file.
    pub fn new(cpus: u32) -> Self {
        Self {
            cpus,
            threads_per_core: 1,
            nodes: 1,
            smt_speedup: smt(),
            kernel: kernel(),
            steal_pct: 0.0,
            instance: None,
            background_per_s: background(),
        }
    }
}

impl GroupSpec {
    /// A group of default weight without limits.
    pub fn new(name: impl Into<String>, parent: Option<String>) -> Self {
        Self {
            name: name.into(),
            parent,
            weight: None,
            shares: None,
            quota_pct: None,
            period_usec: period(),
            burst_usec: 0,
            cpus: None,
        }
    }
}

impl TaskSpec {
    /// One task with the defaults of the file.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self {
            name: Some(name.into()),
            group: None,
            count: 1,
            kind,
            percent: None,
            period_ms: hundred(),
            jitter_pct: 0.0,
            run_s: ten(),
            runs: 1,
            events_per_s: None,
            work_s: None,
            policy: other(),
            nice: 0,
            slice_ms: None,
            cpus: None,
            start_s: 0.0,
        }
    }
}

fn one() -> u32 {
    1
}
fn background() -> f64 {
    20.0
}
fn one_u64() -> u64 {
    1
}
fn ten() -> f64 {
    10.0
}
fn hundred() -> f64 {
    100.0
}
fn smt() -> f64 {
    1.25
}
fn period() -> u64 {
    100_000
}
fn kernel() -> String {
    "6.18".into()
}
fn other() -> SchedPolicy {
    SchedPolicy::Other
}
