//! Whom scopes mean.

use evenkeel_base::{ContainerView, PodView, TaskId};

use super::*;
use crate::testing;

fn observation() -> Observation {
    let id = "0123456789abcdef".into();
    let container = ContainerView { id, ..ContainerView::of("web", "docker") };
    let groups = ["/", "/a", "/a/b", "/ab"].map(|path| (path, None));
    Observation { containers: vec![container], ..testing::observation(&groups) }
}

fn task(pid: u32, comm: &str, group: u32, container: Option<u32>) -> TaskView {
    TaskView { container, ..testing::task(pid, comm, group) }
}

fn has(scope: &[&str], task: &TaskView) -> bool {
    Scope::parse(scope).unwrap().has(task, &observation())
}

#[test]
fn each_kind_finds_its_tasks_and_no_others() {
    let t = task(7, "nginx", 2, Some(0));
    assert!(has(&["pid:7"], &t) && !has(&["pid:8"], &t));
    assert!(has(&["comm:^ngi"], &t) && !has(&["comm:^gin"], &t));
    assert!(has(&["cgroup:/a"], &t) && has(&["cgroup:/a/b/"], &t));
    assert!(!has(&["cgroup:/a"], &task(7, "x", 3, None)), "/ab is not below /a");
    assert!(has(&["cgroup:/"], &t));
    assert!(has(&["container:web"], &t) && has(&["container:012345"], &t) && !has(&["container:0123"], &t));
    assert!(has(&["all"], &t) && !has(&["all", "!comm:nginx"], &t));
}

#[test]
fn who_gets_the_number_of_a_process_that_ended_is_not_meant() {
    let began = |start_time| {
        let mut host = observation();
        let id = TaskId { tgid: 7, tid: 7, start_time };
        let thread = TaskId { tgid: 7, tid: 8, start_time: start_time + 5 };
        host.tasks = vec![task(6, "x", 1, None), TaskView::of(id, "nginx"), TaskView::of(thread, "worker")];
        host
    };
    let mut scope = Scope::parse(&["pid:7", "pid:9", "!pid:6"]).unwrap();
    let stated = format!("{scope:?}");
    scope.bind(|pid| (pid == 7).then_some(100));
    assert_eq!(format!("{scope:?}"), stated, "the configuration is the same");
    let has = |host: &Observation| host.tasks.iter().map(|task| scope.has(task, host)).collect::<Vec<_>>();
    assert_eq!(has(&began(100)), [false, true, true]);
    assert_eq!(has(&began(900)), [false, false, false], "another process");
    assert!(scope.has(&task(9, "late", 1, None), &began(100)), "it was not there yet");
}

#[test]
fn a_star_at_the_end_stands_for_pods_made_by_others() {
    let pod = |namespace: &str, name: &str| PodView {
        uid: format!("uid-{name}"),
        group: Some(1),
        ..PodView::of(namespace, name)
    };
    let pods = vec![pod("prod", "api-5d8"), pod("prod", "batch-x2"), pod("production", "api-77")];
    let host = Observation { pods, ..observation() };
    let found = |scope: &str| {
        let scope = Scope::parse(&[scope]).unwrap();
        let has = |at| scope.has(&TaskView { pod: Some(at), ..task(7, "sh", 1, None) }, &host);
        ([has(0), has(1), has(2)], scope.group(&host))
    };
    assert_eq!(found("pod:prod/*"), ([true, true, false], None));
    assert_eq!(found("pod:prod/api-*"), ([true, false, false], Some(1)));
    assert_eq!(found("pod:prod*/api-*"), ([true, false, true], None));
    assert_eq!(found("pod:prod/api"), ([false; 3], None));
    assert_eq!(found("pod:api-77"), ([false, false, true], Some(1)));
}

#[test]
fn nothing_named_means_containers_and_vms() {
    assert!(has(&[], &task(7, "x", 1, Some(0))));
    assert!(!has(&[], &task(7, "x", 1, None)));
    assert!(!has(&["!container:web"], &task(7, "x", 1, Some(0))));
}

#[test]
fn what_another_includes_is_left_out() {
    let t = task(7, "nginx", 2, Some(0));
    let mut scope = Scope::parse(&["cgroup:/a"]).unwrap();
    scope.leave_out(&Scope::parse(&["container:db"]).unwrap());
    assert!(scope.has(&t, &observation()));
    scope.leave_out(&Scope::parse(&["container:web"]).unwrap());
    assert!(!scope.has(&t, &observation()));
    assert_eq!(scope.texts(), ["cgroup:/a"], "as it was given");
}

#[test]
fn what_matches_nearly_everything_is_the_host_however_it_is_written() {
    let mut host = observation();
    host.tasks = (10..30).map(|pid| TaskView { cpu_pct: 1.0, ..task(pid, "work", 1, None) }).collect();
    host.tasks.push(TaskView { cpu_pct: 1.0, ..task(30, "other", 3, None) });
    let whole = |scope: &[&str]| Scope::parse(scope).unwrap().is_whole_host(&host);
    for scope in
        [&["all"][..], &["cgroup:/"], &["cgroup://"], &["pid:10", "cgroup:/"], &["cgroup:/", "!pid:10"]]
    {
        assert_eq!(whole(scope).as_deref(), Some("the scope is the whole host"), "{scope:?}");
    }
    for scope in [&["comm:.*"][..], &["comm:work"], &["cgroup:/a"], &["cgroup:/a", "!pid:10"]] {
        assert!(whole(scope).is_some(), "{scope:?}");
    }
    assert!(whole(&["comm:work"]).is_some_and(|why| why.contains("20 of the 21 tasks")));
    let nothing_out = |scope: &[&str]| Scope::parse(scope).unwrap().leaves_nothing_out();
    assert!(nothing_out(&["all"]) && nothing_out(&["cgroup:/", "pid:10"]));
    assert!(!nothing_out(&["all", "!pid:10"]) && !nothing_out(&["comm:.*"]) && !nothing_out(&[]));
    for scope in [&["comm:other"][..], &["pid:10"], &["cgroup:/a", "!pid:10", "!pid:11", "!pid:12"], &[]] {
        assert_eq!(whole(scope), None, "{scope:?}");
    }
    // One service that is busy next to many that sleep is not the host.
    for task in &mut host.tasks[..15] {
        task.cpu_pct = 0.0;
        task.comm = "asleep".into();
    }
    assert_eq!(Scope::parse(&["comm:work|other"]).unwrap().is_whole_host(&host), None);
}

#[test]
fn pid_1_and_kernel_threads_never_belong() {
    let mut kernel = task(50, "kworker", 0, None);
    kernel.kernel_thread = true;
    assert!(!has(&["all"], &kernel) && !has(&["pid:1"], &task(1, "init", 0, None)));
}

#[test]
fn a_scheduler_of_ours_never_belongs_and_others_do() {
    let child = |ppid, comm| TaskView { ppid, ..task(50, comm, 0, None) };
    let own = own_process();
    assert!(!has(&["all"], &child(own, "scx_lavd")) && !has(&["pid:50"], &child(own, "scx_lavd")));
    assert!(has(&["all"], &child(own - 1, "scx_lavd")) && has(&["all"], &child(own, "sleep")));
}

#[test]
fn mistakes_are_named() {
    for bad in [
        "",
        "web",
        "pid:x",
        "pid:0",
        "comm:(",
        "cgroup:a",
        "pod:ns/",
        "volume:x",
        "container:",
        "cgroup:",
        "comm:",
        "pod:",
        "vm:",
        "comm: ",
        "pod:/",
        "pod:/api",
        "!comm:",
        "!",
    ] {
        let error = Scope::parse(&[bad]).unwrap_err().to_string();
        assert!(error.contains("expected pid:N"), "{bad}: {error}");
    }
    let error = Scope::parse(&["comm:(web"]).unwrap_err().to_string();
    assert!(error.starts_with("scope \"comm:(web\": unclosed group; expected"), "{error}");
}
