//! Work that waits goes to an idle CPU next to it.
//!
//! A task that wakes is queued where it ran last when the kernel finds no idle CPU quickly, and in a small cache domain that
//! is three quarters busy the kernel does not look at all (`SIS_UTIL`: `select_idle_cpu` in `kernel/sched/fair.c`). A CPU
//! that goes idle looks for waiting work only where that paid off lately (`sched_balance_newidle`). Until a tick notices,
//! one task waits and one CPU does nothing: 4 to 8 % of the time with 75 % load on two CPUs. Real-time classes do not have
//! this (`push_rt_task`, `pull_rt_task`), which is half of what they are better by.
//!
//! This lever changes no setting of a task: whoever carries the plan out moves tasks the moment they wait next to an idle
//! CPU. It goes with every other lever that does not pin.

use std::collections::{BTreeSet, HashMap};

use evenkeel_base::{CpuSet, Knob, Plan, Setting, TaskId, Topology};

use super::scene::Scene;

/// Name of the plan that does nothing else, and, after a plus, end of the names of those that do.
pub const PULL: &str = "pull";

const WHY: &str = "waiting work moves at once to an idle CPU that shares its cache";
/// Tasks that are moved at most.
pub(super) const MOST: usize = 4096;

/// The plans with the lever added to each that pins no task and uses no real-time class or BPF scheduler, and the lever alone in front.
/// The same plans where no CPU is next to another.
pub fn with_pull(scene: &Scene<'_>, plans: Vec<Plan>) -> Vec<Plan> {
    let tasks = movable(scene);
    if tasks.is_empty() {
        return plans;
    }
    let alone = Plan { name: PULL.to_owned(), why: WHY.to_owned(), pull: tasks.clone(), ..Plan::default() };
    let added = plans.into_iter().map(|plan| {
        let forbids = |setting: &Setting| match setting {
            Setting::Sched(attr) => attr.policy.is_realtime(),
            setting => matches!(setting.knob(), Knob::Affinity | Knob::RtRuntime | Knob::Scheduler),
        };
        if plan.changes.iter().any(|change| forbids(&change.to)) {
            return plan;
        }
        let (name, why) = (format!("{}+{PULL}", plan.name), format!("{}; {WHY}", plan.why));
        Plan { name, why, pull: tasks.clone(), ..plan }
    });
    std::iter::once(alone).chain(added).collect()
}

/// Tasks that may run on two CPUs of a domain; the heaviest where there are too many.
pub(super) fn movable(scene: &Scene<'_>) -> Vec<TaskId> {
    let domains = beside(&scene.observation.topology);
    // Thousands of tasks have few sets of CPUs between them.
    let mut known: HashMap<&CpuSet, bool> = HashMap::new();
    let mut subjects = Vec::new();
    for subject in &scene.tasks {
        let has_choice = || domains.iter().any(|domain| domain.intersection(&subject.allowed).len() > 1);
        if *known.entry(&subject.allowed).or_insert_with(has_choice) {
            subjects.push(subject);
        }
    }
    subjects.sort_by(|a, b| b.load_pct.total_cmp(&a.load_pct).then(a.task.id.cmp(&b.task.id)));
    subjects.into_iter().take(MOST).map(|subject| subject.task.id).collect()
}

/// Sets of two or more CPUs that share their last-level cache, or a node where the machine does not tell its caches;
/// isolated CPUs are in none.
pub fn beside(topology: &Topology) -> Vec<CpuSet> {
    let usable = topology.online.difference(&topology.isolated);
    let mut keys = BTreeSet::new();
    let key = |cpu: &evenkeel_base::topology::Cpu| (cpu.node, cpu.llc.or(cpu.socket));
    keys.extend(topology.cpus.iter().map(key));
    let members = |wanted| {
        let members = topology.cpus.iter().filter(|cpu| key(cpu) == wanted && usable.contains(cpu.cpu));
        members.map(|cpu| cpu.cpu).collect::<CpuSet>()
    };
    keys.into_iter().map(members).filter(|cpus: &CpuSet| cpus.len() > 1).collect()
}
