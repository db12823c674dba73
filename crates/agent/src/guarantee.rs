//! Promised shares, kept by the loop: what `evenkeel_policy::guarantee` decides, brought together with the host.
//!
//! At each observation (once a second) everything is solved again: who matches which scope, what fits, which settings
//! carry it. Several times a second ([`crate::component::TICK`]) the counters of the promised tasks alone are read, what is owed is
//! corrected, and what was got is judged.

mod admission;
pub(crate) mod counters;
mod keeper;
mod labels;
mod latency;
mod layout;
mod own;
mod pins;
mod resolve;
mod solver;
mod state;
mod tick;
mod usage;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel_actuate::SetReport;
use evenkeel_base::run::{GuaranteeStatus, RunRecord};
use evenkeel_base::{Change, Nice, Observation, Plan, TaskId};
use evenkeel_observe::{Detail, Select};
use evenkeel_store::PromiseTime;

use crate::bounds::Bounds;
use crate::component::{Component, Next, Seen};
use crate::config::Config;
use crate::controls::Controls;
use crate::scope::Scope;

pub use crate::stated::{CPU_LABEL, Guarantee, Guarantees, LabelRules, Source, WAIT_LABEL};
pub(crate) use keeper::Keeper;
pub use labels::wait_ns;
pub(crate) use layout::is_owned;
pub use layout::{Ancestor, OutsideCost};
use own::OwnPriority;

/// Keeps promises: what is known about them, and the loop's own priority meanwhile.
pub(crate) struct Promises {
    keeper: Keeper,
    own: OwnPriority,
    own_nice: Nice,
    notes: Vec<String>,
}

impl Promises {
    pub fn new(config: &Config, task_slice: bool) -> Self {
        let guarantees = Guarantees { task_slice, ..config.guarantees.clone() };
        let mut keeper = Keeper::new(guarantees, config.scope.clone());
        keeper.set_known(&config.known);
        Self { keeper, own: OwnPriority::default(), own_nice: config.own_nice, notes: Vec::new() }
    }

    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The details to read so that promises can be kept, besides those asked for.
    pub fn with_promised(&self, detail: &Detail) -> Detail {
        union(detail, self.keeper.wants_details())
    }

    /// The details, with those of promised tasks that an observation lacks, if it lacks any.
    pub fn with_missing(&mut self, detail: &Detail, observation: &Observation) -> Option<Detail> {
        if !self.keeper.is_needed(observation) {
            return None;
        }
        let missing = self.keeper.missing_details(observation);
        (!missing.is_empty()).then(|| union(detail, &missing))
    }

    /// Broken time since it was last written, if it is time to write it: by name.
    pub fn take_times(&mut self) -> Vec<(String, PromiseTime)> {
        self.keeper.take_times(Instant::now())
    }

    /// One correction, if it is time for one; `at_once`: in any case.
    fn correct(&mut self, at_once: bool, controls: &mut Controls) {
        let Some(changes) = self.keeper.tick(Instant::now(), at_once) else { return };
        if !changes.is_empty() {
            let report = controls.amend(&changes);
            self.keeper.learn(&report, Instant::now());
        }
    }
}

impl Component for Promises {
    fn on_tick(&mut self, _late: Duration, controls: &mut Controls) {
        self.correct(false, controls);
    }

    /// Solves everything again for what was observed.
    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next {
        let needed = self.keeper.is_needed(seen.observation);
        if controls.act() {
            self.notes.extend(self.own.follow(needed, self.own_nice));
        }
        if !needed {
            return Next::Stays;
        }
        let found = controls.as_found(seen.observation.clone());
        let dropped = self.keeper.resolve(&found, controls.bounds(), Instant::now());
        self.keeper.count_waits(seen.observation);
        self.keeper.follow_usage(seen.observation, seen.hierarchies);
        if dropped {
            return Next::SetAll;
        }
        let report = controls.amend(&self.keeper.weights());
        self.keeper.learn(&report, Instant::now());
        self.correct(true, controls);
        Next::Stays
    }

    fn changes(&self) -> Vec<Change> {
        self.keeper.changes().collect()
    }

    /// Setting everything answers another manager's value, too.
    fn learn(&mut self, _plan: &Plan, report: &SetReport) {
        self.keeper.learn(report, Instant::now());
    }

    fn status(&self, record: &mut RunRecord) {
        record.guarantees = self.keeper.statuses();
    }

    fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.keeper.take_notes());
        notes
    }
}

/// How promises stand in one observation, whether or not anybody keeps them: what fits, and what was got.
pub fn look(guarantees: Guarantees, scope: &Scope, observation: &Observation) -> Vec<GuaranteeStatus> {
    let bounds = Bounds::reckon(&Bounds::default(), observation, scope, &guarantees.stated, false, None);
    let mut keeper = Keeper::new(guarantees, scope.clone());
    if !keeper.is_needed(observation) {
        return Vec::new();
    }
    keeper.missing_details(observation);
    keeper.resolve(observation, &bounds, Instant::now());
    keeper.judge(observation);
    keeper.statuses()
}

/// Details of both.
fn union(detail: &Detail, more: &BTreeSet<TaskId>) -> Detail {
    match detail {
        Select::All => Select::All,
        _ if more.is_empty() => detail.clone(),
        Select::None => Select::Tasks(more.clone()),
        Select::Tasks(tasks) => Select::Tasks(tasks.union(more).copied().collect()),
        // Processes and tasks cannot be said together.
        Select::Processes(_) => Select::All,
    }
}
