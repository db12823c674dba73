//! A limit for background work that shares a quota with services.
//!
//! A quota is one account for all that is below its cgroup: background work that takes what services leave at the moment uses up
//! what they need later in the same period, and then all of them are held back until the next one. Neither weights nor `cpu.idle`
//! change that, for they order who runs, not who may use up the quota. A limit of its own does: background work gets what the
//! services leave of the quota on average, less a margin for periods in which they need more. Where the kernel tells at once what they
//! use, the limit follows it ([`crate::follow`]).

use std::collections::BTreeSet;

use evenkeel_base::{Change, CpuQuota, FollowingLimit, GroupRef, Knob, Limit, Plan, Setting, Target};

use super::burst::with_longest_burst;
use super::lever::Lever;
use super::scene::Scene;
use super::tiers::{is_own, own_tops};

/// What the others in the quota are taken to need, of what they use on average.
pub const NEED: f64 = 1.25;
const LONGEST_USEC: f64 = CpuQuota::LONGEST_USEC as f64;

/// CPU of a quota that a CPU takes at once, microseconds, as soon as a task of the cgroup runs on it (`sched_cfs_bandwidth_slice`,
/// `kernel/sched/fair.c`; a sysctl that hardly anyone changes). What it does not use it gives back when it has nothing left to run.
const SLICE_USEC: u64 = 5_000;

/// Background work gets all that the others leave of a quota that they share; its cgroup is idle, too.
pub const HEADROOM: Lever = Lever {
    name: "headroom",
    propose: |scene| propose(scene, ALL),
    follow: |scene| limits(scene, ALL).collect(),
    ..OF_LEFT
};
/// Smaller parts, for services that need more at times, or do not get what they need now: that is not known well, for a wait for
/// a quota says how long it is, not how much CPU it is for.
pub const TIGHT_HEADROOM: Lever = Lever {
    name: "tight headroom",
    propose: |scene| propose(scene, TIGHT),
    follow: |scene| limits(scene, TIGHT).collect(),
    ..OF_LEFT
};
pub const TIGHTEST_HEADROOM: Lever = Lever {
    name: "tightest headroom",
    propose: |scene| propose(scene, TIGHTEST),
    follow: |scene| limits(scene, TIGHTEST).collect(),
    ..OF_LEFT
};

const OF_LEFT: Lever = Lever {
    why: "background work has a limit of its own and does not use up the quota that it shares with services",
    ..Lever::NOTHING
};
/// Parts of what the others leave.
const ALL: f64 = 1.0;
const TIGHT: f64 = 0.4;
const TIGHTEST: f64 = 0.1;

fn propose(scene: &Scene<'_>, share: f64) -> Option<Vec<Change>> {
    let limits: Vec<FollowingLimit> = limits(scene, share).collect();
    let mut changes: Vec<Change> = limits.iter().map(|limit| change_at(limit, limit.left_pct)).collect();
    if share >= ALL {
        // With so much of the quota it is often on a CPU that a service wants.
        changes.extend(limits.into_iter().map(|limit| Change {
            target: Target::Group(limit.group),
            to: Setting::GroupIdle(true),
            why: "cgroup of background work alone".to_owned(),
        }));
    }
    (!changes.is_empty()).then_some(changes)
}

/// The part of what others leave. A small quota is gone, or half of it, whenever background work runs at all, for however short:
/// its CPU takes a slice. So what counts there is how seldom it runs, and the tightest limit is the kernel's least. `None`: of a
/// quota of one slice no other limit leaves services anything.
fn of_left(share: f64, quota: &CpuQuota) -> Option<f64> {
    let slices = quota.quota_usec.value().map_or(f64::INFINITY, |usec| usec as f64 / SLICE_USEC as f64);
    match share <= TIGHTEST {
        true => Some(if slices <= 2.0 { 0.0 } else { share }),
        false => (slices > 1.0).then_some(share),
    }
}

fn limits(scene: &Scene<'_>, share: f64) -> impl Iterator<Item = FollowingLimit> {
    own_tops(scene).filter_map(move |index| limit(scene, index, share))
}

/// The limit of a cgroup of background work: its part of what is left of the tightest quota above it; `None` where its own is as
/// tight.
fn limit(scene: &Scene<'_>, index: u32, share: f64) -> Option<FollowingLimit> {
    let group = &scene.observation.groups[index as usize];
    let (left_pct, quota, above) = tightest(scene, index)?;
    let part = of_left(share, &quota)? * part(scene, index, above);
    let above = scene.observation.groups[above as usize].reference();
    let own = group.quota.unwrap_or(CpuQuota::UNLIMITED);
    let limit = FollowingLimit { group: group.reference(), above, quota, left_pct, part, own };
    own.pct().is_none_or(|own| Some(own) > limit_at(&limit, left_pct).pct()).then_some(limit)
}

/// The change that makes a limit what it is when others leave so much of the quota, percent of one CPU.
pub fn change_at(limit: &FollowingLimit, left_pct: f64) -> Change {
    let why = format!("others leave {left_pct:.1} % of one CPU of the quota of {}", limit.above.path);
    let to = Setting::Quota(limit_at(limit, left_pct));
    Change { target: Target::Group(limit.group.clone()), to, why }
}

/// Quotas of a plan for cgroups that were made again, as these changes of it say: by what their makers gave them (`own`, where that can
/// be read), not by what those before them had.
pub fn reckon_again(plan: &mut Plan, again: &[Change], own: impl Fn(&GroupRef) -> Option<CpuQuota>) {
    let Plan { changes, follow, .. } = plan;
    let is_again = |target: &Target| again.iter().any(|of| of.knob() == Knob::Quota && of.target == *target);
    for change in changes.iter_mut().filter(|of| of.knob() == Knob::Quota && is_again(&of.target)) {
        let Target::Group(group) = &change.target else { continue };
        let Some(own) = own(group) else { continue };
        change.to = match follow.iter_mut().find(|limit| limit.group == *group) {
            Some(limit) => {
                limit.own = own;
                Setting::Quota(limit_at(limit, limit.left_pct))
            }
            None => Setting::Quota(with_longest_burst(own)),
        };
    }
}

/// Shares anew what limits may use together of what is left of a quota: with those of cgroups that came since, without those that are no
/// more, by their number. What they use just now does not tell: who is limited would use more, and others may sleep.
pub fn share_again(plan: &mut Plan, mut came: Vec<FollowingLimit>, is_there: impl Fn(&GroupRef) -> bool) {
    let Plan { changes, follow, .. } = plan;
    let (mut there, ended): (Vec<_>, Vec<_>) =
        std::mem::take(follow).into_iter().partition(|limit: &FollowingLimit| is_there(&limit.group));
    let quotas: BTreeSet<GroupRef> = came.iter().chain(&ended).map(|limit| limit.above.clone()).collect();
    for above in &quotas {
        let of = |limits: &[FollowingLimit]| -> (f64, f64) {
            let parts = limits.iter().filter(|limit| limit.above == *above).map(|limit| limit.part);
            parts.fold((0.0, 0.0), |(count, sum), part| (count + 1.0, sum + part))
        };
        let ((known, kept), (gone, freed), (new, _)) = (of(&there), of(&ended), of(&came));
        if known + gone == 0.0 {
            continue;
        }
        let each = (kept + freed) / (known + new);
        let left_pct = came.iter().find(|limit| limit.above == *above).map(|limit| limit.left_pct);
        for limit in there.iter_mut().filter(|limit| limit.above == *above) {
            limit.part *= if kept > 0.0 { each * known / kept } else { 1.0 };
            limit.left_pct = left_pct.unwrap_or(limit.left_pct);
        }
        came.iter_mut().filter(|limit| limit.above == *above).for_each(|limit| limit.part = each);
    }
    there.append(&mut came);
    for limit in there.iter().filter(|limit| quotas.contains(&limit.above)) {
        let to = change_at(limit, limit.left_pct);
        let here = |change: &&mut Change| change.target == to.target && change.knob() == Knob::Quota;
        changes.iter_mut().filter(here).for_each(|change| change.clone_from(&to));
    }
    *follow = there;
}

/// A quota that background work shares with others and that holds them back: the one with the longest period.
pub fn shared_quota(scene: &Scene<'_>) -> Option<CpuQuota> {
    own_tops(scene)
        .flat_map(|index| tightest(scene, index))
        .map(|(_, quota, _)| quota)
        .max_by_key(|quota| quota.period_usec)
}

/// The quota above a cgroup of background work of which least is left: percent of one CPU, the quota, whose it is.
fn tightest(scene: &Scene<'_>, index: u32) -> Option<(f64, CpuQuota, u32)> {
    let shared = scene.observation.path_to_root(index).filter(|above| !is_own(scene, *above));
    shared.filter_map(|above| left(scene, above)).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// What others than background work leave of a cgroup's quota, percent of one CPU; `None` without a quota, or one that does not throttle.
fn left(scene: &Scene<'_>, index: u32) -> Option<(f64, CpuQuota, u32)> {
    let group = &scene.observation.groups[index as usize];
    let quota = group.quota?;
    let limit_pct = quota.pct()?;
    let holds_back = group.throttled_periods.is_none_or(|(throttled, _)| throttled > 0);
    let used_pct = scene.others.get(&index).copied().unwrap_or(0.0);
    holds_back.then_some(((limit_pct - NEED * used_pct).max(0.0), quota, index))
}

/// What a cgroup of background work wants, of what all such below another one want.
fn part(scene: &Scene<'_>, index: u32, above: u32) -> f64 {
    let wanted = |top: u32| {
        let below = |group: &u32| scene.observation.path_to_root(*group).any(|at| at == top);
        scene.groups.iter().filter(|(group, _)| below(group)).map(|(_, used)| used.load_pct).sum::<f64>()
    };
    let (mine, all) = (wanted(index), wanted(above));
    if all > 0.0 { mine / all } else { 1.0 }
}

/// A limit when others leave so much of the quota, percent of one CPU: in the quota's period, or in a longer one where the kernel takes
/// no quota as short as that. Never more than the cgroup's own.
fn limit_at(limit: &FollowingLimit, left_pct: f64) -> CpuQuota {
    let own = &limit.own;
    let least = CpuQuota::LEAST_USEC as f64;
    let share = (limit.part * left_pct / 100.0).max(least / LONGEST_USEC);
    if own.pct().is_some_and(|pct| pct <= 100.0 * share) {
        return *own;
    }
    let period = (limit.quota.period_usec as f64).max(least / share).min(LONGEST_USEC);
    let quota_usec = (share * period).round().max(least) as u64;
    CpuQuota {
        quota_usec: Limit::Value(quota_usec),
        period_usec: period.ceil() as u64,
        burst_usec: own.burst_usec.min(quota_usec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(usec: u64) -> CpuQuota {
        CpuQuota { quota_usec: Limit::Value(usec), ..CpuQuota::UNLIMITED }
    }

    fn group(path: &str) -> GroupRef {
        GroupRef { path: path.into(), v2: true }
    }

    fn limit(path: &str, above: &str, left_pct: f64, part: f64) -> FollowingLimit {
        let (group, above, own) = (group(path), group(above), CpuQuota::UNLIMITED);
        FollowingLimit { group, above, quota: quota(100_000), left_pct, part, own }
    }

    #[test]
    fn those_that_come_have_their_share_and_those_that_stay_what_others_leave() {
        let follow = [("/pod/a", "/pod", 0.6), ("/pod/b", "/pod", 0.2), ("/x/y", "/x", 1.0)];
        let follow: Vec<_> = follow.map(|(path, above, part)| limit(path, above, 50.0, part)).into();
        let changes = follow.iter().map(|limit| change_at(limit, 50.0)).collect();
        let mut plan = Plan { changes, follow, ..Plan::default() };
        let shares = |plan: &Plan| -> Vec<f64> {
            let quotas = plan.follow.iter().map(|limit| limit_at(limit, limit.left_pct));
            let told: Vec<_> = quotas.clone().map(Setting::Quota).collect();
            assert!(plan.changes.iter().all(|change| told.contains(&change.to)), "{plan:?}");
            quotas.map(|quota| quota.pct().unwrap().round()).collect()
        };
        assert_eq!(shares(&plan), [30.0, 10.0, 50.0]);
        let came = limit("/pod/c", "/pod", 60.0, 1.0);
        plan.changes.push(change_at(&came, 60.0));
        share_again(&mut plan, vec![came], |_| true);
        // Of 80 % of 60, by thirds.
        assert_eq!(shares(&plan), [24.0, 8.0, 50.0, 16.0]);
        plan.changes.pop();
        share_again(&mut plan, Vec::new(), |group| group.path != "/pod/c");
        assert_eq!(shares(&plan), [36.0, 12.0, 50.0]);
    }

    #[test]
    fn a_cgroup_that_was_made_again_has_a_limit_and_a_burst_of_its_own_quota() {
        let limit = limit("/pod/batch", "/pod", 60.0, 1.0);
        let burst = Setting::Quota(with_longest_burst(quota(50_000)));
        let change = |path: &str, to| Change { target: Target::Group(group(path)), to, why: String::new() };
        let changes =
            vec![change_at(&limit, 60.0), change("/api", burst.clone()), change("/other", burst.clone())];
        let plan = Plan { changes, follow: vec![limit], ..Plan::default() };
        let again = &plan.changes[..2];
        let of = |own: Option<CpuQuota>| {
            let mut plan = plan.clone();
            reckon_again(&mut plan, again, |_| own);
            let limits: Vec<CpuQuota> = plan.follow.iter().map(|limit| limit.own).collect();
            (plan.changes.into_iter().map(|change| change.to).collect::<Vec<_>>(), limits)
        };
        let limited = Setting::Quota(quota(60_000));
        assert_eq!(
            of(None),
            (vec![limited.clone(), burst.clone(), burst.clone()], vec![CpuQuota::UNLIMITED])
        );
        let twenty = Setting::Quota(CpuQuota { burst_usec: 20_000, ..quota(20_000) });
        let tight = Setting::Quota(quota(20_000));
        assert_eq!(of(Some(quota(20_000))), (vec![tight, twenty, burst.clone()], vec![quota(20_000)]));
        let none = CpuQuota::UNLIMITED;
        assert_eq!(of(Some(none)), (vec![limited, Setting::Quota(none), burst], vec![none]));
    }
}
