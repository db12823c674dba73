//! Raw counters at one instant. Rates are derived from two samples, never stored.

use serde::{Deserialize, Serialize};

use crate::TaskId;

/// Everything counted at one instant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// `CLOCK_MONOTONIC`, nanoseconds: what intervals are computed from.
    pub monotonic_ns: u64,
    /// Wall clock, nanoseconds since 1970: what people are shown.
    pub wall_ns: u64,
    /// One entry per online CPU, ascending.
    pub cpus: Vec<CpuTimes>,
    /// One entry per living thread looked at, ordered by [`TaskId`].
    pub tasks: Vec<TaskSample>,
    /// One entry per cgroup that owns a task, ordered by path.
    pub groups: Vec<GroupSample>,
    /// What threads that are gone have used, one entry per cgroup, ordered by path; empty where no one counts it.
    #[serde(default)]
    pub exited: Vec<ExitedSample>,
}

/// Whether a thread can have run for so long between two samples, nanoseconds: twice their distance and a second, for on a host
/// with many tasks a sample takes its time. One that runs longer is two: a thread that is not its process's first and calls `exec`
/// gets the first one's identity, start time included (`de_thread` in the kernel's `fs/exec.c`), and keeps its own counters.
pub fn may_have_run(ran_ns: u64, between_ns: u64) -> bool {
    ran_ns <= between_ns.saturating_mul(2).saturating_add(1_000_000_000)
}

/// Sums over the threads of a cgroup that are gone, since counting began (which is some time before the first sample).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitedSample {
    /// Path of the cpu controller's group they died in, below the mount; `None` when the group is gone, too, and was
    /// never seen.
    pub path: Option<String>,
    pub tasks: u64,
    /// Time on a CPU over their whole lives, nanoseconds.
    pub ran_ns: u64,
    /// Time runnable but not running over their whole lives, nanoseconds; throttled time included.
    pub waited_ns: u64,
}

/// Time a CPU has spent since boot, from `/proc/stat` (resolution 10 ms).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CpuTimes {
    /// Logical CPU number.
    pub cpu: u32,
    /// user + nice + system + irq + softirq, nanoseconds. Guest time is part of user.
    pub busy_ns: u64,
    /// idle + iowait, nanoseconds. Neither is steal.
    pub idle_ns: u64,
    /// irq + softirq alone, nanoseconds.
    pub irq_ns: u64,
    /// Time the hypervisor ran something else while this CPU had work; `None` where not reported.
    pub steal_ns: Option<u64>,
}

/// Counters of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TaskSample {
    pub id: TaskId,
    /// CPU it ran on last.
    pub cpu: Option<u32>,
    /// Time on a CPU, nanoseconds (`schedstat` field 1).
    pub ran_ns: u64,
    /// Time runnable but not running, nanoseconds (`schedstat` field 2, `run_delay`); includes throttled time.
    /// `None` where the kernel does not count it.
    pub waited_ns: Option<u64>,
    /// Times it was given a CPU (`schedstat` field 3).
    pub timeslices: Option<u64>,
    /// Voluntary context switches, where read.
    pub voluntary: Option<u64>,
    /// Involuntary context switches, where read.
    pub involuntary: Option<u64>,
}

/// Counters of one cgroup (`cpu.stat`, `cpuacct.usage`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GroupSample {
    /// Path below the cpu controller's mount, `/` for the root.
    pub path: String,
    /// CPU time used by the group and its descendants, nanoseconds.
    pub usage_ns: Option<u64>,
    /// Periods in which the group had work.
    pub nr_periods: Option<u64>,
    /// Periods in which it was throttled.
    pub nr_throttled: Option<u64>,
    /// Time its run queues were throttled, summed over CPUs, nanoseconds. Seen 9 % below the truth.
    pub throttled_ns: Option<u64>,
}
