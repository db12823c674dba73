//! The agent: its parts, and the steps that the loop, the demonstration and tests are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_actuate::{Options, RestoreReport, SetReport};
use evenkeel_base::run::{KERNEL_DEFAULT, RunRecord};
use evenkeel_base::{
    BootId, Change, GroupRef, Histogram, Observation, Plan, Sample, Target, TaskId, TaskView,
};
use evenkeel_linux::sys::wall_ns;
use evenkeel_linux::{Root, fault};
use evenkeel_observe::{Detail, Observer, ObserverOptions, RUNTIMES_WAIT, Select, read_kernel};
use evenkeel_policy::levers::Features;
use evenkeel_policy::monitor::OnlineControl;
use evenkeel_policy::window::{Owner, Summary};
use evenkeel_store::{Limits, Recorder};

use crate::component::{Next, Seen, Timer, Woken, with_changes};
use crate::components::Components;
use crate::config::Config;
use crate::controls::Controls;
use crate::cost::OwnCost;
use crate::error::AgentError;
use crate::events::{Event, Watcher};
use crate::guarantee::{Ancestor, OutsideCost};
use crate::kept::KeptChange;
use crate::measure::{Owners, summary};
use crate::oldest_kernel;
use crate::proposals::default_plan;
use crate::runq_latency::RunqLatency;
use crate::scheduler;
use crate::slo::Span;
use crate::takeover::{self, Remembered};
use crate::units::Units;

/// One measured window and what was seen in it.
#[derive(Debug, Clone)]
pub struct Measured {
    pub summary: Summary,
    pub observation: Observation,
    /// Fulfilment: exact for known loads, else the estimate.
    pub fulfilment: Option<f64>,
    /// Waits of each protected scope by length; `None` where they could not be read.
    pub protected: Vec<Option<Histogram>>,
    /// When these waits were begun to be counted, and when that ended.
    pub(crate) span: Option<Span>,
}

/// What a run does and costs, for history and status.
pub(crate) struct RunLog {
    pub(crate) recorder: Recorder,
    pub(crate) record: RunRecord,
    pub(crate) began: Instant,
    pub(crate) cost: OwnCost,
}

/// What decisions of a run know of each other.
pub(crate) struct Decisions {
    pub(crate) trials: u32,
    /// Waits of whoever is outside the scope, while a trial is held.
    pub(crate) outside: Option<RunqLatency>,
    /// Error budget of the run's decisions.
    pub(crate) control: OnlineControl,
    /// Settings that were taken back, by name: not tried again while the load is the same.
    pub(crate) barred: BTreeSet<String>,
    /// Whether anybody was both service and background work has been looked at.
    pub(crate) tiers_checked: bool,
    /// When the run ends: what is decided again until then has no more time than is left.
    pub(crate) ends: Option<Instant>,
}

/// The closed loop and its parts.
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) observer: Observer,
    pub(crate) controls: Controls,
    /// What works next to the decision.
    pub(crate) components: Components,
    pub(crate) log: RunLog,
    features: Features,
    pub(crate) plan: Plan,
    pub(crate) decisions: Decisions,
    lengths: Option<RunqLatency>,
    /// The change in force and what watches it.
    pub(crate) kept: Option<KeptChange>,
    /// Why the waiting work that the settings in force are to move is not moved.
    pub(crate) pull_problem: Option<String>,
    /// What a successor is to know, should this run be killed.
    pub(crate) remembered: Remembered,
    pub(crate) units: Units,
}

impl Agent {
    /// Prepares to observe and, where the configuration allows changes, to act: takes the lock; takes over what a killed
    /// predecessor had proved, where [`Config::takeover`] says so and it was the same configuration, and puts back what else it
    /// left.
    ///
    /// # Errors
    /// The host cannot be observed, another agent is at work, or the journal cannot be written.
    pub fn new(mut config: Config, watcher: &mut dyn Watcher) -> Result<Self, AgentError> {
        config.bind();
        let whole_host = config.scope.leaves_nothing_out();
        for protected in &config.protect {
            config.scope.leave_out(&protected.scope);
        }
        let root = Root::host();
        let observer = Observer::new(
            &root,
            ObserverOptions { sampling: config.sampling, ..ObserverOptions::default() },
        )?;
        let kernel = read_kernel(&root);
        // Verifiers of old kernels look at the programs that pull for a long time, and refuse them (6.1).
        let task_slice = kernel.features.task_slice == Some(true);
        let mut takes_over = false;
        let (mut controls, remembered) = if config.apply {
            oldest_kernel::may_change(kernel.release.as_deref())?;
            let options = Options {
                allow_realtime: config.realtime,
                allow_deadline: config.deadline,
                allow_scx: config.scx,
                rewrite: config.as_found,
            };
            let opened = takeover::open(&config, options, task_slice)?;
            if opened.recovery.left_behind {
                if let Some(why) = opened.why_not.filter(|_| config.takeover) {
                    let note = format!("what the run before left in force is not taken over: {why}");
                    watcher.event(&Event::Note(&note));
                }
                watcher.event(&Event::Recovered(&opened.recovery));
            }
            takes_over = opened.takes_over;
            (opened.controls, opened.remembered)
        } else {
            (Controls::none(task_slice), Remembered::new(BootId(String::new()), &config))
        };
        let recorder = if config.history && config.apply {
            Recorder::open(&config.state_dir.join("history.db"), Limits::default())
        } else {
            Recorder::off()
        };
        // After a predecessor's is gone.
        let offered = if config.scx { scheduler::offered(&root, whole_host) } else { Ok(Default::default()) };
        if offered.as_ref().is_ok_and(|offered| offered.contains(&true)) {
            controls.allow_host();
        }
        let features = Features {
            scx: offered.clone().unwrap_or_default(),
            task_slice,
            // Asked for each time: [`Self::features`].
            default_slice_ns: None,
            realtime: config.realtime,
            deadline: config.deadline,
            background: config.background.is_some(),
            rt_groups: observer.hierarchies().and_then(|h| h.cpu.as_ref()).is_some_and(|cpu| !cpu.v2),
        };
        let record = RunRecord {
            scope: match config.scope.in_words() {
                texts if texts.is_empty() => vec!["all containers and virtual machines".to_owned()],
                texts => texts,
            },
            pid: std::process::id(),
            started_ns: wall_ns(),
            settings: KERNEL_DEFAULT.to_owned(),
            ..RunRecord::default()
        };
        let components = Components::new(&config, features);
        let mut notes = components.latency_slos.notes();
        notes.extend(offered.err());
        let lengths = config.lengths.then(RunqLatency::start).and_then(|started| {
            started.map_err(|error| notes.push(format!("no lengths of waits in the history: {error}"))).ok()
        });
        let mut agent = Self {
            config,
            observer,
            controls,
            components,
            log: RunLog { recorder, record, began: Instant::now(), cost: OwnCost::start() },
            features,
            plan: default_plan(),
            decisions: Decisions {
                trials: remembered.trials,
                outside: None,
                control: remembered.control.clone(),
                barred: remembered.barred.clone(),
                tiers_checked: remembered.before.is_some(),
                ends: None,
            },
            lengths,
            kept: None,
            pull_problem: None,
            remembered,
            units: Units::default(),
        };
        if agent.config.scope.texts().iter().any(|t| !t.starts_with("cgroup:") && !t.starts_with("pid:")) {
            agent.observer.wait_for_runtimes(RUNTIMES_WAIT);
        }
        agent.components.status(&mut agent.log.record);
        agent.log.recorder.begin_run(&agent.log.record);
        for note in notes {
            watcher.event(&Event::Note(&note));
        }
        agent.tell_notes(watcher);
        if takes_over {
            agent.take_over(watcher)?;
        }
        Ok(agent)
    }

    pub fn record(&self) -> &RunRecord {
        &self.log.record
    }

    /// What the kernel offers now, and the user allows.
    pub fn features(&self) -> Features {
        Features { default_slice_ns: self.observer.default_slice_ns(), ..self.features }
    }

    /// No BPF scheduler is tried from now on.
    pub(crate) fn offer_no_scheduler(&mut self) {
        self.features.scx = Default::default();
    }

    /// Properties written so far, those taken back included.
    pub fn written(&mut self) -> u64 {
        self.controls.written()
    }

    /// The settings in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Seconds since the run began.
    pub fn elapsed_s(&self) -> f64 {
        self.log.began.elapsed().as_secs_f64()
    }

    /// Lets the components work for a while; true when it was cut short because the watcher wants to stop.
    pub fn work(&mut self, time: Duration, watcher: &dyn Watcher) -> bool {
        let mut timer = Timer::until(Instant::now() + time);
        while !watcher.stopping() {
            let Some(woken) = timer.wait(self.components.word().as_deref()) else { return false };
            fault::point("agent.pause");
            match woken {
                Woken::Tick(late) => self.components.on_tick(late, &mut self.controls),
                Woken::Word => self.components.on_word(&mut self.controls),
            }
        }
        true
    }

    /// Measures one window of this length under the settings in force. `None` when it was cut short.
    pub fn measure(
        &mut self,
        time: Duration,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<Measured>, AgentError> {
        let before = self.begin_window()?;
        if self.work(time, watcher) {
            return Ok(None);
        }
        let after = self.observer.sample_of(&Select::All, &Select::None)?;
        self.measured(&before, &after, &Detail::None, watcher).map(Some)
    }

    pub(crate) fn measured(
        &mut self,
        before: &Sample,
        after: &Sample,
        detail: &Detail,
        watcher: &mut dyn Watcher,
    ) -> Result<Measured, AgentError> {
        let observation = self.observe(before, after, detail)?;
        self.attend(&observation, watcher);
        watcher.event(&Event::StatusChanged(&self.log.record));
        // How much CPU a service next to background work gets follows from what is asked of it: it is judged by what it waits. Of
        // one that uses little no test could tell a twentieth less from chance.
        let by_waits =
            |task: &TaskView| self.has_background() && self.config.service_of(task, &observation).is_some();
        let mut summary = summary(&observation, &self.config.scope, by_waits);
        summary.waits = self.outside_waits(&observation);
        let fulfilment = self.known_fulfilment(&summary).or(summary.fulfilment);
        watcher.event(&Event::Observed {
            observation: &observation,
            settings: &self.plan.name,
            config: &self.config,
            at_s: self.elapsed_s(),
        });
        self.note_waits(&observation);
        let latency_slos = &self.components.latency_slos;
        let (protected, span) = (latency_slos.window().to_vec(), latency_slos.span());
        Ok(Measured { summary, observation, fulfilment, protected, span })
    }

    /// What happened between two samples, with details of what is promised, too.
    pub(crate) fn observe(
        &mut self,
        before: &Sample,
        after: &Sample,
        detail: &Detail,
    ) -> Result<Observation, AgentError> {
        let promises = &mut self.components.promises;
        let detail = promises.with_promised(detail);
        let observation = self.observer.observe(before, after, &detail)?;
        match promises.with_missing(&detail, &observation) {
            Some(detail) => Ok(self.observer.observe(before, after, &detail)?),
            None => Ok(observation),
        }
    }

    /// Shows the components what was observed, and does what they want.
    pub(crate) fn attend(&mut self, observation: &Observation, watcher: &mut dyn Watcher) {
        let hierarchies = self.observer.hierarchies();
        let cpu = hierarchies.and_then(|found| found.cpu.as_ref());
        let (scope, stated) = (&self.config.scope, &self.config.guarantees.stated);
        self.controls.observe(observation, scope, stated, self.config.realtime, cpu);
        if self.config.deadline {
            let services =
                self.config.protect.iter().filter(|service| service.protection.wait_p99_ns.is_some());
            self.controls.add_tasks(observation, services.map(|service| &service.scope));
        }
        if self.has_background() {
            let is_service = |task: &TaskView| self.config.service_of(task, observation).is_some();
            self.controls.add_services(observation, is_service);
        }
        let default_slice_ns = self.observer.default_slice_ns();
        let seen = Seen { observation, scope, hierarchies, default_slice_ns };
        let next = self.components.on_window(seen, &mut self.controls);
        if next == Next::SetAll || self.controls.has_lost_of_a_group() {
            let plan = self.plan.clone();
            self.set(&plan);
        }
        let mut notes = self.components.take_notes();
        notes.extend(self.controls.take_notes());
        notes.iter().for_each(|note| watcher.event(&Event::Note(note)));
        for met in self.controls.take_interferences() {
            watcher.event(&Event::Interference { target: &met.target, what: &met.what });
        }
        self.components.status(&mut self.log.record);
        self.note_promises();
        // Whoever was told looks at the status next: a trial may keep it as it is for a minute.
        if !notes.is_empty() {
            self.log.recorder.update_run(&self.log.record);
        }
    }

    /// Containers' waits since the window began go into the history.
    fn note_waits(&mut self, observation: &Observation) {
        let Some(lengths) = &mut self.lengths else { return };
        let cpu = self.observer.hierarchies().and_then(|found| found.cpu.as_ref());
        let container = |task: &TaskView| {
            Some(observation.containers.get(task.container? as usize)?.name.as_str().into())
        };
        let Some(cpu) = cpu else { return };
        match lengths.take(cpu, observation, container) {
            Ok(waits) => self.log.recorder.add_waits(wall_ns() / 60_000_000_000, &waits),
            Err(error) => {
                tracing::warn!("no more lengths of waits in the history: {error}");
                self.lengths = None;
            }
        }
    }

    /// Waits by length of each container, virtual machine or top-level cgroup outside the scope, where they are counted. Those
    /// of services are counted, and judged, by themselves.
    fn outside_waits(&mut self, observation: &Observation) -> BTreeMap<Owner, Histogram> {
        let cpu = self.observer.hierarchies().and_then(|found| found.cpu.as_ref());
        let Some((outside, cpu)) = self.decisions.outside.as_mut().zip(cpu) else { return BTreeMap::new() };
        let mut owners = Owners::default();
        let config = &self.config;
        let owner = |task: &TaskView| {
            let judged =
                !config.scope.has(task, observation) && config.service_of(task, observation).is_none();
            judged.then(|| owners.of(task, observation, false)).flatten()
        };
        outside.window(cpu, observation, owner).unwrap_or_else(|error| {
            tracing::warn!("waits outside the scope are counted no more: {error}");
            self.decisions.outside = None;
            BTreeMap::new()
        })
    }

    /// A sample of every task, with which a window begins.
    pub(crate) fn begin_window(&mut self) -> Result<Sample, AgentError> {
        self.components.latency_slos.begin();
        if self.decisions.outside.as_mut().is_some_and(|outside| outside.begin().is_err()) {
            self.decisions.outside = None;
        }
        self.sample()
    }

    /// A sample of every task, context switches of none.
    pub(crate) fn sample(&mut self) -> Result<Sample, AgentError> {
        Ok(self.observer.sample_of(&Select::All, &Select::None)?)
    }

    /// Exact fulfilment where every task of the scope is a known load.
    pub(crate) fn known_fulfilment(&self, summary: &Summary) -> Option<f64> {
        let wanted: f64 = self.config.known.values().sum();
        if wanted <= 0.0 {
            return None;
        }
        let got: f64 = summary
            .tasks
            .iter()
            .filter(|(id, _)| self.config.known.contains_key(&id.tid))
            .map(|(_, rates)| rates.got_pct)
            .sum();
        Some(got / wanted)
    }

    /// Observes for a while with the slow facts (class, nice, slice, affinity, switches) of the tasks in the scope: what
    /// levers compute from. `None` when it was cut short.
    pub fn study(
        &mut self,
        time: Duration,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<Measured>, AgentError> {
        // Who is in the scope is known from ownership alone; reading everybody's switches would cost more than the rest.
        let first = self.sample()?;
        let glance = self.observer.observe(&first, &first, &Detail::None)?;
        self.check_tiers(&glance)?;
        self.components.latency_slos.meet(&glance);
        let wanted = |task: &TaskView| {
            self.config.scope.has(task, &glance)
                || (self.features.deadline && self.config.service_of(task, &glance).is_some())
        };
        let scope: BTreeSet<TaskId> = glance.tasks.iter().filter(|t| wanted(t)).map(|t| t.id).collect();
        let scope = Select::Tasks(scope);
        let before = self.observer.sample_of(&Select::All, &scope)?;
        if self.work(time, watcher) {
            return Ok(None);
        }
        let after = self.observer.sample_of(&Select::All, &scope)?;
        self.measured(&before, &after, &scope, watcher).map(Some)
    }

    /// Makes the host what was found plus this plan and what the components want. Does nothing where changes are not
    /// allowed.
    pub fn set(&mut self, plan: &Plan) -> SetReport {
        if !self.acts() {
            return SetReport::default();
        }
        let (report, pull_problem) = self.controls.set(&with_changes(plan, self.components.changes()));
        self.plan = plan.clone();
        self.components.learn(plan, &report);
        self.pull_problem = pull_problem;
        report
    }

    /// What keeps the promises in force, as solved for the last observation.
    pub fn promise_changes(&self) -> Vec<Change> {
        self.components.promises.keeper().changes().collect()
    }

    /// What the promises cost those outside the scope.
    pub fn outside_costs(&self) -> &[OutsideCost] {
        self.components.promises.keeper().outside_costs()
    }

    /// Cgroups that hold others than the scope, too, on the way to promised ones.
    pub fn ancestors(&self) -> Vec<Ancestor> {
        let keeper = self.components.promises.keeper();
        let changed = |group: &GroupRef| keeper.sets_weight(&Target::Group(group.clone()));
        let ancestor = |group: &GroupRef| Ancestor { group: group.path.clone(), changed: changed(group) };
        self.controls.bounds().ancestors().map(ancestor).collect()
    }

    /// Restores everything and removes the journal.
    pub fn close(mut self, outcome: &str) -> RestoreReport {
        let report = std::mem::take(&mut self.controls).close();
        self.note_effect();
        self.log.record.settings = KERNEL_DEFAULT.to_owned();
        self.forget_restored(&report);
        self.log.record.own_cost = self.log.cost.read();
        self.log.recorder.set_changes(&self.log.record.changes);
        self.log.recorder.finish_run(&self.log.record, outcome);
        self.log.recorder.flush();
        // What a slow disk told only now: nobody asks any more.
        self.log.recorder.take_notes().iter().for_each(|note| tracing::warn!("{note}"));
        report
    }

    /// Whether changes are allowed.
    pub(crate) fn acts(&self) -> bool {
        self.controls.act()
    }

    pub(crate) fn tell_notes(&mut self, watcher: &mut dyn Watcher) {
        for note in self.log.recorder.take_notes().into_iter().chain(self.observer.take_note()) {
            watcher.event(&Event::Note(&note));
        }
    }
}
