//! What a run writes down: stages, the changes in force with their effect, its own cost.

use std::collections::HashMap;

use evenkeel_base::run::{ChangeRecord, Stage};
use evenkeel_base::{Change, Observation, Target, TaskId};
use evenkeel_policy::levers;

use crate::agent::{Agent, wall_ns};
use crate::events::{Event, Watcher};
use crate::governor::ScopeGovernor;

impl Agent {
    /// Adds a stage to the record and the history.
    pub(crate) fn add_stage(&mut self, stage: Stage, watcher: &mut dyn Watcher) {
        watcher.event(&Event::Stage(&stage));
        self.recorder.add_stage(&stage);
        self.record.stages.push(stage);
    }

    /// Brings the record up to date with the settings in force.
    pub(crate) fn note_settings(&mut self, effect: Option<&str>, observation: &Observation) {
        self.record.settings = self.plan.name.clone();
        let names: HashMap<TaskId, &str> =
            observation.tasks.iter().map(|t| (t.id, t.comm.as_str())).collect();
        let at_ns = wall_ns();
        let touched: Vec<_> = match &self.actuator {
            Some(actuator) => actuator
                .touched()
                .filter_map(|(t, from, now)| Some((t, from, now?)))
                .filter(|(_, from, now)| from != now)
                .collect(),
            None => Vec::new(),
        };
        self.record.changes = touched
            .into_iter()
            .map(|(target, from, now)| {
                let here = |c: &&Change| c.target == *target && c.knob() == now.knob();
                let why = self.plan.changes.iter().find(here).cloned();
                let why = why.or_else(|| self.keeper.changes().find(|c| here(&c)));
                let limit = || self.governor.as_ref().and_then(ScopeGovernor::change);
                let why = why.or_else(|| limit().filter(|c| here(&c)));
                let (task, group) = match target {
                    Target::Task(id) => (Some(*id), None),
                    Target::Group(group) => (None, Some(group.path.clone())),
                    Target::Net(_) => (None, None),
                };
                ChangeRecord {
                    task,
                    comm: task.and_then(|id| names.get(&id)).map(|comm| (*comm).to_owned()),
                    group,
                    knob: now.knob().name().to_owned(),
                    from: from.to_string(),
                    to: now.to_string(),
                    why: why.map_or_else(String::new, |change| change.why),
                    effect: effect.map(str::to_owned),
                    at_ns,
                }
            })
            .chain(self.plan.pull.iter().map(|id| ChangeRecord {
                task: Some(*id),
                comm: names.get(id).map(|comm| (*comm).to_owned()),
                group: None,
                knob: levers::PULL.to_owned(),
                from: "waits where it is queued".to_owned(),
                to: "goes to an idle CPU beside".to_owned(),
                why: "no CPU is idle while it waits".to_owned(),
                effect: effect.map(str::to_owned),
                at_ns,
            }))
            .collect();
        self.record.own_cost = self.cost.read();
        self.recorder.set_changes(&self.record.changes);
        self.recorder.update_run(&self.record);
    }

    /// Keeps the record's own cost and the effect of the changes fresh, and how protected scopes stand.
    pub(crate) fn note_cost(&mut self) {
        self.note_effect();
        self.record.protected = self.guardian.statuses(self.config.rules.guard.wait_factor);
        self.record.own_cost = self.cost.read();
        self.recorder.update_run(&self.record);
    }
}
