//! SCHED_DEADLINE for services with a hard bound on their waits, only where the user allowed it by name.
//!
//! A task with a time to run in each period comes before all that are not of that class, until that time is used up; then it
//! waits for the next period (a constant bandwidth server, `kernel/sched/deadline.c`). So it waits at most the period less the
//! time to run, whatever the others do, and cannot starve them. The kernel admits as many as fit into 95 % of the CPUs.

use evenkeel_base::{Change, SchedPolicy};

use super::lever::Lever;
use super::scene::{Scene, Served};

/// Of what a piece of work takes, and of what is used on average, what is set aside: some take longer.
const BURSTS: f64 = 3.0;
const DEMANDS: f64 = 2.0;
/// Share of the period that is set aside, at least and at most.
const SHARE: (f64, f64) = (0.1, 0.8);
/// It is a multiple of this share, so that about the same demand makes the same proposal.
const STEP: f64 = 0.05;
/// Shortest and longest period, nanoseconds: the kernel's (`sched_deadline_period_min_us`), and what is no bound any more.
const PERIOD_NS: (u64, u64) = (100_000, 1_000_000_000);

/// A time to run in each period for services that state how long they may wait and have one thread at work.
pub const DEADLINE: Lever = Lever {
    name: super::lever::DEADLINE,
    why: "SCHED_DEADLINE: each service with wait_p99 has a time to run in every period of that length",
    propose: |scene| {
        if !scene.features.deadline {
            return None;
        }
        let changes: Vec<Change> = scene.served.iter().filter_map(|served| change(scene, served)).collect();
        (!changes.is_empty()).then_some(changes)
    },
    ..Lever::NOTHING
};

/// `None` for one that hardly ever sleeps, wants more than a task may be promised, or may not run on every CPU (the kernel refuses
/// that).
fn change(scene: &Scene<'_>, Served { subject, wait_ns }: &Served<'_>) -> Option<Change> {
    if !scene.observation.topology.online.is_subset(subject.task.affinity.as_ref()?) {
        return None;
    }
    let period_ns = (*wait_ns).clamp(PERIOD_NS.0, PERIOD_NS.1);
    let period = period_ns as f64;
    let wanted = (BURSTS * subject.burst_ns? as f64).max(DEMANDS * subject.load_pct / 100.0 * period);
    if wanted > SHARE.1 * period {
        return None;
    }
    let steps = (wanted.max(SHARE.0 * period) / (STEP * period)).ceil();
    let runtime_ns = (steps * STEP * period) as u64;
    subject.sched("a service whose waits have a bound", |attr| {
        attr.policy = SchedPolicy::Deadline;
        attr.slice_ns = Some(runtime_ns);
        attr.period_ns = Some(period_ns);
        attr.reset_on_fork = true;
    })
}
