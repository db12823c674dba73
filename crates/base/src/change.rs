//! Changes of scheduling state: what policy proposes and actuation writes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CpuQuota, CpuSet, SchedAttr, SchedPolicy, TaskId};

/// A cgroup, named so that its files can be found again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupRef {
    /// Path below the mount point of the controller that owns the knob, starting with `/`.
    pub path: String,
    /// cgroup v2 file names (`cpu.weight`) rather than v1's (`cpu.shares`).
    pub v2: bool,
}

impl GroupRef {
    /// Whether the kubelet made it: the group of all pods, those by quality of service, a pod's, a container's.
    pub fn is_kubelets(&self) -> bool {
        self.path.split('/').any(is_kubepods)
    }
}

/// Whether a part of a path is the group of all pods, with the kubelet's driver `cgroupfs` or `systemd`; by that one its name has those
/// above it in front, where the kubelet has a `cgroupRoot` (`kubelet-kubepods.slice` in kind).
pub fn is_kubepods(part: &str) -> bool {
    matches!(part, "kubepods" | "kubepods.slice") || part.ends_with("-kubepods.slice")
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    Task(TaskId),
    Group(GroupRef),
    /// One property of the host's network.
    Net(NetKnob),
    /// The host as a whole.
    Host,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(id) => write!(f, "task {id}"),
            Self::Group(group) => f.write_str(&group.path),
            Self::Net(knob) => knob.fmt(f),
            Self::Host => f.write_str("the host"),
        }
    }
}

/// Who decides which task of the fair class runs: the kernel, or a BPF scheduler (sched_ext).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostScheduler {
    /// The kernel's own scheduler.
    #[default]
    Kernel,
    /// The BPF scheduler that this program of ours loads, for as long as it runs.
    Program(String),
    /// A BPF scheduler of this name that another program has loaded.
    Other(String),
}

impl fmt::Display for HostScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("the kernel's scheduler"),
            Self::Program(name) => f.write_str(name),
            Self::Other(name) => write!(f, "BPF scheduler {name}"),
        }
    }
}

/// One property of the host's network: packet steering, an interrupt's CPUs, a link's queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "kebab-case")]
pub enum NetKnob {
    /// `net.core.rps_sock_flow_entries`: the table of sockets' flows, for RFS; 0 is off. A number.
    SockFlowEntries,
    /// CPUs packets of a receive queue are processed on (RPS). A CPU list, empty for off.
    RpsCpus { link: String, queue: u32 },
    /// Entries of a receive queue's flow table (RFS). A number.
    RpsFlowCount { link: String, queue: u32 },
    /// CPUs that send by a transmit queue (XPS). A CPU list, empty for off.
    XpsCpus { link: String, queue: u32 },
    /// CPUs an interrupt may be served on. A CPU list.
    IrqAffinity { irq: u32 },
    /// The root queueing discipline of a link: `default`, or `htb MAJOR:` for one of ours, which comes without classes.
    RootQdisc { link: String },
}

impl NetKnob {
    /// The link it belongs to.
    pub fn link(&self) -> Option<&str> {
        match self {
            Self::RpsCpus { link, .. }
            | Self::RpsFlowCount { link, .. }
            | Self::XpsCpus { link, .. }
            | Self::RootQdisc { link } => Some(link),
            Self::SockFlowEntries | Self::IrqAffinity { .. } => None,
        }
    }

    /// The same property of a link by another name.
    #[must_use]
    pub fn on_link(&self, name: &str) -> Self {
        let mut knob = self.clone();
        match &mut knob {
            Self::RpsCpus { link, .. }
            | Self::RpsFlowCount { link, .. }
            | Self::XpsCpus { link, .. }
            | Self::RootQdisc { link } => name.clone_into(link),
            Self::SockFlowEntries | Self::IrqAffinity { .. } => {}
        }
        knob
    }
}

impl fmt::Display for NetKnob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SockFlowEntries => f.write_str("net.core.rps_sock_flow_entries"),
            Self::RpsCpus { link, queue } => write!(f, "{link} rx-{queue} rps_cpus"),
            Self::RpsFlowCount { link, queue } => write!(f, "{link} rx-{queue} rps_flow_cnt"),
            Self::XpsCpus { link, queue } => write!(f, "{link} tx-{queue} xps_cpus"),
            Self::IrqAffinity { irq } => write!(f, "irq {irq} smp_affinity"),
            Self::RootQdisc { link } => write!(f, "{link} root qdisc"),
        }
    }
}

crate::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// CPUs a task may run on (`sched_setaffinity`).
    Affinity = "affinity",
    /// Class, nice and slice of a task, set together (`sched_setattr`).
    Sched = "sched",
    /// Relative weight of a cgroup: `cpu.weight` (v2) or `cpu.shares` (v1), as a raw number.
    Weight = "weight",
    /// `cpu.idle` of a cgroup.
    GroupIdle = "group-idle",
    /// Bandwidth of a cgroup: `cpu.max` or `cpu.cfs_*_us`.
    Quota = "quota",
    /// CPUs of a cgroup: `cpuset.cpus`.
    Cpuset = "cpuset",
    /// `cpu.rt_runtime_us` of a v1 cgroup, microseconds per period: without it SCHED_FIFO is EPERM there
    /// (CONFIG_RT_GROUP_SCHED).
    RtRuntime = "rt-runtime",
    /// The property that a [`NetKnob`] is.
    Net = "net",
    /// Who decides which task runs, for the whole host.
    Scheduler = "scheduler",
}
}

/// A value of a knob.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    Affinity(CpuSet),
    Sched(SchedAttr),
    /// For [`Knob::Weight`]: the raw number of the group's own file.
    Weight(u64),
    GroupIdle(bool),
    Quota(CpuQuota),
    Cpuset(CpuSet),
    /// For [`Knob::RtRuntime`], microseconds; -1 is the kernel's "no limit" and exists in v1 files only.
    RtRuntime(i64),
    /// For [`Knob::Net`], in the one form in which values of that property are compared.
    Net(String),
    Scheduler(HostScheduler),
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
            Self::Net(_) => Knob::Net,
            Self::Scheduler(_) => Knob::Scheduler,
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
                Some(pct) if quota.burst_usec > 0 => {
                    write!(
                        f,
                        "quota {pct:.1} % (period {} us, burst {} us)",
                        quota.period_usec, quota.burst_usec
                    )
                }
                Some(pct) => write!(f, "quota {pct:.1} % (period {} us)", quota.period_usec),
                None => f.write_str("no quota"),
            },
            Self::RtRuntime(usec) => write!(f, "rt runtime {usec} us"),
            // An empty list of CPUs is what people call off.
            Self::Net(value) => f.write_str(if value.is_empty() { "off" } else { value }),
            Self::Scheduler(scheduler) => scheduler.fmt(f),
        }
    }
}

/// One property of one target, to be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub target: Target,
    /// The value it is to have.
    pub to: Setting,
    pub why: String,
}

impl Change {
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
    /// Tasks that are moved to an idle CPU next to theirs whenever they wait; their affinity stays as found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull: Vec<TaskId>,
    /// Tasks that those in `pull` make way for: they move when one of these wakes behind them, and at no other time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<TaskId>,
    /// Limits among the changes that follow what others leave of a quota.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follow: Vec<FollowingLimit>,
}

/// A cgroup's limit that follows what others leave of a quota above it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FollowingLimit {
    /// Whose limit.
    pub group: GroupRef,
    /// Whose quota.
    pub above: GroupRef,
    pub quota: CpuQuota,
    /// What others left of it when the limit was chosen, percent of one CPU.
    pub left_pct: f64,
    /// The part of what is left that the cgroup may use, 0 to 1.
    pub part: f64,
    /// The cgroup's own limit as found.
    pub own: CpuQuota,
}

impl Plan {
    /// Whether it leaves everything as found.
    pub fn is_default(&self) -> bool {
        self.changes.is_empty() && self.pull.is_empty()
    }

    /// Whether it only moves waiting work and changes no setting.
    pub fn only_pulls(&self) -> bool {
        self.changes.is_empty() && !self.pull.is_empty()
    }

    /// Whether it uses a real-time class, which the user has to allow by name.
    pub fn is_realtime(&self) -> bool {
        self.changes.iter().any(|change| match &change.to {
            Setting::Sched(attr) => matches!(attr.policy, SchedPolicy::Fifo | SchedPolicy::Rr),
            setting => setting.knob() == Knob::RtRuntime,
        })
    }

    /// The change of the host's scheduler, if it has one.
    pub fn scheduler(&self) -> Option<&Change> {
        self.changes.iter().find(|change| change.knob() == Knob::Scheduler)
    }
}
