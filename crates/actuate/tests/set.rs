//! What a change comes to: refused, in conflict, failed, or made; on a kernel in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod world;

use evenkeel_actuate::fake::{Event, FakeKernel};
use evenkeel_actuate::{KernelError, Verdict, restore};
use evenkeel_base::{Change, Nice, SchedAttr, SchedPolicy, Setting, Target};
use world::{Host, host, plan};

fn batch(nice: i32) -> Setting {
    Setting::Sched(SchedAttr { policy: SchedPolicy::Batch, nice: Nice::new(nice), ..SchedAttr::DEFAULT })
}

fn all(_: &Change) -> bool {
    true
}

/// Sets one task once, with an event at each operation of that in turn.
fn with_an_event_at_each_operation(
    event: impl Fn(&Target) -> Event,
    mut look: impl FnMut(&Host, &Target, Verdict, bool),
) {
    for at in 0.. {
        let host = host();
        let target = Target::Task(host.tasks[0]);
        let (mut actuator, _) = host.open().unwrap();
        let begin = host.world.operations();
        host.world.at(begin + at, event(&target));
        let mut report = actuator.set(&plan(vec![(target.clone(), batch(5))]), &all);
        if host.world.operations() <= begin + at {
            return;
        }
        look(&host, &target, report.changes.remove(0).verdict, report.back.is_empty());
        host.world.calm();
        actuator.close();
    }
}

#[test]
fn what_somebody_sets_just_before_the_write_is_left_as_it_is() {
    let mut conflicts = 0;
    with_an_event_at_each_operation(
        |target| Event::Meddle(target.clone(), batch(7)),
        |host, _, verdict, _| {
            if let Verdict::Conflict(found) = verdict {
                assert_eq!((found, host.world.sched(host.tasks[0])), (batch(7), Some(batch(7))));
                assert_eq!(host.world.written(), []);
                conflicts += 1;
            }
        },
    );
    assert!(conflicts > 0, "it was never in between");
}

#[test]
fn where_nothing_was_written_nothing_is_taken_back() {
    let mut failed = 0;
    with_an_event_at_each_operation(
        |_| Event::Fail(KernelError::Invalid("a try".to_owned())),
        |host, _, verdict, nothing_back| {
            if matches!(verdict, Verdict::Failed(_)) && host.world.written().is_empty() {
                assert!(nothing_back);
                failed += 1;
            }
        },
    );
    assert!(failed > 1, "{failed}");
}

#[test]
fn what_an_earlier_plan_set_does_not_stay_when_the_next_change_of_it_is_refused() {
    let host = host();
    let (mut actuator, _) = host.open().unwrap();
    let [one, other] = [0, 1].map(|n| Target::Task(host.tasks[n]));
    let both = |nice| plan(vec![(one.clone(), batch(nice)), (other.clone(), batch(nice))]);
    actuator.set(&both(5), &all);
    let report = actuator.set(&both(6), &|change| change.target != one);
    assert!(matches!(report.changes[0].verdict, Verdict::Refused(_)), "{report:?}");
    let sched = |n: usize| host.world.sched(host.tasks[n]).unwrap();
    assert_eq!((sched(0), sched(1)), (Setting::Sched(SchedAttr::DEFAULT), batch(6)));
    // Of two changes of one property the first is refused, and what the second one sets stays.
    let twice = plan(vec![(other.clone(), batch(7)), (other.clone(), batch(8))]);
    let report = actuator.set(&twice, &all);
    assert!(report.back.is_empty(), "{report:?}");
    assert!(matches!(report.changes[0].verdict, Verdict::Refused(_)) && report.applied() == 1, "{report:?}");
    assert_eq!(sched(1), batch(8));
    assert!(actuator.close().is_clean());
}

#[test]
fn what_is_journaled_is_set_although_nothing_more_can_be() {
    let host = host();
    let (mut actuator, _) = host.open().unwrap();
    let [one, other] = [0, 1].map(|n| Target::Task(host.tasks[n]));
    actuator.set(&plan(vec![(one.clone(), batch(5))]), &all);
    actuator.set(&plan(vec![]), &all);
    host.world.happen(Event::DiskFull);
    let report = actuator.set(&plan(vec![(one, batch(5)), (other, batch(5))]), &all);
    assert!(matches!(report.changes[0].verdict, Verdict::Applied(_)), "{report:?}");
    assert!(matches!(report.changes[1].verdict, Verdict::Failed(_)), "{report:?}");
    assert!(actuator.close().is_clean());
}

#[test]
fn while_nobody_is_born_nobody_is_looked_for() {
    let host = host();
    let (mut actuator, _) = host.open().unwrap();
    actuator.set(&plan(vec![(Target::Task(host.tasks[0]), batch(5))]), &all);
    actuator.amend(&[], &all);
    let before = host.world.operations();
    actuator.amend(&[], &all);
    assert_eq!(host.world.operations(), before);
    host.world.happen(Event::Fork { parent: 10, child: 100, orphan: false });
    actuator.amend(&[], &all);
    assert!(host.world.operations() > before);
    assert!(actuator.close().is_clean());
}

#[test]
fn without_a_state_directory_there_is_nothing_to_restore_and_one_that_cannot_be_looked_at_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = || FakeKernel(host().world);
    assert!(!restore(&directory.path().join("none"), kernel()).unwrap().left_behind);
    let file = directory.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    assert!(restore(&file.join("state"), kernel()).is_err());
}

#[test]
fn who_left_a_journal_behind_is_named() {
    let host = host();
    assert_eq!(host.restore().unwrap().pid, None);
    let (mut actuator, _) = host.open().unwrap();
    actuator.set(&plan(vec![(Target::Task(host.tasks[0]), batch(5))]), &all);
    drop(actuator);
    assert_eq!(host.restore().unwrap().pid, Some(std::process::id()));
}
