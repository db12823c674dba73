//! The parts of an experiment file: the machine, groups, tenants and tasks.

use std::fmt;

use evenkeel_base::{CpuQuota, CpuSet, Limit, Nice, SchedAttr, SchedPolicy};
use evenkeel_model::units::UnitList;
use serde::{Deserialize, Serialize};

table! {
/// The machine simulated.
pub struct MachineSpec {
    /// Physical cores (threads are counted apart).
    pub cpus: u32,
    pub threads_per_core: u32 = 1,
    /// NUMA nodes the cores are divided over.
    pub nodes: u32 = 1,
    /// Work two siblings do together, relative to one alone.
    pub smt_speedup: f64 = 1.25,
    /// Kernel release such as `6.1`.
    pub kernel: String = "6.18".into(),
    /// Share of the time the hypervisor takes, percent.
    pub steal_pct: f64,
    /// In place of it, an instance type whose rule steals, such as `m3.medium`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Background work of a real host: kernel threads that wake so often a second on each CPU, for about 30 us.
    pub background_per_s: f64 = 20.0,
}
}

table! {
/// Limits of a control group.
pub struct GroupSpec {
    /// Name, by which tasks refer to it.
    pub name: String,
    pub parent: Option<String>,
    /// cgroup v2 weight, 1 to 10000.
    pub weight: Option<u64>,
    /// cgroup v1 shares, 2 to 262144.
    pub shares: Option<u64>,
    /// Quota, percent of one CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    pub period_usec: u64 = 100_000,
    pub burst_usec: u64,
    /// CPUs, such as `0-3`.
    pub cpus: Option<CpuSet>,
}
}

table! {
/// One or several equal tasks: the short way to write plain processes by what they demand, on the `[machine]`.
pub struct TaskSpec {
    /// Name; numbered when there are several.
    pub name: Option<String>,
    pub group: Option<String>,
    pub count: u32 = 1,
    /// What it does; each task needs one.
    pub kind: Option<Kind>,
    /// For duty kinds: CPU wanted, percent of one CPU.
    pub percent: Option<f64>,
    /// For duty kinds: period, milliseconds.
    pub period_ms: f64 = 100.0,
    /// For duty kinds: jitter of the period, percent.
    pub jitter_pct: f64,
    /// For `runs`: length of a run, seconds.
    pub run_s: f64 = 10.0,
    /// For `runs`: how many.
    pub runs: u32 = 1,
    /// For `runs`: events a second of one undisturbed task.
    pub events_per_s: Option<f64>,
    /// For `job`: CPU seconds.
    pub work_s: Option<f64>,
    /// Scheduling policy: `other`, `batch`, `idle`, `fifo`, `rr`.
    pub policy: SchedPolicy = SchedPolicy::Other,
    pub nice: i32,
    pub slice_ms: Option<f64>,
    /// CPUs it is bound to.
    pub cpus: Option<CpuSet>,
    pub start_s: f64,
}
}

/// What a task does, see [`evenkeel_model::sim::Load`] and [`evenkeel_model::sim::DutyKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Wall,
    Closed,
    Open,
    Spin,
    Runs,
    Job,
    Idle,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

table! {
/// One or several equal tenants.
pub struct TenantSpec {
    /// Name; numbered when there are several.
    pub name: Option<String>,
    /// Units of each, see [`UnitList`]; excludes `weight`, `shares` and `count`.
    pub units: Option<UnitList>,
    pub count: u32 = 1,
    pub place: Place,
    /// cgroup v2 weight, 1 to 10000 (100 is the default); converted on a v1 host.
    pub weight: Option<u64>,
    /// cgroup v1 shares, 2 to 262144 (1024 is the default); converted on a v2 host.
    pub shares: Option<u64>,
    /// Quota, percent of ONE CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    pub period_usec: u64 = 100_000,
    pub burst_usec: u64,
    /// CPUs, by cpuset (by affinity for plain processes).
    pub cpus: Option<CpuSet>,
    pub nice: i32,
    /// Scheduling policy: `other`, `batch`, `idle`.
    pub policy: SchedPolicy = SchedPolicy::Other,
    /// Own slice, milliseconds (Linux 6.12 and later).
    pub slice_ms: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// A built-in load, as after `evenkeel load`: `primes`, `sieve --read own`.
    pub load: Option<String>,
    /// A command with its arguments; excludes `load`.
    pub command: Option<Vec<String>>,
    /// Threads of a built-in load.
    pub threads: u32 = 1,
    /// Runs, back to back.
    pub runs: u32 = 1,
    /// A run of a built-in load ends after so many seconds of wall clock.
    pub run_s: Option<f64>,
    /// A run of a built-in load ends after so many events.
    pub events: Option<u64>,
    /// It begins so many seconds after the release.
    pub start_s: f64,
    /// It has no runs of its own to finish: it is ended when all others are done (a load in the background).
    pub background: bool,
}
}

evenkeel_base::named! {
/// Where a tenant lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A plain cgroup of its own.
    #[default]
    Cgroup = "cgroup",
    /// A plain process without limits of a cgroup.
    Process = "process",
    /// A container of a Docker Engine.
    Docker = "docker",
    /// A pod of a CRI runtime.
    Pod = "pod",
}
}

impl MachineSpec {
    /// A machine of so many cores without siblings, on one node, with the defaults of the file.
    pub fn new(cpus: u32) -> Self {
        Self { cpus, ..Self::default() }
    }
}

impl GroupSpec {
    /// A group of default weight without limits.
    pub fn new(name: impl Into<String>, parent: Option<String>) -> Self {
        Self { name: name.into(), parent, ..Self::default() }
    }

    pub fn quota(&self) -> CpuQuota {
        let usec = |pct: f64| (pct / 100.0 * self.period_usec as f64).round() as u64;
        CpuQuota {
            quota_usec: self.quota_pct.map_or(Limit::Max, |pct| Limit::Value(usec(pct))),
            period_usec: self.period_usec,
            burst_usec: self.burst_usec,
        }
    }
}

impl TaskSpec {
    /// One task with the defaults of the file.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: Some(name.into()), kind: Some(kind), ..Self::default() }
    }

    /// Its class, nice value and slice.
    pub fn attr(&self) -> SchedAttr {
        SchedAttr {
            policy: self.policy,
            nice: Nice::new(self.nice),
            rt_priority: u8::from(self.policy.is_realtime()),
            slice_ns: self.slice_ms.map(|ms| (ms * 1e6) as u64),
            period_ns: None,
            reset_on_fork: false,
        }
    }
}

impl TenantSpec {
    /// One tenant in a cgroup of its own with nothing to do, with the defaults of the file.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    pub fn limits(&self) -> GroupSpec {
        GroupSpec {
            name: self.name.clone().unwrap_or_default(),
            parent: None,
            weight: self.weight,
            shares: self.shares,
            quota_pct: self.quota_pct,
            period_usec: self.period_usec,
            burst_usec: self.burst_usec,
            cpus: self.cpus.clone(),
        }
    }
}
