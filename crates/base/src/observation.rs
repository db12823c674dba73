//! What is there and how busy it was between two samples: the input of every decision and of every table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::text::is_or_begins;
use crate::{CpuQuota, CpuSet, GroupRef, SchedAttr, TaskId, Topology};

/// The host over one interval.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Length of the interval, seconds.
    pub interval_s: f64,
    /// Wall clock at its end, nanoseconds since 1970.
    pub wall_ns: u64,
    /// The machine.
    pub topology: Arc<Topology>,
    /// Sums over the host.
    pub host: HostView,
    /// Threads, ordered by identity.
    pub tasks: Vec<TaskView>,
    /// cgroups of the cpu controller that own tasks, and their ancestors; parents before children.
    pub groups: Vec<GroupView>,
    /// Containers found, by runtime or by cgroup path.
    pub containers: Vec<ContainerView>,
    pub pods: Vec<PodView>,
    pub vms: Vec<VmView>,
    /// Threads that ended within the interval, by group; empty where no one counts them.
    #[serde(default)]
    pub exited: Vec<ExitedView>,
}

impl Observation {
    /// A second on this machine with nobody on it.
    pub fn of(topology: Topology) -> Self {
        let cpus = u32::try_from(topology.online.len()).unwrap_or(u32::MAX);
        Self {
            interval_s: 1.0,
            topology: Arc::new(topology),
            host: HostView { cpus, ..HostView::default() },
            ..Self::default()
        }
    }
}

/// Threads of a group that ended within an interval: what they used of it, whether they were born in it or before.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ExitedView {
    /// Index into [`Observation::groups`]; `None` when the group is gone, too.
    pub group: Option<u32>,
    /// Index into [`Observation::containers`].
    pub container: Option<u32>,
    /// Ended threads per second.
    pub tasks_per_s: f64,
    /// CPU used, percent of one CPU.
    pub cpu_pct: f64,
    /// Time runnable but waiting, percent of the interval.
    pub wait_pct: f64,
}

/// The host and its CPUs over an interval.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HostView {
    /// Online CPUs.
    pub cpus: u32,
    /// Sum of the CPUs' busy percentages; steal is not busy.
    pub busy_pct: f64,
    /// Sum of steal; `None` where the kernel does not say.
    pub steal_pct: Option<f64>,
    /// Each online CPU.
    pub per_cpu: Vec<CpuView>,
}

impl HostView {
    /// CPUs that are all busy for so much of the time, percent, and of which nothing is stolen.
    pub fn evenly(cpus: u32, busy_pct: f64) -> Self {
        let one = |cpu| CpuView { cpu, busy_pct, steal_pct: Some(0.0), irq_pct: None };
        let busy = f64::from(cpus) * busy_pct;
        Self { cpus, busy_pct: busy, steal_pct: Some(0.0), per_cpu: (0..cpus).map(one).collect() }
    }
}

/// One CPU over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CpuView {
    /// Logical number.
    pub cpu: u32,
    pub busy_pct: f64,
    /// Stolen by the hypervisor, percent.
    pub steal_pct: Option<f64>,
    /// Interrupts, percent (part of busy); `None` where not told.
    #[serde(default)]
    pub irq_pct: Option<f64>,
}

/// One thread over an interval. Indices point into the observation's own lists.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TaskView {
    pub id: TaskId,
    /// Parent process, 0 for none.
    pub ppid: u32,
    /// Name (`comm`), at most 15 bytes.
    pub comm: String,
    /// A kernel thread: shown, never touched.
    pub kernel_thread: bool,
    /// CPU it ran on last.
    pub cpu: Option<u32>,
    /// Where it may run; `None` when not readable or not read.
    pub affinity: Option<CpuSet>,
    /// Class, nice, slice; `None` when not readable or not read.
    pub sched: Option<SchedAttr>,
    /// Index into [`Observation::groups`].
    pub group: Option<u32>,
    /// Index into [`Observation::containers`].
    pub container: Option<u32>,
    /// Index into [`Observation::pods`].
    pub pod: Option<u32>,
    /// Index into [`Observation::vms`].
    pub vm: Option<u32>,
    /// CPU used, percent of one CPU.
    pub cpu_pct: f64,
    /// Time runnable but waiting (`run_delay`, throttling included), percent of the interval.
    pub wait_pct: Option<f64>,
    /// Times it was given a CPU, which is about as often as it waited for one.
    #[serde(default)]
    pub timeslices: Option<u64>,
    /// Voluntary switches per second.
    pub voluntary_per_s: Option<f64>,
    /// Involuntary switches per second.
    pub involuntary_per_s: Option<f64>,
}

impl TaskView {
    /// A thread of which no more than this is known.
    pub fn of(id: TaskId, comm: impl Into<String>) -> Self {
        Self { id, comm: comm.into(), ..Self::default() }
    }
}

/// Use is well above a quota by this factor, ...
const VOID_FACTOR: f64 = 1.5;
/// ... by this much of one CPU, percent, ...
const VOID_MORE_PCT: f64 = 15.0;
/// ... in an interval of this many periods: the first may have been begun, and the last ends later, each with all of its time.
const VOID_PERIODS: f64 = 5.0;

/// A quota that does nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VoidQuota {
    /// Index into [`Observation::groups`].
    pub group: u32,
    /// CPU used by the group and below, percent of one CPU.
    pub used_pct: f64,
    /// What the quota is, likewise.
    pub quota_pct: f64,
}

/// A cgroup of the cpu controller.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GroupView {
    /// Path below the controller's mount point, `/` for the root.
    pub path: String,
    /// Index of the parent; `None` for the root.
    pub parent: Option<u32>,
    /// The scheduler's load weight (1024 is the default), from `cpu.weight` or `cpu.shares`.
    pub load_weight: Option<u64>,
    /// Whether it is idle as a whole (`cpu.idle`). What its weight's file shows then differs by kernel, and 3 shares of v1, which a
    /// pod that requests 3m has, are the same load weight.
    #[serde(default)]
    pub idle: bool,
    /// The number as the file has it: `cpu.weight` on v2, `cpu.shares` on v1.
    pub raw_weight: Option<u64>,
    /// Whether the files are those of cgroup v2.
    pub v2: bool,
    pub quota: Option<CpuQuota>,
    /// Effective cpuset of the tasks in it.
    pub cpuset: Option<CpuSet>,
    /// CPU used by the group and below, percent of one CPU.
    pub cpu_pct: Option<f64>,
    /// Throttled time of its run queues, percent of the interval (can exceed 100: summed over CPUs).
    pub throttled_pct: Option<f64>,
    /// Throttled periods / periods with work over the interval.
    pub throttled_periods: Option<(u64, u64)>,
}

impl GroupView {
    /// A cgroup of which no more than this is known.
    pub fn of(path: impl Into<String>, parent: Option<u32>, v2: bool) -> Self {
        Self { path: path.into(), parent, v2, ..Self::default() }
    }

    /// What changes name it by.
    pub fn reference(&self) -> GroupRef {
        GroupRef { path: self.path.clone(), v2: self.v2 }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ContainerView {
    /// Runtime's id (full), or the cgroup's last path part.
    pub id: String,
    /// Name by the runtime; the id when no runtime answered.
    pub name: String,
    /// `docker`, `containerd`, `cri-o`, `podman`, `systemd`, ... or `cgroup` when guessed from the path.
    pub runtime: String,
    /// Whether a runtime answered for it.
    pub confirmed: bool,
    /// Labels, for goals stated on containers.
    pub labels: Vec<(String, String)>,
    /// Index into [`Observation::pods`].
    pub pod: Option<u32>,
    /// Index into [`Observation::groups`].
    pub group: Option<u32>,
}

impl ContainerView {
    /// A container that its runtime tells of, of which no more than this is known.
    pub fn of(name: impl Into<String>, runtime: &str) -> Self {
        let name = name.into();
        Self { id: name.clone(), name, runtime: runtime.to_owned(), confirmed: true, ..Self::default() }
    }

    /// Whether `container:NAME` of a scope means it: by its name, or by at least six characters of its id.
    pub fn is_meant_by(&self, name: &str) -> bool {
        self.name == name || (name.len() >= 6 && self.id.starts_with(name))
    }

    /// Whether it only holds a pod's namespaces (the pause process): no pod's specification has it, and its weight is the
    /// least there is by design.
    pub fn is_sandbox(&self) -> bool {
        self.pod.is_some() && (self.name == "pause" || self.name.starts_with("k8s_POD_"))
    }
}

/// What a cgroup uses and waits for next to CPU. What is not told is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BesideCpu {
    /// Anonymous memory of it and what is below, bytes.
    pub rss_bytes: Option<u64>,
    /// Time in which at least one of its tasks waited for memory, average of the last 10 s, percent.
    pub memory_pressure_pct: Option<f64>,
    /// The same for I/O.
    pub io_pressure_pct: Option<f64>,
    /// Of its network namespace, where that is not the host's.
    #[serde(flatten)]
    pub network: NetworkUse,
}

/// What a network namespace transferred since it was made. Of the host's interfaces only cards count, where there are any; where
/// there are none, and in other namespaces, all but the loopback. What is not told is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUse {
    /// Bytes received.
    pub net_received_bytes: Option<u64>,
    /// Bytes sent.
    pub net_sent_bytes: Option<u64>,
    /// TCP segments sent again, the loopback's included.
    pub tcp_retransmits: Option<u64>,
}

/// What a network transferred between two looks, bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NetworkRate {
    /// Received by the interfaces that [`NetworkUse`] counts.
    pub received_per_s: f64,
    /// Sent by these.
    pub sent_per_s: f64,
}

/// Networks between two looks. What is not told is not there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkRates {
    /// The host's.
    pub host: Option<NetworkRate>,
    /// Those of containers that have a network namespace of their own, by the container's id.
    pub containers: BTreeMap<String, NetworkRate>,
}

/// A Kubernetes pod (or a CRI sandbox).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PodView {
    pub uid: String,
    /// Namespace; `None` when no runtime answered.
    pub namespace: Option<String>,
    /// Name; the uid when no runtime answered.
    pub name: String,
    /// Annotations, for goals stated on pods.
    pub annotations: Vec<(String, String)>,
    /// Index into [`Observation::groups`].
    pub group: Option<u32>,
}

impl PodView {
    /// A pod of which no more than this is known.
    pub fn of(namespace: &str, name: &str) -> Self {
        let namespace = Some(namespace.to_owned());
        Self { uid: name.to_owned(), namespace, name: name.to_owned(), ..Self::default() }
    }

    /// Whether `pod:NAMESPACE/NAME` or `pod:NAME` of a scope means it: by its name or its uid. A `*` at the end of namespace or
    /// name stands for anything: who makes pods for others gives each a name of its own.
    pub fn is_meant_by(&self, namespace: Option<&str>, name: &str) -> bool {
        let name = if self.uid == name { &self.name } else { name };
        is_pod_called((self.namespace.as_deref(), &self.name), (namespace, name))
    }

    /// `namespace/name`; the name alone where no runtime told the namespace.
    pub fn full_name(&self) -> String {
        self.namespace
            .as_ref()
            .map_or_else(|| self.name.clone(), |namespace| format!("{namespace}/{}", self.name))
    }
}

/// Whether a pod of this namespace and name is meant by another, see [`PodView::is_meant_by`].
pub fn is_pod_called(pod: (Option<&str>, &str), wanted: (Option<&str>, &str)) -> bool {
    let there = |wanted: &str| pod.0.is_some_and(|is| is_or_begins(is, wanted));
    is_or_begins(pod.1, wanted.1) && wanted.0.is_none_or(there)
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct VmView {
    /// Name (libvirt's, or qemu's `-name`, or `qemu-PID`).
    pub name: String,
    /// The emulator's process.
    pub pid: u32,
    /// vCPU threads found, by tid.
    pub vcpus: Vec<u32>,
    /// Its own cgroup, an index into [`Observation::groups`]; `None` where it shares one with others.
    pub group: Option<u32>,
}

impl Observation {
    /// The task with this identity.
    pub fn task(&self, id: TaskId) -> Option<&TaskView> {
        self.tasks.binary_search_by_key(&id, |task| task.id).ok().map(|index| &self.tasks[index])
    }

    /// For each group: whether tasks that are `ours` are at or below it, and no others. A task of which `ours` says
    /// nothing does not count.
    pub fn groups_of(&self, ours: impl Fn(&TaskView) -> Option<bool>) -> Vec<bool> {
        // Of each group: one of ours is there, somebody else is there.
        let mut held = vec![(false, false); self.groups.len()];
        for task in &self.tasks {
            let group = task.group.and_then(|group| held.get_mut(group as usize));
            if let (Some(group), Some(ours)) = (group, ours(task)) {
                if ours { group.0 = true } else { group.1 = true }
            }
        }
        // Parents come before children.
        for index in (0..self.groups.len()).rev() {
            let (ours, others) = held[index];
            if let Some(parent) = self.groups[index].parent.and_then(|parent| held.get_mut(parent as usize)) {
                *parent = (parent.0 | ours, parent.1 | others);
            }
        }
        held.into_iter().map(|(ours, others)| ours && !others).collect()
    }

    /// A group and those above it, up to the root.
    pub fn path_to_root(&self, group: u32) -> impl Iterator<Item = u32> + '_ {
        // Parents come first; anything else would be a cycle in malformed data.
        std::iter::successors(Some(group), |at| {
            self.groups.get(*at as usize)?.parent.filter(|parent| parent < at)
        })
    }

    /// Whether a group is another one or below it.
    pub fn is_within(&self, inner: u32, outer: u32) -> bool {
        self.path_to_root(inner).any(|index| index == outer)
    }

    /// Tasks in a group or below it.
    pub fn tasks_in(&self, group: u32) -> impl Iterator<Item = &TaskView> {
        self.tasks.iter().filter(move |task| task.group.is_some_and(|inner| self.is_within(inner, group)))
    }

    /// CPU used by a group and those below, percent of one CPU; where the kernel does not count it for groups (v1
    /// without cpuacct next to cpu), the sum over the tasks.
    pub fn group_cpu_pct(&self, group: u32) -> f64 {
        let counted = self.groups.get(group as usize).and_then(|view| view.cpu_pct);
        counted.unwrap_or_else(|| self.tasks_in(group).map(|task| task.cpu_pct).sum())
    }

    /// What ended in no container and no machine, with the cgroup it was in.
    pub fn ended_in_services(&self) -> impl Iterator<Item = (u32, &ExitedView)> {
        let machines = || self.vms.iter().filter_map(|vm| vm.group);
        let is_machines = move |at: u32| machines().any(|vm| self.is_within(at, vm));
        let all = self.exited.iter().filter(|ended| ended.container.is_none());
        all.filter_map(move |ended| Some((ended.group.filter(|at| !is_machines(*at))?, ended)))
    }

    /// CPU that the groups of containers and machines counted, percent of one CPU, by group: what ended tasks used is in it. Less what
    /// containers and machines inside counted, which have sums of their own.
    pub fn counted_of_owners(&self) -> BTreeMap<u32, f64> {
        let owned = self.containers.iter().map(|one| one.group).chain(self.vms.iter().map(|vm| vm.group));
        let owned: BTreeSet<u32> = owned.flatten().collect();
        let own = |at: &u32| Some((*at, self.groups.get(*at as usize)?.cpu_pct?));
        let mut counted: BTreeMap<u32, f64> = owned.iter().filter_map(own).collect();
        for inner in &owned {
            let outer = self.path_to_root(*inner).skip(1).find(|at| owned.contains(at));
            if let Some(sum) = outer.and_then(|outer| counted.get_mut(&outer)) {
                *sum = (*sum - self.group_cpu_pct(*inner)).max(0.0);
            }
        }
        counted
    }

    /// For how long quotas held each group back, percent of the interval, summed over CPUs: its own quota, or those of the groups
    /// in it, whichever is more, for they overlap. `None` where none of these is told.
    pub fn held_back_pct(&self) -> Vec<Option<f64>> {
        let mut inside: Vec<Option<f64>> = vec![None; self.groups.len()];
        let mut held = inside.clone();
        // Parents come before children.
        for (index, group) in self.groups.iter().enumerate().rev() {
            held[index] = match (group.throttled_pct, inside[index]) {
                (Some(own), Some(inside)) => Some(own.max(inside)),
                (own, inside) => own.or(inside),
            };
            if let (Some(pct), Some(sum)) =
                (held[index], group.parent.and_then(|at| inside.get_mut(at as usize)))
            {
                *sum = Some(sum.unwrap_or(0.0) + pct);
            }
        }
        held
    }

    /// As [`Self::held_back_pct`] for one group, and by quotas of the groups that it is in, but for no longer than its tasks waited:
    /// there they hold back others, too.
    pub fn held_back_in(&self, held: &[Option<f64>], group: u32, wait_pct: Option<f64>) -> Option<f64> {
        self.held_back_above(held.get(group as usize).copied().flatten(), group, wait_pct)
    }

    /// The same by a group's own quota, without those of the groups in it, such as a service's: what is in it may be another owner's.
    pub fn held_back_itself(&self, group: u32, wait_pct: Option<f64>) -> Option<f64> {
        let own = self.groups.get(group as usize).and_then(|group| group.throttled_pct);
        self.held_back_above(own, group, wait_pct)
    }

    fn held_back_above(&self, held: Option<f64>, group: u32, wait_pct: Option<f64>) -> Option<f64> {
        let throttled = |at: u32| self.groups.get(at as usize)?.throttled_pct;
        let above = self.path_to_root(group).skip(1).filter_map(throttled).fold(0.0, f64::max);
        let above = above.min(wait_pct.unwrap_or(0.0));
        match held {
            Some(own) => Some(own.max(above)),
            None => (above > 0.0).then_some(above),
        }
    }

    /// Quotas that do nothing: what is used is well above them, what was saved up included.
    pub fn void_quotas(&self) -> impl Iterator<Item = VoidQuota> {
        self.groups.iter().zip(0..).filter_map(|(group, index)| {
            let quota = group.quota?;
            let quota_pct = quota.pct()?;
            let used_pct = self.group_cpu_pct(index);
            let periods = self.interval_s * 1e6 / quota.period_usec.max(1) as f64;
            // What was saved up may be used on top.
            let saved = quota.burst_usec as f64 / quota.quota_usec.value().unwrap_or(1).max(1) as f64;
            let allowed_pct = quota_pct * (1.0 + saved);
            let is_void = periods >= VOID_PERIODS
                && used_pct >= VOID_FACTOR * allowed_pct
                && used_pct >= allowed_pct + VOID_MORE_PCT;
            is_void.then_some(VoidQuota { group: index, used_pct, quota_pct })
        })
    }

    /// What people call a container: `namespace/pod/container`, as far as there are these.
    pub fn container_title(&self, container: &ContainerView) -> String {
        match container.pod.and_then(|at| self.pods.get(at as usize)) {
            Some(pod) => format!("{}/{}", pod.full_name(), container.name),
            None => container.name.clone(),
        }
    }

    pub fn group_of(&self, task: &TaskView) -> Option<&GroupView> {
        task.group.and_then(|index| self.groups.get(index as usize))
    }
}
