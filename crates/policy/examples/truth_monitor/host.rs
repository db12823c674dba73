//! A host that is not there: tasks with a demand of their own, noise, and a change whose effect is known.

use evenkeel_base::TaskId;
use evenkeel_policy::monitor::{Arm, Decided, Leave, Monitor, MonitorRules, Seen, Subject, Usage};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

/// Windows of this length have the noise stated, seconds.
const UNIT_S: f64 = 0.9;
/// CPU that the scope gets under the baseline, percent of one CPU.
const GOT_PCT: f64 = 150.0;
/// Waits per unit of work under the baseline.
const WAIT: f64 = 0.3;

evenkeel_base::defaults! {
/// What is simulated. Shares are ratios: 0.04 is 4 %.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    pub tasks: usize = 10,
    /// Of the CPU got by the scope, in a window of 0.9 s.
    pub noise: f64 = 0.04,
    /// Of a task's CPU and of its waits, in a window of 0.9 s.
    pub task_noise: f64 = 0.15,
    /// Correlation of a window's noise with that of the one before.
    pub correlation: f64,
    /// Noise has the tails of Student's t with three degrees of freedom.
    pub heavy: bool,
    /// Of all CPU got, per minute.
    pub drift: f64,
    /// Seconds in which half of the effect comes or goes.
    pub fade_s: f64,
    /// What the change brings the scope.
    pub gain: f64 = 0.08,
    /// When that is over, seconds after the decision.
    pub vanishes_s: f64 = f64::INFINITY,
    /// What it costs the first task, of its CPU.
    pub loss: f64,
    /// By what it multiplies the first task's waits.
    pub waits: f64 = 1.0,
    /// When the first task wants half as much, by itself.
    pub halves_s: f64 = f64::INFINITY,
    /// Every tenth task starts or ends by itself.
    pub turnover: bool,
    /// Pairs of windows that the decision rests on.
    pub pairs: usize = 8,
}
}

/// What became of the change.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// When it went, seconds after the decision, and why.
    pub left: Option<(f64, Leave)>,
    /// Gain that the blocks cost, as a ratio to all of it.
    pub lost: f64,
    /// Share of the time under the baseline.
    pub share: f64,
    /// Whether the interval held the truth whenever a block was complete.
    pub covered: bool,
}

/// Noise of one quantity: unit variance, correlated with what it was.
#[derive(Debug, Clone, Copy, Default)]
struct Noise {
    value: f64,
    at_s: f64,
}

impl Noise {
    fn at(&mut self, scene: &Scene, now_s: f64, rng: &mut Pcg32) -> f64 {
        let fresh = if scene.heavy { t3(rng) } else { normal(rng) };
        let kept = if scene.correlation > 0.0 {
            scene.correlation.powf(((now_s - self.at_s) / UNIT_S).max(0.0))
        } else {
            0.0
        };
        self.value = kept * self.value + (1.0 - kept * kept).sqrt() * fresh;
        self.at_s = now_s;
        self.value
    }
}

#[derive(Debug, Clone, Default)]
struct Task {
    cpu: Noise,
    wait: Noise,
    begins_s: f64,
    ends_s: f64,
}

struct Host {
    scene: Scene,
    rng: Pcg32,
    now_s: f64,
    /// How much of the change's effect is there, 0 to 1.
    level: f64,
    scope: Noise,
    tasks: Vec<Task>,
    /// Seconds of effect there would have been, and were.
    effect_s: (f64, f64),
}

impl Host {
    fn new(scene: Scene, seed: u64, horizon_s: f64) -> Self {
        let mut rng = Pcg32::seed_from_u64(seed);
        let mut task = |index: usize| {
            let mut task = Task { ends_s: f64::INFINITY, begins_s: f64::NEG_INFINITY, ..Task::default() };
            if scene.turnover && index % 10 == 9 {
                let at = rng.random_range(-20.0..horizon_s);
                if rng.random() { task.begins_s = at } else { task.ends_s = at }
            }
            task
        };
        let tasks = (0..scene.tasks).map(&mut task).collect();
        // Long enough before the decision for its windows.
        let now_s = -(scene.pairs as f64) * 2.4 - 10.0;
        Self { scene, rng, now_s, level: 0.0, scope: Noise::default(), tasks, effect_s: (0.0, 0.0) }
    }

    /// Time passes under these settings; mean level of the effect meanwhile.
    fn pass(&mut self, arm: Arm, seconds: f64) -> f64 {
        let target = if arm == Arm::Change { 1.0 } else { 0.0 };
        let mean = if self.scene.fade_s > 0.0 {
            let rate = std::f64::consts::LN_2 / self.scene.fade_s;
            let left = (-rate * seconds).exp();
            let gap = self.level - target;
            self.level = target + gap * left;
            if seconds > 0.0 { target + gap * (1.0 - left) / (rate * seconds) } else { self.level }
        } else {
            self.level = target;
            target
        };
        self.now_s += seconds;
        if self.now_s > 0.0 {
            self.effect_s.0 += seconds;
            self.effect_s.1 += mean * seconds;
        }
        mean
    }

    fn window(&mut self, arm: Arm, seconds: f64) -> Seen {
        let scene = self.scene;
        let parts = (seconds / UNIT_S).round().max(1.0) as usize;
        let mut got = 0.0;
        let mut usages = vec![(0.0, 0.0); self.tasks.len()];
        for _ in 0..parts {
            let level = self.pass(arm, seconds / parts as f64);
            let now = self.now_s;
            let trend = 1.0 + scene.drift * now / 60.0;
            let gain = if now < scene.vanishes_s { scene.gain } else { 0.0 };
            let noise = scene.noise * self.scope.at(&scene, now, &mut self.rng);
            got += (GOT_PCT * trend * (1.0 + gain * level) * (1.0 + noise)).max(0.0);
            let fair = GOT_PCT / scene.tasks as f64;
            for (index, (task, usage)) in self.tasks.iter_mut().zip(&mut usages).enumerate() {
                let own = if index == 0 && now > scene.halves_s { 0.5 } else { 1.0 };
                let (loss, waits) = if index == 0 {
                    (1.0 - scene.loss * level, 1.0 + (scene.waits - 1.0) * level)
                } else {
                    (1.0, 1.0)
                };
                let cpu = 1.0 + scene.task_noise * task.cpu.at(&scene, now, &mut self.rng);
                let wait = 1.0 + scene.task_noise * task.wait.at(&scene, now, &mut self.rng);
                let cpu = (fair * trend * own * loss * cpu).max(0.0);
                usage.0 += cpu;
                usage.1 += (cpu * WAIT * waits * wait).max(0.0);
            }
        }
        let parts = parts as f64;
        let (begins, ends) = (self.now_s - seconds, self.now_s);
        // In the order of their identities.
        let usages: Vec<(Subject, Usage)> = usages
            .into_iter()
            .enumerate()
            .filter(|(index, _)| self.tasks[*index].begins_s < begins && self.tasks[*index].ends_s > ends)
            .map(|(index, (cpu, wait))| {
                let tid = index as u32 + 1;
                let who = Subject::Task(TaskId { tgid: tid, tid, start_time: 1 });
                (who, Usage { cpu_pct: cpu / parts, waited_pct: Some(wait / parts) })
            })
            .collect();
        let cpu_pct = got / parts;
        Seen { seconds, score: cpu_pct, cpu_pct, usages, ..Seen::default() }
    }

    /// The decision's pairs, their order left to chance.
    fn decide(&mut self) -> Decided {
        let mut pairs = Vec::new();
        for _ in 0..self.scene.pairs {
            let mut order = [Arm::Change, Arm::Baseline];
            order.shuffle(&mut self.rng);
            let mut seen: Vec<(Arm, Seen)> = Vec::new();
            for arm in order {
                self.pass(arm, 0.3);
                seen.push((arm, self.window(arm, UNIT_S)));
            }
            if seen[0].0 == Arm::Baseline {
                seen.reverse();
            }
            let mut both = seen.into_iter().map(|(_, seen)| seen);
            pairs.extend(both.next().zip(both.next()));
        }
        self.now_s = 0.0;
        self.level = 1.0;
        self.effect_s = (0.0, 0.0);
        Decided { gain: self.scene.gain, pairs, ..Decided::default() }
    }
}

/// Watches a change over some time.
pub fn watch(scene: Scene, rules: MonitorRules, seconds: f64, seed: u64) -> Outcome {
    let mut host = Host::new(scene, seed, seconds);
    let decided = host.decide();
    let mut monitor = Monitor::new(rules, decided, 0.0, seed ^ 0x5eed);
    let mut covered = true;
    let mut left = None;
    let mut blocks = 0;
    loop {
        let step = monitor.step();
        if step.until_s > seconds {
            host.pass(step.arm, seconds - host.now_s);
            break;
        }
        let time = step.until_s - host.now_s;
        let seen = if step.measure {
            Some(host.window(step.arm, time))
        } else {
            host.pass(step.arm, time);
            None
        };
        let hour = (host.now_s / 3600.0) as usize % 24;
        let leave = monitor.advance(step.until_s, hour, seen);
        if monitor.blocks() > blocks && scene.vanishes_s.is_infinite() {
            blocks = monitor.blocks();
            // The gain is a ratio to the mean of the block's windows, four of five under the change.
            let truth = scene.gain / (1.0 + 0.8 * scene.gain);
            covered &= monitor.gain().estimate(rules.alpha).is_none_or(|e| e.low <= truth && truth <= e.high);
        }
        if let Some(why) = leave {
            left = Some((host.now_s, why));
            break;
        }
    }
    let (could, was) = host.effect_s;
    let effect = monitor.effect(host.now_s, 0, 0);
    let share = effect.holdout_share.map_or(0.0, |share| share.value);
    Outcome { left, lost: 1.0 - was / could.max(1e-9), share, covered }
}

pub fn normal(rng: &mut Pcg32) -> f64 {
    evenkeel_base::stats::normal_of(rng.random_range(1e-12..1.0), rng.random())
}

/// Student's t with three degrees of freedom, scaled to a variance of one.
pub fn t3(rng: &mut Pcg32) -> f64 {
    let chi2: f64 = (0..3).map(|_| normal(rng).powi(2)).sum();
    normal(rng) / chi2.sqrt()
}
