//! Questions rules ask of an observation.

use std::collections::BTreeMap;

use evenkeel_base::facts::{BootedHost, release_version};
use evenkeel_base::run::ChangeRecord;
use evenkeel_base::{CpuSet, GroupView, Observation, TaskView};

use super::Input;

/// Least CPU or wait, percent, for a task to count as competing: below it is housekeeping noise (a daemon's
/// timers), and 1 % is also the guard's floor in `run`.
pub const ACTIVE_PCT: f64 = 1.0;

/// CPU got plus wait from which a thread is taken to want a CPU more or less all the time.
pub const HUNGRY_PCT: f64 = 50.0;

/// Whether the kernel is known to be this one or a later one.
pub fn is_since(input: &Input<'_>, since: (u32, u32)) -> Option<bool> {
    Some(release_version(input.facts.release.ok()?)? >= since)
}

/// The host, for what its boot parameters mean.
pub fn booted_host<'a>(input: &Input<'a>) -> BootedHost<'a> {
    let release = input.facts.release.ok().and_then(|release| release_version(release));
    BootedHost { possible: &input.observation.topology.possible, release }
}

/// `task 812 (redis)`.
pub fn task_name(task: &TaskView) -> String {
    format!("task {} ({})", task.id, task.comm)
}

/// CPU got plus time waited for one, percent: what a task would use at once if it could.
pub fn demand_pct(task: &TaskView) -> f64 {
    (task.cpu_pct + task.wait_pct.unwrap_or(0.0)).clamp(0.0, 100.0)
}

/// Whether nice and weights act on the task at all; unknown attributes count as ordinary.
pub fn is_fair(task: &TaskView) -> bool {
    task.sched.is_none_or(|sched| sched.policy.is_fair())
}

/// Whether two tasks may want the same CPU; unknown affinities are taken to be wide.
pub fn may_meet(a: &TaskView, b: &TaskView) -> bool {
    match (&a.affinity, &b.affinity) {
        (Some(a), Some(b)) => a.intersects(b),
        _ => true,
    }
}

/// CPUs that are up and that the task may use, by its affinity and its group's cpuset; all where those are unknown.
pub fn usable_cpus(observation: &Observation, task: &TaskView) -> usize {
    let mut cpus = observation.topology.online.clone();
    let cpuset = observation.group_of(task).and_then(|group| group.cpuset.as_ref());
    for limit in [task.affinity.as_ref(), cpuset].into_iter().flatten() {
        let within = cpus.intersection(limit);
        if !within.is_empty() {
            cpus = within;
        }
    }
    cpus.len()
}

/// What a cgroup had before a run at work set it, in words that begin with the knob or with "no".
pub fn found_by_run<'a>(input: &'a Input<'_>, group: &GroupView, knob: &str) -> Option<&'a str> {
    let sets = |change: &&ChangeRecord| change.knob == knob && change.group.as_ref() == Some(&group.path);
    input.expectations.set_by_run.iter().find(sets).map(|change| &*change.from)
}

/// CPUs that are up and not isolated.
pub fn housekeeping(observation: &Observation) -> CpuSet {
    observation.topology.online.difference(&observation.topology.isolated)
}

/// Nodes that have any of the CPUs.
pub fn nodes_of(observation: &Observation, cpus: &CpuSet) -> CpuSet {
    observation.topology.nodes.iter().filter(|n| n.cpus.intersects(cpus)).map(|n| n.node).collect()
}

pub fn busy_by_cpu(observation: &Observation) -> BTreeMap<u32, f64> {
    observation.host.per_cpu.iter().map(|cpu| (cpu.cpu, cpu.busy_pct)).collect()
}

/// The group and its ancestors, innermost first.
pub fn ancestors(groups: &[GroupView], from: u32) -> impl Iterator<Item = u32> + '_ {
    let valid = |index: &u32| (*index as usize) < groups.len();
    std::iter::successors(Some(from).filter(valid), move |&index| {
        // Parents come first; anything else would be a cycle in malformed data.
        groups.get(index as usize).and_then(|group| group.parent).filter(|&parent| parent < index)
    })
}

/// Whether a quota of the group or of one it lies in held its tasks back over the interval.
pub fn is_throttled(observation: &Observation, group: u32) -> bool {
    ancestors(&observation.groups, group)
        .filter_map(|at| observation.groups.get(at as usize))
        .any(|view| view.throttled_pct.is_some_and(|pct| pct > 0.0))
}

/// Where the fair scheduler files a task: weights act between entities of the same parent, nice within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A cgroup that has a weight of its own, by index, or the root.
    Group(u32),
    /// An autogroup, directly below the root.
    Autogroup(u64),
}

/// The innermost group with a weight of its own: on v2 a group without the cpu controller is filed with its
/// nearest ancestor that has it.
pub fn weighted_group(observation: &Observation, task: &TaskView) -> Option<u32> {
    let groups = &observation.groups;
    ancestors(groups, task.group?).find(|&index| {
        groups.get(index as usize).is_some_and(|g| g.raw_weight.is_some() || g.parent.is_none())
    })
}

/// Autogroups of the processes, by process id, while autogroups act.
pub fn autogroups(input: &Input<'_>) -> BTreeMap<u32, (u64, i32)> {
    if input.facts.autogroup.ok() != Some(&true) {
        return BTreeMap::new();
    }
    let all = input.facts.autogroups.ok().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|a| a.group.map(|group| (a.tgid, (group, a.nice)))).collect()
}

/// Where a task is filed; `autogroups` from [`autogroups`]. Autogroups hold tasks of the root cgroup only
/// (`autogroup_task_group` in the kernel's `kernel/sched/autogroup.h`).
pub fn place(
    observation: &Observation,
    autogroups: &BTreeMap<u32, (u64, i32)>,
    task: &TaskView,
) -> Option<Place> {
    let group = weighted_group(observation, task)?;
    let is_root = observation.groups.get(group as usize).is_some_and(|g| g.parent.is_none());
    match autogroups.get(&task.id.tgid) {
        Some((number, _)) if is_root => Some(Place::Autogroup(*number)),
        _ => Some(Place::Group(group)),
    }
}

/// What people call a group: its container, pod or VM, else its path.
pub fn group_name(observation: &Observation, group: u32) -> String {
    if let Some(container) = observation.containers.iter().find(|c| c.group == Some(group)) {
        return format!("container {}", container.name);
    }
    if let Some(pod) = observation.pods.iter().find(|p| p.group == Some(group)) {
        return format!("pod {}", pod.full_name());
    }
    if let Some(vm) = observation.vms.iter().find(|v| v.group == Some(group)) {
        return format!("vm {}", vm.name);
    }
    match observation.groups.get(group as usize) {
        Some(view) => format!("cgroup {}", view.path),
        None => "cgroup ?".to_owned(),
    }
}

/// Indices of the groups, by parent.
pub fn siblings(observation: &Observation) -> BTreeMap<u32, Vec<u32>> {
    let mut by_parent: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, group) in observation.groups.iter().enumerate() {
        if let Some(parent) = group.parent {
            by_parent.entry(parent).or_default().push(index as u32);
        }
    }
    by_parent
}

/// Demand of a group in percent of one CPU: what it and those below use and wait for.
pub fn group_demand_pct(observation: &Observation, group: u32) -> f64 {
    let used = observation.groups.get(group as usize).and_then(|g| g.cpu_pct).unwrap_or(0.0);
    observation.tasks_in(group).map(demand_pct).sum::<f64>().max(used)
}

/// Those of these groups that want at least so much of a CPU, percent, each with what it wants.
pub fn competing(observation: &Observation, groups: &[u32], least_pct: f64) -> Vec<(u32, f64)> {
    let demands = groups.iter().map(|&group| (group, group_demand_pct(observation, group)));
    demands.filter(|(_, demand)| *demand >= least_pct).collect()
}

/// Names joined by commas, at most five, then how many more.
pub fn list<I: IntoIterator<Item = String>>(names: I) -> String {
    const SHOWN: usize = 5;
    let names: Vec<String> = names.into_iter().collect();
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}
