//! What this kernel offers to observation and to control.

use evenkeel_base::facts::release_version;
use evenkeel_linux::mountinfo::Layout;
use evenkeel_linux::{Root, pressure, proc_stat, schedstat, sys, sysfs};
use serde::{Deserialize, Serialize};

use crate::topology::hierarchies;

evenkeel_base::named! {
/// Which scheduler shares the CPUs among ordinary tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Completely Fair Scheduler, up to Linux 6.5.
    Cfs = "cfs",
    /// Earliest Eligible Virtual Deadline First, since Linux 6.6.
    Eevdf = "eevdf",
    /// A BPF scheduler is loaded (`sched_ext`).
    Scx = "scx",
}
}

/// What the kernel offers. `None` where it could not be found out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// A task may ask for its own slice (Linux 6.12).
    pub task_slice: Option<bool>,
    /// BPF programs can be loaded against this kernel's types (BTF is there).
    pub bpf: Option<bool>,
    /// Pressure stall information for CPUs.
    pub psi: Option<bool>,
    /// `/proc/PID/schedstat` counts.
    pub schedstat: Option<bool>,
    /// Time stolen by a hypervisor is counted; false on hardware, `None` in a guest that has seen none yet.
    pub steal_clock: Option<bool>,
}

/// The kernel and its layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Such as `6.12.3-amd64`.
    pub release: Option<String>,
    /// Scheduler of ordinary tasks.
    pub scheduler: Option<Scheduler>,
    /// `v1`, `v2`, `hybrid` (v1 controllers with the v2 hierarchy mounted next to them) or `none`.
    pub cgroup: Option<String>,
    pub features: Features,
}

/// Finds out what the kernel offers; never fails, unknown is `None`.
pub fn read_kernel(root: &Root) -> KernelFacts {
    let release = sysfs::read_release(root).ok();
    let version = release.as_deref().and_then(release_version);
    let scx = root.read_optional("sys/kernel/sched_ext/state").ok().flatten();
    let scheduler = match (scx.as_deref().map(str::trim), version) {
        (Some("enabled"), _) => Some(Scheduler::Scx),
        (_, Some(version)) if version >= (6, 6) => Some(Scheduler::Eevdf),
        (_, Some(_)) => Some(Scheduler::Cfs),
        (_, None) => None,
    };
    let layout = hierarchies(root).ok().map(|found| found.map_or(Layout::None, |h| h.layout));
    let task_slice = if root.is_live() {
        Some(sys::default_slice_ns().is_some())
    } else {
        version.map(|version| version >= (6, 12))
    };
    let features = Features {
        task_slice,
        bpf: Some(root.path("sys/kernel/btf/vmlinux").exists()),
        psi: pressure::read(root).ok().map(|pressure| pressure.is_some()),
        schedstat: schedstat_counts(root),
        steal_clock: steal_clock(root),
    };
    KernelFacts { release, scheduler, cgroup: layout.map(|l| l.name().to_owned()), features }
}

/// A kernel that does not count writes `0 0 0`; this process has been given a CPU at least once.
pub(crate) fn schedstat_counts(root: &Root) -> Option<bool> {
    let own = root.parse_optional("proc/self/schedstat", schedstat::parse).ok()?;
    Some(own.is_some_and(|stat| stat.timeslices > 0))
}

fn steal_clock(root: &Root) -> Option<bool> {
    let stat = proc_stat::read(root).ok()?;
    if stat.cpus.iter().any(|times| times.steal_ns.is_some_and(|ns| ns > 0)) {
        return Some(true);
    }
    let cpuinfo = root.read_optional("proc/cpuinfo").ok()??;
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    // Only x86 says whether it is a guest; a guest without steal so far may or may not count it.
    (!flags.split_ascii_whitespace().any(|flag| flag == "hypervisor")).then_some(false)
}

/// File of a captured sample that holds its instants.
pub(crate) const INSTANT_FILE: &str = "evenkeel/instant";

/// Monotonic and wall clock: of the host now, of a captured tree when it was captured (0 when it does not say).
pub(crate) fn instant(root: &Root) -> (u64, u64) {
    if root.is_live() {
        return (sys::monotonic_ns(), sys::wall_ns());
    }
    let text = root.read_optional(INSTANT_FILE).ok().flatten().unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
