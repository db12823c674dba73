//! What others do between two changes of ours.

mod world;

use evenkeel_actuate::fake::Event;
use evenkeel_base::{Knob, Setting, Target};
use world::{LINK, all, opened, plan};

/// `cpu.idle` makes the kernel forget it.
#[test]
fn the_weight_that_somebody_gave_a_group_comes_back_when_it_is_idle_no_more() {
    for (ours, killed) in [(None, false), (None, true), (Some(50), false), (Some(50), true)] {
        let (host, mut actuator) = opened();
        let group = host.group(0);
        let idle = plan(vec![(group.clone(), Setting::GroupIdle(true))]);
        assert_eq!(actuator.set(&idle, &all).applied(), 1);
        let before = ours.map(|weight| (group.clone(), Setting::Weight(weight)));
        assert!(actuator.set(&plan(before.into_iter().collect()), &all).back.is_clean());
        host.world.put(&group, &Setting::Weight(777));
        assert_eq!(actuator.set(&idle, &all).applied(), 1);
        if killed {
            drop(actuator);
            assert!(host.restore().unwrap().report.is_clean());
        } else {
            assert!(actuator.close().is_clean());
        }
        let now = host.world.values()[&(group, Knob::Weight)].clone();
        assert_eq!(now, Setting::Weight(777), "ours before: {ours:?}, killed: {killed}");
    }
}

#[test]
fn a_link_that_was_renamed_and_restored_is_journaled_by_its_new_name() {
    let (host, mut actuator) = opened();
    let found = host.world.values();
    let set = |target: &Target, value: &str| plan(vec![(target.clone(), Setting::Net(value.into()))]);
    assert_eq!(actuator.set(&set(&host.net(), "2"), &all).applied(), 1);
    host.world.happen(Event::RenameLink(LINK.into(), "lan0".into()));
    assert!(actuator.restore_all().is_clean());
    let renamed = Target::Net(host.nets[0].on_link("lan0"));
    assert_eq!(actuator.set(&set(&renamed, "3"), &all).applied(), 1);
    drop(actuator);
    assert!(host.restore().unwrap().report.is_clean());
    assert_eq!(host.world.values(), found);
}
