//! Trials of background work next to a service, whose delays count first.

use rand::Rng;

use super::tests::{PACE, summary};
use super::*;

/// A trial for a service whose long waits are so many ms under each candidate, while background work gets so much.
fn serve(truth: &[(f64, f64)], rules: TrialRules, seed: u64) -> Decision {
    let service =
        LatencyTarget { name: "cgroup:/api".to_owned(), wait_p99_ns: None, ..LatencyTarget::default() };
    let mut trial = Trial::new(truth.len() - 1, TrialRules { seed, ..rules }, PACE.for_services())
        .protecting(vec![service], 0);
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut left_s = 200.0;
    while let Some(turn) = trial.next(left_s) {
        left_s -= turn.settle_s + turn.window_s;
        let (ms, got) = truth[turn.candidate];
        let mut waits = Histogram::default();
        waits.add_many(5_000, 3000);
        for _ in 0..rng.random_range(15..30) {
            waits.add((ms * rng.random_range(0.5..2.0) * 1e6) as u64);
        }
        trial.record(summary(got + rng.random_range(-2.0..2.0), 100.0), vec![Some(waits)]);
    }
    trial.decide()
}

#[test]
fn services_come_before_the_cpu_of_background_work() {
    for seed in 0..10 {
        let decision = serve(&[(3.0, 190.0), (0.3, 170.0), (3.0, 199.0)], TrialRules::default(), seed);
        let verdict = &decision.verdicts[1];
        assert!(verdict.kept && verdict.evidence >= 20.0, "{seed}: {decision:?}");
        assert!(verdict.why.contains("requests are delayed at least"), "{}", verdict.why);
        let gain = verdict.score_gain.unwrap();
        // Ten times shorter waits are more than ten times shorter delays: most instants meet none at all.
        assert!(gain.low > 1.0 && gain.value > 10f64.ln(), "{gain:?}");
        let cpu = verdict.gain_pct.unwrap();
        assert!((cpu.value + 20.0).abs() < 2.0, "what background work loses is said: {cpu:?}");
        // More CPU for background work is no gain.
        assert_eq!(serve(&[(3.0, 150.0), (3.0, 190.0)], TrialRules::default(), seed).winner, 0, "{seed}");
    }
}

#[test]
fn of_those_that_serve_alike_the_one_that_leaves_background_work_most() {
    let first = |seed| serve(&[(3.0, 190.0), (0.3, 150.0), (0.3, 188.0)], TrialRules::default(), seed).winner;
    assert!((0..10).filter(|seed| first(*seed) == 2).count() >= 9);
    // There was time enough for the other one.
    let decision = serve(&[(3.0, 190.0), (0.3, 150.0), (0.3, 188.0)], TrialRules::default(), 1);
    assert_eq!(decision.winner, 2);
    assert_eq!(decision.verdicts[1].why, "taken back: another was confirmed before it");
}

#[test]
fn background_work_keeps_its_least_share() {
    let least = |least_pct| TrialRules { least_pct, ..TrialRules::default() };
    let decision = |rules| serve(&[(3.0, 190.0), (0.3, 120.0)], rules, 4);
    assert_eq!(decision(least(100.0)).winner, 1);
    let starved = decision(least(140.0));
    assert_eq!(starved.winner, 0);
    let why = &starved.verdicts[1].why;
    assert!(["gets 119 ", "gets 120 ", "gets 121 "].iter().any(|about| why.contains(about)), "{why}");
    // What it did not have before cannot be kept.
    let poor = |got: f64| {
        let kept = |seed: &u64| serve(&[(3.0, 100.0), (0.3, got)], least(140.0), *seed).winner == 1;
        (0..20).filter(kept).count()
    };
    assert!(poor(100.0) >= 19, "{}", poor(100.0));
    assert_eq!(poor(80.0), 0, "less than it has is not asked of it either");
}
