//! Levers: ways in which CPU sharing can be changed on this kernel and this cgroup layout.
//!
//! A lever looks at an observation and proposes a [`Plan`], or nothing where it cannot act. It never decides whether
//! the plan is good: the trial does ([`crate::trial`]). To add one, write a file here with a
//! [`Lever`] and add a line to [`LEVERS`].

use evenkeel_base::{Plan, Setting};

mod as_found;
mod aside;
mod batch;
mod burst;
mod deadline;
mod headroom;
mod lever;
mod placement_nice;
mod pull;
mod realtime;
mod scene;
mod scx;
mod short_first;
mod slice;
mod slice_nice;
mod tiers;
mod weights;

pub use as_found::as_found;
pub use aside::{ASIDE, MakeWay};
pub use burst::{BURST, may_burst};
pub use headroom::{NEED, change_at, reckon_again, share_again};
pub use lever::{DEADLINE, Features, Lever, MIN_LOAD_PCT, PUBLISHED_RECIPE, REALTIME};
pub use pull::{PULL, beside, with_pull};
pub use scene::{GroupUse, Scene, Served, Subject};
pub use scx::SCHEDULERS;

/// Every lever, in the order in which they are tried.
pub const LEVERS: &[Lever] = &[
    slice::MATCHED_SLICE,
    short_first::SHORT_FIRST,
    short_first::SHORT_FIRST_NICE,
    short_first::SHORT_FIRST_WEIGHTS,
    slice::LONG_SLICE,
    slice_nice::MATCHED_SLICE_NICE,
    slice_nice::LONG_SLICE_NICE,
    weights::SLICE_WEIGHTS,
    weights::WEIGHTS,
    BURST,
    batch::BATCH,
    placement_nice::NICE,
    placement_nice::PLACEMENT_NICE,
    realtime::REALTIME,
    scx::SCX[0],
    scx::SCX[1],
    scx::SCX[2],
    scx::SCX[3],
];

/// Every lever for background work next to services, in the order in which they are tried.
pub const BACKGROUND_LEVERS: &[Lever] = &[
    // First: where a quota is what holds services back, nothing else helps.
    headroom::HEADROOM,
    headroom::TIGHT_HEADROOM,
    headroom::TIGHTEST_HEADROOM,
    // The quota of a service's own.
    BURST,
    tiers::IDLE_GROUPS,
    tiers::LEAST_WEIGHT,
    tiers::IDLE_TASKS,
    tiers::LAST_NICE,
    deadline::DEADLINE,
    aside::LEVER,
    scx::SCX[0],
    scx::SCX[1],
    scx::SCX[2],
    scx::SCX[3],
];

/// The longest period of the quotas that hold services back, microseconds: one that they share with background work, or their own.
pub fn quota_period_usec(scene: &Scene<'_>) -> Option<u64> {
    let own = (BURST.propose)(scene).unwrap_or_default();
    let own = own.iter().filter_map(|change| match &change.to {
        Setting::Quota(quota) => Some(quota.period_usec),
        _ => None,
    });
    headroom::shared_quota(scene).map(|quota| quota.period_usec).into_iter().chain(own).max()
}

pub fn plan_of(lever: &Lever, scene: &Scene<'_>) -> Option<Plan> {
    let (pull, before) = (lever.make_way)(scene);
    let changes = (lever.propose)(scene).unwrap_or_default();
    if changes.is_empty() && pull.is_empty() {
        return None;
    }
    let (name, why) = (lever.name.to_owned(), lever.why.to_owned());
    Some(Plan { name, why, changes, pull, before, follow: (lever.follow)(scene) })
}

/// The plan of the lever with this name.
pub fn plan_named(name: &str, scene: &Scene<'_>) -> Option<Plan> {
    let mut all = LEVERS.iter().chain(BACKGROUND_LEVERS);
    all.find(|lever| lever.name == name).and_then(|lever| plan_of(lever, scene))
}

/// The plans of all levers that can act; plans that would set the same are listed once.
pub fn plans(scene: &Scene<'_>) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    let levers = if scene.features.background { BACKGROUND_LEVERS } else { LEVERS };
    for lever in levers {
        if let Some(plan) = plan_of(lever, scene) {
            let same = |other: &Plan| {
                other.changes.len() == plan.changes.len()
                    && other
                        .changes
                        .iter()
                        .zip(&plan.changes)
                        .all(|(a, b)| a.target == b.target && a.to == b.to)
            };
            if !plans.iter().any(same) {
                plans.push(plan);
            }
        }
    }
    plans
}

#[cfg(test)]
pub(crate) mod tests;
