//! Many antagonists, one after the other, and the figures.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::{Rng, SeedableRng};

use super::inject::{Injected, Kind, Scene, now_s};
use super::judge::{Readings, named, reading};
use super::watching;

/// Within this it must be named, seconds.
const WITHIN_S: f64 = 10.0;
/// A reading of the counters may be this late, seconds: what follows an antagonist for so long is still its own.
const LATE_S: f64 = 6.5;
/// Share that must be named right.
const GOAL: f64 = 0.99;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What came of it.
#[derive(Default)]
struct Score {
    right: usize,
    /// Of all culprits, others' work on this host included.
    right_of_all: usize,
    by_kind: BTreeMap<Kind, (usize, usize)>,
    seconds: Vec<f64>,
    quiet_s: f64,
    falsely: Vec<String>,
    outsiders: BTreeMap<String, usize>,
}

pub fn run(count: usize) {
    let seed = number("EVENKEEL_ANTAGONISTS_SEED", now_s() as u64);
    let quiet = Duration::from_secs(60 * number("EVENKEEL_ANTAGONISTS_QUIET", 0));
    let path = std::env::var("EVENKEEL_ANTAGONISTS_LOG")
        .unwrap_or_else(|_| concat!(env!("CARGO_TARGET_TMPDIR"), "/antagonists.jsonl").to_owned());
    println!("{count} antagonists, EVENKEEL_ANTAGONISTS_SEED={seed}, the injector's log: {path}");
    let mut log = std::fs::File::create(&path).unwrap();
    let mut rng = rand_pcg::Pcg64::seed_from_u64(seed);
    let mut scene = Scene::start();
    let serve = watching();
    let victim = scene.victim();
    let readings = Arc::new(Mutex::new(Readings::default()));
    let mut score = Score::default();
    reading(&serve, &victim, &readings, || {
        let mut calm_from = now_s() + LATE_S;
        for at in 0..count {
            std::thread::sleep(Duration::from_secs_f64(rng.random_range(8.0..14.0)));
            score.judge_quiet(&readings.lock().unwrap(), &scene, (calm_from, now_s()));
            let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
            let one = scene.inject(kind, Duration::from_secs_f64(rng.random_range(8.0..12.0)), &mut rng);
            writeln!(log, "{}", one.line()).unwrap();
            // What was read until ten seconds after its beginning counts.
            let rest = one.start_s + WITHIN_S + 1.0 - now_s();
            std::thread::sleep(Duration::from_secs_f64(rest.max(0.0)));
            score.judge(&readings.lock().unwrap(), &scene, at + 1, &one);
            calm_from = one.end_s + LATE_S;
        }
        std::thread::sleep(Duration::from_secs_f64(LATE_S) + quiet);
        score.judge_quiet(&readings.lock().unwrap(), &scene, (calm_from, now_s()));
    });
    score.report(count);
}

impl Score {
    fn judge(&mut self, readings: &Readings, scene: &Scene, number: usize, one: &Injected) {
        let victim = scene.victim();
        let until = one.start_s + WITHIN_S;
        let grown = readings.grown(one.start_s, until);
        let is_right = |time: f64| {
            named(&readings.grown(one.start_s, time), |who| scene.is_ours(who)) == Some(one.name.as_str())
        };
        let first = readings.times(one.start_s, until).into_iter().find(|time| is_right(*time));
        // It must still be who is named at the end.
        let right = is_right(until);
        let of_all = named(&grown, |who| who != victim) == Some(one.name.as_str());
        self.right += usize::from(right);
        self.right_of_all += usize::from(of_all);
        let (all, found) = self.by_kind.entry(one.kind).or_default();
        *all += 1;
        *found += usize::from(right);
        self.seconds.extend(first.filter(|_| right).map(|time| time - one.start_s));
        let mut top: Vec<_> = grown.iter().filter(|(_, seconds)| **seconds > 0.02).collect();
        top.sort_by(|a, b| b.1.total_cmp(a.1));
        let top: Vec<_> = top.iter().take(4).map(|(who, seconds)| format!("{who} {seconds:.2} s")).collect();
        let word = if right { "right" } else { "WRONG" };
        println!("{number:3} {:14} {word}  {} | {}", one.kind.name(), one.name, top.join(", "));
    }

    /// Whoever is named in the quiet between is named falsely, if it is one of ours.
    fn judge_quiet(&mut self, readings: &Readings, scene: &Scene, (from_s, to_s): (f64, f64)) {
        let victim = scene.victim();
        let mut begin = from_s;
        while begin < to_s {
            let end = (begin + WITHIN_S).min(to_s);
            self.quiet_s += end - begin;
            let grown = readings.grown(begin, end);
            if let Some(who) = named(&grown, |who| scene.is_ours(who)) {
                println!("    FALSE after {begin:.1}: {who} {:.2} s", grown[who]);
                self.falsely.push(who.to_owned());
            } else if let Some(who) = named(&grown, |who| who != victim) {
                *self.outsiders.entry(who.to_owned()).or_default() += 1;
            }
            begin = end;
        }
    }

    fn report(mut self, count: usize) {
        self.seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (self.seconds.len() as f64 * share) as usize;
            self.seconds.get(index.min(self.seconds.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
        };
        for (kind, (all, right)) in &self.by_kind {
            println!("{:14} {right} of {all}", kind.name());
        }
        println!("named right within {WITHIN_S} s: {} of {count} (goal: 99 %)", self.right);
        println!("  others on this host counted, too: {} of {count}", self.right_of_all);
        println!("  after: median {:.1} s, p95 {:.1} s", at(0.5), at(0.95));
        let minutes = self.quiet_s / 60.0;
        println!("named falsely: {} in {minutes:.1} quiet minutes (goal: 1 in 60)", self.falsely.len());
        println!("  others on this host named in quiet spans: {:?}", self.outsiders);
        assert!(self.right as f64 >= GOAL * count as f64, "{} of {count} were named right", self.right);
        assert!(self.falsely.len() as f64 <= (minutes / 60.0).max(1.0), "named falsely: {:?}", self.falsely);
    }
}
