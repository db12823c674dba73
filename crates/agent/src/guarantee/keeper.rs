//! What is known about the promises, from one observation to the next.
//!
//! Filled by [`super::labels`], [`super::admission`] and [`super::resolve`] once a second, worked on by [`super::tick`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use evenkeel_actuate::{SetReport, Verdict};
use evenkeel_base::run::GuaranteeStatus;
use evenkeel_base::{Change, Knob, Observation, Setting, Target, TaskId, TaskView};
use evenkeel_policy::guarantee::Admissions;
use evenkeel_policy::guarantee::control::Lag;
use evenkeel_policy::guarantee::nice::Dither;
use evenkeel_policy::guarantee::rate::Allowed;
use evenkeel_policy::guarantee::tree::SchedEntity;
use evenkeel_store::PromiseTime;

use super::counters::Counters;
use super::labels::is_labelled;
use super::latency::RunqLatProbes;
use super::layout::{Layout, OutsideCost};
use super::pins::Pins;
use super::state::GuaranteeState;
use super::usage::Usage;
use super::{Guarantees, Source};
use crate::scope::{Scope, is_own};

/// Between two writings of broken time.
const WRITE_EVERY: Duration = Duration::from_secs(10);
const DAY_S: f64 = 86_400.0;

/// A setting in force for a promise.
#[derive(Debug, Clone)]
pub(crate) struct InForce {
    pub change: Change,
    pub at: Instant,
    /// What was there after it was written.
    pub stands: Option<Setting>,
}

/// What observations say of the tasks that promises are about.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// CPU that known loads want, percent of one CPU, by process.
    pub(super) known: BTreeMap<u32, f64>,
    /// CPU that tasks want, percent of one CPU.
    pub(super) demand: HashMap<TaskId, f64>,
    /// Percent stolen, by CPU.
    pub(super) stolen: BTreeMap<u32, f64>,
    pub(super) admissions: Admissions,
    /// When a guarantee last got a new task.
    pub(super) born: HashMap<usize, Instant>,
    pub(super) seen: BTreeMap<TaskId, usize>,
    details: BTreeSet<TaskId>,
}

/// What is corrected between two observations.
#[derive(Debug, Default)]
pub(super) struct Correction {
    pub(super) counters: Counters,
    pub(super) lags: HashMap<Target, Lag>,
    pub(super) dithers: HashMap<TaskId, Dither>,
    pub(super) scales: HashMap<String, f64>,
    pub(super) ticked: Option<Instant>,
    pub(super) calm_ticks: u32,
    written: Option<Instant>,
}

/// What people are to be told, and what they were.
#[derive(Debug, Default)]
pub(super) struct Messages {
    told: BTreeSet<String>,
    pub(super) notes: Vec<String>,
}

/// Different notes kept at most: tenants choose how many there are, and pods come and go.
const MOST_TOLD: usize = 1000;

impl Messages {
    /// Whether this was not told yet; what comes after very many is not told at all.
    pub(super) fn is_new(&mut self, what: &str) -> bool {
        self.told.len() < MOST_TOLD && self.told.insert(what.to_owned())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Keeper {
    pub(super) config: Guarantees,
    /// Of the run: labels count only within it.
    pub(super) scope: Scope,
    pub(super) guarantees: Vec<GuaranteeState>,
    pub(super) observed: Observed,
    pub(super) pins: Pins,
    pub(super) layout: Layout,
    pub(super) correction: Correction,
    pub(super) probes: RunqLatProbes,
    /// Of each promise.
    pub(super) usage: Vec<Usage>,
    pub(super) in_force: BTreeMap<(Target, Knob), InForce>,
    /// Cgroups whose weight another manager, such as the kubelet, writes, too; also while it is not in force.
    pub(super) shared: BTreeSet<Target>,
    pub(super) messages: Messages,
}

impl Keeper {
    pub fn new(config: Guarantees, scope: Scope) -> Self {
        let guarantees = config.stated.iter().cloned().map(GuaranteeState::new).collect();
        Self { config, scope, guarantees, ..Self::default() }
    }

    /// Whether a promise is about a task. What a label says counts within the scope only.
    pub(super) fn is_about(
        &self,
        guarantee: &GuaranteeState,
        task: &TaskView,
        observation: &Observation,
    ) -> bool {
        guarantee.stated.scope.has(task, observation)
            && (guarantee.stated.source == Source::Config || self.scope.has(task, observation))
    }

    /// Whether a weight is in force for a promise.
    pub fn sets_weight(&self, target: &Target) -> bool {
        self.in_force.contains_key(&(target.clone(), Knob::Weight))
    }

    pub fn outside_costs(&self) -> &[OutsideCost] {
        &self.layout.costs
    }

    /// Whether anything is promised, here or by a label, or was at the last look: what kept it is to go.
    pub fn is_needed(&self, observation: &Observation) -> bool {
        !self.guarantees.is_empty()
            || !self.layout.owner.is_empty()
            || (self.config.labels.is_some()
                && (observation.containers.iter().any(|c| is_labelled(&c.labels))
                    || observation.pods.iter().any(|p| is_labelled(&p.annotations))))
    }

    /// Tasks whose class, nice and affinity are read with each observation.
    pub fn wants_details(&self) -> &BTreeSet<TaskId> {
        &self.observed.details
    }

    /// Promised tasks and their rivals whose details are not known yet.
    pub fn missing_details(&mut self, observation: &Observation) -> BTreeSet<TaskId> {
        self.take_labels(observation);
        let mut groups = BTreeSet::new();
        let mut wanted = BTreeSet::new();
        for task in &observation.tasks {
            if self.guarantees.iter().any(|guarantee| self.is_about(guarantee, task, observation)) {
                wanted.insert(task.id);
                let mut at = task.group;
                while let Some(group) = at {
                    groups.insert(group);
                    at = observation.groups.get(group as usize).and_then(|group| group.parent);
                }
            }
        }
        // Those who compete with them somewhere on the path, as far as they do anything.
        for task in &observation.tasks {
            // The loop itself is no rival, however it is favoured: it hardly wants anything.
            let rival = task.group.is_some_and(|group| groups.contains(&group)) && !is_own(task);
            if rival && !task.kernel_thread && task.cpu_pct + task.wait_pct.unwrap_or(0.0) >= 0.5 {
                wanted.insert(task.id);
            }
        }
        let missing = wanted
            .iter()
            .filter(|id| observation.task(**id).is_some_and(|t| t.sched.is_none()))
            .copied()
            .collect();
        self.observed.details = wanted;
        missing
    }

    /// Whether a task is left alone by trials: it is promised something, or shares a cgroup with one whose nice value
    /// carries a promise.
    pub fn governs(&self, id: TaskId) -> bool {
        self.layout.owner.contains_key(&id) || self.layout.mates.contains(&id)
    }

    pub fn set_known(&mut self, known: &BTreeMap<u32, f64>) {
        if self.observed.known != *known {
            self.observed.known.clone_from(known);
        }
    }

    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.in_force.values().map(|in_force| in_force.change.clone())
    }

    /// Groups that are gone are shared with nobody.
    pub(super) fn forget_gone(&mut self, observation: &Observation) {
        let there = |path: &str| observation.groups.iter().any(|group| group.path == path);
        self.shared.retain(|target| matches!(target, Target::Group(group) if there(&group.path)));
    }

    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages.notes)
    }

    pub fn statuses(&self) -> Vec<GuaranteeStatus> {
        let allowed = Allowed { task_slice: self.config.task_slice, realtime: self.config.realtime };
        self.guarantees.iter().map(|guarantee| guarantee.status(allowed)).collect()
    }

    /// Broken time to be written, now and then.
    pub fn take_times(&mut self, now: Instant) -> Vec<(String, PromiseTime)> {
        let since = *self.correction.written.get_or_insert(now);
        if now.duration_since(since) < WRITE_EVERY {
            return Vec::new();
        }
        self.correction.written = Some(now);
        self.guarantees.iter_mut().filter_map(|w| Some((w.stated.name.clone(), w.take_time()?))).collect()
    }

    pub fn unwritten_broken_s(&self, name: &str) -> f64 {
        self.guarantees.iter().filter(|w| w.stated.name == name).map(|w| w.unwritten().broken_s).sum()
    }

    /// Broken seconds of this run; `None` once it lasts longer than a day.
    pub fn broken_s_of_a_day(&self, name: &str) -> Option<f64> {
        let total = self.guarantees.iter().find(|w| w.stated.name == name)?.total();
        (total.watched_s <= DAY_S).then_some(total.broken_s)
    }

    /// Notes what could not be set of what is in force for promises, and where another manager had put its own value.
    pub fn learn(&mut self, report: &SetReport, now: Instant) {
        for outcome in &report.changes {
            let Some(in_force) = self.in_force.get_mut(&(outcome.target.clone(), outcome.knob)) else {
                continue;
            };
            if let Verdict::Applied(applied) = &outcome.verdict {
                let stood = in_force.stands.replace(applied.now.clone());
                // What is found in a cgroup that was made again is nobody's doing.
                let is_rewritten = stood.is_some_and(|stood| stood != applied.from) && !applied.first;
                if outcome.knob == Knob::Weight && is_rewritten {
                    in_force.at = now;
                    if self.shared.insert(outcome.target.clone()) {
                        self.messages.notes.push(format!(
                            "guarantee: somebody else set weight of {} as well; the promised one stands again, and follows its \
                             promise seldom from now on",
                            outcome.target
                        ));
                    }
                }
            }
            let why = match &outcome.verdict {
                Verdict::Applied(_) | Verdict::Unchanged | Verdict::Gone => None,
                Verdict::Conflict(now) => Some(format!("somebody else set {now}")),
                Verdict::Refused(why) => Some(why.clone()),
                Verdict::Failed(error) => Some(error.to_string()),
            };
            let gone = matches!(outcome.verdict, Verdict::Gone);
            match &outcome.verdict {
                // It is answered once, too.
                Verdict::Conflict(Setting::Weight(_)) => _ = self.shared.insert(outcome.target.clone()),
                Verdict::Gone => _ = self.shared.remove(&outcome.target),
                _ => {}
            }
            if why.is_some() || gone {
                self.in_force.remove(&(outcome.target.clone(), outcome.knob));
            }
            let Some(why) = why else { continue };
            let problem = format!("{} of {} could not be set: {why}", outcome.knob.name(), outcome.target);
            for guarantee in self.concerned(&outcome.target) {
                if let Some(guarantee) = self.guarantees.get_mut(guarantee) {
                    guarantee.problem = Some(problem.clone());
                }
            }
            if self.messages.is_new(&problem) {
                self.messages.notes.push(format!("guarantee: {problem}"));
            }
        }
    }

    /// Weights of cgroups in force, to be looked at: setting them again writes only what does not stand any more.
    pub fn weights(&self) -> Vec<Change> {
        let weights = self.in_force.iter().filter(|((_, knob), _)| *knob == Knob::Weight);
        weights.map(|(_, in_force)| in_force.change.clone()).collect()
    }

    /// Promises that an entity carries.
    fn concerned(&self, target: &Target) -> BTreeSet<usize> {
        let entities =
            self.layout.held.iter().filter(|(_, held)| held.target == *target).map(|(entity, _)| *entity);
        let entities: Vec<SchedEntity> = entities.collect();
        let children = self.layout.contests.iter().flat_map(|siblings| &siblings.children);
        let carriers =
            children.filter(|child| entities.contains(&child.entity)).flat_map(|child| &child.carriers);
        carriers.map(|&index| self.layout.carriers[index].owner).collect()
    }
}
