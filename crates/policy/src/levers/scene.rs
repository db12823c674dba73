//! What levers look at: the tasks that may be changed, and what their groups use.

use std::collections::BTreeMap;

use evenkeel_base::sched::MAX_SLICE_NS;
use evenkeel_base::{Change, CpuSet, Observation, SchedAttr, Setting, Target, TaskView};

use super::lever::{Features, MIN_LOAD_PCT};

#[derive(Debug)]
pub struct Scene<'a> {
    pub observation: &'a Observation,
    /// Tasks in the scope that may be changed, see [`Scene::new`].
    pub tasks: Vec<Subject<'a>>,
    /// By group, what tasks of the scope use of it.
    pub groups: BTreeMap<u32, GroupUse>,
    /// By group, what tasks that are not of the scope use in it and below, percent of one CPU.
    pub others: BTreeMap<u32, f64>,
    /// For each group whether it holds tasks of the scope and no others, sleeping ones included.
    pub own: Vec<bool>,
    /// For each group whether it holds tasks of services and no others; empty unless services are named beside background work.
    pub services: Vec<bool>,
    pub features: Features,
    /// Tasks of services with a bound on their waits, where those may be changed: see [`Scene::serving`].
    pub served: Vec<Served<'a>>,
}

/// A task of a service that has a bound on its waits.
#[derive(Debug, Clone)]
pub struct Served<'a> {
    /// The task, the only one of its service that does anything.
    pub subject: Subject<'a>,
    /// The bound, nanoseconds.
    pub wait_ns: u64,
}

/// What the scope's tasks of one group use and want, newborn and tiny ones that are not changed included.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupUse {
    /// CPU got, percent of one CPU.
    pub cpu_pct: f64,
    /// Demand, percent of one CPU.
    pub load_pct: f64,
}

/// One task that may be changed.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    pub task: &'a TaskView,
    /// What it had before evenkeel touched it.
    pub found: SchedAttr,
    /// Demand, percent of one CPU: what it got, scaled up by the time it waited.
    pub load_pct: f64,
    /// CPU time it uses between two voluntary sleeps, nanoseconds; `None` when it hardly ever sleeps.
    pub burst_ns: Option<u64>,
    /// CPUs it may be placed on: affinity within its effective cpuset, online, isolated ones only if it has no others.
    pub allowed: CpuSet,
}

impl<'a> Scene<'a> {
    /// Picks from the scope what may be changed: threads of the fair class with a known scheduling class and enough
    /// load, never kernel threads or pid 1. The observation is of the host as evenkeel found it.
    pub fn new(
        observation: &'a Observation,
        features: Features,
        in_scope: impl Fn(&TaskView) -> bool,
    ) -> Self {
        let ours = |task: &&TaskView| !task.kernel_thread && task.id.tgid != 1 && in_scope(task);
        let mut groups: BTreeMap<u32, GroupUse> = BTreeMap::new();
        let mut tasks = Vec::new();
        for task in observation.tasks.iter().filter(ours) {
            let load_pct = demand(task);
            if let Some(group) = task.group {
                let group = groups.entry(group).or_default();
                group.cpu_pct += task.cpu_pct;
                group.load_pct += load_pct;
            }
            tasks.extend(Subject::new(observation, task));
        }
        let mut others: BTreeMap<u32, f64> = BTreeMap::new();
        for task in observation.tasks.iter().filter(|task| !ours(task)) {
            for group in task.group.into_iter().flat_map(|group| observation.path_to_root(group)) {
                *others.entry(group).or_default() += task.cpu_pct;
            }
        }
        let own = observation.groups_of(|task| (!task.kernel_thread).then(|| ours(&task)));
        Self { observation, tasks, groups, others, own, services: Vec::new(), features, served: Vec::new() }
    }

    /// Services whose tasks may be changed, too, each with its bound: of one that has a single thread at work, that thread.
    #[must_use]
    pub fn serving<F: Fn(&TaskView) -> bool>(mut self, services: impl Iterator<Item = (F, u64)>) -> Self {
        for (in_service, wait_ns) in services {
            let ours = |task: &&TaskView| !task.kernel_thread && task.id.tgid != 1 && in_service(task);
            let mut at_work =
                self.observation.tasks.iter().filter(ours).filter(|t| demand(t) >= MIN_LOAD_PCT);
            if let (Some(only), None) = (at_work.next(), at_work.next()) {
                let subject = Subject::new(self.observation, only);
                self.served.extend(subject.map(|subject| Served { subject, wait_ns }));
            }
        }
        self
    }

    /// Groups that own the scene's tasks, with the indices of their tasks.
    pub fn by_group(&self) -> BTreeMap<u32, Vec<usize>> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, subject) in self.tasks.iter().enumerate() {
            if let Some(group) = subject.task.group {
                groups.entry(group).or_default().push(index);
            }
        }
        groups
    }

    /// Whether nice can act: some cgroup holds two of the scene's tasks that it counts for.
    pub fn nice_acts(&self) -> bool {
        let several = |members: &Vec<usize>| {
            members.iter().filter(|&&i| self.tasks[i].found.policy.has_nice()).count() > 1
        };
        self.by_group().values().any(several)
    }

    /// A slice for a task of this burst: `factor` bursts, so that a piece of work usually ends within it, up to the
    /// kernel's maximum. `None` leaves the kernel's default, which is long enough.
    pub fn slice_for(&self, subject: &Subject<'_>, factor: f64) -> Option<u64> {
        let default = self.features.default_slice_ns.unwrap_or(3_000_000);
        let wanted = subject.burst_ns.map_or(MAX_SLICE_NS, |ns| (ns as f64 * factor) as u64);
        // A slice within a tenth of the default would be a change without an effect.
        (wanted > default + default / 10).then_some(wanted.min(MAX_SLICE_NS))
    }
}

impl<'a> Subject<'a> {
    /// `None` where the task may not be changed.
    fn new(observation: &Observation, task: &'a TaskView) -> Option<Self> {
        let found = task.sched?;
        let load_pct = demand(task);
        if !found.policy.is_fair() || load_pct < MIN_LOAD_PCT {
            return None;
        }
        let burst_ns = task
            .voluntary_per_s
            .filter(|per_s| *per_s > 0.5)
            .map(|per_s| (task.cpu_pct / 100.0 / per_s * 1e9) as u64);
        Some(Self { task, found, load_pct, burst_ns, allowed: allowed(observation, task) })
    }
}

impl Subject<'_> {
    /// The change of this task's scheduling attributes made by `edit`, or `None` if it changes nothing.
    pub fn sched(&self, why: &str, edit: impl FnOnce(&mut SchedAttr)) -> Option<Change> {
        let mut attr = self.found;
        edit(&mut attr);
        (attr != self.found).then(|| Change {
            target: Target::Task(self.task.id),
            to: Setting::Sched(attr),
            why: why.to_owned(),
        })
    }
}

/// What a task would use if it never waited, percent of one CPU. A closed load that waits a share w of the time would run
/// 1/(1-w) as often without waiting; more than twice what it got is a guess nobody should act on.
fn demand(task: &TaskView) -> f64 {
    let waited = task.wait_pct.unwrap_or(0.0);
    (task.cpu_pct / (1.0 - (waited / 100.0).clamp(0.0, 0.5))).min(100.0)
}

/// CPUs a task may be placed on.
fn allowed(observation: &Observation, task: &TaskView) -> CpuSet {
    let topology = &observation.topology;
    let mut cpus = topology.online.clone();
    if let Some(affinity) = &task.affinity {
        cpus = cpus.intersection(affinity);
    }
    if let Some(cpuset) = observation.group_of(task).and_then(|group| group.cpuset.as_ref()) {
        cpus = cpus.intersection(cpuset);
    }
    let shared = cpus.difference(&topology.isolated);
    if shared.is_empty() { cpus } else { shared }
}
