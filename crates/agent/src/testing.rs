//! A small host, seen, for tests.

use std::sync::Arc;

use evenkeel_base::{GroupView, HostView, Observation, TaskId, TaskView, Topology};

/// Two CPUs and these cgroups, by path and index of the parent.
pub fn observation(groups: &[(&str, Option<u32>)]) -> Observation {
    let group = |&(path, parent): &(&str, Option<u32>)| GroupView {
        path: path.into(),
        parent,
        load_weight: None,
        raw_weight: None,
        v2: true,
        quota: None,
        cpuset: None,
        cpu_pct: None,
        throttled_pct: None,
        throttled_periods: None,
    };
    Observation {
        interval_s: 1.0,
        wall_ns: 0,
        topology: Arc::new(Topology::synthetic(1, 1, 2, 1)),
        host: HostView { cpus: 2, busy_pct: 0.0, steal_pct: None, per_cpu: vec![] },
        tasks: vec![],
        groups: groups.iter().map(group).collect(),
        containers: vec![],
        pods: vec![],
        vms: vec![],
        exited: vec![],
    }
}

/// A process of one thread in a cgroup.
pub fn task(pid: u32, comm: &str, group: u32) -> TaskView {
    TaskView {
        id: TaskId { tgid: pid, tid: pid, start_time: 1 },
        ppid: 1,
        comm: comm.into(),
        kernel_thread: false,
        cpu: None,
        affinity: None,
        sched: None,
        group: Some(group),
        container: None,
        pod: None,
        vm: None,
        cpu_pct: 0.0,
        wait_pct: None,
        voluntary_per_s: None,
        involuntary_per_s: None,
    }
}
