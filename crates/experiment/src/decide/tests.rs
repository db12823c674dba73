use super::*;
use evenkeel_base::stats::t_factor;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};

fn of(values: &[f64]) -> Figure {
    Figure::Mean(Mean::of(values).unwrap())
}

#[test]
fn an_interval_that_straddles_the_bound_decides_nothing() {
    // Mean 10, sd 1, n 4: 10 +- 3.182 / 2.
    let figure = of(&[9.0, 9.5, 10.5, 11.0]);
    for (claim, holds) in [
        (Claim::AtMost(12.0), Some(true)),
        (Claim::AtMost(11.0), None),
        (Claim::AtMost(8.0), Some(false)),
        (Claim::AtLeast(8.0), Some(true)),
        (Claim::AtLeast(9.5), None),
        (Claim::AtLeast(12.0), Some(false)),
    ] {
        let decision = decide(&figure, claim, 0.05);
        assert_eq!(decision.holds, holds, "{claim}: {decision:?}");
        assert_eq!(decision.margin.unwrap() >= 0.0, holds.is_some(), "{decision:?}");
        assert_eq!(decision.needs.is_some(), holds.is_none(), "{decision:?}");
    }
    // So many would do: 1 wanted, sd 0.9129, t about 2.2 with 7.
    assert_eq!(decide(&figure, Claim::AtMost(11.0), 0.05).needs, Some(6));
}

#[test]
fn one_repetition_and_what_was_cut_off_are_bounds_at_most() {
    let one = decide(&of(&[3.0]), Claim::AtMost(100.0), 0.05);
    assert!(one.holds.is_none() && one.undecided("").contains("one repetition"), "{one:?}");
    let cut = Mean::of(&[10.0, 10.0]).unwrap().cut_off(true);
    let fast = Mean::of(&[2.0, 2.0]).unwrap();
    let gain = cut.over(fast).unwrap();
    let decision = decide(&gain, Claim::AtLeast(1.1), 0.05);
    assert_eq!((decision.holds, decision.words(2).as_str()), (Some(true), "at least 5.00"));
    assert_eq!(decide(&gain, Claim::AtMost(6.0), 0.05).holds, None);
    // The other way round it is a bound from above.
    assert_eq!(decide(&fast.over(cut).unwrap(), Claim::AtMost(0.2), 0.05).words(1), "0.2 [0.0, 0.2]");
    // What was seen in full is no estimate.
    assert_eq!(decide(&Figure::Observed(1.0), Claim::AtMost(1.0), 0.05).holds, Some(true));
}

#[test]
fn a_page_shares_its_error_and_adds_why_it_is_undecided() {
    let values = [9.0, 9.5, 10.5, 11.0];
    let draft = |n: usize| {
        Draft::new(&format!("x{n}"), "", ("mean", "ms"), of(&values), Claim::AtMost(12.0), |d| {
            format!("It is {}.", d[0].words(1))
        })
    };
    let alone = page(vec![draft(0)]);
    assert_eq!((alone[0].holds, alone[0].test.level_pct), (Some(true), Some(95.0)));
    let many = page((0..20).map(draft).collect());
    assert!(many.iter().all(|v| v.holds.is_none() && v.text.contains("Undecided: the bound of 12 ms")));
    assert!(many[0].test.needs_repetitions.is_some_and(|n| n > 4), "{:?}", many[0].test);
    assert!(alone[0].test.bound == "<= 12" && alone[0].text == "It is 10.0 [8.5, 11.5].", "{:?}", alone[0]);
}

#[test]
fn an_answer_shows_the_end_that_decides() {
    // One of two was repeated, and is far off; of the other one value says nothing.
    let figure = Figure::Deviation(vec![of(&[80.0, 80.1, 79.9, 80.0]), of(&[1.0])]);
    let draft =
        |bound| Draft::new("x", "", ("off", "%"), figure.clone(), Claim::AtMost(bound), |_| "It is.".into());
    let verdicts = page(vec![draft(0.5), draft(90.0)]);
    assert_eq!(verdicts[0].holds, Some(false));
    assert!(matches!(verdicts[0].test.interval, Some([Some(low), None]) if low > 79.0), "{:?}", verdicts[0]);
    assert_eq!((verdicts[1].holds, verdicts[1].test.interval), (None, None));
}

#[test]
fn ratios_and_sums_carry_their_errors() {
    let (a, b) = (Mean::of(&[10.0, 11.0, 12.0]).unwrap(), Mean::of(&[5.0, 5.5, 6.0]).unwrap());
    let ratio = a.over(b).unwrap();
    assert!((ratio.value().unwrap() - 2.0).abs() < 1e-9);
    let [low, high] = ratio.interval(0.05).unwrap();
    assert!(low < 2.0 && high > 2.0 && low > 1.5 && high < 2.6, "{low} {high}");
    let difference = a.less(b).unwrap();
    assert!((difference.value - 5.5).abs() < 1e-9 && difference.freedom < 4.0 && difference.freedom > 2.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn intervals_of_several_hold_their_truth_together(seed in 0u64..1_000_000, k in 2usize..6, n in 3usize..8) {
        // Truth 0 for all: over many draws a range or deviation interval that excludes 0 from below must be rare; here
        // each draw must at least be consistent.
        let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
        let parts: Vec<Figure> = (0..k).map(|_| of(&(0..n).map(|_| random.random::<f64>() - 0.5).collect::<Vec<_>>())).collect();
        for figure in [Figure::Range(parts.clone()), Figure::Deviation(parts.clone()), Figure::Largest(parts.clone()), Figure::Smallest(parts)] {
            let e = figure.estimate(0.05).unwrap();
            prop_assert!(e.low <= e.value && e.value <= e.high, "{:?} {:?}", figure, e);
            let wide = figure.estimate(0.001).unwrap();
            prop_assert!(wide.low <= e.low && wide.high >= e.high);
        }
    }
}

fn normal(random: &mut rand_pcg::Pcg64) -> f64 {
    evenkeel_base::stats::normal_of(random.random::<f64>().max(1e-12), random.random())
}

#[test]
fn null_effects_stay_undecided_and_planted_ones_are_found() {
    let mut random = rand_pcg::Pcg64::seed_from_u64(14);
    let (mut wrong, mut found, rounds) = (0, 0, 2000);
    for _ in 0..rounds {
        let n = 3 + random.random_range(0..8);
        let values: Vec<f64> = (0..n).map(|_| 10.0 + normal(&mut random)).collect();
        // The truth is on the bound: any answer is wrong half the time, so there must be none.
        wrong += usize::from(decide(&of(&values), Claim::AtMost(10.0), 0.05).holds.is_some());
        // Planted: twice the half width away.
        let half = t_factor(n as f64 - 1.0, 0.05) / (n as f64).sqrt();
        found += usize::from(decide(&of(&values), Claim::AtMost(10.0 - 2.0 * half), 0.05).no());
    }
    assert!(wrong * 100 <= 6 * rounds, "{wrong} of {rounds}");
    assert!(found * 100 >= 95 * rounds, "{found} of {rounds}");
}

#[test]
fn the_repetitions_told_settle_it_and_one_fewer_do_not() {
    let part = |n: usize, value: f64, sd: f64| Mean {
        value,
        error: Some(sd / (n as f64).sqrt()),
        freedom: n as f64 - 1.0,
        n,
        of_runs: false,
        at_least: false,
        at_most: false,
    };
    type Made<'a> = &'a dyn Fn(usize) -> Figure;
    let figures: [(&str, Made<'_>); 4] = [
        ("mean", &|n| Figure::Mean(part(n, 10.0, 1.0))),
        // Two spreads give more degrees of freedom than one, and of several each has its part of the error.
        ("difference", &|n| Figure::Mean(part(n, 12.0, 1.0).less(part(n, 2.0, 1.0)).unwrap())),
        ("ratio", &|n| part(n, 20.0, 2.0).over(part(n, 2.0, 0.2)).unwrap()),
        ("largest", &|n| {
            Figure::Largest((0..12).map(|i| Figure::Mean(part(n, 10.0 - f64::from(i), 1.0))).collect())
        }),
    ];
    for (what, figure) in figures {
        for (n, claim) in [(3, Claim::AtMost(11.0)), (4, Claim::AtLeast(9.5)), (5, Claim::AtMost(10.4))] {
            let at = |n| decide(&figure(n), claim, 0.05 / 40.0);
            let needs = at(n).needs.unwrap();
            assert!(at(n).holds.is_none() && needs > n, "{what} {claim}: {needs}");
            assert!(at(needs).holds.is_some(), "{what} {claim}: {needs} do not settle it");
            assert_eq!(at(needs - 1).holds, None, "{what} {claim}: fewer than {needs} do");
        }
    }
}

#[test]
fn what_the_runs_of_one_repetition_need_is_told_in_runs() {
    let runs = Mean::of_groups(&[vec![9.0, 9.5, 10.5, 11.0]]).unwrap();
    let draft = |figure| Draft::new("x", "", ("mean", ""), figure, Claim::AtMost(11.0), |_| "It is.".into());
    let [one, two] =
        [Figure::Mean(runs), of(&[9.0, 9.5, 10.5, 11.0])].map(|f| page(vec![draft(f)]).remove(0));
    assert!(one.text.contains("about 6 runs of one repetition would settle it"), "{}", one.text);
    assert!(two.text.contains("about 6 repetitions would settle it"), "{}", two.text);
    assert_eq!((one.test.needs_repetitions, two.test.needs_repetitions), (None, Some(6)));
}
