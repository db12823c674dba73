//! A task's own slice, with SCHED_BATCH.
//!
//! Since Linux 6.12 `sched_setattr` takes a slice for fair tasks. EEVDF lets the running task keep the CPU until the
//! shortest slice in its queue is used up (`set_protect_slice`), so work that fits into a slice runs to its end; and
//! SCHED_BATCH tasks do not preempt on wake-up. Both together avoid cutting bursts into pieces.

use evenkeel_base::Change;
use evenkeel_base::sched::MAX_SLICE_NS;

use super::lever::{Lever, batch_policy};
use super::scene::Scene;

/// Bursts a matched slice holds. Bursts vary (a jitter of ±50 % is common); two of the mean cover nearly all.
pub(super) const BURSTS: f64 = 2.0;

/// Slices matched to each task's burst: short work is served soon, long work is not cut.
pub const MATCHED_SLICE: Lever = Lever {
    name: "batch+slice by burst",
    why: "each task may finish a usual piece of work before it is preempted; short pieces go first",
    propose: |scene| {
        slices(scene, "slice of two bursts: work runs to its end", |scene, index| {
            scene.slice_for(&scene.tasks[index], BURSTS)
        })
    },
    ..Lever::NOTHING
};

/// The longest slice for everyone, where nice cannot act; elsewhere [`super::slice_nice::LONG_SLICE_NICE`] does the same
/// and more.
pub const LONG_SLICE: Lever = Lever {
    name: "batch+long slice",
    why: "everyone may run to the end of its work, up to the kernel's longest slice",
    propose: |scene| {
        if scene.nice_acts() {
            return None;
        }
        slices(scene, "longest slice: work runs to its end", |_, _| Some(MAX_SLICE_NS))
    },
    ..Lever::NOTHING
};

fn slices(
    scene: &Scene<'_>,
    why: &str,
    slice: impl Fn(&Scene<'_>, usize) -> Option<u64>,
) -> Option<Vec<Change>> {
    scene.features.task_slice.then(|| {
        (0..scene.tasks.len())
            .filter_map(|index| {
                scene.tasks[index].sched(why, |attr| {
                    attr.policy = batch_policy(attr.policy);
                    attr.slice_ns = slice(scene, index).or(attr.slice_ns);
                })
            })
            .collect()
    })
}
