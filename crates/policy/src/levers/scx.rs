//! Another scheduler for the whole host: a BPF scheduler (sched_ext) that is installed, only where the user allowed it by name.
//!
//! The kernel hands all tasks of the fair class to such a scheduler, its own threads included, for as long as the program that
//! loaded it runs. What nice, weights, slices and quotas then mean is that scheduler's business.

use evenkeel_base::{Change, HostScheduler, Setting, Target};

use super::lever::Lever;
use super::scene::Scene;

/// Programs that load a scheduler for hosts of any kind and need no arguments.
pub const SCHEDULERS: [&str; 4] = ["scx_bpfland", "scx_lavd", "scx_rusty", "scx_flash"];

/// One of [`SCHEDULERS`], by its place.
pub struct Scx(pub usize);

impl Lever for Scx {
    fn name(&self) -> &'static str {
        SCHEDULERS[self.0]
    }

    fn why(&self) -> &'static str {
        "a BPF scheduler decides for the whole host which task runs"
    }

    fn propose(&self, scene: &Scene<'_>) -> Option<Vec<Change>> {
        (scene.features.scx[self.0] && !scene.tasks.is_empty()).then(|| {
            vec![Change {
                target: Target::Host,
                to: Setting::Scheduler(HostScheduler::Program(self.name().to_owned())),
                why: "tasks of the fair class, those of the kernel included".to_owned(),
            }]
        })
    }
}
