//! Tasks that are born or renamed while a change is made: children, and threads that call `exec`.

use evenkeel_actuate::fake::Event;
use evenkeel_base::{CpuSet, Nice, SchedAttr, SchedPolicy, Setting, Target};

use super::world::{all, batch, host, opened, plan};
use super::{Luck, trial, uninterrupted};

/// A child is born while the change is made, and looking at it fails: it is looked at again.
#[test]
fn a_child_that_could_not_be_looked_at_is_looked_at_again() {
    let plans = [vec![(2, Setting::Affinity(CpuSet::single(0)))]];
    trial(&plans, &[(19, Luck::Fail), (10, Luck::Fork(2, false))]).unwrap();
    for fork in 0..40 {
        for fail in 0..60 {
            for orphan in [false, true] {
                uninterrupted(&plans, &[(fail, Luck::Fail), (fork, Luck::Fork(2, orphan))]).unwrap();
            }
        }
    }
}

/// A thread takes its main thread's place while that is being changed, looked at or put back.
#[test]
fn an_exec_at_any_operation_leaves_nothing_of_ours() {
    let slice = |nice| {
        Setting::Sched(SchedAttr {
            policy: SchedPolicy::Batch,
            nice: Nice::new(nice),
            slice_ns: Some(100_000_000),
            ..SchedAttr::DEFAULT
        })
    };
    let affinity = Setting::Affinity(CpuSet::single(0));
    let cases = [
        vec![vec![(1, batch(0))], vec![(3, batch(1)), (0, batch(2)), (2, batch(0))]],
        vec![vec![(0, batch(0))], vec![(3, slice(0)), (0, batch(-1))]],
        vec![vec![(3, slice(0)), (1, batch(0))], vec![(0, batch(0))]],
        vec![vec![(0, batch(0)), (3, affinity)]],
    ];
    for plans in &cases {
        for at in 0..80 {
            uninterrupted(plans, &[(at, Luck::Exec)]).unwrap();
        }
        for at in (3..80).step_by(8) {
            trial(plans, &[(at, Luck::Exec)]).unwrap();
        }
    }
}

/// A thread takes its main thread's place, and looking at either fails: it is looked at again.
#[test]
fn an_exec_that_could_not_be_looked_at_is_looked_at_again() {
    let affinity = Setting::Affinity(CpuSet::single(0));
    let plans = [vec![(2, batch(0))], vec![(3, affinity), (3, batch(0)), (8, batch(0))]];
    for exec in 0..70 {
        for fail in exec + 1..exec + 20 {
            uninterrupted(&plans, &[(fail, Luck::Fail), (exec, Luck::Exec)])
                .unwrap_or_else(|error| panic!("exec at {exec}, failure at {fail}: {error}"));
        }
    }
}

/// A child of the main thread whose place another thread takes: it has what the main thread had.
#[test]
fn a_child_of_a_main_thread_that_is_replaced_goes_back() {
    let affinity = |cpus: &str| Setting::Affinity(cpus.parse().unwrap());
    let plans = [vec![(3, affinity("0-1")), (0, affinity("0")), (1, batch(0))]];
    for exec in 0..60 {
        for fork in u64::saturating_sub(exec, 12)..exec + 3 {
            uninterrupted(&plans, &[(exec, Luck::Exec), (fork, Luck::Fork(0, false))])
                .unwrap_or_else(|error| panic!("exec at {exec}, fork at {fork}: {error}"));
        }
    }
    for exec in (20..60).step_by(6) {
        trial(&plans, &[(exec, Luck::Exec), (exec - 5, Luck::Fork(0, false))]).unwrap();
    }
}

/// A child of one made by CLONE_PARENT, which is back already when the crash comes and in no journal.
#[test]
fn a_child_of_one_made_beside_goes_back_after_a_crash() {
    let plans = [vec![(2, batch(0))], vec![(0, batch(0))]];
    for at in 8..24 {
        trial(&plans, &[(at, Luck::ForkBeside(2)), (at, Luck::ForkOfChild)]).unwrap();
    }
}

/// 14 is a child of 11 and older than its change: what it passes on is its own, whatever 11 has been given.
#[test]
fn what_an_untuned_parent_passes_on_is_not_its_parents() {
    let affinity = Setting::Affinity("0-3".parse().unwrap());
    let plans = [vec![(0, batch(0)), (1, affinity), (4, batch(0))]];
    for at in 0..60 {
        trial(&plans, &[(at, Luck::Fork(4, false))]).unwrap();
    }
}

#[test]
fn an_orphan_that_a_plan_made_ordinary_gets_what_its_process_group_had() {
    // 14 was reniced, 11 confined: the plan makes both as every task is.
    let everywhere = Setting::Affinity("0-3".parse().unwrap());
    for (number, to) in [(4, Setting::Sched(SchedAttr::DEFAULT)), (1, everywhere)] {
        let plans = vec![vec![(number, to)]];
        for at in 0..40 {
            uninterrupted(&plans, &[(at, Luck::Fork(number, true))]).unwrap();
            trial(&plans, &[(at, Luck::Fork(number, true))]).unwrap();
        }
    }
}

#[test]
fn what_a_child_passes_on_while_it_is_put_back_goes_back_too() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        actuator.set(&plan(vec![(host.task(0), batch(5))]), &all);
        host.world.happen(Event::Fork { parent: 10, child: 100, orphan: false });
        let fork = Event::Fork { parent: 100, child: 101, orphan: false };
        if host.meanwhile(at, fork, || actuator.close()).is_none() {
            return;
        }
        assert!(host.world.values().values().all(|value| *value != batch(5)), "fork at {at}");
    }
}

#[test]
fn a_doubt_is_said_once_however_often_is_looked() {
    let (host, mut actuator) = opened();
    actuator.set(&plan(vec![(host.task(2), batch(5))]), &all);
    host.world.happen(Event::ForkBeside { maker: 12, child: 100 });
    host.world.run_another_program(100);
    host.world.change(12, |facts| facts.busy = true);
    let notes = actuator.close().notes;
    assert_eq!(notes.iter().filter(|note| note.contains("CLONE_PARENT")).count(), 1, "{notes:?}");
}

#[test]
fn a_plan_that_names_a_main_thread_whose_place_is_taken_keeps_nothing_of_ours() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        let [main, thread] = [0, 3].map(|n| host.task(n));
        actuator.set(&plan(vec![(thread, batch(5))]), &all);
        let next = plan(vec![(main, batch(6))]);
        if host.meanwhile(at, Event::Exec(super::THREAD), || actuator.set(&next, &all)).is_none() {
            return;
        }
        actuator.close();
        let left = |value: &&Setting| [batch(5), batch(6)].contains(value);
        assert_eq!(host.world.values().values().find(left), None, "exec at {at}");
    }
}

#[test]
fn who_is_orphaned_is_told_by_how_the_tuned_task_was_found() {
    // Twice the same task, one property after the other; an orphan has both.
    let host = host();
    let found = host.world.values();
    let target = host.task(1);
    let affinity = Setting::Affinity(CpuSet::single(0));
    let (mut actuator, _) = host.open().unwrap();
    actuator.set(&plan(vec![(target.clone(), batch(5))]), &all);
    let both = plan(vec![(target.clone(), batch(5)), (target.clone(), affinity)]);
    actuator.set(&both, &all);
    // 14 was reniced, and is made what every task is: then its process group tells.
    let reniced = host.task(4);
    actuator.amend(&plan(vec![(reniced.clone(), Setting::Sched(SchedAttr::DEFAULT))]).changes, &all);
    host.world.happen(Event::Fork { parent: 11, child: 100, orphan: true });
    host.world.happen(Event::Fork { parent: 14, child: 101, orphan: true });
    assert!(actuator.close().is_clean());
    let now = host.world.values();
    for (tid, parent) in [(100, target), (101, reniced)] {
        let child = now.iter().filter(|((t, _), _)| matches!(t, Target::Task(id) if id.tid == tid));
        for ((_, knob), value) in child {
            assert_eq!(*value, found[&(parent.clone(), *knob)], "{tid}");
        }
    }
}
