//! The limit of a run's scope: its cgroup is found in each observation, governed in between.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_actuate::{SetReport, Verdict as Outcome};
use evenkeel_base::run::{GovernorStatus, RunRecord};
use evenkeel_base::{
    Change, CpuQuota, GroupRef, GroupView, Knob, Limit, Observation, Plan, Setting, Target, TaskView,
};
use evenkeel_linux::Root;
use evenkeel_linux::cgroupfs::{parse_cpu_stat, processes_below, read_cpu_limits};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_policy::governor::Verdict;

use super::{Auto, Governed};
use crate::component::{Component, Next, Seen};
use crate::controls::Controls;
use crate::guarantee::is_owned;
use crate::scope::Scope;

/// Period of the quotas set.
const PERIOD: Duration = Duration::from_millis(100);
/// Quotas are multiples of this, microseconds: the journal remembers every value written.
const STEP_USEC: u64 = 100;
/// Writes in a row that may fail before the cgroup is left alone.
const PATIENCE: u32 = 20;
/// Observations in a row in which the cgroup may not be found before what was learnt of it is given up: processes come
/// and go.
const MISSED: u32 = 5;

/// Finds the limit of the scope under which least is stolen.
#[derive(Debug, Default)]
pub(crate) struct ScopeGovernor {
    instance: Option<String>,
    at_work: Option<AtWork>,
    /// Why nothing is governed.
    idle: String,
    missed: u32,
    /// Inode of a cgroup that is not touched any more, and why.
    left: Option<(u64, String)>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct AtWork {
    auto: Auto,
    group: Group,
    told: LastReported,
}

/// What people were told last: onsets, which verdict, whether the rule is known.
type LastReported = (usize, std::mem::Discriminant<Verdict>, bool);

fn told(auto: &Auto) -> LastReported {
    let verdict = auto.verdict();
    let known = matches!(verdict, Verdict::Throttled { threshold: Some(_), .. });
    (auto.governor().onsets(), std::mem::discriminant(&verdict), known)
}

/// The scope's cgroup.
#[derive(Debug)]
struct Group {
    target: GroupRef,
    dir: PathBuf,
    inode: u64,
    /// Where CPU time is counted, v1; a separate hierarchy may not have the cgroup.
    usage: Option<PathBuf>,
    /// As found.
    original: CpuQuota,
    in_force: Option<CpuQuota>,
    /// Writes in a row that failed.
    failed: u32,
}

impl Group {
    fn change(&self, quota: &CpuQuota) -> Change {
        Change {
            target: Target::Group(self.target.clone()),
            to: Setting::Quota(*quota),
            why: "above it CPU is stolen to throttle it".to_owned(),
        }
    }

    fn cpu_ns(&self) -> Option<u64> {
        match &self.usage {
            Some(usage) => fs::read_to_string(usage).ok()?.trim().parse().ok(),
            None => parse_cpu_stat(&fs::read_to_string(self.dir.join("cpu.stat")).ok()?).ok()?.usage_ns,
        }
    }
}

/// The cgroup with the hand that may write.
struct Hand<'a> {
    group: &'a mut Group,
    write: &'a mut dyn FnMut(&[Change]) -> SetReport,
    /// Somebody else's value, or a refusal, after which the cgroup is left alone.
    refused: Option<String>,
}

impl Governed for Hand<'_> {
    fn cpu_ns(&self) -> Option<u64> {
        self.group.cpu_ns()
    }

    fn processes(&self) -> Vec<u32> {
        // One whose threads are in several cgroups is listed in each.
        let all: BTreeSet<u32> = processes_below(&self.group.dir).into_iter().collect();
        all.into_iter().collect()
    }

    fn set_quota(&mut self, quota: &CpuQuota) -> Result<(), String> {
        let round = |usec: u64| (usec + STEP_USEC / 2) / STEP_USEC * STEP_USEC;
        let quota = CpuQuota {
            quota_usec: quota.quota_usec.value().map_or(Limit::Max, |usec| Limit::Value(round(usec))),
            ..*quota
        };
        let found = self.group.original.pct().unwrap_or(f64::INFINITY);
        // Never more than what was allowed before.
        let to = if quota.pct().is_none_or(|pct| pct >= found) { self.group.original } else { quota };
        let before = self.group.in_force;
        if before.unwrap_or(self.group.original) == to {
            return Ok(());
        }
        let report = (self.write)(&[self.group.change(&to)]);
        match report.changes.last().map(|change| &change.verdict) {
            Some(Outcome::Applied(_) | Outcome::Unchanged) => {
                self.group.in_force = (to != self.group.original).then_some(to);
                self.group.failed = 0;
                Ok(())
            }
            // Followed up by the next observation.
            Some(Outcome::Gone) | None => {
                self.group.in_force = None;
                Ok(())
            }
            Some(Outcome::Conflict(now)) => Err(self.refuse(format!("somebody else set its quota: {now}"))),
            Some(Outcome::Refused(why)) => Err(self.refuse(why.clone())),
            // On v1 a group below may have more for a moment. What failed is as found now: what was in force is better.
            Some(Outcome::Failed(error)) => {
                let why = error.to_string();
                self.group.failed += 1;
                if self.group.failed >= PATIENCE {
                    return Err(self.refuse(why));
                }
                if let Some(before) = before {
                    let report = (self.write)(&[self.group.change(&before)]);
                    let again = matches!(
                        report.changes.last().map(|change| &change.verdict),
                        Some(Outcome::Applied(_) | Outcome::Unchanged)
                    );
                    self.group.in_force = again.then_some(before);
                }
                Err(why)
            }
        }
    }
}

impl Hand<'_> {
    fn refuse(&mut self, why: String) -> String {
        self.group.in_force = None;
        self.refused = Some(why.clone());
        why
    }
}

/// The cgroup that holds the scope and no one else. `Err` says why there is none.
fn group_of<'a>(scope: &Scope, observation: &'a Observation) -> Result<&'a GroupView, String> {
    let groups = &observation.groups;
    let parent = |index: u32| groups.get(index as usize).and_then(|group| group.parent);
    let path_to_root = |index: u32| {
        let mut path: Vec<u32> = std::iter::successors(Some(index), |&at| parent(at)).collect();
        path.reverse();
        path
    };
    let mine = |task: &&TaskView| scope.has(task, observation);
    let mut common: Option<Vec<u32>> = None;
    for task in observation.tasks.iter().filter(mine) {
        // Of one that ended meanwhile it is not known.
        let Some(group) = task.group else { continue };
        let path = path_to_root(group);
        common = Some(match common {
            None => path,
            Some(known) => known.into_iter().zip(path).take_while(|(a, b)| a == b).map(|(a, _)| a).collect(),
        });
    }
    let Some(common) = common else { return Err("nothing matches the scope yet".to_owned()) };
    // The one that was named, if all are in it; else the innermost that holds all.
    let named = scope.group(observation).filter(|index| common.contains(index));
    let index = named.or_else(|| common.last().copied()).filter(|&index| parent(index).is_some());
    let Some(index) = index else {
        return Err("its tasks have no cgroup of their own; name one container, pod or cgroup".to_owned());
    };
    let Some(group) = groups.get(index as usize) else { return Err("its cgroup is gone".to_owned()) };
    let inside = |task: &&TaskView| {
        task.group.is_some_and(|at| std::iter::successors(Some(at), |&at| parent(at)).any(|at| at == index))
    };
    let strangers = observation.tasks.iter().filter(|task| !mine(task)).filter(inside).count();
    if strangers > 0 {
        return Err(format!(
            "its cgroup {} holds {strangers} tasks more than the scope; name one container, pod or cgroup",
            group.path
        ));
    }
    Ok(group)
}

/// The quota of a cgroup now, read from its files: observations keep it for some seconds.
fn quota_now(cpu: &Hierarchy, path: &str) -> Option<CpuQuota> {
    read_cpu_limits(&Root::host(), cpu, path).ok()?.quota
}

impl ScopeGovernor {
    pub fn new(instance: Option<String>) -> Self {
        Self { instance, idle: "not looked yet".to_owned(), ..Self::default() }
    }

    /// Finds the scope's cgroup again. `original` says what quota a cgroup had before it was touched, if it was.
    fn follow(
        &mut self,
        scope: &Scope,
        observation: &Observation,
        hierarchies: &Hierarchies,
        original: &dyn Fn(&GroupRef) -> Option<CpuQuota>,
    ) {
        let Some(cpu) = &hierarchies.cpu else { return self.rest("there is no cpu controller".to_owned()) };
        let group = match group_of(scope, observation) {
            Ok(group) => group,
            Err(why) => return self.miss(why),
        };
        let dir = PathBuf::from(cpu.dir(&group.path));
        let Ok(inode) = fs::metadata(&dir).map(|facts| facts.ino()) else {
            return self.miss("its cgroup is gone".to_owned());
        };
        if let Some((left, why)) = &self.left
            && *left == inode
        {
            return self.rest(why.clone());
        }
        self.missed = 0;
        if self.at_work.as_ref().is_some_and(|at_work| at_work.group.inode == inode) {
            return;
        }
        let usage = hierarchies.cpuacct.as_ref().filter(|_| !cpu.v2);
        let target = group.reference();
        let original = original(&target)
            .or_else(|| quota_now(cpu, &group.path))
            .or(group.quota)
            .unwrap_or(CpuQuota::UNLIMITED);
        let within = group.cpuset.as_ref().unwrap_or(&observation.topology.online);
        let cpus = within.len().max(1) as f64;
        let cpus = original.pct().map_or(cpus, |pct| cpus.min(pct / 100.0));
        let room = (cpus, Some(within.clone()));
        let auto = match Auto::new(room, PERIOD, self.instance.as_deref(), is_owned(&group.path)) {
            Ok(auto) => auto,
            Err(why) => return self.rest(why),
        };
        let group = Group {
            usage: usage.map(|h| PathBuf::from(h.dir(&group.path)).join("cpuacct.usage")),
            target,
            dir,
            inode,
            original,
            in_force: None,
            failed: 0,
        };
        self.notes.push(format!("cpu limit: {} is watched for stolen CPU", group.target.path));
        let told = told(&auto);
        self.at_work = Some(AtWork { auto, group, told });
    }

    /// The cgroup was not found in this observation.
    fn miss(&mut self, why: String) {
        self.missed += 1;
        if self.at_work.is_none() || self.missed >= MISSED {
            self.rest(why);
        }
    }

    /// Nothing is governed for now.
    fn rest(&mut self, why: String) {
        let worked = self.at_work.take().is_some();
        // Counts of strangers differ all the time.
        let same = self.idle.split(|c: char| c.is_ascii_digit()).next()
            == why.split(|c: char| c.is_ascii_digit()).next();
        if worked || !same {
            self.notes.push(format!("cpu limit: none is set: {why}"));
        }
        self.idle = why;
    }

    /// One look.
    fn tick(&mut self, overslept: Duration, write: &mut dyn FnMut(&[Change]) -> SetReport) {
        let Some(AtWork { auto, group, told: last }) = &mut self.at_work else { return };
        let mut hand = Hand { group, write, refused: None };
        auto.tick(&mut hand, overslept);
        if let Some(why) = hand.refused {
            return self.leave(&why);
        }
        let now = told(auto);
        if *last == now {
            return;
        }
        *last = now;
        let limit = auto.limit().map_or_else(|| "no limit".into(), |cpus| format!("{:.1} %", 100.0 * cpus));
        let path = &group.target.path;
        self.notes.push(format!("cpu limit of {path}: {limit} of one CPU: {}", auto.verdict()));
    }

    /// Does not touch the cgroup any more.
    fn leave(&mut self, why: &str) {
        let Some(AtWork { group, .. }) = &self.at_work else { return };
        let why = format!("{} is left alone: {why}", group.target.path);
        self.left = Some((group.inode, why.clone()));
        self.rest(why);
    }

    /// The quota in force as a change, so that setting a plan leaves it.
    fn change(&self) -> Option<Change> {
        let group = &self.at_work.as_ref()?.group;
        Some(group.change(&group.in_force?))
    }

    /// How it stands.
    fn standing(&self) -> GovernorStatus {
        let Some(AtWork { auto, group, .. }) = &self.at_work else {
            return GovernorStatus { why: self.idle.clone(), ..GovernorStatus::default() };
        };
        let governor = auto.governor();
        GovernorStatus {
            group: Some(group.target.path.clone()),
            limit_pct: group.in_force.and_then(|quota| quota.pct()),
            found_pct: group.original.pct(),
            onsets: governor.onsets() as u64,
            used_s: governor.used_s(),
            stolen_s: governor.stolen_s(),
            why: auto.notes().join("; "),
        }
    }
}

impl Component for ScopeGovernor {
    /// One look at stolen CPU.
    fn on_tick(&mut self, late: Duration, controls: &mut Controls) {
        self.tick(late, &mut |changes| controls.amend(changes));
    }

    /// Finds the governed cgroup again.
    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next {
        let was = self.change();
        if let Some(hierarchies) = seen.hierarchies {
            let original = |group: &GroupRef| controls.original_quota(group);
            self.follow(seen.scope, seen.observation, hierarchies, &original);
        }
        if was.is_some() && self.change().is_none() { Next::SetAll } else { Next::Stays }
    }

    fn changes(&self) -> Vec<Change> {
        self.change().into_iter().collect()
    }

    fn learn(&mut self, _plan: &Plan, report: &SetReport) {
        let Some(AtWork { group, .. }) = &mut self.at_work else { return };
        let target = Target::Group(group.target.clone());
        let mine =
            |change: &&evenkeel_actuate::ChangeOutcome| change.target == target && change.knob == Knob::Quota;
        match report.changes.iter().find(mine).map(|change| &change.verdict) {
            Some(Outcome::Conflict(now)) => self.leave(&format!("somebody else set its quota: {now}")),
            Some(Outcome::Failed(_) | Outcome::Gone) => group.in_force = None,
            _ => {}
        }
    }

    fn status(&self, record: &mut RunRecord) {
        record.governor = Some(self.standing());
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// `/`, `/a`, `/a/b`, `/c`, and tasks in them.
    fn observation(tasks: &[(u32, &str, u32)]) -> Observation {
        Observation {
            tasks: tasks.iter().map(|&(pid, comm, group)| testing::task(pid, comm, group)).collect(),
            ..testing::observation(&[("/", None), ("/a", Some(0)), ("/a/b", Some(1)), ("/c", Some(0))])
        }
    }

    fn found(scope: &str, tasks: &[(u32, &str, u32)]) -> Result<String, String> {
        let scope = Scope::parse(&[scope]).unwrap();
        group_of(&scope, &observation(tasks)).map(|group| group.path.clone())
    }

    #[test]
    fn the_cgroup_that_holds_the_scope_alone_is_governed() {
        let tasks = [(7, "make", 2), (8, "cc", 1), (9, "sshd", 3), (10, "init", 0)];
        assert_eq!(found("cgroup:/a", &tasks), Ok("/a".into()));
        assert_eq!(found("cgroup:/a/b", &tasks), Ok("/a/b".into()));
        assert_eq!(found("cgroup:/a", &tasks[..1]), Ok("/a".into()), "named, though all are further in");
        assert_eq!(found("comm:make|cc", &tasks), Ok("/a".into()));
        assert_eq!(found("pid:9", &tasks), Ok("/c".into()));
    }

    #[test]
    fn what_others_share_is_not_and_it_is_said_why() {
        let tasks = [(7, "make", 2), (8, "cc", 1), (9, "sshd", 3), (10, "init", 0)];
        for (scope, why) in [
            ("comm:cc", "/a holds 1 tasks more"),
            ("comm:make|sshd", "no cgroup of their own"),
            ("comm:init", "no cgroup of their own"),
            ("comm:nobody", "nothing matches"),
        ] {
            let error = found(scope, &tasks).unwrap_err();
            assert!(error.contains(why), "{scope}: {error}");
        }
    }
}
