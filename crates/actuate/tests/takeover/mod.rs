//! A successor takes over what a killed process left in force: killed at every operation, and its successor at every
//! operation, everything can still be restored; what is left in peace stays.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evenkeel_actuate::fake::{Crashed, Event, FakeKernel, FakeMedium};
use evenkeel_actuate::journal::{seal, unseal};
use evenkeel_actuate::{Actuator, Left, Medium, Options, SetReport};
use evenkeel_base::{CpuSet, Plan, SchedAttr, Setting, Target};
use proptest::prelude::*;

use crate::world::{Host, batch, host, plan};

fn options() -> Options {
    Options { allow_realtime: true, ..Options::default() }
}

/// Two tasks and a cgroup, as a decision changes them.
fn kept(host: &Host) -> Plan {
    let task = |index: usize| host.task(index);
    let cpus: CpuSet = "0-1".parse().unwrap();
    plan(vec![(task(0), batch(5)), (task(1), Setting::Affinity(cpus)), (host.group(1), Setting::Weight(900))])
}

/// What else was tried before.
fn tried(host: &Host) -> Plan {
    plan(vec![(host.task(0), batch(3)), (host.task(4), batch(7)), (host.group(1), Setting::Weight(50))])
}

fn remember(actuator: &mut Actuator<FakeKernel>, plan: &Plan) {
    actuator.remember(&seal(plan)).unwrap();
}

/// A process that tries, keeps, holds out, and is killed where the world says so; at the end in any case.
fn first_life(host: &Host) {
    let (mut actuator, _) = host.open_with(options()).unwrap();
    actuator.set(&tried(host), &Host::in_scope);
    actuator.set(&kept(host), &Host::in_scope);
    remember(&mut actuator, &kept(host));
    actuator.set(&Plan::default(), &Host::in_scope);
    actuator.set(&kept(host), &Host::in_scope);
}

/// A successor: what was remembered goes on, anything else is restored first. What it set, and what it found of the decision.
fn successor(host: &Host) -> (Actuator<FakeKernel>, SetReport, Vec<Left>) {
    let mut medium = FakeMedium(host.world.clone());
    let remembered = medium.load_decision().unwrap();
    let remembered = remembered.and_then(|line| unseal::<Plan>(line.strip_suffix(b"\n")?));
    let Some(mut plan) = remembered else {
        let (actuator, _) = host.open_with(options()).unwrap();
        return (actuator, SetReport::default(), Vec::new());
    };
    let kernel = FakeKernel(host.world.clone());
    let mut actuator = Actuator::resume_on(kernel, Box::new(medium), options()).unwrap();
    let left = actuator.left(&plan.changes);
    let mut stays = left.iter();
    plan.changes.retain(|_| stays.next().is_some_and(Left::may_stay));
    let report = actuator.set(&plan, &Host::in_scope);
    (actuator, report, left)
}

fn until_killed(life: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(life)) {
        Ok(()) => false,
        Err(payload) => payload.downcast::<Crashed>().is_ok(),
    }
}

#[test]
fn killed_anywhere_and_its_successor_anywhere_everything_can_be_restored() {
    let operations = |first: &dyn Fn(&Host)| {
        let host = host();
        first(&host);
        host.world.operations()
    };
    let all = operations(&first_life);
    let mut second_kills = 0;
    for kill in 0..=all {
        let mut at = 0;
        loop {
            let host = host();
            let found = host.world.values();
            host.world.at(kill, Event::Crash);
            until_killed(|| first_life(&host));
            host.world.calm();
            host.world.at(host.world.operations() + at, Event::Crash);
            let killed = until_killed(|| drop(successor(&host)));
            host.world.calm();
            // A third one gets as far as it likes.
            let (actuator, ..) = successor(&host);
            drop(actuator);
            let recovery = host.restore().unwrap();
            assert!(recovery.report.is_clean(), "killed at {kill}, then {at}: {recovery:?}");
            assert_eq!(host.world.values(), found, "killed at {kill}, then {at}");
            assert_eq!((host.world.journal(), host.world.decision()), (None, None));
            if !killed {
                break;
            }
            second_kills += 1;
            // Every instant near the ends, every seventh between.
            at += if at < 12 || kill == all { 1 } else { 7 };
        }
    }
    assert!(second_kills > 500, "{second_kills}");
}

#[test]
fn what_is_left_in_peace_stays_without_being_written_and_can_still_be_restored() {
    let host = host();
    let found = host.world.values();
    first_life(&host);
    let (kept, written) = (host.world.values(), host.world.written().len());
    assert_ne!(kept, found);
    for life in 0..3 {
        let (actuator, report, left) = successor(&host);
        assert_eq!(left, [Left::InForce, Left::InForce, Left::InForce], "life {life}");
        assert!(report.changes.len() == 3 && report.problems().count() == 0, "{report:?}");
        assert_eq!(
            actuator.touched().filter(|(_, _, ours)| ours.is_some()).count(),
            3,
            "they are its own now"
        );
        drop(actuator);
        assert_eq!((host.world.values(), host.world.written().len()), (kept.clone(), written), "life {life}");
    }
    let (actuator, ..) = successor(&host);
    assert!(actuator.close().is_clean());
    assert_eq!(host.world.values(), found);
    assert_eq!(host.world.decision(), None, "nothing to take over any more");
}

#[test]
fn a_change_that_was_held_out_comes_back_and_what_was_on_trial_goes() {
    for (last, expected) in
        [(Plan::default(), Left::Original), (tried(&host()), Left::OnTrial(Setting::Weight(50)))]
    {
        let host = host();
        first_life(&host);
        let kept = host.world.values();
        let (mut actuator, _, _) = successor(&host);
        // The targets of a host made a moment ago are the same.
        actuator.set(&last, &Host::in_scope);
        assert_ne!(host.world.values(), kept);
        drop(actuator);
        let (_, _, left) = successor(&host);
        assert_eq!(left[2], expected);
        assert_eq!(host.world.values(), kept);
    }
}

#[test]
fn a_recycled_number_is_never_acted_upon() {
    let quiet = host();
    first_life(&quiet);
    let before = quiet.world.operations();
    drop(successor(&quiet));
    let mut hit = 0;
    for at in 0..quiet.world.operations() - before {
        let host = host();
        first_life(&host);
        let written = host.world.written().len();
        host.world.at(host.world.operations() + at, Event::Reuse(10));
        let (actuator, _, left) = successor(&host);
        hit += u32::from(left[0] == Left::Gone);
        let stranger = |target: &Target| matches!(target, Target::Task(id) if id.tid == 10 && id.start_time != host.tasks[0].start_time);
        for (target, to) in &host.world.written()[written..] {
            assert!(!stranger(target), "reused at {at}: wrote {to}");
        }
        drop(actuator);
        host.restore().unwrap();
        let values = host.world.values();
        let of_stranger: Vec<_> = values.iter().filter(|((target, _), _)| stranger(target)).collect();
        assert!(of_stranger.iter().any(|(_, value)| **value == Setting::Sched(SchedAttr::DEFAULT)), "{at}");
    }
    assert!(hit > 0, "no look saw it");
}

#[test]
fn somebody_elses_value_and_another_program_are_told_and_left_or_restored() {
    let host = host();
    first_life(&host);
    let mut kernel = FakeKernel(host.world.clone());
    // Another manager's weight; the second task runs another program.
    let group = host.group(1);
    host.world.put(&group, &Setting::Weight(333));
    host.world.run_another_program(11);
    let (actuator, report, left) = successor(&host);
    assert_eq!(left, [Left::InForce, Left::Exec, Left::Foreign(Setting::Weight(333))]);
    assert_eq!(report.back.conflicts.len(), 1, "{report:?}");
    let read = |kernel: &mut FakeKernel, target: &Target, knob| {
        evenkeel_actuate::Kernel::read(kernel, target, knob).unwrap()
    };
    assert_eq!(read(&mut kernel, &group, evenkeel_base::Knob::Weight), Setting::Weight(333));
    let affinity = read(&mut kernel, &host.task(1), evenkeel_base::Knob::Affinity);
    assert_eq!(affinity, Setting::Affinity("0-2".parse().unwrap()), "as it was found");
    assert_eq!(host.world.sched(host.tasks[0]), Some(batch(5)), "goes on");
    drop(actuator);
    // Which program it runs is not known: no reason to say that it is another one.
    host.world.change(10, |facts| facts.image = 0);
    let (mut actuator, _, left) = successor(&host);
    assert_eq!(left[0], Left::InForce);
    assert!(host.world.decision().is_some());
    actuator.forget().unwrap();
    assert_eq!(host.world.decision(), None);
}

#[test]
fn what_the_journal_does_not_name_is_not_set_again() {
    let host = host();
    first_life(&host);
    host.world.set_journal(None);
    let written = host.world.written().len();
    let (_, _, left) = successor(&host);
    assert_eq!(left, [Left::NotJournaled, Left::NotJournaled, Left::NotJournaled]);
    assert_eq!(host.world.written().len(), written);
}

proptest! {
    #![proptest_config(crate::config(64))]

    /// A decision with any bit changed is none.
    #[test]
    fn a_changed_bit_of_a_decision_is_seen(at in 0usize..400, bit in 0u8..8) {
        let mut line = seal(&kept(&host()));
        let at = at % (line.len() - 1);
        line[at] ^= 1 << bit;
        prop_assert_eq!(unseal::<Plan>(&line[..line.len() - 1]), None);
    }
}
