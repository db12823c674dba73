use super::*;
use crate::window::Rates;
use evenkeel_base::TaskId;
use proptest::prelude::*;
use rand::Rng;

fn summary(got: f64, waited: f64) -> Summary {
    let id = TaskId { tgid: 1, tid: 1, start_time: 1 };
    Summary {
        seconds: 1.0,
        got_pct: got,
        waited_pct: waited,
        fulfilment: Some(got / (got + waited)),
        tasks: [(id, Rates { got_pct: got, waited_pct: Some(waited), in_scope: true })].into(),
        outside_pct: None,
    }
}

/// Runs a race in which candidate `c` gets `truth[c]` (got, waited) with uniform noise of +-`noise`.
fn run(truth: &[(f64, f64)], noise: f64, seed: u64) -> Decision {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut race = Race::new(truth.len() - 1, RaceRules { seed, ..RaceRules::default() });
    while let Some(c) = race.up() {
        let jitter = rng.random_range(-noise..=noise);
        race.record(summary(truth[c].0 + jitter, truth[c].1));
    }
    race.decide()
}

#[test]
fn the_clear_winner_wins_and_the_recipe_that_hurts_is_taken_back() {
    let decision = run(&[(120.0, 30.0), (105.0, 40.0), (146.0, 20.0)], 2.0, 1);
    assert_eq!(decision.winner, 2, "{decision:?}");
    assert!(decision.verdicts[1].why.starts_with("taken back"));
}

#[test]
fn doing_nothing_wins_when_nothing_helps() {
    let decision = run(&[(150.0, 30.0), (150.0, 30.0), (149.0, 31.0)], 3.0, 2);
    assert_eq!(decision.winner, 0, "{decision:?}");
    assert!(decision.verdicts[0].why.contains("nothing tried beats it"));
}

#[test]
fn equal_cpu_with_much_shorter_waits_is_better() {
    let decision = run(&[(50.0, 30.0), (50.0, 10.0)], 0.2, 3);
    assert_eq!(decision.winner, 1, "{decision:?}");
}

#[test]
fn more_cpu_for_all_is_refused_when_one_waits_thrice_as_long() {
    let decision = run(&[(50.0, 10.0), (60.0, 40.0)], 0.5, 4);
    assert_eq!(decision.winner, 0, "{decision:?}");
    assert!(decision.verdicts[1].why.contains("waits"), "{}", decision.verdicts[1].why);
}

#[test]
fn focusing_keeps_who_is_ahead() {
    let truth = [(100.0, 10.0), (90.0, 10.0), (106.0, 10.0), (104.0, 10.0), (103.0, 10.0)];
    let rules = RaceRules { min_rounds: 6, ..RaceRules::default() };
    let mut race = Race::new(4, rules);
    let mut rng = Pcg32::seed_from_u64(5);
    while race.rounds() < 2 {
        let c = race.up().unwrap();
        race.record(summary(truth[c].0 + rng.random_range(-0.5..0.5), truth[c].1));
    }
    race.focus(2);
    assert!(race.alive().contains(&0) && race.alive().contains(&2) && race.alive().len() <= 3);
    assert!(!race.alive().contains(&1));
}

#[test]
fn of_many_the_best_go_on() {
    let truth: Vec<(f64, f64)> = (0..8).map(|c| (100.0 + f64::from(c), 10.0)).collect();
    let rules = RaceRules { min_rounds: 9, ..RaceRules::default() };
    let mut race = Race::new(7, rules);
    let mut rng = Pcg32::seed_from_u64(6);
    while race.rounds() < 4 {
        let c = race.up().unwrap();
        race.record(summary(truth[c].0 + rng.random_range(-0.2..0.2), truth[c].1));
    }
    let alive = race.alive();
    assert!(alive.contains(&0) && alive.contains(&7) && alive.len() <= 3, "{alive:?}");
    assert!(race.decide().verdicts[1].why.contains("behind") || alive.contains(&1));
}

#[test]
fn what_the_user_allowed_by_name_is_not_lost_to_chance() {
    let race = |got: f64| {
        let mut race = Race::new(8, RaceRules::default());
        race.favour(Some(8));
        let mut rng = Pcg32::seed_from_u64(8);
        while let Some(c) = race.up() {
            // Its first windows are unlucky.
            let luck = if c == 8 && race.rounds() < 2 { -2.0 } else { 0.0 };
            let chance = rng.random_range(-2.0..2.0) + luck;
            let got = if c == 8 { got } else { 100.0 + c as f64 / 2.0 };
            race.record(summary(got + chance, 10.0));
        }
        race.decide()
    };
    assert_eq!(race(104.5).winner, 8, "as good as the best as far as is known");
    let decision = race(99.0);
    assert!(![0, 8].contains(&decision.winner), "known to be worse: {decision:?}");
}

#[test]
fn a_favoured_candidate_is_open_until_it_wins_or_is_known_to_be_worse() {
    let mut race = Race::new(2, RaceRules { min_rounds: 9, ..RaceRules::default() });
    assert!(!race.favoured_is_open(), "nobody is");
    race.favour(Some(2));
    let mut rng = Pcg32::seed_from_u64(9);
    let mut rounds = |race: &mut Race, until: usize, favoured: f64| {
        while let Some(c) = race.up().filter(|_| race.rounds() < until) {
            let got = [100.0, 110.0, favoured][c];
            race.record(summary(got + rng.random_range(-1.0..1.0), 10.0));
        }
    };
    rounds(&mut race, 1, 110.0);
    assert!(race.favoured_is_open(), "one window each tells nothing");
    let mut worse = Race::new(2, RaceRules { min_rounds: 9, ..RaceRules::default() });
    worse.favour(Some(2));
    rounds(&mut worse, 6, 103.0);
    assert!(!worse.favoured_is_open(), "known to be worse than what would win");
    rounds(&mut race, 6, 110.0);
    assert_eq!(race.decide().winner, 2);
    assert!(!race.favoured_is_open(), "it wins");
}

#[test]
fn a_withdrawn_candidate_never_wins() {
    let mut race = Race::new(1, RaceRules::default());
    race.withdraw(1, "permission denied".into());
    assert_eq!(race.up(), None);
    assert_eq!(race.decide().winner, 0);
}

proptest! {
    /// Among equals the present state must nearly always stay: at most the few false alarms the intervals allow,
    /// and a false alarm harms nobody, for it is among equals.
    #[test]
    fn a_worse_candidate_is_never_kept(seed in 0u64..300, loss in 3.0f64..30.0) {
        let decision = run(&[(150.0, 30.0), (150.0 - loss, 30.0)], 2.0, seed);
        prop_assert_eq!(decision.winner, 0);
    }

    #[test]
    fn a_race_always_ends(n in 1usize..6, seed in 0u64..50) {
        let decision = run(&vec![(100.0, 10.0); n], 1.0, seed);
        prop_assert!(decision.rounds <= RaceRules::default().max_rounds);
    }
}

/// Runs a race of (got, waited, 99th percentile of the protected scope's waits in ms) with candidate `default` as found.
fn protected(truth: &[(f64, f64, f64)], bound_ms: Option<f64>, default: usize, seed: u64) -> Decision {
    let mut rng = Pcg32::seed_from_u64(seed);
    let bound = bound_ms.map(|ms| (ms * 1e6) as u64);
    let protection = Protection { name: "container:web".into(), wait_p99_ns: bound };
    let mut race = Race::new(truth.len() - 1, RaceRules { seed, ..RaceRules::default() })
        .protecting(vec![protection], default);
    while let Some(c) = race.up() {
        let (got, waited, p99_ms) = truth[c];
        let mean = p99_ms * 1e6 / 100f64.ln() * rng.random_range(0.95..1.05);
        let mut waits = Histogram::default();
        for _ in 0..300 {
            waits.add((-mean * rng.random_range(1e-9f64..1.0).ln()) as u64);
        }
        race.record_protected(vec![Some(waits)]);
        race.record(summary(got + rng.random_range(-1.0..1.0), waited));
    }
    race.decide()
}

#[test]
fn the_protected_decide_between_candidates() {
    // The second gets the others more, but the protected service then waits five times as long.
    let truth = [(120.0, 30.0, 1.0), (146.0, 20.0, 5.0), (135.0, 20.0, 1.2)];
    for bound in [None, Some(2.0)] {
        let decision = protected(&truth, bound, 0, 7);
        assert_eq!(decision.winner, 2, "{decision:?}");
        assert!(decision.verdicts[1].why.contains("container:web, which is protected"), "{decision:?}");
        assert!(decision.verdicts[2].why.contains("container:web waits"), "{decision:?}");
        assert!(decision.verdicts[2].protected_ns[0].is_some());
    }
    // A bound that both keep is none.
    assert_eq!(protected(&truth, Some(8.0), 0, 7).winner, 1);
}

#[test]
fn waits_that_cannot_be_measured_decide_nothing() {
    let protection = Protection { name: "pod:x".into(), wait_p99_ns: Some(1) };
    let mut race = Race::new(1, RaceRules::default()).protecting(vec![protection], 0);
    while let Some(c) = race.up() {
        race.record_protected(vec![None]);
        race.record(summary(100.0 + 20.0 * c as f64 + 0.1 * race.rounds() as f64, 10.0));
    }
    let decision = race.decide();
    assert_eq!((decision.winner, &decision.verdicts[1].protected_ns[..]), (1, &[None][..]), "{decision:?}");
}

#[test]
fn a_present_state_that_breaks_a_protection_is_given_up_for_the_host_as_found() {
    // The present state gives the others more than the host as found, which is candidate 1.
    let decision = protected(&[(146.0, 20.0, 9.0), (120.0, 30.0, 1.0)], None, 1, 3);
    assert_eq!(decision.winner, 1, "{decision:?}");
    assert!(decision.verdicts[0].why.starts_with("taken back: container:web"), "{decision:?}");
    // One that does not is kept.
    assert_eq!(protected(&[(146.0, 20.0, 1.1), (120.0, 30.0, 1.0)], None, 1, 3).winner, 0);
}

proptest! {
    /// Whatever it would bring the others: what lengthens the waits of the protected beyond the limit is not kept, and
    /// among what does not, the gain decides as ever.
    #[test]
    fn a_breach_is_never_kept(seed in 0u64..200, gain in 5.0f64..80.0, factor in 4.0f64..30.0) {
        let truth = [(100.0, 30.0, 1.0), (100.0 + gain, 20.0, factor)];
        for bound in [None, Some(2.0)] {
            prop_assert_eq!(protected(&truth, bound, 0, seed).winner, 0);
        }
        prop_assert_eq!(protected(&truth, Some(2.0 * factor), 0, seed).winner, 1);
    }
}
