//! The rows: what is to hold, and how often it does.

use evenkeel_base::stats::binomial;
use evenkeel_policy::monitor::{HoldoutRules, Leave, MonitorRules, OnlineControl};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use crate::decision::{Scene as Decided, decide_at};
use crate::host::{Outcome, Scene, watch};

const HOUR: f64 = 3600.0;
/// How the names of two kinds of rows begin.
const COST: &str = "holdout's cost";
const DAY: &str = "300 decisions";

/// A row's result: how often it went wrong.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub trials: u64,
    pub wrong: u64,
    /// Share that may go wrong.
    pub limit: f64,
    /// Something besides.
    pub note: String,
}

impl Row {
    /// Upper end of the one-sided 95 % interval of the share that goes wrong (Clopper and Pearson).
    pub fn upper(&self) -> f64 {
        binomial::upper(self.wrong, self.trials, 0.05)
    }

    /// Whether the limit is refuted: so many or more would go wrong in less than one of 100 runs if the limit held.
    pub fn refuted(&self) -> bool {
        binomial::lower(self.wrong, self.trials, 0.01) > self.limit
    }
}

/// What a row asks of an outcome: true is wrong.
type Wrong = fn(&Outcome, &Scene) -> bool;

struct Question {
    name: String,
    scene: Scene,
    seconds: f64,
    limit: f64,
    wrong: Wrong,
    /// Draws what differs from trial to trial.
    vary: fn(&mut Scene, &mut Pcg32),
}

impl Question {
    /// How often it went wrong in these trials, and how often a change went for each reason.
    fn answers(&self, trials: impl Iterator<Item = u64>) -> (u64, [u64; 3]) {
        let (mut wrong, mut whys) = (0, [0; 3]);
        for trial in trials {
            let seed = 1_000_003 * trial + 17;
            let mut scene = self.scene;
            (self.vary)(&mut scene, &mut Pcg32::seed_from_u64(seed ^ 0xface));
            let outcome = watch(scene, MonitorRules::default(), self.seconds, seed);
            wrong += u64::from((self.wrong)(&outcome, &scene));
            if let Some((_, why)) = &outcome.left {
                whys[match why {
                    Leave::Victims(_) => 0,
                    Leave::NoGain(_) => 1,
                    Leave::Loss(_) => 2,
                }] += 1;
            }
        }
        (wrong, whys)
    }
}

fn gone(outcome: &Outcome, _: &Scene) -> bool {
    outcome.left.is_some()
}

fn in_force(outcome: &Outcome, _: &Scene) -> bool {
    outcome.left.is_none()
}

fn uncovered(outcome: &Outcome, _: &Scene) -> bool {
    !outcome.covered
}

/// Still in force an hour after the gain vanished, or gone before that.
fn not_within_an_hour(outcome: &Outcome, scene: &Scene) -> bool {
    outcome.left.as_ref().is_none_or(|(at, _)| *at > scene.vanishes_s + HOUR || *at < scene.vanishes_s)
}

fn same(_: &mut Scene, _: &mut Pcg32) {}

fn halves_sometime(scene: &mut Scene, rng: &mut Pcg32) {
    scene.halves_s = rng.random_range(-20.0..2.0 * HOUR);
}

fn vanishes_sometime(scene: &mut Scene, rng: &mut Pcg32) {
    scene.vanishes_s = rng.random_range(60.0..8.0 * HOUR);
}

fn questions() -> Vec<Question> {
    let base = Scene::default();
    let rough = |tasks| Scene {
        tasks,
        noise: 0.08,
        task_noise: 0.3,
        correlation: 0.5,
        heavy: true,
        drift: 0.01,
        turnover: true,
        ..base
    };
    let mut all = Vec::new();
    let mut ask = |name: String, scene, seconds, limit, wrong: Wrong, vary| {
        all.push(Question { name, scene, seconds, limit, wrong, vary });
    };
    for tasks in [10, 50, 200] {
        let scene = Scene { tasks, ..base };
        ask(format!("harmless, {tasks} tasks: gone in 2 h"), scene, 2.0 * HOUR, 0.05, gone, same);
    }
    for (name, scene) in [
        ("AR 0.5", Scene { correlation: 0.5, ..base }),
        ("t3 tails", Scene { heavy: true, ..base }),
        ("drift 1 %/min", Scene { drift: 0.01, ..base }),
        ("task noise 40 %", Scene { task_noise: 0.4, ..base }),
        ("noise 8 %", Scene { noise: 0.08, ..base }),
        ("tasks start, end", Scene { turnover: true, ..base }),
        ("fades, 1 s", Scene { fade_s: 1.0, ..base }),
        ("worst corner", rough(10)),
        ("worst corner, 50", rough(50)),
        ("worst corner, 200", rough(200)),
    ] {
        ask(format!("harmless, {name}: gone in 2 h"), scene, 2.0 * HOUR, 0.05, gone, same);
    }
    for tasks in [10, 50, 200] {
        let scene = Scene { tasks, ..base };
        ask(
            format!("own demand halves, {tasks}: gone in 2 h"),
            scene,
            2.0 * HOUR,
            0.05,
            gone,
            halves_sometime,
        );
    }
    for tasks in [10, 50, 200] {
        for (name, limit, loss, waits) in
            [("CPU -40 %", 0.02, 0.4, 1.0), ("CPU -20 %", 0.10, 0.2, 1.0), ("waits x6", 0.02, 0.0, 6.0)]
        {
            let scene = Scene { tasks, loss, waits, ..base };
            ask(format!("one of {tasks}, {name}: there after 2 min"), scene, 120.0, limit, in_force, same);
            let scene = Scene { correlation: 0.5, heavy: true, ..scene };
            let name = format!("one of {tasks}, {name}, AR 0.5, t3: there after 2 min");
            ask(name, scene, 120.0, limit, in_force, same);
        }
    }
    for (gain, noise) in [(0.08, 0.02), (0.08, 0.04), (0.05, 0.04), (0.08, 0.08)] {
        let scene = Scene { gain, noise, ..base };
        let name =
            format!("gain {:.0} % vanishes, noise {:.0} %: not gone in 1 h", gain * 100.0, noise * 100.0);
        ask(name, scene, 9.0 * HOUR, 0.10, not_within_an_hour, vanishes_sometime);
    }
    let scene = Scene { gain: 0.05, ..base };
    ask("gain 5 % stays: gone in 24 h".into(), scene, 24.0 * HOUR, 0.05, gone, same);
    let scene = Scene { correlation: 0.5, heavy: true, turnover: true, ..scene };
    ask("gain 5 % stays, AR 0.5, t3: gone in 24 h".into(), scene, 24.0 * HOUR, 0.05, gone, same);
    for (name, scene) in [("", base), (", AR 0.5, t3", Scene { correlation: 0.5, heavy: true, ..base })] {
        ask(format!("truth outside the interval in 8 h{name}"), scene, 8.0 * HOUR, 0.05, uncovered, same);
    }
    all
}

/// One row after the other, each with so many trials; those whose name has this in it.
pub fn run(trials: u64, threads: u64, only: &str, mut each: impl FnMut(&Row)) {
    for question in questions().iter().filter(|q| q.name.contains(only)) {
        let mut row =
            Row { name: question.name.clone(), trials, wrong: 0, limit: question.limit, note: String::new() };
        let mut whys = [0u64; 3];
        let ended = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|first| scope.spawn(move || question.answers((first..trials).step_by(threads as usize))))
                .collect();
            workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for (wrong, went) in ended.into_iter().flatten() {
            row.wrong += wrong;
            whys.iter_mut().zip(went).for_each(|(all, some)| *all += some);
        }
        row.note = format!("victims {}, no gain {}, loss {}", whys[0], whys[1], whys[2]);
        each(&row);
    }
    // Whole days and hours: only what is asked for is computed.
    let asked = |name: &str| only.is_empty() || name.contains(only) || only.contains(name);
    let costs = asked(COST).then(|| costs(trials.div_ceil(20)));
    let online = asked(DAY).then(|| online(trials.div_ceil(100)));
    costs
        .into_iter()
        .chain(online)
        .flatten()
        .filter(|row| row.name.contains(only))
        .for_each(|row| each(&row));
}

/// What the blocks cost, of the gain, over four hours, against their share of the time.
fn costs(trials: u64) -> Vec<Row> {
    [0.0f64, 0.3, 1.0, 3.0]
        .into_iter()
        .map(|fade_s| {
            let mut row = Row {
                name: format!("{COST} > 1.3 x its share, fades {fade_s} s"),
                trials,
                wrong: 0,
                limit: 0.05,
                note: String::new(),
            };
            let settle_s = (2.0 * fade_s).max(0.3);
            let rules = MonitorRules {
                holdout: HoldoutRules { settle_s, ..HoldoutRules::default() },
                ..MonitorRules::default()
            };
            let mut worst: f64 = 0.0;
            for seed in 0..trials {
                let outcome = watch(Scene { fade_s, ..Scene::default() }, rules, 4.0 * HOUR, seed);
                let ratio = outcome.lost / outcome.share;
                worst = worst.max(ratio);
                row.wrong += u64::from(ratio > 1.3);
            }
            row.note = format!("at most {worst:.2}");
            row
        })
        .collect()
}

/// Days of 300 decisions, 90 % without effect: false keeps, and a real effect from decision 200 on that is found. Each is a
/// whole trial, from screening to the last look, with the error budget that is left for it.
fn online(days: u64) -> Vec<Row> {
    let kinds = [("", false, true), (", t3", true, true), (", none before", false, false)];
    let of = |(name, heavy, early): (&str, bool, bool)| {
        let (mut kept, mut wrong, mut real, mut missed) = (0, 0, 0, 0);
        // Share of a day's keeps that are false, summed over days: the rate that is controlled.
        let mut share = 0.0;
        for day in 0..days {
            let mut rng = Pcg32::seed_from_u64(day + 99);
            let mut control = OnlineControl::new(0.1);
            let (mut day_kept, mut day_wrong) = (0u64, 0u64);
            for decision in 0..300 {
                let helps = (early || decision >= 200) && rng.random_bool(0.1);
                let scene = Decided { gain: if helps { 0.08 } else { 0.0 }, heavy, ..Decided::default() };
                let winner = decide_at(&scene, rng.random(), control.alpha().min(0.05)).decision.winner;
                control.decided(winner != 0);
                day_kept += u64::from(winner != 0);
                // Only the first candidate ever helps.
                day_wrong += u64::from(winner != 0 && !(helps && winner == 1));
                if helps && decision >= 200 {
                    real += 1;
                    missed += u64::from(winner != 1);
                }
            }
            kept += day_kept;
            wrong += day_wrong;
            share += day_wrong as f64 / day_kept.max(1) as f64;
        }
        let note = format!("{:.2} % a day on average", 100.0 * share / days as f64);
        let name = |what| format!("{DAY}{name}: {what}");
        [
            Row { name: name("false of kept"), trials: kept, wrong, limit: 0.10, note },
            Row {
                name: name("8 % from the 200th on missed"),
                trials: real,
                wrong: missed,
                limit: 0.20,
                note: String::new(),
            },
        ]
    };
    std::thread::scope(|scope| {
        let kinds: Vec<_> = kinds.into_iter().map(|kind| scope.spawn(move || of(kind))).collect();
        kinds.into_iter().filter_map(|kind| kind.join().ok()).flatten().collect()
    })
}
