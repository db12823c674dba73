//! The host's scheduler as a property like others: started, refused, undone, lost; on a kernel in memory.

mod world;

use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium};
use evenkeel_actuate::{Actuator, KernelError, Left, Options, Verdict};
use evenkeel_base::{GroupRef, HostScheduler, Knob, Plan, Setting, Target};
use world::{Host, all, host, opened, plan};

const KERNEL: Setting = Setting::Scheduler(HostScheduler::Kernel);

fn program(name: &str) -> Setting {
    Setting::Scheduler(HostScheduler::Program(name.into()))
}

fn other() -> Setting {
    Setting::Scheduler(HostScheduler::Other("lavd".into()))
}

fn started(name: &str) -> Plan {
    plan(vec![(Target::Host, program(name))])
}

fn in_charge(host: &Host) -> Setting {
    host.world.values()[&(Target::Host, Knob::Scheduler)].clone()
}

/// What a plan's only change comes to.
fn set(actuator: &mut Actuator<FakeKernel>, plan: &Plan) -> Verdict {
    actuator.set(plan, &all).changes.remove(0).verdict
}

#[test]
fn one_is_started_replaced_and_ended_like_any_change() {
    let (host, mut actuator) = opened();
    for name in ["scx_rusty", "scx_lavd"] {
        assert!(matches!(set(&mut actuator, &started(name)), Verdict::Applied(_)));
        assert_eq!(in_charge(&host), program(name));
        assert_eq!(set(&mut actuator, &started(name)), Verdict::Unchanged);
        assert_eq!(actuator.lost(&started(name).changes[0]), None);
    }
    // As in a block under the baseline.
    let report = actuator.set(&Plan::default(), &all);
    assert_eq!((in_charge(&host), report.back.put_back.len()), (KERNEL, 1));
    assert!(matches!(set(&mut actuator, &started("scx_lavd")), Verdict::Applied(_)), "it comes back");
    assert!(actuator.close().is_clean());
    assert_eq!((in_charge(&host), host.world.journal()), (KERNEL, None));
}

#[test]
fn only_programs_that_the_user_allowed_are_started() {
    let refused = |options: Options, name: &str, target: Target| {
        let host = host();
        let (mut actuator, _) = host.open_with(options).unwrap();
        let verdict = set(&mut actuator, &plan(vec![(target, program(name))]));
        assert_eq!((host.world.written(), in_charge(&host)), (vec![], KERNEL));
        match verdict {
            Verdict::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    };
    let allowed = Options { allow_scx: true, ..Options::default() };
    assert!(refused(Options::default(), "scx_rusty", Target::Host).contains("not allowed by the user"));
    for name in ["sh", "scx_/../../bin/sh", "/usr/bin/scx_rusty", "", "scx_a\0b"] {
        assert!(refused(allowed.clone(), name, Target::Host).contains("not the name"), "{name}");
    }
    let group = Target::Group(GroupRef { path: "/a".into(), v2: false });
    assert!(refused(allowed, "scx_rusty", group).contains("a property of the host"));
}

#[test]
fn one_that_does_not_load_leaves_the_host_as_it_was() {
    let mut failed = 0;
    for at in 0..20 {
        let (host, mut actuator) = opened();
        let refusal = KernelError::Invalid("scx_rusty does not load: -EPERM".into());
        host.world.at(host.world.operations() + at, Event::Fail(refusal.clone()));
        let verdict = set(&mut actuator, &started("scx_rusty"));
        assert!(matches!(verdict, Verdict::Applied(_) | Verdict::Failed(_)), "at {at}: {verdict:?}");
        failed += u32::from(verdict == Verdict::Failed(refusal));
        host.world.calm();
        assert!(actuator.close().is_clean(), "at {at}");
        assert_eq!((in_charge(&host), host.world.journal()), (KERNEL, None), "at {at}");
    }
    assert!(failed > 1, "{failed}");
}

#[test]
fn what_another_program_loaded_stays() {
    let host = host();
    host.world.put(&Target::Host, &other());
    let (mut actuator, _) = host.open().unwrap();
    let verdict = set(&mut actuator, &started("scx_rusty"));
    assert_eq!(verdict, Verdict::Refused("another program has loaded the BPF scheduler lavd".into()));
    assert!(actuator.close().is_clean());
    assert_eq!((in_charge(&host), host.world.written()), (other(), vec![]));
    // Ours was ended, and another one took its place.
    host.world.put(&Target::Host, &KERNEL);
    let (mut actuator, _) = host.open().unwrap();
    set(&mut actuator, &started("scx_rusty"));
    host.world.put(&Target::Host, &other());
    assert_eq!(actuator.lost(&started("scx_rusty").changes[0]), Some(other()));
    assert_eq!(set(&mut actuator, &started("scx_rusty")), Verdict::Conflict(other()));
    assert!(actuator.close().is_finished());
    assert_eq!(in_charge(&host), other());
}

#[test]
fn one_that_was_ejected_is_somebody_elses_doing_and_not_started_again() {
    // Noticed by a look, by the next plan, or when it is to go back.
    for noticed in 0..3 {
        let (host, mut actuator) = opened();
        set(&mut actuator, &started("scx_rusty"));
        host.world.put(&Target::Host, &KERNEL);
        match noticed {
            0 => assert_eq!(actuator.lost(&started("scx_rusty").changes[0]), Some(KERNEL)),
            1 => {}
            _ => assert_eq!(actuator.set(&Plan::default(), &all).back.already.len(), 1),
        }
        for name in ["scx_rusty", "scx_lavd"] {
            assert_eq!(set(&mut actuator, &started(name)), Verdict::Conflict(KERNEL), "{noticed} {name}");
            assert_eq!(actuator.lost(&started(name).changes[0]), Some(KERNEL), "{noticed} {name}");
        }
        assert_eq!(in_charge(&host), KERNEL);
        assert!(actuator.close().is_clean(), "{noticed}");
    }
}

#[test]
fn after_a_kill_it_has_gone_with_its_process_and_restore_finds_that() {
    let (host, mut actuator) = opened();
    set(&mut actuator, &started("scx_rusty"));
    // One that outlived its process is ended.
    drop(actuator);
    let report = host.restore().unwrap().report;
    assert_eq!((report.put_back.len(), in_charge(&host)), (1, KERNEL));
    // The usual case.
    let (mut actuator, _) = host.open().unwrap();
    set(&mut actuator, &started("scx_rusty"));
    drop(actuator);
    host.world.put(&Target::Host, &KERNEL);
    let report = host.restore().unwrap().report;
    assert_eq!((report.already.len(), report.put_back.len(), host.world.journal()), (1, 0, None));
}

#[test]
fn a_successor_starts_again_what_had_been_proved() {
    let (host, mut actuator) = opened();
    set(&mut actuator, &started("scx_rusty"));
    drop(actuator);
    host.world.put(&Target::Host, &KERNEL);
    let options = Options { allow_scx: true, ..Options::default() };
    let medium = Box::new(FakeMedium(host.world.clone()));
    let mut actuator = Actuator::resume_on(FakeKernel(host.world.clone()), medium, options).unwrap();
    assert_eq!(actuator.left(&started("scx_rusty").changes), [Left::Original]);
    assert!(matches!(set(&mut actuator, &started("scx_rusty")), Verdict::Applied(_)));
    assert!(actuator.close().is_clean());
    assert_eq!(in_charge(&host), KERNEL);
}
