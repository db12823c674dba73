//! Another scheduler for the whole host: a BPF scheduler (sched_ext) that is installed, only where the user allowed it by name.
//!
//! The kernel hands all tasks of the fair class to such a scheduler, its own threads included, for as long as the program that
//! loaded it runs. What nice, weights, slices and quotas then mean is that scheduler's business.

use evenkeel_base::{Change, HostScheduler, Setting, Target};

use super::lever::Lever;
use super::scene::Scene;

/// Programs that load a scheduler for hosts of any kind and need no arguments.
pub const SCHEDULERS: [&str; 4] = ["scx_bpfland", "scx_lavd", "scx_rusty", "scx_flash"];

/// One for each of [`SCHEDULERS`].
pub const SCX: [Lever; SCHEDULERS.len()] = [
    scx(0, |scene| load(0, scene)),
    scx(1, |scene| load(1, scene)),
    scx(2, |scene| load(2, scene)),
    scx(3, |scene| load(3, scene)),
];

const fn scx(number: usize, propose: fn(&Scene<'_>) -> Option<Vec<Change>>) -> Lever {
    let why = "a BPF scheduler decides for the whole host which task runs";
    Lever { name: SCHEDULERS[number], why, propose, ..Lever::NOTHING }
}

fn load(number: usize, scene: &Scene<'_>) -> Option<Vec<Change>> {
    let change = || Change {
        target: Target::Host,
        to: Setting::Scheduler(HostScheduler::Program(SCHEDULERS[number].to_owned())),
        why: "tasks of the fair class, those of the kernel included".to_owned(),
    };
    (scene.features.scx[number] && !scene.tasks.is_empty()).then(|| vec![change()])
}
