//! Slices together with niceness in proportion to load.

use evenkeel_base::Change;
use evenkeel_base::sched::MAX_SLICE_NS;

use super::lever::{Lever, batch_policy, nice_within_groups};
use super::scene::Scene;
use super::slice::BURSTS;

/// SCHED_BATCH, slices by burst, and weights that follow the loads.
pub const MATCHED_SLICE_NICE: Lever = Lever {
    name: "batch+slice by burst+nice",
    why: "each task may finish a usual piece of work, heavy tasks have the weight their load asks for",
    propose: |scene| with_nice(scene, |scene, index| scene.slice_for(&scene.tasks[index], BURSTS)),
    ..Lever::NOTHING
};

/// SCHED_BATCH, the longest slice, and weights that follow the loads: after a slice is used up, the task with more
/// work left comes back sooner. Helps most where bursts are longer than a slice can be.
pub const LONG_SLICE_NICE: Lever = Lever {
    name: "batch+long slice+nice",
    why: "everyone may run to the end of its work, heavy tasks have the weight their load asks for",
    propose: |scene| with_nice(scene, |_, _| Some(MAX_SLICE_NS)),
    ..Lever::NOTHING
};

fn with_nice(scene: &Scene<'_>, slice: impl Fn(&Scene<'_>, usize) -> Option<u64>) -> Option<Vec<Change>> {
    if !scene.features.task_slice || !scene.nice_acts() {
        return None;
    }
    let nice = nice_within_groups(scene);
    let changes = scene.tasks.iter().zip(nice).enumerate().filter_map(|(index, (subject, nice))| {
        let why = format!("work runs to its end; weight by its load of {:.0} %", subject.load_pct);
        subject.sched(&why, |attr| {
            attr.policy = batch_policy(attr.policy);
            attr.slice_ns = slice(scene, index).or(attr.slice_ns);
            attr.nice = nice;
        })
    });
    Some(changes.collect())
}
