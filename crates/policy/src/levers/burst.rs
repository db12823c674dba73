//! Burst for cgroups that are throttled although they use less than their quota on average.
//!
//! A quota is given out period by period: work that needs 80 ms in one period and nothing in the next is throttled at a quota
//! of 50 ms in 100, although it uses 40 % on average. With a burst (`cpu.max.burst`, `cpu.cfs_burst_us`, Linux 5.14) what was
//! not used before may be used then, up to the quota once more: the mean stays what the quota says.

use evenkeel_base::{Change, CpuQuota, GroupView, Setting, Target};

use super::lever::Lever;
use super::scene::Scene;

/// Use beyond this share of the quota leaves nothing to save up. Not less: what comes at random is above its mean in some seconds, and
/// throttled most where it is near its quota.
const MEAN: f64 = 0.97;
/// Periods throttled, of those with work, from which it is worth a change.
const OFTEN: f64 = 0.02;

pub const BURST: Lever = Lever {
    name: "burst",
    why: "what a quota leaves unused in one period may be used in the next",
    propose: |scene| {
        let changes: Vec<Change> = limited(scene)
            .filter_map(|(index, group)| with_burst(group, scene.observation.group_cpu_pct(index)))
            .collect();
        (!changes.is_empty()).then_some(changes)
    },
    ..Lever::NOTHING
};

/// Whether a longer look would tell whether burst may help: one of those that it is for has a quota.
pub fn may_burst(scene: &Scene<'_>) -> bool {
    limited(scene).next().is_some()
}

/// Those with a quota and less burst than there may be: of the scope's cgroups; next to background work, of those of services, for whom
/// it is.
fn limited<'a>(scene: &Scene<'a>) -> impl Iterator<Item = (u32, &'a GroupView)> {
    let own = if scene.features.background { &scene.services } else { &scene.own };
    let groups = (0..).zip(&scene.observation.groups).zip(own).filter(|(_, own)| **own);
    groups.map(|(group, _)| group).filter(|(_, group)| {
        let limit = |quota: &CpuQuota| quota.quota_usec.value().is_some_and(|limit| quota.burst_usec < limit);
        group.quota.as_ref().is_some_and(limit)
    })
}

/// A quota with the longest burst that the kernel allows.
pub(super) fn with_longest_burst(quota: CpuQuota) -> CpuQuota {
    CpuQuota { burst_usec: quota.quota_usec.value().unwrap_or(quota.burst_usec), ..quota }
}

/// The same, where that may help.
fn with_burst(group: &GroupView, used_pct: f64) -> Option<Change> {
    let quota = group.quota?;
    let (throttled, periods) = group.throttled_periods?;
    let often = throttled as f64 > OFTEN * periods as f64;
    if !often || used_pct > MEAN * quota.pct()? {
        return None;
    }
    Some(Change {
        target: Target::Group(group.reference()),
        to: Setting::Quota(with_longest_burst(quota)),
        why: format!("throttled in {throttled} of {periods} periods at {used_pct:.0} % of one CPU"),
    })
}
