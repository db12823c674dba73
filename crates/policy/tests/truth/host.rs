//! A host with a clock of its own, whose tasks behave as a row of the table says. The trial that is held on it is the agent's.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::{Histogram, TaskId};
use evenkeel_policy::guard::GuardLimits;
use evenkeel_policy::monitor::{Arm, Decided, Monitor, MonitorRules};
use evenkeel_policy::protect::LatencyTarget;
use evenkeel_policy::trial::{Decision, Pace, Part, Trial, TrialRules, Turn};
use evenkeel_policy::window::{Owner, Rates, Summary};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

/// CPU that the scope gets under the baseline, percent of one CPU, and CPUs of the host.
const GOT: f64 = 150.0;
const CPUS: f64 = 200.0;
/// Windows that noise is stated for, seconds.
const UNIT_S: f64 = 0.9;
/// Waits of a task per second of work under the baseline, and how they vary from window to window.
const WAITS: (f64, f64) = (0.25, 0.15);
/// The same of tasks that wait rarely, as measured of loads with ten pieces of work a second.
const RARE_WAITS: (f64, f64) = (0.5, 0.5);
/// What a decision may take, seconds.
pub const BUDGET_S: f64 = 78.0;
pub const PACE: Pace = Pace::new(0.9, 0.1);
/// The agent's where services count.
const SERVICES_PACE: Pace = Pace::new(0.4, 0.1).for_services();

/// Something that fades after a switch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fade {
    pub half_life_s: f64,
    /// CPU at first, as a share of what is got.
    pub size: f64,
    /// A backlog, which builds up again under the baseline; otherwise an effect of the switch itself.
    pub backlog: bool,
}

/// What ends in the middle of the trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ends {
    Nothing,
    /// A task of the scope.
    Task,
    /// A program outside, which had taken CPU from the scope.
    Outside,
    /// Tasks of the scope start and end all the time.
    Churn,
}

evenkeel_base::defaults! {
/// One row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    pub candidates: usize = 4,
    /// Standard deviation of the CPU got from window to window.
    pub noise: f64 = 0.04,
    /// Correlation of one window with the next.
    pub ar: f64,
    /// Student's t with 3 degrees of freedom instead of a normal distribution.
    pub heavy: bool,
    pub drift_per_min: f64,
    pub tasks: usize = 10,
    /// What candidate 1 gains for each task.
    pub gain: f64,
    pub fade: Option<Fade>,
    pub ends: Ends = Ends::Nothing,
    /// Every candidate takes this share of its CPU from task 1, or lengthens its waits so many times.
    pub victim: Option<(f64, f64)>,
    /// Containers outside the scope, and waits of each per second.
    pub outside: (usize, f64),
    /// Share of the outside's waits beyond their 99th percentile under a candidate.
    pub tail: f64 = 0.01,
    /// What containers outside lose of their CPU under a candidate.
    pub outside_loss: f64,
    /// What they want varies so much, as a logarithm, and their waits have nothing to do with it: seconds per second of usual work.
    pub outside_wander: Option<(f64, f64)>,
    /// A busy loop of the scope fills the host, and candidates give it this much more of one CPU.
    pub hog: Option<f64>,
    pub guard: bool,
    /// Tasks wait ten times a second instead of a hundred times.
    pub rare: bool,
    /// Services count, the scope is background work: the service's long waits under candidate 1, as a factor.
    pub service: Option<f64>,
    /// What is kept is watched for so many seconds, and counts where it is still in force then.
    pub watched_s: f64,
}
}

pub struct Host {
    scene: Scene,
    rng: Pcg32,
    pub clock_s: f64,
    in_force: usize,
    since_s: f64,
    /// Backlog left, or effect of the switch left.
    left: f64,
    correlated: f64,
    ends_at: f64,
    churned: f64,
    owners: Vec<Owner>,
    shares: Vec<f64>,
}

impl Host {
    pub fn new(scene: Scene, seed: u64) -> Self {
        let mut rng = Pcg32::seed_from_u64(seed);
        let shares: Vec<f64> = (0..scene.tasks).map(|_| rng.random_range(0.5..1.5)).collect();
        let sum: f64 = shares.iter().sum();
        let left = if scene.fade.is_some_and(|fade| fade.backlog) { 1.0 } else { 0.0 };
        let owners = (0..8).map(|at| Arc::from(format!("container {at}").as_str())).collect();
        Self {
            ends_at: rng.random_range(5.0..40.0),
            shares: shares.into_iter().map(|share| share / sum).collect(),
            scene,
            rng,
            clock_s: 0.0,
            in_force: 0,
            since_s: f64::INFINITY,
            left,
            correlated: 0.0,
            churned: 0.0,
            owners,
        }
    }

    fn normal(&mut self) -> f64 {
        evenkeel_base::stats::normal_of(self.rng.random_range(1e-12..1.0), self.rng.random())
    }

    /// Of variance 1.
    fn shock(&mut self) -> f64 {
        if !self.scene.heavy {
            return self.normal();
        }
        let chi: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / (chi / 3.0).sqrt() / 3f64.sqrt()
    }

    /// Lets time pass; the mean of what fades meanwhile, as a share of the CPU got.
    fn pass(&mut self, seconds: f64) -> f64 {
        self.clock_s += seconds;
        self.since_s += seconds;
        let Some(fade) = self.scene.fade else { return 0.0 };
        let kept = 0.5f64.powf(seconds / fade.half_life_s);
        // Mean of a half-life's course over the time.
        let mean = (1.0 - kept) / (std::f64::consts::LN_2 * seconds / fade.half_life_s);
        if fade.backlog && self.in_force == 0 {
            let grown = (1.0 - self.left) * mean;
            self.left = 1.0 - (1.0 - self.left) * kept;
            return -fade.size * grown;
        }
        let extra = if self.in_force == 0 { 0.0 } else { fade.size * self.left * mean };
        self.left *= kept;
        extra
    }

    fn switch(&mut self, candidate: usize) {
        if candidate != self.in_force {
            self.in_force = candidate;
            self.since_s = 0.0;
            if self.scene.fade.is_some_and(|fade| !fade.backlog) {
                self.left = 1.0;
            }
        }
    }

    /// The window of a turn.
    pub fn measure(&mut self, turn: &Turn) -> Summary {
        self.switch(turn.candidate);
        if turn.settle_s > 0.0 {
            self.pass(turn.settle_s);
        }
        let faded = self.pass(turn.window_s);
        let scene = self.scene.clone();
        let tried = turn.candidate != 0;
        let n = scene.tasks as f64;
        let length = (UNIT_S / turn.window_s).sqrt();
        // Of the whole noise tasks have their own part, and all share the rest.
        let own = (scene.noise * n.sqrt() * if scene.ar > 0.0 || scene.heavy { 0.5 } else { 1.0 }).min(0.15);
        let common = (scene.noise * scene.noise - own * own / n).max(0.0).sqrt();
        let shock = self.shock();
        self.correlated = scene.ar * self.correlated + (1.0 - scene.ar * scene.ar).sqrt() * shock;
        let mut level = 1.0 + common * length * self.correlated + faded;
        level *= 1.0 + scene.drift_per_min * self.clock_s / 60.0;
        level *= 1.0 + if turn.candidate == 1 { scene.gain } else { 0.0 };
        let ended = self.clock_s > self.ends_at;
        if scene.ends == Ends::Outside && ended {
            level *= 1.2;
        }
        if scene.ends == Ends::Churn && self.rng.random_bool(0.3) {
            self.churned = if self.churned > 0.0 { 0.0 } else { 0.05 };
        }
        let mut summary = Summary { seconds: turn.window_s, ..Summary::default() };
        for at in 0..scene.tasks {
            if scene.ends == Ends::Task && ended && at == 0 {
                continue;
            }
            let noise = 1.0 + own * length * self.normal();
            let mut got = (GOT * self.shares[at] * level * noise).max(0.0);
            let (mean, varies) = if scene.rare { RARE_WAITS } else { WAITS };
            let mut wait = (mean * (1.0 + varies * length * self.normal())).max(0.0);
            if let Some((loss, factor)) = scene.victim.filter(|_| tried && at == 0) {
                let runnable = got * (1.0 + wait);
                got *= 1.0 - loss;
                // Who gets less was runnable meanwhile.
                wait = if loss > 0.0 { runnable / got - 1.0 } else { wait * factor };
            }
            self.add(&mut summary, 10 + at as u32, (got, wait * got), Some(at % 4), turn.window_s);
        }
        if self.churned > 0.0 {
            let tid = 5000 + (self.clock_s * 10.0) as u32;
            self.add(
                &mut summary,
                tid,
                (GOT * self.churned, 0.1 * GOT * self.churned),
                Some(0),
                turn.window_s,
            );
        }
        let mut outside = if scene.ends == Ends::Outside && !ended { 30.0 } else { 0.0 };
        for at in 0..scene.outside.0 {
            let loss = if tried { scene.outside_loss } else { 0.0 };
            let noise = self.normal();
            let varies = 1.0 + WAITS.1 * length * self.normal();
            let (demand, wait) = match scene.outside_wander {
                Some((wander, waits)) => (10.0 * (wander * noise).exp(), 10.0 * waits * varies),
                None => {
                    let demand = 10.0 * (1.0 + scene.noise * length * noise);
                    (demand, demand * WAITS.0 * varies)
                }
            };
            let got = (demand * (1.0 - loss)).max(0.0);
            let waited = (demand + wait - got).max(0.0);
            outside += got;
            let id = TaskId { tgid: 900 + at as u32, tid: 900 + at as u32, start_time: 1 };
            let owner = self.owners[4 + at % 4].clone();
            let rates = Rates {
                got_pct: got,
                waited_pct: Some(waited),
                waits: None,
                in_scope: false,
                owner: Some(owner.clone()),
            };
            summary.tasks.insert(id, rates);
            summary.waits.insert(
                owner,
                self.waits(scene.outside.1 * turn.window_s, if tried { scene.tail } else { 0.01 }),
            );
        }
        summary.outside_pct = Some(outside);
        let mut idle = (CPUS - summary.got_pct - outside).max(0.0);
        if let Some(more) = scene.hog {
            let got = (idle - 2.0 + if tried { more } else { 0.0 }).clamp(1.0, 100.0);
            let id = TaskId { tgid: 800, tid: 800, start_time: 1 };
            summary.got_pct += got;
            summary.waited_pct += 100.0 - got;
            let rates = Rates {
                got_pct: got,
                waited_pct: Some(100.0 - got),
                waits: Some(100),
                in_scope: true,
                owner: Some(self.owners[0].clone()),
            };
            summary.tasks.insert(id, rates);
            idle = 2.0;
        }
        summary.idle_pct = Some(idle);
        summary
    }

    /// Waits of the service in the window of a turn: a thousand short ones a second, and a few long ones, of which some
    /// windows have many more than others, and none more than it has waits.
    pub fn service(&mut self, turn: &Turn) -> Vec<Option<Histogram>> {
        let Some(factor) = self.scene.service else { return Vec::new() };
        let factor = if turn.candidate == 1 { factor } else { 1.0 };
        let mut histogram = Histogram::default();
        histogram.add_many(10_000, (1000.0 * turn.window_s) as u64);
        let busy = (0.5 * self.shock()).exp();
        // With heavy tails it is thousands of millions now and then.
        for _ in 0..(turn.window_s * (8.0 * busy).min(1000.0)) as u32 {
            let ms = -self.rng.random_range(1e-9f64..1.0).ln() * 2.0 * factor;
            histogram.add((ms * 1e6) as u64);
        }
        vec![Some(histogram)]
    }

    fn add(
        &self,
        summary: &mut Summary,
        tid: u32,
        (got, waited): (f64, f64),
        owner: Option<usize>,
        seconds: f64,
    ) {
        let id = TaskId { tgid: tid, tid, start_time: 1 };
        summary.got_pct += got;
        summary.waited_pct += waited;
        let per_s = if self.scene.rare { 10.0 } else { 100.0 };
        let waits = Some((per_s * seconds) as u64);
        let owner = owner.map(|at| self.owners[at].clone());
        summary
            .tasks
            .insert(id, Rates { got_pct: got, waited_pct: Some(waited), waits, in_scope: true, owner });
    }

    /// Waits of about a millisecond of which this share is beyond what one in a hundred exceeds; windows differ.
    fn waits(&mut self, count: f64, tail: f64) -> Histogram {
        let mut histogram = Histogram::default();
        let busy = (0.2 * self.normal()).exp();
        let tail = (tail * (0.2 * self.normal()).exp()).min(1.0);
        for _ in 0..(count * busy) as u32 {
            // Below 4.6 ms, and beyond.
            let ms: f64 = if self.rng.random_bool(tail) {
                self.rng.random_range(5.5..20.0)
            } else {
                self.rng.random_range(0.2..4.0)
            };
            histogram.add((ms * 1e6) as u64);
        }
        histogram
    }
}

/// What came of one trial.
pub struct Outcome {
    pub decision: Decision,
    pub seconds: f64,
    /// When what is kept was put in force for good.
    pub in_force_s: f64,
    /// The host as the decision left it.
    pub host: Host,
}

impl Outcome {
    /// Whether what was kept is still in force after so many seconds under the watch.
    fn stays(mut self, seconds: f64, seed: u64) -> bool {
        let winner = self.decision.winner;
        let gain = self.decision.gain();
        let pairs = std::mem::take(&mut self.decision.pairs);
        let decided = Decided { gain, pairs, ..Decided::default() };
        let mut monitor = Monitor::new(MonitorRules::default(), decided, 0.0, seed);
        let began_s = self.host.clock_s;
        loop {
            let step = monitor.step();
            if step.until_s > seconds {
                return true;
            }
            let candidate = if step.arm == Arm::Change { winner } else { 0 };
            let time = (step.until_s - (self.host.clock_s - began_s)).max(1e-3);
            let seen = if step.measure {
                let window = self.host.measure(&Turn { candidate, settle_s: 0.0, window_s: time });
                self.decision.objective.seen(&window, &[])
            } else {
                self.host.switch(candidate);
                self.host.pass(time);
                None
            };
            if monitor.advance(step.until_s, 0, seen).is_some() {
                return false;
            }
        }
    }
}

/// Limits that nobody can pass.
fn no_guard() -> GuardLimits {
    GuardLimits { min_cpu_pct: f64::INFINITY, min_waits: f64::INFINITY, ..GuardLimits::default() }
}

/// Holds one trial, from the first look to the decision.
pub fn decide(scene: &Scene, seed: u64) -> Outcome {
    decide_at(scene, seed, TrialRules::default().alpha)
}

/// The same with another error budget.
pub fn decide_at(scene: &Scene, seed: u64, alpha: f64) -> Outcome {
    let guard = if scene.guard { GuardLimits::default() } else { no_guard() };
    let rules = TrialRules { guard, alpha, seed: seed ^ 0x9e37_79b9, ..TrialRules::default() };
    let mut host = Host::new(scene.clone(), seed);
    let pace = if scene.service.is_some() { SERVICES_PACE } else { PACE };
    let mut trial = Trial::new(scene.candidates, rules, pace);
    if scene.service.is_some() {
        let service =
            LatencyTarget { name: "service".to_owned(), wait_p99_ns: None, ..LatencyTarget::default() };
        trial = trial.protecting(vec![service], 0);
    }
    // The second of study that comes before a trial.
    let first = Turn { candidate: 0, settle_s: 0.0, window_s: 1.0 };
    trial.seen(host.measure(&first), host.service(&first));
    let mut in_force_s = 0.0;
    while let Some(turn) = trial.next(BUDGET_S - host.clock_s) {
        if trial.part() != Part::Hold {
            in_force_s = host.clock_s;
        }
        let window = host.measure(&turn);
        let service = host.service(&turn);
        trial.record(window, service);
    }
    Outcome { decision: trial.decide(), seconds: host.clock_s, in_force_s, host }
}

/// How often what was kept.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub trials: u64,
    pub kept: BTreeMap<usize, u64>,
    pub confirmed: u64,
    seconds: Vec<f64>,
    kept_seconds: Vec<f64>,
    in_force_seconds: Vec<f64>,
}

impl Tally {
    pub fn of(scene: &Scene, trials: u64, seed: u64) -> Self {
        let mut tally = Self::default();
        for trial in 0..trials {
            let outcome = decide(scene, seed + trial);
            tally.trials += 1;
            tally.confirmed += u64::from(outcome.decision.confirmed);
            tally.seconds.push(outcome.seconds);
            let winner = outcome.decision.winner;
            let (seconds, in_force_s) = (outcome.seconds, outcome.in_force_s);
            if winner != 0 && (scene.watched_s == 0.0 || outcome.stays(scene.watched_s, seed + trial)) {
                *tally.kept.entry(winner).or_default() += 1;
                tally.kept_seconds.push(seconds);
                tally.in_force_seconds.push(in_force_s);
            }
        }
        tally
    }

    pub fn kept(&self) -> u64 {
        self.kept.values().sum()
    }

    /// Candidate 1, the only one that ever helps.
    pub fn kept_right(&self) -> u64 {
        self.kept.get(&1).copied().unwrap_or_default()
    }

    /// Median time to decide, to keep, and until what is kept was in force for good.
    pub fn median_s(&self) -> (f64, Option<f64>, Option<f64>) {
        let median = |values: &[f64]| evenkeel_base::stats::median(values.iter().copied());
        (
            median(&self.seconds).unwrap_or_default(),
            median(&self.kept_seconds),
            median(&self.in_force_seconds),
        )
    }
}
