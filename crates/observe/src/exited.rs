//! Threads that ended within an interval: what each group's used of it.

use std::collections::{BTreeMap, HashMap};

use evenkeel_base::{ContainerView, ExitedSample, ExitedView, GroupView, Sample, TaskSample};

use crate::sampler::Sampler;

/// What the threads of a group that ended within an interval used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Path of the group; `None` when it is gone, too.
    pub path: Option<String>,
    pub tasks: u64,
    pub ran_ns: u64,
    pub waited_ns: u64,
}

/// From the sums of two samples, less what the threads that vanished had used before the interval.
pub(crate) fn between(
    before: &Sample,
    after: &Sample,
    vanished: &[&TaskSample],
    sampler: &Sampler,
) -> Vec<Ended> {
    if after.exited.is_empty() || before.tasks.is_empty() {
        return Vec::new();
    }
    let of = |task: &TaskSample| sampler.meta(task.id).and_then(|meta| meta.place.cpu.clone());
    let vanished = vanished.iter().map(|task| (of(task), *task));
    subtract(&before.exited, &after.exited, vanished)
}

fn subtract<'a>(
    before: &[ExitedSample],
    after: &[ExitedSample],
    vanished: impl Iterator<Item = (Option<String>, &'a TaskSample)>,
) -> Vec<Ended> {
    let earlier: HashMap<Option<&str>, &ExitedSample> =
        before.iter().map(|sums| (sums.path.as_deref(), sums)).collect();
    let mut ended: BTreeMap<Option<String>, Ended> = BTreeMap::new();
    for now in after {
        let path = now.path.as_deref();
        let (tasks, ran_ns, waited_ns) =
            earlier.get(&path).map_or((0, 0, 0), |then| (then.tasks, then.ran_ns, then.waited_ns));
        let sums = Ended {
            path: now.path.clone(),
            tasks: now.tasks.saturating_sub(tasks),
            ran_ns: now.ran_ns.saturating_sub(ran_ns),
            waited_ns: now.waited_ns.saturating_sub(waited_ns),
        };
        if sums.tasks > 0 || sums.ran_ns > 0 {
            ended.insert(now.path.clone(), sums);
        }
    }
    for (path, task) in vanished {
        // One that moved to another group just before it ended is counted there as a whole: never below 0 here.
        if let Some(sums) = ended.get_mut(&path) {
            sums.ran_ns = sums.ran_ns.saturating_sub(task.ran_ns);
            sums.waited_ns = sums.waited_ns.saturating_sub(task.waited_ns.unwrap_or(0));
        }
    }
    ended.into_values().collect()
}

/// As rates, with their owners.
pub(crate) fn views(
    ended: &[Ended],
    index: &HashMap<&str, u32>,
    groups: &[GroupView],
    containers: &[ContainerView],
    interval_ns: u64,
) -> Vec<ExitedView> {
    let container_of: HashMap<u32, u32> =
        containers.iter().zip(0..).filter_map(|(view, at)| Some((view.group?, at))).collect();
    let percent = |ns: u64| 100.0 * ns as f64 / interval_ns as f64;
    let view = |ended: &Ended| {
        let group = ended.path.as_deref().and_then(|path| index.get(path).copied());
        let mut at = group;
        let mut container = None;
        while let Some(group) = at.filter(|_| container.is_none()) {
            container = container_of.get(&group).copied();
            at = groups.get(group as usize).and_then(|group| group.parent);
        }
        ExitedView {
            group,
            container,
            tasks_per_s: ended.tasks as f64 * 1e9 / interval_ns as f64,
            cpu_pct: percent(ended.ran_ns),
            wait_pct: percent(ended.waited_ns),
        }
    };
    ended.iter().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::TaskId;
    use proptest::prelude::*;

    fn sums(path: &str, tasks: u64, ran_ns: u64, waited_ns: u64) -> ExitedSample {
        ExitedSample { path: Some(path.to_owned()), tasks, ran_ns, waited_ns }
    }

    fn task(ran_ns: u64) -> TaskSample {
        let id = TaskId { tgid: 7, tid: 7, start_time: 1 };
        TaskSample { id, ran_ns, waited_ns: Some(ran_ns / 2), ..TaskSample::default() }
    }

    #[test]
    fn what_was_used_before_the_interval_does_not_count() {
        // One thread had run 100 before the interval and 30 in it; two more came and went.
        let (before, after) = ([sums("/a", 5, 1000, 50)], [sums("/a", 8, 1170, 150)]);
        let old = task(100);
        let ended = subtract(&before, &after, [(Some("/a".to_owned()), &old)].into_iter());
        let wanted = Ended { path: Some("/a".into()), tasks: 3, ran_ns: 70, waited_ns: 50 };
        assert_eq!(ended, [wanted]);
        // A group that appears counts from nothing; one where nothing happened is left out.
        let ended = subtract(&before, &[sums("/a", 5, 1000, 50), sums("/b", 1, 9, 1)], std::iter::empty());
        assert_eq!(ended, [Ended { path: Some("/b".into()), tasks: 1, ran_ns: 9, waited_ns: 1 }]);
    }

    proptest! {
        /// Whatever the numbers: no more than what the sums grew by, and no panic.
        #[test]
        fn never_more_than_the_sums_grew(before: (u32, u32), after: (u32, u32), ran: u32) {
            let b = [sums("/a", before.0.into(), before.1.into(), 0)];
            let a = [sums("/a", after.0.into(), after.1.into(), 0)];
            let old = task(ran.into());
            let ended = subtract(&b, &a, [(Some("/a".to_owned()), &old)].into_iter());
            for ended in ended {
                prop_assert!(ended.ran_ns <= u64::from(after.1.saturating_sub(before.1)));
            }
        }
    }
}
