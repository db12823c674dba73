//! Long slices together with niceness in proportion to load.

use evenkeel_base::Change;

use super::{Lever, MAX_SLICE_NS, Scene, batch_policy, nice_within_groups};

/// SCHED_BATCH, the longest slice, and weights that follow the loads: after a slice is used up, the task with more
/// work left comes back sooner. Helps most where bursts are longer than a slice can be.
pub struct SliceNice;

impl Lever for SliceNice {
    fn name(&self) -> &'static str {
        "batch+long slice+nice"
    }

    fn why(&self) -> &'static str {
        "everyone may run to the end of its work, heavy tasks have the weight their load asks for"
    }

    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>> {
        if !scene.features.task_slice || scene.by_group().values().all(|members| members.len() < 2) {
            return None;
        }
        let nice = nice_within_groups(scene);
        let changes = scene.tasks.iter().zip(nice).filter_map(|(subject, nice)| {
            let why = format!("longest slice; weight by its load of {:.0} %", subject.load_pct);
            subject.sched(&why, |attr| {
                attr.policy = batch_policy(attr.policy);
                attr.slice_ns = Some(MAX_SLICE_NS);
                attr.nice = nice;
            })
        });
        Some(changes.collect())
    }
}
