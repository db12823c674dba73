//! Units of systemd, which keeps values for the next cgroup of that name until the host is booted.

mod world;

use evenkeel_actuate::fake::Event;
use evenkeel_base::{Knob, Setting};
use world::{all, host, plan};

/// An idle unit and one with a weight are the same property to systemd.
#[test]
fn a_unit_that_was_idle_for_a_while_has_its_own_weight_again() {
    for kept in [true, false] {
        let host = host();
        let (group, target) = (&host.groups[0], host.group(0));
        host.world.own_until_boot(group);
        let found = host.world.values();
        let (mut actuator, _) = host.open().unwrap();
        for to in [Setting::GroupIdle(true), Setting::Weight(700)] {
            assert_eq!(actuator.set(&plan(vec![(target.clone(), to)]), &all).applied(), 1);
        }
        drop(actuator);
        if !kept {
            host.world.at(host.world.operations(), Event::RemoveGroup(group.clone(), false));
        }
        let report = host.restore().unwrap().report;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(host.world.remembered(group, Knob::Weight), Some(Setting::Weight(512)));
        if kept {
            assert_eq!(host.world.values(), found);
        }
    }
}
