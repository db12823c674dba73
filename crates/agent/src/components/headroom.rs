//! Limits of background work that follow what services use of a quota that both share ([`FollowingLimit`]).
//!
//! Programs in the kernel ([`evenkeel_bpf::quota_use`]) count what services use and wake the loop with the first hundredth of a second
//! that is unusual; [`evenkeel_policy::follow`] says what is left of the quota then. Where the programs cannot be had, limits stay as
//! they were chosen.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_actuate::{Left, SetReport, Verdict};
use evenkeel_base::{Change, CpuQuota, FollowingLimit, GroupRef, Knob, Observation, Plan, Setting, Target};
use evenkeel_bpf::quota_use::{self, QuotaUse};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_policy::follow::{Follower, Usual, Window};
use evenkeel_policy::levers::change_at;

use crate::component::{Component, Next, Seen};
use crate::controls::Controls;

/// Programs that no plan in force wanted for so long are taken out: windows of a trial are set in turns.
const REST: Duration = Duration::from_secs(120);

/// The cgroup whose tasks are counted and those below it whose are not, by inode: one that was made again under its name is another.
type Counted = (u64, Vec<u64>);

/// The programs, and whom they count.
#[derive(Debug)]
struct Programs {
    of: Counted,
    usage: QuotaUse,
    word: Arc<OwnedFd>,
    follower: Follower,
    wanted: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Headroom {
    cpu: Option<Hierarchy>,
    programs: Option<Programs>,
    /// Those in force, or to be set again.
    limits: Vec<FollowingLimit>,
    /// A quota came or went, a plan with one that is gone was set again, or a limit was refused.
    restate: bool,
    /// Shared quotas as they were known last, by the cgroups that have them.
    known: BTreeMap<String, CpuQuota>,
    /// Why limits do not follow, said once.
    refused: bool,
    notes: Vec<String>,
}

impl Headroom {
    /// Those that follow. Only one quota is looked at: that of the first limit.
    fn followed(&self) -> impl Iterator<Item = &FollowingLimit> {
        self.limits.iter().filter(|limit| limit.above == self.limits[0].above)
    }

    /// Whether limits in force follow what is left: those that are the kernel's least do not.
    fn follows(&self) -> bool {
        self.followed().any(|limit| limit.part > 0.0 && limit.quota.pct().is_some())
    }

    /// The programs count for the limits in force.
    fn count(&mut self) -> Result<(), String> {
        let Some(first) = self.limits.first().filter(|_| self.follows()).cloned() else { return Ok(()) };
        // What is gone needs no limit, and may come again.
        let Some(of) = self.counted(&first.above) else {
            self.programs = None;
            return Ok(());
        };
        if self.programs.as_ref().is_none_or(|known| known.of != of) {
            self.programs = None;
            self.programs = Some(Self::start(&first, of)?);
        }
        if let Some(programs) = &mut self.programs {
            programs.wanted = Instant::now();
            programs.follower.is_set(first.left_pct);
        }
        Ok(())
    }

    /// What is below the quota's cgroup, without those that are limited; `None` where one is gone.
    fn counted(&self, above: &GroupRef) -> Option<Counted> {
        let cpu = self.cpu.as_ref()?;
        let inode =
            |group: &GroupRef| Some(fs::metadata(Root::host().path(cpu.dir(&group.path))).ok()?.ino());
        let without = self.followed().map(|limit| inode(&limit.group));
        Some((inode(above)?, without.collect::<Option<_>>()?))
    }

    fn start(first: &FollowingLimit, of: Counted) -> Result<Programs, String> {
        let follower = Follower::new(&first.quota, first.left_pct).ok_or("there is no quota")?;
        let types = evenkeel_bpf::load::kernel_types().map_err(|error| error.to_string())?;
        let usage = QuotaUse::start(&types, of.0, &of.1).map_err(|error| error.to_string())?;
        let word = usage.descriptor().try_clone_to_owned().map_err(|error| error.to_string())?;
        Ok(Programs { of, usage, word: Arc::new(word), follower, wanted: Instant::now() })
    }

    fn look(&mut self, controls: &mut Controls) {
        let follows = self.follows();
        let Some(programs) = self.programs.as_mut().filter(|_| follows) else { return };
        programs.wanted = Instant::now();
        match programs.look() {
            Ok(Some(left_pct)) => self.set(left_pct, controls),
            Ok(None) => {}
            Err(why) => self.give_up(&why),
        }
    }

    fn set(&mut self, left_pct: f64, controls: &mut Controls) {
        let changes: Vec<Change> = self.followed().map(|limit| change_at(limit, left_pct)).collect();
        let report = amend(changes, controls);
        self.take_in(&report);
    }

    /// What came of following. One that somebody else sets, or that is gone, is left alone.
    fn take_in(&mut self, report: &SetReport) {
        let Some(above) = self.limits.first().map(|limit| limit.above.clone()) else { return };
        let before = self.limits.len();
        self.limits.retain(|limit| limit.above != above || stays(limit, report));
        let refused = self.refused_in(report);
        if refused || self.limits.len() < before {
            // Those that are left may be for another quota.
            self.programs = None;
        }
        self.restate |= refused;
    }

    /// Whether one was refused, for somebody passes through its cgroup: the next look says whether he stays.
    fn refused_in(&self, report: &SetReport) -> bool {
        self.limits.iter().any(|limit| matches!(verdict(limit, report), Some(Verdict::Refused(_))))
    }

    /// Whoever made the quota may have changed it: what is left is left of the new one, and the programs are to begin again.
    fn follow_quota(&mut self, observation: &Observation) {
        for limit in &mut self.limits {
            let above = observation.groups.iter().find(|group| group.path == limit.above.path);
            let Some(quota) = above.and_then(|group| group.quota) else { continue };
            let (had, has) = (limit.quota.pct().is_some(), quota.pct().is_some());
            if quota != limit.quota {
                limit.quota = quota;
                self.programs = None;
                self.restate |= had != has;
            }
            let path = &limit.above.path;
            if self.known.insert(path.clone(), quota).map_or(had, |known| known.pct().is_some()) != has {
                self.notes.push(match has {
                    false => {
                        format!("cgroup:{path} has no quota any more: background work is not limited for it")
                    }
                    true => format!("cgroup:{path} has a quota again: background work is limited for it"),
                });
            }
        }
    }

    /// What the limits are to be where quotas came or went: of none nothing has to be left.
    fn restated(&mut self) -> Vec<Change> {
        if !std::mem::take(&mut self.restate) {
            return Vec::new();
        }
        let change = |limit: &FollowingLimit| match limit.quota.pct() {
            Some(pct) => change_at(limit, limit.left_pct.min(pct)),
            None => Change { to: Setting::Quota(limit.own), ..change_at(limit, limit.left_pct) },
        };
        self.limits.iter().map(change).collect()
    }

    /// Whether the programs are to begin again: not before what was refused is set.
    fn is_to_count(&self) -> bool {
        self.programs.is_none() && !self.limits.is_empty() && !self.restate
    }

    fn count_or_give_up(&mut self) {
        if self.refused {
            return;
        }
        if let Err(why) = self.count() {
            self.give_up(&why);
        }
    }

    fn give_up(&mut self, why: &str) {
        self.programs = None;
        self.refused = true;
        self.notes.push(format!("limits of background work do not follow what services use: {why}"));
    }
}

impl Programs {
    fn look(&mut self) -> Result<Option<f64>, String> {
        let (ended, windows) = self.usage.last(quota_use::WINDOWS).map_err(|error| error.to_string())?;
        let window = |used: quota_use::Used| Window { took_us: used.took_us, used_us: used.used_us };
        let windows: Vec<Window> = windows.into_iter().map(window).collect();
        let before = self.follower.usual();
        let left_pct = self.follower.look(ended, &windows);
        if self.follower.usual() != before {
            self.usage.set_usual(in_thousandths(self.follower.usual())).map_err(|error| error.to_string())?;
        }
        Ok(left_pct)
    }
}

fn in_thousandths(usual: Usual) -> quota_use::Usual {
    quota_use::Usual { least: usual.least as u32, most: usual.most.min(f64::from(u32::MAX)) as u32 }
}

/// Sets limits, except those of cgroups that were made again: theirs are reckoned again, by what their new makers gave them, with the plan
/// that has them, and set with it.
fn amend(changes: Vec<Change>, controls: &mut Controls) -> SetReport {
    let left = controls.left(&changes);
    controls.amend(&not_made_again(changes, &left))
}

fn not_made_again(changes: Vec<Change>, left: &[Left]) -> Vec<Change> {
    changes.into_iter().zip(left).filter(|(_, left)| **left != Left::Gone).map(|(change, _)| change).collect()
}

fn verdict<'a>(limit: &FollowingLimit, report: &'a SetReport) -> Option<&'a Verdict> {
    let here = |target: &Target| matches!(target, Target::Group(group) if *group == limit.group);
    report.changes.iter().rfind(|of| here(&of.target) && of.knob == Knob::Quota).map(|of| &of.verdict)
}

/// Whether a limit is in force, or to be set again.
fn stays(limit: &FollowingLimit, report: &SetReport) -> bool {
    matches!(verdict(limit, report), Some(Verdict::Applied(_) | Verdict::Unchanged | Verdict::Refused(_)))
}

impl Component for Headroom {
    fn on_tick(&mut self, _late: Duration, controls: &mut Controls) {
        self.look(controls);
    }

    fn word(&self) -> Option<Arc<OwnedFd>> {
        self.programs.as_ref().map(|programs| Arc::clone(&programs.word))
    }

    fn on_word(&mut self, controls: &mut Controls) {
        if self.programs.as_mut().is_some_and(|programs| programs.usage.take()) {
            self.look(controls);
        }
    }

    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next {
        self.cpu = seen.hierarchies.and_then(|found| found.cpu.clone());
        self.follow_quota(seen.observation);
        let changes = self.restated();
        if !changes.is_empty() {
            self.restate = self.refused_in(&amend(changes, controls));
        }
        if self.programs.as_ref().is_some_and(|programs| programs.wanted.elapsed() > REST) {
            self.programs = None;
        } else if self.is_to_count() {
            self.count_or_give_up();
        }
        Next::Stays
    }

    fn learn(&mut self, plan: &Plan, report: &SetReport) {
        self.limits = plan.follow.iter().filter(|limit| stays(limit, report)).cloned().collect();
        self.restate |= self.refused_in(report);
        // The plan has the quota of when it was made.
        for limit in &mut self.limits {
            if let Some(known) = self.known.get(&limit.above.path) {
                limit.quota = *known;
            }
            self.restate |= limit.quota.pct().is_none();
        }
        self.count_or_give_up();
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_actuate::ChangeOutcome;
    use evenkeel_base::Limit;

    use super::*;
    use crate::testing;

    fn quota(usec: u64) -> CpuQuota {
        CpuQuota { quota_usec: Limit::Value(usec), ..CpuQuota::UNLIMITED }
    }

    /// Of a cgroup without a quota of its own, in a pod that has one CPU.
    fn limit(part: f64) -> FollowingLimit {
        FollowingLimit {
            group: testing::group("/pod/batch"),
            above: testing::group("/pod"),
            quota: quota(100_000),
            left_pct: 60.0,
            part,
            own: CpuQuota::UNLIMITED,
        }
    }

    /// What came of setting it.
    fn report(limit: &FollowingLimit, to: Setting, verdict: Verdict) -> SetReport {
        let target = Target::Group(limit.group.clone());
        let changes = vec![ChangeOutcome { target, knob: Knob::Quota, to, verdict }];
        SetReport { changes, ..SetReport::default() }
    }

    #[test]
    fn what_is_left_is_left_of_the_quota_that_there_is_now() {
        let limit = limit(1.0);
        let plan = Plan { follow: vec![limit.clone()], ..Plan::default() };
        let mut headroom = Headroom { limits: vec![limit], ..Headroom::default() };
        let mut host = testing::observation(&[("/", None), ("/pod", Some(0))]);
        host.groups[1].quota = Some(quota(50_000));
        headroom.follow_quota(&host);
        assert_eq!(headroom.limits[0].quota, quota(50_000));
        assert_eq!(headroom.restated(), []);
        // A plan that is set again has the quota of when it was made; a limit that could not be set is not followed.
        for (verdict, followed) in [(Verdict::Unchanged, [quota(50_000)].as_slice()), (Verdict::Gone, &[])] {
            headroom.learn(&plan, &report(&plan.follow[0], Setting::Quota(quota(30_000)), verdict));
            let quotas: Vec<_> = headroom.limits.iter().map(|limit| limit.quota).collect();
            assert_eq!(quotas, followed);
        }
        headroom.limits = vec![FollowingLimit { quota: quota(50_000), ..plan.follow[0].clone() }];
        host.groups.truncate(1);
        headroom.follow_quota(&host);
        assert_eq!(headroom.limits[0].quota, quota(50_000), "of what is gone nothing is known");
    }

    /// Who passes through a cgroup of background work makes it not the scope's own.
    #[test]
    fn a_limit_that_is_refused_for_a_moment_is_set_again() {
        let limit = limit(0.4);
        let again = change_at(&limit, 60.0);
        let plan = Plan { follow: vec![limit], ..Plan::default() };
        let report = |verdict| report(&plan.follow[0], again.to.clone(), verdict);
        let mut headroom = Headroom { refused: true, ..Headroom::default() };
        headroom.learn(&plan, &report(Verdict::Unchanged));
        assert_eq!(headroom.restated(), []);
        headroom.take_in(&report(Verdict::Refused("outside the scope".into())));
        assert!(!headroom.is_to_count(), "refused once more, they would be taken out at once");
        assert_eq!(headroom.restated(), std::slice::from_ref(&again));
        assert!(headroom.is_to_count());
        headroom.learn(&plan, &report(Verdict::Refused("outside the scope".into())));
        assert_eq!(headroom.restated(), std::slice::from_ref(&again));
        headroom.take_in(&report(Verdict::Conflict(again.to.clone())));
        assert!(headroom.limits.is_empty() && headroom.restated().is_empty());
    }

    /// What the one before it had says nothing of its maker's quota.
    #[test]
    fn a_cgroup_that_was_made_again_gets_no_limit_of_the_one_before_it() {
        let change = change_at(&limit(0.4), 60.0);
        assert_eq!(
            not_made_again(vec![change.clone()], &[Left::NotJournaled]),
            std::slice::from_ref(&change)
        );
        assert_eq!(not_made_again(vec![change], &[Left::Gone]), []);
    }

    /// A limit is for a quota that others share: without it there is nothing to be left for them.
    #[test]
    fn a_quota_that_is_removed_takes_its_limits_with_it_until_there_is_one_again() {
        let own = quota(70_000);
        let limit = FollowingLimit { own, ..limit(0.4) };
        let plan = Plan { follow: vec![limit.clone()], ..Plan::default() };
        let mut headroom = Headroom { limits: vec![limit], ..Headroom::default() };
        let mut host = testing::observation(&[("/", None), ("/pod", Some(0))]);
        let mut set = |headroom: &mut Headroom, quota| {
            host.groups[1].quota = Some(quota);
            headroom.follow_quota(&host);
            let set: Vec<Setting> = headroom.restated().into_iter().map(|change| change.to).collect();
            (set, headroom.take_notes())
        };
        let lifted = vec![Setting::Quota(own)];
        let (to, notes) = set(&mut headroom, CpuQuota::UNLIMITED);
        assert_eq!(to, lifted);
        assert_eq!(notes, ["cgroup:/pod has no quota any more: background work is not limited for it"]);
        assert_eq!(set(&mut headroom, CpuQuota::UNLIMITED), (vec![], vec![]), "once");
        // A plan that is set again has the limit of when it was made.
        headroom.learn(&plan, &report(&plan.follow[0], to[0].clone(), Verdict::Unchanged));
        assert_eq!(set(&mut headroom, CpuQuota::UNLIMITED), (lifted, vec![]));
        let limited = |usec| vec![Setting::Quota(quota(usec))];
        let again = vec!["cgroup:/pod has a quota again: background work is limited for it".to_owned()];
        assert_eq!(set(&mut headroom, quota(100_000)), (limited(24_000), again.clone()));
        // It may come back while the plan is not set, and smaller.
        assert_eq!(set(&mut headroom, CpuQuota::UNLIMITED).1.len(), 1);
        headroom.limits[0].quota = quota(100_000);
        assert_eq!(set(&mut headroom, quota(100_000)), (vec![], again.clone()));
        assert_eq!(set(&mut headroom, CpuQuota::UNLIMITED).1.len(), 1);
        let (to, notes) = set(&mut headroom, quota(50_000));
        assert_eq!((to.len(), notes), (1, again));
        assert_eq!(to, limited(20_000));
    }
}
