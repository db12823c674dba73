//! Slices down to the shortest the kernel grants: short work goes first, long work is not cut by work as long.
//!
//! A task that wakes with a shorter slice than the running one's may preempt it at once (`PREEMPT_SHORT`, Linux 6.12);
//! one with the same slice waits until the running one's is used up (`RUN_TO_PARITY`). Under [`super::slice`] everyone is in
//! SCHED_BATCH and short work waits behind long work, often longer than the guard allows; here only long work is.

use evenkeel_base::Change;
use evenkeel_base::sched::{MAX_SLICE_NS, MIN_SLICE_NS};

use super::lever::{Lever, batch_policy, nice_within_groups};
use super::scene::{Scene, Subject};
use super::slice::BURSTS;
use super::weights::weights;

/// Part of the load, counted from the shortest bursts on, that stays out of SCHED_BATCH.
const SHORT_PART: f64 = 1.0 / 3.0;

/// Slices by burst, tasks of long bursts in SCHED_BATCH.
pub const SHORT_FIRST: Lever = Lever {
    name: "short first",
    why: "short pieces of work go first, long ones are not cut by others as long",
    propose: |scene| scene.features.task_slice.then(|| short_first(scene, false)),
    ..Lever::NOTHING
};

/// The same with nice in proportion to load.
pub const SHORT_FIRST_NICE: Lever = Lever {
    name: "short first+nice",
    why: "short pieces of work go first, heavy tasks have the weight their load asks for",
    propose: |scene| (scene.features.task_slice && scene.nice_acts()).then(|| short_first(scene, true)),
    ..Lever::NOTHING
};

/// The same with cgroup weights in proportion to load.
pub const SHORT_FIRST_WEIGHTS: Lever = Lever {
    name: "short first+weights",
    why: "short pieces of work go first; each cgroup's share in proportion to its load",
    propose: |scene| {
        if !scene.features.task_slice {
            return None;
        }
        let mut changes = weights(scene)?;
        changes.extend(short_first(scene, false));
        Some(changes)
    },
    ..Lever::NOTHING
};

fn short_first(scene: &Scene<'_>, with_nice: bool) -> Vec<Change> {
    let long = long_from(scene);
    let nice = with_nice.then(|| nice_within_groups(scene));
    let changes = scene.tasks.iter().enumerate().filter_map(|(index, subject)| {
        let is_long = burst(subject) >= long;
        let why = if is_long {
            "slice of two bursts: work runs to its end"
        } else {
            "slice of two bursts, shorter than others': may go first"
        };
        subject.sched(why, |attr| {
            if is_long {
                attr.policy = batch_policy(attr.policy);
            }
            if let Some(nice) = nice.as_ref().and_then(|nice| nice.get(index)) {
                attr.nice = *nice;
            }
            attr.slice_ns = Some(slice(subject));
        })
    });
    changes.collect()
}

/// Two bursts, to the nearest power of two: bursts as good as equal get equal slices and do not cut each other.
fn slice(subject: &Subject<'_>) -> u64 {
    let wanted = (BURSTS * burst(subject)).max(1.0).log2().round().exp2();
    (wanted as u64).clamp(MIN_SLICE_NS, MAX_SLICE_NS)
}

/// Nanoseconds; who hardly ever sleeps has the longest.
fn burst(subject: &Subject<'_>) -> f64 {
    subject.burst_ns.map_or(MAX_SLICE_NS as f64, |ns| ns as f64)
}

/// The burst from which on work is long.
fn long_from(scene: &Scene<'_>) -> f64 {
    let mut bursts: Vec<(f64, f64)> = scene.tasks.iter().map(|s| (burst(s), s.load_pct)).collect();
    bursts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let short = SHORT_PART * bursts.iter().map(|(_, load)| load).sum::<f64>();
    let mut sum = 0.0;
    for (burst, load) in bursts {
        sum += load;
        if sum > short {
            return burst;
        }
    }
    0.0
}
