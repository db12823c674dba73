//! The host as it was found: what levers compute from, while settings of ours are in force.

use evenkeel_base::{Knob, Observation, Setting, Target, load_weight};

/// Replaces every value of ours in an observation by what was found there, as `found` says of a property and what it is now, if that
/// was read.
pub fn as_found<'a>(
    mut observation: Observation,
    found: impl Fn(&Target, Knob, Option<Setting>) -> Option<&'a Setting>,
) -> Observation {
    for task in &mut observation.tasks {
        let target = Target::Task(task.id);
        if let Some(Setting::Sched(attr)) = found(&target, Knob::Sched, task.sched.map(Setting::Sched)) {
            task.sched = Some(*attr);
        }
        let cpus = task.affinity.clone().map(Setting::Affinity);
        if let Some(Setting::Affinity(cpus)) = found(&target, Knob::Affinity, cpus) {
            task.affinity = Some(cpus.clone());
        }
    }
    for group in &mut observation.groups {
        let target = Target::Group(group.reference());
        if let Some(Setting::Weight(raw)) =
            found(&target, Knob::Weight, group.raw_weight.map(Setting::Weight))
        {
            group.raw_weight = Some(*raw);
            group.load_weight = Some(load_weight(*raw, group.v2));
        }
        let idle = Some(Setting::GroupIdle(group.idle));
        if let Some(Setting::GroupIdle(idle)) = found(&target, Knob::GroupIdle, idle) {
            group.idle = *idle;
        }
        if let Some(Setting::Quota(quota)) = found(&target, Knob::Quota, group.quota.map(Setting::Quota)) {
            group.quota = Some(*quota);
        }
    }
    observation
}

#[cfg(test)]
mod tests {
    use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium, World};
    use evenkeel_actuate::{Actuator, Options, Originals};
    use evenkeel_base::{Change, Nice, Plan, SchedAttr, TaskView};

    use super::*;
    use crate::testing;
    use crate::tiers::told_to_wait;

    /// A cgroup may be made again under its name, or told otherwise, once nothing of ours is there.
    #[test]
    fn what_is_not_ours_is_as_it_is_now_whatever_was_found_once() {
        let world = World::new(2);
        let group = world.add_group("/api", true, &[Setting::Weight(100)]);
        let target = Target::Group(group.clone());
        let (kernel, medium) = (FakeKernel(world.clone()), Box::new(FakeMedium(world.clone())));
        let (mut actuator, _) = Actuator::open_on(kernel, medium, Options::default()).unwrap();
        let set = |actuator: &mut Actuator<_>, weights: &[u64]| {
            let change = |weight: &u64| Change {
                target: target.clone(),
                to: Setting::Weight(*weight),
                why: String::new(),
            };
            let plan = Plan { changes: weights.iter().map(change).collect(), ..Plan::default() };
            actuator.set(&plan, &|_| true);
        };
        let found = |actuator: &Actuator<_>, now: u64| {
            let mut seen = testing::observation(&[("/", None), ("/api", Some(0))]);
            seen.groups[1].raw_weight = Some(now);
            let found = as_found(seen, |target, knob, now| actuator.found(target, knob, now));
            let group = &found.groups[1];
            let meant = group.raw_weight.map(|raw| load_weight(raw, true));
            assert!(group.raw_weight == Some(now) || group.load_weight == meant, "{group:?}");
            group.raw_weight
        };
        assert_eq!(found(&actuator, 300), Some(300));
        set(&mut actuator, &[50]);
        assert_eq!(found(&actuator, 50), Some(100));
        set(&mut actuator, &[]);
        // It was read before that went.
        assert_eq!((found(&actuator, 50), found(&actuator, 300)), (Some(100), Some(300)));
        set(&mut actuator, &[60]);
        world.happen(Event::Meddle(target.clone(), Setting::Weight(300)));
        set(&mut actuator, &[65]);
        assert_eq!(found(&actuator, 300), Some(300), "somebody else's, where ours is to go");
        set(&mut actuator, &[]);
        set(&mut actuator, &[70]);
        world.happen(Event::RemoveGroup(group, true));
        set(&mut actuator, &[]);
        assert_eq!(found(&actuator, 300), Some(300), "another one");
    }

    /// What a killed agent left looks like what the host's owner says of who may wait.
    #[test]
    fn what_a_killed_agent_left_is_no_word_of_the_hosts() {
        let world = World::new(2);
        let group = |path| world.add_group(path, true, &[Setting::Weight(100), Setting::GroupIdle(false)]);
        let (left, unit) = (group("/left"), group("/unit"));
        world.own_until_boot(&unit);
        let id = world.add_task(70, 1);
        let (kernel, medium) = (FakeKernel(world.clone()), Box::new(FakeMedium(world.clone())));
        let (mut actuator, _) = Actuator::open_on(kernel, medium, Options::default()).unwrap();
        let nice = SchedAttr { nice: Nice::new(19), ..SchedAttr::DEFAULT };
        let change = |target: Target, to| Change { target, to, why: String::new() };
        let changes = vec![
            change(Target::Group(left.clone()), Setting::GroupIdle(true)),
            change(Target::Group(unit.clone()), Setting::GroupIdle(true)),
            change(Target::Task(id), Setting::Sched(nice)),
        ];
        actuator.set(&Plan { changes, ..Plan::default() }, &|_| true);
        // No destructor runs after `kill -9`.
        std::mem::forget(actuator);
        let dir = tempfile::tempdir().unwrap();
        evenkeel_actuate::make_private(dir.path()).unwrap();
        let said = |journal: Option<Vec<u8>>| {
            if let Some(bytes) = journal {
                std::fs::write(dir.path().join("journal"), bytes).unwrap();
            }
            let originals = Originals::read(&mut FakeKernel(world.clone()), dir.path()).unwrap();
            let groups = [("/", None), ("/left", Some(0)), ("/told", Some(0)), ("/unit", Some(0))];
            let mut seen = testing::observation(&groups);
            for group in &mut seen.groups[1..] {
                (group.raw_weight, group.idle) = (Some(1), true);
            }
            seen.tasks = vec![TaskView { id, sched: Some(nice), ..testing::task(70, "job", 0) }];
            seen.tasks.extend([1, 2, 3].map(|group| testing::task(60 + group, "job", group)));
            let found = as_found(seen, |target, knob, now| originals.found(target, knob, now));
            (told_to_wait(&found).into_iter().map(|(path, _)| path).collect::<Vec<_>>(), found.tasks[0].sched)
        };
        assert_eq!(said(None), (["/left", "/told", "/unit"].map(str::to_owned).into(), Some(nice)));
        assert_eq!(said(world.journal()), (vec!["/told".to_owned()], Some(SchedAttr::DEFAULT)));
        // Somebody has made them again, and idle: the one unit as its owner was told.
        world.happen(Event::RemoveGroup(left, true));
        world.happen(Event::RemoveGroup(unit, true));
        assert_eq!(said(world.journal()).0, ["/left", "/told"]);
    }
}
