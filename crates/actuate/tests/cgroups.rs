//! Cgroups: what somebody else writes to them, what their owners remember, and those made again under an old name.

mod world;

use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium};
use evenkeel_actuate::{Actuator, Applied, KernelError, Options, RestoreReport, Verdict};
use evenkeel_base::{CpuQuota, Knob, Limit, Plan, Setting, Target};
use world::{Host, all, host, opened, plan};

#[test]
fn what_somebody_else_changed_is_left_and_reported() {
    let (host, mut actuator) = opened();
    let group = host.group(0);
    assert_eq!(actuator.set(&plan(vec![(group.clone(), Setting::Weight(50))]), &all).applied(), 1);
    host.world.put(&group, &Setting::Weight(777));
    let report = actuator.set(&plan(vec![(group.clone(), Setting::Weight(900))]), &all);
    assert_eq!(report.changes[0].verdict, Verdict::Conflict(Setting::Weight(777)));
    let report = actuator.close();
    assert!(report.put_back.is_empty(), "{report:?}");
    assert_eq!(host.world.values()[&(group, Knob::Weight)], Setting::Weight(777));
}

/// Of ours, once, and met in the midst of a write.
#[test]
fn whenever_somebody_sets_a_weight_that_was_ours_once_it_is_a_conflict() {
    for at in 0.. {
        let (host, mut actuator) = opened();
        for weight in [50, 900] {
            assert_eq!(actuator.set(&weigh(&host, weight), &all).applied(), 1);
        }
        let meddle = Event::Meddle(host.group(0), Setting::Weight(50));
        let Some(report) = host.meanwhile(at, meddle, || actuator.set(&weigh(&host, 70), &all)) else {
            assert!(at > 3);
            return;
        };
        let verdict = &report.changes[0].verdict;
        let is_known = |from: &Setting| *from == Setting::Weight(50);
        assert!(
            !matches!(verdict, Verdict::Applied(applied) if is_known(&applied.from)),
            "{at}: {verdict:?}"
        );
    }
}

#[test]
fn an_idle_group_gets_its_weight_back() {
    let (host, mut actuator) = opened();
    let found = host.world.values();
    let group = host.group(0);
    let idle = plan(vec![(group.clone(), Setting::GroupIdle(true))]);
    assert_eq!(actuator.set(&idle, &all).applied(), 1);
    let again = actuator.set(&idle, &all);
    assert_eq!((again.in_force(), again.back.is_empty()), (1, true), "its weight waits for its turn");
    assert_eq!(host.world.values()[&(group, Knob::Weight)], Setting::Weight(3));
    drop(actuator);
    let report = host.restore().unwrap().report;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(host.world.values(), found);
}

#[test]
fn a_group_that_is_idle_no_more_has_its_weight_whatever_was_refused() {
    let idle = |idle| Setting::GroupIdle(idle);
    let weight = Setting::Weight(900);
    for (next, is_allowed) in [
        (vec![idle(true)], false),
        (vec![weight.clone()], false),
        (vec![idle(true), weight.clone()], false),
        (vec![weight.clone(), idle(true)], false),
        (vec![idle(false)], true),
    ] {
        let (host, mut actuator) = opened();
        let (found, group) = (host.world.values(), host.group(0));
        let set = |to: &[Setting]| plan(to.iter().map(|to| (group.clone(), to.clone())).collect());
        assert_eq!(actuator.set(&set(&[idle(true)]), &all).applied(), 1);
        let report = actuator.set(&set(&next), &|_| is_allowed);
        assert!(report.back.failed.is_empty() && report.back.conflicts.is_empty(), "{next:?}: {report:?}");
        assert_eq!(host.world.values(), found, "{next:?}");
        assert!(actuator.close().is_clean());
    }
}

#[test]
fn what_a_run_before_set_goes_back_where_it_is_refused_now() {
    let (host, mut actuator) = opened();
    let found = host.world.values();
    let half = CpuQuota { quota_usec: Limit::Value(50_000), ..CpuQuota::UNLIMITED };
    let set = plan(vec![(host.group(0), Setting::Quota(half))]);
    assert_eq!(actuator.set(&set, &all).applied(), 1);
    drop(actuator);
    let medium = Box::new(FakeMedium(host.world.clone()));
    let kernel = FakeKernel(host.world.clone());
    let mut actuator = Actuator::resume_on(kernel, medium, Options::default()).unwrap();
    assert_eq!(actuator.set(&set, &|_| false).back.put_back.len(), 1);
    assert_eq!(host.world.values(), found);
}

/// Writing `cpu.idle` moves the weight, which the same plan sets afterwards.
#[test]
fn a_group_that_is_idle_no_more_gets_the_weight_of_the_plan_and_its_own_in_the_end() {
    let (host, mut actuator) = opened();
    let found = host.world.values();
    let group = host.group(0);
    actuator.set(&plan(vec![(group.clone(), Setting::GroupIdle(true))]), &all);
    let both = plan(vec![(group.clone(), Setting::GroupIdle(false)), (group.clone(), Setting::Weight(900))]);
    assert_eq!(actuator.set(&both, &all).in_force(), 2);
    assert_eq!(host.world.values()[&(group, Knob::Weight)], Setting::Weight(900));
    assert!(actuator.close().is_clean());
    assert_eq!(host.world.values(), found);
}

#[test]
fn what_a_cgroups_owner_remembers_goes_back_even_when_the_cgroup_is_gone_or_the_host_was_booted() {
    for boot in [false, true] {
        for again in [false, true] {
            let host = host();
            let group = host.groups[0].clone();
            host.world.own(&group);
            let (mut actuator, _) = host.open().unwrap();
            let set = plan(vec![(Target::Group(group.clone()), Setting::Weight(50))]);
            assert_eq!(actuator.set(&set, &all).applied(), 1);
            drop(actuator);
            host.world.at(host.world.operations(), Event::RemoveGroup(group.clone(), again));
            if boot {
                host.world.reboot();
            }
            let report = host.restore().unwrap().report;
            assert_eq!(report.put_back.len(), 1, "{report:?}");
            assert_eq!(host.world.remembered(&group, Knob::Weight), Some(Setting::Weight(512)));
        }
    }
}

const ENDS: [&str; 3] = ["next plan", "close", "restore"];

fn end(host: &Host, mut actuator: Actuator<FakeKernel>, how: &str) -> RestoreReport {
    match how {
        "next plan" => {
            let mut report = actuator.set(&plan(vec![]), &all).back;
            report.append(actuator.close());
            report
        }
        "close" => actuator.close(),
        _ => {
            drop(actuator);
            host.restore().map(|recovery| recovery.report).unwrap_or_default()
        }
    }
}

/// What the owner of a host's first cgroup keeps of its weight, and what the cgroup has, if it is there.
fn weights(host: &Host) -> (Option<Setting>, Option<Setting>) {
    let group = &host.groups[0];
    let values = host.world.values();
    (
        host.world.remembered(group, Knob::Weight),
        values.get(&(Target::Group(group.clone()), Knob::Weight)).cloned(),
    )
}

/// A host whose first cgroup has an owner.
fn with_owner(until_boot: bool) -> Host {
    let host = host();
    let group = &host.groups[0];
    if until_boot {
        host.world.own_until_boot(group);
    } else {
        host.world.own(group);
    }
    host
}

/// Such a host, and a run that set the cgroup's weight to 50.
fn owned(until_boot: bool) -> (Host, Actuator<FakeKernel>) {
    let host = with_owner(until_boot);
    let (mut actuator, _) = host.open().unwrap();
    assert_eq!(actuator.set(&weigh(&host, 50), &all).applied(), 1);
    (host, actuator)
}

fn weigh(host: &Host, weight: u64) -> Plan {
    plan(vec![(host.group(0), Setting::Weight(weight))])
}

#[test]
fn a_cgroup_that_its_owner_gave_our_value_again_is_the_same_to_us() {
    let found = Some(Setting::Weight(512));
    for until_boot in [false, true] {
        for (weight, verdict) in [
            (None, None),
            (Some(50), Some(Verdict::Unchanged)),
            (
                Some(900),
                Some(Verdict::Applied(Applied {
                    from: Setting::Weight(50),
                    now: Setting::Weight(900),
                    first: false,
                })),
            ),
        ] {
            for how in ENDS {
                let (host, mut actuator) = owned(until_boot);
                host.world.happen(Event::RemoveGroup(host.groups[0].clone(), true));
                let report = weight.map(|weight| actuator.set(&weigh(&host, weight), &all).changes.remove(0));
                assert_eq!(report.map(|change| change.verdict), verdict);
                let report = end(&host, actuator, how);
                assert!(report.is_clean() && report.put_back.len() == 1, "{weight:?}, {how}: {report:?}");
                assert_eq!(weights(&host), (found.clone(), found.clone()), "{weight:?}, {how}");
                assert_eq!(host.world.journal(), None);
            }
        }
    }
}

#[test]
fn what_an_owner_keeps_of_a_cgroup_that_is_not_there_goes_back_when_it_is_named_again_or_not() {
    for how in ENDS {
        for comes_again in [false, true] {
            let (host, mut actuator) = owned(false);
            host.world.happen(Event::RemoveGroup(host.groups[0].clone(), false));
            assert_eq!(actuator.set(&weigh(&host, 900), &all).changes[0].verdict, Verdict::Gone);
            if comes_again {
                host.world.add_group("/a", false, &[Setting::Weight(50)]);
                assert_eq!(actuator.set(&weigh(&host, 900), &all).applied(), 1);
            }
            let report = end(&host, actuator, how);
            assert!(report.is_clean() && report.put_back.len() == 1, "{how}: {report:?}");
            let found = Some(Setting::Weight(512));
            assert_eq!(weights(&host), (found.clone(), found.filter(|_| comes_again)), "{how}");
        }
    }
}

/// The cgroup is made again, or goes for good, at each operation of a run in turn, and an operation soon afterwards may fail.
#[test]
fn whenever_an_owner_makes_its_cgroup_again_nothing_of_ours_stays_with_it() {
    let found = Some(Setting::Weight(512));
    let bad_luck = || Event::Fail(KernelError::Denied("bad luck".to_owned()));
    let cases = [true, false].into_iter().flat_map(|again| (0..3).map(move |fails| (again, fails)));
    for ((again, fails), how) in cases.flat_map(|case| ENDS.map(|how| (case, how))) {
        for weights_set in [&[50][..], &[50, 50], &[50, 900]] {
            for at in 0.. {
                let host = with_owner(at % 2 == 0);
                let (mut actuator, _) = host.open().unwrap();
                let begin = host.world.operations();
                host.world.at(begin + at, Event::RemoveGroup(host.groups[0].clone(), again));
                if fails > 0 {
                    host.world.at(begin + at + fails, bad_luck());
                }
                for weight in weights_set {
                    actuator.set(&weigh(&host, *weight), &all);
                }
                let report = end(&host, actuator, how);
                if host.world.operations() <= begin + at {
                    break;
                }
                host.world.calm();
                let last = host.restore().unwrap().report;
                let case = format!("{again}, {fails}, {weights_set:?}, {how}, at {at}: {report:?}, {last:?}");
                assert!(last.is_finished(), "{case}");
                let (kept, there) = weights(&host);
                // It may never have been told anything.
                assert!(kept.is_none() || kept == found, "kept {kept:?}: {case}");
                assert_eq!(there, found.clone().filter(|_| again), "{case}");
            }
        }
    }
}

/// Of a quota systemd keeps hundredths of a percent.
#[test]
fn a_cgroup_that_has_our_quota_in_its_owners_words_is_the_same_to_us() {
    let quota = |usec| {
        Setting::Quota(CpuQuota { quota_usec: Limit::Value(usec), period_usec: 100_000, burst_usec: 0 })
    };
    for (named, how) in [false, true].into_iter().flat_map(|named| ENDS.map(|how| (named, how))) {
        let host = with_owner(true);
        let group = host.group(0);
        let set = plan(vec![(group.clone(), quota(123_456))]);
        let (mut actuator, _) = host.open().unwrap();
        assert_eq!(actuator.set(&set, &all).applied(), 1);
        host.world.happen(Event::RemoveGroup(host.groups[0].clone(), true));
        host.world.put(&group, &quota(123_460));
        if named {
            assert_eq!(actuator.set(&set, &all).applied(), 1);
        }
        let report = end(&host, actuator, how);
        assert!(report.is_clean() && report.put_back.len() == 1, "{named}, {how}: {report:?}");
        assert_eq!(host.world.values()[&(group, Knob::Quota)], Setting::Quota(CpuQuota::UNLIMITED));
    }
}

#[test]
fn without_a_journal_a_cgroup_that_was_made_again_is_not_followed_but_restored() {
    let (host, mut actuator) = owned(false);
    host.world.happen(Event::RemoveGroup(host.groups[0].clone(), true));
    host.world.happen(Event::DiskFull);
    let report = actuator.set(&weigh(&host, 50), &all);
    assert!(matches!(report.changes[0].verdict, Verdict::Failed(_)), "{report:?}");
    assert!(actuator.close().is_clean());
    assert_eq!(weights(&host), (Some(Setting::Weight(512)), Some(Setting::Weight(512))));
}

/// Its owner keeps nothing of ours then.
#[test]
fn what_somebody_told_the_owner_meanwhile_is_found_in_the_next_cgroup_and_goes_back_there() {
    // After a kill one of ours of before may be what its owner was told last.
    let cases = ENDS.map(|how| (how, 300)).into_iter().chain([("next plan", 50), ("close", 50)]);
    for (how, told) in cases {
        let (host, mut actuator) = owned(true);
        assert_eq!(actuator.set(&weigh(&host, 900), &all).applied(), 1);
        host.world.happen(Event::RemoveGroup(host.groups[0].clone(), true));
        let target = host.group(0);
        host.world.put(&target, &Setting::Weight(told));
        assert_eq!(actuator.set(&weigh(&host, 700), &all).applied(), 1);
        let report = end(&host, actuator, how);
        assert!(report.is_clean() && report.put_back.len() == 1, "{how}: {report:?}");
        assert_eq!(host.world.values()[&(target, Knob::Weight)], Setting::Weight(told), "{how}");
    }
}

#[test]
fn what_an_owner_keeps_until_the_next_boot_ends_with_it() {
    let (host, actuator) = owned(true);
    drop(actuator);
    host.world.reboot();
    let written = host.world.written().len();
    assert!(host.restore().unwrap().report.is_empty());
    assert_eq!(host.world.written().len(), written);
}

/// In cgroup v1 a limit may have to be lifted on the way from one period to another.
#[test]
fn a_limit_that_a_kill_left_lifted_is_put_back_and_one_that_somebody_lifted_is_not() {
    let quota = |quota_usec, period_usec| Setting::Quota(CpuQuota { quota_usec, period_usec, burst_usec: 0 });
    let found = quota(Limit::Value(300_000), 100_000);
    for (v2, killed, period, is_ours) in [
        (false, true, 10_000, true),
        (false, true, 100_000, true),
        (false, true, 50_000, false),
        // It had been written: somebody else lifted it.
        (false, false, 10_000, false),
        // One write sets both.
        (true, true, 10_000, false),
    ] {
        let host = host();
        let group = Target::Group(host.world.add_group("/q", v2, std::slice::from_ref(&found)));
        let set = |usec| plan(vec![(group.clone(), quota(Limit::Value(usec), 10_000))]);
        let (mut actuator, _) = host.open().unwrap();
        assert_eq!(actuator.set(&set(5_000), &all).applied(), 1);
        let lifted = quota(Limit::Max, period);
        host.world.put(&group, &lifted);
        let report = if killed {
            drop(actuator);
            host.restore().unwrap().report
        } else {
            let report = actuator.set(&set(6_000), &all);
            assert_eq!(report.changes[0].verdict, Verdict::Conflict(lifted.clone()));
            actuator.close()
        };
        let expected = if is_ours { &found } else { &lifted };
        assert_eq!(host.world.values()[&(group, Knob::Quota)], *expected, "{v2}, {killed}, {period}");
        assert_eq!(report.conflicts.len(), usize::from(!is_ours), "{report:?}");
        assert_eq!(host.world.journal(), None);
    }
}

#[test]
fn a_cgroup_made_anew_under_its_name_is_another_one() {
    for killed in [false, true] {
        let host = host();
        let group = host.group(0);
        let weight = |host: &Host| host.world.values()[&(group.clone(), Knob::Weight)].clone();
        let (mut actuator, _) = host.open().unwrap();
        let set = |value| plan(vec![(group.clone(), Setting::Weight(value))]);
        assert_eq!(actuator.set(&set(50), &all).applied(), 1);
        host.world.at(host.world.operations(), Event::RemoveGroup(host.groups[0].clone(), true));
        let _ = actuator.set(&plan(vec![]), &all);
        // What is found in the new one is what goes back there.
        host.world.put(&group, &Setting::Weight(300));
        let first = |verdict: Verdict| match verdict {
            Verdict::Applied(applied) => Some(applied.first),
            _ => None,
        };
        let mut amend = |to| first(actuator.amend(&set(to).changes, &all).changes.remove(0).verdict);
        assert_eq!((amend(600), amend(700)), (Some(true), Some(false)));
        assert_eq!(weight(&host), Setting::Weight(700));
        if killed {
            drop(actuator);
            assert!(host.restore().unwrap().report.is_clean());
        } else {
            assert!(actuator.close().is_clean());
        }
        assert_eq!(weight(&host), Setting::Weight(300), "killed: {killed}");
    }
}

/// The kubelet gives a group what its pods ask for, whatever was there. Elsewhere another value is somebody's decision.
#[test]
fn the_weight_that_the_kubelet_sets_is_what_goes_back_and_any_other_stays() {
    for (path, follows) in [
        ("/kubepods/burstable", true),
        ("/docker/x/kubepods/podu/c", true),
        ("/kubepods.slice/kubepods-burstable.slice", true),
        ("/kubepodsless/c", false),
    ] {
        for killed in [false, true] {
            let (host, mut actuator) = opened();
            let target = Target::Group(host.world.add_group(path, false, &[Setting::Weight(358)]));
            let ours = |weight| plan(vec![(target.clone(), Setting::Weight(weight))]);
            assert_eq!(actuator.set(&ours(500), &all).applied(), 1, "{path}");
            // More pods, then fewer.
            for kubelets in [389, 240] {
                host.world.put(&target, &Setting::Weight(kubelets));
                let verdict = actuator.amend(&ours(500).changes, &all).changes.remove(0).verdict;
                let is_again = matches!(&verdict, Verdict::Applied(applied) if applied.from == Setting::Weight(kubelets));
                assert_eq!(is_again, follows, "{path}: {verdict:?}");
            }
            if killed {
                drop(actuator);
                assert!(host.restore().unwrap().report.failed.is_empty());
            } else {
                actuator.close();
            }
            let left = host.world.values()[&(target.clone(), Knob::Weight)].clone();
            assert_eq!(left, Setting::Weight(240), "{path}, killed: {killed}");
        }
    }
}

/// Managers of cgroups write a limit again that they were told, or another one.
#[test]
fn a_limit_that_is_not_ours_any_more_is_noticed_and_answered_once_or_left() {
    let quota = |usec| Setting::Quota(CpuQuota { quota_usec: Limit::Value(usec), ..CpuQuota::UNLIMITED });
    let (host, mut actuator) = opened();
    let target = Target::Group(host.world.add_group("/kubepods/podu/c", false, &[quota(100_000)]));
    let ours = plan(vec![(target.clone(), quota(50_000))]);
    for (theirs, writes) in [(None, 1), (Some(100_000), 1), (Some(80_000), 0)] {
        theirs.inspect(|theirs| host.world.put(&target, &quota(*theirs)));
        assert_eq!(actuator.has_lost_of_a_group(), theirs.is_some(), "{theirs:?}");
        assert_eq!(actuator.set(&ours, &all).applied(), writes, "{theirs:?}");
        assert!(!actuator.has_lost_of_a_group(), "{theirs:?}");
    }
    // Where a plan comes to want what somebody else set, nothing is lost.
    host.world.put(&target, &quota(50_000));
    assert_eq!(actuator.set(&ours, &all).applied(), 0);
    host.world.put(&target, &quota(80_000));
    assert_eq!(actuator.set(&plan(vec![(target.clone(), quota(80_000))]), &all).applied(), 0);
    assert!(!actuator.has_lost_of_a_group());
    actuator.close();
    assert_eq!(host.world.values()[&(target, Knob::Quota)], quota(80_000));
}

/// Of the many weights that a promise writes the kubelet may say one, too; and `cpu.idle` forgets what it said while nothing was ours.
#[test]
fn what_the_kubelet_sets_goes_back_also_where_it_was_ours_once_or_nothing_is_ours() {
    for (ours, kubelets, idle) in [([500, 600], 500, false), ([500, 500], 500, true), ([500, 500], 389, true)]
    {
        let (host, mut actuator) = opened();
        let found = [Setting::Weight(358), Setting::GroupIdle(false)];
        let target = Target::Group(host.world.add_group("/kubepods/burstable", false, &found));
        let set = |to: Setting| plan(vec![(target.clone(), to)]);
        for weight in ours {
            assert_eq!(actuator.set(&set(Setting::Weight(weight)), &all).in_force(), 1);
        }
        let last = if idle { Setting::GroupIdle(true) } else { Setting::Weight(600) };
        if idle {
            actuator.set(&plan(vec![]), &all);
        }
        host.world.put(&target, &Setting::Weight(kubelets));
        assert_eq!(actuator.set(&set(last), &all).applied(), 1);
        actuator.close();
        assert_eq!(
            host.world.values()[&(target, Knob::Weight)],
            Setting::Weight(kubelets),
            "{ours:?} {idle}"
        );
    }
}

#[test]
fn what_the_file_of_an_idle_group_shows_is_no_word_of_the_kubelets() {
    for v2 in [false, true] {
        let (host, mut actuator) = opened();
        let found = [Setting::Weight(358), Setting::GroupIdle(false)];
        let target = Target::Group(host.world.add_group("/kubepods/burstable", v2, &found));
        let idle = |idle| (target.clone(), Setting::GroupIdle(idle));
        assert_eq!(actuator.set(&plan(vec![idle(true)]), &all).applied(), 1);
        let both = plan(vec![idle(false), (target.clone(), Setting::Weight(900))]);
        assert_eq!(actuator.set(&both, &all).in_force(), 2);
        assert!(actuator.close().is_clean());
        assert_eq!(host.world.values()[&(target, Knob::Weight)], Setting::Weight(358), "v2: {v2}");
    }
}
