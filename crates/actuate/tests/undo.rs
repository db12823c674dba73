//! What undo promises, rule by rule, on a kernel in memory.

mod world;

use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium};
use evenkeel_actuate::journal::{Header, Record, VERSION, encode};
use evenkeel_actuate::{
    ActuateError, Actuator, Item, Kernel, KernelError, Namespaces, Options, Verdict, all_cpus,
};
use evenkeel_base::{CpuSet, Knob, Nice, SchedAttr, SchedPolicy, Setting, Target};
use world::{Host, LINK, THREAD, all, batch, host, opened, plan};

#[test]
fn the_newest_change_goes_back_first() {
    let order = |host: &Host, from: usize| -> Vec<Target> {
        host.world.written()[from..].iter().map(|(target, _)| target.clone()).collect()
    };
    for end in ["next plan", "close", "restore"] {
        let (host, mut actuator) = opened();
        let [a, b, c] = [0, 1, 2].map(|n| host.task(n));
        actuator.set(&plan([&a, &b, &c].map(|t| (t.clone(), batch(5))).to_vec()), &all);
        // The first one is changed once more: its value is the newest then.
        actuator.amend(&plan(vec![(a.clone(), batch(6))]).changes, &all);
        let made = host.world.written().len();
        match end {
            "next plan" => drop(actuator.set(&plan(vec![]), &all)),
            "close" => drop(actuator.close()),
            _ => {
                drop(actuator);
                host.restore().unwrap();
            }
        }
        assert_eq!(order(&host, made), [a, c, b], "{end}");
    }
}

#[test]
fn a_thread_that_took_its_processs_number_and_a_child_of_clone_parent_go_back() {
    let events = [Event::Exec(THREAD), Event::ForkBeside { maker: 12, child: 100 }];
    for (event, changed) in events.into_iter().zip([3, 2]) {
        for end in ["next plan", "close", "restore"] {
            let (host, mut actuator) = opened();
            let target = host.task(changed);
            actuator.set(
                &plan(vec![(target.clone(), batch(5)), (target, Setting::Affinity(CpuSet::single(0)))]),
                &all,
            );
            host.world.happen(event.clone());
            let ours = |host: &Host| {
                let values = host.world.values().into_values();
                values.filter(|v| *v == batch(5) || *v == Setting::Affinity(CpuSet::single(0))).count()
            };
            assert!(ours(&host) > 1);
            match end {
                "next plan" => assert!(actuator.set(&plan(vec![]), &all).back.is_clean()),
                "close" => assert!(actuator.close().is_clean()),
                _ => {
                    drop(actuator);
                    assert!(host.restore().unwrap().report.is_clean());
                }
            }
            assert_eq!(ours(&host), 0, "{event:?}, {end}");
        }
    }
}

#[test]
fn what_is_there_already_is_written_only_where_that_was_asked_for() {
    let target = |host: &Host| [host.task(0), host.group(0)];
    for (rewrite, writes) in [(false, 0), (true, 2)] {
        let host = host();
        let (mut actuator, _) = host.open_with(Options { rewrite, ..Options::default() }).unwrap();
        let before = host.world.values();
        let same = target(&host).map(|t| {
            let knob = if matches!(t, Target::Task(_)) { Knob::Sched } else { Knob::Weight };
            (t.clone(), before[&(t, knob)].clone())
        });
        let written = || host.world.written().len();
        for _ in 0..2 {
            let from = written();
            let report = actuator.set(&plan(same.to_vec()), &all);
            assert_eq!(written() - from, writes, "rewrite: {rewrite}");
            let is_right = |verdict: &Verdict| match verdict {
                Verdict::Applied(applied) => rewrite && applied.from == applied.now,
                verdict => !rewrite && *verdict == Verdict::Unchanged,
            };
            assert!(report.changes.iter().all(|change| is_right(&change.verdict)), "{report:?}");
            // The way back costs what it costs others.
            let from = written();
            assert!(actuator.set(&plan(vec![]), &all).back.is_clean());
            assert_eq!(written() - from, writes, "rewrite: {rewrite}");
        }
        // What another manager did meanwhile is left as it is.
        actuator.set(&plan(same.to_vec()), &all);
        host.world.put(&same[0].0, &batch(7));
        let report = actuator.close();
        assert_eq!(report.conflicts.len(), usize::from(rewrite), "{report:?}");
        let mut expected = before;
        expected.insert((same[0].0.clone(), Knob::Sched), batch(7));
        assert_eq!(host.world.values(), expected);
    }
}

/// Class, nice and slice are judged apart after a conflict, too.
#[test]
fn after_a_conflict_what_is_left_of_ours_goes_back() {
    let reniced = SchedAttr { nice: Nice::new(7), ..SchedAttr::DEFAULT };
    for end in ["next plan", "out of scope", "close", "restore"] {
        let host = host();
        let target = host.task(0);
        let set = |nice| plan(vec![(target.clone(), batch(nice))]);
        let (mut actuator, _) = host.open().unwrap();
        assert_eq!(actuator.set(&set(0), &all).applied(), 1);
        host.world.put(&target, &batch(7));
        for _ in 0..2 {
            let report = actuator.set(&set(3), &all);
            assert_eq!(report.changes[0].verdict, Verdict::Conflict(batch(7)));
            assert!(report.back.is_empty(), "{report:?}");
            assert!(actuator.touched().all(|(_, _, ours)| ours.is_none()));
        }
        let report = match end {
            "next plan" => actuator.set(&plan(vec![]), &all).back,
            "out of scope" => actuator.set(&set(3), &|_| false).back,
            "close" => actuator.close(),
            _ => {
                drop(actuator);
                host.restore().unwrap().report
            }
        };
        assert_eq!(host.world.sched(host.tasks[0]), Some(Setting::Sched(reniced)), "{end}");
        assert_eq!((report.conflicts.len(), report.put_back.len()), (1, 0), "{end}: {report:?}");
    }
}

#[test]
fn whenever_somebody_renices_a_task_its_class_goes_back() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        let target = host.task(0);
        actuator.set(&plan(vec![(target.clone(), batch(0))]), &all);
        let (meddle, next) = (Event::Meddle(target.clone(), batch(7)), plan(vec![(target, batch(3))]));
        if host.meanwhile(at, meddle, || actuator.set(&next, &all)).is_none() {
            return;
        }
        actuator.close();
        let Some(Setting::Sched(attr)) = host.world.sched(host.tasks[0]) else { panic!("gone") };
        assert_eq!(attr.policy, SchedPolicy::Other, "reniced at {at}");
    }
}

/// Of the values of ours only the last can be there by our hand.
#[test]
fn what_was_ours_once_is_somebody_elses_when_another_value_was_there_since() {
    let pin = |cpus: &str| Setting::Affinity(cpus.parse().unwrap());
    let reniced = Setting::Sched(SchedAttr { nice: Nice::new(5), ..SchedAttr::DEFAULT });
    for end in ["next plan", "refused", "close"] {
        for (target, [once, last], left) in [
            (host().task(0), [pin("0"), pin("1")], pin("0")),
            // The class is ours still, the nice value is not.
            (host().task(0), [batch(5), batch(7)], reniced.clone()),
            (host().group(0), [50, 900].map(Setting::Weight), Setting::Weight(50)),
        ] {
            let (host, mut actuator) = opened();
            let set = |to: &Setting| plan(vec![(target.clone(), to.clone())]);
            let now = || host.world.values()[&(target.clone(), once.knob())].clone();
            for to in [&once, &last] {
                assert_eq!(actuator.set(&set(to), &all).applied(), 1);
            }
            host.world.put(&target, &once);
            let again = actuator.set(&set(&last), &all).changes.remove(0).verdict;
            assert_eq!(again, Verdict::Conflict(once.clone()), "it is left alone");
            let report = match end {
                "next plan" => actuator.set(&plan(vec![]), &all).back,
                "refused" => actuator.set(&set(&last), &|_| false).back,
                _ => actuator.close(),
            };
            assert_eq!((now(), report.conflicts.len()), (left, 1), "{end}: {report:?}");
            // What is back is as somebody else makes it from then on, also where a plan wants the same.
            let (mut actuator, _) = host.open().unwrap();
            let found = now();
            for plan in [set(&last), plan(vec![])] {
                actuator.set(&plan, &all);
            }
            assert_eq!(now(), found);
            host.world.put(&target, &last);
            assert_eq!(actuator.set(&set(&last), &all).changes[0].verdict, Verdict::Unchanged);
            actuator.close();
            assert_eq!(now(), last);
        }
    }
}

/// Nor is it ours where the last one could not be restored.
#[test]
fn what_could_not_be_restored_is_the_value_that_was_set_last() {
    let mut failed = 0;
    for at in 0.. {
        let (host, mut actuator) = opened();
        let group = host.group(0);
        let now = || host.world.values()[&(group.clone(), Knob::Weight)].clone();
        for weight in [50, 900] {
            actuator.set(&plan(vec![(group.clone(), Setting::Weight(weight))]), &all);
        }
        let not_now = Event::Fail(KernelError::Denied("not now".to_owned()));
        let Some(report) = host.meanwhile(at, not_now, || actuator.set(&plan(vec![]), &all)) else {
            assert!(failed > 2, "{failed}");
            return;
        };
        if report.back.failed.is_empty() || now() != Setting::Weight(900) {
            continue;
        }
        failed += 1;
        assert!(actuator.touched().any(|(_, _, ours)| ours == Some(&Setting::Weight(900))), "{at}");
        host.world.put(&group, &Setting::Weight(50));
        assert_eq!((actuator.close().conflicts.len(), now()), (1, Setting::Weight(50)), "{at}");
    }
}

fn refused(host: &Host) -> String {
    match host.restore() {
        Err(error @ ActuateError::Elsewhere { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_other_namespaces_nothing_is_done_and_the_journal_kept() {
    let here = Namespaces { pid: Some(1), time: Some(2), net: Some(3), cgroup: Some(4) };
    let set = |host: &Host, target: &Target, to: Setting| {
        host.world.set_namespaces(here);
        let (mut actuator, _) = host.open().unwrap();
        assert_eq!(actuator.set(&plan(vec![(target.clone(), to)]), &all).applied(), 1);
    };
    let look_from = |host: &Host, there: Namespaces, gone: bool| {
        if gone {
            host.world.happen(Event::RemoveGroup(host.groups[0].clone(), false));
            host.world.happen(Event::RenameLink(LINK.into(), "lan0".into()));
        }
        let journal = host.world.journal();
        host.world.set_namespaces(there);
        let before = host.world.written().len();
        let why = refused(host);
        assert_eq!(host.world.written().len(), before);
        assert_eq!(host.world.journal(), journal);
        assert!(host.open().is_err(), "nor does a run begin");
        assert_eq!(host.world.journal(), journal);
        host.world.set_namespaces(here);
        assert!(host.restore().unwrap().left_behind);
        assert_eq!(host.world.journal(), None);
        why
    };
    let host = host();
    let (task, group, link) = (host.task(0), host.group(0), host.net());
    for (there, what) in
        [(Namespaces { pid: Some(9), ..here }, "--pid"), (Namespaces { time: Some(9), ..here }, "--time")]
    {
        set(&host, &task, batch(5));
        assert!(look_from(&host, there, false).contains(what));
    }
    set(&host, &link, Setting::Net("2".into()));
    assert!(look_from(&host, Namespaces { net: Some(9), ..here }, false).contains("--net"));
    // A cgroup is told by its inode; one that is not found may be elsewhere.
    set(&host, &group, Setting::Weight(50));
    host.world.set_namespaces(Namespaces { cgroup: Some(9), ..here });
    assert_eq!(host.restore().unwrap().report.put_back.len(), 1);
    set(&host, &group, Setting::Weight(50));
    assert!(look_from(&host, Namespaces { cgroup: Some(9), ..here }, true).contains("--cgroup"));
}

/// A container runtime gives each start of a container a cgroup namespace of its own, and the host's hierarchy with it where that is
/// mounted: an agent that was killed there must not keep its successor from starting.
#[test]
fn where_every_cgroup_is_seen_one_that_is_found_nowhere_is_gone() {
    let here = Namespaces { cgroup: Some(4), ..Namespaces::default() };
    let there = Namespaces { cgroup: Some(9), ..here };
    for seen in [false, true] {
        let host = host();
        host.world.set_namespaces(here);
        host.world.set_sees_every_cgroup(seen);
        let changes =
            host.groups[..2].iter().map(|group| (Target::Group(group.clone()), Setting::Weight(50)));
        let (mut actuator, _) = host.open().unwrap();
        assert_eq!(actuator.set(&plan(changes.collect()), &all).applied(), 2);
        drop(actuator);
        host.world.happen(Event::RemoveGroup(host.groups[0].clone(), false));
        host.world.set_namespaces(there);
        if !seen {
            assert!(refused(&host).contains("--cgroup"));
            continue;
        }
        let report = host.restore().unwrap().report;
        assert_eq!((report.put_back.len(), report.gone.len()), (1, 1));
        assert_eq!(host.world.journal(), None);
    }
}

#[test]
fn a_renamed_link_is_found_by_its_index() {
    let host = host();
    let found = host.world.values();
    let link = host.net();
    let (mut actuator, _) = host.open().unwrap();
    assert_eq!(actuator.set(&plan(vec![(link, Setting::Net("2".into()))]), &all).applied(), 1);
    drop(actuator);
    host.world.happen(Event::RenameLink(LINK.into(), "lan0".into()));
    let report = host.restore().unwrap().report;
    assert_eq!((report.put_back.len(), report.gone.len()), (1, 0), "{report:?}");
    assert_eq!(report.put_back[0].target, Target::Net(host.nets[0].on_link("lan0")));
    assert_eq!(host.world.values(), found);
}

#[test]
fn settings_that_stay_are_known_to_the_next_and_go_back_with_restore() {
    let host = host();
    let found = host.world.values();
    let resume = || {
        let medium = Box::new(FakeMedium(host.world.clone()));
        Actuator::resume_on(FakeKernel(host.world.clone()), medium, Options::default()).unwrap()
    };
    let to = |value: &str| plan(vec![(host.net(), Setting::Net(value.into()))]).changes;
    resume().leave().unwrap();
    assert_eq!(host.world.journal(), None, "nothing set, nothing left");
    for value in ["0-1", "2"] {
        let mut actuator = resume();
        assert!(matches!(actuator.amend(&to(value), &all).changes[0].verdict, Verdict::Applied(_)));
        actuator.leave().unwrap();
    }
    // Somebody else's value is left alone.
    host.world.put(&host.net(), &Setting::Net("3".into()));
    assert!(matches!(resume().amend(&to("0"), &all).changes[0].verdict, Verdict::Conflict(_)));
    host.world.put(&host.net(), &Setting::Net("2".into()));
    let report = host.restore().unwrap().report;
    assert_eq!(report.put_back.len(), 1, "{report:?}");
    assert_eq!(host.world.values(), found);
}

#[test]
fn a_damaged_journal_of_the_network_is_set_aside_and_blocks_nobody() {
    for tail in [&[0u8; 64][..], b"garbage", b"{\"half"] {
        let (host, mut actuator) = opened();
        let found = host.world.values();
        let to = Setting::Net("2".into());
        actuator.set(&plan(vec![(host.net(), to)]), &all);
        drop(actuator);
        let damaged = [host.world.journal().unwrap(), tail.to_vec()].concat();
        host.world.set_journal(Some(damaged.clone()));
        let Err(ActuateError::Damaged { recovery, .. }) = host.restore() else { panic!("not said") };
        assert_eq!(recovery.report.put_back.len(), 1);
        assert_eq!(host.world.set_aside(), std::slice::from_ref(&damaged));
        assert_eq!(host.world.values(), found);
        assert!(!host.restore().unwrap().left_behind);
        // Who goes on with what is set hears of it, too.
        host.world.set_journal(Some(damaged));
        let resumed = Actuator::resume_on(
            FakeKernel(host.world.clone()),
            Box::new(FakeMedium(host.world.clone())),
            Options::default(),
        );
        assert!(matches!(resumed, Err(ActuateError::Damaged { .. })));
    }
}

#[test]
fn a_journal_of_a_newer_version_is_left_as_it_is() {
    for (version, newer) in [(VERSION - 1, false), (VERSION, false), (VERSION + 1, true)] {
        let host = host();
        let boot = FakeKernel(host.world.clone()).boot_id().unwrap();
        let header = Header { version, boot, pid: 1, since: 0, namespaces: Namespaces::default() };
        let journal = Some(encode(&Record::Header(header)));
        host.world.set_journal(journal.clone());
        match host.restore() {
            Ok(_) => assert!(!newer && host.world.journal().is_none()),
            Err(error) => {
                assert!(newer && matches!(error, ActuateError::Version { .. }), "{error}");
                assert_eq!(host.world.journal(), journal);
            }
        }
    }
}

#[test]
fn who_set_nothing_leaves_no_journal_although_it_tried() {
    let host = host();
    let medium = Box::new(FakeMedium(host.world.clone()));
    let mut actuator =
        Actuator::resume_on(FakeKernel(host.world.clone()), medium, Options::default()).unwrap();
    host.world.happen(Event::DiskFull);
    let change = plan(vec![(host.task(0), batch(5))]).changes;
    assert!(matches!(actuator.amend(&change, &all).changes[0].verdict, Verdict::Failed(_)));
    host.world.calm();
    actuator.leave().unwrap();
    assert_eq!(host.world.journal(), None);
}

#[test]
fn a_property_is_known_once_whenever_a_thread_takes_its_processs_number() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        let [main, thread] = [0, 3].map(|n| host.task(n));
        let pin = |cpus: &str| Setting::Affinity(cpus.parse().unwrap());
        actuator.set(&plan(vec![(main.clone(), batch(5)), (thread, pin("0"))]), &all);
        if host.meanwhile(at, Event::Exec(THREAD), || actuator.set(&plan(vec![]), &all)).is_none() {
            return;
        }
        actuator.set(&plan(vec![(main, pin("0-1"))]), &all);
        let mut known: Vec<_> =
            actuator.touched().map(|(target, found, _)| (target.clone(), found.knob())).collect();
        let all = known.len();
        known.sort();
        known.dedup();
        assert_eq!(known.len(), all, "exec at {at}");
    }
}

/// Two properties of a task are set one after the other: each has an origin of its own.
#[test]
fn what_is_set_later_on_a_task_is_judged_by_what_was_there_then() {
    let pin = Setting::Affinity(CpuSet::single(0));
    let affinity = |host: &Host, tid: u32| {
        let values = host.world.values().into_iter();
        let mut of = values.filter(|((target, knob), _)| {
            *knob == Knob::Affinity && matches!(target, Target::Task(id) if id.tid == tid)
        });
        of.next().unwrap().1
    };
    let [main, thread] = [0, 3];
    let set_both = |meanwhile: fn(&Host), number: usize| {
        let (host, mut actuator) = opened();
        let target = host.task(number);
        actuator.set(&plan(vec![(target.clone(), batch(5))]), &all);
        meanwhile(&host);
        actuator.set(&plan(vec![(target.clone(), batch(5)), (target, pin.clone())]), &all);
        (host, actuator)
    };
    // A child born before the task was pinned has pinned itself.
    let fork = |host: &Host| host.world.happen(Event::Fork { parent: 10, child: 100, orphan: false });
    let (host, mut actuator) = set_both(fork, main);
    let child = host.world.values().into_keys().find_map(|(target, _)| match target {
        Target::Task(id) if id.tid == 100 => Some(target),
        _ => None,
    });
    let child = child.unwrap();
    host.world.put(&child, &pin);
    // It is a descendant of a task that had another class, and what it is given itself is not inherited.
    actuator.amend(&plan(vec![(child.clone(), batch(7))]).changes, &all);
    let report = actuator.close();
    assert_eq!((affinity(&host, 100), affinity(&host, 10)), (pin.clone(), Setting::Affinity(all_cpus())));
    let name = |item: &Item| (item.target.clone(), item.knob, item.comm.clone());
    let names: Vec<_> = report.put_back.iter().map(name).collect();
    assert!(names.contains(&(host.task(0), Knob::Sched, Some("task-10".into()))), "{names:?}");
    // A main thread that was pinned by somebody else has not got that from a thread that ends.
    let pin_main = |host: &Host| {
        host.world.put(&host.task(0), &Setting::Affinity(CpuSet::single(0)));
    };
    let (host, actuator) = set_both(pin_main, thread);
    host.world.happen(Event::Vanish(THREAD));
    actuator.close();
    assert_eq!(affinity(&host, 10), pin);
}

#[test]
fn what_a_newborn_is_given_itself_is_not_said_to_be_inherited() {
    let host = host();
    let parent = (host.task(0), batch(5));
    let (mut actuator, _) = host.open().unwrap();
    actuator.set(&plan(vec![parent.clone()]), &all);
    host.world.happen(Event::Fork { parent: 10, child: 100, orphan: false });
    let child = host.world.values().into_keys().find(|(t, _)| matches!(t, Target::Task(id) if id.tid == 100));
    let child = child.unwrap().0;
    actuator.set(&plan(vec![parent, (child.clone(), Setting::Affinity(CpuSet::single(0)))]), &all);
    let report = actuator.set(&plan(vec![]), &all).back;
    let pinned = report.put_back.iter().find(|item| item.target == child && item.knob == Knob::Affinity);
    assert!(!pinned.unwrap().descendant, "{report:?}");
    assert!(actuator.close().is_clean());
}

#[test]
fn a_cgroup_made_again_without_an_owner_that_remembers_is_another_one() {
    let host = host();
    let group = host.group(0);
    let weight = |to: u64| plan(vec![(group.clone(), Setting::Weight(to))]);
    let (mut actuator, _) = host.open().unwrap();
    actuator.set(&weight(50), &all);
    // By chance it has a value of ours.
    host.world.happen(Event::RemoveGroup(host.groups[0].clone(), true));
    assert_eq!(actuator.set(&weight(70), &all).applied(), 1);
    actuator.close();
    assert_eq!(host.world.values()[&(group, Knob::Weight)], Setting::Weight(50), "what was found in it");
}

#[test]
fn a_journal_of_zeros_is_kept() {
    let host = host();
    for bytes in [vec![], vec![0; 4096]] {
        host.world.set_journal(Some(bytes.clone()));
        assert!(matches!(host.restore(), Err(ActuateError::Damaged { line: 1, .. })));
        assert_eq!(host.world.set_aside().last(), Some(&bytes));
    }
}
