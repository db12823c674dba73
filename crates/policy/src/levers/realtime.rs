//! SCHED_FIFO, only where the user allowed real-time classes by name.

use evenkeel_base::{Change, GroupRef, Observation, SchedPolicy, Setting, Target};

use super::lever::Lever;
use super::scene::Scene;

/// Real-time microseconds a v1 group may use in each second and CPU; below the kernel's own 950,000 so that a sibling
/// created meanwhile can still get some.
const GROUP_RT_BUDGET_USEC: u64 = 940_000;

/// Every task in the scope runs to the end of its work. Starves whatever is not real-time while it runs; the kernel
/// keeps 5 % for the rest (`sched_rt_runtime_us`).
pub const REALTIME: Lever = Lever {
    name: super::lever::REALTIME,
    why: "SCHED_FIFO: work runs to its end, nothing ordinary preempts it",
    propose: |scene| {
        if !scene.features.realtime {
            return None;
        }
        let mut changes = if scene.features.rt_groups { budgets(scene) } else { Vec::new() };
        changes.extend(scene.tasks.iter().filter_map(|subject| {
            subject.sched("run to the end of its work", |attr| {
                attr.policy = SchedPolicy::Fifo;
                attr.rt_priority = 1;
                attr.slice_ns = None;
            })
        }));
        Some(changes)
    },
    ..Lever::NOTHING
};

/// `cpu.rt_runtime_us` for the groups of the scope and their ancestors, parents first: a child's budget must fit
/// into its parent's (`tg_rt_schedulable`). Siblings share by load.
fn budgets(scene: &Scene<'_>) -> Vec<Change> {
    let groups = &scene.observation.groups;
    let mut load = vec![0.0; groups.len()];
    for subject in &scene.tasks {
        let mut at = subject.task.group;
        while let Some(index) = at {
            let Some(sum) = load.get_mut(index as usize) else { break };
            *sum += subject.load_pct;
            at = groups[index as usize].parent;
        }
    }
    let mut budget = vec![0u64; groups.len()];
    let mut changes = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let Some(parent) = group.parent.map(|p| p as usize) else {
            budget[index] = GROUP_RT_BUDGET_USEC;
            continue;
        };
        if load[index] <= 0.0 || group.v2 {
            continue;
        }
        let siblings: f64 = siblings(scene.observation, parent).map(|i| load[i]).sum();
        budget[index] = (budget[parent] as f64 * load[index] / siblings.max(load[index])) as u64;
        changes.push(Change {
            target: Target::Group(GroupRef { path: group.path.clone(), v2: false }),
            to: Setting::RtRuntime(budget[index] as i64),
            why: "real-time budget without which SCHED_FIFO is refused in this cgroup".to_owned(),
        });
    }
    changes
}

fn siblings(observation: &Observation, parent: usize) -> impl Iterator<Item = usize> + '_ {
    observation
        .groups
        .iter()
        .enumerate()
        .filter(move |(_, group)| group.parent == Some(parent as u32))
        .map(|(index, _)| index)
}
