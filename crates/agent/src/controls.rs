//! What the agent changes the host with: the actuator within the bounds of the last observation, and what moves waiting
//! work. Nothing else of the agent writes scheduling state.
//!
//! Controls that are dropped without [`Controls::close`] restore everything by the journal.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use evenkeel_actuate::{Actuator, Item, Left, Linux, RestoreReport, SetReport, Verdict};
use evenkeel_base::text::count;
use evenkeel_base::{
    Change, CpuQuota, GroupView, Knob, Observation, Plan, Setting, Target, TaskId, TaskView, Topology,
};
use evenkeel_linux::fault;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_linux::reserve::Reserve;
use evenkeel_policy::levers;

use crate::as_found::as_found;
use crate::bounds::{self, Bounds};
use crate::error::AgentError;
use crate::puller::Puller;
use crate::scope::Scope;
use crate::stated::Guarantee;

/// Values of somebody else's kept until they are taken.
const INTERFERENCES: usize = 100;

/// Descriptors kept for undoing: a `docker update` takes six, everything else fewer.
const UNDO_DESCRIPTORS: u64 = 32;

/// A value that somebody else set where one of ours was, or was to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interference {
    pub target: String,
    /// What it is now, with the property's name.
    pub what: String,
}

#[derive(Default)]
pub(crate) struct Controls {
    actuator: Option<Actuator<Linux>>,
    state_dir: PathBuf,
    /// What may be written, by the last observation.
    bounds: Bounds,
    puller: Option<Puller>,
    /// Whether waiting work can be moved here, as far as is known.
    pulls: bool,
    reserve: Reserve,
    /// Something may be in force: whoever drops the controls without closing them has it restored.
    unrestored: bool,
    interferences: Vec<Interference>,
    unrestored_values: Unrestored,
}

/// Values that should have been restored by now and could not be. Each set tries again.
#[derive(Default)]
struct Unrestored {
    values: HashSet<(Target, Knob)>,
    notes: Vec<String>,
}

/// Values that one note names; of more it says how many.
const NAMED: usize = 5;

impl Unrestored {
    /// Takes in what a set came to. Each value is told once, until it is restored or set anew.
    fn take_in(&mut self, report: &SetReport) {
        let back = &report.back;
        for item in [&back.put_back, &back.already, &back.gone, &back.conflicts].into_iter().flatten() {
            self.values.remove(&(item.target.clone(), item.knob));
        }
        let in_force = |verdict: &Verdict| matches!(verdict, Verdict::Applied(_) | Verdict::Unchanged);
        for change in report.changes.iter().filter(|change| in_force(&change.verdict)) {
            self.values.remove(&(change.target.clone(), change.knob));
        }
        let new = back.failed.iter().filter(|item| self.values.insert((item.target.clone(), item.knob)));
        let mut told: Vec<String> = new.map(Item::in_words).collect();
        if told.len() > NAMED {
            let more = format!("{} more", told.len() - NAMED);
            told.truncate(NAMED);
            told.push(more);
        }
        if !told.is_empty() {
            self.notes.push(format!("not restored yet, the next change tries again: {}", told.join(", ")));
        }
    }
}

impl Controls {
    /// Controls that change nothing.
    pub fn none(pulls: bool) -> Self {
        let mut controls = Self::default();
        controls.pulls = pulls;
        controls
    }

    /// Controls of what an actuator knows.
    pub fn of(actuator: Actuator<Linux>, state_dir: &Path, pulls: bool) -> Self {
        let mut controls = Self::none(pulls);
        controls.actuator = Some(actuator);
        state_dir.clone_into(&mut controls.state_dir);
        controls.unrestored = true;
        controls.reserve = Reserve::take(UNDO_DESCRIPTORS);
        controls
    }

    /// What each of these changes of a killed predecessor is now.
    pub fn left(&mut self, changes: &[Change]) -> Vec<Left> {
        self.actuator.as_mut().map_or_else(Vec::new, |actuator| actuator.left(changes))
    }

    /// Keeps bytes that a successor is to know. Where they cannot be written, it is to know nothing: then it restores.
    pub fn remember(&mut self, bytes: &[u8]) {
        let Some(actuator) = &mut self.actuator else { return };
        if let Err(error) = actuator.remember(bytes) {
            tracing::warn!(
                "a restart will restore everything first, because decisions cannot be written down: {error}"
            );
            if let Err(error) = actuator.forget() {
                tracing::warn!("what was written down before is still there: {error}");
            }
        }
    }

    /// Whether changes are allowed.
    pub fn act(&self) -> bool {
        self.actuator.is_some()
    }

    /// Whether waiting work can be moved here, as far as is known.
    pub fn pull(&self) -> bool {
        self.pulls
    }

    /// What may be written.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Everything touched: target, original, and our value in force.
    pub fn touched(&self) -> impl Iterator<Item = (&Target, &Setting, Option<&Setting>)> {
        self.actuator.iter().flat_map(Actuator::touched)
    }

    /// Properties written so far, those taken back included.
    pub fn written(&mut self) -> u64 {
        self.actuator.as_mut().map_or(0, |actuator| actuator.kernel().written())
    }

    /// An observation with the original of every value of ours.
    pub fn as_found(&self, observation: Observation) -> Observation {
        as_found(observation, |target, knob, now| self.actuator.as_ref()?.found(target, knob, now))
    }

    /// Reckons what may be written from an observation.
    pub fn observe(
        &mut self,
        observation: &Observation,
        scope: &Scope,
        promises: &[Guarantee],
        realtime: bool,
        cpu: Option<&Hierarchy>,
    ) {
        self.bounds = Bounds::reckon(&self.bounds, observation, scope, promises, realtime, cpu);
    }

    /// What is the host's may be changed: the scope is the whole host, and the user allowed it by name.
    pub fn allow_host(&mut self) {
        self.bounds.allow_host();
    }

    /// What decides instead of the scheduler that a plan has started, where that is in charge no more and nobody here ended it.
    pub fn lost_scheduler(&mut self, plan: &Plan) -> Option<Setting> {
        let change = plan.scheduler()?;
        let found = self.actuator.as_mut()?.lost(change)?;
        self.interferences.push(Interference { target: change.target.to_string(), what: found.to_string() });
        Some(found)
    }

    /// Whether another manager has set a cgroup where a value of ours is in force. Setting everything again either answers that once,
    /// where it is what was found, or leaves the cgroup to whoever it was.
    pub fn has_lost_of_a_group(&mut self) -> bool {
        self.actuator.as_mut().is_some_and(Actuator::has_lost_of_a_group)
    }

    /// Tasks of these scopes may be changed as well, their cgroups may not.
    pub fn add_tasks<'a>(&mut self, observation: &Observation, scopes: impl Iterator<Item = &'a Scope>) {
        self.bounds.add_tasks(observation, scopes);
    }

    /// Cgroups that hold nothing but services may have burst.
    pub fn add_services(&mut self, observation: &Observation, is_service: impl Fn(&TaskView) -> bool) {
        self.bounds.add_services(observation, is_service);
    }

    /// Makes the host what was found plus this plan. Says, too, why the waiting work that it moves is not moved.
    pub fn set(&mut self, plan: &Plan) -> (SetReport, Option<String>) {
        // First, so that a task that was left pinned is seen and restored with the rest.
        self.follow(&[], &[]);
        let Some(actuator) = &mut self.actuator else { return (SetReport::default(), None) };
        let report = bounds::set(actuator, plan, &self.bounds);
        fault::point("agent.set");
        self.take_in(&report);
        (report, self.follow(&plan.pull, &plan.before))
    }

    /// Makes these changes on top of what is in force.
    pub fn amend(&mut self, changes: &[Change]) -> SetReport {
        let still = self.puller.as_ref().map(Puller::still);
        let Some(actuator) = &mut self.actuator else { return SetReport::default() };
        let report = bounds::amend(actuator, changes, &self.bounds);
        fault::point("agent.amend");
        drop(still);
        self.take_in(&report);
        report
    }

    fn take_in(&mut self, report: &SetReport) {
        self.interferences.extend(interferences(report));
        self.interferences.truncate(INTERFERENCES);
        self.unrestored_values.take_in(report);
    }

    /// What people are to be told since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unrestored_values.notes)
    }

    /// Values of somebody else's met since the last call.
    pub fn take_interferences(&mut self) -> Vec<Interference> {
        std::mem::take(&mut self.interferences)
    }

    /// The quota found at a cgroup where one of ours may be.
    pub fn found_quota(&self, group: &GroupView) -> Option<CpuQuota> {
        let target = Target::Group(group.reference());
        match self.actuator.as_ref()?.found(&target, Knob::Quota, group.quota.map(Setting::Quota))? {
            Setting::Quota(quota) => Some(*quota),
            _ => None,
        }
    }

    /// Starts what moves waiting work between CPUs that share a last-level cache. Says why, where that is refused.
    pub fn start_puller(&mut self, topology: &Topology) -> Option<String> {
        if !self.pulls || !self.act() || self.puller.is_some() {
            return None;
        }
        let domains = levers::beside(topology);
        if domains.is_empty() {
            self.pulls = false;
            return None;
        }
        match Puller::start(&domains) {
            Ok(puller) => {
                self.puller = Some(puller);
                None
            }
            Err(error) => {
                self.pulls = false;
                Some(format!("waiting work is not moved to idle CPUs: {error}"))
            }
        }
    }

    /// Ends what moves waiting work.
    pub fn stop_puller(&mut self) {
        self.puller = None;
    }

    /// How often waiting work was moved since that began.
    pub fn moves(&self) -> u64 {
        self.puller.as_ref().map_or(0, Puller::moves)
    }

    /// Which tasks are moved from now on; what cannot be moved stays where it is. Says why if no task can be.
    fn follow(&mut self, pull: &[TaskId], before: &[TaskId]) -> Option<String> {
        let (Some(actuator), Some(puller)) = (&mut self.actuator, &self.puller) else {
            return (!pull.is_empty()).then(|| "waiting work cannot be moved here".to_owned());
        };
        let pull: Vec<TaskId> = pull.iter().copied().filter(|id| self.bounds.has_task(*id)).collect();
        let lent = if pull.is_empty() { Ok(Vec::new()) } else { actuator.lend(&pull, puller.cpus()) };
        let why = lent.as_ref().err().map(ToString::to_string);
        match puller.follow(lent.unwrap_or_default(), before) {
            Ok(pinned) => {
                for id in pinned {
                    actuator.suspect(id);
                }
                why
            }
            Err(error) => why.or_else(|| Some(error.to_string())),
        }
    }

    /// Restores everything and removes the journal.
    pub fn close(mut self) -> RestoreReport {
        self.follow(&[], &[]);
        self.puller = None;
        self.reserve.release();
        fault::point("agent.close");
        let report = match self.actuator.take() {
            Some(actuator) => actuator.close(),
            None => RestoreReport::default(),
        };
        self.unrestored = false;
        report
    }
}

/// What of a report is another manager's doing.
fn interferences(report: &SetReport) -> Vec<Interference> {
    let met = report.changes.iter().filter_map(|change| match &change.verdict {
        Verdict::Conflict(now) => Some((&change.target, change.knob, Some(now))),
        _ => None,
    });
    let left = report.back.conflicts.iter().map(|item| (&item.target, item.knob, item.found.as_ref()));
    met.chain(left)
        .map(|(target, knob, now)| {
            // A value says which property it is.
            let what =
                now.map_or_else(|| format!("{} that cannot be read", knob.name()), ToString::to_string);
            Interference { target: target.to_string(), what }
        })
        .collect()
}

/// Controls that are not closed are those of an agent whose driver failed: an error on the way, a panic. What they hold in
/// memory may be half-way then, so this is the way after a crash: by the journal.
impl Drop for Controls {
    fn drop(&mut self) {
        if !std::mem::take(&mut self.unrestored) {
            return;
        }
        self.reserve.release();
        // A panic during a panic would end the process before anything is restored.
        let mut restore = || {
            self.puller = None;
            // Releases the lock.
            drop(self.actuator.take());
            Ok::<_, AgentError>(evenkeel_actuate::restore(&self.state_dir, Linux::new()?)?)
        };
        let attempt = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut restore));
        match std::iter::repeat_with(attempt).take(2).find_map(Result::ok) {
            Some(Ok(recovery)) if recovery.report.is_clean() => {}
            Some(Ok(recovery)) => tracing::error!(
                "the run ended by an error; not everything could be restored ({}, {} failed): `evenkeel restore` \
                 tries again",
                count(recovery.report.conflicts.len(), "conflict"),
                recovery.report.failed.len()
            ),
            Some(Err(error)) => tracing::error!(
                "the run ended by an error and its changes are in place: {error}; `evenkeel restore` tries again"
            ),
            None => {
                tracing::error!("the run's changes are in place; `evenkeel restore` restores what it changed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_actuate::ChangeOutcome;

    use super::*;
    use crate::testing;

    #[test]
    fn a_value_that_could_not_be_restored_is_told_once_until_it_is() {
        let item =
            |path: &str| Item { note: Some("not permitted".into()), ..testing::restored(path, Knob::Weight) };
        let mut unrestored = Unrestored::default();
        let mut told = |failed: &[&str], put_back: &[&str]| {
            let of = |paths: &[&str]| paths.iter().copied().map(item).collect();
            let back =
                RestoreReport { failed: of(failed), put_back: of(put_back), ..RestoreReport::default() };
            unrestored.take_in(&SetReport { back, ..SetReport::default() });
            std::mem::take(&mut unrestored.notes)
        };
        let words = "not restored yet, the next change tries again: weight of ";
        assert!(told(&[], &["/a"]).is_empty());
        let first = told(&["/a"], &[]);
        assert!(
            first.len() == 1 && first[0].starts_with(words) && first[0].ends_with("(not permitted)"),
            "{first:?}"
        );
        assert!(told(&["/a"], &[]).is_empty(), "it was told");
        assert!(told(&[], &["/a"]).is_empty());
        assert_eq!(told(&["/a"], &[]), first, "it was back meanwhile");
        let many = told(&["/a", "/1", "/2", "/3", "/4", "/5", "/6", "/7"], &[]);
        assert!(many[0].ends_with(", 2 more") && !many[0].contains("/a"), "{many:?}");
        // Set anew it is no value that should be back.
        let target = item("/a").target;
        let set = |verdict| ChangeOutcome {
            target: target.clone(),
            knob: Knob::Weight,
            to: Setting::Weight(1),
            verdict,
        };
        unrestored.take_in(&SetReport { changes: vec![set(Verdict::Gone)], ..SetReport::default() });
        assert!(unrestored.values.contains(&(target.clone(), Knob::Weight)));
        unrestored.take_in(&SetReport { changes: vec![set(Verdict::Unchanged)], ..SetReport::default() });
        assert!(!unrestored.values.contains(&(target.clone(), Knob::Weight)));
    }

    #[test]
    fn what_somebody_else_set_is_told_and_nothing_else() {
        let outcome = |path: &str, verdict| ChangeOutcome {
            target: Target::Group(testing::group(path)),
            knob: Knob::Weight,
            to: Setting::Weight(200),
            verdict,
        };
        let item = Item { found: Some(Setting::Weight(7)), ..testing::restored("/c", Knob::Weight) };
        let report = SetReport {
            changes: vec![
                outcome("/a", Verdict::Conflict(Setting::Weight(300))),
                outcome("/b", Verdict::Unchanged),
                outcome("/b", Verdict::Gone),
                outcome("/b", Verdict::Refused("no".into())),
            ],
            back: RestoreReport { conflicts: vec![item], ..RestoreReport::default() },
        };
        let told: Vec<String> =
            interferences(&report).into_iter().map(|it| format!("{}: {}", it.target, it.what)).collect();
        assert_eq!(told, ["/a: weight 300", "/c: weight 7"]);
    }
}
