//! Limits of background work that follow what services use of a quota that both share ([`FollowingLimit`]).
//!
//! Programs in the kernel ([`evenkeel_bpf::quota_use`]) count what services use and wake the loop with the first hundredth of a second
//! that is unusual; [`evenkeel_policy::follow`] says what is left of the quota then. Where the programs cannot be had, limits stay as
//! they were chosen.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_actuate::{SetReport, Verdict};
use evenkeel_base::run::RunRecord;
use evenkeel_base::{Change, FollowingLimit, GroupRef, Knob, Plan, Target};
use evenkeel_bpf::quota_use::{self, QuotaUse};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_policy::follow::{Follower, Usual, Window};
use evenkeel_policy::levers::change_at;

use crate::component::{Component, Next, Seen};
use crate::controls::Controls;

/// Programs that no plan in force wanted for so long are taken out: windows of a trial are set in turns.
const REST: Duration = Duration::from_secs(120);

/// The programs, and whom they count.
#[derive(Debug)]
struct Programs {
    above: GroupRef,
    without: Vec<GroupRef>,
    usage: QuotaUse,
    word: Arc<OwnedFd>,
    follower: Follower,
    wanted: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Headroom {
    cpu: Option<Hierarchy>,
    programs: Option<Programs>,
    /// Those in force.
    limits: Vec<FollowingLimit>,
    /// Why limits do not follow, said once.
    refused: bool,
    notes: Vec<String>,
}

impl Headroom {
    /// The programs count for the limits in force. Only one quota is looked at: that of the first limit.
    fn count(&mut self) -> Result<(), String> {
        let Some(first) = self.limits.first().cloned() else { return Ok(()) };
        self.limits.retain(|limit| limit.above == first.above);
        let without: Vec<GroupRef> = self.limits.iter().map(|limit| limit.group.clone()).collect();
        let same = |known: &Programs| known.above == first.above && known.without == without;
        if !self.programs.as_ref().is_some_and(same) {
            self.programs = None;
            self.programs = Some(self.start(&first, without)?);
        }
        if let Some(programs) = &mut self.programs {
            programs.wanted = Instant::now();
            programs.follower.is_set(first.left_pct);
        }
        Ok(())
    }

    fn start(&self, first: &FollowingLimit, without: Vec<GroupRef>) -> Result<Programs, String> {
        let cpu = self.cpu.as_ref().ok_or("cgroups are not mounted")?;
        let inode = |group: &GroupRef| {
            let path = Root::host().path(cpu.dir(&group.path));
            fs::metadata(&path)
                .map(|facts| facts.ino())
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        let follower = Follower::new(&first.quota, first.left_pct).ok_or("there is no quota")?;
        let ids = without.iter().map(inode).collect::<Result<Vec<u64>, String>>()?;
        let types = evenkeel_bpf::load::kernel_types().map_err(|error| error.to_string())?;
        let usage = QuotaUse::start(&types, inode(&first.above)?, &ids).map_err(|error| error.to_string())?;
        let word = usage.descriptor().try_clone_to_owned().map_err(|error| error.to_string())?;
        let above = first.above.clone();
        Ok(Programs { above, without, usage, word: Arc::new(word), follower, wanted: Instant::now() })
    }

    fn look(&mut self, controls: &mut Controls) {
        let Some(programs) = self.programs.as_mut().filter(|_| !self.limits.is_empty()) else { return };
        programs.wanted = Instant::now();
        match programs.look() {
            Ok(Some(left_pct)) => self.set(left_pct, controls),
            Ok(None) => {}
            Err(why) => self.give_up(&why),
        }
    }

    fn set(&mut self, left_pct: f64, controls: &mut Controls) {
        let changes: Vec<Change> = self.limits.iter().map(|limit| change_at(limit, left_pct)).collect();
        let report = controls.amend(&changes);
        // One that somebody else sets, or that is gone, is left alone.
        self.limits.retain(|limit| is_in_force(limit, &report));
    }

    fn give_up(&mut self, why: &str) {
        self.programs = None;
        self.limits.clear();
        if !std::mem::replace(&mut self.refused, true) {
            self.notes.push(format!("limits of background work do not follow what services use: {why}"));
        }
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

fn is_in_force(limit: &FollowingLimit, report: &SetReport) -> bool {
    report.changes.iter().any(|outcome| {
        let here = matches!(&outcome.target, Target::Group(group) if *group == limit.group);
        let made = matches!(outcome.verdict, Verdict::Applied(_) | Verdict::Unchanged);
        here && outcome.knob == Knob::Quota && made
    })
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

    fn on_window(&mut self, seen: Seen<'_>, _controls: &mut Controls) -> Next {
        self.cpu = seen.hierarchies.and_then(|found| found.cpu.clone());
        if self.programs.as_ref().is_some_and(|programs| programs.wanted.elapsed() > REST) {
            self.programs = None;
        }
        Next::Stays
    }

    fn learn(&mut self, plan: &Plan, report: &SetReport) {
        self.limits = plan.follow.iter().filter(|limit| is_in_force(limit, report)).cloned().collect();
        if self.refused {
            self.limits.clear();
        }
        if let Err(why) = self.count() {
            self.give_up(&why);
        }
    }

    fn status(&self, _record: &mut RunRecord) {}

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}
