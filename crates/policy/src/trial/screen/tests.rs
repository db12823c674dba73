use super::*;
use crate::trial::tests::{PACE, summary};
use crate::trial::{Pace, TrialRules};
use crate::window::Summary;

/// A trial of so many challengers that has the windows of the present state, 100 give or take 1.
fn trial(challengers: usize) -> Trial {
    let mut trial = Trial::new(challengers, TrialRules::default(), PACE);
    trial.entries[0].windows = [99.0, 101.0].repeat(4).into_iter().map(|got| summary(got, 0.0)).collect();
    trial.lead = 8;
    trial
}

/// And a window of each challenger, or two of this mean.
fn screened(means: &[f64], rounds: usize, favoured: Option<usize>) -> (Trial, Phase) {
    let mut trial = trial(means.len());
    for (entry, mean) in trial.entries[1..].iter_mut().zip(means) {
        let of = if rounds == 1 { vec![*mean] } else { vec![mean - 1.0, mean + 1.0] };
        entry.windows = of.into_iter().map(|got| summary(got, 0.0)).collect();
    }
    trial.favour(favoured);
    let phase = trial.screened(rounds);
    (trial, phase)
}

/// Who is confirmed, in order, with shares of the error budget of one in a hundred.
fn confirmed(phase: &Phase) -> Vec<(usize, f64)> {
    let Phase::Confirm(first, rest) = phase else { return Vec::new() };
    let all = [(first.candidate(), first.alpha())].into_iter().chain(rest.iter().copied());
    all.map(|(candidate, alpha)| (candidate, (1e4 * alpha).round() / 100.0)).collect()
}

#[test]
fn how_screening_begins() {
    let begun = |challengers: usize, pace: Pace| {
        let mut trial = trial(challengers);
        trial.objective = super::super::Objective::new(0.1, pace.services);
        match trial.begin_screening() {
            Phase::Screen(mut turns, rounds) => {
                turns.sort_unstable();
                (turns, Some(rounds))
            }
            Phase::Confirm(first, _) => (vec![first.candidate()], None),
            _ => (Vec::new(), None),
        }
    };
    assert_eq!(begun(2, PACE), (vec![1, 2], Some(0)));
    assert_eq!(begun(1, PACE), (vec![1], Some(1)), "one window tells how often tasks wait");
    assert_eq!(begun(1, PACE.for_services()), (vec![1], None), "background work may wait");
    assert_eq!(begun(2, PACE.for_services()), (vec![1, 2], Some(0)));
    let mut nobody = trial(1);
    nobody.withdraw(1, "not permitted".to_owned());
    assert!(matches!(nobody.begin_screening(), Phase::Over));
}

#[test]
fn a_second_round_is_for_those_that_are_not_far_behind() {
    let left = |means: &[f64], favoured: Option<usize>| {
        let (trial, phase) = screened(means, 1, favoured);
        let Phase::Screen(mut turns, 1) = phase else { panic!("{phase:?}") };
        turns.sort_unstable();
        assert_eq!(turns, trial.challengers());
        turns
    };
    // Windows differ by sqrt(8/7); three times that is 3.2.
    assert_eq!(left(&[120.0, 116.9, 116.7], None), [1, 2]);
    assert_eq!(left(&[120.0, 116.9, 116.7], Some(3)), [1, 2, 3], "the favoured one may have been unlucky");
    assert_eq!(left(&[120.0, 119.9, 119.8, 119.6, 119.7, 119.5], None), [1, 2, 3, 5], "four at most");
    assert_eq!(left(&[120.0, 119.9, 119.8, 119.6, 119.7, 119.5], Some(6)), [1, 2, 3, 5, 6]);
}

#[test]
fn after_the_last_round_the_best_are_confirmed_and_who_is_clearly_worse_is_not() {
    let outcome = |means: &[f64], favoured: Option<usize>| {
        let (trial, phase) = screened(means, 2, favoured);
        let out = trial.entries[1..].iter().map(|entry| entry.out.clone().unwrap_or_default());
        (confirmed(&phase), out.collect::<Vec<_>>())
    };
    let (worse, behind) = ("worse than the present state", "behind others in screening");
    // Of windows that differ by 1.15, two of each differ by 2.31 where it is clear, and from the eight before by 1.83.
    assert_eq!(outcome(&[101.0, 98.8], None), (vec![(1, 4.0), (2, 1.0)], vec![String::new(); 2]));
    assert_eq!(outcome(&[101.0, 98.3], None), (vec![(1, 5.0)], vec![String::new(), behind.to_owned()]));
    assert_eq!(outcome(&[101.0, 98.0], None), (vec![(1, 5.0)], vec![String::new(), worse.to_owned()]));
    assert_eq!(outcome(&[98.3, 97.0], None), (vec![(1, 5.0)], vec![String::new(), worse.to_owned()]));
    assert_eq!(outcome(&[97.0, 98.0], None), (vec![], vec![worse.to_owned(); 2]));
    assert_eq!(outcome(&[101.0, 98.8], Some(2)).0, [(2, 4.0), (1, 1.0)], "what the user named comes first");
    assert_eq!(outcome(&[101.0, 98.3], Some(2)).0, [(1, 5.0)], "unless it is clearly behind");
    // One alone is confirmed however it looks.
    assert_eq!(confirmed(&screened(&[97.0], 2, None).1), [(1, 5.0)]);
}

#[test]
fn among_those_that_serve_alike_background_work_decides() {
    let mut trial = trial(3);
    trial.objective = super::super::Objective::new(0.1, true);
    let windows = |delays: f64, got: f64| {
        [0.01, -0.01].map(|off| Summary { services: Some(delays + off), ..summary(got, 0.0) }).to_vec()
    };
    for (entry, (delays, got)) in
        trial.entries.iter_mut().zip([(2.0, 200.0), (1.0, 150.0), (1.1, 190.0), (1.3, 199.0)])
    {
        entry.windows = windows(delays, got);
    }
    trial.lead = 2;
    let phase = trial.screened(2);
    assert_eq!(confirmed(&phase)[0].0, 2);
}

#[test]
fn so_many_windows_or_as_many_as_the_time_holds() {
    let windows = |window_s, least| Pace::new(window_s, 0.1).windows(least, 24.0);
    assert_eq!((windows(1.0, 30), windows(0.5, 30), windows(1.0, 4), windows(0.9, 4)), (30, 48, 24, 27));
}

#[test]
fn without_noise_ties_are_no_differences() {
    let outcome = |means: &[f64]| {
        let mut trial = trial(means.len());
        trial.entries[0].windows = vec![summary(100.0, 0.0); 8];
        for (entry, mean) in trial.entries[1..].iter_mut().zip(means) {
            entry.windows = vec![summary(*mean, 0.0); 2];
        }
        confirmed(&trial.screened(2))
    };
    assert_eq!(outcome(&[110.0, 110.0]), [(1, 4.0), (2, 1.0)]);
    assert_eq!(outcome(&[100.0, 110.0]), [(2, 5.0)]);
    assert_eq!(outcome(&[100.0, 100.0]), [(1, 4.0), (2, 1.0)], "as good as the present state is not worse");
}

#[test]
fn a_fifth_in_the_logarithm_of_delays_is_alike() {
    let first = |delays: f64| {
        let mut trial = trial(2);
        trial.objective = super::super::Objective::new(0.1, true);
        let entries = trial.entries.iter_mut().zip([(1.0, 200.0), (0.0, 150.0), (delays, 190.0)]);
        for (entry, (delays, got)) in entries {
            entry.windows = vec![Summary { services: Some(delays), ..summary(got, 0.0) }; 2];
        }
        trial.lead = 2;
        confirmed(&trial.screened(2))[0].0
    };
    assert_eq!((first(0.2), first(0.2f64.next_up())), (2, 1));
}

#[test]
fn who_makes_the_protected_wait_comes_last_whoever_else_may_hurt() {
    let target = crate::protect::LatencyTarget { wait_p99_ns: Some(1_000_000), ..Default::default() };
    let mut trial = trial(3).protecting(vec![target], 0);
    for (entry, (got, ns)) in trial.entries[..].iter_mut().zip([
        (100.0, 100_000),
        (130.0, 50_000_000),
        (110.0, 100_000),
        (120.0, 100_000),
    ]) {
        let mut waits = evenkeel_base::Histogram::default();
        waits.add_many(ns, 1000);
        entry.protected = vec![vec![waits]];
        entry.windows.push(summary(got, 0.0));
    }
    let order = |trial: &Trial| trial.ranked().iter().map(|(c, _)| *c).collect::<Vec<_>>();
    assert_eq!(order(&trial), [3, 2, 1]);
    trial.suspect(3);
    assert_eq!(order(&trial), [2, 3, 1]);
    trial.suspect(2);
    assert_eq!(order(&trial), [3, 2, 1]);
}
