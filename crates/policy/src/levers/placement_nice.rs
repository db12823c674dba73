//! The published recipe: greedy placement, then niceness in proportion to load; and its second half alone.

use std::collections::BTreeMap;

use evenkeel_base::{Change, CpuSet, Nice as NiceValue, Setting, Target};

use super::lever::{Lever, PUBLISHED_RECIPE, nice_within_groups};
use super::scene::Scene;
use crate::placement::{self, Load};
use crate::priority;

/// Niceness in proportion to load, no pinning: for kernels without slices.
pub const NICE: Lever = Lever {
    name: "nice",
    why: "time slices in proportion to load",
    propose: |scene| {
        if scene.features.task_slice {
            return None;
        }
        let nice = nice_within_groups(scene);
        Some(nice_changes(scene, &nice))
    },
    ..Lever::NOTHING
};

/// Longest processing time first onto the least loaded CPU; then, on each CPU and within each cgroup there, weights
/// in proportion to load.
pub const PLACEMENT_NICE: Lever = Lever {
    name: PUBLISHED_RECIPE,
    why: "loads spread over the CPUs as evenly as whole tasks allow; on each CPU time slices in proportion to load",
    propose: |scene| {
        let placed = place(scene);
        let mut changes: Vec<Change> = scene
            .tasks
            .iter()
            .zip(&placed)
            .filter_map(|(subject, cpu)| {
                let to = CpuSet::single((*cpu)?);
                (subject.task.affinity.as_ref() != Some(&to)).then(|| Change {
                    target: Target::Task(subject.task.id),
                    to: Setting::Affinity(to),
                    why: format!("least loaded CPU for its {} %", whole(subject.load_pct)),
                })
            })
            .collect();
        let mut nice: Vec<NiceValue> = scene.tasks.iter().map(|s| s.found.nice).collect();
        let mut contests: BTreeMap<(Option<u32>, Option<u32>), Vec<usize>> = BTreeMap::new();
        for (index, subject) in
            scene.tasks.iter().enumerate().filter(|(_, subject)| subject.found.policy.has_nice())
        {
            contests.entry((placed[index], subject.task.group)).or_default().push(index);
        }
        for members in contests.into_values().filter(|m| m.len() > 1) {
            let loads: Vec<f64> = members.iter().map(|&i| scene.tasks[i].load_pct).collect();
            let base: Vec<NiceValue> = members.iter().map(|&i| nice[i]).collect();
            for (&index, value) in members.iter().zip(priority::proportional(&loads, &base)) {
                nice[index] = value;
            }
        }
        changes.extend(nice_changes(scene, &nice));
        Some(changes)
    },
    ..Lever::NOTHING
};

/// Greedy placement of the scene's tasks; what the rest of the host uses counts as fixed load of its CPU.
pub(super) fn place(scene: &Scene<'_>) -> Vec<Option<u32>> {
    let mut fixed: BTreeMap<u32, f64> = scene
        .observation
        .host
        .per_cpu
        .iter()
        .map(|c| (c.cpu, c.busy_pct + c.steal_pct.unwrap_or(0.0)))
        .collect();
    for subject in &scene.tasks {
        if let Some(used) = subject.task.cpu.and_then(|cpu| fixed.get_mut(&cpu)) {
            *used = (*used - subject.task.cpu_pct).max(0.0);
        }
    }
    let slots = placement::slots(&scene.observation.topology, |cpu| fixed.get(&cpu).copied().unwrap_or(0.0));
    let loads: Vec<Load<'_>> = scene
        .tasks
        .iter()
        .map(|s| Load { pct: s.load_pct, allowed: &s.allowed, family: Some(s.task.id.tgid) })
        .collect();
    placement::place(&loads, &slots)
}

fn nice_changes(scene: &Scene<'_>, nice: &[NiceValue]) -> Vec<Change> {
    scene
        .tasks
        .iter()
        .zip(nice)
        .filter_map(|(subject, &nice)| {
            let why = format!("weight by its load of {} %", whole(subject.load_pct));
            subject.sched(&why, |attr| attr.nice = nice)
        })
        .collect()
}

/// Percent as people read it. Thousands of reasons are written; of numbers with a point that takes longer than the plan.
fn whole(pct: f64) -> u32 {
    pct.round() as u32
}
