//! What a run writes down: stages, the changes in force with their effect, its own cost.

use std::collections::HashMap;

use evenkeel_actuate::RestoreReport;
use evenkeel_base::run::{ChangeRecord, Stage};
use evenkeel_base::{Change, Observation, Target, TaskId};
use evenkeel_linux::sys::wall_ns;
use evenkeel_policy::levers;

use crate::agent::Agent;
use crate::component::with_changes;
use crate::events::{Event, Watcher};

/// Stages of a run kept in memory: it may last for months. The history has them all.
const MOST_STAGES: usize = 1000;

impl Agent {
    /// Adds a stage to the record and the history.
    pub(crate) fn add_stage(&mut self, stage: Stage, watcher: &mut dyn Watcher) {
        watcher.event(&Event::Stage(&stage));
        self.log.recorder.add_stage(&stage);
        let stages = &mut self.log.record.stages;
        if stages.len() == MOST_STAGES {
            stages.remove(0);
        }
        stages.push(stage);
    }

    /// Brings the record up to date with the settings in force.
    pub(crate) fn note_settings(&mut self, effect: Option<&str>, observation: &Observation) {
        self.log.record.settings = self.plan.name.clone();
        let names: HashMap<TaskId, &str> =
            observation.tasks.iter().map(|t| (t.id, t.comm.as_str())).collect();
        let at_ns = wall_ns();
        let [knob, from, to, why] = match self.plan.before.is_empty() {
            true => [
                levers::PULL,
                "waits where it is queued",
                "moves to an idle CPU that shares its cache",
                "no CPU is idle while it waits",
            ],
            false => [
                levers::ASIDE,
                "stays when a service wakes behind it",
                "moves to another CPU that shares its cache",
                "services need not wait for it",
            ],
        };
        let before = std::mem::take(&mut self.log.record.changes);
        let beside = self.components.changes();
        let wanted = with_changes(&self.plan, beside.clone()).changes;
        let touched = self.controls.touched().filter_map(|(target, from, now)| Some((target, from, now?)));
        self.log.record.changes = touched
            .filter(|(_, from, now)| from != now)
            .map(|(target, from, now)| {
                let here = |c: &&Change| c.target == *target && c.knob() == now.knob();
                let why = wanted.iter().find(here).map(|change| change.why.clone());
                let (task, group) = task_or_group(target);
                let knob = now.knob().name();
                // What a component wants is in force in every window: no test tells what it does.
                let effect = effect.map(str::to_owned).filter(|_| !beside.iter().any(|c| here(&c)));
                ChangeRecord {
                    effect,
                    task,
                    comm: task.and_then(|id| names.get(&id)).map(|comm| (*comm).to_owned()),
                    group,
                    knob: knob.to_owned(),
                    from: from.to_string(),
                    to: now.to_string(),
                    why: why.unwrap_or_default(),
                    at_ns,
                }
            })
            .chain(self.plan.pull.iter().map(|id| ChangeRecord {
                task: Some(*id),
                comm: names.get(id).map(|comm| (*comm).to_owned()),
                group: None,
                knob: knob.to_owned(),
                from: from.to_owned(),
                to: to.to_owned(),
                why: why.to_owned(),
                effect: effect.map(str::to_owned),
                at_ns,
            }))
            .map(|change| continued(change, &before))
            .collect();
        self.log.record.own_cost = self.log.cost.read();
        self.log.recorder.set_changes(&self.log.record.changes);
        self.log.recorder.update_run(&self.log.record);
    }

    /// What could not be restored is all that is still in force.
    pub(crate) fn forget_restored(&mut self, report: &RestoreReport) {
        self.log.record.changes.retain(|change| is_left(change, report));
    }

    /// Keeps the record's own cost and the effect of the changes fresh.
    pub(crate) fn note_cost(&mut self) {
        self.note_effect();
        self.log.record.own_cost = self.log.cost.read();
        self.log.recorder.update_run(&self.log.record);
    }

    /// Writes how long promises were broken, and fills in the day's sum.
    pub(crate) fn note_promises(&mut self) {
        let minute = wall_ns() / 60_000_000_000;
        for (name, time) in self.components.promises.take_times() {
            self.log.recorder.add_promise_time(&name, minute, time);
        }
        let keeper = self.components.promises.keeper();
        for status in &mut self.log.record.guarantees {
            status.broken_min_day = match self.log.recorder.promise_day(&status.name) {
                Some(time) => Some((time.broken_s + keeper.unwritten_broken_s(&status.name)) / 60.0),
                None => keeper.broken_s_of_a_day(&status.name).map(|seconds| seconds / 60.0),
            };
        }
    }
}

/// A change that was in force before keeps the time of its first write, and what came of it.
fn continued(change: ChangeRecord, before: &[ChangeRecord]) -> ChangeRecord {
    let same = |old: &&ChangeRecord| {
        old.task == change.task && old.group == change.group && old.knob == change.knob && old.to == change.to
    };
    match before.iter().find(same) {
        Some(old) => {
            ChangeRecord { at_ns: old.at_ns, effect: change.effect.or_else(|| old.effect.clone()), ..change }
        }
        None => change,
    }
}

/// A target as a record of changes names it.
fn task_or_group(target: &Target) -> (Option<TaskId>, Option<String>) {
    match target {
        Target::Task(id) => (Some(*id), None),
        Target::Group(group) => (None, Some(group.path.clone())),
        Target::Net(_) | Target::Host => (None, None),
    }
}

/// Whether a change is still in force, for it could not be restored.
fn is_left(change: &ChangeRecord, report: &RestoreReport) -> bool {
    report.failed.iter().any(|item| {
        change.knob == item.knob.name() && (change.task, change.group.clone()) == task_or_group(&item.target)
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Knob;

    use super::*;
    use crate::events::Quiet;
    use crate::testing::restored;

    #[test]
    fn the_newest_stages_are_kept() {
        let mut agent = crate::testing::agent("cgroup:/work", |_| {});
        for number in 0..1500 {
            agent.add_stage(Stage { seconds: f64::from(number), ..Stage::default() }, &mut Quiet);
        }
        let stages = &agent.log.record.stages;
        assert_eq!((stages.len(), stages[0].seconds, stages[999].seconds), (1000, 500.0, 1499.0));
    }

    #[test]
    fn a_change_that_could_not_be_restored_is_still_in_force() {
        let change = |path: &str| ChangeRecord {
            group: Some(path.into()),
            knob: "weight".into(),
            ..ChangeRecord::default()
        };
        let report = RestoreReport {
            failed: vec![restored("/a", Knob::Weight), restored("/b", Knob::Quota)],
            put_back: vec![restored("/c", Knob::Weight)],
            ..RestoreReport::default()
        };
        assert_eq!(["/a", "/b", "/c"].map(|path| is_left(&change(path), &report)), [true, false, false]);
    }

    #[test]
    fn a_change_that_stays_in_force_keeps_the_time_of_its_write() {
        let of = |to: &str, at_ns, effect: Option<&str>| ChangeRecord {
            group: Some("/work".into()),
            knob: "weight".into(),
            to: to.into(),
            at_ns,
            effect: effect.map(str::to_owned),
            ..ChangeRecord::default()
        };
        let before = [of("weight 1", 5, Some("kept: +3"))];
        assert_eq!(continued(of("weight 1", 9, None), &before), before[0]);
        assert_eq!(continued(of("weight 1", 9, Some("kept: +4")), &before).effect.unwrap(), "kept: +4");
        assert_eq!(continued(of("weight 2", 9, None), &before), of("weight 2", 9, None), "written anew");
    }
}
