//! cgroup weights in proportion to load: what acts between containers, where nice does not.

use evenkeel_base::{Change, CpuShares, CpuWeight, GroupView, Setting, Target};

use super::lever::{Lever, batch_policy};
use super::scene::Scene;

/// Weights of the scope's cgroups in proportion to their loads.
pub const WEIGHTS: Lever = Lever {
    name: "weights",
    why: "each cgroup's share in proportion to its load; nice cannot act between cgroups",
    propose: |scene| if scene.features.task_slice { None } else { weights(scene) },
    ..Lever::NOTHING
};

/// The same with SCHED_BATCH and slices by burst.
pub const SLICE_WEIGHTS: Lever = Lever {
    name: "batch+slice+weights",
    why: "each task may finish a usual piece of work; each cgroup's share in proportion to its load",
    propose: |scene| {
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
    },
    ..Lever::NOTHING
};

/// New weights of sibling groups, in proportion to load around their geometric middle. Only groups that hold tasks of the
/// scope and no others, and only where at least two siblings that are not idle compete.
pub(super) fn weights(scene: &Scene<'_>) -> Option<Vec<Change>> {
    let groups = &scene.observation.groups;
    let mut contests: std::collections::BTreeMap<Option<u32>, Vec<(u32, f64)>> =
        std::collections::BTreeMap::new();
    for index in scene.by_group().into_keys() {
        let (Some(group), Some(ours)) = (groups.get(index as usize), scene.groups.get(&index)) else {
            continue;
        };
        // The root group has no weight, and the kernel takes none for an idle one (`sched_group_set_shares`).
        let movable = group.parent.is_some() && group.raw_weight.is_some() && !group.idle;
        if movable && scene.own.get(index as usize) == Some(&true) {
            contests.entry(group.parent).or_default().push((index, ours.load_pct));
        }
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
                    target: Target::Group(group.reference()),
                    to: Setting::Weight(to),
                    why: format!("weight by its load of {load:.0} %"),
                });
            }
        }
    }
    (!changes.is_empty()).then_some(changes)
}

pub(super) fn rounded(group: &GroupView, weight: f64) -> u64 {
    let whole = weight.round().max(0.0) as u64;
    if group.v2 { u64::from(CpuWeight::new(whole).get()) } else { u64::from(CpuShares::new(whole).get()) }
}
