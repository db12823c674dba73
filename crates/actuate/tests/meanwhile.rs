//! What others do between two changes of ours.

mod world;

use evenkeel_base::{Knob, Setting};
use world::{all, opened, plan};

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
