//! Refining settings in force: niceness core by core and process by process.

use std::collections::BTreeMap;

use evenkeel_base::{Change, CpuSet, Nice, Plan, SchedAttr, Setting, Target, TaskId};

use crate::levers::{Scene, Subject};
use crate::priority;

/// Waiting shares within this of each other are as good as equal.
const TOLERANCE: f64 = 0.05;
/// What a refined plan's name ends in.
const SUFFIX: &str = ", refined";

/// The plan with one step of [`priority::refine`] in each contest: the tasks of one cgroup, and of one CPU where the plan
/// pins them. How far a task is held below what it wants is told by the share of time it waits. `None` when no task waits
/// so much more than another that a step is worth a trial.
pub fn refined(plan: &Plan, scene: &Scene<'_>) -> Option<Plan> {
    let pinned: BTreeMap<TaskId, &CpuSet> = plan.changes.iter().filter_map(pin).collect();
    let mut contests: BTreeMap<(Option<u32>, Option<u32>), Vec<&Subject<'_>>> = BTreeMap::new();
    for subject in &scene.tasks {
        let cpu = pinned.get(&subject.task.id).and_then(|cpus| cpus.first());
        contests.entry((subject.task.group, cpu)).or_default().push(subject);
    }
    let mut new = plan.clone();
    let mut changed = false;
    for members in contests.into_values() {
        let attrs: Vec<SchedAttr> = members.iter().map(|subject| in_force(plan, subject)).collect();
        let nice: Vec<Nice> = attrs.iter().map(|attr| attr.nice).collect();
        let fulfilment: Vec<f64> =
            members.iter().map(|s| 1.0 - (s.task.wait_pct.unwrap_or(0.0) / 100.0).clamp(0.0, 1.0)).collect();
        let Some(next) = priority::refine(&fulfilment, &nice, TOLERANCE) else { continue };
        for ((subject, attr), nice) in members.iter().zip(attrs).zip(next) {
            if nice != attr.nice {
                set(&mut new, subject.task.id, SchedAttr { nice, ..attr });
                changed = true;
            }
        }
    }
    if !new.name.ends_with(SUFFIX) {
        new.name.push_str(SUFFIX);
    }
    changed.then_some(new)
}

fn pin(change: &Change) -> Option<(TaskId, &CpuSet)> {
    match (&change.target, &change.to) {
        (Target::Task(id), Setting::Affinity(cpus)) => Some((*id, cpus)),
        _ => None,
    }
}

/// What the plan gives a task, or what it was found with.
fn in_force(plan: &Plan, subject: &Subject<'_>) -> SchedAttr {
    let given = plan.changes.iter().find_map(|change| match (&change.target, &change.to) {
        (Target::Task(id), Setting::Sched(attr)) if *id == subject.task.id => Some(*attr),
        _ => None,
    });
    given.unwrap_or(subject.found)
}

/// Replaces or adds a task's scheduling attributes.
fn set(plan: &mut Plan, id: TaskId, attr: SchedAttr) {
    let why = "one nice step, by how much it waits".to_owned();
    let target = Target::Task(id);
    match plan.changes.iter_mut().find(|c| c.target == target && matches!(c.to, Setting::Sched(_))) {
        Some(change) => {
            change.to = Setting::Sched(attr);
            change.why = why;
        }
        None => plan.changes.push(Change { target, to: Setting::Sched(attr), why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::Features;
    use crate::levers::tests::host;

    #[test]
    fn who_waits_most_goes_up_and_who_waits_least_down() {
        let mut observation = host(2, &[("/", None)], &[(20.0, 10.0, 0), (20.0, 10.0, 0), (20.0, 10.0, 0)]);
        for (task, wait) in observation.tasks.iter_mut().zip([2.0, 40.0, 10.0]) {
            task.wait_pct = Some(wait);
        }
        let scene = Scene::new(&observation, Features::default(), |_| true);
        let plan = Plan { name: "batch".into(), ..Plan::default() };
        let refined = refined(&plan, &scene).unwrap();
        let nice: Vec<(u32, i32)> = refined
            .changes
            .iter()
            .map(|c| match (&c.target, &c.to) {
                (Target::Task(id), Setting::Sched(attr)) => (id.tid, attr.nice.get()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(nice, [(100, 1), (101, -1)]);
        assert_eq!(refined.name, "batch, refined");
        assert_eq!(super::refined(&refined, &scene).unwrap().name, "batch, refined");
    }

    #[test]
    fn equal_waits_need_no_refinement() {
        let mut observation = host(2, &[("/", None)], &[(20.0, 10.0, 0), (20.0, 10.0, 0)]);
        for task in &mut observation.tasks {
            task.wait_pct = Some(3.0);
        }
        let scene = Scene::new(&observation, Features::default(), |_| true);
        assert_eq!(refined(&Plan::default(), &scene), None);
    }
}
