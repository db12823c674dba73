//! What each group should have got by weights, quotas, CPUs and demand: exact weighted max-min ([`evenkeel_model::fair`]),
//! and who lost his turn.

use std::collections::BTreeMap;

use evenkeel_base::{IDLE_LOAD_WEIGHT, Limit, Nice, Observation, SchedPolicy, TaskView};
use evenkeel_model::fair::{Capacity, FairGroup, FairTask, solve};

use crate::view::{self, Place, is_throttled};

/// Real-time and deadline tasks come before all weights.
const BEFORE_ALL: f64 = 1e9;

/// Fair share of each group, percent of one CPU, in the order of the observation's groups; the root's is everybody's. `None`
/// where the host's figures make no sense to the solver.
///
/// `autogroups` are each process's, where they are known: while they act, a session's tasks in the root group compete as one.
pub fn due_pct(observation: &Observation, autogroups: &BTreeMap<u32, (u64, i32)>) -> Option<Vec<f64>> {
    let mut groups: Vec<FairGroup> = Vec::new();
    // Where each observed group is among those; `None`: with the root.
    let mut at: Vec<Option<usize>> = Vec::with_capacity(observation.groups.len());
    for group in &observation.groups {
        let parent = group.parent.and_then(|index| at.get(index as usize).copied().flatten());
        // Without a weight of its own a group of v2 is filed with its parent.
        let Some(weight) = group.load_weight.filter(|_| group.parent.is_some()) else {
            at.push(parent);
            continue;
        };
        let quota_cpus = group.quota.and_then(|quota| match quota.quota_usec {
            Limit::Max => None,
            Limit::Value(usec) => Some(usec as f64 / quota.period_usec.max(1) as f64),
        });
        groups.push(FairGroup { parent, weight: weight as f64, quota_cpus, cpus: group.cpuset.clone() });
        at.push(Some(groups.len() - 1));
    }
    let mut sessions: BTreeMap<u64, usize> = BTreeMap::new();
    let mut tasks = Vec::with_capacity(observation.tasks.len());
    for task in &observation.tasks {
        let mut group = task.group.and_then(|index| at.get(index as usize).copied().flatten());
        if let Some(Place::Autogroup(number)) = view::place(observation, autogroups, task) {
            let nice = autogroups.get(&task.id.tgid).map_or(0, |(_, nice)| *nice);
            group = Some(*sessions.entry(number).or_insert_with(|| {
                let weight = f64::from(Nice::new(nice).weight());
                groups.push(FairGroup { parent: None, weight, quota_cpus: None, cpus: None });
                groups.len() - 1
            }));
        }
        if !view::is_fair(task) {
            group = None;
        }
        tasks.push(FairTask {
            group,
            weight: weight(task),
            wanted_cpus: view::demand_pct(task) / 100.0,
            threads: 1,
            cpus: task.affinity.clone(),
        });
    }
    let busy = &observation.host.per_cpu;
    let steal = |cpu: u32| busy.iter().find(|view| view.cpu == cpu).and_then(|view| view.steal_pct);
    // What the hypervisor took is due to no one here.
    let capacity = Capacity::time(&observation.topology).without(|cpu| steal(cpu).unwrap_or(0.0) / 100.0);
    let shares = solve(&capacity, &groups, &tasks).ok()?;
    let of = |index: Option<usize>| match index {
        Some(index) => shares.groups.get(index).copied(),
        None => Some(shares.tasks.iter().sum()),
    };
    at.into_iter().map(|index| Some(100.0 * of(index)?)).collect()
}

/// A group that got less than this part of its fair share lost its turn; rounding and balancing cost some percent.
const PART: f64 = 0.5;
/// Less than this, percent of one CPU, is no task's turn.
const LEAST_PCT: f64 = 10.0;

/// A group that lost its turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LostTurn {
    /// Its index among the observation's groups.
    pub group: u32,
    /// CPU that it got, percent of one CPU.
    pub got_pct: f64,
    /// Its fair share, percent of one CPU.
    pub due_pct: f64,
}

/// Groups that got less than half of their fair share ([`due_pct`]) though no quota held them back; the innermost of those
/// within each other.
pub fn lost_turn(observation: &Observation, due_pct: &[f64]) -> Vec<LostTurn> {
    let mut lost = Vec::new();
    for ((index, view), due_pct) in (0u32..).zip(&observation.groups).zip(due_pct.iter().copied()) {
        let got_pct =
            observation.group_cpu_pct(index).max(observation.tasks_in(index).map(|task| task.cpu_pct).sum());
        let short = got_pct < due_pct * PART && due_pct - got_pct >= LEAST_PCT;
        if index != 0 && view.load_weight.is_some() && short && !is_throttled(observation, index) {
            lost.push(LostTurn { group: index, got_pct, due_pct });
        }
    }
    let has_inner = |group: u32| {
        lost.iter().any(|other| other.group != group && observation.is_within(other.group, group))
    };
    lost.iter().copied().filter(|one| !has_inner(one.group)).collect()
}

fn weight(task: &TaskView) -> f64 {
    match task.sched {
        Some(sched) if !sched.policy.is_fair() => BEFORE_ALL,
        Some(sched) if sched.policy == SchedPolicy::Idle => IDLE_LOAD_WEIGHT as f64,
        Some(sched) => f64::from(sched.nice.weight()),
        None => f64::from(Nice::default().weight()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TaskExt, World};

    #[test]
    fn shares_follow_weights_demand_and_sessions() {
        let mut world = World::new(1);
        let (a, b) = (world.group("/a", 1024), world.group("/b", 3072));
        world.task("one", 10.0).wait(90.0).in_group(a);
        world.task("two", 90.0).wait(10.0).in_group(b);
        let due = due_pct(&world.observation, &BTreeMap::new()).unwrap();
        assert!((due[a as usize] - 25.0).abs() < 1e-6 && (due[b as usize] - 75.0).abs() < 1e-6, "{due:?}");
        // What is not wanted goes to others.
        world.observation.tasks[0].wait_pct = Some(0.0);
        let due = due_pct(&world.observation, &BTreeMap::new()).unwrap();
        assert!((due[a as usize] - 10.0).abs() < 1e-6 && (due[b as usize] - 90.0).abs() < 1e-6, "{due:?}");
    }

    #[test]
    fn a_session_of_the_root_group_competes_as_one() {
        let mut world = World::new(1);
        let a = world.group("/a", 1024);
        world.task("mine", 10.0).wait(90.0).in_group(a);
        for name in ["x", "y", "z"] {
            world.task(name, 30.0).wait(70.0).in_group(0);
        }
        let alone = due_pct(&world.observation, &BTreeMap::new()).unwrap();
        assert!(
            (alone[a as usize] - 25.0).abs() < 1e-6,
            "three tasks of the root next to one group: {alone:?}"
        );
        let sessions = world.observation.tasks[1..].iter().map(|t| (t.id.tgid, (7, 0))).collect();
        let due = due_pct(&world.observation, &sessions).unwrap();
        assert!((due[a as usize] - 50.0).abs() < 1e-6, "{due:?}");
    }
}
