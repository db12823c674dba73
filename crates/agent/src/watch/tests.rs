use evenkeel_actuate::Applied;
use evenkeel_base::{Histogram, HostView, SchedAttr, Setting, TaskView};

use super::*;
use crate::testing::{self, agent, agent_of_services};

/// Tasks of `/work` by number, each with its CPU and waits, and one of `/web`.
fn host(tasks: &[(u32, f64, Option<f64>)]) -> Observation {
    let of =
        |(pid, cpu_pct, wait_pct), group| TaskView { cpu_pct, wait_pct, ..testing::task(pid, "job", group) };
    let mine = tasks.iter().map(|task| of(*task, 1));
    let groups = testing::observation(&[("/", None), ("/work", Some(0)), ("/web", Some(0))]);
    Observation { tasks: mine.chain([of((90, 100.0, Some(100.0)), 2)]).collect(), ..groups }
}

fn basis(load_pct: f64, idle: bool) -> Basis {
    Basis { host: Some(BasisHost { load_pct, online: CpuSet::first_n(2) }), idle, in_vain: None }
}

/// A setting of task 7.
fn of_task(to: Setting) -> Plan {
    let target = Target::Task(testing::task(7, "job", 1).id);
    Plan { changes: vec![Change { target, to, why: String::new() }], ..Plan::default() }
}

fn of_group(path: &str) -> Plan {
    Plan { changes: vec![testing::change(path, Setting::Weight(1))], ..Plan::default() }
}

#[test]
fn a_load_has_drifted_that_differs_by_three_tenths_or_by_three_points_where_it_is_small() {
    assert_eq!([130.0, 130.1, 70.0, 69.9].map(|to| drifted(100.0, to)), [false, true, false, true]);
    assert_eq!([5.0, 5.1].map(|to| drifted(2.0, to)), [false, true]);
}

#[test]
fn where_there_was_nothing_to_do_waiting_gives_something_to_do() {
    let agent = agent("cgroup:/work", |_| {});
    let drifted =
        |idle, cpu_pct, wait_pct| agent.drift(&basis(100.0, idle), &host(&[(7, cpu_pct, wait_pct)]), REST);
    let why = |idle, cpu_pct, wait_pct| drifted(idle, cpu_pct, wait_pct).map(Drift::why);
    assert_eq!(why(true, 200.0, Some(50.0)), Some("tasks wait now"));
    assert_eq!(why(true, 140.0, None), Some("the load has changed"));
    let drifted = |idle, cpu_pct, wait_pct| drifted(idle, cpu_pct, wait_pct).is_some();
    assert_eq!([5.0, 5.1].map(|wait_pct| drifted(true, 100.0, Some(wait_pct))), [false, true]);
    assert!(!drifted(true, 200.0, Some(0.0)), "more load that does not wait");
    assert_eq!(
        [5.0, 5.1].map(|cpu_pct| drifted(true, cpu_pct, Some(50.0))),
        [false, true],
        "hardly any load"
    );
    // Where nothing is known of waits the load decides, and where a trial was held.
    assert_eq!([100.0, 140.0].map(|cpu_pct| drifted(true, cpu_pct, None)), [false, true]);
    assert_eq!([100.0, 140.0].map(|cpu_pct| drifted(false, cpu_pct, Some(50.0))), [false, true]);
    let unknown = Basis { host: None, idle: false, in_vain: None };
    assert_eq!(agent.drift(&unknown, &host(&[(7, 9.0, None)]), REST), None);
}

#[test]
fn tasks_that_settings_do_not_know_are_a_reason_once_they_have_a_fifth_of_the_load() {
    let mut agent = agent("cgroup:/work", |_| {});
    let nice = || Setting::Sched(SchedAttr::DEFAULT);
    let mut drifted = |plan: Plan, known: f64, strange: f64| {
        agent.plan = plan;
        let seen = host(&[(7, known, None), (8, strange, None)]);
        agent.drift(&basis(known + strange, false), &seen, REST) == Some(Drift::Strangers)
    };
    assert!(!drifted(of_task(nice()), 80.0, 20.0) && drifted(of_task(nice()), 79.9, 20.1));
    assert!(!drifted(of_task(nice()), 3.0, 1.0) && drifted(of_task(nice()), 2.9, 1.1), "a fifth of 5 points");
    assert!(!drifted(Plan::default(), 50.0, 50.0), "nothing is in force");
    assert!(!drifted(of_group("/work"), 50.0, 50.0), "it covers all that are in the cgroup");
    let moved = Plan { pull: vec![testing::task(7, "job", 1).id], ..Plan::default() };
    assert!(!drifted(moved.clone(), 80.0, 20.0) && drifted(moved, 79.9, 20.1));
}

#[test]
fn settings_that_pin_are_looked_at_again_where_cpus_are_unevenly_busy() {
    let mut agent = agent("cgroup:/work", |_| {});
    let mut drifted = |plan: Plan, busy: f64| {
        agent.plan = plan;
        let mut seen = host(&[(7, 50.0, None)]);
        seen.host = HostView::evenly(2, 50.0);
        seen.host.per_cpu[1].busy_pct = busy;
        agent.drift(&basis(50.0, false), &seen, REST) == Some(Drift::Uneven)
    };
    let pinned = || of_task(Setting::Affinity(CpuSet::single(0)));
    assert!(!drifted(pinned(), 80.0) && drifted(pinned(), 80.2) && drifted(pinned(), 19.0));
    assert!(!drifted(of_task(Setting::Sched(SchedAttr::DEFAULT)), 100.0), "these pin nobody");
}

/// Ten windows of a second in which the service waited so long, so often.
fn wait(agent: &mut Agent, ns: u64, times: u64) {
    let waits = [Some(Histogram::of(&[(ns, times)]))];
    (0..10).for_each(|_| agent.components.latency_slos.watched(&waits, 1.0));
}

#[test]
fn services_need_a_decision_where_they_wait_and_something_could_help() {
    let mut agent = agent_of_services();
    let mut seen = host(&[(7, 50.0, None)]);
    seen.tasks.push(testing::task(20, "api", 2));
    agent.components.latency_slos.meet(&seen);
    assert!(agent.services_need(&basis(50.0, true), &seen, REST).is_none(), "nothing is known of its waits");
    wait(&mut agent, 5_000_000, 500);
    let why = |idle, load| agent.services_need(&basis(load, idle), &seen, REST).map(Drift::why);
    assert_eq!(why(true, 50.0), Some("services wait too long"), "as much as before runs beside it");
    assert_eq!(why(true, 100.0), Some("the load has changed"));
    assert!(agent.services_need(&basis(50.0, false), &seen, REST).is_none(), "that was tried");
    assert!(agent.services_need(&basis(100.0, false), &seen, REST).is_some(), "the load is another one");
    seen.tasks[0].cpu_pct = 5.0;
    assert!(agent.services_need(&basis(5.0, true), &seen, REST).is_none(), "hardly any background work");
    seen.groups[2].throttled_periods = Some((1, 10));
    seen.tasks.retain(|task| task.comm == "api" || task.group == Some(1));
    assert!(agent.services_need(&basis(5.0, true), &seen, REST).is_some(), "its own quota may hold it back");
    wait(&mut agent, 1_000, 500);
    assert!(agent.services_need(&basis(5.0, true), &seen, REST).is_none(), "it does not wait");
    // What is in force covers cgroups, or tasks: then new ones are a reason.
    agent.plan = of_group("/work");
    let crowd = host(&[(7, 79.9, None), (8, 20.1, None)]);
    assert!(agent.services_need(&basis(100.0, false), &crowd, REST).is_none());
    agent.plan = of_task(Setting::Sched(SchedAttr::DEFAULT));
    assert!(agent.services_need(&basis(100.0, false), &crowd, REST).is_some());
    assert!(
        agent.services_need(&basis(100.0, false), &host(&[(7, 80.0, None), (8, 20.0, None)]), REST).is_none()
    );
}

/// Its background work uses 80 % of a CPU.
fn with_a_service_that_waits() -> (Agent, Observation) {
    let mut agent = agent_of_services();
    let mut seen = host(&[(7, 80.0, None)]);
    seen.tasks.push(testing::task(20, "api", 2));
    agent.components.latency_slos.meet(&seen);
    wait(&mut agent, 9_000_000, 100);
    (agent, seen)
}

/// A trial that could not decide is no verdict for good, and one a minute would cost the services.
#[test]
fn services_that_wait_are_tried_for_again_after_a_trial_in_vain() {
    let (mut agent, seen) = with_a_service_that_waits();
    let in_vain = |at| Basis { in_vain: Some(InVain { at, loads: [80].into() }), ..basis(80.0, false) };
    let (before, now) = (basis(80.0, false), in_vain(Instant::now()));
    let needs = |agent: &Agent, basis, patience| agent.drift(basis, &seen, patience);
    assert_eq!(needs(&agent, &before, Duration::ZERO), None, "no lever can act");
    assert_eq!(needs(&agent, &now, REST), None);
    assert_eq!(needs(&agent, &now, Duration::ZERO), Some(Drift::ServicesStillWait));
    // What work gets of a full host changes all the time: that is no reason for one trial after the other.
    let mut more = seen.clone();
    more.tasks[0].cpu_pct = 200.0;
    let why = [&now, &before].map(|basis| agent.drift(basis, &more, REST));
    assert_eq!(why, [None, Some(Drift::Load)]);
    wait(&mut agent, 1_000, 100);
    assert_eq!(agent.drift(&now, &seen, Duration::ZERO), None, "none waits too long");
    assert_eq!((longer(REST), longer(LONGEST_REST)), (2 * REST, LONGEST_REST));
}

/// Load that comes and goes would otherwise be a reason for a trial in vain each minute.
#[test]
fn a_load_that_was_tried_in_vain_is_none_that_has_changed() {
    let (agent, mut seen) = with_a_service_that_waits();
    let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
    let mut why = |at: Instant, idle, load_pct: f64, patience| {
        seen.tasks[0].cpu_pct = load_pct;
        let in_vain = Some(InVain { at, loads: [50, 200].into() });
        agent.drift(&Basis { in_vain, ..basis(50.0, idle) }, &seen, patience)
    };
    // Another load than at the last of them, but not another than at all.
    for load_pct in [36.0, 50.0, 64.0, 141.0, 250.0] {
        let why = [false, true].map(|idle| why(ago(61), idle, load_pct, 2 * REST));
        assert_eq!(why, [None, None], "{load_pct}");
    }
    assert_eq!(why(ago(121), false, 141.0, 2 * REST), Some(Drift::ServicesStillWait));
    // Work that was the reason may end before the trial does.
    let in_vain = InVain { at: Instant::now(), loads: [0].into() };
    assert!(in_vain.is_new(80.0) && !in_vain.held_at(80.0).is_new(80.0));
    // Between two that were tried lie others.
    for load_pct in [34.0, 66.0, 139.0, 261.0] {
        let why = [59, 61].map(|seconds| why(ago(seconds), false, load_pct, LONGEST_REST));
        assert_eq!(why, [None, Some(Drift::Load)], "{load_pct}");
    }
}

/// Some settings are two properties of a cgroup, limits that follow are written time and again, and promises with them.
#[test]
fn cgroups_that_came_are_counted_and_not_what_was_written() {
    let (weight, idle) = (Setting::Weight(1), Setting::GroupIdle(true));
    let outcome = |path: &str, to: &Setting, first: Option<bool>| ChangeOutcome {
        target: Target::Group(testing::group(path)),
        knob: to.knob(),
        to: to.clone(),
        verdict: first.map_or(Verdict::Unchanged, |first| {
            Verdict::Applied(Applied { from: to.clone(), now: to.clone(), first })
        }),
    };
    let before = of_group("/a");
    let now = Plan { changes: [before.changes.clone(), of_group("/b").changes].concat(), ..Plan::default() };
    let count = |changes: &[ChangeOutcome]| {
        newcomers(&before, &now, &SetReport { changes: changes.to_vec(), ..SetReport::default() })
    };
    let there = [outcome("/a", &weight, Some(false)), outcome("/a", &idle, None)];
    let promised = outcome("/promised", &weight, Some(true));
    let came = [outcome("/b", &weight, Some(true)), outcome("/b", &idle, Some(false)), promised];
    assert_eq!((count(&there), count(&came), count(&[&there[..], &came[..]].concat())), (0, 1, 1));
    // Made again under its name.
    assert_eq!(count(&[outcome("/a", &weight, Some(true)), came[0].clone()]), 2);
}
