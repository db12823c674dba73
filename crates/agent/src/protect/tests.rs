use super::*;
use crate::scope::Scope;
use crate::testing;

fn guarded(bound_ns: Option<u64>) -> LatencySlo {
    let protection =
        LatencyTarget { name: "comm:x".into(), wait_p99_ns: bound_ns, ..LatencyTarget::default() };
    let scope = Scope::parse(&["comm:x"]).unwrap();
    LatencySlo { tasks: 3, ..LatencySlo::new(Protected { scope, protection, slo: None }) }
}

fn latency_slos(guarded: LatencySlo) -> LatencySlos {
    let meter = Some(RunqLatProbe::means("a test".into()));
    LatencySlos { all: vec![guarded], meter, wait_factor: 2.0, ..LatencySlos::default() }
}

fn waits(ns: u64, count: u64) -> Vec<Option<Histogram>> {
    let mut histogram = Histogram::default();
    histogram.add_many(ns, count);
    vec![Some(histogram)]
}

#[test]
fn a_scope_that_is_not_followed_has_no_waits_to_show() {
    let mut latency_slos = latency_slos(guarded(None));
    assert_eq!(latency_slos.take(false), [None]);
    latency_slos.follow(&testing::observation(&[("/", None)]));
    assert_eq!(latency_slos.take(false), [Some(Histogram::default())]);
}

#[test]
fn means_are_not_held_against_waits_that_were_counted() {
    let mut latency_slos = latency_slos(guarded(None));
    latency_slos.follow(&testing::observation(&[("/", None)]));
    latency_slos.compare(true);
    assert_eq!(latency_slos.take(false), [Some(Histogram::default())], "all are means");
    // As if the first windows had been counted exactly.
    latency_slos.compared = Some(false);
    latency_slos.compare(true);
    assert_eq!(latency_slos.take(false), [None]);
    latency_slos.compare(false);
    assert_eq!(latency_slos.take(false), [Some(Histogram::default())]);
}

#[test]
fn that_waits_are_means_from_now_on_is_told_once_and_they_are_not_pooled_with_counted_ones() {
    let mut latency_slos = latency_slos(guarded(Some(2_000_000)));
    latency_slos.watched(&waits(1_000_000, 500), 1.0);
    let (scope, observation) = (Scope::parse(&["comm:y"]).unwrap(), testing::observation(&[("/", None)]));
    let mut notes = |watched: &[Option<Histogram>]| {
        let seen =
            Seen { observation: &observation, scope: &scope, hierarchies: None, default_slice_ns: None };
        latency_slos.on_window(seen, &mut Controls::none(false));
        let left = latency_slos.all[0].recent.len();
        latency_slos.watched(watched, 1.0);
        (latency_slos.take_notes().join(" "), left)
    };
    let (told, left) = notes(&waits(1_000_000, 100));
    assert!(told.contains("waits of services are means") && left == 0, "{told:?} {left}");
    assert_eq!(notes(&[None]), (String::new(), 1));
}

#[test]
fn settings_are_questioned_once_they_break_what_is_protected() {
    let mut latency_slos = latency_slos(guarded(Some(2_000_000)));
    let rest = Duration::from_secs(3600);
    assert_eq!(latency_slos.statuses()[0].state, PromiseState::Unknown);
    for _ in 0..RECENT {
        latency_slos.watched(&waits(1_000_000, 100), 1.0);
    }
    assert_eq!(latency_slos.statuses()[0].state, PromiseState::AtRisk, "these are means");
    assert_eq!(latency_slos.all[0].status(2.0, false).state, PromiseState::Kept);
    assert_eq!(latency_slos.objects(rest), None);
    for _ in 0..RECENT {
        latency_slos.watched(&waits(3_000_000, 100), 1.0);
    }
    let status = &latency_slos.statuses()[0];
    assert_eq!((status.state, status.waits, status.estimated), (PromiseState::Broken, 1000, true));
    assert!(latency_slos.objects(rest).unwrap().contains("comm:x"), "{status:?}");
    assert_eq!(latency_slos.objects(rest), None, "once is enough");
}

#[test]
fn few_waits_question_settings_only_where_chance_does_not_explain_them() {
    let mut latency_slos = latency_slos(guarded(Some(2_000_000)));
    latency_slos.watched(&waits(1_000_000, 30), 1.0);
    assert_eq!(latency_slos.statuses()[0].state, PromiseState::Unknown, "of 30 waits");
    (0..RECENT / 2).for_each(|_| latency_slos.watched(&waits(1_000_000, 1), 1.0));
    latency_slos.watched(&waits(9_000_000, 1), 1.0);
    assert_eq!(latency_slos.statuses()[0].state, PromiseState::Unknown, "one of 36 may be chance");
    assert_eq!(latency_slos.objects(Duration::ZERO), None);
    latency_slos.watched(&waits(9_000_000, 3), 1.0);
    assert_eq!(latency_slos.statuses()[0].state, PromiseState::Broken);
    assert!(latency_slos.objects(Duration::ZERO).unwrap().contains("waits 10."));
    latency_slos.all[0].tasks = 0;
    assert_eq!(latency_slos.statuses()[0].state, PromiseState::Waiting);
    assert_eq!(latency_slos.objects(Duration::ZERO), None, "nobody waits");
}

#[test]
fn one_that_waits_seldom_is_judged_over_a_longer_time() {
    let mut service = guarded(Some(2_000_000));
    let mut state = |ns, windows, count| {
        (0..windows).for_each(|_| service.watched(Histogram::of(&[(ns, count)]), 1.0));
        service.status(2.0, false)
    };
    assert_eq!(state(1_000_000, 49, 2).state, PromiseState::Unknown, "98 waits");
    let status = state(1_000_000, 31, 2);
    assert_eq!((status.state, status.waits), (PromiseState::Kept, 100), "as many as it takes");
    assert_eq!(state(1_000_000, LONGEST, 0).state, PromiseState::Unknown, "those of long ago say nothing");
    assert_eq!(state(1_000_000, RECENT, 500).waits, 5000, "no longer than it takes");
    // What was long ago is no reason to act.
    state(1_000_000, RECENT, 10);
    let mut slos = latency_slos(service);
    slos.watched(&waits(9_000_000, 500), 1.0);
    (0..RECENT).for_each(|_| slos.watched(&waits(1_000_000, 2), 1.0));
    assert_eq!((slos.statuses()[0].state, slos.objects(Duration::ZERO)), (PromiseState::Broken, None));
    assert_eq!(slos.lately().unwrap()[0].0.total(), 20);
}

#[test]
fn requests_judge_where_they_tell_and_waits_where_they_do_not() {
    let long_waits = |requests: Option<SloReader>| {
        let mut latency_slos = latency_slos(LatencySlo { requests, ..guarded(Some(2_000_000)) });
        (0..RECENT).for_each(|_| latency_slos.watched(&waits(9_000_000, 100), 1.0));
        if let Some(reader) = &mut latency_slos.all[0].requests {
            reader.update("comm:x");
        }
        let state = latency_slos.statuses()[0].state;
        (state, latency_slos.keep_requests()[0], latency_slos.objects(Duration::ZERO))
    };
    let reader = |counts| Some(crate::slo::reader_of(counts, 0.05));
    let (state, keeps, why) = long_waits(reader(&[(100.0, 1.0); 20]));
    assert_eq!(
        (state, keeps, why),
        (PromiseState::Kept, Some(true), None),
        "waits are long, requests are not"
    );
    let (state, keeps, why) = long_waits(reader(&[(100.0, 20.0); 20]));
    assert_eq!((state, keeps), (PromiseState::Broken, Some(false)));
    let why = why.unwrap();
    assert!(
        why.contains("of the requests to comm:x") && why.contains("20.00 % take more than 50 ms"),
        "{why}"
    );
    let (state, keeps, why) = long_waits(reader(&[(100.0, 6.0); 3]));
    assert_eq!((state, keeps, why), (PromiseState::Broken, Some(false), None), "by chance, perhaps");
    let (state, keeps, why) = long_waits(reader(&[(3.0, 0.0); 20]));
    assert_eq!((state, keeps), (PromiseState::Broken, None), "few requests");
    assert!(why.unwrap().contains("comm:x, which is protected, waits"));
    assert_eq!(long_waits(None).1, None);
}

#[test]
fn the_limit_in_force_is_the_bound_or_grows_from_what_was_found() {
    let mut plain = guarded(None);
    assert_eq!(plain.alarm_ns(2.0), None);
    plain.default_ns = Some(3_000_000);
    assert_eq!(plain.alarm_ns(2.0), Some(6_000_000));
    let mut bound = guarded(Some(2_000_000));
    assert_eq!(bound.alarm_ns(2.0), Some(2_000_000));
    bound.default_ns = Some(3_000_000);
    assert_eq!(bound.alarm_ns(2.0), Some(6_000_000), "found beyond the bound");
    // No worse than found, and no better than promised.
    let mut slos = latency_slos(bound);
    (0..RECENT).for_each(|_| slos.watched(&waits(4_000_000, 100), 1.0));
    let state = slos.statuses()[0].state;
    assert_eq!((state, slos.objects(Duration::ZERO)), (PromiseState::Broken, None));
}

#[test]
fn that_waits_of_short_lived_processes_are_missing_is_said_once() {
    let mut host = testing::observation(&[("/", None), ("/web", Some(0))]);
    host.tasks = vec![testing::task(7, "x", 1)];
    host.groups[1].cpu_pct = Some(80.0);
    let mut service = guarded(None);
    let mut said = |seen_pct: f64| {
        host.tasks[0].cpu_pct = seen_pct;
        service.unseen(&host)
    };
    assert_eq!([said(20.0), said(20.0), said(79.0), said(20.0), said(20.0)], [const { None }; 5]);
    let words = said(20.0).unwrap();
    assert!(words.contains("comm:x") && words.contains("use 75 % of its CPU"), "{words}");
    assert_eq!([said(20.0), said(79.0), said(20.0), said(20.0), said(20.0)], [const { None }; 5]);
}

#[test]
fn a_service_that_is_not_there_yet_is_said_to_be_awaited_once_next_to_one_that_is() {
    let mut latency_slos = latency_slos(guarded(None));
    let mut other = guarded(None);
    other.protected.scope = Scope::parse(&["comm:y"]).unwrap();
    other.protected.protection.name = "comm:y".into();
    latency_slos.all.push(other);
    let mut said = |comms: &[&str]| {
        let mut host = testing::observation(&[("/", None), ("/web", Some(0))]);
        host.tasks = (7..).zip(comms).map(|(pid, comm)| testing::task(pid, comm, 1)).collect();
        latency_slos.follow(&host);
        latency_slos.take_notes()
    };
    // Of none the decision says so.
    assert_eq!(said(&[]), [""; 0]);
    assert_eq!(said(&["x"]), ["no task belongs to comm:y yet: it is waited for"]);
    assert_eq!(
        [said(&["x"]), said(&["y"]), said(&["x"])],
        [const { Vec::<String>::new() }; 3],
        "it was there"
    );
}

#[test]
fn cpu_that_no_process_used_which_is_still_there_went_to_short_lived_ones() {
    let mut host = testing::observation(&[("/", None), ("/work", Some(0)), ("/api", Some(0))]);
    host.tasks = vec![testing::task(7, "job", 1), testing::task(8, "job", 1), testing::task(9, "api", 2)];
    let share = |host: &Observation| unseen_share(host, |task| task.comm == "api", None);
    assert_eq!(share(&host), None, "what its cgroup used is not known");
    host.groups[2].cpu_pct = Some(40.0);
    host.tasks[2].cpu_pct = 10.0;
    assert_eq!(share(&host), Some(0.75));
    host.tasks[2].cpu_pct = 41.0;
    assert_eq!(share(&host), Some(0.0));
    (host.groups[2].cpu_pct, host.tasks[2].cpu_pct) = (Some(4.0), 1.0);
    assert_eq!(share(&host), None, "hardly any");
    host.groups[1].cpu_pct = Some(100.0);
    let shared = unseen_share(&host, |task| task.id.tgid == 7, None);
    assert_eq!(shared, None, "the cgroup of both is not its own");
}
