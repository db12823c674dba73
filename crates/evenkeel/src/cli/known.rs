//! Loads whose demand is known, with the loop next to them: what `demo` and `prove` are made of.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use evenkeel_agent::{Agent, Config, Event, Scope, Watcher, default_plan};
use evenkeel_base::run::Estimate;
use evenkeel_base::stats;
use evenkeel_base::{Observation, TaskId};
use evenkeel_lab::ceiling::Ceiling;
use evenkeel_lab::private::PrivateDir;
use evenkeel_lab::tenant::{Layout, Starter, Tenants};
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::load::{LoadSampler, Reading};

use super::Failure;
use super::demo::quiet::ByName;

/// Windows in which fulfilment is taken, to state an interval.
const WINDOW: Duration = Duration::from_millis(800);
/// Steps in which a stage is observed, for pictures.
const STEP: Duration = Duration::from_millis(100);

/// What a stage measured.
#[derive(Debug, Clone, Default)]
pub struct StageResult {
    /// Length, seconds.
    pub seconds: f64,
    /// CPU got / CPU wanted over the whole stage.
    pub fulfilment: Option<f64>,
    pub windows: Vec<f64>,
    /// CPU got by all loads, percent of one CPU.
    pub cpu_pct: f64,
    /// CPU got by each member, percent of one CPU; `None` for one that ended.
    pub got_pct: Vec<Option<f64>>,
    /// Time each member spent on each CPU, by what was seen every tenth of a second: percent of one CPU.
    pub on_cpu: Vec<BTreeMap<u32, f64>>,
    /// Steal of the host, percent of one CPU; the largest seen in a step.
    pub steal_pct: f64,
    /// CPU used by everything else on the host, percent of one CPU; the largest seen in a second.
    pub outside_pct: f64,
    /// Who that was: sums of percent of one CPU over the steps.
    pub outside: ByName,
    pub steps: f64,
}

impl StageResult {
    /// Fulfilment with the interval that the windows give.
    pub fn estimate(&self) -> Option<Estimate> {
        let value = self.fulfilment?;
        let spread = stats::estimate(&self.windows)?;
        let margin = (spread.high - spread.value).min(1.0);
        margin.is_finite().then_some(Estimate { value, low: value - margin, high: value + margin })
    }
}

/// A running set of known loads with an agent that has them as its scope.
pub struct Known {
    /// The agent; taken out to be closed.
    pub agent: Agent,
    pub tenants: Tenants,
    gauge: LoadSampler,
    _state: PrivateDir,
}

/// Forwards to another watcher and keeps what pictures need.
pub struct Collector<'a> {
    inner: &'a mut dyn Watcher,
    index: BTreeMap<TaskId, usize>,
    on_cpu: Vec<BTreeMap<u32, f64>>,
    steal: f64,
    outside: ByName,
    steps: f64,
    me: u32,
}

impl Watcher for Collector<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Observed { observation, .. } = event {
            self.take(observation);
        }
        self.inner.event(event);
    }

    fn stopping(&self) -> bool {
        self.inner.stopping()
    }
}

impl Collector<'_> {
    fn take(&mut self, observation: &Observation) {
        self.steps += 1.0;
        self.steal = self.steal.max(observation.host.steal_pct.unwrap_or(0.0));
        for task in &observation.tasks {
            match (self.index.get(&task.id), task.cpu) {
                (Some(&index), Some(cpu)) => *self.on_cpu[index].entry(cpu).or_insert(0.0) += task.cpu_pct,
                (None, _) if task.id.tgid != self.me => self.outside.add(&task.comm, task.cpu_pct),
                _ => {}
            }
        }
    }
}

impl Known {
    /// Starts the loads, an agent with them as its scope, and lets them go.
    pub fn start(
        specs: &[LoadSpec],
        place: Layout,
        edit: impl FnOnce(&mut Config),
        watcher: &mut dyn Watcher,
    ) -> Result<Self, Failure> {
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let tenants = Starter::new(binary, place).hold(specs).context("cannot start the loads")?;
        let state = PrivateDir::temporary().context("cannot make a directory for a journal")?;
        let texts: Vec<String> = tenants.members.iter().map(|m| format!("pid:{}", m.pid)).collect();
        let scope = Scope::parse(&texts).map_err(|e| Failure::Usage(e.into()))?;
        let mut config = Config::new(scope, state.path().to_owned());
        config.history = false;
        config.known = tenants.members.iter().filter_map(|m| Some((m.tid, m.wanted_pct?))).collect();
        edit(&mut config);
        let agent = Agent::new(config, watcher).map_err(super::loop_failed)?;
        let gauge = tenants.gauge();
        tenants.release();
        Ok(Self { agent, tenants, gauge, _state: state })
    }

    /// Lets the present settings run for a while without looking.
    pub fn settle(&mut self, time: Duration, watcher: &dyn Watcher) {
        self.agent.work(time, watcher);
    }

    /// Measures the settings in force.
    pub fn stage(&mut self, time: Duration, watcher: &mut dyn Watcher) -> Result<StageResult, Failure> {
        let index = self.tenants.members.iter().enumerate().map(|(i, m)| (m.id(), i)).collect();
        let members = self.tenants.members.len();
        let mut collector = Collector {
            inner: watcher,
            index,
            on_cpu: vec![BTreeMap::new(); members],
            steal: 0.0,
            outside: ByName::default(),
            steps: 0.0,
            me: std::process::id(),
        };
        let first = self.gauge.read();
        let mut last = first.clone();
        let mut windows = Vec::new();
        let (mut outside_sum, mut outside_pct) = (0.0, 0.0);
        let steps_a_window = (WINDOW.as_millis() / STEP.as_millis()) as u32;
        let steps = (time.as_millis() / STEP.as_millis()).max(1) as u32;
        for step in 1..=steps {
            let Some(measured) = self.agent.measure(STEP, &mut collector).map_err(super::loop_failed)? else {
                break;
            };
            outside_sum += measured.summary.outside_pct.unwrap_or(0.0);
            if step % steps_a_window == 0 {
                outside_pct = f64::max(outside_pct, outside_sum / f64::from(steps_a_window));
                outside_sum = 0.0;
                let now = self.gauge.read();
                windows.extend(LoadSampler::fulfilment(&self.gauge.window(&last, &now)));
                last = now;
            }
        }
        let end = self.gauge.read();
        let tasks = self.gauge.window(&first, &end);
        let by_tid: BTreeMap<u32, f64> = tasks.iter().map(|t| (t.known.tid, t.got_pct)).collect();
        let at = |reading: &Reading| reading.tasks.iter().flatten().next().map(|t| t.0);
        let seconds = at(&first).zip(at(&end)).map_or(0.0, |(a, b)| b.saturating_sub(a) as f64 / 1e9);
        Ok(StageResult {
            seconds,
            fulfilment: LoadSampler::fulfilment(&tasks),
            windows,
            cpu_pct: tasks.iter().map(|t| t.got_pct).sum(),
            got_pct: self.tenants.members.iter().map(|m| by_tid.get(&m.tid).copied()).collect(),
            on_cpu: collector.on_cpu,
            steal_pct: collector.steal,
            outside_pct,
            outside: collector.outside,
            steps: collector.steps,
        })
    }

    /// Restores everything, and ends the loads.
    pub fn end(self) -> Result<(), Failure> {
        let Self { agent, tenants, .. } = self;
        let back = agent.close("prove");
        drop(tenants);
        if back.is_clean() { Ok(()) } else { Err(refused!(super::run::left(&back))) }
    }

    /// Measures the ceiling: the same loads under SCHED_FIFO, everything else as in the baseline. Afterwards all is as found.
    pub fn ceiling(
        &mut self,
        settle: Duration,
        time: Duration,
        watcher: &mut dyn Watcher,
    ) -> Result<StageResult, Failure> {
        self.agent.set(&default_plan());
        let raised = Ceiling::raise(&self.tenants.members).context("cannot measure the real-time ceiling")?;
        self.settle(settle, watcher);
        let result = self.stage(time, watcher);
        drop(raised);
        result
    }
}
