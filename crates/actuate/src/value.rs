//! Comparing and combining values: what is ours, what was there, what a child inherits.

use evenkeel_base::sched::{MAX_SLICE_NS, MIN_SLICE_NS};
use evenkeel_base::{CpuQuota, CpuSet, Limit, SchedAttr, SchedPolicy, Setting};

/// Bits in an affinity mask of all ones: `CONFIG_NR_CPUS` of the largest distribution kernels. The kernel cuts a
/// longer mask to its own size (`get_user_cpu_mask` in `kernel/sched/syscalls.c`).
const ALL_BITS: u32 = 8192;

/// The affinity of a task that was never restricted, as it is restored. Linux cannot un-set an affinity once set; all
/// ones is the nearest: the task follows its cpuset and hotplug as before.
pub fn all_cpus() -> CpuSet {
    CpuSet::first_n(ALL_BITS)
}

/// Whether an affinity is [`all_cpus`].
pub fn is_all_cpus(cpus: &CpuSet) -> bool {
    cpus.len() >= ALL_BITS as usize
}

/// What is to be restored where this was found: all ones for an affinity that nobody restricted.
pub(crate) fn original_of(present: &Setting, widest: Option<&CpuSet>) -> Setting {
    match (present, widest) {
        (Setting::Affinity(cpus), Some(widest)) if cpus == widest => Setting::Affinity(all_cpus()),
        _ => present.clone(),
    }
}

/// What to write so that a task has this affinity as far as its CPUs are there. The kernel takes no mask of which nothing is left
/// (EINVAL), but a task whose cpuset loses all CPUs of its mask runs on the whole cpuset, and on its own CPUs again once they are back.
/// A mask of both does the same, where the kernel keeps it whole (since Linux 6.2).
pub(crate) fn attainable(to: &Setting, widest: Option<&CpuSet>) -> Setting {
    match (to, widest) {
        (Setting::Affinity(cpus), Some(widest)) if !cpus.intersects(widest) => {
            Setting::Affinity(cpus.union(widest))
        }
        _ => to.clone(),
    }
}

/// The value as the kernel will hold it, given what is there now: clamped where it clamps silently.
pub(crate) fn normalise(to: &Setting, now: &Setting, v2: bool) -> Setting {
    match (to, now) {
        (Setting::Sched(to), Setting::Sched(now)) => {
            let mut attr = *to;
            let is_deadline = |attr: &SchedAttr| attr.policy == SchedPolicy::Deadline;
            // The flag is the task's own, but for the one that a deadline needs, which goes with it.
            if !is_deadline(to) && !is_deadline(now) {
                attr.reset_on_fork = now.reset_on_fork;
            }
            if !is_deadline(to) {
                attr.period_ns = None;
            }
            if attr.policy.is_realtime() {
                // The kernel ignores nice and slice here and keeps the nice value.
                attr.nice = now.nice;
                attr.slice_ns = attr.slice_ns.filter(|_| is_deadline(to));
            } else {
                attr.rt_priority = 0;
                attr.slice_ns = attr.slice_ns.map(|ns| ns.clamp(MIN_SLICE_NS, MAX_SLICE_NS));
            }
            Setting::Sched(attr)
        }
        (Setting::Weight(weight), _) if v2 => Setting::Weight((*weight).clamp(1, 10_000)),
        (Setting::Weight(shares), _) => Setting::Weight((*shares).clamp(2, 262_144)),
        _ => to.clone(),
    }
}

/// Whether a value read back is the one written; `widest` is the widest affinity possible now.
pub(crate) fn same(read: &Setting, written: &Setting, widest: Option<&CpuSet>) -> bool {
    match (read, written, widest) {
        (Setting::Affinity(read), Setting::Affinity(written), Some(widest)) => {
            let effective = written.intersection(widest);
            read == written
                || *read == effective
                // The kernel falls back to the whole cpuset when nothing of the mask is left.
                || (effective.is_empty() && read == widest)
        }
        _ => read == written,
    }
}

/// What to write so that `present` loses what is ours, and whether only a part of it was.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reverse {
    pub to: Setting,
    /// Somebody else changed other parts, which stay.
    pub partial: bool,
}

/// How `present` is cleaned of what we wrote. `None`: nothing of ours is in it.
///
/// Class, nice and slice of a task are one knob for us but three things for others (`renice`, `chrt`): each goes back
/// on its own if it is what we wrote.
pub(crate) fn reverse(
    original: &Setting,
    wrote: &[Setting],
    present: &Setting,
    widest: Option<&CpuSet>,
) -> Option<Reverse> {
    if wrote.iter().any(|w| same(present, w, widest)) {
        return Some(Reverse { to: original.clone(), partial: false });
    }
    if let Setting::Quota(present) = present {
        if is_half_written(original, wrote, present) {
            return Some(Reverse { to: original.clone(), partial: false });
        }
        return without_burst(original, wrote, present)
            .map(|to| Reverse { to: Setting::Quota(to), partial: true });
    }
    let (Setting::Sched(original), Setting::Sched(present)) = (original, present) else { return None };
    let mut best: Option<(u32, SchedAttr)> = None;
    for wrote in wrote.iter().rev() {
        let Setting::Sched(wrote) = wrote else { continue };
        let mut result = *present;
        let mut parts = 0;
        // Whatever period a deadline has: it is made small before it goes, and this process may have been killed then.
        let class = |a: &SchedAttr| (a.policy, a.rt_priority);
        if class(present) == class(wrote) && class(wrote) != class(original) {
            (result.policy, result.rt_priority) = class(original);
            if wrote.policy == SchedPolicy::Deadline {
                // What it needs besides goes with it.
                (result.slice_ns, result.period_ns) = (original.slice_ns, original.period_ns);
                result.reset_on_fork = original.reset_on_fork;
            }
            parts += 1;
        }
        if present.nice == wrote.nice && wrote.nice != original.nice {
            result.nice = original.nice;
            parts += 1;
        }
        if present.slice_ns == wrote.slice_ns && wrote.slice_ns != original.slice_ns {
            result.slice_ns = original.slice_ns;
            parts += 1;
        }
        if parts > best.map_or(0, |(parts, _)| parts) {
            best = Some((parts, result));
        }
    }
    best.map(|(_, result)| Reverse { to: Setting::Sched(result), partial: true })
}

/// Somebody else's limit with a burst of ours beside it, which managers of cgroups do not write: without that burst.
fn without_burst(original: &Setting, wrote: &[Setting], present: &CpuQuota) -> Option<CpuQuota> {
    let Setting::Quota(found) = original else { return None };
    let is_ours =
        |wrote: &Setting| matches!(wrote, Setting::Quota(quota) if quota.burst_usec == present.burst_usec);
    let is_left = present.burst_usec > found.burst_usec && wrote.iter().any(is_ours);
    is_left.then_some(CpuQuota { burst_usec: found.burst_usec, ..*present })
}

/// Whether a quota is what a writer leaves that was killed between its files: quota, period and burst have one each in cgroup v1, and
/// burst is none while the others change. Some part is of ours, all others are of ours or as found.
fn is_half_written(original: &Setting, wrote: &[Setting], present: &CpuQuota) -> bool {
    let Setting::Quota(found) = original else { return false };
    let ours = || wrote.iter().filter_map(|w| if let Setting::Quota(quota) = w { Some(quota) } else { None });
    let quota = ours().any(|w| w.quota_usec == present.quota_usec);
    let period = ours().any(|w| w.period_usec == present.period_usec);
    let burst = present.burst_usec == 0 || ours().any(|w| w.burst_usec == present.burst_usec);
    let is_known = (quota || present.quota_usec == found.quota_usec)
        && (period || present.period_usec == found.period_usec)
        && (burst || present.burst_usec == found.burst_usec);
    let has_part = (quota && present.quota_usec != found.quota_usec)
        || (period && present.period_usec != found.period_usec)
        || (burst && present.burst_usec != found.burst_usec);
    is_known && has_part
}

/// Whether a quota is what a writer of cgroup v1 leaves that was killed, or refused, while it had lifted the limit for a moment: from one
/// period to another that may be the only way (`Cgroup::set_quota`). Without a limit, the period is that of before or of afterwards. Who
/// lifts a limit for good leaves the same: only where a write may have been cut short is it ours.
pub(crate) fn is_lifted(original: &Setting, wrote: &[Setting], present: &Setting) -> bool {
    let Setting::Quota(present) = present else { return false };
    let limit = |value: &Setting| match value {
        Setting::Quota(quota) if quota.quota_usec != Limit::Max => Some(*quota),
        _ => None,
    };
    let known = || std::iter::once(original).chain(wrote).filter_map(limit);
    let leaves = |from: &CpuQuota, to: &CpuQuota| {
        let burst_usec = if from.burst_usec == to.burst_usec { from.burst_usec } else { 0 };
        from.period_usec != to.period_usec && present.burst_usec == burst_usec
    };
    present.quota_usec == Limit::Max
        && known()
            .filter(|one| one.period_usec == present.period_usec)
            .any(|one| known().any(|other| leaves(&one, &other)))
}

/// Whether the owner of a cgroup, told a value, may give the next cgroup of that name this one. systemd has hundredths of a percent for a
/// quota, and older ones whole percents, cut off, in what they keep on disk (its `src/core/dbus-cgroup.c`). Nobody has a word for a burst.
pub(crate) fn is_kept_as(told: &Setting, present: &Setting) -> bool {
    let (Setting::Quota(told), Setting::Quota(present)) = (told, present) else { return told == present };
    let is_near = match (told.quota_usec, present.quota_usec) {
        (Limit::Value(told_usec), Limit::Value(usec)) => {
            let (least, most) = (told.period_usec / 100 + 1, told.period_usec / 20_000 + 1);
            (told_usec.saturating_sub(least)..=told_usec + most).contains(&usec)
        }
        (told, present) => told == present,
    };
    is_near && told.period_usec == present.period_usec && [0, told.burst_usec].contains(&present.burst_usec)
}

/// The weight file's numbers after `cpu.idle` was written, those of the idle group first: `sched_group_set_idle` in
/// `kernel/sched/fair.c` forgets the weight the group had (`WEIGHT_IDLEPRIO` while idle, the default afterwards). On v2 an idle group's
/// reads as 0 up to Linux 6.11, and as 1 since (`sched_weight_to_cgroup` in `kernel/sched/sched.h`).
pub(crate) fn idle_weights(v2: bool) -> &'static [u64] {
    if v2 { &[0, 1, 100] } else { &[3, 1024] }
}

/// What a child born of a task with this value has (`sched_fork` in `kernel/sched/core.c`).
pub(crate) fn inherited(value: &Setting) -> Setting {
    match value {
        Setting::Sched(attr) if attr.reset_on_fork => {
            let mut attr = *attr;
            attr.reset_on_fork = false;
            attr.slice_ns = None;
            if attr.policy.is_realtime() {
                attr.policy = SchedPolicy::Other;
                attr.rt_priority = 0;
                attr.period_ns = None;
                attr.nice = evenkeel_base::Nice::new(0);
            } else if attr.nice.get() < 0 {
                attr.nice = evenkeel_base::Nice::new(0);
            }
            Setting::Sched(attr)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::Nice;

    #[test]
    fn a_quota_written_by_half_is_ours_and_somebody_elses_is_not() {
        let quota = |quota_usec, period_usec, burst_usec| {
            let quota_usec = if quota_usec == 0 { Limit::Max } else { Limit::Value(quota_usec) };
            Setting::Quota(CpuQuota { quota_usec, period_usec, burst_usec })
        };
        let (found, wrote) = (quota(150, 100, 20), [quota(40, 50, 0), quota(72, 57, 10)]);
        let goes_back = |present| {
            let reverse = reverse(&found, &wrote, &present, None);
            reverse.map(|reverse| (reverse.to == found, reverse.partial))
        };
        for half in
            [quota(150, 57, 20), quota(72, 100, 0), quota(72, 50, 0), quota(150, 100, 0), quota(150, 100, 10)]
        {
            assert_eq!(goes_back(half.clone()), Some((true, false)), "{half:?}");
        }
        for other in [quota(0, 100, 20), quota(0, 57, 0), quota(150, 60, 20), quota(99, 57, 0), found.clone()]
        {
            assert_eq!(goes_back(other.clone()), None, "{other:?}");
        }
    }

    #[test]
    fn a_burst_of_ours_goes_from_beside_a_limit_of_somebody_elses() {
        let quota = |usec, burst_usec| {
            Setting::Quota(CpuQuota { quota_usec: Limit::Value(usec), period_usec: 100, burst_usec })
        };
        let left = |found: u64, present| reverse(&quota(50, found), &[quota(50, 50)], &present, None);
        let partly = |to| Some(Reverse { to, partial: true });
        assert_eq!(left(0, quota(80, 50)), partly(quota(80, 0)));
        assert_eq!(left(20, quota(80, 50)), partly(quota(80, 20)));
        assert_eq!((left(0, quota(80, 30)), left(0, quota(80, 0))), (None, None), "its own burst, or none");
        assert_eq!(left(50, quota(80, 50)), None, "it was found");
    }

    #[test]
    fn a_limit_lifted_for_a_moment_is_told_by_its_period() {
        let quota = |quota_usec, period_usec, burst_usec| {
            let quota_usec = if quota_usec == 0 { Limit::Max } else { Limit::Value(quota_usec) };
            Setting::Quota(CpuQuota { quota_usec, period_usec, burst_usec })
        };
        let found = quota(300_000, 100_000, 0);
        let wrote = [quota(5_000, 10_000, 0), quota(6_000, 10_000, 500)];
        for (present, is_ours) in [
            // On the way there, and on the way back.
            (quota(0, 10_000, 0), true),
            (quota(0, 100_000, 0), true),
            (quota(0, 50_000, 0), false),
            (quota(0, 10_000, 500), false),
            (quota(70_000, 10_000, 0), false),
        ] {
            assert_eq!(is_lifted(&found, &wrote, &present), is_ours, "{present:?}");
        }
        // Where the period stays, no limit is lifted; nor is it where one of both is none.
        assert!(!is_lifted(&found, &[quota(50_000, 100_000, 0)], &quota(0, 100_000, 0)));
        assert!(!is_lifted(&quota(0, 100_000, 0), &wrote[..1], &quota(0, 100_000, 0)));
        assert!(!is_lifted(&found, &wrote, &Setting::Weight(5)));
        // A burst that is to stay stays.
        let burst = [quota(5_000, 10_000, 700)];
        assert!(is_lifted(&quota(300_000, 100_000, 700), &burst, &quota(0, 10_000, 700)));
    }

    #[test]
    fn a_quota_that_an_owner_kept_in_its_own_words_is_ours() {
        let quota = |quota_usec, period_usec, burst_usec| {
            Setting::Quota(CpuQuota { quota_usec: Limit::Value(quota_usec), period_usec, burst_usec })
        };
        let told = quota(123_456, 100_000, 700);
        for (kept, is_ours) in [
            (quota(123_456, 100_000, 0), true),
            // By hundredths of a percent, and by whole ones.
            (quota(123_460, 100_000, 0), true),
            (quota(123_000, 100_000, 0), true),
            (quota(122_000, 100_000, 0), false),
            (quota(123_500, 100_000, 0), false),
            (quota(123_456, 50_000, 0), false),
            (quota(123_456, 100_000, 5), false),
            (Setting::Quota(CpuQuota::UNLIMITED), false),
        ] {
            assert_eq!(is_kept_as(&told, &kept), is_ours, "{kept:?}");
        }
        assert!(is_kept_as(&Setting::Weight(50), &Setting::Weight(50)));
        assert!(!is_kept_as(&Setting::Weight(50), &Setting::Weight(51)));
    }

    fn attr(policy: SchedPolicy, nice: i32, slice_ms: u64) -> Setting {
        Setting::Sched(SchedAttr {
            policy,
            nice: Nice::new(nice),
            slice_ns: (slice_ms > 0).then_some(slice_ms * 1_000_000),
            ..SchedAttr::DEFAULT
        })
    }

    #[test]
    fn only_our_parts_go_back() {
        use SchedPolicy::{Batch, Other};
        let original = attr(Other, 0, 0);
        let wrote = [attr(Batch, 5, 100), attr(Batch, 0, 100)];
        let back = |present| reverse(&original, &wrote, &present, None);
        assert_eq!(back(attr(Batch, 5, 100)), Some(Reverse { to: original.clone(), partial: false }));
        // reniced to 10 by somebody: class and slice go back, 10 stays
        assert_eq!(back(attr(Batch, 10, 100)), Some(Reverse { to: attr(Other, 10, 0), partial: true }));
        // 5 is what the first value had, and it matches better than the second
        assert_eq!(back(attr(Other, 5, 100)), Some(Reverse { to: attr(Other, 0, 0), partial: true }));
        assert_eq!(back(attr(Other, 3, 0)), None);
    }

    #[test]
    fn a_deadline_goes_back_with_what_it_needs() {
        let deadline = |nice, runtime_ns| SchedAttr {
            policy: SchedPolicy::Deadline,
            nice: Nice::new(nice),
            slice_ns: Some(runtime_ns),
            period_ns: Some(1_000_000),
            reset_on_fork: true,
            ..SchedAttr::DEFAULT
        };
        let found = attr(SchedPolicy::Batch, 3, 5);
        let (to, now) = (Setting::Sched(deadline(0, 200_000)), &found);
        let wrote = normalise(&to, now, false);
        assert_eq!(
            wrote,
            Setting::Sched(deadline(3, 200_000)),
            "the kernel keeps the nice value, we the rest"
        );
        assert_eq!(normalise(&found, &wrote, false), found, "the flag and the period go");
        let back = |present| reverse(&found, std::slice::from_ref(&wrote), &present, None);
        assert_eq!(back(wrote.clone()), Some(Reverse { to: found.clone(), partial: false }));
        // Reniced meanwhile: that is somebody else's, all of the deadline is ours.
        let reniced = Setting::Sched(deadline(9, 200_000));
        assert_eq!(back(reniced), Some(Reverse { to: attr(SchedPolicy::Batch, 9, 5), partial: true }));
        // Killed between making it small and taking it back.
        let small = SchedAttr { slice_ns: Some(1), period_ns: Some(4_000_000_000), ..deadline(3, 0) };
        assert_eq!(back(Setting::Sched(small)), Some(Reverse { to: found.clone(), partial: true }));
        assert_eq!(inherited(&wrote), attr(SchedPolicy::Other, 0, 0));
    }

    #[test]
    fn affinity_is_recognised_behind_its_cpuset() {
        let set = |text: &str| Setting::Affinity(text.parse().unwrap());
        let widest: CpuSet = "0-3".parse().unwrap();
        assert!(same(&set("2-3"), &set("2-7"), Some(&widest)));
        assert!(same(&set("0-3"), &set("8"), Some(&widest)));
        assert!(same(&set("0-3"), &Setting::Affinity(all_cpus()), Some(&widest)));
        assert!(!same(&set("0-2"), &Setting::Affinity(all_cpus()), Some(&widest)));
        assert!(!same(&set("1"), &set("2-7"), Some(&widest)));
    }

    #[test]
    fn values_are_what_the_kernel_keeps() {
        use SchedPolicy::{Fifo, Other};
        let now = attr(Other, 4, 0);
        assert_eq!(normalise(&attr(Other, 1, 5000), &now, false), attr(Other, 1, 100));
        assert_eq!(normalise(&attr(Fifo, 9, 5), &now, false), attr(Fifo, 4, 0));
        assert_eq!(normalise(&Setting::Weight(0), &Setting::Weight(7), true), Setting::Weight(1));
        assert_eq!(
            normalise(&Setting::Weight(1 << 40), &Setting::Weight(7), false),
            Setting::Weight(262_144)
        );
    }

    #[test]
    fn reset_on_fork_is_followed() {
        let Setting::Sched(mut parent) = attr(SchedPolicy::Batch, -5, 100) else { unreachable!() };
        assert_eq!(inherited(&Setting::Sched(parent)), Setting::Sched(parent));
        parent.reset_on_fork = true;
        assert_eq!(inherited(&Setting::Sched(parent)), attr(SchedPolicy::Batch, 0, 0));
    }
}
