//! SCHED_BATCH alone: the lever of kernels without a slice of one's own.

use super::lever::{Lever, batch_policy};

/// SCHED_BATCH for everyone in the scope: a waking task does not preempt.
pub const BATCH: Lever = Lever {
    name: "batch",
    why: "waking tasks do not preempt running ones, so work is cut into fewer pieces",
    propose: |scene| {
        // Where slices exist, batch alone is the weaker half of batch+slice.
        if scene.features.task_slice {
            return None;
        }
        let changes = scene
            .tasks
            .iter()
            .filter_map(|s| s.sched("no wake-up preemption", |attr| attr.policy = batch_policy(attr.policy)));
        Some(changes.collect())
    },
    ..Lever::NOTHING
};
