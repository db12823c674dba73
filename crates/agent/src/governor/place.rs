//! Which cgroup is governed, and where its use is counted.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use evenkeel_base::{GroupView, Observation, TaskView};
use evenkeel_linux::cgroupfs::{parse_cpu_stat, processes_below};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};

use crate::scope::Scope;

/// Where a cgroup's processes and CPU time are read.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub dir: PathBuf,
    /// Where CPU time is counted, v1; a separate hierarchy may not have the cgroup.
    pub usage: Option<PathBuf>,
}

impl Counted {
    pub fn of(path: &str, cpu: &Hierarchy, hierarchies: &Hierarchies) -> Self {
        let usage = hierarchies.cpuacct.as_ref().filter(|_| !cpu.v2);
        Self {
            dir: PathBuf::from(cpu.dir(path)),
            usage: usage.map(|h| PathBuf::from(h.dir(path)).join("cpuacct.usage")),
        }
    }

    pub fn cpu_ns(&self) -> Option<u64> {
        match &self.usage {
            Some(usage) => fs::read_to_string(usage).ok()?.trim().parse().ok(),
            None => parse_cpu_stat(&fs::read_to_string(self.dir.join("cpu.stat")).ok()?).ok()?.usage_ns,
        }
    }

    /// One whose threads are in several cgroups is listed in each.
    pub fn processes(&self) -> BTreeSet<u32> {
        processes_below(&self.dir).into_iter().collect()
    }
}

/// The cgroups that hold all of these tasks, from the root on; `None` where there are no such tasks.
fn holding(observation: &Observation, wanted: impl Fn(&TaskView) -> bool) -> Option<Vec<u32>> {
    let path_from_root = |index: u32| {
        let mut path: Vec<u32> = observation.path_to_root(index).collect();
        path.reverse();
        path
    };
    // Of one that ended meanwhile it is not known.
    let groups = observation.tasks.iter().filter(|task| wanted(task)).filter_map(|task| task.group);
    groups.map(path_from_root).reduce(|known, path| {
        known.into_iter().zip(path).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
    })
}

/// The innermost cgroup that holds services and background work. `Err` says why there is none.
pub(super) fn region_of<'a>(
    services: &[Scope],
    background: &Scope,
    observation: &'a Observation,
) -> Result<&'a GroupView, String> {
    let serves = |task: &TaskView| services.iter().any(|service| service.has(task, observation));
    if !observation.tasks.iter().any(serves) {
        return Err("no task of a service is there yet".to_owned());
    }
    holding(observation, |task| serves(task) || background.has(task, observation))
        .and_then(|path| observation.groups.get(*path.last()? as usize))
        .ok_or_else(|| "its services have no cgroup".to_owned())
}

/// The cgroup that holds the scope and no one else. `Err` says why there is none.
pub(super) fn group_of<'a>(scope: &Scope, observation: &'a Observation) -> Result<&'a GroupView, String> {
    let groups = &observation.groups;
    let parent = |index: u32| groups.get(index as usize).and_then(|group| group.parent);
    let mine = |task: &TaskView| scope.has(task, observation);
    let Some(common) = holding(observation, mine) else {
        return Err("nothing matches the scope yet".to_owned());
    };
    // The one that was named, if all are in it; else the innermost that holds all.
    let named = scope.group(observation).filter(|index| common.contains(index));
    let index = named.or_else(|| common.last().copied()).filter(|&index| parent(index).is_some());
    let Some(index) = index else {
        return Err("its tasks have no cgroup of their own; name one container, pod or cgroup".to_owned());
    };
    let Some(group) = groups.get(index as usize) else { return Err("its cgroup is gone".to_owned()) };
    let inside =
        |task: &&TaskView| task.group.is_some_and(|at| observation.path_to_root(at).any(|at| at == index));
    let strangers = observation.tasks.iter().filter(|task| !mine(task)).filter(inside).count();
    if strangers > 0 {
        return Err(format!(
            "its cgroup {} holds {strangers} tasks more than the scope; name one container, pod or cgroup",
            group.path
        ));
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// `/`, `/a`, `/a/b`, `/c`, and tasks in them.
    fn observation(tasks: &[(u32, &str, u32)]) -> Observation {
        Observation {
            tasks: tasks.iter().map(|&(pid, comm, group)| testing::task(pid, comm, group)).collect(),
            ..testing::observation(&[("/", None), ("/a", Some(0)), ("/a/b", Some(1)), ("/c", Some(0))])
        }
    }

    fn found(scope: &str, tasks: &[(u32, &str, u32)]) -> Result<String, String> {
        let scope = Scope::parse(&[scope]).unwrap();
        group_of(&scope, &observation(tasks)).map(|group| group.path.clone())
    }

    #[test]
    fn the_cgroup_that_holds_the_scope_alone_is_governed() {
        let tasks = [(7, "make", 2), (8, "cc", 1), (9, "sshd", 3), (10, "init", 0)];
        assert_eq!(found("cgroup:/a", &tasks), Ok("/a".into()));
        assert_eq!(found("cgroup:/a/b", &tasks), Ok("/a/b".into()));
        assert_eq!(found("cgroup:/a", &tasks[..1]), Ok("/a".into()), "named, though all are further in");
        assert_eq!(found("comm:make|cc", &tasks), Ok("/a".into()));
        assert_eq!(found("pid:9", &tasks), Ok("/c".into()));
    }

    #[test]
    fn services_and_background_work_are_held_together_by_the_innermost_cgroup_of_both() {
        let tasks = [(7, "redis", 2), (8, "cc", 1), (9, "sshd", 3)];
        let held = |service: &str, background: &str| {
            let (service, background) =
                (Scope::parse(&[service]).unwrap(), Scope::parse(&[background]).unwrap());
            region_of(&[service], &background, &observation(&tasks)).map(|group| group.path.clone())
        };
        assert_eq!(held("comm:redis", "comm:cc"), Ok("/a".into()));
        assert_eq!(held("comm:redis", "comm:sshd"), Ok("/".into()));
        assert_eq!(held("comm:redis", "comm:none"), Ok("/a/b".into()));
        assert!(held("comm:none", "comm:cc").unwrap_err().contains("no task of a service"));
    }

    #[test]
    fn processes_and_cpu_time_are_read_where_they_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        file("cgroup.procs", "7\n9\n");
        file("inner/cgroup.procs", "9\n11\n");
        file("cpu.stat", "usage_usec 5\n");
        file("cpuacct.usage", "6000\n");
        let mount =
            |v2| Hierarchy { mount_point: dir.path().to_str().unwrap().to_owned(), root: "/".to_owned(), v2 };
        let of = |v2: bool, cpuacct: Option<Hierarchy>| {
            let layout = evenkeel_linux::mountinfo::Layout::Hybrid;
            let (cpu, cpuset, memory, unified) = (None, None, None, None);
            Counted::of("/", &mount(v2), &Hierarchies { layout, cpu, cpuset, cpuacct, memory, unified })
        };
        let v2 = of(true, None);
        assert_eq!(v2.processes(), BTreeSet::from([7, 9, 11]));
        assert_eq!(v2.cpu_ns(), Some(5000));
        assert_eq!(of(false, Some(mount(false))).cpu_ns(), Some(6000));
        // A hybrid host may count CPU time elsewhere, too.
        assert_eq!(of(true, Some(mount(false))).cpu_ns(), Some(5000));
        file("cpuacct.usage", "none\n");
        assert_eq!(of(false, Some(mount(false))).cpu_ns(), None);
    }

    #[test]
    fn what_others_share_is_not_and_it_is_said_why() {
        let tasks = [(7, "make", 2), (8, "cc", 1), (9, "sshd", 3), (10, "init", 0)];
        for (scope, why) in [
            ("comm:cc", "/a holds 1 tasks more"),
            ("comm:make|sshd", "no cgroup of their own"),
            ("comm:init", "no cgroup of their own"),
            ("comm:nobody", "nothing matches"),
        ] {
            let error = found(scope, &tasks).unwrap_err();
            assert!(error.contains(why), "{scope}: {error}");
        }
    }
}
