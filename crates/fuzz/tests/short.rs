//! The short form: every sample once, then drawn changes of them, a fraction of a second a target.
//!
//! `FUZZ_MS` is the time for each target (50), `FUZZ_TARGETS` names some, `FUZZ_SEED` draws the same changes again; `make fuzz` is
//! the long form.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_fuzz::{LONGEST, Target, check, corpus, mutate, targets};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

fn new_seed() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos())
}

/// Samples and what was found before: what failed once never fails again.
#[test]
fn every_sample_passes() {
    let mut wrong = Vec::new();
    for target in targets::all() {
        for (path, bytes) in corpus::samples(target).unwrap() {
            if let Err(fault) = check::check(target, &bytes) {
                wrong.push(format!("{} with {}: {fault}", target.name, path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn drawn_changes_pass() {
    let seed = number("FUZZ_SEED").unwrap_or_else(|| u64::from(new_seed()));
    let time = Duration::from_millis(number("FUZZ_MS").unwrap_or(50));
    println!("FUZZ_SEED={seed}");
    let mut wrong = Vec::new();
    check::keep_panics_quiet();
    let named = std::env::var("FUZZ_TARGETS").unwrap_or_default();
    let chosen = |target: &&Target| named.is_empty() || named.split(' ').any(|name| name == target.name);
    for target in targets::all().filter(chosen) {
        if let Some(fault) = draw(target, seed, time) {
            wrong.push(fault);
        }
    }
    // Panics are quiet here: what they say would be lost.
    println!("{}", wrong.join("\n"));
    assert!(wrong.is_empty());
}

fn draw(target: &Target, seed: u64, time: Duration) -> Option<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut inputs: Vec<Vec<u8>> =
        corpus::samples(target).unwrap().into_iter().map(|(_, bytes)| bytes).collect();
    inputs.push(Vec::new());
    let until = Instant::now() + time;
    while Instant::now() < until {
        let input = inputs.choose(&mut random).cloned().unwrap_or_default();
        let input = mutate::change(&input, &inputs, LONGEST, &mut random);
        if let Err(fault) = check::check(target, &input) {
            let small = check::smallest(target, &input);
            let kept = corpus::keep(target, &small).unwrap();
            return Some(format!("{} with {}: {fault}", target.name, kept.display()));
        }
    }
    None
}
