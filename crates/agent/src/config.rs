//! How the loop is to be run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_base::{Nice, Observation, TaskView};
use evenkeel_linux::process;
use evenkeel_observe::Sampling;
use evenkeel_policy::monitor::MonitorRules;
use evenkeel_policy::trial::TrialRules;

use crate::scope::Scope;
use crate::stated::Guarantees;
use crate::stated::Protected;

/// That a limit is to be found, see [`crate::governor`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AutoLimit {
    /// The instance type, where the firmware does not tell it.
    pub instance: Option<String>,
}

evenkeel_base::defaults! {
/// Settings of one run of the loop.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whose CPU sharing is evened out.
    pub scope: Scope,
    /// Where journal and history are kept.
    pub state_dir: PathBuf,
    /// Whether anything is written; otherwise the loop observes and proposes only.
    pub apply: bool = true,
    /// Time between observations while nothing is on trial.
    pub interval: Duration = Duration::from_secs(1),
    /// Time within which a decision is to fall.
    pub decide_within: Duration = Duration::from_secs(18),
    /// Time added for a closer look at the most promising candidates when they could neither be kept nor dismissed.
    pub closer_look: Duration = Duration::from_secs(60),
    /// Time by which turns took longer than they should, and which is not counted, at most: where others lose their turn,
    /// evenkeel may lose its own for seconds.
    pub most_late: Duration = Duration::from_secs(180),
    /// How settings in force are watched: when they are held out, whom they may not hurt.
    pub monitor: MonitorRules,
    /// Real-time classes may be used.
    pub realtime: bool,
    /// Services with a bound on their waits may have SCHED_DEADLINE.
    pub deadline: bool,
    /// BPF schedulers may be tried, where the whole host is the scope.
    pub scx: bool,
    /// Names of the levers that may be used; empty means all.
    pub levers: Vec<String>,
    /// Levers set what is there already, and it is written all the same: nothing changes, the decision is put to the test.
    pub as_found: bool,
    /// Demand of tasks that are known to want so much (percent of one CPU by thread id): built-in loads. Used to show
    /// exact fulfilment, never to decide.
    pub known: BTreeMap<u32, f64>,
    /// Rules of trials, the guard's limits among them.
    pub rules: TrialRules,
    pub sampling: Sampling,
    pub history: bool = true,
    /// What a killed run of the same configuration had proved goes on; otherwise it is restored first.
    pub takeover: bool,
    /// End after the first decision instead of watching on.
    pub once: bool,
    /// Promised shares to keep.
    pub guarantees: Guarantees,
    /// Nice value of the loop's own thread while it keeps promises, so that it follows in time on a crowded host; one
    /// that is lower already stays.
    pub own_nice: Nice = Nice::new(-10),
    /// Scopes whose waits must not grow; their tasks are not changed. Services, where there is background work.
    pub protect: Vec<Protected>,
    /// The scope as stated, where it is background work that may wait for the services.
    pub background: Option<Scope>,
    /// Find the limit of the scope under which least CPU is stolen from it.
    pub limit: Option<AutoLimit>,
    /// Whether lengths of containers' waits go into the history, which takes programs in the kernel at every switch.
    pub lengths: bool,
}
}

impl Config {
    pub fn new(scope: Scope, state_dir: impl Into<PathBuf>) -> Self {
        Self { scope, state_dir: state_dir.into(), ..Self::default() }
    }

    /// Processes named by their numbers are those that have them now.
    pub(crate) fn bind(&mut self) {
        let began = |pid| process::start_time(pid, pid).ok();
        let promised = self.guarantees.stated.iter_mut().map(|guarantee| &mut guarantee.scope);
        let protected = self.protect.iter_mut().map(|protected| &mut protected.scope);
        let own = std::iter::once(&mut self.scope).chain(&mut self.background);
        own.chain(promised).chain(protected).for_each(|scope| scope.bind(began));
    }

    /// For each task whether it is background work, which may wait for services; empty where there is none. Who turns out to belong to a
    /// service is not.
    pub fn background_tasks(&self, observation: &Observation) -> Vec<bool> {
        let tasks = observation.tasks.iter().filter(|_| self.background.is_some());
        let is = |task| self.scope.has(task, observation) && self.service_of(task, observation).is_none();
        tasks.map(is).collect()
    }

    /// The service, or other protected scope, that a task belongs to.
    pub(crate) fn service_of(&self, task: &TaskView, observation: &Observation) -> Option<&Protected> {
        self.protect.iter().find(|service| service.scope.has(task, observation))
    }
}
