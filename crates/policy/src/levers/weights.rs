//! cgroup weights in proportion to load: what acts between containers, where nice does not.

use evenkeel_base::{Change, CpuShares, CpuWeight, GroupRef, GroupView, Setting, Target};

use super::{Lever, Scene, batch_policy};

/// Weights of the scope's cgroups in proportion to their loads.
pub struct Weights;

/// The same with SCHED_BATCH and slices by burst.
pub struct SliceWeights;

impl Lever for Weights {
    fn name(&self) -> &'static str {
        "weights"
    }

    fn why(&self) -> &'static str {
        "each cgroup's share in proportion to its load; nice cannot act between cgroups"
    }

    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>> {
        if scene.features.task_slice { None } else { weights(scene) }
    }
}

impl Lever for SliceWeights {
    fn name(&self) -> &'static str {
        "batch+slice+weights"
    }

    fn why(&self) -> &'static str {
        "each task may finish a usual piece of work; each cgroup's share in proportion to its load"
    }

    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>> {
        if !scene.features.task_slice {
            return None;
        }
        let mut changes = weights(scene)?;
        changes.extend(scene.tasks.iter().filter_map(|subject| {
            subject.sched("slice of three bursts: work runs to its end", |attr| {
                attr.policy = batch_policy(attr.policy);
                attr.slice_ns = scene.slice_for(subject, 3.0).or(attr.slice_ns);
            })
        }));
        Some(changes)
    }
}

/// New weights of sibling groups, in proportion to load around their geometric middle. Only groups all of whose
/// running tasks are in the scope, and only where at least two siblings compete.
pub(super) fn weights(scene: &Scene<'_>) -> Option<Vec<Change>> {
    let groups = &scene.observation.groups;
    let mut contests: std::collections::BTreeMap<Option<u32>, Vec<(u32, f64)>> =
        std::collections::BTreeMap::new();
    for (index, members) in scene.by_group() {
        let Some(group) = groups.get(index as usize) else { continue };
        let ours: f64 = members.iter().map(|&i| scene.tasks[i].task.cpu_pct).sum();
        let all: f64 =
            scene.observation.tasks.iter().filter(|t| t.group == Some(index)).map(|t| t.cpu_pct).sum::<f64>();
        // The root group has no weight; a group shared with strangers is not ours to move.
        if group.parent.is_none() || group.raw_weight.is_none() || ours < 0.9 * all {
            continue;
        }
        let load = members.iter().map(|&i| scene.tasks[i].load_pct).sum();
        contests.entry(group.parent).or_default().push((index, load));
    }
    let mut changes = Vec::new();
    for siblings in contests.into_values().filter(|s| s.len() > 1) {
        let middle = (siblings.iter().map(|(_, load)| load.ln()).sum::<f64>() / siblings.len() as f64).exp();
        for (index, load) in siblings {
            let group = &groups[index as usize];
            let Some(raw) = group.raw_weight else { continue };
            let to = rounded(group, raw as f64 * load / middle);
            if to != raw {
                changes.push(Change {
                    target: Target::Group(GroupRef { path: group.path.clone(), v2: group.v2 }),
                    to: Setting::Weight(to),
                    why: format!("weight by its load of {load:.0} %"),
                });
            }
        }
    }
    (!changes.is_empty()).then_some(changes)
}

fn rounded(group: &GroupView, weight: f64) -> u64 {
    let whole = weight.round().max(0.0) as u64;
    if group.v2 { u64::from(CpuWeight::new(whole).get()) } else { u64::from(CpuShares::new(whole).get()) }
}
