//! Rows and sums of made-up hosts.

use evenkeel_base::{CpuQuota, Limit, Topology};

use super::*;

fn group(path: &str, parent: Option<u32>, throttled_pct: f64) -> GroupView {
    let quota = CpuQuota { quota_usec: Limit::Value(50_000), period_usec: 100_000, burst_usec: 0 };
    GroupView {
        path: path.into(),
        parent,
        load_weight: Some(1024),
        raw_weight: Some(100),
        v2: true,
        quota: parent.map(|_| quota),
        throttled_pct: parent.map(|_| throttled_pct),
        ..GroupView::default()
    }
}

fn task(tgid: u32, tid: u32, group: u32, cpu_pct: f64) -> TaskView {
    TaskView {
        id: TaskId { tgid, tid, start_time: 7 },
        ppid: 1,
        comm: "web".into(),
        cpu: Some(tid),
        group: Some(group),
        cpu_pct,
        wait_pct: Some(cpu_pct),
        ..TaskView::default()
    }
}

/// A pod's group, with these groups in it.
fn observed(pod: f64, inside: &[f64], tasks: Vec<TaskView>) -> Observation {
    let mut groups = vec![group("/", None, 0.0), group("/pod", Some(0), pod)];
    groups.extend(inside.iter().map(|pct| group("/pod/c", Some(1), *pct)));
    let pod = PodView { uid: "uid".into(), name: "pod".into(), group: Some(1), ..PodView::default() };
    Observation { tasks, groups, pods: vec![pod], ..Observation::of(Topology::synthetic(1, 1, 2, 1)) }
}

#[test]
fn a_quota_further_up_holds_back_too() {
    let of = |pod, own| {
        let seen = observed(pod, &[own], vec![task(1, 1, 2, 30.0)]);
        View::new(&seen, |_| None, None).processes[0].throttled_pct
    };
    assert_eq!((of(0.0, 0.0), of(0.0, 40.0)), (Some(0.0), Some(40.0)));
    // The pod's quota holds back whoever is in it: how much of that is the task's is not known, and not 0.
    assert_eq!((of(40.0, 0.0), of(40.0, 40.0)), (None, None));
}

#[test]
fn a_pod_is_held_back_by_the_quotas_of_its_containers() {
    let throttled = |pod, inside: &[f64]| {
        View::new(&observed(pod, inside, Vec::new()), |_| None, None).pods()[0].throttled_pct
    };
    assert_eq!(throttled(0.0, &[45.0, 5.0]), Some(50.0));
    assert_eq!((throttled(60.0, &[45.0]), throttled(0.0, &[])), (Some(60.0), Some(0.0)));
}

#[test]
fn what_a_container_inside_another_used_is_counted_once() {
    let counted = |path: &str, parent, cpu_pct| GroupView { cpu_pct, ..group(path, parent, 0.0) };
    let groups = vec![
        counted("/", None, None),
        counted("/docker/node", Some(0), Some(120.0)),
        counted("/docker/node/init", Some(1), Some(20.0)),
        counted("/docker/node/docker/web", Some(1), Some(90.0)),
        counted("/docker/node/docker/web/docker/db", Some(3), Some(15.0)),
    ];
    let owned = |name: &str, group| ContainerView { group: Some(group), ..ContainerView::of(name, "docker") };
    let within = |tgid, group, container, cpu_pct| TaskView {
        container: Some(container),
        ..task(tgid, tgid, group, cpu_pct)
    };
    // Of the innermost one what ended is in the count alone.
    let tasks = vec![within(1, 2, 0, 20.0), within(2, 3, 1, 75.0), within(3, 4, 2, 5.0)];
    let containers = vec![owned("node", 1), owned("web", 3), owned("db", 4)];
    let seen = Observation { tasks, groups, containers, ..Observation::of(Topology::synthetic(1, 1, 2, 1)) };
    let sums: Vec<_> = View::new(&seen, |_| None, None)
        .containers()
        .into_iter()
        .map(|sum| (sum.name, sum.cpu_pct))
        .collect();
    assert_eq!(sums, [("node".into(), 30.0), ("web".into(), 75.0), ("db".to_owned(), 15.0)]);
}

#[test]
fn a_process_is_shown_on_the_core_of_its_busiest_thread() {
    let threads = vec![task(1, 1, 2, 90.0), task(1, 2, 2, 1.0), task(1, 3, 2, 60.0)];
    let seen = observed(0.0, &[0.0], threads);
    let process = &View::new(&seen, |_| None, None).processes[0];
    assert_eq!((process.task.cpu, process.task.cpu_pct), (Some(1), 151.0));
}

#[test]
fn a_process_has_the_name_of_its_main_thread_also_where_others_have_lower_numbers() {
    let worker = TaskView { comm: "worker".into(), ..task(32_700, 310, 2, 5.0) };
    let seen = observed(0.0, &[0.0], vec![worker, task(32_700, 32_700, 2, 1.0)]);
    let process = &View::new(&seen, |_| None, None).processes[0];
    assert_eq!((process.task.comm.as_str(), process.task.id.tid, process.threads), ("web", 32_700, 2));
    assert_eq!((process.task.cpu, process.task.cpu_pct), (Some(310), 6.0), "its busiest thread's core");
    // Where the main thread has ended, another stands for the process.
    let seen = observed(0.0, &[0.0], vec![task(7, 9, 2, 5.0)]);
    assert_eq!(View::new(&seen, |_| None, None).processes[0].task.id.tid, 9);
}

#[test]
fn rates_are_short() {
    let of = |received_per_s, sent_per_s| transferred(NetworkRate { received_per_s, sent_per_s });
    assert_eq!(of(1_234_000.0, 30_400.0), "1.2M/30k");
    assert_eq!((of(0.0, 999.4), of(1e9, 123e9)), ("0/999".to_owned(), "1.0G/123G".to_owned()));
}

#[test]
fn a_small_quota_is_not_none() {
    let words = |quota_usec| {
        let quota = Some(CpuQuota { quota_usec: Limit::Value(quota_usec), ..CpuQuota::UNLIMITED });
        limits(Some(&GroupView { quota, ..GroupView::default() }))
    };
    assert_eq!(
        [400, 12_500, 50_000, 33_333].map(words),
        ["quota 0.4 %", "quota 12.5 %", "quota 50 %", "quota 33.3 %"]
    );
}
