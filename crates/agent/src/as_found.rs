//! The host as it was found: what levers compute from, while settings of ours are in force.

use std::collections::HashMap;

use evenkeel_base::{Knob, Observation, Setting, Target};

/// Replaces every value of ours in an observation by the original.
pub fn as_found<'a>(
    mut observation: Observation,
    touched: impl Iterator<Item = (&'a Target, &'a Setting, Option<&'a Setting>)>,
) -> Observation {
    let mut tasks = HashMap::new();
    let mut groups = HashMap::new();
    for (target, original, _) in touched {
        match target {
            Target::Task(id) => {
                tasks.insert((*id, original.knob()), original);
            }
            Target::Group(group) => {
                groups.insert((group.path.as_str(), original.knob()), original);
            }
            Target::Net(_) | Target::Host => {}
        }
    }
    for task in &mut observation.tasks {
        if let Some(Setting::Sched(attr)) = tasks.get(&(task.id, Knob::Sched)) {
            task.sched = Some(*attr);
        }
        if let Some(Setting::Affinity(cpus)) = tasks.get(&(task.id, Knob::Affinity)) {
            task.affinity = Some(cpus.clone());
        }
    }
    for group in &mut observation.groups {
        if let Some(Setting::Weight(raw)) = groups.get(&(group.path.as_str(), Knob::Weight)) {
            group.raw_weight = Some(*raw);
        }
        if let Some(Setting::Quota(quota)) = groups.get(&(group.path.as_str(), Knob::Quota)) {
            group.quota = Some(*quota);
        }
    }
    observation
}
