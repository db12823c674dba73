//! From what was observed of the host to a measurement window.

use std::collections::{BTreeMap, HashMap};

use evenkeel_base::{Observation, TaskView};
use evenkeel_policy::window::{Owner, Rates, Summary};

use crate::scope::{Scope, is_own};

/// What an observation comes to. Tasks born in it count from their birth. What tasks of the scope that ended in it used and waited is
/// known where ended threads are counted by cgroup; else they are part of what is outside. Not among the tasks are those that are
/// judged by their waits alone, and evenkeel's own: what it takes to measure is nobody's loss.
pub fn summary(observation: &Observation, scope: &Scope, by_waits: impl Fn(&TaskView) -> bool) -> Summary {
    let mut ours_pct = 0.0;
    let mut tasks = BTreeMap::new();
    let mut owners = Owners::default();
    for task in &observation.tasks {
        let in_scope = scope.has(task, observation);
        if in_scope {
            ours_pct += task.cpu_pct;
        }
        if (task.cpu_pct > 0.0 || task.wait_pct.is_some_and(|pct| pct > 0.0))
            && !by_waits(task)
            && !is_own(task)
        {
            let owner = owners.of(task, observation, in_scope);
            let (got_pct, waited_pct, waits) = (task.cpu_pct, task.wait_pct, task.timeslices);
            tasks.insert(task.id, Rates { got_pct, waited_pct, waits, in_scope, owner });
        }
    }
    let host = &observation.host;
    let known = !host.per_cpu.is_empty();
    let taken_pct = host.busy_pct + host.steal_pct.unwrap_or_default();
    let ended = || observation.exited.iter().filter(|ended| scope.has_ended(ended, observation));
    let ended_pct: f64 = ended().map(|ended| ended.cpu_pct).sum();
    let living = Summary::of(observation.interval_s, tasks);
    Summary {
        got_pct: living.got_pct + ended_pct,
        waited_pct: living.waited_pct + ended().map(|ended| ended.wait_pct).sum::<f64>(),
        outside_pct: known.then(|| (host.busy_pct - ours_pct - ended_pct).max(0.0)),
        idle_pct: known.then(|| (100.0 * f64::from(host.cpus) - taken_pct).max(0.0)),
        ..living
    }
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
    use evenkeel_base::{ContainerView, ExitedView, HostView, PodView, TaskId, VmView};

    use super::*;
    use crate::testing::{observation, task};

    #[test]
    fn a_window_has_what_happened_in_it_and_what_is_not_known_is_left_out() {
        let mut seen = observation(&[("/", None), ("/batch", Some(0))]);
        let tasks = [
            (11, 25.0, Some(12.5)),
            // Waits are not known; slept; only waited; a service.
            (13, 25.0, None),
            (15, 0.0, Some(0.0)),
            (16, 0.0, Some(25.0)),
            (17, 50.0, Some(0.0)),
            // What it takes to measure is no one's to lose.
            (crate::scope::own_process(), 0.0, Some(1.0)),
        ];
        let view = |(pid, cpu_pct, wait_pct)| TaskView {
            cpu_pct,
            wait_pct,
            timeslices: Some(u64::from(pid)),
            ..task(pid, "job", 1)
        };
        seen.tasks = tasks.map(view).to_vec();
        seen.host = HostView { steal_pct: Some(20.0), ..HostView::evenly(2, 75.0) };
        let scope = Scope::parse(&["cgroup:/batch"]).unwrap();
        let of = |seen: &Observation| summary(seen, &scope, |task| task.id.tid == 17);
        let found = of(&seen);
        let told: Vec<_> =
            found.tasks.iter().map(|(id, task)| (id.tid, task.got_pct, task.waited_pct)).collect();
        assert_eq!(told, [tasks[0], tasks[1], tasks[3]]);
        let waits = |(id, task): (&TaskId, &Rates)| task.waits == Some(u64::from(id.tid)) && task.in_scope;
        assert!(found.tasks.iter().all(waits));
        assert!(found.tasks.values().all(|task| task.owner.as_deref() == Some("/batch")));
        // 150 % were used, of which the scope had 100, what is judged by its waits included; 20 % were stolen.
        assert_eq!(
            (found.seconds, found.outside_pct, found.idle_pct),
            (seen.interval_s, Some(50.0), Some(30.0))
        );
        seen.host.busy_pct = 50.0;
        assert_eq!(of(&seen).outside_pct, Some(0.0), "clocks differ");
        seen.host.per_cpu.clear();
        assert_eq!((of(&seen).outside_pct, of(&seen).idle_pct), (None, None));
    }

    #[test]
    fn others_are_no_part_of_the_scope() {
        let groups =
            [("/", None), ("/batch", Some(0)), ("/batch/a", Some(1)), ("/web", Some(0)), ("/web/x", Some(3))];
        let mut seen = observation(&groups);
        // 14 slept, and nothing is known of its waits.
        let tasks = [(11, 2, 25.0), (13, 4, 50.0), (14, 2, 0.0), (15, 2, 25.0)];
        let view = |(pid, group, cpu_pct)| TaskView { cpu_pct, wait_pct: None, ..task(pid, "job", group) };
        seen.tasks = tasks.map(view).into();
        seen.host = HostView { steal_pct: Some(90.0), ..HostView::evenly(2, 75.0) };
        let found = summary(&seen, &Scope::parse(&["cgroup:/batch"]).unwrap(), |_| false);
        let told: Vec<_> =
            found.tasks.iter().map(|(id, task)| (id.tid, task.in_scope, task.owner.as_deref())).collect();
        let known = [(11, true, Some("/batch/a")), (13, false, Some("/web")), (15, true, Some("/batch/a"))];
        assert_eq!(told, known);
        // Of 150 % the scope had 50; more was stolen than there is.
        assert_eq!((found.outside_pct, found.idle_pct), (Some(100.0), Some(0.0)));
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
        let of = |scope: &str| {
            let window = summary(&seen, &Scope::parse(&[scope]).unwrap(), |_| false);
            (window.outside_pct, window.got_pct)
        };
        assert_eq!(of("cgroup:/batch"), (Some(70.0), 30.0));
        assert_eq!(of("cgroup:/batch/b"), (Some(100.0), 0.0));
        // What it was called is not known.
        assert_eq!(of("comm:.*"), (Some(100.0), 0.0));
    }

    /// Jobs that end within windows are judged as others are: by what they got, less a price for their waits.
    #[test]
    fn waits_of_tasks_that_ended_count_as_their_cpu_does() {
        let mut seen = observation(&[("/", None), ("/batch", Some(0)), ("/web", Some(0))]);
        seen.tasks = vec![TaskView { cpu_pct: 50.0, wait_pct: Some(25.0), ..task(11, "job", 1) }];
        let ended = |group, wait_pct| ExitedView { group: Some(group), wait_pct, ..ExitedView::default() };
        seen.exited = vec![ended(1, 30.0), ended(2, 20.0)];
        let found = summary(&seen, &Scope::parse(&["cgroup:/batch"]).unwrap(), |_| false);
        assert_eq!((found.waited_pct, found.wait_per_ran()), (55.0, Some(0.5)));
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
