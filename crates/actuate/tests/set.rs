//! What a change comes to: refused, in conflict, failed, or made; on a kernel in memory.

mod world;

use evenkeel_actuate::fake::{Event, FakeKernel};
use evenkeel_actuate::{Actuator, Kernel, KernelError, Left, Verdict, all_cpus, restore};
use evenkeel_base::{
    CpuQuota, CpuSet, GroupRef, Knob, Limit, NetKnob, Plan, SchedAttr, SchedPolicy, Setting, Target, TaskId,
};
use world::{Host, LINK, THREAD, all, batch, host, opened, plan};

fn not_now() -> Event {
    Event::Fail(KernelError::Denied("not now".to_owned()))
}

/// Sets one task once, with an event at each operation of that in turn.
fn with_an_event_at_each_operation(
    event: impl Fn(&Target) -> Event,
    mut look: impl FnMut(&Host, &Target, Verdict, bool),
) {
    for at in 0.. {
        let (host, mut actuator) = opened();
        let target = host.task(0);
        let set = plan(vec![(target.clone(), batch(5))]);
        let report = host.meanwhile(at, event(&target), || actuator.set(&set, &all));
        let Some(mut report) = report else { return };
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
            if let Verdict::Applied(applied) = &verdict {
                assert_eq!(applied.now, batch(5), "what is there is looked at after the write");
            }
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
    let (host, mut actuator) = opened();
    let [one, other] = [0, 1].map(|n| host.task(n));
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
    let (host, mut actuator) = opened();
    let [one, other] = [0, 1].map(|n| host.task(n));
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
    let (host, mut actuator) = opened();
    actuator.set(&plan(vec![(host.task(0), batch(5))]), &all);
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
    actuator.set(&plan(vec![(host.task(0), batch(5))]), &all);
    drop(actuator);
    assert_eq!(host.restore().unwrap().pid, Some(std::process::id()));
}

#[test]
fn a_policy_that_a_task_has_from_us_is_no_obstacle_and_one_that_it_has_not_is() {
    let (host, mut actuator) = opened();
    let [one, other] = [0, 1].map(|n| host.task(n));
    let realtime = |policy: SchedPolicy, rt_priority: u8| {
        Setting::Sched(SchedAttr { policy, rt_priority, ..SchedAttr::DEFAULT })
    };
    for priority in [10, 20] {
        let to = realtime(SchedPolicy::Fifo, priority);
        assert_eq!(
            actuator.set(&plan(vec![(one.clone(), to), (other.clone(), batch(5))]), &all).in_force(),
            2
        );
    }
    // Somebody else's urgency is none of ours, whatever was ours before.
    host.world.put(&other, &realtime(SchedPolicy::Rr, 10));
    let report = actuator.amend(&plan(vec![(other, batch(6))]).changes, &all);
    assert!(matches!(report.changes[0].verdict, Verdict::Refused(_)), "{report:?}");
    actuator.close();
    assert_eq!(host.world.sched(host.tasks[0]), Some(Setting::Sched(SchedAttr::DEFAULT)));
}

#[test]
fn a_slice_is_set_and_an_idle_group_keeps_nothing_else_of_an_earlier_plan() {
    let (host, mut actuator) = opened();
    let found = host.world.values();
    let slice = SchedAttr { slice_ns: Some(3_000_000), ..SchedAttr::DEFAULT };
    assert_eq!(actuator.set(&plan(vec![(host.task(0), Setting::Sched(slice))]), &all).applied(), 1);
    let group = host.group(0);
    let quota = Setting::Quota(CpuQuota { quota_usec: Limit::Value(20_000), ..CpuQuota::UNLIMITED });
    let both = plan(vec![(group.clone(), Setting::Weight(50)), (group.clone(), quota)]);
    assert_eq!(actuator.set(&both, &all).applied(), 2);
    let report = actuator.set(&plan(vec![(group.clone(), Setting::GroupIdle(true))]), &all);
    assert!(report.back.is_clean() && report.applied() == 1, "an idle group takes no weight: {report:?}");
    let quota = (group, Knob::Quota);
    assert_eq!(host.world.values()[&quota], found[&quota]);
    assert!(actuator.close().is_clean());
    assert_eq!(host.world.values(), found);
}

/// The link is renamed, and another one gets its name, at each operation of a change in turn.
#[test]
fn a_link_that_takes_the_name_of_another_is_not_taken_for_it() {
    let mut left = 0;
    for at in 0.. {
        let host = host();
        let other = NetKnob::RpsCpus { link: "other0".into(), queue: 0 };
        host.world.add_net(&other, "1");
        let found = host.world.values();
        let (mut actuator, _) = host.open().unwrap();
        let begin = host.world.operations();
        for (from, to) in [(LINK, "lan0"), ("other0", LINK)] {
            host.world.at(begin + at, Event::RenameLink(from.into(), to.into()));
        }
        let (target, to) = (host.net(), Setting::Net("2".into()));
        let report = actuator.set(&plan(vec![(target.clone(), to.clone())]), &all);
        if host.world.operations() <= begin + at {
            break;
        }
        if let Verdict::Applied(_) = report.changes[0].verdict {
            assert_eq!(FakeKernel(host.world.clone()).read(&target, Knob::Net), Ok(to), "renamed at {at}");
        }
        actuator.close();
        left += usize::from(host.world.values() != found);
    }
    // In the instant of the write itself nobody can tell.
    assert_eq!(left, 1);
}

#[test]
fn a_newcomer_whose_number_was_reused_while_it_was_pinned_has_what_its_parent_has() {
    for (parent, expected) in [("0-3", all_cpus()), ("0-2", "0-2".parse().unwrap())] {
        let mut healed = 0;
        for at in 0.. {
            let host = host();
            let init = Target::Task(TaskId { tgid: 1, tid: 1, start_time: 1001 });
            host.world.put(&init, &Setting::Affinity(parent.parse().unwrap()));
            let target = host.task(0);
            let (mut actuator, _) = host.open().unwrap();
            let pin = plan(vec![(target, Setting::Affinity(CpuSet::single(0)))]);
            if host.meanwhile(at, Event::Reuse(10), || actuator.set(&pin, &all)).is_none() {
                break;
            }
            let pinned = host.world.written().len() > 1;
            actuator.close();
            let stranger = host.world.values().into_iter().find(|((target, knob), _)| {
                *knob == Knob::Affinity
                    && matches!(target, Target::Task(id) if id.tid == 10 && *id != host.tasks[0])
            });
            if pinned {
                assert_eq!(
                    stranger.unwrap().1,
                    Setting::Affinity(expected.clone()),
                    "{parent}, reused at {at}"
                );
                healed += 1;
            }
        }
        assert!(healed > 0, "the race was never provoked");
    }
}

#[test]
fn what_the_kernel_refuses_once_goes_back_at_the_second_try_and_what_reads_otherwise_is_said() {
    let mut otherwise = 0;
    for at in 0.. {
        let (host, mut actuator) = opened();
        let found = host.world.values();
        let [one, other] = [0, 1].map(|n| host.task(n));
        actuator.set(&plan(vec![(one.clone(), batch(5)), (other.clone(), batch(5))]), &all);
        let Some(report) = host.meanwhile(at, not_now(), || actuator.close()) else { break };
        assert!(report.failed.is_empty(), "refused at {at}: {report:?}");
        assert_eq!(host.world.values(), found, "refused at {at}");
    }
    for at in 0.. {
        let (host, mut actuator) = opened();
        let target = host.task(0);
        actuator.set(&plan(vec![(target.clone(), batch(5))]), &all);
        let Some(report) = host.meanwhile(at, Event::Meddle(target, batch(7)), || actuator.close()) else {
            break;
        };
        otherwise += report.failed.len();
    }
    // What cannot be compared is not said to read otherwise.
    for at in 0.. {
        let (host, mut actuator) = opened();
        let pinned = Setting::Affinity(CpuSet::single(0));
        actuator.set(&plan(vec![(host.task(0), pinned)]), &all);
        let Some(report) = host.meanwhile(at, not_now(), || actuator.close()) else { break };
        let is_said = |note: &Option<String>| note.as_ref().is_some_and(|note| note.contains("but it reads"));
        assert!(!report.failed.iter().any(|item| is_said(&item.note)), "refused at {at}: {report:?}");
    }
    assert_eq!(otherwise, 1, "between the write and the look after it");
}

#[test]
fn while_a_tuned_task_may_be_forking_its_children_are_waited_for() {
    let looks = |busy: bool, fails: u64| {
        let (host, mut actuator) = opened();
        actuator.set(&plan(vec![(host.task(0), batch(5))]), &all);
        host.world.change(10, |facts| facts.busy = busy);
        let before = host.world.operations();
        host.world.at(before + fails, not_now());
        actuator.close();
        host.world.operations() - before
    };
    let (idle, busy) = (looks(false, 999), looks(true, 999));
    // Who cannot be asked may be: the last thing before the journal goes, which takes two operations.
    assert!((idle - 3..idle).any(|fails| looks(false, fails) > idle));
    // Six times more: nobody is born and nobody is busy at the first look of an idle one.
    assert!(busy > idle + 6, "{idle} {busy}");
}

#[test]
fn only_who_was_born_since_the_first_change_is_looked_at() {
    let looks = |older: u32| {
        let host = host();
        for tid in 200..200 + older {
            host.world.add_task(tid, 1);
        }
        let (mut actuator, _) = host.open().unwrap();
        let group = (host.group(0), Setting::Weight(50));
        actuator.set(&plan(vec![group, (host.task(0), batch(5))]), &all);
        host.world.happen(Event::Fork { parent: 10, child: 100, orphan: false });
        let before = host.world.operations();
        actuator.amend(&[], &all);
        host.world.operations() - before
    };
    assert_eq!(looks(0), looks(50));
}

#[test]
fn an_affinity_that_cannot_be_compared_now_is_no_conflict() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        let target = host.task(0);
        let pin = |cpus: &str| plan(vec![(target.clone(), Setting::Affinity(cpus.parse().unwrap()))]);
        actuator.set(&pin("0"), &all);
        actuator.set(&plan(vec![]), &all);
        let Some(report) = host.meanwhile(at, not_now(), || actuator.set(&pin("1"), &all)) else { return };
        assert!(!matches!(report.changes[0].verdict, Verdict::Conflict(_)), "refused at {at}: {report:?}");
        assert!(actuator.close().is_clean(), "refused at {at}");
    }
}

#[test]
fn a_task_that_somebody_makes_real_time_is_theirs_although_it_was_once_by_us() {
    let (host, mut actuator) = opened();
    let task = host.task(0);
    let fifo = SchedAttr { policy: SchedPolicy::Fifo, rt_priority: 9, ..SchedAttr::DEFAULT };
    let fifo = Setting::Sched(fifo);
    assert_eq!(actuator.set(&plan(vec![(task.clone(), fifo.clone())]), &all).applied(), 1);
    actuator.set(&plan(vec![]), &all);
    host.world.put(&task, &fifo);
    let pin = Setting::Affinity("0".parse().unwrap());
    let verdict = actuator.set(&plan(vec![(task, pin)]), &all).changes.remove(0).verdict;
    assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
}

#[test]
fn a_child_born_of_a_changed_task_goes_back_with_the_next_plan() {
    let (host, mut actuator) = opened();
    let [parent, other] = [0, 1].map(|n| host.task(n));
    let both = plan(vec![(parent.clone(), batch(5)), (other.clone(), batch(5))]);
    actuator.set(&both, &all);
    host.world.happen(Event::Fork { parent: 10, child: 100, orphan: false });
    let sched = |host: &Host, tid| {
        let values = host.world.values();
        let found = values.into_iter().find(|((target, knob), _)| {
            *knob == Knob::Sched && matches!(target, Target::Task(id) if id.tid == tid)
        });
        found.unwrap().1
    };
    assert_eq!(sched(&host, 100), batch(5));
    // The parent stays changed; the child is named by no plan.
    let report = actuator.set(&both, &all);
    assert_eq!(sched(&host, 100), Setting::Sched(SchedAttr::DEFAULT));
    assert!(report.back.put_back.iter().any(|item| item.descendant), "{report:?}");
    assert_eq!(sched(&host, 10), batch(5));
    assert!(actuator.close().is_clean());
}

/// A build under a tuned task forks without end. Whoever lives goes back all the same.
#[test]
fn children_that_came_and_went_are_forgotten() {
    let (host, mut actuator) = opened();
    assert_eq!(actuator.set(&plan(vec![(host.task(0), batch(5))]), &all).applied(), 1);
    let fork = |parent, child, orphan| host.world.happen(Event::Fork { parent, child, orphan });
    fork(10, 100, false);
    for child in 1000..2500 {
        fork(10, child, false);
        assert!(actuator.amend(&[], &all).back.is_empty());
        host.world.happen(Event::Vanish(child));
    }
    assert!(actuator.touched().count() < 1000, "{}", actuator.touched().count());
    fork(100, 101, true);
    host.world.happen(Event::Vanish(100));
    assert!(actuator.close().is_clean());
    assert!(!host.world.values().values().any(|value| *value == batch(5)));
}

/// A scope in which tasks begin and end all the time, each with settings: all are told, once.
#[test]
fn tasks_that_were_changed_and_ended_are_forgotten() {
    for amends in [false, true] {
        let (host, mut actuator) = opened();
        let mut gone = Vec::new();
        let mut stays = Vec::new();
        for child in 1000..2500 {
            // In the midst of those that end.
            if child == 1300 {
                stays.push((host.task(0), batch(7)));
                actuator.amend(&plan(stays.clone()).changes, &all);
            }
            host.world.happen(Event::Fork { parent: 11, child, orphan: false });
            let id = FakeKernel(host.world.clone()).identity(child).unwrap().id;
            let one = plan([stays.clone(), vec![(Target::Task(id), batch(5))]].concat());
            let report = if amends { actuator.amend(&one.changes, &all) } else { actuator.set(&one, &all) };
            assert_eq!((report.applied(), report.back.put_back.len()), (1, 0));
            gone.extend(report.back.gone.into_iter().map(|item| item.target));
            host.world.happen(Event::Vanish(child));
        }
        assert!(actuator.touched().count() < 1100, "{}", actuator.touched().count());
        assert_eq!(host.world.sched(host.tasks[0]), Some(batch(7)));
        assert_eq!(actuator.amend(&plan(vec![(host.task(0), batch(8))]).changes, &all).applied(), 1);
        let report = actuator.close();
        assert_eq!(report.put_back.len(), 1);
        gone.extend(report.gone.into_iter().map(|item| item.target));
        let all = gone.len();
        gone.sort();
        gone.dedup();
        assert_eq!((all, gone.len()), (1500, 1500), "{amends}");
    }
}

/// Killed after its journal was made smaller, it leaves nothing that is not found by that.
fn assert_restored_by_a_small_journal(host: &Host, actuator: Actuator<FakeKernel>) {
    let journal = host.world.journal().unwrap().len();
    assert!(journal < 1 << 20, "{journal}");
    drop(actuator);
    assert!(host.restore().unwrap().report.is_clean());
    assert!(!host.world.values().values().any(|value| *value == batch(5)));
}

/// The journal has no word of the child itself, however often it is made smaller.
#[test]
fn whose_child_lives_is_remembered() {
    let (host, mut actuator) = opened();
    let fork = |parent, child| {
        host.world.happen(Event::Fork { parent, child, orphan: parent == 100 });
        Target::Task(FakeKernel(host.world.clone()).identity(child).unwrap().id)
    };
    let parent = fork(11, 100);
    actuator.set(&plan(vec![(parent.clone(), batch(5))]), &all);
    let child = fork(100, 101);
    host.world.happen(Event::Vanish(100));
    for other in 1000..4000 {
        let other = fork(11, other);
        let Target::Task(id) = other else { unreachable!() };
        actuator.set(&plan(vec![(child.clone(), batch(5)), (other, batch(6))]), &all);
        host.world.happen(Event::Vanish(id.tid));
    }
    assert!(actuator.touched().count() < 1100, "{}", actuator.touched().count());
    assert_restored_by_a_small_journal(&host, actuator);
}

/// Between the record in the journal and the write, too: then it has the value of before.
#[test]
fn whoever_takes_its_processs_place_in_the_midst_of_a_change_goes_back() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        let [main, thread] = [0, 3].map(|n| host.task(n));
        let other = (main.clone(), Setting::Affinity("0".parse().unwrap()));
        actuator.set(&plan(vec![other.clone(), (thread.clone(), batch(5))]), &all);
        let next = plan(vec![other, (thread, batch(7))]);
        if host.meanwhile(at, Event::Exec(THREAD), || actuator.set(&next, &all)).is_none() {
            return;
        }
        assert!(actuator.close().is_clean(), "exec at {at}");
        let left = host.world.values().into_values().find(|value| [batch(5), batch(7)].contains(value));
        assert_eq!(left, None, "exec at {at}");
    }
}

/// The journal has no word of a main thread, either, whose place one of its threads took by `exec`.
#[test]
fn whose_place_was_taken_by_exec_is_remembered() {
    let (host, mut actuator) = opened();
    let thread = host.task(3);
    actuator.set(&plan(vec![(thread, batch(5))]), &all);
    host.world.happen(Event::Exec(THREAD));
    for other in 1000..4000 {
        host.world.happen(Event::Fork { parent: 11, child: other, orphan: false });
        let id = FakeKernel(host.world.clone()).identity(other).unwrap().id;
        actuator.set(&plan(vec![(host.task(0), batch(5)), (Target::Task(id), batch(6))]), &all);
        host.world.happen(Event::Vanish(other));
    }
    assert_restored_by_a_small_journal(&host, actuator);
}

#[test]
fn cgroups_that_are_gone_are_forgotten_unless_a_plan_names_them() {
    let (host, mut actuator) = opened();
    let weigh = |group: &GroupRef| (Target::Group(group.clone()), Setting::Weight(50));
    let kept = plan(vec![weigh(&host.groups[0])]);
    assert_eq!(actuator.set(&kept, &all).applied(), 1);
    host.world.happen(Event::RemoveGroup(host.groups[0].clone(), false));
    for number in 0..1500 {
        let group = host.world.add_group(&format!("/pod-{number}"), true, &[Setting::Weight(100)]);
        let both = [kept.changes.clone(), plan(vec![weigh(&group)]).changes].concat();
        assert_eq!(actuator.set(&Plan { changes: both, ..Plan::default() }, &all).applied(), 1);
        host.world.happen(Event::RemoveGroup(group, false));
        host.world.happen(Event::Fork { parent: 11, child: 1000 + number, orphan: false });
    }
    assert!(actuator.touched().count() < 1100, "{}", actuator.touched().count());
    assert_eq!(actuator.left(&kept.changes), [Left::Gone], "who made it may make it again");
}
