//! Levers: ways in which CPU sharing can be changed on this kernel and this cgroup layout.
//!
//! A lever looks at an observation and proposes a [`Plan`], or nothing where it cannot act. It never decides whether
//! the plan is good: the trial does ([`crate::trial`]). To add one, write a file here with a type that implements
//! [`Lever`] and add a line to [`LEVERS`].

use std::collections::BTreeMap;

use evenkeel_base::{
    Change, CpuSet, Nice, Observation, Plan, SchedAttr, SchedPolicy, Setting, Target, TaskView,
};

mod as_found;
mod batch;
mod burst;
mod deadline;
mod headroom;
mod placement_nice;
mod pull;
mod realtime;
mod short_first;
mod slice;
mod slice_nice;
mod tiers;
mod weights;

pub use as_found::as_found;
pub use headroom::shared_quota;
pub use pull::{PULL, beside, with_pull};

/// What the kernel offers and the user allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// A task may ask for its own slice (Linux 6.12 and later).
    pub task_slice: bool,
    /// The slice a task has by default, nanoseconds.
    pub default_slice_ns: Option<u64>,
    /// The user allowed real-time classes by name.
    pub realtime: bool,
    /// The user allowed `SCHED_DEADLINE` by name.
    pub deadline: bool,
    /// cgroup v1 with CONFIG_RT_GROUP_SCHED: a group needs `cpu.rt_runtime_us` before SCHED_FIFO is allowed in it.
    pub rt_groups: bool,
    /// Services are named, and the scope is background work that may wait.
    pub background: bool,
}

/// The shortest and the longest slice the kernel grants a task, nanoseconds (`sched_setattr(2)`, `__setparam_fair`).
pub const MIN_SLICE_NS: u64 = 100_000;
/// See [`MIN_SLICE_NS`].
pub const MAX_SLICE_NS: u64 = 100_000_000;

/// Tasks below this load are left as they are: tuning them cannot matter and every change is a risk. Percent of a CPU.
pub const MIN_LOAD_PCT: f64 = 0.3;

/// What levers look at.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The host.
    pub observation: &'a Observation,
    /// Tasks in the scope that may be changed, see [`Scene::new`].
    pub tasks: Vec<Subject<'a>>,
    /// By group, what tasks of the scope use of it.
    pub groups: BTreeMap<u32, GroupUse>,
    /// By group, what tasks that are not of the scope use in it and below, percent of one CPU.
    pub others: BTreeMap<u32, f64>,
    /// For each group whether it holds tasks of the scope and no others, sleeping ones included.
    pub own: Vec<bool>,
    /// What this kernel offers.
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
    /// The task as observed.
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
    /// load, never kernel threads or pid 1. `in_scope` and `found` speak of the task (`found`: attributes before
    /// evenkeel touched it, where it did).
    pub fn new(
        observation: &'a Observation,
        features: Features,
        in_scope: impl Fn(&TaskView) -> bool,
        found: impl Fn(&TaskView) -> Option<SchedAttr>,
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
            tasks.extend(Subject::new(observation, task, found(task)));
        }
        let mut others: BTreeMap<u32, f64> = BTreeMap::new();
        for task in observation.tasks.iter().filter(|task| !ours(task)) {
            for group in task.group.into_iter().flat_map(|group| observation.path_to_root(group)) {
                *others.entry(group).or_default() += task.cpu_pct;
            }
        }
        let own = observation.groups_of(|task| (!task.kernel_thread).then(|| ours(&task)));
        Self { observation, tasks, groups, others, own, features, served: Vec::new() }
    }

    /// Services whose tasks may be changed, too, each with its bound: of one that has a single thread at work, that thread.
    #[must_use]
    pub fn serving<F: Fn(&TaskView) -> bool>(mut self, services: impl Iterator<Item = (F, u64)>) -> Self {
        for (in_service, wait_ns) in services {
            let ours = |task: &&TaskView| !task.kernel_thread && task.id.tgid != 1 && in_service(task);
            let mut at_work =
                self.observation.tasks.iter().filter(ours).filter(|t| demand(t) >= MIN_LOAD_PCT);
            if let (Some(only), None) = (at_work.next(), at_work.next()) {
                let subject = Subject::new(self.observation, only, None);
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

    /// Whether nice can act: some cgroup holds two of the scene's tasks.
    pub fn nice_acts(&self) -> bool {
        self.by_group().values().any(|members| members.len() > 1)
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
    /// A task that had these attributes before evenkeel touched it, where it did; `None` where it may not be changed.
    fn new(observation: &Observation, task: &'a TaskView, found: Option<SchedAttr>) -> Option<Self> {
        let found = found.or(task.sched)?;
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

/// A way to change CPU sharing.
pub trait Lever: Sync {
    /// Short name, such as `batch+slice`.
    fn name(&self) -> &'static str;
    /// What it does and why it may help.
    fn why(&self) -> &'static str;
    /// The changes, relative to the state as in the baseline; `None` where the lever cannot act or would change nothing.
    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>>;
}

/// Every lever, in the order in which they are tried.
pub const LEVERS: &[&dyn Lever] = &[
    &slice::MatchedSlice,
    &short_first::ShortFirst,
    &short_first::ShortFirstNice,
    &short_first::ShortFirstWeights,
    &slice::LongSlice,
    &slice_nice::MatchedSliceNice,
    &slice_nice::LongSliceNice,
    &weights::SliceWeights,
    &weights::Weights,
    &burst::Burst,
    &batch::Batch,
    &placement_nice::Nice,
    &placement_nice::PlacementNice,
    &realtime::Realtime,
];

/// Every lever for background work beside services, in the order in which they are tried.
pub const BACKGROUND_LEVERS: &[&dyn Lever] = &[
    // First: where a quota is what holds services back, nothing else helps.
    &headroom::HEADROOM,
    &headroom::TIGHT_HEADROOM,
    &headroom::TIGHTEST_HEADROOM,
    &tiers::IdleGroups,
    &tiers::LeastWeight,
    &tiers::IdleTasks,
    &tiers::LastNice,
    &deadline::Deadline,
];

/// The published recipe's name: greedy placement, then niceness in proportion to load.
pub const PUBLISHED_RECIPE: &str = "placement+nice";

/// The name of what is tried only where the user allowed it by name.
pub const REALTIME: &str = "realtime";

/// The name of the lever for services, likewise.
pub const DEADLINE: &str = "deadline";

/// The plan of one lever.
pub fn plan_of(lever: &dyn Lever, scene: &Scene<'_>) -> Option<Plan> {
    let changes = lever.propose(scene).filter(|changes| !changes.is_empty())?;
    Some(Plan { name: lever.name().to_owned(), why: lever.why().to_owned(), changes, pull: Vec::new() })
}

/// The plan of the lever with this name.
pub fn plan_named(name: &str, scene: &Scene<'_>) -> Option<Plan> {
    let mut all = LEVERS.iter().chain(BACKGROUND_LEVERS);
    all.find(|lever| lever.name() == name).and_then(|lever| plan_of(*lever, scene))
}

/// The plans of all levers that can act; plans that would set the same are listed once.
pub fn plans(scene: &Scene<'_>) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    let levers = if scene.features.background { BACKGROUND_LEVERS } else { LEVERS };
    for lever in levers {
        if let Some(plan) = plan_of(*lever, scene) {
            let same = |other: &Plan| {
                other.changes.len() == plan.changes.len()
                    && other
                        .changes
                        .iter()
                        .zip(&plan.changes)
                        .all(|(a, b)| a.target == b.target && a.to == b.to)
            };
            if !plans.iter().any(same) {
                plans.push(plan);
            }
        }
    }
    plans
}

/// Niceness in proportion to load within each cgroup, in the order of the scene's tasks: between cgroups nice does not
/// act, so each group is its own contest.
fn nice_within_groups(scene: &Scene<'_>) -> Vec<Nice> {
    let mut nice: Vec<Nice> = scene.tasks.iter().map(|s| s.found.nice).collect();
    let mut contests: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (index, subject) in scene.tasks.iter().enumerate() {
        contests.entry(subject.task.group).or_default().push(index);
    }
    for members in contests.into_values().filter(|m| m.len() > 1) {
        let loads: Vec<f64> = members.iter().map(|&i| scene.tasks[i].load_pct).collect();
        let base: Vec<Nice> = members.iter().map(|&i| nice[i]).collect();
        for (&index, value) in members.iter().zip(crate::priority::proportional(&loads, &base)) {
            nice[index] = value;
        }
    }
    nice
}

/// SCHED_BATCH for an ordinary task; SCHED_IDLE stays what its owner made it.
fn batch_policy(policy: SchedPolicy) -> SchedPolicy {
    if policy == SchedPolicy::Other { SchedPolicy::Batch } else { policy }
}

#[cfg(test)]
pub(crate) mod tests;
