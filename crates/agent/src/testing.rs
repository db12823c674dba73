//! A small host, seen, for tests.

use evenkeel_base::{GroupView, Observation, TaskId, TaskView, Topology};

/// Two CPUs and these cgroups, by path and index of the parent.
pub fn observation(groups: &[(&str, Option<u32>)]) -> Observation {
    let groups = groups.iter().map(|(path, parent)| GroupView::of(*path, *parent, true)).collect();
    Observation { groups, ..Observation::of(Topology::synthetic(1, 1, 2, 1)) }
}

/// A process of one thread in a cgroup.
pub fn task(pid: u32, comm: &str, group: u32) -> TaskView {
    let id = TaskId { tgid: pid, tid: pid, start_time: 1 };
    TaskView { ppid: 1, group: Some(group), ..TaskView::of(id, comm) }
}
