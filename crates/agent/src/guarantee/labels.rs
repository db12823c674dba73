//! Promises that containers' labels and pods' annotations make.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::Observation;
use evenkeel_policy::guarantee::Promise;

use super::keeper::Keeper;
use super::ward::Ward;
use super::{CPU_LABEL, Goal, Source, WAIT_LABEL};
use crate::scope::Scope;

impl Keeper {
    /// Containers' labels and pods' annotations.
    pub(super) fn take_labels(&mut self, observation: &Observation) {
        if !self.config.labels {
            return;
        }
        let mut found: BTreeMap<String, Goal> = BTreeMap::new();
        let mut add = |told: &mut BTreeSet<String>,
                       notes: &mut Vec<String>,
                       name: String,
                       scope: String,
                       labels: &[(String, String)],
                       source| {
            match labelled(labels) {
                Ok(None) => {}
                Ok(Some(promise)) => {
                    if let Ok(scope) = Scope::parse(&[&scope]) {
                        found.insert(name.clone(), Goal { name, scope, promise, source });
                    }
                }
                Err(error) => {
                    let note = format!("{name}: {error}");
                    if told.insert(note.clone()) {
                        notes.push(note);
                    }
                }
            }
        };
        let (told, notes) = (&mut self.told, &mut self.notes);
        for c in &observation.containers {
            add(
                told,
                notes,
                format!("container:{}", c.name),
                format!("container:{}", c.id),
                &c.labels,
                Source::Label,
            );
        }
        for p in &observation.pods {
            let name = format!("pod:{}/{}", p.namespace.as_deref().unwrap_or(""), p.name);
            add(told, notes, name, format!("pod:{}", p.uid), &p.annotations, Source::Annotation);
        }
        // What the configuration says about the same name counts; what is gone is forgotten.
        found.retain(|name, _| !self.config.goals.iter().any(|goal| goal.name == *name));
        let same = |a: &Goal, b: &Goal| a.promise == b.promise && a.scope.texts() == b.scope.texts();
        self.wards.retain(|ward| {
            ward.goal.source == Source::Config
                || found.get(&ward.goal.name).is_some_and(|goal| same(goal, &ward.goal))
        });
        for (name, goal) in &found {
            if !self.wards.iter().any(|ward| ward.goal.name == *name) {
                self.wards.push(Ward::new(goal.clone()));
            }
        }
        self.labelled = found;
    }
}

pub(super) fn is_labelled(labels: &[(String, String)]) -> bool {
    labels.iter().any(|(key, _)| key == CPU_LABEL || key == WAIT_LABEL)
}

/// The promise that labels make.
fn labelled(labels: &[(String, String)]) -> Result<Option<Promise>, String> {
    let value = |name: &str| labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let cpu = value(CPU_LABEL)
        .map(|text| text.parse().map_err(|error| format!("{CPU_LABEL}: {error}")))
        .transpose()?;
    let wait_p99_ns = value(WAIT_LABEL)
        .map(|text| wait_ns(text).map_err(|error| format!("{WAIT_LABEL}: {error}")))
        .transpose()?;
    Ok((cpu.is_some() || wait_p99_ns.is_some()).then_some(Promise { cpu, wait_p99_ns }))
}

/// Reads a promised wait such as `2ms`, nanoseconds.
///
/// # Errors
/// No duration, or one outside 0.1 ms to 10 s.
pub fn wait_ns(text: &str) -> Result<u64, String> {
    let split = text.trim().find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.trim().len());
    let (number, unit) = text.trim().split_at(split);
    let factor = match unit.trim() {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("{text:?} is no wait: expected a duration such as \"2ms\"")),
    };
    let ns = number.parse::<f64>().map_err(|_| format!("{text:?} is no wait: no number"))? * factor;
    if (1e5..=1e10).contains(&ns) {
        Ok(ns as u64)
    } else {
        Err(format!("{text:?} cannot be promised: 0.1 ms to 10 s can"))
    }
}
