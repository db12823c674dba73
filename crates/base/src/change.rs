//! Changes of scheduling state: what policy proposes and actuation writes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CpuQuota, CpuSet, SchedAttr, TaskId};

/// A cgroup, named so that its files can be found again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupRef {
    /// Path below the mount point of the controller that owns the knob, starting with `/`.
    pub path: String,
    /// cgroup v2 file names (`cpu.weight`) rather than v1's (`cpu.shares`).
    pub v2: bool,
}

/// What is changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// One thread.
    Task(TaskId),
    /// One cgroup.
    Group(GroupRef),
}

/// Which property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// CPUs a task may run on (`sched_setaffinity`).
    Affinity,
    /// Class, nice and slice of a task, set together (`sched_setattr`).
    Sched,
    /// Relative weight of a cgroup: `cpu.weight` (v2) or `cpu.shares` (v1), as a raw number.
    Weight,
    /// `cpu.idle` of a cgroup.
    GroupIdle,
    /// Bandwidth of a cgroup: `cpu.max` or `cpu.cfs_*_us`.
    Quota,
    /// CPUs of a cgroup: `cpuset.cpus`.
    Cpuset,
    /// `cpu.rt_runtime_us` of a v1 cgroup, microseconds per period: without it SCHED_FIFO is EPERM there
    /// (CONFIG_RT_GROUP_SCHED).
    RtRuntime,
}

impl Knob {
    /// Name used in documents and the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affinity => "affinity",
            Self::Sched => "sched",
            Self::Weight => "weight",
            Self::GroupIdle => "group-idle",
            Self::Quota => "quota",
            Self::Cpuset => "cpuset",
            Self::RtRuntime => "rt-runtime",
        }
    }
}

/// A value of a knob.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// For [`Knob::Affinity`].
    Affinity(CpuSet),
    /// For [`Knob::Sched`].
    Sched(SchedAttr),
    /// For [`Knob::Weight`]: the raw number of the group's own file.
    Weight(u64),
    /// For [`Knob::GroupIdle`].
    GroupIdle(bool),
    /// For [`Knob::Quota`].
    Quota(CpuQuota),
    /// For [`Knob::Cpuset`].
    Cpuset(CpuSet),
    /// For [`Knob::RtRuntime`], microseconds; -1 is the kernel's "no limit" and exists in v1 files only.
    RtRuntime(i64),
}

impl Setting {
    /// The knob this is a value of.
    pub fn knob(&self) -> Knob {
        match self {
            Self::Affinity(_) => Knob::Affinity,
            Self::Sched(_) => Knob::Sched,
            Self::Weight(_) => Knob::Weight,
            Self::GroupIdle(_) => Knob::GroupIdle,
            Self::Quota(_) => Knob::Quota,
            Self::Cpuset(_) => Knob::Cpuset,
            Self::RtRuntime(_) => Knob::RtRuntime,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affinity(cpus) | Self::Cpuset(cpus) => write!(f, "cpus {cpus}"),
            Self::Sched(attr) => attr.fmt(f),
            Self::Weight(weight) => write!(f, "weight {weight}"),
            Self::GroupIdle(idle) => write!(f, "idle {}", u8::from(*idle)),
            Self::Quota(quota) => match quota.pct() {
                Some(pct) => write!(f, "quota {pct:.1} % (period {} us)", quota.period_usec),
                None => f.write_str("no quota"),
            },
            Self::RtRuntime(usec) => write!(f, "rt runtime {usec} us"),
        }
    }
}

/// One property of one target, to be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// What is changed.
    pub target: Target,
    /// The value it is to have.
    pub to: Setting,
    /// The reason, for people.
    pub why: String,
}

impl Change {
    /// The property changed.
    pub fn knob(&self) -> Knob {
        self.to.knob()
    }
}

/// A set of changes that belong together and are judged together. Applied in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Short name, such as `batch+slice`.
    pub name: String,
    /// What it does and why it may help, for people.
    pub why: String,
    /// The changes; empty means "leave everything as found".
    pub changes: Vec<Change>,
    /// Tasks that are moved to an idle CPU beside theirs whenever they wait; their affinity stays as found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull: Vec<TaskId>,
}

impl Plan {
    /// Whether it leaves everything as found.
    pub fn is_default(&self) -> bool {
        self.changes.is_empty() && self.pull.is_empty()
    }
}
