//! Parts of the agent that work next to the decision, each on the loop's timer and on every observation.
//!
//! A new one is a file in `components` with an implementation of [`Component`], and a line in
//! [`crate::components::Components::new`].

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel_actuate::SetReport;
use evenkeel_base::run::RunRecord;
use evenkeel_base::{Change, Knob, Observation, Plan, Target};
use evenkeel_linux::mountinfo::Hierarchies;

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

    /// After each observation.
    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next;

    /// What it wants in force, whatever a decision chose.
    fn changes(&self) -> Vec<Change> {
        Vec::new()
    }

    /// What came of setting a plan with its changes.
    fn learn(&mut self, _report: &SetReport) {}

    /// Brings its part of the record up to date.
    fn status(&self, record: &mut RunRecord);

    /// Messages for people since the last call.
    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// The plan with these changes on top: they count, whatever it would do to the same property.
pub(crate) fn with_changes(plan: &Plan, changes: Vec<Change>) -> Plan {
    let mut plan = plan.clone();
    let set: BTreeSet<(&Target, Knob)> =
        changes.iter().map(|change| (&change.target, change.knob())).collect();
    plan.changes.retain(|change| !set.contains(&(&change.target, change.knob())));
    plan.changes.extend(changes);
    plan
}

/// Sleeps until a tick or the end, whichever is first, and returns how late it woke; `None` once the end is reached.
pub(crate) fn wait_for_tick(end: Instant) -> Option<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return None;
    }
    let (time, began) = (left.min(TICK), Instant::now());
    std::thread::sleep(time);
    Some(began.elapsed().saturating_sub(time))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{GroupRef, Setting};

    use super::*;

    fn weight(path: &str, raw: u64) -> Change {
        let target = Target::Group(GroupRef { path: path.into(), v2: true });
        Change { target, to: Setting::Weight(raw), why: String::new() }
    }

    #[test]
    fn what_a_component_wants_counts_whatever_a_plan_would_set() {
        let plan = Plan { changes: vec![weight("/a", 1), weight("/b", 2)], ..Plan::default() };
        let whole = with_changes(&plan, vec![weight("/b", 9), weight("/c", 3)]);
        assert_eq!(whole.changes, [weight("/a", 1), weight("/b", 9), weight("/c", 3)]);
        assert_eq!(with_changes(&plan, vec![]).changes, plan.changes);
    }

    #[test]
    fn waiting_ends_in_time() {
        let end = Instant::now() + TICK + TICK / 2;
        let ticks = std::iter::from_fn(|| wait_for_tick(end)).count();
        assert!(Instant::now() >= end && ticks == 2, "{ticks}");
    }
}
