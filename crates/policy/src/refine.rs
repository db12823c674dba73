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
/// pins them. How far a task is held below what it wants is told by the share of time it waits. Tasks of which that is not known, or for
/// which nice does not count, have no part. `None` when no task waits so much more than another that a step is worth a trial.
pub fn refined(plan: &Plan, scene: &Scene<'_>) -> Option<Plan> {
    let pinned: BTreeMap<TaskId, &CpuSet> = plan.changes.iter().filter_map(pin).collect();
    let mut contests: BTreeMap<_, Vec<(&Subject<'_>, SchedAttr, f64)>> = BTreeMap::new();
    for subject in &scene.tasks {
        let attr = in_force(plan, subject);
        // Unknown is not zero: who is not known to wait has nothing to spare.
        let Some(waited_pct) = subject.task.wait_pct.filter(|_| attr.policy.has_nice()) else { continue };
        let cpu = pinned.get(&subject.task.id).and_then(|cpus| cpus.first());
        contests.entry((subject.task.group, cpu)).or_default().push((subject, attr, waited_pct));
    }
    let mut new = plan.clone();
    let mut changed = false;
    for members in contests.into_values() {
        let nice: Vec<Nice> = members.iter().map(|(_, attr, _)| attr.nice).collect();
        let fulfilment: Vec<f64> =
            members.iter().map(|(.., waited_pct)| 1.0 - (waited_pct / 100.0).clamp(0.0, 1.0)).collect();
        let Some(next) = priority::refine(&fulfilment, &nice, TOLERANCE) else { continue };
        for ((subject, attr, _), nice) in members.into_iter().zip(next) {
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
    use evenkeel_base::SchedPolicy;

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
    fn who_is_not_known_to_wait_or_has_no_use_for_nice_has_no_part() {
        let mut observation = host(2, &[("/", None)], &[(20.0, 10.0, 0); 4]);
        for (task, wait) in observation.tasks.iter_mut().zip([None, Some(90.0), Some(40.0), Some(10.0)]) {
            task.wait_pct = wait;
        }
        let idle = SchedAttr { policy: SchedPolicy::Idle, ..SchedAttr::DEFAULT };
        observation.tasks[1].sched = Some(idle);
        let scene = Scene::new(&observation, Features::default(), |_| true);
        let named = |plan: &Plan| -> Vec<String> {
            let changes = refined(plan, &scene).map(|plan| plan.changes).unwrap_or_default();
            changes.iter().map(|change| format!("{} {}", change.target, change.to)).collect()
        };
        let (down, up) = (observation.tasks[3].id, observation.tasks[2].id);
        let steps = [format!("task {up} other nice -1"), format!("task {down} other nice 1")];
        assert_eq!(named(&Plan::default()), steps);
        // Nor under a plan that makes all of them so.
        let mut plan = Plan::default();
        observation.tasks.iter().for_each(|task| set(&mut plan, task.id, idle));
        assert_eq!(named(&plan), Vec::<String>::new());
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
