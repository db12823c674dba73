//! Limits, from either side of each.

use super::*;

#[test]
fn seven_tenths_of_a_standard_error_are_the_benefit_of_the_doubt() {
    // A mean of none, and a standard error of the root of 0.8.
    let hopeless = |got: f64| {
        let mut confirmation = confirmation(&[]);
        confirmation.baseline_got = vec![got; 5];
        confirmation.score_differences = vec![-2.0, 2.0, -2.0, 2.0, 0.0];
        confirmation.hopeless(0.01)
    };
    assert!(!hopeless(62.5) && hopeless(62.7));
}

#[test]
fn nothing_is_said_to_last_before_six_seconds() {
    let lasts = |last_s: f64| {
        let mut confirmation = confirmation(&[100.0; 8].map(|got| summary(got, 0.0)));
        (0..8).for_each(|_| pair(&mut confirmation, 100.0, 110.0));
        let mut windows = held([110.0; 6]);
        windows[5].seconds = last_s;
        confirmation.hold = Some(windows);
        confirmation.lasts()
    };
    assert_eq!((lasts(0.99), lasts(1.0)), (None, Some(Ok(()))));
}

#[test]
fn a_gain_of_the_score_counts_where_nobody_is_likely_to_get_less_cpu_than_the_gain_is_worth() {
    // One point is worth a change. The 95th percentile of Student's t with 7 degrees is 1.895, over the root of 7: 0.716.
    let helps = |off: f64| {
        let mut confirmation = confirmation(&[]);
        (0..8).for_each(|_| pair(&mut confirmation, 100.0, 110.0));
        confirmation.got_differences = [off, -off].repeat(4);
        confirmation.helps(0.01)
    };
    assert!(helps(1.39) && !helps(1.40));
}

#[test]
fn background_work_is_starved_by_a_ninety_percent_interval() {
    // Student's t with 2 degrees: 2.92, over the root of 3: 1.686.
    let starved = |after: f64| {
        let rules = TrialRules { least_pct: 100.0, ..TrialRules::default() };
        let services = Objective::new(rules.wait_price, true);
        let mut confirmation = Confirmation::new((1, 0.05), &rules, (&[], &[]), &services, None);
        confirmation.baseline_got = vec![190.0; 3];
        confirmation.tried_got = [-1.0, 0.0, 1.0].map(|off| after + off).to_vec();
        confirmation.starved_background().map(|doubt| doubt.proved)
    };
    assert_eq!([101.69, 101.68, 98.32, 98.31].map(starved), [None, Some(false), Some(false), Some(true)]);
}
