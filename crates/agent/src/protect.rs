//! Protected scopes: how long they wait for a CPU, measured next to everything else, and what that means for settings.
//! How they are counted: see [`crate::runqlat_probe`]. Scopes that promise something of their own requests are judged by
//! these while they can be counted ([`crate::slo`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use evenkeel_base::PromiseState;
use evenkeel_base::run::{ProtectedStatus, RunRecord};
use evenkeel_base::{Histogram, Observation, TaskView};
use evenkeel_policy::protect::{self, LatencyTarget};
use evenkeel_policy::requests::Requests;
use evenkeel_policy::trial::Decision;

use crate::bounds::unseen_share;
use crate::component::{Component, Next, Seen};
use crate::controls::Controls;
use crate::runqlat_probe::{RunqLatProbe, of_processes};
use crate::slo::{BrokenSlo, SloReader, Span};
use crate::stated::Protected;

/// Scopes that can be protected at once.
pub use crate::runqlat_probe::MOST;

/// Windows that say how a protection stands: as many more as it takes for a statement, up to the second, for one that waits seldom.
const RECENT: usize = 10;
const LONGEST: usize = 120;
/// Windows that say whether a service waits too long.
const LATELY: usize = 3;
/// Waits among them from which on their percentile calls settings into question; fewer do where chance does not explain it.
const ENOUGH: u64 = 200;
/// Evidence that more requests are slow than may be at which settings are called into question.
const EVIDENCE: f64 = 20.0;
/// Part of a service's CPU that goes to processes too short-lived to be followed from which that is said, once it has lasted for so
/// many windows.
const UNSEEN: f64 = 0.25;
const LASTING: u32 = 3;
/// Shortest time between two readings of counters.
const LEAST: Duration = Duration::from_millis(95);

/// One protected scope at work.
#[derive(Debug)]
struct LatencySlo {
    protected: Protected,
    tasks: u32,
    /// Of the baseline in the last trial, ns.
    default_ns: Option<u64>,
    /// The last windows under the settings in force.
    recent: VecDeque<(Histogram, f64)>,
    /// Its own requests, where it promises something of them.
    requests: Option<SloReader>,
    /// It was said that its waits are those of whole processes.
    told: bool,
    /// It has had tasks, or it was said that it has none yet.
    met: bool,
    /// For how many windows much of its CPU went to processes that were too short-lived to be followed.
    unseen: u32,
}

impl LatencySlo {
    fn new(protected: Protected) -> Self {
        let requests = protected.slo.clone().map(SloReader::start);
        Self {
            protected,
            tasks: 0,
            default_ns: None,
            recent: VecDeque::new(),
            requests,
            told: false,
            met: false,
            unseen: 0,
        }
    }

    /// What is to be said, once, where much of its CPU goes to processes whose waits no one sees.
    fn unseen(&mut self, observation: &Observation) -> Option<String> {
        // Once is enough.
        if self.unseen >= LASTING {
            return None;
        }
        let own = &self.protected;
        let mine = |task: &TaskView| own.scope.has(task, observation);
        let share = unseen_share(observation, mine, own.scope.group(observation));
        let much = share.filter(|share| *share >= UNSEEN);
        self.unseen = much.map_or(0, |_| self.unseen + 1);
        let pct = 100.0 * much.filter(|_| self.unseen == LASTING)?;
        let name = &own.protection.name;
        Some(format!(
            "waits of {name} are without those of processes that live less than a second, which use {pct:.0} % of its CPU"
        ))
    }

    /// From where settings in force are called into question, ns.
    fn alarm_ns(&self, wait_factor: f64) -> Option<u64> {
        let grown = self.default_ns.map(|ns| (wait_factor * ns.max(protect::FLOOR_NS) as f64) as u64);
        match (self.protected.protection.wait_p99_ns, self.default_ns) {
            (Some(bound), Some(found)) if found > bound => grown,
            (Some(bound), _) => Some(bound),
            (None, _) => grown,
        }
    }

    /// A window under the settings in force.
    fn watched(&mut self, waits: Histogram, seconds: f64) {
        self.recent.push_back((waits, seconds));
        let tells = |recent: &VecDeque<(Histogram, f64)>| {
            recent.iter().skip(1).map(|(waits, _)| waits.total()).sum::<u64>() >= protect::ENOUGH
        };
        while self.recent.len() > RECENT && (self.recent.len() > LONGEST || tells(&self.recent)) {
            self.recent.pop_front();
        }
    }

    /// Waits of the last windows, so many of them, and their seconds.
    fn pool(&self, windows: usize) -> (Histogram, f64) {
        let last = self.recent.iter().rev().take(windows);
        (last.clone().map(|(waits, _)| waits).sum(), last.map(|(_, seconds)| seconds).sum())
    }

    /// `estimated`: waits are means.
    fn status(&self, wait_factor: f64, estimated: bool) -> ProtectedStatus {
        let (pool, _) = self.pool(LONGEST);
        let p99_ns = pool.quantile(0.99);
        let limit_ns = self.alarm_ns(wait_factor);
        let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
        let requests = self.requests.as_ref().map(|requests| requests.status(wait_factor));
        // By what is promised, which the baseline may break, too: the limit says from where the settings are to blame.
        let by_requests = requests.as_ref().and_then(|slo| slo.kept);
        let bound_ns = self.protected.protection.wait_p99_ns.or(limit_ns);
        let keeps = by_requests.or_else(|| protect::keeps(&pool, bound_ns?));
        let state = match keeps {
            _ if self.tasks == 0 => PromiseState::Waiting,
            // Means are less than the waits: they do not show that these are short enough.
            Some(true) if estimated && by_requests.is_none() => PromiseState::AtRisk,
            Some(true) => PromiseState::Kept,
            Some(false) => PromiseState::Broken,
            None => PromiseState::Unknown,
        };
        ProtectedStatus {
            name: self.protected.protection.name.clone(),
            bound_ms: ms(self.protected.protection.wait_p99_ns),
            limit_ms: ms(limit_ns),
            default_p99_ms: ms(self.default_ns),
            p99_ms: ms(p99_ns),
            waits: pool.total(),
            estimated,
            tasks: self.tasks,
            state,
            slo: requests,
        }
    }

    /// Whether it keeps what it promises of its requests; `None` where they do not tell, or nothing is promised.
    fn keeps_requests(&self, wait_factor: f64) -> Option<bool> {
        self.requests.as_ref()?.status(wait_factor).kept
    }
}

/// All protected scopes of a run.
#[derive(Debug, Default)]
pub(crate) struct LatencySlos {
    all: Vec<LatencySlo>,
    /// Counts the waits of all; `None` where none are protected.
    meter: Option<RunqLatProbe>,
    /// What waits may grow by.
    wait_factor: f64,
    ticked: Option<Instant>,
    asked: Option<Instant>,
    /// Waits in the last window.
    window: Vec<Option<Histogram>>,
    /// When the last window began and ended, and when the present one began.
    span: Option<Span>,
    began: Option<Instant>,
    /// While windows are held against each other: whether the first of them had means for waits.
    compared: Option<bool>,
    /// It was said that waits are means.
    told_means: bool,
    notes: Vec<String>,
}

impl LatencySlos {
    /// Begins to count. Waits may grow by a factor.
    pub fn new(protected: &[Protected], wait_factor: f64) -> Self {
        let all = protected.iter().cloned().map(LatencySlo::new).collect();
        let meter = (!protected.is_empty()).then(RunqLatProbe::start);
        // What they are at the start is part of the notes.
        let told_means = meter.as_ref().is_some_and(|meter| meter.problem().is_some());
        Self { all, meter, wait_factor, told_means, ..Self::default() }
    }

    /// What people are to be told of how waits are known.
    pub fn notes(&self) -> Vec<String> {
        let caveat = self.meter.as_ref().and_then(RunqLatProbe::caveat);
        caveat.map(|caveat| format!("waits of services are {caveat}")).into_iter().collect()
    }

    /// From now on the tasks seen here are followed, and counted again.
    pub fn meet(&mut self, observation: &Observation) {
        self.follow(observation);
        self.begin();
    }

    fn follow(&mut self, observation: &Observation) {
        let estimated = self.is_estimated();
        for (scope, guarded) in self.all.iter_mut().enumerate() {
            // Children count from their first instant on where they belong to the service whatever they are.
            let children = !estimated && guarded.protected.scope.has_children();
            if !children {
                self.notes.extend(guarded.unseen(observation));
            }
            let own = &guarded.protected;
            let mine = || observation.tasks.iter().filter(|task| own.scope.has(task, observation));
            guarded.tasks = mine().count() as u32;
            let Some(meter) = &mut self.meter else { continue };
            if estimated {
                meter.follow(scope, mine(), false);
                continue;
            }
            let whole = of_processes(observation, mine());
            if whole.len() as u32 > guarded.tasks && !std::mem::replace(&mut guarded.told, true) {
                let what = "are those of its whole processes: threads are not counted one by one";
                self.notes.push(format!("waits of {} {what}", own.protection.name));
            }
            meter.follow(scope, whole.into_iter(), children);
        }
        // Where none has tasks the decision says so.
        let there = self.all.iter().any(|guarded| guarded.tasks > 0);
        for guarded in self.all.iter_mut().filter(|guarded| there || guarded.tasks > 0) {
            if !std::mem::replace(&mut guarded.met, true) && guarded.tasks == 0 {
                let name = &guarded.protected.protection.name;
                self.notes.push(format!("no task belongs to {name} yet: it is waited for"));
            }
        }
    }

    /// Waits since the last call, by scope; `None` where they could not be read, and where they are means and windows counted
    /// exactly are what they would be held against.
    /// Waits of the next window are whole where `whole` says so.
    fn take(&mut self, whole: bool) -> Vec<Option<Histogram>> {
        let waits = self.meter.as_mut().and_then(|meter| meter.take(whole));
        let estimated = self.is_estimated();
        let waits = waits.filter(|_| self.compared.is_none_or(|by_means| by_means == estimated));
        let of = |scope| match waits.as_ref()?.get(&scope) {
            // Means are there of each scope that is followed.
            None if estimated => None,
            waits => Some(waits.cloned().unwrap_or_default()),
        };
        (0..self.all.len()).map(of).collect()
    }

    /// Counting may fail at any time. That waits are means from then on is said once, and those that were counted are not pooled with
    /// them.
    fn tell_means(&mut self) {
        if self.is_estimated() && !std::mem::replace(&mut self.told_means, true) {
            self.notes.extend(self.notes());
            self.all.iter_mut().for_each(|guarded| guarded.recent.clear());
        }
    }

    fn is_estimated(&self) -> bool {
        self.meter.as_ref().is_some_and(|meter| meter.problem().is_some())
    }

    pub fn protections(&self) -> Vec<LatencyTarget> {
        let target = |guarded: &LatencySlo| {
            let requests = guarded.requests.as_ref().map(SloReader::target);
            LatencyTarget { requests, ..guarded.protected.protection.clone() }
        };
        self.all.iter().map(target).collect()
    }

    /// A window begins: what was counted until now is not part of it.
    pub fn begin(&mut self) {
        self.take(false);
        self.began = Some(Instant::now());
        self.readers().for_each(SloReader::poke);
    }

    fn readers(&self) -> impl Iterator<Item = &SloReader> {
        self.all.iter().filter_map(|guarded| guarded.requests.as_ref())
    }

    /// Whether windows are held against each other from now on: requests are then counted at the ends of each.
    pub fn compare(&mut self, compares: bool) {
        self.compared = compares.then(|| self.compared.unwrap_or_else(|| self.is_estimated()));
        self.readers().for_each(|reader| reader.hurry(compares));
    }

    /// Begin and end of the window that ended last.
    pub fn span(&self) -> Option<Span> {
        self.span
    }

    /// Own requests of each in a window that ended; `None` until all are known.
    pub fn requests(&self, span: Span) -> Option<Vec<Option<Requests>>> {
        self.all
            .iter()
            .map(|guarded| guarded.requests.as_ref().map_or(Some(None), |reader| reader.between(span)))
            .collect()
    }

    /// Whether each keeps what it promises of its requests; `None` where they do not tell, or nothing is promised.
    pub fn keep_requests(&self) -> Vec<Option<bool>> {
        self.all.iter().map(|guarded| guarded.keeps_requests(self.wait_factor)).collect()
    }

    /// A window was under other settings than those in force.
    pub fn held_out(&mut self, span: Span) {
        self.all
            .iter_mut()
            .filter_map(|guarded| guarded.requests.as_mut())
            .for_each(|reader| reader.held_out(span));
    }

    /// Waits in the window that ended last, by scope; `None` where they could not be read.
    pub fn window(&self) -> &[Option<Histogram>] {
        &self.window
    }

    /// A trial ended with these 99th percentiles; the recent ones were under other settings.
    pub fn decided(&mut self, decision: &Decision, default: usize) {
        if let Some(found) = decision.verdicts.get(default) {
            self.compare_with(&found.protected_ns, &found.requests);
        }
    }

    /// These were waits and requests under the baseline; the recent ones were under other settings.
    pub fn compare_with(&mut self, protected_ns: &[Option<u64>], requests: &[Vec<Requests>]) {
        for (guarded, ns) in self.all.iter_mut().zip(protected_ns) {
            // A trial too short for a window of the baseline says nothing new of it.
            guarded.default_ns = ns.or(guarded.default_ns);
            guarded.recent.clear();
        }
        for (guarded, requests) in self.all.iter_mut().zip(requests) {
            if let Some(reader) = &mut guarded.requests {
                reader.decided(requests.clone());
            }
        }
    }

    /// A window of so many seconds under the settings in force, outside of trials.
    pub fn watched(&mut self, waits: &[Option<Histogram>], seconds: f64) {
        for (guarded, waits) in self.all.iter_mut().zip(waits) {
            if let Some(waits) = waits {
                guarded.watched(waits.clone(), seconds);
            }
        }
    }

    /// Names of those that no task belongs to now, by their place.
    pub fn without_tasks(&self) -> BTreeMap<usize, String> {
        let empty = self.all.iter().enumerate().filter(|(_, guarded)| guarded.tasks == 0);
        empty.map(|(at, guarded)| (at, guarded.protected.protection.name.clone())).collect()
    }

    /// Waits of each in the last windows together, with their seconds; `None` before there are some windows.
    pub fn lately(&self) -> Option<Vec<(Histogram, f64)>> {
        let enough = self.all.iter().all(|guarded| guarded.recent.len() >= LATELY);
        enough.then(|| self.all.iter().map(|guarded| guarded.pool(RECENT)).collect())
    }

    fn statuses(&self) -> Vec<ProtectedStatus> {
        self.all.iter().map(|guarded| guarded.status(self.wait_factor, self.is_estimated())).collect()
    }

    /// Whether the settings in force are to be put to the test now, and why: once in `rest` at most.
    pub fn objects(&mut self, rest: Duration) -> Option<String> {
        if self.asked.is_some_and(|then| then.elapsed() < rest) {
            return None;
        }
        let why = self.all.iter().find_map(|guarded| self.objection(guarded))?;
        self.asked = Some(Instant::now());
        Some(format!("{why}: the settings are put to the test"))
    }

    /// Why one of them calls the settings into question, if it does.
    fn objection(&self, guarded: &LatencySlo) -> Option<String> {
        let reader = guarded.requests.as_ref();
        let slow = reader.and_then(|reader| Some((reader, reader.shown_broken(self.wait_factor, EVIDENCE)?)));
        if let Some((reader, BrokenSlo { share, limit })) = slow {
            return Some(format!(
                "of the requests to {}, which is protected, {:.2} % take more than {}, which {:.2} % may",
                guarded.protected.protection.name,
                100.0 * share,
                reader.target().bound_words(),
                100.0 * limit
            ));
        }
        // Where requests tell, waits do not count.
        let by_waits =
            guarded.recent.len() >= RECENT / 2 && guarded.keeps_requests(self.wait_factor).is_none();
        let (waits, _) = by_waits.then(|| guarded.pool(RECENT))?;
        let (p99_ns, limit_ns) = (waits.quantile(0.99)?, guarded.alarm_ns(self.wait_factor)?);
        let broken =
            if waits.total() >= ENOUGH { p99_ns > limit_ns } else { protect::is_broken(&waits, limit_ns) };
        (guarded.tasks > 0 && broken).then(|| {
            format!(
                "{}, which is protected, waits {:.2} ms in the 99th percentile, beyond {:.2} ms",
                guarded.protected.protection.name,
                p99_ns as f64 / 1e6,
                limit_ns as f64 / 1e6
            )
        })
    }
}

impl Component for LatencySlos {
    /// Reads counters, where waits come from them and it is time.
    fn on_tick(&mut self, _late: Duration, _controls: &mut Controls) {
        let now = Instant::now();
        let Some(meter) = &mut self.meter else { return };
        if self.ticked.is_some_and(|then| now.duration_since(then) < LEAST) {
            return;
        }
        self.ticked = Some(now);
        meter.tick(now);
    }

    /// A window ends, and another begins.
    fn on_window(&mut self, seen: Seen<'_>, controls: &mut Controls) -> Next {
        self.ticked = None;
        self.on_tick(Duration::ZERO, controls);
        // What a wait under way has lasted is cut at windows only where these are held against each other: a bound longer than a
        // window would never be broken.
        self.window = self.take(self.compared.is_none());
        let now = Instant::now();
        self.span = self.began.replace(now).map(|began| (began, now));
        if self.compared.is_some() {
            self.readers().for_each(SloReader::poke);
        }
        for guarded in &mut self.all {
            if let Some(reader) = &mut guarded.requests {
                self.notes.extend(reader.update(&guarded.protected.protection.name));
            }
        }
        self.follow(seen.observation);
        self.tell_means();
        Next::Stays
    }

    fn status(&self, record: &mut RunRecord) {
        record.protected = self.statuses();
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests;
