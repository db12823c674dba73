//! One record of the shards of an experiment ([`crate::shard`]), with each host named. What is of another experiment is
//! refused, and what is missing stays missing: its cells are nowhere, and a requirement names them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::record::{Cell, DECISIVE, Host, MergedShard, Record, Requirement};
use crate::shard::Shard;

/// The [`Requirement`] that says which shards lack cells.
pub const SHARDS: &str = "shards";

/// Why records cannot be merged.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MergeError(String);

/// The record of a shard, and what its folder is called.
#[derive(Debug, Clone)]
pub struct Part {
    /// For messages.
    pub name: String,
    pub record: Record,
}

/// Merges the shards of one experiment.
///
/// # Errors
/// A record is no shard, of another experiment, of another split, or there twice. The message says what differs.
pub fn merge(parts: Vec<Part>) -> Result<Record, MergeError> {
    let mut parts: Vec<(Shard, Part)> = parts.into_iter().map(shard_of).collect::<Result<_, _>>()?;
    parts.sort_by_key(|(shard, _)| shard.index);
    let Some((first, rest)) = parts.split_first() else {
        return Err(MergeError("nothing to merge: name the result folders of the shards".into()));
    };
    rest.iter().try_for_each(|other| same(first, other))?;
    for pair in parts.windows(2) {
        let [(a, one), (b, two)] = pair else { continue };
        if a == b {
            return Err(MergeError(format!(
                "shard {a} is there twice: {} ({} cells) and {} ({} cells); name one of them",
                one.name,
                one.record.cells.len(),
                two.name,
                two.record.cells.len()
            )));
        }
    }
    let count = first.0.count;
    let mut merged = first.1.record.clone();
    let points = points(&first.1)?;
    let repetitions = merged.experiment.as_ref().map_or(0, |experiment| experiment.repetitions);
    (merged.shard, merged.planned_cells) = (None, points * repetitions as usize);
    merged.host = common(&parts);
    merged.requirements = requirements(&parts);
    merged.merged = parts.iter().map(|(shard, part)| about(*shard, &part.record)).collect();
    merged.began = merged.merged.iter().map(|part| part.began.clone()).min().unwrap_or_default();
    let simulated = merged.is_simulated();
    merged.cells.clear();
    let mut there = BTreeSet::new();
    for (_, part) in parts {
        let node = part.record.host.name.filter(|_| !simulated);
        for cell in part.record.cells {
            let place = (cell.repetition, cell.point.index);
            if place.0 >= repetitions || place.1 >= points || !there.insert(place) {
                return Err(MergeError(format!(
                    "{}: repetition {} of point {} is there twice, or not of this experiment",
                    part.name, place.0, place.1
                )));
            }
            merged.cells.push(Cell { node: node.clone(), ..cell });
        }
    }
    // As one run would have left them: repetition by repetition, in the order measured; simulated in the order written.
    merged.cells.sort_by(|a, b| {
        let key = |cell: &Cell| (cell.repetition, cell.released_at.clone(), cell.point.index);
        key(a).cmp(&key(b))
    });
    let complete = merged.is_complete();
    merged.finished =
        merged.merged.iter().map(|part| part.finished.clone()).max().flatten().filter(|_| complete);
    merged.requirements.push(completeness(&merged, count));
    Ok(merged)
}

fn shard_of(part: Part) -> Result<(Shard, Part), MergeError> {
    let no = |why: &str| MergeError(format!("{}: {why}", part.name));
    if !part.record.merged.is_empty() {
        return Err(no("is merged already; name the folders of the shards"));
    }
    if part.record.experiment.is_none() {
        return Err(no("holds imported logs, not an experiment; `lab compare` sets those side by side"));
    }
    match part.record.shard {
        Some(shard) if shard.index < shard.count => Ok((shard, part)),
        Some(shard) => Err(no(&format!("{shard} is no shard"))),
        None => Err(no(
            "is a whole experiment, not a shard of one (--shard); `lab compare` sets those side by side",
        )),
    }
}

fn points(part: &Part) -> Result<usize, MergeError> {
    let experiment = part.record.experiment.clone().unwrap_or_default();
    let points = experiment.points().map_err(|e| MergeError(format!("{}: {e}", part.name)))?;
    Ok(points.len())
}

/// Refuses what is not of the same experiment.
fn same((shard, a): &(Shard, Part), (other, b): &(Shard, Part)) -> Result<(), MergeError> {
    let differ = |what: String, one: &dyn std::fmt::Display, two: &dyn std::fmt::Display| {
        Err(MergeError(format!(
            "{} and {} are not of one experiment: {what} is {one} in the first, {two} in the second",
            a.name, b.name
        )))
    };
    if shard.count != other.count {
        return differ("the number of shards".into(), &shard.count, &other.count);
    }
    let words = |simulated: bool| if simulated { "simulated" } else { "measured" };
    let simulated = a.record.is_simulated();
    if simulated != b.record.is_simulated() {
        return differ("how it was run".into(), &words(simulated), &words(!simulated));
    }
    let view = |record: &Record| {
        // A simulation is of one machine, by one version of the models; what is measured may be of several.
        let machine = simulated.then(|| serde_json::json!({"host": record.host, "evenkeel": record.version}));
        serde_json::json!({
            "name": record.name, "builtin": record.builtin, "quick": record.quick,
            "experiment": record.experiment, "machine": machine,
        })
    };
    match difference("", &view(&a.record), &view(&b.record)) {
        Some((path, one, two)) => differ(path, &one, &two),
        None => Ok(()),
    }
}

/// The first place in which two documents differ, and what is there.
fn difference(path: &str, a: &Value, b: &Value) -> Option<(String, Value, Value)> {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (a, b) {
        (Value::Object(one), Value::Object(two)) => {
            let keys: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
            let of =
                |map: &serde_json::Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or_default();
            keys.into_iter().find_map(|key| difference(&below(key), &of(one, key), &of(two, key)))
        }
        (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
            let pairs = one.iter().zip(two).enumerate();
            pairs.into_iter().find_map(|(n, (a, b))| difference(&below(&(n + 1).to_string()), a, b))
        }
        _ if a == b => None,
        _ => Some((path.to_owned(), a.clone(), b.clone())),
    }
}

/// What all hosts have in common, under the names of all.
fn common(parts: &[(Shard, Part)]) -> Host {
    let hosts = || parts.iter().map(|(_, part)| &part.record.host);
    let mut names: Vec<&str> = hosts().filter_map(|host| host.name.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    let views: Vec<Value> = hosts().map(|host| serde_json::to_value(host).unwrap_or_default()).collect();
    let mut kept = views.first().cloned().unwrap_or_default();
    if let Value::Object(fields) = &mut kept {
        fields.retain(|key, value| views.iter().all(|view| view[key] == *value));
    }
    let host: Host = serde_json::from_value(kept).unwrap_or_default();
    Host { name: (!names.is_empty()).then(|| names.join(", ")), ..host }
}

fn about(shard: Shard, record: &Record) -> MergedShard {
    MergedShard {
        shard,
        host: record.host.clone(),
        began: record.began.clone(),
        finished: record.finished.clone(),
        cells: [record.cells.len(), record.planned_cells],
    }
}

fn node(host: &Host) -> &str {
    host.name.as_deref().unwrap_or("a host without a name")
}

/// What the shards needed, with the host's name where they differ, and whether their hosts are alike.
fn requirements(parts: &[(Shard, Part)]) -> Vec<Requirement> {
    let records = || parts.iter().map(|(_, part)| &part.record);
    let first = parts.first().map(|(_, part)| part.record.requirements.clone()).unwrap_or_default();
    if records().all(|record| record.requirements == first && record.is_simulated()) {
        return first;
    }
    let named = |record: &Record| {
        let node = node(&record.host).to_owned();
        let named = move |mut one: Requirement| {
            one.evidence = format!("{node}: {}", one.evidence);
            one
        };
        record.requirements.clone().into_iter().map(named)
    };
    let mut all: Vec<Requirement> = records().flat_map(named).collect();
    let facts = |record: &Record| {
        let host = serde_json::to_value(&record.host).unwrap_or_default();
        let mut facts = Vec::new();
        for key in DECISIVE {
            match &host[key] {
                Value::Null => {}
                Value::String(text) => facts.push(format!("{key} {text}")),
                other => facts.push(format!("{key} {other}")),
            }
        }
        facts.push(format!("evenkeel {}", record.version));
        facts
    };
    let all_facts: Vec<Vec<String>> = records().map(facts).collect();
    let in_all = |fact: &String| all_facts.iter().all(|facts| facts.contains(fact));
    let own = records().zip(&all_facts).filter_map(|(record, facts)| {
        let own: Vec<&str> = facts.iter().filter(|fact| !in_all(fact)).map(String::as_str).collect();
        (!own.is_empty()).then(|| format!("{} has {}", node(&record.host), own.join(", ")))
    });
    let own: Vec<String> = own.collect();
    let evidence = if own.is_empty() { "they are".to_owned() } else { own.join("; ") };
    let consequence = "figures are of a mix of hosts; `lab compare` sets the shards side by side";
    all.push(Requirement::new("hosts-alike", Some(own.is_empty()), evidence, consequence));
    all
}

/// Whether all cells are there; else which shards lack some.
fn completeness(merged: &Record, count: u32) -> Requirement {
    let there: Vec<u32> = merged.merged.iter().map(|part| part.shard.index).collect();
    let missing: Vec<String> =
        (0..count).filter(|index| !there.contains(index)).map(|index| index.to_string()).collect();
    let mut lacking = Vec::new();
    if !missing.is_empty() {
        let s = if missing.len() == 1 { "" } else { "s" };
        lacking.push(format!("no results of shard{s} {} of {count}", missing.join(", ")));
    }
    for part in &merged.merged {
        let [done, of] = part.cells;
        if done < of {
            lacking.push(format!("{done} of {of} cells of shard {} on {}", part.shard, node(&part.host)));
        }
    }
    if lacking.is_empty() && !merged.is_complete() {
        lacking.push(format!("{} of {} cells", merged.cells.len(), merged.planned_cells));
    }
    let evidence = if lacking.is_empty() { "all are there".to_owned() } else { lacking.join("; ") };
    Requirement::new(
        SHARDS,
        Some(lacking.is_empty()),
        evidence,
        "what is missing is not known, and not in the figures",
    )
}

#[cfg(test)]
mod tests;
