//! Plans that change nothing: what is put to the test is who decides about them.

use std::collections::HashMap;

use evenkeel_base::{Change, Knob, Plan, Setting, Target};

use super::scene::Scene;

/// These plans with the baseline's values in place of their own: the same properties, as many. What moves waiting work only
/// sets nothing, so it is left out.
pub fn as_found(scene: &Scene<'_>, plans: Vec<Plan>) -> Vec<Plan> {
    let tasks: HashMap<_, _> = scene.tasks.iter().map(|subject| (subject.task.id, subject)).collect();
    let found = |change: &Change| -> Option<Setting> {
        match (&change.target, change.knob()) {
            (Target::Task(id), Knob::Sched) => Some(Setting::Sched(tasks.get(id)?.found)),
            (Target::Task(id), Knob::Affinity) => tasks.get(id)?.task.affinity.clone().map(Setting::Affinity),
            (Target::Group(group), Knob::Weight) => {
                let seen = scene.observation.groups.iter().find(|seen| seen.path == group.path)?;
                seen.raw_weight.map(Setting::Weight)
            }
            _ => None,
        }
    };
    let of_plan = |plan: Plan| {
        let changes: Option<Vec<Change>> =
            plan.changes.into_iter().map(|change| Some(Change { to: found(&change)?, ..change })).collect();
        let changes = changes.filter(|changes| !changes.is_empty())?;
        let name = format!("{} (as found)", plan.name);
        Some(Plan { name, why: "the values as found, written again".to_owned(), changes, ..Plan::default() })
    };
    plans.into_iter().filter_map(of_plan).collect()
}
