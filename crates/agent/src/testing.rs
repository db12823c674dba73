//! A small host, seen, for tests, and an agent that changes nothing.

use evenkeel_actuate::Item;
use evenkeel_base::{
    Change, GroupRef, GroupView, Knob, Observation, Setting, Target, TaskId, TaskView, Topology,
};
use evenkeel_observe::Sampling;
use evenkeel_policy::protect::LatencyTarget;

use crate::events::Quiet;
use crate::{Agent, Config, Protected, Scope};

/// An agent with this scope.
pub fn agent(scope: &str, edit: impl FnOnce(&mut Config)) -> Agent {
    let mut config = Config::new(Scope::parse(&[scope]).unwrap(), "/nonexistent");
    (config.apply, config.history, config.sampling) = (false, false, Sampling::Proc);
    edit(&mut config);
    Agent::new(config, &mut Quiet).unwrap()
}

/// One for which `comm:^api$` is the service, and `/work` background work.
pub fn agent_of_services() -> Agent {
    let scope = |text: &str| Scope::parse(&[text]).unwrap();
    let protection = LatencyTarget { name: "comm:^api$".into(), ..LatencyTarget::default() };
    agent("cgroup:/work", |config| {
        config.protect = vec![Protected { scope: scope("comm:^api$"), protection, slo: None }];
        config.background = Some(scope("cgroup:/work"));
    })
}

/// Two CPUs and these cgroups, by path and index of the parent.
pub fn observation(groups: &[(&str, Option<u32>)]) -> Observation {
    let groups = groups.iter().map(|(path, parent)| GroupView::of(*path, *parent, true)).collect();
    Observation { groups, ..Observation::of(Topology::synthetic(1, 1, 2, 1)) }
}

/// A process of one thread in a cgroup.
pub fn task(pid: u32, comm: &str, group: u32) -> TaskView {
    let id = TaskId { tgid: pid, tid: pid, start_time: 1 };
    TaskView { ppid: 1, group: Some(group), ..TaskView::of(id, comm) }
}

/// A cgroup of v2.
pub fn group(path: &str) -> GroupRef {
    GroupRef { path: path.into(), v2: true }
}

/// A change of such a cgroup.
pub fn change(path: &str, to: Setting) -> Change {
    Change { target: Target::Group(group(path)), to, why: String::new() }
}

/// A property of such a cgroup, whose weight was 100, in a report on what was restored.
pub fn restored(path: &str, knob: Knob) -> Item {
    let (target, original) = (Target::Group(group(path)), Setting::Weight(100));
    Item { target, knob, comm: None, found: None, original, descendant: false, note: None }
}
