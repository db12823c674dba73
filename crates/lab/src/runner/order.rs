//! What a tenant is told to do, and what it answers: one JSON file in, one line of JSON a statement out.

use std::path::PathBuf;

use evenkeel_base::CpuSet;
use evenkeel_experiment::record::{Account, RunRecord};
use serde::{Deserialize, Serialize};

use evenkeel_workload::load::LoadSpec;

/// The order of one tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The shared page with the gate.
    pub page: PathBuf,
    pub slot: u32,
    /// File its answers are appended to.
    pub answers: PathBuf,
    pub work: Work,
    /// Runs, back to back.
    pub runs: u32,
    /// It begins so long after the release, nanoseconds.
    pub offset_ns: u64,
    /// It goes on until it is told to end (SIGTERM).
    pub background: bool,
    pub nice: i32,
    /// The kernel's number of its policy.
    pub policy: u32,
    pub slice_ns: Option<u64>,
    pub cpus: Option<CpuSet>,
    /// `cpu.stat` of its cgroup: the first of these that can be read.
    pub cpu_stat: Vec<PathBuf>,
    /// It must look itself whether its starter lives (in a container, where the kernel cannot tell).
    pub owned: bool,
}

/// What a tenant does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A built-in load; each run is one call of it.
    Load(Box<LoadSpec>),
    /// A command; each run is a process of its own.
    Command(Vec<String>),
}

/// What a tenant answers. Times are seconds from the release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Released {
        /// From the instant to its wake-up, nanoseconds; `None` without schedstat.
        woken_late_ns: Option<u64>,
        /// From the instant to its first instruction, nanoseconds.
        first_late_ns: u64,
    },
    Run(RunRecord),
    /// All runs are done: the account of the whole.
    Total(Account),
    /// Something people should know.
    Note(String),
    Failed(String),
}
