//! Levers for background work, so that services next to it need not wait.
//!
//! A task of an idle cgroup (`cpu.idle`) is preempted by whoever is not idle as soon as that one wakes
//! (`check_preempt_wakeup_fair`), and counts with the weight 3 of 1024 in the queue of the group's parent. SCHED_IDLE for each
//! task has the same two effects within the task's own queue: where the service is in that queue, many idle tasks together still
//! move its virtual time along, which can cost the service seconds. Which of them helps is for the trial to show.

use evenkeel_base::{Change, GroupView, Nice, SchedPolicy, Setting, Target};

use super::headroom::shared_quota;
use super::lever::Lever;
use super::scene::{Scene, Subject};
use super::weights::rounded;

/// Nice value of who comes last.
const LAST: i32 = 19;

/// `cpu.idle` for the highest cgroups that hold nothing but background work; SCHED_IDLE for its tasks elsewhere.
pub const IDLE_GROUPS: Lever = Lever {
    name: "idle groups",
    why: "who wakes elsewhere preempts background work at once; its cgroups run where others leave time",
    propose: |scene| by_group(scene, |_| Setting::GroupIdle(true), idle),
    ..Lever::NOTHING
};

/// The least weight for the same cgroups; nice 19 for its tasks elsewhere.
pub const LEAST_WEIGHT: Lever = Lever {
    name: "least weight",
    why: "cgroups of background work count as little as a cgroup can",
    propose: |scene| by_group(scene, |group| Setting::Weight(rounded(group, 0.0)), last),
    ..Lever::NOTHING
};

/// SCHED_IDLE for each background task.
pub const IDLE_TASKS: Lever = Lever {
    name: "idle tasks",
    why: "background tasks are preempted by who wakes in their queue and run where others leave time",
    propose: |scene| by_task(scene, idle),
    ..Lever::NOTHING
};

/// Nice 19 for each background task.
pub const LAST_NICE: Lever = Lever {
    name: "nice 19",
    why: "background tasks count least in their queue",
    propose: |scene| by_task(scene, last),
    ..Lever::NOTHING
};

/// One setting for each of the highest cgroups that hold background work alone, and changes of the tasks elsewhere; `None` where
/// there is no such cgroup, for then the levers for tasks are the same. One that is idle already cannot count less, and the kernel takes
/// no weight for it (`sched_group_set_shares`, `kernel/sched/fair.c`).
fn by_group(
    scene: &Scene<'_>,
    to: impl Fn(&GroupView) -> Setting,
    elsewhere: impl Fn(&Subject<'_>) -> Option<Change>,
) -> Option<Vec<Change>> {
    // Where a quota that is shared holds services back, it does not help them to run first.
    if shared_quota(scene).is_some() {
        return None;
    }
    let mut changes: Vec<Change> = own_tops(scene)
        .map(|index| &scene.observation.groups[index as usize])
        .filter(|group| !group.idle)
        .map(|group| {
            let target = Target::Group(group.reference());
            Change { target, to: to(group), why: "cgroup of background work alone".to_owned() }
        })
        .collect();
    if changes.is_empty() {
        return None;
    }
    changes.extend(scene.tasks.iter().filter(|subject| !is_apart(scene, subject)).filter_map(elsewhere));
    Some(changes)
}

/// The highest cgroups that hold background work alone.
pub(super) fn own_tops<'a>(scene: &'a Scene<'_>) -> impl Iterator<Item = u32> + 'a {
    let groups = &scene.observation.groups;
    let parent = |index: u32| groups[index as usize].parent;
    let highest =
        move |index: &u32| is_own(scene, *index) && parent(*index).is_some_and(|above| !is_own(scene, above));
    (0..groups.len() as u32).filter(highest)
}

/// Whether a cgroup holds background work alone and can be told how much it counts. The root cannot.
pub(super) fn is_own(scene: &Scene<'_>, index: u32) -> bool {
    let group = &scene.observation.groups[index as usize];
    scene.own.get(index as usize) == Some(&true) && group.parent.is_some() && group.raw_weight.is_some()
}

/// Whether a task is in such a cgroup: what others wait is decided between that cgroup and its siblings then, not by the task's own
/// settings.
fn is_apart(scene: &Scene<'_>, subject: &Subject<'_>) -> bool {
    let group = subject.task.group;
    group.is_some_and(|group| scene.observation.path_to_root(group).any(|index| is_own(scene, index)))
}

/// A change of each task; `None` where all are in cgroups of their own, for nothing of it would be felt outside.
fn by_task(scene: &Scene<'_>, change: impl Fn(&Subject<'_>) -> Option<Change>) -> Option<Vec<Change>> {
    if scene.tasks.iter().all(|subject| is_apart(scene, subject)) {
        return None;
    }
    let changes: Vec<Change> = scene.tasks.iter().filter_map(change).collect();
    (!changes.is_empty()).then_some(changes)
}

fn idle(subject: &Subject<'_>) -> Option<Change> {
    subject.sched("background work", |attr| {
        attr.policy = SchedPolicy::Idle;
        attr.slice_ns = None;
    })
}

fn last(subject: &Subject<'_>) -> Option<Change> {
    if !subject.found.policy.has_nice() {
        return None;
    }
    subject.sched("background work", |attr| attr.nice = Nice::new(LAST))
}
