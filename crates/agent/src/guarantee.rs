//! Promised shares, kept by the loop: what `evenkeel_policy::guarantee` decides, brought together with the host.
//!
//! At each observation (once a second) everything is solved anew: who matches which scope, what fits, which settings
//! carry it. Several times a second ([`TICK`]) the counters of the promised tasks alone are read, what is owed is
//! corrected, and what was got is judged.

mod admission;
mod counters;
mod keeper;
mod labels;
mod latency;
mod layout;
mod own;
mod pins;
mod resolve;
mod solver;
mod tick;
mod ward;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use evenkeel_base::run::GuaranteeStatus;
use evenkeel_base::{
    Change, CpuSet, GroupRef, Knob, Observation, Plan, Sample, SchedAttr, Setting, Target, TaskId,
};
use evenkeel_observe::{Detail, Select};
use evenkeel_policy::guarantee::{Amount, Promise};

use crate::agent::{Agent, AgentError};
use crate::bounds::Bounds;
use crate::events::{Event, Watcher};
use crate::governor::ScopeGovernor;
use crate::scope::Scope;

pub(crate) use counters::Counters;
pub(crate) use keeper::Keeper;
pub use labels::{LabelRules, wait_ns};
pub use layout::OutsideCost;
pub(crate) use layout::is_owned;
pub(crate) use own::OwnPriority;

/// Label of a container and annotation of a pod that promise a share, such as `40%`.
pub const CPU_LABEL: &str = "evenkeel.io/cpu-guarantee";
/// Label of a container and annotation of a pod that promise short waits, such as `2ms`.
pub const WAIT_LABEL: &str = "evenkeel.io/wait-p99";

/// Time between two corrections.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Where a promise was stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The configuration file.
    Config,
    /// A container's label.
    Label,
    /// A pod's annotation.
    Annotation,
}

impl Source {
    /// As in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Label => "label",
            Self::Annotation => "annotation",
        }
    }
}

/// A promise and whom it is made to.
#[derive(Debug, Clone)]
pub struct Goal {
    /// The scope as stated: its name in messages.
    pub name: String,
    /// Its tasks.
    pub scope: Scope,
    /// What is promised.
    pub promise: Promise,
    /// Where it was stated.
    pub source: Source,
}

/// All promises of a run.
#[derive(Debug, Clone, Default)]
pub struct Guarantees {
    /// Stated in the configuration, in order: earlier ones are admitted first.
    pub goals: Vec<Goal>,
    /// CPU that is not promised to anybody.
    pub reserved: Option<Amount>,
    /// Which labels of containers and annotations of pods count; none unless the host's owner says so.
    pub labels: Option<LabelRules>,
    /// Keep promises only: no trials of anything else.
    pub only: bool,
    /// Whether tasks can have a slice of their own here (Linux 6.12); found out by the agent.
    pub task_slice: bool,
    /// Whether the user allows real-time classes: they are offered, never set.
    pub realtime: bool,
}

/// What a promised task had before evenkeel touched it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Originals {
    pub sched: HashMap<TaskId, SchedAttr>,
    pub affinity: HashMap<TaskId, CpuSet>,
    /// By the cgroup's path, as its file had it.
    pub weights: HashMap<String, u64>,
}

impl Originals {
    /// From what an actuator has touched.
    pub fn of<'a>(touched: impl Iterator<Item = (&'a Target, &'a Setting, Option<&'a Setting>)>) -> Self {
        let mut originals = Self::default();
        for (target, original, _) in touched {
            match (target, original) {
                (Target::Task(id), Setting::Sched(attr)) => {
                    originals.sched.insert(*id, *attr);
                }
                (Target::Task(id), Setting::Affinity(cpus)) => {
                    originals.affinity.insert(*id, cpus.clone());
                }
                (Target::Group(group), Setting::Weight(raw)) => {
                    originals.weights.insert(group.path.clone(), *raw);
                }
                _ => {}
            }
        }
        originals
    }
}

/// A plan with what keeps promises on top.
pub(crate) fn with_promises(keeper: &Keeper, plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    // What keeps a promise counts, whatever a lever would do with it.
    plan.changes.retain(|change| !keeper.sets(&change.target, change.knob()));
    plan.changes.extend(keeper.changes());
    plan
}

impl Agent {
    /// The details to read so that promises can be kept, besides those asked for.
    pub(crate) fn with_promised(&self, detail: &Detail) -> Detail {
        union(detail, self.keeper.wants_details())
    }

    /// Solves everything anew for what was observed; observes again where a promised task is new and its details are
    /// not known yet.
    pub(crate) fn mind_promises(
        &mut self,
        (before, after): (&Sample, &Sample),
        detail: &Detail,
        observation: Observation,
        watcher: &mut dyn Watcher,
    ) -> Result<Observation, AgentError> {
        let mut observation = observation;
        let needed = self.keeper.is_needed(&observation);
        if self.acts()
            && let Some(note) = self.own.follow(needed, self.config.own_nice)
        {
            watcher.event(&Event::Note(&note));
        }
        if !needed {
            return Ok(observation);
        }
        let missing = self.keeper.missing_details(&observation);
        if !missing.is_empty() {
            let detail = union(detail, &missing);
            observation = self.observe_again(before, after, &detail)?;
        }
        let originals = Originals::of(self.touched());
        self.keeper.set_known(&self.config.known);
        let dropped = self.keeper.resolve(&observation, &originals, &self.bounds, Instant::now());
        self.keeper.count_waits(&observation);
        if dropped {
            // What is no longer wanted goes back, which only setting everything does.
            let plan = self.plan().clone();
            self.set(&plan);
        } else {
            self.keep_promises(true);
        }
        for note in self.keeper.take_notes() {
            watcher.event(&Event::Note(&note));
        }
        self.record.guarantees = self.keeper.statuses();
        self.record_promises();
        Ok(observation)
    }

    /// One correction, if it is time for one (or in any case, when `now` is set).
    pub(crate) fn keep_promises(&mut self, now: bool) {
        let Some(changes) = self.keeper.tick(Instant::now(), now) else { return };
        if changes.is_empty() {
            return;
        }
        let report = self.amend(&changes);
        self.keeper.learn(&report);
    }

    /// The loop when nothing but promises is to be kept.
    pub(crate) fn run_promises(
        &mut self,
        end: Option<Instant>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), AgentError> {
        let mut before = self.sample()?;
        let mut noted = Instant::now();
        while !watcher.stopping() && end.is_none_or(|end| Instant::now() < end) {
            let nap = end.map_or(self.config.interval, |end| {
                self.config.interval.min(end.saturating_duration_since(Instant::now()))
            });
            if self.pause(nap, watcher) {
                break;
            }
            let after = self.sample()?;
            if let Some(measured) = self.measured(&before, &after, &Detail::None, watcher)? {
                self.recorder.add_sample(&after, Some(&measured.observation));
                if noted.elapsed() > Duration::from_secs(5) {
                    self.note_settings(None, &measured.observation);
                    noted = Instant::now();
                }
            }
            before = after;
            self.tell_notes(watcher);
        }
        self.note_cost();
        self.recorder.flush();
        Ok(())
    }

    /// The plan with what keeps promises, and the limit found, on top.
    pub(crate) fn with_promises(&self, plan: &Plan) -> Plan {
        let mut plan = with_promises(&self.keeper, plan);
        plan.changes.extend(self.governor.as_ref().and_then(ScopeGovernor::change));
        plan
    }

    /// What keeps the promises in force, as solved for the last observation.
    pub fn promise_changes(&self) -> Vec<Change> {
        self.keeper.changes().collect()
    }

    /// What the promises cost those outside the scope.
    pub fn outside_costs(&self) -> &[OutsideCost] {
        self.keeper.outside_costs()
    }

    /// Cgroups that hold others than the scope, too, on the way to promised ones, with whether their weight is changed.
    pub fn ancestors(&self) -> Vec<(String, bool)> {
        let changed = |group: &GroupRef| self.keeper.sets(&Target::Group(group.clone()), Knob::Weight);
        self.bounds.ancestors().map(|group| (group.path.clone(), changed(group))).collect()
    }

    /// Writes how long promises were broken, and fills in the day's sum.
    fn record_promises(&mut self) {
        let minute = crate::agent::wall_ns() / 60_000_000_000;
        for (name, time) in self.keeper.take_times(Instant::now()) {
            self.recorder.add_promise_time(&name, minute, time);
        }
        let day = |name: &str| {
            self.recorder.store().and_then(|store| store.promise_day(name, minute).ok().flatten())
        };
        for status in &mut self.record.guarantees {
            let unwritten = self.keeper.unwritten_broken_s(&status.name);
            status.broken_min_day = match day(&status.name) {
                Some(time) => Some((time.broken_s + unwritten) / 60.0),
                None => Some(self.keeper.broken_s(&status.name) / 60.0),
            };
        }
    }
}

/// How promises stand in one observation, whether or not anybody keeps them: what fits, and what was got.
pub fn look(guarantees: Guarantees, scope: &Scope, observation: &Observation) -> Vec<GuaranteeStatus> {
    let bounds = Bounds::reckon(&Bounds::default(), observation, scope, &guarantees.goals, false, None);
    let mut keeper = Keeper::new(guarantees, scope.clone());
    if !keeper.is_needed(observation) {
        return Vec::new();
    }
    keeper.missing_details(observation);
    keeper.resolve(observation, &Originals::default(), &bounds, Instant::now());
    keeper.judge(observation);
    keeper.statuses()
}

/// Details of both.
fn union(detail: &Detail, more: &BTreeSet<TaskId>) -> Detail {
    match detail {
        Select::All => Select::All,
        _ if more.is_empty() => detail.clone(),
        Select::None => Select::Tasks(more.clone()),
        Select::Tasks(tasks) => Select::Tasks(tasks.union(more).copied().collect()),
        // Processes and tasks cannot be said together.
        Select::Processes(_) => Select::All,
    }
}
