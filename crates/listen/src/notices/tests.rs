use std::collections::BTreeSet;

use evenkeel_base::{ContainerView, TaskId, TaskView};

use super::*;

const S: u64 = 1_000_000_000;

fn course(kind: &'static str, states: &[(u32, bool, bool)]) -> Vec<(u32, Notice)> {
    let mut notices = Notices::default();
    let (mut second, mut told) = (0, Vec::new());
    for (seconds, bad, good) in states {
        for _ in 0..*seconds {
            second += 1;
            let now =
                BTreeMap::from([((kind, "x".to_owned()), (Seen { bad: *bad, good: *good }, String::new()))]);
            let at_ns = u64::from(second) * S;
            told.extend(notices.tell(now, 1.0, at_ns).into_iter().map(|notice| (second, notice)));
        }
    }
    told
}

#[test]
fn a_trial_that_stays_keeps_and_one_that_goes_back_to_the_baseline_takes_back() {
    let change = |name: &str| Plan {
        name: name.into(),
        pull: vec![TaskId { tgid: 1, tid: 1, start_time: 1 }],
        ..Plan::default()
    };
    let candidates = [change("batch"), Plan::default(), change("nice")];
    let after = [0, 1, 2].map(|winner| (kept(&candidates, winner), given_up(&candidates, winner)));
    assert_eq!(after, [(true, None), (false, Some("batch")), (true, None)]);
    // The present state is the baseline.
    let after = [0, 1].map(|winner| (kept(&candidates[1..], winner), given_up(&candidates[1..], winner)));
    assert_eq!(after, [(false, None), (true, None)]);
}

#[test]
fn one_fault_gives_one_notice_and_one_all_clear() {
    let told = course(
        "starved",
        &[(30, false, true), (200, true, false), (20, false, true), (100, true, false), (300, false, true)],
    );
    // Bad from the 31st second, told after 60; the 20 good seconds between are no all-clear.
    let at: Vec<_> = told.iter().map(|(at, notice)| (*at, notice.over)).collect();
    assert_eq!(at, [(90, false), (470, true)]);
    let times = |(_, notice): &(u32, Notice)| (notice.since_ns / S, notice.at_ns / S);
    assert_eq!(told.iter().map(times).collect::<Vec<_>>(), [(30, 90), (30, 470)]);
}

#[test]
fn what_passes_or_flickers_is_not_told() {
    assert!(course("starved", &[(59, true, false), (1, false, true), (59, true, false)]).is_empty());
    let flicker: Vec<_> = (0..100).flat_map(|_| [(5, true, false), (1, false, false)]).collect();
    assert!(course("guarantee", &flicker).is_empty());
    // Between the two bounds a notice stays.
    assert_eq!(course("guarantee", &[(20, true, false), (500, false, false)]).len(), 1);
}

#[test]
fn who_is_gone_is_clear_and_many_are_bounded() {
    let mut notices = Notices::default();
    let all: BTreeMap<_, _> = (0..500)
        .map(|n| (("starved", n.to_string()), (Seen { bad: true, good: false }, String::new())))
        .collect();
    let told: usize = (0..100).map(|_| notices.tell(all.clone(), 1.0, 0).len()).sum();
    assert_eq!(told, MOST);
    let told: usize = (0..200).map(|_| notices.tell(BTreeMap::new(), 1.0, 0).len()).sum();
    assert_eq!((told, notices.states.len()), (MOST, 0));
}

/// What is told while a host stays as it is, with the second; in each these tasks are background work.
fn told_of<'a>(
    seen: &Observation,
    seconds: u32,
    background: impl Fn(u32) -> &'a [bool],
) -> Vec<(u32, Notice)> {
    let (mut owners, mut notices) = (Owners::default(), Notices::default());
    let mut told = Vec::new();
    for second in 0..seconds {
        owners.let_wait(background(second).to_vec());
        owners.observe(seen);
        told.extend(notices.judge(seen, Some(&owners), &[]).into_iter().map(|notice| (second, notice)));
    }
    told
}

#[test]
fn of_two_of_one_name_the_one_that_starves_is_told() {
    let mut seen = labelled::host(2, 2);
    for (at, runtime) in (0..).zip(["docker", "podman"]) {
        seen.containers.push(ContainerView { group: Some(at), ..ContainerView::of("web", runtime) });
        seen.tasks[at as usize].container = Some(at);
    }
    (seen.interval_s, seen.host.busy_pct) = (1.0, 200.0);
    (seen.tasks[0].cpu_pct, seen.tasks[0].wait_pct) = (5.0, Some(90.0));
    let told = told_of(&seen, 90, |_| &[]).into_iter().map(|(_, one)| (one.kind, one.what, one.over));
    assert_eq!(told.collect::<Vec<_>>(), [("starved", "web".to_owned(), false)]);
}

#[test]
fn background_work_may_wait_and_be_held_back() {
    let mut seen = labelled::host(2, 3);
    (seen.interval_s, seen.host.busy_pct) = (1.0, 200.0);
    for task in &mut seen.tasks {
        (task.cpu_pct, task.wait_pct) = (5.0, Some(90.0));
    }
    (seen.tasks[1].wait_pct, seen.groups[1].throttled_pct) = (Some(60.0), Some(60.0));
    // What shares its cgroup with others does not stand for them.
    let id = TaskId { tgid: 4, tid: 4, start_time: 0 };
    seen.tasks.push(TaskView { group: Some(2), ..TaskView::of(id, "") });
    let told = |background: &[bool]| -> BTreeSet<_> {
        told_of(&seen, 90, |_| background).into_iter().map(|(_, one)| (one.kind, one.what)).collect()
    };
    let [starved, throttled, mixed] = [("starved", "/s0"), ("throttled", "/s1"), ("starved", "/s2")]
        .map(|(kind, who)| (kind, who.to_owned()));
    assert_eq!(told(&[]), [starved, mixed.clone(), throttled.clone()].into());
    assert_eq!(told(&[true, false, true, false]), [mixed.clone(), throttled].into());
    assert_eq!(told(&[true, true, false, false]), [mixed].into());
}

#[test]
fn who_becomes_background_work_is_no_more_starved_for_that_reason() {
    let mut seen = labelled::host(2, 1);
    (seen.interval_s, seen.host.busy_pct) = (1.0, 200.0);
    (seen.tasks[0].cpu_pct, seen.tasks[0].wait_pct) = (5.0, Some(90.0));
    let told: Vec<_> = told_of(&seen, 400, |second| if (100..250).contains(&second) { &[true] } else { &[] })
        .into_iter()
        .map(|(second, one)| (second, one.over, one.words))
        .collect();
    let [begun, over, again] = &told[..] else { panic!("{told:?}") };
    assert!(begun.0 < 100 && !begun.1 && begun.2.starts_with("waits "), "{told:?}");
    assert_eq!((over.1, &*over.2), (true, "it is background work, which may wait and be held back"));
    assert!((100..250).contains(&over.0) && again.0 >= 309 && !again.1, "{told:?}");
}

#[test]
fn what_the_loop_takes_back_is_told_once_and_clear_once_it_does_not_happen_again() {
    let mut notices = Notices::default();
    let stage = |name: &str, kept| Stage {
        name: name.into(),
        seconds: 60.0,
        kept,
        why: "it helps no more".into(),
        ..Stage::default()
    };
    let mut told = Vec::new();
    for second in 0..1000_u64 {
        match second {
            // Neither is a change in force that is taken back.
            5 => notices.learn(&Event::Stage(&stage("watch batch", None))),
            6 => notices.learn(&Event::Stage(&stage("trial batch", Some(false)))),
            10 | 200 => notices.learn(&Event::Stage(&stage("watch batch", Some(false)))),
            20 => notices.learn(&Event::Interference { target: "/a", what: "weight 300" }),
            _ => {}
        }
        let mut now = Judged::new();
        notices.judge_loop(&[], &mut now);
        told.extend(notices.tell(now, 1.0, second * S));
    }
    let told: Vec<String> = told.iter().map(|n| format!("{} {} {n}", n.at_ns / S, n.since_ns / S)).collect();
    assert_eq!(
        told,
        [
            "10 10 notice: reverted: batch: the change is taken back: it helps no more",
            "20 20 notice: interference: /a: somebody else set weight 300",
            "620 20 all clear: interference: /a: it did not happen again",
            "800 10 all clear: reverted: batch: it did not happen again",
        ]
    );
}

#[test]
fn a_promise_that_is_only_at_risk_is_clear_and_one_of_which_nothing_is_known_is_not() {
    let mut notices = Notices::default();
    let mut told = Vec::new();
    for second in 0..200_u64 {
        let state = match second {
            0..20 => PromiseState::Broken,
            20..100 => PromiseState::Unknown,
            _ => PromiseState::AtRisk,
        };
        let promise = GuaranteeStatus { name: "web".into(), state, ..GuaranteeStatus::default() };
        let mut now = Judged::new();
        notices.judge_loop(&[promise], &mut now);
        told.extend(notices.tell(now, 1.0, second * S).iter().map(|n| (n.at_ns / S, n.over)));
    }
    assert_eq!(told, [(9, false), (159, true)]);
}

#[test]
fn a_name_with_the_end_of_a_line_makes_one_line() {
    let what = "x\n<0>evenkeel: all is well".to_owned();
    let notice = Notice { kind: "starved", what, words: String::new(), over: true, since_ns: 0, at_ns: 0 };
    assert!(!notice.to_string().contains('\n'), "{notice}");
}
