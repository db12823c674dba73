//! The journal: without room, not needed, damaged, of another boot.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evenkeel_actuate::fake::Event;
use evenkeel_actuate::{ActuateError, KernelError, Verdict};
use evenkeel_base::{Knob, SchedAttr, Setting, Target};

use super::world::{all, batch, host, opened, plan};

#[test]
fn a_full_disk_means_no_change() {
    let (host, mut actuator) = opened();
    let (first, second) = (host.task(0), host.task(1));
    assert_eq!(actuator.set(&plan(vec![(first.clone(), batch(5))]), &all).applied(), 1);
    host.world.at(host.world.operations(), Event::DiskFull);
    let report = actuator.set(&plan(vec![(first.clone(), batch(6)), (second, batch(5))]), &all);
    for change in &report.changes {
        assert!(matches!(change.verdict, Verdict::Failed(KernelError::Io { .. })), "{change:?}");
    }
    assert_eq!(host.world.sched(host.tasks[1]), Some(Setting::Sched(SchedAttr::DEFAULT)));
    // what is journaled already can be toggled, and undone, without any room
    assert_eq!(actuator.set(&plan(vec![(first.clone(), batch(5))]), &all).in_force(), 1);
    assert!(actuator.set(&plan(vec![]), &all).back.is_clean());
    assert_eq!(actuator.set(&plan(vec![(first, batch(5))]), &all).applied(), 1);
    let report = actuator.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(host.world.sched(host.tasks[0]), Some(Setting::Sched(SchedAttr::DEFAULT)));
}

/// Who has been idle before is known, but its weight is another now, which the kernel forgets with `cpu.idle`.
#[test]
fn without_room_for_its_weight_no_group_is_made_idle() {
    let host = host();
    let found = [Setting::Weight(512), Setting::GroupIdle(false)];
    let group = host.world.add_group("/kubepods/burstable", false, &found);
    let target = Target::Group(group);
    let idle = plan(vec![(target.clone(), Setting::GroupIdle(true))]);
    let weight = || host.world.values()[&(target.clone(), Knob::Weight)].clone();
    let (mut actuator, _) = host.open().unwrap();
    assert_eq!(actuator.set(&idle, &all).applied(), 1);
    assert!(actuator.set(&plan(vec![]), &all).back.is_clean());
    // The kubelet's word on the pods of the moment.
    host.world.put(&target, &Setting::Weight(700));
    host.world.happen(Event::DiskFull);
    let verdict = actuator.set(&idle, &all).changes.remove(0).verdict;
    assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
    assert_eq!(weight(), Setting::Weight(700));
    host.world.calm();
    assert_eq!(actuator.set(&idle, &all).applied(), 1);
    drop(actuator);
    host.restore().unwrap();
    assert_eq!(weight(), Setting::Weight(700));
}

#[test]
fn toggling_needs_no_journal() {
    let (host, mut actuator) = opened();
    let target = host.task(0);
    let (one, two) = (plan(vec![(target.clone(), batch(5))]), plan(vec![(target, batch(6))]));
    actuator.set(&one, &all);
    actuator.set(&two, &all);
    let journal = host.world.journal();
    for _ in 0..5 {
        actuator.set(&one, &all);
        actuator.set(&plan(vec![]), &all);
        actuator.set(&two, &all);
    }
    assert_eq!(host.world.journal(), journal);
    assert!(actuator.close().is_clean());
    assert_eq!(host.world.journal(), None);
}

#[test]
fn a_damaged_journal_is_kept_aside_and_its_readable_part_put_back() {
    let host = host();
    let found = host.world.values();
    let changes = (0..4).map(|n| (host.task(n), batch(5))).collect();
    let (mut actuator, _) = host.open().unwrap();
    assert_eq!(actuator.set(&plan(changes), &all).applied(), 4);
    drop(actuator);
    let mut bytes = host.world.journal().unwrap();
    // a byte of the second task's original
    let lines: Vec<usize> = bytes.iter().enumerate().filter(|b| *b.1 == b'\n').map(|b| b.0).collect();
    bytes[lines[2] + 20] ^= 1;
    host.world.set_journal(Some(bytes.clone()));
    let Err(ActuateError::Damaged { line, recovery, .. }) = host.open() else { panic!("not refused") };
    assert_eq!((line, recovery.report.put_back.len()), (4, 3));
    assert!(recovery.report.notes.iter().any(|note| note.contains("damaged")), "{recovery:?}");
    assert_eq!(host.world.set_aside(), [bytes]);
    for number in [0, 2, 3] {
        let key = (host.task(number), Knob::Sched);
        assert_eq!(host.world.values()[&key], found[&key]);
    }
    assert!(host.open().is_ok(), "the next start is free to go on");
}

/// A value that the kernel does not take now, and the one that clears up is killed at any of its operations, or has no room.
#[test]
fn what_could_not_be_restored_of_a_damaged_journal_stays_journaled() {
    for event in [Event::Crash, Event::DiskFull] {
        for at in 0.. {
            let (host, mut actuator) = opened();
            let group = host.group(0);
            let ours = Setting::Weight(3);
            actuator.set(&plan(vec![(group.clone(), ours.clone()), (host.task(0), batch(5))]), &all);
            drop(actuator);
            let whole = host.world.journal().unwrap();
            host.world.set_journal(Some([&whole[..], b"garbage"].concat()));
            // Somebody made it idle: it reads as before, and has no weight now.
            host.world.put(&group, &Setting::GroupIdle(true));
            let clear_up = || catch_unwind(AssertUnwindSafe(|| drop(host.restore())));
            let reached = host.meanwhile(at, event.clone(), clear_up).is_some();
            host.world.calm();
            assert!(matches!(host.restore(), Ok(_) | Err(ActuateError::Damaged { .. })));
            host.world.put(&group, &Setting::GroupIdle(false));
            host.world.put(&group, &ours);
            assert!(host.restore().unwrap().report.is_clean());
            let now = host.world.values()[&(group, Knob::Weight)].clone();
            assert_eq!(now, Setting::Weight(512), "{event:?} at {at}");
            if !reached {
                break;
            }
        }
    }
}

#[test]
fn a_journal_of_another_boot_says_nothing() {
    let (host, mut actuator) = opened();
    let target = host.task(0);
    actuator.set(&plan(vec![(target, batch(5))]), &all);
    drop(actuator);
    host.world.reboot();
    let written = host.world.written().len();
    let recovery = host.restore().unwrap();
    assert!(recovery.left_behind && recovery.report.is_empty(), "{recovery:?}");
    assert!(recovery.report.notes[0].contains("earlier boot"));
    assert_eq!(host.world.written().len(), written);
    assert_eq!(host.world.journal(), None);
}
