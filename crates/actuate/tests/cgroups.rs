//! Cgroups: what somebody else writes to them, what their owners remember, and those made again under an old name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod world;

use evenkeel_actuate::Verdict;
use evenkeel_actuate::fake::Event;
use evenkeel_base::{Knob, Setting, Target};
use world::{host, plan};

#[test]
fn what_somebody_else_changed_is_left_and_reported() {
    let host = host();
    let group = Target::Group(host.groups[0].clone());
    let (mut actuator, _) = host.open().unwrap();
    assert_eq!(actuator.set(&plan(vec![(group.clone(), Setting::Weight(50))]), &|_| true).applied(), 1);
    host.world.put(&group, &Setting::Weight(777));
    let report = actuator.set(&plan(vec![(group.clone(), Setting::Weight(900))]), &|_| true);
    assert_eq!(report.changes[0].verdict, Verdict::Conflict(Setting::Weight(777)));
    let report = actuator.close();
    assert!(report.put_back.is_empty(), "{report:?}");
    assert_eq!(host.world.values()[&(group, Knob::Weight)], Setting::Weight(777));
}

#[test]
fn an_idle_group_gets_its_weight_back() {
    let host = host();
    let found = host.world.values();
    let group = Target::Group(host.groups[0].clone());
    let (mut actuator, _) = host.open().unwrap();
    let idle = plan(vec![(group.clone(), Setting::GroupIdle(true))]);
    assert_eq!(actuator.set(&idle, &|_| true).applied(), 1);
    assert_eq!(actuator.set(&idle, &|_| true).in_force(), 1);
    assert_eq!(host.world.values()[&(group, Knob::Weight)], Setting::Weight(3));
    drop(actuator);
    let report = host.restore().unwrap().report;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(host.world.values(), found);
}

/// Writing `cpu.idle` moves the weight, which the same plan sets afterwards.
#[test]
fn a_group_that_is_idle_no_more_gets_the_weight_of_the_plan_and_its_own_in_the_end() {
    let host = host();
    let found = host.world.values();
    let group = Target::Group(host.groups[0].clone());
    let (mut actuator, _) = host.open().unwrap();
    actuator.set(&plan(vec![(group.clone(), Setting::GroupIdle(true))]), &|_| true);
    let both = plan(vec![(group.clone(), Setting::GroupIdle(false)), (group.clone(), Setting::Weight(900))]);
    assert_eq!(actuator.set(&both, &|_| true).in_force(), 2);
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
            assert_eq!(actuator.set(&set, &|_| true).applied(), 1);
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

#[test]
fn a_cgroup_made_anew_under_its_name_is_another_one() {
    for killed in [false, true] {
        let host = host();
        let group = Target::Group(host.groups[0].clone());
        let weight = |host: &world::Host| host.world.values()[&(group.clone(), Knob::Weight)].clone();
        let (mut actuator, _) = host.open().unwrap();
        let set = |value| plan(vec![(group.clone(), Setting::Weight(value))]);
        assert_eq!(actuator.set(&set(50), &|_| true).applied(), 1);
        host.world.at(host.world.operations(), Event::RemoveGroup(host.groups[0].clone(), true));
        let _ = actuator.set(&plan(vec![]), &|_| true);
        // What is found in the new one is what goes back there.
        host.world.put(&group, &Setting::Weight(300));
        assert_eq!(actuator.amend(&set(700).changes, &|_| true).applied(), 1);
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
