//! Parts of the agent that work next to the decision, each on the loop's timer and on every observation.
//!
//! A new one is a file in `components` with an implementation of [`Component`], and a line in
//! [`crate::components::Components::new`].

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_actuate::SetReport;
use evenkeel_base::run::RunRecord;
use evenkeel_base::{Change, Knob, Observation, Plan, Setting, Target};
use evenkeel_linux::mountinfo::Hierarchies;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::controls::Controls;
use crate::scope::Scope;

/// Time between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// What was observed, and of whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub observation: &'a Observation,
    pub scope: &'a Scope,
    /// `None` where cgroups are not mounted.
    pub hierarchies: Option<&'a Hierarchies>,
    /// The kernel's default slice, where tasks can have one of their own.
    pub default_slice_ns: Option<u64>,
}

/// What a component wants after an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// What is in force stays.
    Stays,
    /// Some of its changes are no longer wanted: only setting everything again restores them.
    SetAll,
}

/// A part of the agent that works next to the decision.
pub(crate) trait Component {
    /// Every [`TICK`], also while candidates are on trial. `late`: how much later than that.
    fn on_tick(&mut self, late: Duration, controls: &mut Controls);

    /// Becomes readable when the component is to be called at once. At most one component has such a descriptor.
    fn word(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Its descriptor became readable, also while candidates are on trial.
    fn on_word(&mut self, _controls: &mut Controls) {}

    /// After each observation.
    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next;

    /// What it wants in force, whatever a decision chose.
    fn changes(&self) -> Vec<Change> {
        Vec::new()
    }

    /// What came of setting a plan with its changes.
    fn learn(&mut self, _plan: &Plan, _report: &SetReport) {}

    /// Brings its part of the record up to date.
    fn status(&self, _record: &mut RunRecord) {}

    /// Messages for people since the last call.
    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// The plan with these changes on top: they count, whatever it would do to the same property. But a weight waits for the end of the
/// plan that makes its cgroup idle: it would not act meanwhile, and the kernel does not take it (`sched_group_set_shares`,
/// `kernel/sched/fair.c`).
pub(crate) fn with_changes(plan: &Plan, mut changes: Vec<Change>) -> Plan {
    let mut plan = plan.clone();
    changes.retain(|change| {
        change.knob() != Knob::Weight
            || !plan.changes.iter().any(|of| of.target == change.target && of.to == Setting::GroupIdle(true))
    });
    let set: BTreeSet<(&Target, Knob)> =
        changes.iter().map(|change| (&change.target, change.knob())).collect();
    plan.changes.retain(|change| !set.contains(&(&change.target, change.knob())));
    plan.changes.extend(changes);
    plan
}

/// What a plan would set and does not, because a component wants another value there.
pub(crate) fn overruled(plan: &Plan, changes: &[Change]) -> Vec<String> {
    let words = |change: &Change| {
        let other =
            |of: &&Change| (&of.target, of.knob()) == (&change.target, change.knob()) && of.to != change.to;
        let Change { target, to, why } = changes.iter().find(other)?;
        Some(format!("{} of {target} is {to} ({why})", change.knob().name()))
    };
    plan.changes.iter().filter_map(words).collect()
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A tick, so much later than it should be. The last one is at the end.
    Tick(Duration),
    /// The descriptor is readable.
    Word,
}

#[derive(Debug)]
pub(crate) struct Timer {
    end: Instant,
    next: Instant,
}

impl Timer {
    /// Ticks from now on until the end.
    pub fn until(end: Instant) -> Self {
        Self { end, next: end.min(Instant::now() + TICK) }
    }

    /// Sleeps until the next tick, or until the descriptor is readable; `None` once the end is reached.
    pub fn wait(&mut self, word: Option<&OwnedFd>) -> Option<Woken> {
        let now = Instant::now();
        if now >= self.end {
            return None;
        }
        let mut watched = word.map(|word| PollFd::from_borrowed_fd(word.as_fd(), PollFlags::IN));
        let time = Timespec::try_from(self.next.saturating_duration_since(now)).ok();
        // Interrupted: as if it were time for a tick.
        if poll(watched.as_mut_slice(), time.as_ref()).is_ok_and(|ready| ready > 0)
            && Instant::now() < self.next
        {
            return Some(Woken::Word);
        }
        let now = Instant::now();
        let late = now.saturating_duration_since(self.next);
        self.next = self.end.min(now + TICK);
        Some(Woken::Tick(late))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use evenkeel_actuate::fake::{FakeKernel, FakeMedium, World};
    use evenkeel_actuate::{Actuator, Options, Verdict};

    use super::*;
    use crate::bounds::{self, Bounds};
    use crate::testing;

    fn weight(path: &str, raw: u64) -> Change {
        testing::change(path, Setting::Weight(raw))
    }

    #[test]
    fn what_a_component_wants_counts_whatever_a_plan_would_set() {
        let plan = Plan { changes: vec![weight("/a", 1), weight("/b", 2)], ..Plan::default() };
        let whole = with_changes(&plan, vec![weight("/b", 9), weight("/c", 3)]);
        assert_eq!(whole.changes, [weight("/a", 1), weight("/b", 9), weight("/c", 3)]);
        assert_eq!(with_changes(&plan, vec![]).changes, plan.changes);
    }

    #[test]
    fn what_a_component_overrules_is_no_change_of_a_plan() {
        let plan = Plan { changes: vec![weight("/a", 1), weight("/b", 2)], ..Plan::default() };
        let promised = Change { why: "promised share".into(), ..weight("/b", 256) };
        assert_eq!(overruled(&plan, &[promised]), ["weight of /b is weight 256 (promised share)"]);
        assert!(overruled(&plan, &[weight("/b", 2), weight("/c", 3)]).is_empty(), "it is what both want");
    }

    #[test]
    fn a_weight_waits_until_its_cgroup_is_idle_no_more() {
        let idle = |path: &str, idle| Change { to: Setting::GroupIdle(idle), ..weight(path, 0) };
        let plan = Plan { changes: vec![idle("/a", true), idle("/b", false)], ..Plan::default() };
        let whole = with_changes(&plan, vec![weight("/a", 9), weight("/b", 3)]);
        assert_eq!(whole.changes, [idle("/a", true), idle("/b", false), weight("/b", 3)]);
    }

    #[test]
    fn a_promised_weight_waits_while_a_plan_makes_its_cgroup_idle() {
        let world = World::new(2);
        let work = world.add_group("/work", true, &[Setting::Weight(100), Setting::GroupIdle(false)]);
        let mut observation = testing::observation(&[("/", None), ("/work", Some(0))]);
        observation.tasks = vec![testing::task(10, "cc", 1)];
        let scope = Scope::parse(&["cgroup:/work"]).unwrap();
        let bounds = Bounds::reckon(&Bounds::default(), &observation, &scope, &[], false, None);
        let (kernel, medium) = (FakeKernel(world.clone()), Box::new(FakeMedium(world.clone())));
        let (mut actuator, _) = Actuator::open_on(kernel, medium, Options::default()).unwrap();
        let change = |to| testing::change("/work", to);
        let idle = Plan { changes: vec![change(Setting::GroupIdle(true))], ..Plan::default() };
        let weight = || vec![change(Setting::Weight(300))];
        let mut reports = vec![bounds::set(&mut actuator, &with_changes(&idle, weight()), &bounds)];
        reports.push(bounds::amend(&mut actuator, &weight(), &bounds));
        reports.push(bounds::set(&mut actuator, &with_changes(&Plan::default(), weight()), &bounds));
        let verdicts: Vec<_> =
            reports.iter().flat_map(|report| &report.changes).map(|of| &of.verdict).collect();
        assert!(verdicts.iter().all(|verdict| !matches!(verdict, Verdict::Failed(_))), "{verdicts:?}");
        assert_eq!(
            world.values()[&(Target::Group(work), Knob::Weight)],
            Setting::Weight(300),
            "{verdicts:?}"
        );
    }

    #[test]
    fn waiting_ends_in_time() {
        let end = Instant::now() + TICK + TICK / 2;
        let mut timer = Timer::until(end);
        let ticks = std::iter::from_fn(|| timer.wait(None)).count();
        assert!(Instant::now() >= end && ticks == 2, "{ticks}");
    }

    #[test]
    fn a_word_is_heard_at_once_and_ticks_go_on() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = OwnedFd::from(reader);
        let began = Instant::now();
        let mut timer = Timer::until(began + 10 * TICK);
        writer.write_all(b"x").unwrap();
        assert_eq!(timer.wait(Some(&reader)), Some(Woken::Word));
        assert!(began.elapsed() < TICK, "{:?}", began.elapsed());
        // Whoever does not read it is told again, and the ticks come nevertheless.
        let heard: Vec<Woken> = std::iter::from_fn(|| timer.wait(Some(&reader))).collect();
        let ticks = heard.iter().filter(|woken| matches!(woken, Woken::Tick(_))).count();
        assert!((2..=10).contains(&ticks), "{ticks}");
    }
}
