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
fn a_process_is_shown_on_the_core_of_its_busiest_thread() {
    let threads = vec![task(1, 1, 2, 90.0), task(1, 2, 2, 1.0), task(1, 3, 2, 60.0)];
    let seen = observed(0.0, &[0.0], threads);
    let process = &View::new(&seen, |_| None, None).processes[0];
    assert_eq!((process.task.cpu, process.task.cpu_pct), (Some(1), 151.0));
}

#[test]
fn rates_are_short() {
    let of = |received_per_s, sent_per_s| transferred(NetworkRate { received_per_s, sent_per_s });
    assert_eq!(of(1_234_000.0, 30_400.0), "1.2M/30k");
    assert_eq!((of(0.0, 999.4), of(1e9, 123e9)), ("0/999".to_owned(), "1.0G/123G".to_owned()));
}
