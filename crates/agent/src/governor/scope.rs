//! The limit of a run's scope: its cgroup is found in each observation, governed in between. Where the scope is background work next
//! to services, all of them are watched and it alone is limited ([`super::beside`]).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use evenkeel_actuate::{SetReport, Verdict as Outcome};
use evenkeel_base::run::{GovernorStatus, RunRecord};
use evenkeel_base::{
    Change, CpuQuota, CpuSet, GroupRef, GroupView, Knob, Limit, Observation, Plan, Setting, Target, TaskView,
};
use evenkeel_linux::Root;
use evenkeel_linux::cgroupfs::read_cpu_limits;
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_policy::governor::Verdict;

use super::beside::Beside;
use super::place::{Counted, group_of, region_of};
use super::{Auto, Exempt, Governed, Purpose};
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
    /// Services next to the scope, which is background work then.
    services: Vec<Scope>,
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
    beside: Option<Beside>,
    told: LastReported,
}

/// What people were told last: onsets, which verdict, whether the rule is known.
type LastReported = (usize, std::mem::Discriminant<Verdict>, bool);

fn told(auto: &Auto) -> LastReported {
    let verdict = auto.verdict();
    let known = matches!(verdict, Verdict::Throttled { threshold: Some(_), .. });
    (auto.governor().onsets(), std::mem::discriminant(&verdict), known)
}

#[derive(Debug)]
struct Group {
    target: GroupRef,
    counted: Counted,
    inode: u64,
    /// Where its quota is.
    cpu: Hierarchy,
    original: CpuQuota,
    in_force: Option<CpuQuota>,
    /// The journal says what was found: it tells a value of somebody else's.
    journaled: bool,
    /// Writes in a row that failed.
    failed: u32,
}

impl Group {
    /// Its change to this quota, and why: whether services share with it what is given.
    fn change(&self, quota: &CpuQuota, for_services: bool) -> Change {
        let whose = if for_services { "from services" } else { "to throttle it" };
        let why = format!("above it CPU is stolen {whose}");
        Change { target: Target::Group(self.target.clone()), to: Setting::Quota(*quota), why }
    }
}

/// The cgroup with the hand that may write.
struct Hand<'a> {
    group: &'a mut Group,
    beside: Option<&'a mut Beside>,
    write: &'a mut dyn FnMut(&[Change]) -> SetReport,
    /// Somebody else's value, or failure after failure, after which the cgroup is left alone.
    refused: Option<String>,
    /// The cgroup is not the scope's own for now: what was set is to be set again.
    as_found: bool,
    /// Somebody else has set a quota since the cgroup was found: the next observation finds it again.
    changed: bool,
}

impl Governed for Hand<'_> {
    /// Of services that are in no cgroup of their own no one counts it.
    fn cpu_ns(&self) -> Option<u64> {
        self.group.counted.cpu_ns().filter(|_| self.beside.is_none())
    }

    fn processes(&self) -> Vec<u32> {
        let services = self.beside.as_ref().map(|beside| beside.services());
        self.group.counted.processes().into_iter().chain(services.into_iter().flatten()).collect()
    }

    fn exempt(&self) -> Option<Exempt> {
        let processes = self.beside.as_ref()?.services();
        let quota = self.group.in_force.as_ref().unwrap_or(&self.group.original);
        Some(Exempt { processes, others: quota.pct().map(|pct| pct / 100.0) })
    }

    fn set_quota(&mut self, quota: &CpuQuota) -> Result<(), String> {
        match &mut self.beside {
            Some(beside) => {
                beside.allow(quota.pct().map(|pct| pct / 100.0));
                self.renew()
            }
            None => self.put(quota),
        }
    }
}

impl Hand<'_> {
    /// Sets what services leave, where that is due.
    fn renew(&mut self) -> Result<(), String> {
        let Some(beside) = &mut self.beside else { return Ok(()) };
        let Some(to) = beside.due(self.group.in_force.as_ref()) else { return Ok(()) };
        beside.is_set();
        self.put(&to)
    }

    fn put(&mut self, quota: &CpuQuota) -> Result<(), String> {
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
        // What another quota holds back is not stolen, and none is to be exceeded.
        let now = || quota_now(&self.group.cpu, &self.group.target.path)?.pct();
        if !self.group.journaled && now().is_some_and(|now| now < found) {
            self.changed = true;
            return Err("somebody else has set its quota".to_owned());
        }
        let report = (self.write)(&[self.group.change(&to, self.beside.is_some())]);
        match report.changes.last().map(|change| &change.verdict) {
            Some(Outcome::Applied(_) | Outcome::Unchanged) => {
                self.group.in_force = (to != self.group.original).then_some(to);
                (self.group.journaled, self.group.failed) = (true, 0);
                Ok(())
            }
            // Followed up by the next observation.
            Some(Outcome::Gone) | None => {
                self.group.in_force = None;
                Ok(())
            }
            Some(Outcome::Conflict(now)) => Err(self.refuse(format!("somebody else set its quota: {now}"))),
            // Somebody else is in the cgroup, or was at the last look: observations say whether he stays.
            Some(Outcome::Refused(why)) => {
                self.as_found = true;
                Err(why.clone())
            }
            // On v1 a group below may have more for a moment. What failed is as found now: what was in force is better.
            Some(Outcome::Failed(error)) => {
                let why = error.to_string();
                self.group.failed += 1;
                if self.group.failed >= PATIENCE {
                    return Err(self.refuse(why));
                }
                if let Some(before) = before {
                    let report = (self.write)(&[self.group.change(&before, self.beside.is_some())]);
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

    fn refuse(&mut self, why: String) -> String {
        self.group.in_force = None;
        self.refused = Some(why.clone());
        why
    }
}

/// The quota of a cgroup now, read from its files: observations keep it for some seconds.
pub(crate) fn quota_now(cpu: &Hierarchy, path: &str) -> Option<CpuQuota> {
    read_cpu_limits(&Root::host(), cpu, path).ok()?.quota
}

impl AtWork {
    /// Whether it governs this cgroup on these CPUs, next to the services of this region.
    fn is_of(&self, inode: u64, cpus: &CpuSet, region: Option<&GroupView>) -> bool {
        let path = self.beside.as_ref().map(Beside::path);
        let same_cpus = self.auto.within.as_ref() == Some(cpus);
        self.group.inode == inode && same_cpus && path == region.map(|region| region.path.as_str())
    }

    /// Whether this is the quota that it was found under. One of its own says nothing of that: whoever sets another one then is met
    /// with the next write.
    fn is_under(&self, quota: &CpuQuota) -> bool {
        self.group.in_force.is_some() || self.group.original == *quota
    }

    /// Whose the services' processes are now.
    fn observe(&mut self, services: &[Scope], observation: &Observation) {
        let Some(beside) = &mut self.beside else { return };
        let of = |task: &&TaskView| services.iter().any(|service| service.has(task, observation));
        let processes: BTreeSet<u32> = observation.tasks.iter().filter(of).map(|task| task.id.tgid).collect();
        beside.observe(processes.into_iter().collect());
    }
}

impl ScopeGovernor {
    pub fn new(instance: Option<String>, services: Vec<Scope>) -> Self {
        Self { instance, services, idle: "not looked yet".to_owned(), ..Self::default() }
    }

    /// Finds the scope's cgroup again.
    fn follow(
        &mut self,
        scope: &Scope,
        observation: &Observation,
        hierarchies: &Hierarchies,
        controls: &Controls,
    ) {
        let Some(cpu) = &hierarchies.cpu else { return self.rest("there is no cpu controller".to_owned()) };
        let group = match group_of(scope, observation) {
            Ok(group) => group,
            Err(why) => return self.miss(why),
        };
        let counted = Counted::of(&group.path, cpu, hierarchies);
        let Ok(inode) = fs::metadata(&counted.dir).map(|facts| facts.ino()) else {
            return self.miss("its cgroup is gone".to_owned());
        };
        if let Some((left, why)) = &self.left
            && *left == inode
        {
            return self.rest(why.clone());
        }
        let region = match self.services.as_slice() {
            [] => None,
            services => match region_of(services, scope, observation) {
                Ok(region) => Some(region),
                Err(why) => return self.miss(why),
            },
        };
        self.missed = 0;
        let within = region.unwrap_or(group).cpuset.as_ref().unwrap_or(&observation.topology.online);
        let journaled = controls.found_quota(group);
        let original =
            journaled.or_else(|| quota_now(cpu, &group.path)).or(group.quota).unwrap_or(CpuQuota::UNLIMITED);
        let is_same =
            |at_work: &&mut AtWork| at_work.is_of(inode, within, region) && at_work.is_under(&original);
        if let Some(at_work) = self.at_work.as_mut().filter(is_same) {
            at_work.observe(&self.services, observation);
            return;
        }
        let target = group.reference();
        let cpus = within.len().max(1) as f64;
        let own = region.map_or(original.pct(), |region| region.quota.as_ref()?.pct());
        let cpus = own.map_or(cpus, |pct| cpus.min(pct / 100.0));
        let room = (cpus, Some(within.clone()));
        let purpose = Purpose { seldom: is_owned(&group.path), for_services: region.is_some() };
        let auto = match Auto::new(room, PERIOD, self.instance.as_deref(), purpose) {
            Ok(auto) => auto,
            Err(why) => return self.rest(why),
        };
        let group = Group {
            target,
            counted,
            inode,
            cpu: cpu.clone(),
            original,
            in_force: None,
            journaled: journaled.is_some(),
            failed: 0,
        };
        self.notes.push(match region {
            None => format!("cpu limit: {} is watched for stolen CPU", group.target.path),
            Some(region) => format!(
                "cpu limit: {} is watched for stolen CPU; {} gets what services leave",
                region.path, group.target.path
            ),
        });
        let beside = region
            .map(|region| Beside::new(Counted::of(&region.path, cpu, hierarchies), region.path.clone()));
        let told = told(&auto);
        let mut at_work = AtWork { auto, group, beside, told };
        at_work.observe(&self.services, observation);
        self.at_work = Some(at_work);
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

    fn tick(&mut self, overslept: Duration, write: &mut dyn FnMut(&[Change]) -> SetReport) {
        let Some(AtWork { auto, group, beside, told: last }) = &mut self.at_work else { return };
        if let Some(beside) = beside {
            beside.look(&group.counted);
        }
        let mut hand =
            Hand { group, beside: beside.as_mut(), write, refused: None, as_found: false, changed: false };
        auto.tick(&mut hand, overslept);
        // What services use changes while what all may use does not.
        if let Err(why) = hand.renew() {
            tracing::debug!(why, "the limit of background work was not set");
        }
        let Hand { refused, as_found, changed, .. } = hand;
        if let Some(why) = refused {
            return self.leave(&why);
        }
        // What was seen since then says nothing.
        if changed {
            return;
        }
        if as_found {
            (group.in_force, auto.limit) = (None, None);
        }
        let now = told(auto);
        if *last == now {
            return;
        }
        *last = now;
        let limit = auto.limit().map_or_else(|| "no limit".into(), |cpus| format!("{:.1} %", 100.0 * cpus));
        let path = &group.target.path;
        self.notes.push(match beside {
            None => format!("cpu limit of {path}: {limit} of one CPU: {}", auto.words()),
            Some(beside) => format!("cpu limit of {}: {limit} of one CPU: {}", beside.path(), auto.words()),
        });
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
        let AtWork { group, beside, .. } = self.at_work.as_ref()?;
        Some(group.change(&group.in_force?, beside.is_some()))
    }

    fn standing(&self) -> GovernorStatus {
        let Some(AtWork { auto, group, beside, .. }) = &self.at_work else {
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
            why: auto
                .notes()
                .into_iter()
                .chain(beside.as_ref().map(Beside::words))
                .collect::<Vec<_>>()
                .join("; "),
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
            self.follow(seen.scope, seen.observation, hierarchies, controls);
        }
        if was.is_some() && self.change().is_none() { Next::SetAll } else { Next::Stays }
    }

    fn changes(&self) -> Vec<Change> {
        self.change().into_iter().collect()
    }

    fn learn(&mut self, _plan: &Plan, report: &SetReport) {
        let Some(AtWork { auto, group, .. }) = &mut self.at_work else { return };
        let target = Target::Group(group.target.clone());
        let mine =
            |change: &&evenkeel_actuate::ChangeOutcome| change.target == target && change.knob == Knob::Quota;
        match report.changes.iter().find(mine).map(|change| &change.verdict) {
            Some(Outcome::Conflict(now)) => self.leave(&format!("somebody else set its quota: {now}")),
            // What was refused is as found, and to be set again.
            Some(Outcome::Failed(_) | Outcome::Gone | Outcome::Refused(_)) => {
                (group.in_force, auto.limit) = (None, None);
            }
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
mod tests;
