//! A tenant in a cell: its limits, its release, its runs, and where their time went.

use evenkeel_base::CpuSet;
use serde::{Deserialize, Serialize};

/// One tenant in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    pub name: String,
    /// Units, where they were given.
    pub units: Option<u64>,
    /// Where it lived: `process`, `cgroup`, `docker`, `pod`.
    pub place: String,
    /// Limits in force, read back.
    #[serde(default)]
    pub limits: Limits,
    /// What it ran, as a command line.
    pub workload: String,
    pub threads: u32,
    pub runs_planned: u32,
    /// How exactly it was released.
    #[serde(default)]
    pub release: Release,
    pub ended: Ended,
    /// The whole tenant from its release to its end, time between runs included.
    #[serde(default)]
    pub total: Account,
    /// Its runs, back to back.
    pub runs: Vec<RunRecord>,
}

/// Limits of a tenant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// cgroup v2 weight.
    pub weight: Option<u64>,
    /// cgroup v1 shares.
    pub shares: Option<u64>,
    /// Units times this are the weight or the shares.
    pub unit_factor: Option<f64>,
    /// Quota, percent of ONE CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    pub period_usec: Option<u64>,
    pub burst_usec: Option<u64>,
    /// CPUs it is confined to.
    pub cpus: Option<CpuSet>,
    pub nice: Option<i32>,
    /// Policy, where it is not `other`.
    pub policy: Option<String>,
    pub slice_ms: Option<f64>,
    pub memory_bytes: Option<u64>,
}

/// How exactly a tenant was released.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Release {
    /// From the instant asked for to its wake-up (it became runnable), microseconds: first instruction less the time
    /// it waited for a CPU by the kernel's account.
    pub woken_late_usec: Option<f64>,
    /// From the instant asked for to its first instruction, microseconds: what others' slices delay is in here.
    pub first_instruction_late_usec: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "how", content = "detail")]
pub enum Ended {
    Done,
    /// It ended before that; how.
    Died(String),
    /// It was still there when the time limit of the cell had passed; the limit, as text.
    TimeLimit(String),
    Interrupted,
}

/// CPU time of a run or of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Wall-clock time, seconds.
    pub real_s: f64,
    /// CPU time in user mode, seconds.
    pub user_s: Option<f64>,
    /// CPU time in the kernel, seconds.
    pub sys_s: Option<f64>,
    /// Waited for a CPU (`run_delay`, throttled time included), all threads, seconds.
    pub waited_s: Option<f64>,
    /// Throttled by the quota of its cgroup (as the cgroup counts it: summed over CPUs), seconds.
    pub throttled_s: Option<f64>,
    pub throttled_count: Option<u64>,
    /// Stolen by the hypervisor: the host's steal in that time, in proportion to CPU time used. Under a steal emulator,
    /// what that kept from it (demanded less given).
    pub stolen_s: Option<f64>,
    pub voluntary: Option<u64>,
    pub involuntary: Option<u64>,
    /// Migrations between CPUs.
    pub migrations: Option<u64>,
}

impl Account {
    /// CPU time, seconds.
    pub fn cpu_s(&self) -> Option<f64> {
        Some(self.user_s? + self.sys_s?)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// Number, from 0.
    pub number: u32,
    /// Begin, seconds from the release.
    pub start_s: f64,
    /// End, seconds from the release.
    pub end_s: f64,
    /// Events; `None` for commands that count none.
    pub events: Option<u64>,
    /// Events a second; as the command itself reports it where it does (`sysbench`, `openssl speed`).
    pub events_per_s: Option<f64>,
    /// Verifications a second, of `openssl speed rsa2048` (its signatures are `events_per_s`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_per_s: Option<f64>,
    #[serde(flatten)]
    pub account: Account,
    /// CPUs it was seen on.
    pub cpus: Option<CpuSet>,
    /// Exit status of a command (128 + n: killed by signal n).
    pub exit_status: Option<i32>,
    /// It was told to end before its end: its rate tells, its length does not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut_off: bool,
}

impl RunRecord {
    /// How long it took for its work, seconds; `None` of one that did not do it, and in logs that do not tell.
    pub fn length_s(&self) -> Option<f64> {
        let done = !self.cut_off && self.exit_status.is_none_or(|status| status == 0);
        Some(self.end_s - self.start_s).filter(|s| done && s.is_finite() && *s > 0.0)
    }
}
