//! Shares of long waits.

use super::*;
use evenkeel_base::Histogram;

/// Windows of 300 waits of which this share is long.
fn tail(shares: (f64, f64), windows: usize, seed: u64) -> Tail {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut tail = Tail::new(None);
    for candidate in [false, true] {
        for _ in 0..windows {
            let mut waits = Histogram::default();
            for _ in 0..300 {
                let long = rng.random_bool(if candidate { shares.1 } else { shares.0 });
                waits.add(if long {
                    rng.random_range(6_000_000..20_000_000)
                } else {
                    rng.random_range(300_000..4_000_000)
                });
            }
            tail.add(waits, candidate);
        }
    }
    tail
}

fn cleared(shares: (f64, f64), windows: usize) -> u64 {
    (0..200).filter(|seed| tail(shares, windows, *seed).doubt(0.025, 20.0, 200.0).is_none()).count() as u64
}

#[test]
fn what_stays_is_cleared_and_what_grows_is_not() {
    let (same, limit, worse) =
        (cleared((0.01, 0.01), 15), cleared((0.01, 0.025), 15), cleared((0.01, 0.06), 15));
    assert!(same >= 170 && limit <= 10 && worse == 0, "{same} {limit} {worse}");
    assert!(tail((0.01, 0.08), 15, 1).doubt(0.025, 20.0, 200.0).unwrap().proved, "shown to be broken");
    assert!(cleared((0.01, 0.01), 1) <= 20, "one window of each shows little");
}

#[test]
fn long_waits_that_go_away_are_soon_cleared() {
    let (gone, same) = (cleared((0.01, 0.0), 2), cleared((0.01, 0.01), 2));
    assert!(gone >= 60 && same <= 20, "{gone} {same}");
}

#[test]
fn few_waits_are_left_to_the_monitor() {
    assert_eq!(Tail::new(None).doubt(0.025, 20.0, 200.0), None);
    assert_eq!(tail((0.01, 0.5), 1, 1).doubt(0.025, 20.0, 1000.0), None);
}

#[test]
fn percentiles_are_those_of_each_side() {
    let mut tail = Tail::new(None);
    assert_eq!((tail.baseline_p99_ns(), tail.candidate_p99_ns()), (None, None));
    for (ms, candidate) in [(1, false), (8, true)] {
        tail.add(Histogram::of(&[(ms * 1_000_000, 995), (500_000_000, 5)]), candidate);
    }
    let (before, after) = (tail.baseline_p99_ns(), tail.candidate_p99_ns());
    assert!((500_000..2_000_000).contains(&before.unwrap()), "{before:?}");
    assert!((4_000_000..16_000_000).contains(&after.unwrap()), "{after:?}");
}

#[test]
fn the_percentile_is_that_of_all_windows() {
    let long = Histogram::of(&[(50_000_000, 50)]);
    let short = Histogram::of(&[(1_000_000, 950)]);
    assert!(p99_ns(&[long, short]).is_some_and(|ns| (40_000_000..60_000_000).contains(&ns)));
    assert_eq!(p99_ns(&[]), None);
}

#[test]
fn edges_are_where_counts_are_exact() {
    let found = tail((0.01, 0.01), 10, 2);
    let (edge, relative) = found.edge_ns().unwrap();
    assert!(relative && Histogram::edge_below(edge) == edge, "{edge}");
    let mut bounded = Tail::new(Some(30_000_000));
    bounded.add(Histogram::of(&[(1_000_000, 1000)]), false);
    assert_eq!(bounded.edge_ns(), Some((Histogram::edge_below(30_000_000), false)));
}

/// Of a bound of 6 ms, or none: windows of as many waits, of which so many are long, before and after.
fn counted(bound: bool, before: &[(u64, u64)], after: &[(u64, u64)]) -> Tail {
    let mut tail = Tail::new(bound.then_some(Histogram::edge_below(6_000_000)));
    for (windows, candidate) in [(before, false), (after, true)] {
        for (all, long) in windows {
            tail.add(Histogram::of(&[(1_000_000, all - long), (50_000_000, *long)]), candidate);
        }
    }
    tail
}

fn doubt(tail: &Tail) -> Option<Open> {
    tail.doubt(0.025, 20.0, 200.0)
}

#[test]
fn a_bound_holds_unless_the_baseline_breaks_it() {
    let relative = |long: u64| counted(true, &[(1000, long)], &[]).edge_ns().map(|(_, relative)| relative);
    assert_eq!((relative(10), relative(11)), (Some(false), Some(true)));
    // Its edge is then found where about one in a hundred is longer: among the long ones.
    let (edge, _) = counted(true, &[(1000, 500)], &[]).edge_ns().unwrap();
    assert!(edge > 30_000_000, "{edge}");
    let none: Option<(u64, bool)> = Tail::new(None).edge_ns();
    assert_eq!(none, None);
}

#[test]
fn a_stated_bound_is_to_be_kept_and_not_only_not_missed_by_much() {
    let before = [(10_000, 0)];
    assert_eq!(doubt(&counted(true, &before, &[(10_000, 100)])), None, "one in a hundred");
    let open = doubt(&counted(true, &before, &[(10_000, 101)])).unwrap();
    assert_eq!((open.before, open.after, open.proved), (0.0, 0.0101, false));
}

#[test]
fn evidence_is_that_of_counts() {
    let proved = |tail: Tail| doubt(&tail).map(|open| open.proved);
    // Against a baseline of ten in a thousand evidence for is 20.9 and 14.5 with six and seven, against is 379 and 460.
    let relative = |long| proved(counted(false, &[(1000, 10)], &[(1000, long)]));
    assert_eq!([6, 7, 74, 75].map(relative), [None, Some(false), Some(false), Some(true)]);
    // Against a stated share it is 19.9 and 20.2 where none is long.
    let absolute = |all| proved(counted(true, &[(300, 0)], &[(all, 0)]));
    assert_eq!([190, 191].map(absolute), [Some(false), None]);
    // Where none of the baseline's is longer than what is told apart from none, the usual share is the standard.
    let mut tail = Tail::new(None);
    for (long, candidate) in [(0, false), (10, true)] {
        tail.add(Histogram::of(&[(10_000, 1000 - long), (1_000_000, long)]), candidate);
    }
    assert_eq!(proved(tail), None);
}

#[test]
fn long_waits_are_no_evidence_that_a_limit_close_to_the_usual_share_is_kept() {
    let mut tail = Tail::new(None);
    for (long, candidate) in [(0, false), (50, true)] {
        tail.add(Histogram::of(&[(10_000, 1000 - long), (1_000_000, long)]), candidate);
    }
    let proved = |limit| tail.doubt(limit, 20.0, 200.0).map(|open| open.proved);
    assert_eq!([0.011, 0.025].map(proved), [Some(true); 2]);
}

#[test]
fn harm_takes_the_square_of_the_evidence() {
    // 176 of 19 long ones, 423 of 20.
    let proved = |long| doubt(&counted(true, &[(300, 0)], &[(300, long)])).map(|open| open.proved);
    assert_eq!((proved(19), proved(20)), (Some(false), Some(true)));
}

#[test]
fn without_waits_on_one_side_nothing_is_shown() {
    for bound in [false, true] {
        let after_only = counted(bound, &[], &[(300, 3)]);
        assert_eq!(doubt(&after_only).map(|open| (open.before, open.proved)), bound.then_some((0.0, false)));
        let before_only = counted(bound, &[(300, 60)], &[(0, 0)]);
        let open = doubt(&before_only).unwrap();
        assert_eq!((open.after, open.proved), (0.0, false), "{bound}");
    }
}

#[test]
fn only_the_last_windows_are_remembered() {
    let mut tail = counted(false, &[(1, 0), (2, 0), (4, 0)], &[(8, 0), (16, 0), (32, 0)]);
    tail.keep_last(5, 5);
    assert_eq!(tail.waits(), 63.0);
    tail.keep_last(2, 1);
    assert_eq!(tail.waits(), 38.0);
}

#[test]
fn as_many_waits_as_are_needed_are_enough() {
    let of = |all: u64| doubt(&counted(false, &[(100, 1)], &[(all, 1)])).is_some();
    assert!(of(100) && !of(99));
}
