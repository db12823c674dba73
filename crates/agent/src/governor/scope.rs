//! The limit of a run's scope: its cgroup is found in each observation, governed in between.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_actuate::{SetReport, Verdict as Outcome};
use evenkeel_base::run::GovernorStatus;
use evenkeel_base::{Change, CpuQuota, GroupRef, GroupView, Observation, Setting, Target};
use evenkeel_kernfs::cgroupfs::parse_cpu_stat;
use evenkeel_kernfs::mountinfo::Hierarchies;
use evenkeel_policy::governor::Verdict;

use super::{Auto, Governed};
use crate::agent::Agent;
use crate::events::{Event, Watcher};
use crate::guarantee::is_owned;
use crate::scope::Scope;

/// Period of the quotas set.
const PERIOD: Duration = Duration::from_millis(100);

/// Finds the limit of the scope under which least is stolen.
#[derive(Debug, Default)]
pub(crate) struct ScopeGovernor {
    instance: Option<String>,
    at_work: Option<AtWork>,
    /// Why nothing is governed.
    idle: String,
    /// A cgroup that is not touched any more, and why.
    left: Option<(String, String)>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct AtWork {
    auto: Auto,
    group: Group,
    told: (usize, std::mem::Discriminant<Verdict>),
}

/// The scope's cgroup.
#[derive(Debug)]
struct Group {
    target: GroupRef,
    dir: PathBuf,
    /// Where CPU time is counted, v1.
    usage: Option<PathBuf>,
    /// As found.
    original: CpuQuota,
    in_force: Option<CpuQuota>,
}

impl Group {
    fn change(&self, quota: &CpuQuota) -> Change {
        Change {
            target: Target::Group(self.target.clone()),
            to: Setting::Quota(*quota),
            why: "above it CPU is stolen as a punishment".to_owned(),
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
        let mut all = BTreeSet::new();
        members(&self.group.dir, &mut all);
        all.into_iter().collect()
    }

    fn set_quota(&mut self, quota: &CpuQuota) -> Result<(), String> {
        let found = self.group.original.pct().unwrap_or(f64::INFINITY);
        // Never more than what was allowed before.
        let to = if quota.pct().is_none_or(|pct| pct >= found) { self.group.original } else { *quota };
        if self.group.in_force.unwrap_or(self.group.original) == to {
            return Ok(());
        }
        let report = (self.write)(&[self.group.change(&to)]);
        let outcome = report.changes.last().map(|change| &change.verdict);
        match outcome {
            Some(Outcome::Applied(_) | Outcome::Unchanged) => {
                self.group.in_force = (to != self.group.original).then_some(to);
                Ok(())
            }
            // Followed up by the next observation.
            Some(Outcome::Gone) | None => Ok(()),
            Some(Outcome::Conflict(now)) => Err(self.refuse(format!("somebody else set its quota: {now}"))),
            Some(Outcome::Refused(why)) => Err(self.refuse(why.clone())),
            Some(Outcome::Failed(error)) => Err(self.refuse(error.to_string())),
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

/// Processes of a cgroup and those below it.
fn members(dir: &Path, all: &mut BTreeSet<u32>) {
    if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
        all.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    }
    let below = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        members(&entry.path(), all);
    }
}

/// The cgroup that holds the scope and nobody else. `Err` says why there is none.
fn group_of<'a>(scope: &Scope, observation: &'a Observation) -> Result<&'a GroupView, String> {
    let groups = &observation.groups;
    let parent = |index: u32| groups.get(index as usize).and_then(|group| group.parent);
    let path_to_root = |index: u32| {
        let mut path: Vec<u32> = std::iter::successors(Some(index), |&at| parent(at)).collect();
        path.reverse();
        path
    };
    let mine = |task: &&evenkeel_base::TaskView| scope.has(task, observation);
    let mut common: Option<Vec<u32>> = None;
    for task in observation.tasks.iter().filter(mine) {
        let Some(group) = task.group else { return Err("its cgroups cannot be read".to_owned()) };
        let path = path_to_root(group);
        common = Some(match common {
            None => path,
            Some(known) => known.into_iter().zip(path).take_while(|(a, b)| a == b).map(|(a, _)| a).collect(),
        });
    }
    let Some(common) = common else { return Err("nothing matches the scope yet".to_owned()) };
    let (Some(&index), true) = (common.last(), common.len() > 1) else {
        return Err("its tasks have no cgroup of their own; name one container, pod or cgroup".to_owned());
    };
    let Some(group) = groups.get(index as usize) else { return Err("its cgroup is gone".to_owned()) };
    let inside = |task: &&evenkeel_base::TaskView| {
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

impl ScopeGovernor {
    pub fn new(instance: Option<String>) -> Self {
        Self { instance, idle: "not looked yet".to_owned(), ..Self::default() }
    }

    /// Finds the scope's cgroup again.
    fn follow(&mut self, scope: &Scope, observation: &Observation, hierarchies: &Hierarchies) {
        let found = group_of(scope, observation).and_then(|group| match &self.left {
            Some((path, why)) if *path == group.path => Err(why.clone()),
            _ => Ok(group),
        });
        let group = match found {
            Ok(group) => group,
            Err(why) => return self.rest(why),
        };
        if self.at_work.as_ref().is_some_and(|at_work| at_work.group.target.path == group.path) {
            return;
        }
        let Some(cpu) = &hierarchies.cpu else { return self.rest("there is no cpu controller".to_owned()) };
        let usage = hierarchies.cpuacct.as_ref().filter(|_| !cpu.v2);
        let original = group.quota.unwrap_or(CpuQuota::UNLIMITED);
        let cpus = group.cpuset.as_ref().unwrap_or(&observation.topology.online).len().max(1) as f64;
        let cpus = original.pct().map_or(cpus, |pct| cpus.min(pct / 100.0));
        let mut auto = match Auto::new(cpus, PERIOD, self.instance.as_deref()) {
            Ok(auto) => auto,
            Err(why) => return self.rest(why),
        };
        if is_owned(&group.path) {
            auto.write_seldom();
        }
        let told = (0, std::mem::discriminant(&auto.verdict()));
        let group = Group {
            target: GroupRef { path: group.path.clone(), v2: group.v2 },
            dir: PathBuf::from(cpu.dir(&group.path)),
            usage: usage.map(|h| PathBuf::from(h.dir(&group.path)).join("cpuacct.usage")),
            original,
            in_force: None,
        };
        self.notes.push(format!("cpu limit: {} is watched for stolen CPU", group.target.path));
        self.at_work = Some(AtWork { auto, group, told });
    }

    /// Nothing is governed for now.
    fn rest(&mut self, why: String) {
        self.at_work = None;
        if self.idle != why {
            self.notes.push(format!("cpu limit: none is set: {why}"));
            self.idle = why;
        }
    }

    /// One look.
    fn tick(&mut self, write: &mut dyn FnMut(&[Change]) -> SetReport) {
        let Some(AtWork { auto, group, told }) = &mut self.at_work else { return };
        let mut hand = Hand { group, write, refused: None };
        auto.tick(&mut hand);
        if let Some(why) = hand.refused {
            let path = group.target.path.clone();
            let why = format!("{path} is left alone: {why}");
            self.left = Some((path, why.clone()));
            return self.rest(why);
        }
        let now = (auto.sums().0, std::mem::discriminant(&auto.verdict()));
        if *told == now {
            return;
        }
        *told = now;
        let limit = auto.limit().map_or_else(|| "no limit".into(), |cpus| format!("{:.1} %", 100.0 * cpus));
        self.notes.push(format!(
            "cpu limit of {}: {limit} of one CPU: {}",
            group.target.path,
            auto.verdict()
        ));
    }

    /// The quota in force as a change, so that setting a plan leaves it.
    pub fn change(&self) -> Option<Change> {
        let group = &self.at_work.as_ref()?.group;
        Some(group.change(&group.in_force?))
    }

    /// How it stands.
    pub fn status(&self) -> GovernorStatus {
        let Some(AtWork { auto, group, .. }) = &self.at_work else {
            return GovernorStatus { why: self.idle.clone(), ..GovernorStatus::default() };
        };
        let (onsets, used_s, stolen_s) = auto.sums();
        GovernorStatus {
            group: Some(group.target.path.clone()),
            limit_pct: group.in_force.and_then(|quota| quota.pct()),
            found_pct: group.original.pct(),
            onsets: onsets as u64,
            used_s,
            stolen_s,
            why: auto.notes().join("; "),
        }
    }
}

impl Agent {
    /// Finds the governed cgroup again, where one is to be governed.
    pub(crate) fn follow_governed(&mut self, observation: &Observation, watcher: &mut dyn Watcher) {
        let Some(governor) = &mut self.governor else { return };
        let Some(hierarchies) = self.observer.hierarchies() else { return };
        let was = governor.change();
        governor.follow(&self.config.scope, observation, hierarchies);
        let now = governor.change();
        self.record.governor = Some(governor.status());
        for note in std::mem::take(&mut governor.notes) {
            watcher.event(&Event::Note(&note));
        }
        if was.is_some() && now.is_none() {
            // What is no longer wanted goes back, which only setting everything does.
            let plan = self.plan().clone();
            self.set(&plan);
        }
    }

    /// One look at stolen CPU, where a limit is to be found.
    pub(crate) fn govern(&mut self) {
        let Some(mut governor) = self.governor.take() else { return };
        if self.acts() {
            governor.tick(&mut |changes| self.amend(changes));
        }
        self.governor = Some(governor);
    }
}
