//! From two samples of the host to a measurement window.

use std::collections::HashMap;

use evenkeel_base::{Observation, Sample, TaskId, TaskSample, TaskView};
use evenkeel_policy::window::{Owner, TaskWindow, Window};

use crate::scope::Scope;

/// The task with this identity, if there is one; what comes before it is passed over for good.
fn advance<'a>(tasks: &mut &'a [TaskSample], id: TaskId) -> Option<&'a TaskSample> {
    while let Some((first, rest)) = tasks.split_first() {
        match first.id.cmp(&id) {
            std::cmp::Ordering::Less => *tasks = rest,
            std::cmp::Ordering::Equal => return Some(first),
            std::cmp::Ordering::Greater => return None,
        }
    }
    None
}

/// The window between two samples. Tasks born in between count from their birth. What tasks of the scope used that ended in between is
/// known where ended threads are counted by cgroup; else they are part of what is outside, as those are that are judged by their waits
/// alone.
pub fn window(
    before: &Sample,
    after: &Sample,
    observation: &Observation,
    scope: &Scope,
    by_waits: impl Fn(&TaskView) -> bool,
) -> Window {
    let seconds = after.monotonic_ns.saturating_sub(before.monotonic_ns) as f64 / 1e9;
    // All three are ordered by identity.
    let (mut old, mut new) = (before.tasks.as_slice(), after.tasks.as_slice());
    let mut ours_ran = 0.0;
    let mut tasks = Vec::new();
    let mut owners = Owners::default();
    for view in &observation.tasks {
        let Some(now) = advance(&mut new, view.id) else { continue };
        let (ran0, waited0, slices0) = advance(&mut old, view.id)
            .map_or((0, Some(0), Some(0)), |t| (t.ran_ns, t.waited_ns, t.timeslices));
        // A counter that ran backwards says nothing about this window.
        let Some(ran_ns) = now.ran_ns.checked_sub(ran0) else { continue };
        let waited_ns = now.waited_ns.zip(waited0).and_then(|(now, then)| now.checked_sub(then));
        let in_scope = scope.has(view, observation);
        let ran_s = ran_ns as f64 / 1e9;
        if in_scope {
            ours_ran += ran_s;
        }
        if (ran_ns > 0 || waited_ns.is_some_and(|ns| ns > 0)) && !by_waits(view) {
            tasks.push(TaskWindow {
                id: view.id,
                in_scope,
                owner: owners.of(view, observation, in_scope),
                ran_s,
                waited_s: waited_ns.map(|ns| ns as f64 / 1e9),
                waits: now.timeslices.zip(slices0).and_then(|(now, then)| now.checked_sub(then)),
            });
        }
    }
    let host = &observation.host;
    let known = !host.per_cpu.is_empty();
    let ended = observation.exited.iter().filter(|ended| scope.has_ended(ended, observation));
    let ended_ran_s = ended.map(|ended| ended.cpu_pct / 100.0 * seconds).sum();
    let outside_ran_s = known.then(|| (host.busy_pct / 100.0 * seconds - ours_ran - ended_ran_s).max(0.0));
    let taken_pct = host.busy_pct + host.steal_pct.unwrap_or_default();
    let idle_s = known.then(|| (f64::from(host.cpus) - taken_pct / 100.0).max(0.0) * seconds);
    Window { seconds, tasks, outside_ran_s, ended_ran_s, idle_s }
}

/// Where a task is: container, virtual machine, cgroup, and whether it is in the scope.
type Whereabouts = (Option<u32>, Option<u32>, Option<u32>, bool);

/// Who owns tasks, by where they are.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    known: HashMap<Whereabouts, Option<Owner>>,
}

impl Owners {
    /// A container, a virtual machine, or the cgroup: of what is outside the scope, the top-level one. `None` for kernel
    /// threads and where no cgroup is known.
    pub fn of(&mut self, task: &TaskView, observation: &Observation, in_scope: bool) -> Option<Owner> {
        if task.kernel_thread {
            return None;
        }
        let key = (task.container, task.vm, task.group, in_scope);
        let owner = || -> Option<Owner> {
            if let Some(container) = task.container.and_then(|at| observation.containers.get(at as usize)) {
                // Many pods have a container of the same name: what one of them loses is not to be lost in their sum.
                return Some(observation.container_title(container).as_str().into());
            }
            if let Some(vm) = task.vm.and_then(|at| observation.vms.get(at as usize)) {
                return Some(vm.name.as_str().into());
            }
            let path = &observation.groups.get(task.group? as usize)?.path;
            let top = path.get(1..).and_then(|rest| rest.find('/')).map_or(path.len(), |end| end + 1);
            Some(path[..if in_scope { path.len() } else { top }].into())
        };
        self.known.entry(key).or_insert_with(owner).clone()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{ContainerView, ExitedView, HostView, PodView, VmView};

    use super::*;
    use crate::testing::{observation, task};

    /// Counters of a task: run and waited, seconds.
    fn counters(pid: u32, ran_s: f64, waited_s: Option<f64>) -> TaskSample {
        let ns = |s: f64| (s * 1e9) as u64;
        let id = task(pid, "job", 1).id;
        TaskSample {
            id,
            ran_ns: ns(ran_s),
            waited_ns: waited_s.map(ns),
            timeslices: Some(ns(ran_s)),
            ..TaskSample::default()
        }
    }

    #[test]
    fn a_window_has_what_happened_in_it_and_what_is_not_known_is_left_out() {
        let before = [
            counters(11, 1.0, Some(1.0)),
            counters(12, 5.0, Some(0.0)),
            counters(13, 1.0, Some(5.0)),
            counters(14, 1.0, None),
            counters(15, 1.0, Some(1.0)),
            counters(16, 1.0, Some(1.0)),
            counters(17, 1.0, Some(1.0)),
            counters(19, 1.0, Some(1.0)),
        ];
        let after = [
            counters(11, 1.5, Some(1.25)),
            // Ran backwards; waited backwards; waits were not known; slept; only waited.
            counters(12, 4.0, Some(1.0)),
            counters(13, 1.5, Some(1.0)),
            counters(14, 1.5, Some(1.0)),
            counters(15, 1.0, Some(1.0)),
            counters(16, 1.0, Some(1.5)),
            // A service; one that was born; 19 has ended.
            counters(17, 1.25, Some(1.0)),
            counters(18, 0.25, Some(0.5)),
        ];
        let mut seen = observation(&[("/", None), ("/batch", Some(0))]);
        seen.tasks = (11..19).map(|pid| task(pid, "job", 1)).collect();
        seen.host = HostView { steal_pct: Some(20.0), ..HostView::evenly(2, 75.0) };
        let sample = |monotonic_ns, tasks: &[TaskSample]| Sample {
            monotonic_ns,
            tasks: tasks.to_vec(),
            ..Sample::default()
        };
        let (before, after) = (sample(1_000_000_000, &before), sample(3_000_000_000, &after));
        let scope = Scope::parse(&["cgroup:/batch"]).unwrap();
        let by_waits = |task: &TaskView| task.id.tid == 17;
        let found = window(&before, &after, &seen, &scope, by_waits);
        let told: Vec<_> = found.tasks.iter().map(|task| (task.id.tid, task.ran_s, task.waited_s)).collect();
        let known = [
            (11, 0.5, Some(0.25)),
            (13, 0.5, None),
            (14, 0.5, None),
            (16, 0.0, Some(0.5)),
            (18, 0.25, Some(0.5)),
        ];
        assert_eq!(told, known);
        let waits: Vec<_> = found.tasks.iter().map(|task| task.waits).collect();
        assert_eq!(waits, [500_000_000, 500_000_000, 500_000_000, 0, 250_000_000].map(Some));
        assert!(found.tasks.iter().all(|task| task.in_scope && task.owner.as_deref() == Some("/batch")));
        // 3 s were used, of which the scope had 2, what is judged by its waits included; 0.4 s were stolen.
        assert_eq!((found.seconds, found.outside_ran_s), (2.0, Some(1.0)));
        assert!((found.idle_s.unwrap() - 0.6).abs() < 1e-9, "{found:?}");
        seen.host.busy_pct = 50.0;
        assert_eq!(
            window(&before, &after, &seen, &scope, by_waits).outside_ran_s,
            Some(0.0),
            "clocks differ"
        );
        seen.host.per_cpu.clear();
        let unknown = window(&before, &after, &seen, &scope, by_waits);
        assert_eq!((unknown.outside_ran_s, unknown.idle_s), (None, None));
    }

    #[test]
    fn others_are_no_part_of_the_scope_and_who_has_no_counters_is_passed_over() {
        let before = [11, 13, 14].map(|pid| counters(pid, 1.0, Some(1.0)));
        let mut after = [
            counters(11, 1.5, Some(1.0)),
            counters(13, 2.0, Some(1.0)),
            // Slept, and nothing is known of its waits; switches that ran backwards.
            counters(14, 1.0, None),
            counters(15, 0.5, None),
        ];
        after[0].timeslices = Some(0);
        let groups =
            [("/", None), ("/batch", Some(0)), ("/batch/a", Some(1)), ("/web", Some(0)), ("/web/x", Some(3))];
        let mut seen = observation(&groups);
        // 12 ended before it was sampled, 13 is another's.
        seen.tasks =
            [(11, 2), (12, 2), (13, 4), (14, 2), (15, 2)].map(|(pid, group)| task(pid, "job", group)).into();
        seen.host = HostView { steal_pct: Some(90.0), ..HostView::evenly(2, 75.0) };
        let at = |monotonic_ns, tasks: &[TaskSample]| Sample {
            monotonic_ns,
            tasks: tasks.into(),
            ..Sample::default()
        };
        let scope = Scope::parse(&["cgroup:/batch"]).unwrap();
        let found = window(&at(0, &before), &at(2_000_000_000, &after), &seen, &scope, |_| false);
        let told: Vec<_> = found
            .tasks
            .iter()
            .map(|task| (task.id.tid, task.in_scope, task.owner.as_deref(), task.waits))
            .collect();
        let known = [
            (11, true, Some("/batch/a"), None),
            (13, false, Some("/web"), Some(1_000_000_000)),
            (15, true, Some("/batch/a"), Some(500_000_000)),
        ];
        assert_eq!(told, known);
        // Of 3 s the scope had one; more was stolen than there is.
        assert_eq!((found.outside_ran_s, found.idle_s), (Some(2.0), Some(0.0)));
    }

    #[test]
    fn who_owns_a_task_is_its_container_its_machine_or_its_cgroup() {
        let mut seen = observation(&[("/", None), ("/a", Some(0)), ("/a/b", Some(1)), ("/c", Some(0))]);
        seen.containers.push(ContainerView::of("app", "docker"));
        seen.vms.push(VmView { name: "db".into(), pid: 1, vcpus: Vec::new(), group: None });
        let of = |container, vm, group| TaskView { container, vm, group, ..task(7, "job", 0) };
        let mut owners = Owners::default();
        let mut name =
            |task: TaskView, in_scope| owners.of(&task, &seen, in_scope).map(|owner| owner.to_string());
        // All are asked for twice: the second time the answer is remembered.
        for _ in 0..2 {
            for (task, in_scope, expected) in [
                (of(None, None, Some(2)), false, "/a"),
                (of(None, None, Some(2)), true, "/a/b"),
                (of(None, None, Some(3)), false, "/c"),
                (of(Some(0), None, Some(2)), false, "app"),
                (of(None, Some(0), Some(2)), false, "db"),
            ] {
                assert_eq!(name(task, in_scope).as_deref(), Some(expected));
            }
            assert_eq!(name(of(None, None, None), true), None);
            assert_eq!(name(TaskView { kernel_thread: true, ..of(None, None, Some(2)) }, false), None);
        }
    }

    #[test]
    fn what_ended_threads_of_the_scope_ran_is_told_from_what_others_did() {
        let ended = |group, cpu_pct| ExitedView { group, cpu_pct, ..ExitedView::default() };
        let mut seen =
            observation(&[("/", None), ("/batch", Some(0)), ("/batch/a", Some(1)), ("/web", Some(0))]);
        seen.host = HostView::evenly(2, 50.0);
        seen.exited = vec![ended(Some(2), 30.0), ended(Some(3), 20.0), ended(None, 5.0)];
        let at = |monotonic_ns| Sample { monotonic_ns, ..Sample::default() };
        let of = |scope: &str| {
            let scope = Scope::parse(&[scope]).unwrap();
            let window = window(&at(0), &at(2_000_000_000), &seen, &scope, |_| false);
            (window.outside_ran_s, window.ended_ran_s)
        };
        assert_eq!(of("cgroup:/batch"), (Some(1.4), 0.6));
        assert_eq!(of("cgroup:/batch/b"), (Some(2.0), 0.0));
        // What it was called is not known.
        assert_eq!(of("comm:.*"), (Some(2.0), 0.0));
    }

    #[test]
    fn containers_of_one_name_in_two_pods_are_two_owners() {
        let mut seen = observation(&[("/", None), ("/a/app", Some(0)), ("/b/app", Some(0))]);
        for (at, pod) in ["a", "b"].into_iter().enumerate() {
            seen.pods.push(PodView::of("shop", pod));
            seen.containers.push(ContainerView {
                id: pod.into(),
                pod: Some(at as u32),
                group: Some(at as u32 + 1),
                ..ContainerView::of("app", "containerd")
            });
        }
        let mut owners = Owners::default();
        let of = |at: u32| TaskView { container: Some(at), ..task(10 + at, "app", at + 1) };
        let mut name = |at| owners.of(&of(at), &seen, false).map(|owner| owner.to_string());
        assert_eq!((name(0), name(1)), (Some("shop/a/app".to_owned()), Some("shop/b/app".to_owned())));
    }
}
