use rand::SeedableRng;

use super::*;
use crate::trial::tests::{PACE, summary};
use crate::trial::{Phase, Trial};
use crate::window::Rates;
use evenkeel_base::{Histogram, TaskId};

#[test]
fn a_candidate_has_the_benefit_of_the_doubt_but_no_more() {
    let rules = TrialRules::default();
    let objective = Objective::new(rules.wait_price, false);
    let mut confirmation = Confirmation::new((1, 0.05), &rules, (&[], &[]), &objective, None);
    // A gain of half a point is worth a change; the mean is 0.1, its standard error 0.9, then 0.3.
    confirmation.baseline_got = vec![50.0; 5];
    confirmation.score_differences = vec![-2.0, 2.0, -2.0, 2.0, 0.5];
    assert!(!confirmation.hopeless(0.01), "0.1 and 0.7 times 0.9 is more than 0.5");
    for difference in &mut confirmation.score_differences {
        *difference = 0.1 + (*difference - 0.1) / 3.0;
    }
    assert!(confirmation.hopeless(0.01), "0.1 and 0.7 times 0.3 is less");
    confirmation.score_differences.pop();
    assert!(!confirmation.hopeless(0.01), "four pairs are too few to say so");
}

/// Of candidate 1, with these windows before anything was changed.
fn confirmation(lead: &[Summary]) -> Confirmation {
    let rules = TrialRules::default();
    Confirmation::new((1, 0.05), &rules, (lead, &[]), &Objective::new(rules.wait_price, false), None)
}

/// Takes in a pair of windows, the baseline's first, with these scores.
fn pair(confirmation: &mut Confirmation, old: f64, new: f64) {
    let mut rng = Pcg32::seed_from_u64(1);
    confirmation.order = vec![1, 0];
    confirmation.record(0, summary(old, 0.0), 0.0, &mut rng);
    confirmation.record(1, summary(new, 0.0), 0.0, &mut rng);
}

/// A few wild pairs move the mean, and hardly the bounds.
#[test]
fn no_more_than_the_estimate_is_claimed() {
    let mut wild = confirmation(&[]);
    (0..20).for_each(|at| {
        pair(&mut wild, 50.0, if at % 10 == 3 { 30.0 } else { 54.0 + 0.1 * f64::from(at % 3) })
    });
    let [gain, loss] = [1.0, -1.0].map(|sign| {
        let differences: Vec<f64> = wild.score_differences.iter().map(|gain| sign * gain).collect();
        wild.estimate(&differences).unwrap()
    });
    assert!(gain.value < 2.0 && gain.low == gain.value && gain.high > 3.0, "{gain:?}");
    assert_eq!((loss.low, loss.value, loss.high), (-gain.high, -gain.value, -gain.low));
}

fn fear(harm: Harm, proved: bool) -> Doubt {
    let (before, after) = if harm == Harm::Tail { (0.01, 0.5) } else { (1.0, 9.0) };
    Doubt { subject: Subject::Rest, harm, before, after, proved, detail: None }
}

#[test]
fn what_a_trial_tells_a_confirmation() {
    let begin = |default: usize, protections: usize, withdrawn: usize| -> Confirmation {
        let mut trial = Trial::new(2, TrialRules::default(), PACE)
            .protecting(vec![crate::protect::LatencyTarget::default(); protections], default);
        trial.withdraw(withdrawn, "not permitted".to_owned());
        let mut noise = 1.0;
        while let Some(turn) = trial.next(1e3) {
            assert!(turn.candidate == 0 || turn.candidate != withdrawn, "{turn:?}");
            if let Phase::Confirm(confirmation, rest) = &trial.phase {
                assert!(rest.is_empty());
                return *confirmation.clone();
            }
            noise = -noise;
            trial
                .record(summary([100.0, 120.0, 100.0][turn.candidate] + noise, 0.0), vec![None; protections]);
        }
        panic!("nothing is confirmed");
    };
    let confirmation = begin(0, 0, 2);
    // 8 windows of the present state, all one point off their mean, and one of the candidate.
    let sd = (8.0f64 / 7.0).sqrt();
    assert_eq!((confirmation.candidate(), confirmation.fresh_from(), confirmation.third), (1, 1, None));
    assert!((confirmation.scale.unwrap() - sd * 2f64.sqrt()).abs() < 1e-9, "{:?}", confirmation.scale);
    assert_eq!((confirmation.lead.len(), confirmation.most_held), (8, 40));
    let of_two = begin(0, 1, 0);
    assert_eq!((of_two.third, of_two.fresh_from()), (None, 2), "the present state is the host as found");
    assert_eq!(begin(1, 1, 0).third, None, "the candidate is the host as found");
    assert_eq!(begin(2, 0, 0).third, None, "nobody is protected");
    assert_eq!(begin(2, 1, 0).third, Some(2));
}

#[test]
fn a_pair_is_the_candidate_less_the_baseline_whatever_comes_first_and_what_else_is_measured() {
    let mut rng = Pcg32::seed_from_u64(1);
    let mut confirmation = confirmation(&[]);
    confirmation.compare_too(Some(2));
    let mut record = |order: &[usize]| {
        confirmation.order = order.iter().rev().copied().collect();
        for &turn in order {
            assert_eq!(confirmation.up(), turn);
            confirmation.record(turn, summary([100.0, 110.0, 500.0][turn], 0.0), 0.0, &mut rng);
        }
        let first = confirmation.carry.first.clone();
        assert_eq!(confirmation.order.len(), 3, "the next pair is dealt");
        (confirmation.score_differences.clone(), first)
    };
    assert_eq!(record(&[1, 0, 2]), (vec![10.0], vec![]), "nobody knows what was before the first");
    // Only the first of the two tells what the settings before do.
    assert_eq!(record(&[0, 2, 1]), (vec![10.0; 2], vec![(false, false, 100.0)]));
    assert_eq!(record(&[1, 0, 2]), (vec![10.0; 3], vec![(false, false, 100.0), (true, true, 110.0)]));
    assert_eq!(record(&[2, 0, 1]).1[2..], [(false, false, 100.0)]);
    assert_eq!(confirmation.baseline_got, [100.0; 4]);
    let seen: Vec<(f64, f64)> =
        confirmation.seen().iter().map(|(new, old)| (new.cpu_pct, old.cpu_pct)).collect();
    assert_eq!(seen, [(110.0, 100.0); 4]);
    assert_eq!(confirmation.tried_got, [110.0; 4]);
    assert_eq!(confirmation.scores, [vec![100.0; 4], vec![110.0; 4]]);
}

#[test]
fn waits_of_others_are_those_of_the_two_that_are_compared() {
    let window = |long: u64| {
        let mut summary = summary(100.0, 0.0);
        let owner: crate::window::Owner = "/web".into();
        let rates =
            Rates { got_pct: 20.0, waited_pct: None, waits: None, in_scope: false, owner: Some(owner) };
        summary.tasks.insert(TaskId { tgid: 9, tid: 9, start_time: 1 }, rates);
        let waits = Histogram::of(&[(1_000_000, 1000 - long), (50_000_000, long)]);
        summary.waits.insert("/web".into(), waits);
        summary
    };
    let tails = |long: [u64; 3]| -> Vec<bool> {
        let mut confirmation = confirmation(&[window(5)]);
        confirmation.compare_too(Some(2));
        let mut rng = Pcg32::seed_from_u64(1);
        for turn in [0, 1, 2].repeat(6) {
            confirmation.record(turn, window(long[turn]), 0.0, &mut rng);
        }
        confirmation.doubts().iter().filter(|d| d.harm == Harm::Tail).map(|d| d.proved).collect()
    };
    assert_eq!(tails([5, 5, 5]), [false; 0]);
    assert_eq!(tails([5, 300, 5]), [true], "under the candidate they are long");
    assert_eq!(tails([5, 5, 300]), [false; 0], "not where it is not in force");
    assert_eq!(tails([300, 300, 5]), [false; 0], "they were before");
}

#[test]
fn settings_that_show_later_are_given_more_time() {
    let mut confirmation = confirmation(&[]);
    assert_eq!(confirmation.pace(0.1), (1.0, 0.1));
    confirmation.carry.stretch = 2.0;
    assert_eq!(confirmation.pace(0.1), (2f64.sqrt(), 0.5));
    assert_eq!(confirmation.pace(0.4), (2f64.sqrt(), 0.8));
    confirmation.carry.stretch = 4.0;
    assert_eq!(confirmation.pace(0.1), (2.0, 1.0));
}

#[test]
fn without_a_new_window_nothing_is_decided_anew() {
    let mut confirmation = confirmation(&[]);
    let proved = || vec![fear(Harm::Wait, true)];
    assert!(!confirmation.review(&TrialRules::default(), proved(), false) && !confirmation.ended());
    pair(&mut confirmation, 100.0, 110.0);
    assert!(confirmation.review(&TrialRules::default(), proved(), false));
    assert!(confirmation.outcome().is_some_and(|outcome| {
        outcome.is_err_and(|why| why.starts_with("the rest of the host waits too long"))
    }));
    pair(&mut confirmation, 100.0, 110.0);
    assert!(!confirmation.review(&TrialRules::default(), Vec::new(), false), "it ended already");
}

#[test]
fn by_estimate_nobody_makes_room_but_for_others_and_after_some_pairs() {
    let reviewed = |pairs: usize, others: bool, accept_risk: bool| {
        let mut confirmation = confirmation(&[]);
        (0..pairs).for_each(|_| pair(&mut confirmation, 100.0, 110.0));
        let rules = TrialRules { accept_risk, ..TrialRules::default() };
        confirmation.review(&rules, vec![fear(Harm::Wait, false)], others);
        confirmation.outcome().map(|outcome| outcome.unwrap_err())
    };
    let why = reviewed(8, true, false).unwrap();
    assert!(why.starts_with("by estimate the rest of the host waits too long"), "{why}");
    assert_eq!(reviewed(7, true, false), None);
    assert_eq!(reviewed(8, false, false), None);
    assert_eq!(reviewed(8, true, true), None);
}

#[test]
fn a_proved_gain_is_held_once_nothing_but_rare_long_waits_is_in_doubt() {
    let holds = |pairs: usize, gain: f64, doubts: Vec<Doubt>, accept_risk: bool, lasted: bool| {
        let mut confirmation = confirmation(&[]);
        confirmation.lasted = lasted;
        (0..pairs).for_each(|_| pair(&mut confirmation, 100.0, 100.0 + gain));
        let ended = confirmation.review(&TrialRules { accept_risk, ..TrialRules::default() }, doubts, false);
        assert_eq!(ended, confirmation.ended());
        (confirmation.holds(), confirmation.outcome())
    };
    assert_eq!(holds(8, 10.0, vec![], false, false), (true, None));
    assert_eq!(holds(4, 10.0, vec![], false, false), (false, None), "not proved");
    assert_eq!(holds(8, 10.0, vec![fear(Harm::Tail, false)], false, false), (true, None));
    assert_eq!(holds(8, 10.0, vec![fear(Harm::Wait, false)], false, false), (false, None));
    assert_eq!(holds(14, 10.0, vec![fear(Harm::Wait, false)], true, false), (false, None));
    assert_eq!(holds(15, 10.0, vec![fear(Harm::Wait, false)], true, false), (true, None));
    // It lasted already: then these must be cleared, too.
    assert_eq!(holds(8, 10.0, vec![fear(Harm::Tail, false)], false, true), (false, None));
    assert_eq!(holds(8, 10.0, vec![], false, true), (false, Some(Ok(()))));
    // A gain below what is worth a change is none.
    let (held, outcome) = holds(8, 0.5, vec![], false, false);
    assert!(!held && outcome.is_some_and(|outcome| outcome.is_err_and(|why| why.contains("no gain"))));
}

#[test]
fn a_gain_that_lasts_is_kept_or_waits_for_what_is_still_in_doubt() {
    let after_hold = |doubts: Vec<Doubt>, accept_risk: bool| {
        let mut confirmation = confirmation(&[100.0; 8].map(|got| summary(got, 0.0)));
        (0..15).for_each(|_| pair(&mut confirmation, 100.0, 110.0));
        confirmation.hold = Some(Vec::new());
        let mut rng = Pcg32::seed_from_u64(1);
        for age in 0..7 {
            confirmation.record(1, summary(110.0, 0.0), f64::from(age), &mut rng);
        }
        confirmation.review(&TrialRules { accept_risk, ..TrialRules::default() }, doubts, false);
        (confirmation.holds(), confirmation.lasted, confirmation.outcome())
    };
    assert_eq!(after_hold(vec![], false), (true, false, Some(Ok(()))));
    assert_eq!(after_hold(vec![fear(Harm::Tail, false)], false), (false, true, None));
    assert_eq!(after_hold(vec![fear(Harm::Tail, false)], true), (true, false, Some(Ok(()))));
}

#[test]
fn background_work_is_starved_below_its_least_share_or_what_it_had() {
    let starved = |least_pct: f64, before: f64, after: [f64; 3]| {
        let rules = TrialRules { least_pct, ..TrialRules::default() };
        let objective = Objective::new(rules.wait_price, true);
        let mut confirmation = Confirmation::new((1, 0.05), &rules, (&[], &[]), &objective, None);
        confirmation.baseline_got = vec![before; 3];
        confirmation.tried_got = after.to_vec();
        confirmation.starved_background().map(|doubt| (doubt.proved, doubt.before, doubt.after))
    };
    assert_eq!(starved(100.0, 190.0, [101.0; 3]), None);
    assert_eq!(starved(100.0, 190.0, [99.0; 3]), Some((true, 190.0, 99.0)));
    assert_eq!(starved(100.0, 100.0, [99.0; 3]), Some((true, 100.0, 99.0)), "it had all of its share");
    assert_eq!(starved(100.0, 190.0, [100.0; 3]), None, "the least share is enough");
    assert_eq!(starved(100.0, 190.0, [90.0, 101.0, 112.0]), Some((false, 190.0, 101.0)), "not sure");
    // Who had less may lose a twentieth.
    assert_eq!(starved(100.0, 80.0, [76.1; 3]), None);
    assert_eq!(starved(100.0, 80.0, [75.9; 3]).map(|doubt| doubt.0), Some(true));
}

/// Windows of a second each in which the candidate is held, from the moment on that it is in force.
fn held(scores: impl IntoIterator<Item = f64>) -> Vec<Aged> {
    let aged = |(age, score)| Aged { age_s: f64::from(age), seconds: 1.0, score };
    (0..).zip(scores).map(aged).collect()
}

/// The least gain of the windows at the end that is taken to last: alternating baselines, so that windows do not resemble the ones
/// before, and so many windows at the end.
fn least_that_lasts(at_once: f64, windows: usize, noise: f64) -> f64 {
    let lasts = |gain: f64| {
        let mut confirmation = confirmation(&[]);
        confirmation.most_held = 16;
        confirmation.lead = [100.0 - noise, 100.0 + noise].repeat(3);
        // Every difference of signs comes up as often: independent windows.
        for (old, new) in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)].repeat(2) {
            let (old, new) = (100.0 + noise * old, 100.0 + at_once + noise * new);
            confirmation.scores[0].push(old);
            confirmation.scores[1].push(new);
            confirmation.score_differences.push(new - old);
        }
        // Up and down, and as often the other way round, so that nothing seems to fade.
        let noises = (0..windows).map(|n| if (n % 4).is_multiple_of(3) { -noise } else { noise / 3.0 });
        confirmation.hold = Some(held(noises.map(|noise| 100.0 + gain + noise)));
        matches!(confirmation.lasts(), Some(Ok(())))
    };
    let (mut no, mut yes) = (-10.0, 100.0);
    assert!(lasts(yes) && !lasts(no));
    for _ in 0..60 {
        let middle = f64::midpoint(no, yes);
        *(if lasts(middle) { &mut yes } else { &mut no }) = middle;
    }
    yes
}

#[test]
fn a_gain_lasts_where_it_is_beyond_the_error_and_not_much_less_than_at_once() {
    let near = |found: f64, expected: f64| {
        assert!((found - expected).abs() < 1e-6, "{found} and not {expected}");
    };
    // 6 windows before anything was changed and 8 of pairs under the baseline differ by 1, and none of them resembles the one before.
    let expected = |windows: usize| {
        let noises = (0..windows).map(|n| if (n % 4).is_multiple_of(3) { -1.0 } else { 1.0 / 3.0 });
        let noise = staying(&held(noises)).unwrap();
        let sd = ((14.0 + noise.residuals) / (14 + windows - 4) as f64).sqrt();
        let against = |baseline: f64| sd * (noise.variance + 1.0 / baseline).sqrt();
        f64::max(SINCE_BEFORE * against(6.0), STILL_THERE * against(14.0)) - noise.score
    };
    near(least_that_lasts(1.0, 16, 1.0), expected(16));
    near(least_that_lasts(1.0, 8, 1.0), expected(8));
    // Of a large gain four tenths must be there.
    near(least_that_lasts(40.0, 16, 0.0), 16.0);
}

#[test]
fn where_windows_resemble_the_ones_before_a_gain_must_be_larger_to_last() {
    let mut confirmation = confirmation(&[]);
    confirmation.most_held = 6;
    confirmation.lead = [[99.0; 3], [101.0; 3]].concat();
    confirmation.scores = [vec![99.0, 99.0, 101.0, 101.0], vec![99.1, 98.9, 101.1, 100.9]];
    confirmation.score_differences = vec![0.1, -0.1, 0.1, -0.1];
    let noises = [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0];
    let alike = confirmation.alike(&noises);
    assert!((0.3..=0.7).contains(&alike), "{alike}");
    let noise = staying(&held(noises)).unwrap();
    let sd = ((6.0 + 4.0 + noise.residuals) / 12.0 * (1.0 + alike) / (1.0 - alike)).sqrt();
    let against = |baseline: f64| sd * (noise.variance + 1.0 / baseline).sqrt();
    let least = f64::max(SINCE_BEFORE * against(6.0), STILL_THERE * against(10.0)) - noise.score;
    for (gain, lasts) in [(least - 0.01, false), (least + 0.01, true)] {
        confirmation.hold = Some(held(noises.map(|noise| 100.0 + gain + noise)));
        assert_eq!(matches!(confirmation.lasts(), Some(Ok(()))), lasts, "{gain}");
    }
}

#[test]
fn whether_a_gain_lasts_is_not_said_before_its_time_and_is_said_in_the_end() {
    let said = |windows: usize, most: usize, gain: f64| {
        let mut confirmation =
            confirmation(&[99.0, 101.0].repeat(4).iter().map(|s| summary(*s, 0.0)).collect::<Vec<_>>());
        (0..8).for_each(|n| pair(&mut confirmation, 100.0 + f64::from(n % 2), 110.0 + f64::from(n % 3)));
        confirmation.in_pairs.clear();
        confirmation.hold_for(most);
        confirmation.hold = Some(held(vec![100.0 + gain; windows]));
        confirmation.lasts()
    };
    assert_eq!(said(5, 30, 10.0), None);
    assert_eq!(said(6, 30, 10.0), Some(Ok(())));
    assert_eq!(said(7, 8, 1.0), None);
    let why = said(8, 8, 1.0).unwrap().unwrap_err();
    assert!(why.contains("+1.0 points stay after 8 s"), "{why}");
}

#[test]
fn delays_that_do_not_stay_shorter_are_told_as_a_factor() {
    let rules = TrialRules::default();
    let mut confirmation =
        Confirmation::new((1, 0.05), &rules, (&[], &[]), &Objective::new(rules.wait_price, true), None);
    confirmation.lead = vec![0.0; 8];
    confirmation.scores = [vec![0.0; 8], vec![4f64.ln(); 8]];
    confirmation.score_differences = vec![4f64.ln(); 8];
    confirmation.hold_for(8);
    confirmation.hold = Some(held([0.0; 8]));
    let why = confirmation.lasts().unwrap().unwrap_err();
    assert!(
        why.contains("delays 0.25 times as long at once, by estimate delays 1.00 times as long stay"),
        "{why}"
    );
}

#[test]
fn what_is_taken_down_of_pairs() {
    let mut confirmation = confirmation(&[]);
    confirmation.compare_too(Some(2));
    let mut rng = Pcg32::seed_from_u64(1);
    let mut age_s = 0.0;
    // Of each pair the candidate comes first, the host as found in between; scores are 110, 120 and so on, 100 less for the baseline.
    for pair in 1..4 {
        confirmation.order = vec![0, 2, 1];
        for (turn, score) in [(1, 100.0), (2, 500.0), (0, 0.0)] {
            age_s += 1.0;
            confirmation.record(turn, summary(score + 10.0 * f64::from(pair), 0.0), age_s, &mut rng);
        }
    }
    assert_eq!(confirmation.score_differences, [100.0; 3], "what is between is part of none");
    assert_eq!(confirmation.score, bets::evidence(&[100.0; 3], 0.0, None));
    assert_eq!(confirmation.scores, [vec![10.0, 20.0, 30.0], vec![110.0, 120.0, 130.0]]);
    let aged: Vec<(f64, f64)> = confirmation.in_pairs.iter().map(|w| (w.age_s, w.score)).collect();
    assert_eq!(aged, [(1.0, 110.0), (4.0, 120.0), (7.0, 130.0)]);
    // Only first windows tell of the settings before them, and the very first has none before.
    assert_eq!(confirmation.carry.first, [(false, true, 120.0), (false, true, 130.0)]);
    confirmation.order = vec![1, 2, 0];
    confirmation.record(0, summary(40.0, 0.0), 0.0, &mut rng);
    confirmation.order = vec![1, 0];
    (confirmation.baseline, confirmation.tried) = (None, None);
    confirmation.carry.before = Some(1);
    confirmation.record(0, summary(50.0, 0.0), 0.0, &mut rng);
    assert_eq!(confirmation.carry.first[2..], [(false, false, 40.0), (true, false, 50.0)]);
    let seen: Vec<(f64, f64)> =
        confirmation.seen().iter().map(|(new, old)| (new.cpu_pct, old.cpu_pct)).collect();
    assert_eq!(seen, [(110.0, 10.0), (120.0, 20.0), (130.0, 30.0)]);
}

#[test]
fn equal_cpu_is_no_less() {
    let helps_by = |score: f64, got: [f64; 2]| {
        let mut confirmation = confirmation(&[]);
        confirmation.baseline_got = vec![100.0; 8];
        for _ in 0..8 {
            confirmation.score.add(score);
            confirmation.score_differences.push(score);
            confirmation.got_differences.push(got[0]);
        }
        if let Some(last) = confirmation.got_differences.last_mut() {
            *last = got[1];
        }
        assert_eq!(confirmation.helps(0.01), confirmation.proved(0.01));
        confirmation.proved(0.01)
    };
    let helps = |got| helps_by(5.0, got);
    assert!(helps([0.0, 0.0]) && !helps([0.0, -1e-9]), "by waits alone it may be better");
    // Nor by more than a gain would have to be: 1.9 less 1.7 may be, 3.7 less 7.1 may not.
    assert!(helps([1.0, 8.0]) && !helps([0.0, 30.0]));
    assert!(
        helps_by(1.0, [0.0; 2]) && !helps_by(1.0f64.next_down(), [0.0; 2]),
        "one in a hundred is worth it"
    );
}

#[test]
fn neighbours_in_a_row_resemble_each_other_or_do_not() {
    assert_eq!(row_correlation(&[1.0, 2.0, 3.0]), None, "three are too few");
    assert_eq!(row_correlation(&[5.0; 6]), None, "there is nothing to resemble");
    // Deviations -1.5, -0.5, 0.5, 1.5: products 0.75 - 0.25 + 0.75, squares 5; and 1 / 4.
    assert!((row_correlation(&[1.0, 2.0, 3.0, 4.0]).unwrap() - (1.25 / 5.0 + 0.25)).abs() < 1e-12);
    // Products -5, squares 6; and 1 / 6.
    assert!(
        (row_correlation(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]).unwrap() - (1.0 / 6.0 - 5.0 / 6.0)).abs()
            < 1e-12
    );
}

#[test]
fn windows_that_resemble_each_other_are_told_by_pairs_and_by_rows_together() {
    let alike = |lead: &[f64], held: &[f64], differences: &[f64], spread: f64| {
        let mut confirmation = confirmation(&[]);
        confirmation.lead = lead.to_vec();
        confirmation.score_differences = differences.to_vec();
        confirmation.scores = [vec![-spread.sqrt(), spread.sqrt()], vec![-spread.sqrt(), spread.sqrt()]];
        confirmation.alike(held)
    };
    let near = |found: f64, alike: f64| {
        let expected = 1.3 * (alike - 0.15 * 0.15 / alike);
        assert!((found - expected).abs() < 1e-12, "{found} and not {expected}");
    };
    // Differences of variance 1 where two windows alone would have 2 times 1.
    let pairs = [1.0, -1.0, 1.0, -1.0];
    near(alike(&[], &[], &pairs, 1.0), 0.5);
    // A row of four with 0.5, one of six with -2/3, and four pairs with 0.5.
    let (up, to_and_fro) = ([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
    near(alike(&up, &up, &pairs, 1.0), 0.5);
    near(alike(&up, &[1.0], &pairs, 0.8), (4.0 * 0.375 + 4.0 * 0.5) / 8.0);
    assert_eq!(alike(&to_and_fro, &to_and_fro, &pairs, 0.5), 0.0, "less than by chance is none");
    assert_eq!(alike(&[], &[], &[2.0; 4], 1.0), 0.7, "more is not believed");
    near(alike(&[], &[], &[1.3, -1.3], 1.0), 0.155);
}

#[test]
fn who_looks_good_or_is_hardly_known_is_worth_more_time() {
    let promising = |differences: &[f64]| {
        let mut confirmation = confirmation(&[]);
        differences.iter().for_each(|d| pair(&mut confirmation, 100.0, 100.0 + d));
        confirmation.promising()
    };
    assert!(promising(&[-1.0; 4]) && !promising(&[-1.0; 5]) && promising(&[1.0; 5]));
    assert!(!promising(&[1.0, -9.0, 1.0, -9.0, 1.0]), "the mean is a loss");
    assert!(!promising(&[1.0, 1.0, 1.0, 1.0, -4.0]), "or nothing");
}

#[test]
fn who_is_withdrawn_ends_and_the_host_as_found_is_measured_no_more() {
    let mut confirmation = confirmation(&[]);
    confirmation.compare_too(Some(2));
    confirmation.order = vec![0, 2, 1];
    confirmation.withdraw(3);
    assert_eq!((confirmation.order.as_slice(), confirmation.third), ([0, 2, 1].as_slice(), Some(2)));
    confirmation.withdraw(2);
    assert_eq!((confirmation.order.as_slice(), confirmation.third), ([0, 1].as_slice(), None));
    assert!(!confirmation.ended());
    confirmation.withdraw(1);
    assert_eq!(confirmation.outcome(), Some(Err("withdrawn".to_owned())));
}

#[test]
fn what_is_claimed_is_bounded_on_both_sides() {
    let mut confirmation = confirmation(&[]);
    (0..10).for_each(|n| pair(&mut confirmation, 100.0, 110.0 + f64::from(n % 3)));
    let gain = confirmation.score_gain().unwrap();
    assert!(
        gain.low > 8.0 && gain.low < gain.value && gain.value < gain.high && gain.high < 14.0,
        "{gain:?}"
    );
    assert_eq!(confirmation.gain(), Some(gain));
    assert!((gain.value - 10.9).abs() < 1e-9 && confirmation.pairs() == 10, "{gain:?}");
}

mod limits;
