//! What was seen last, what was counted since, and what a loop decided.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use evenkeel_agent::Event;
use evenkeel_agent::scraped::ServiceRequests;
use evenkeel_base::Observation;
use evenkeel_base::cpuset::MAX_CPU;
use evenkeel_base::run::{EffectNow, GovernorStatus, GuaranteeStatus, ProtectedStatus};
use evenkeel_base::stats::add_known;
use serde_json::{Value, json};

use super::handover::Counts;
use super::notices::{Notice, Notices, given_up, kept, taken_back};
use super::otlp::Pushed;
use super::owners::Owners;
use super::promises::Promises;

const NOTES: usize = 20;
/// Moments kept, one an observation: a quarter of an hour at the usual second.
pub(super) const MOMENTS: usize = 900;
/// Things done that are marked on the timeline.
const MARKS: usize = 100;

/// What pages are drawn from. Whoever draws one has a copy of the pointers: the loop does not wait.
#[derive(Debug, Clone, Default)]
pub struct Board {
    pub observation: Option<Arc<Observation>>,
    /// When that came.
    pub looked: Option<Instant>,
    pub owners: Arc<Owners>,
    /// Busy and stolen seconds by CPU.
    pub cpus: Arc<BTreeMap<u32, (f64, Option<f64>)>>,
    pub timeline: Arc<VecDeque<Moment>>,
    pub marks: VecDeque<(u64, String)>,
    /// Settings in force; `None` where nothing is ever changed.
    pub settings: Option<String>,
    pub trials: u64,
    pub kept: u64,
    pub reverted: u64,
    pub decision: Vec<Value>,
    pub guarantees: Vec<GuaranteeStatus>,
    /// Services and other protected scopes.
    pub protected: Vec<ProtectedStatus>,
    /// Requests of services that say of themselves where they count them.
    pub scraped: Arc<Vec<ServiceRequests>>,
    pub promises: Arc<Promises>,
    pub governor: Option<GovernorStatus>,
    pub effect: Option<EffectNow>,
    pub changes: Vec<Value>,
    pub notes: Vec<String>,
    notices: Notices,
    /// What a webhook took, where there is one.
    pub webhook: Option<Arc<Counts>>,
    /// What a collector took, where there is one.
    pub pushed: Option<Arc<Pushed>>,
    pub counted: Counted,
}

/// How waits are counted in the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Share of the time in which they are; what is counted stands for all of it.
    pub observed: Option<f64>,
    /// CPU that took, seconds.
    pub spent_s: Option<f64>,
}

/// One interval, percent of one CPU.
#[derive(Debug, Clone)]
pub struct Moment {
    /// Its end, ms since 1970.
    pub at_ms: u64,
    pub busy: f32,
    pub steal: Option<f32>,
    pub wait: Option<f32>,
    pub throttled: Option<f32>,
    /// CPU got of what was wanted, percent: an estimate, as that of a trial's windows.
    pub fulfilment: Option<f32>,
    /// See [`by_number`].
    pub cpus: Box<[f32]>,
    /// Owners that did anything: number, CPU, waited, throttled.
    pub owners: Box<[(u32, f32, f32, f32)]>,
}

/// Sum got / sum (got / (1 - waited fraction)), as `policy::Summary` reckons it; `None` where no wait is known or nothing ran.
fn fulfilment(observation: &Observation) -> Option<f32> {
    let (mut got, mut wanted) = (0.0, 0.0);
    for (cpu, wait) in observation.tasks.iter().filter_map(|task| Some((task.cpu_pct, task.wait_pct?))) {
        got += cpu;
        wanted += cpu / (1.0 - (wait / 100.0).clamp(0.0, 0.99));
    }
    (wanted > 0.0).then(|| (100.0 * got / wanted) as f32)
}

/// Busy percentage of each CPU at the place of its number; not a number where it is offline.
pub fn by_number(busy: impl Iterator<Item = (u32, f64)>) -> Box<[f32]> {
    let mut all = Vec::new();
    for (cpu, busy_pct) in busy.filter(|(cpu, _)| *cpu <= MAX_CPU) {
        let at = cpu as usize;
        if at >= all.len() {
            all.resize(at + 1, f32::NAN);
        }
        all[at] = busy_pct as f32;
    }
    all.into()
}

impl Board {
    /// Takes what was observed; returns what there is to tell of it.
    pub fn observe(&mut self, observation: Arc<Observation>) -> Vec<Notice> {
        let owners = Arc::make_mut(&mut self.owners);
        owners.observe(&observation);
        let cpus = Arc::make_mut(&mut self.cpus);
        for cpu in &observation.host.per_cpu {
            let sums = cpus.entry(cpu.cpu).or_default();
            sums.0 += cpu.busy_pct / 100.0 * observation.interval_s;
            add_known(&mut sums.1, cpu.steal_pct.map(|steal| steal / 100.0 * observation.interval_s));
        }
        let waits = observation.tasks.iter().map(|task| task.wait_pct);
        let wait =
            waits.fold(None, |sum, wait| wait.map_or(sum, |wait| Some(sum.unwrap_or(0.0) + wait as f32)));
        // Who ended waited, too; next to a build that is most of all waits.
        let ended: f64 = observation.exited.iter().map(|ended| ended.wait_pct).sum();
        let wait: Option<f32> = wait.map(|wait| wait + ended as f32);
        let throttled = owners.iter().map(|owner| owner.now.throttled);
        let throttled =
            throttled.fold(None, |sum, part| part.map_or(sum, |part| Some(sum.unwrap_or(0.0) + part as f32)));
        let moment = Moment {
            at_ms: observation.wall_ns / 1_000_000,
            busy: observation.host.busy_pct as f32,
            steal: observation.host.steal_pct.map(|steal| steal as f32),
            wait,
            throttled,
            fulfilment: fulfilment(&observation),
            cpus: by_number(observation.host.per_cpu.iter().map(|cpu| (cpu.cpu, cpu.busy_pct))),
            owners: owners
                .iter()
                .map(|owner| {
                    // Not a number is not known.
                    let or_none = |part: Option<f64>| part.map_or(f32::NAN, |part| part as f32);
                    (
                        owner.number,
                        owner.now.cpu as f32,
                        or_none(owner.now.wait),
                        or_none(owner.now.throttled),
                    )
                })
                .filter(|(_, cpu, wait, throttled)| *cpu > 0.05 || *wait > 0.05 || *throttled > 0.05)
                .collect(),
        };
        let timeline = Arc::make_mut(&mut self.timeline);
        // Of a clock that was set back since.
        timeline.retain(|past| past.at_ms <= moment.at_ms);
        if timeline.len() >= MOMENTS {
            timeline.pop_front();
        }
        timeline.push_back(moment);
        if !(self.guarantees.is_empty() && self.protected.is_empty()) {
            let at_ms = observation.wall_ns / 1_000_000;
            Arc::make_mut(&mut self.promises).add(at_ms, &self.guarantees, &self.protected);
        }
        let notices = self.notices.judge(&observation, Some(owners), &self.guarantees);
        self.observation = Some(observation);
        self.looked = Some(Instant::now());
        notices.iter().for_each(|notice| self.note(&notice.to_string()));
        notices
    }

    /// Takes what the loop says; returns what there is to tell besides.
    pub fn take(&mut self, event: &Event<'_>) -> Vec<Notice> {
        self.notices.learn(event);
        match event {
            Event::Observed { observation, settings, config, .. } => {
                self.settings = Some((*settings).to_owned());
                Arc::make_mut(&mut self.owners).let_wait(config.background_tasks(observation));
                return self.observe(Arc::new((*observation).clone()));
            }
            Event::TrialBegins { candidates, .. } => {
                self.trials += 1;
                let names: Vec<&str> = candidates.iter().map(|plan| plan.name.as_str()).collect();
                let at = self.observation.as_ref().map_or(0, |seen| seen.wall_ns);
                self.mark(at, format!("trial of {}", names.join(" | ")));
            }
            Event::Decided { decision, candidates } => {
                self.kept += u64::from(kept(candidates, decision.winner));
                self.reverted += u64::from(given_up(candidates, decision.winner).is_some());
                self.decision = candidates
                    .iter()
                    .zip(&decision.verdicts)
                    .map(|(plan, verdict)| json!({"name": plan.name, "kept": verdict.kept, "why": verdict.why}))
                    .collect();
                let kept = candidates.iter().zip(&decision.verdicts).find(|(_, verdict)| verdict.kept);
                let at = self.observation.as_ref().map_or(0, |seen| seen.wall_ns);
                self.mark(
                    at,
                    kept.map_or("kept nothing".to_owned(), |(plan, _)| format!("kept {}", plan.name)),
                );
            }
            Event::StatusChanged(record) => {
                self.guarantees.clone_from(&record.guarantees);
                self.protected.clone_from(&record.protected);
                self.governor.clone_from(&record.governor);
                self.effect.clone_from(&record.effect_now);
                self.changes = record.changes.iter().take(200).map(|change| json!(change)).collect();
            }
            Event::Stage(stage) => {
                let Some(name) = taken_back(stage) else { return Vec::new() };
                self.reverted += 1;
                let at = stage.started_ns + (stage.seconds * 1e9) as u64;
                self.mark(at, format!("{name} taken back"));
            }
            Event::Note(note) => self.note(note),
            _ => {}
        }
        Vec::new()
    }

    /// Something to be told.
    pub fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
        let surplus = self.notes.len().saturating_sub(NOTES);
        self.notes.drain(..surplus);
    }

    fn mark(&mut self, at_ns: u64, text: String) {
        self.marks.push_back((at_ns / 1_000_000, text));
        if self.marks.len() > MARKS {
            self.marks.pop_front();
        }
    }
}

/// A page is drawn from a copy: whoever asks does not keep the loop waiting.
pub type Shared = Arc<Mutex<Arc<Board>>>;

/// Changes what later pages are drawn from.
pub fn with(board: &Shared, change: impl FnOnce(&mut Board)) {
    change(Arc::make_mut(&mut board.lock().unwrap_or_else(PoisonError::into_inner)));
}
