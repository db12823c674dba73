use super::*;
use crate::window::Rates;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

fn id(tid: u32) -> Subject {
    Subject::Task(TaskId { tgid: tid, tid, start_time: 1 })
}

/// A window in which each task has this CPU and these waits, all within ±25 %.
fn window(rng: &mut Pcg32, tasks: &[(f64, f64)]) -> Seen {
    let usages = tasks.iter().enumerate().map(|(at, (cpu, wait))| {
        let cpu_pct = cpu * rng.random_range(0.75..1.25);
        let waited_pct = Some(wait * rng.random_range(0.75..1.25));
        (id(at as u32), Usage { cpu_pct, waited_pct })
    });
    Seen { seconds: 3.0, usages: usages.collect(), ..Seen::default() }
}

fn watched(seed: u64, blocks: usize, baseline: &[(f64, f64)], change: &[(f64, f64)]) -> Vec<Victim> {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut watch = Watch::new(VictimLimits::default());
    for _ in 0..blocks {
        let change: Vec<Seen> = (0..4).map(|_| window(&mut rng, change)).collect();
        watch.add(Comparison { change: &change, baseline: &window(&mut rng, baseline) });
    }
    watch.victims(0.05)
}

#[test]
fn who_loses_forty_percent_is_named_with_about_that() {
    let baseline = vec![(20.0, 4.0); 50];
    let mut change = baseline.clone();
    change[7] = (12.0, 2.4);
    let victims = watched(1, 8, &baseline, &change);
    assert_eq!(victims.len(), 1, "{victims:?}");
    assert_eq!((&victims[0].subject, victims[0].loss), (&id(7), Loss::Cpu));
    assert!((0.5..0.72).contains(&victims[0].ratio) && victims[0].evidence > 2000.0, "{victims:?}");
}

#[test]
fn who_waits_three_times_as_long_is_named() {
    let baseline = vec![(20.0, 4.0); 10];
    let mut change = baseline.clone();
    change[2] = (20.0, 12.0);
    let victims = watched(2, 8, &baseline, &change);
    assert_eq!(victims.iter().map(|v| (&v.subject, v.loss)).collect::<Vec<_>>(), [(&id(2), Loss::Wait)]);
    assert!((2.0..3.6).contains(&victims[0].ratio), "{victims:?}");
}

/// Blocks in which this share of the waits outside the scope is long under the change, and one in a hundred under the baseline.
fn waits_outside(seed: u64, blocks: usize, share: f64) -> Vec<Victim> {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut watch = Watch::new(VictimLimits::default());
    let mut window = |share: f64| {
        let mut waits = Histogram::default();
        for _ in 0..750 {
            let long = rng.random_bool(share);
            waits.add(if long { rng.random_range(6e6..2e7) } else { rng.random_range(2e5..4e6) } as u64);
        }
        Seen { seconds: 3.0, waits: BTreeMap::from([("/web".into(), waits)]), ..Seen::default() }
    };
    for _ in 0..blocks {
        let change: Vec<Seen> = (0..4).map(|_| window(share)).collect();
        watch.add(Comparison { change: &change, baseline: &window(0.01) });
    }
    watch.victims(0.05)
}

#[test]
fn who_is_outside_and_comes_to_have_long_waits_is_named() {
    let victims = waits_outside(7, 10, 0.04);
    assert_eq!(victims.len(), 1, "{victims:?}");
    assert_eq!((&victims[0].subject, victims[0].loss), (&Subject::Group("/web".to_owned()), Loss::Tail));
    assert!((2.0..7.0).contains(&victims[0].ratio) && victims[0].evidence == 20.0, "{victims:?}");
    for seed in 0..20 {
        assert_eq!(waits_outside(seed, 60, 0.01), []);
    }
}

/// Blocks in which a container outside gets this part of its CPU under the change, which its four tasks share.
fn cpu_outside(seed: u64, part: f64) -> Vec<Victim> {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut watch = Watch::new(VictimLimits::default());
    let mut window = |part: f64| {
        let mut summary = Summary { seconds: 3.0, ..Summary::default() };
        for tid in 0..4 {
            let rates = Rates {
                got_pct: part * rng.random_range(4.5..5.5),
                waited_pct: None,
                waits: None,
                in_scope: false,
                owner: Some("/web".into()),
            };
            summary.tasks.insert(TaskId { tgid: tid, tid, start_time: 1 }, rates);
        }
        Seen::of(&summary, 0.0)
    };
    for _ in 0..20 {
        let change: Vec<Seen> = (0..4).map(|_| window(part)).collect();
        watch.add(Comparison { change: &change, baseline: &window(1.0) });
    }
    watch.victims(0.05)
}

#[test]
fn a_container_outside_that_comes_to_lose_less_than_a_task_may_is_named() {
    // Within the limit of each of its tasks.
    let victims = cpu_outside(3, 0.92);
    assert_eq!(
        victims.iter().map(|v| (&v.subject, v.loss)).collect::<Vec<_>>(),
        [(&Subject::Group("/web".to_owned()), Loss::Cpu)]
    );
    for seed in 0..20 {
        assert_eq!(cpu_outside(seed, 1.0), []);
    }
}

/// Blocks in which these shares of a service's requests are slow, under the baseline and under the change.
fn requests(blocks: usize, before: f64, after: f64) -> Vec<Victim> {
    requests_beside(blocks, before, after, &[])
}

/// The same while tasks are compared, too, which the change does nothing to.
fn requests_beside(blocks: usize, before: f64, after: f64, tasks: &[(f64, f64)]) -> Vec<Victim> {
    let mut rng = Pcg32::seed_from_u64(8);
    let mut watch = Watch::new(VictimLimits::default());
    for _ in 0..blocks {
        if !tasks.is_empty() {
            let change: Vec<Seen> = (0..4).map(|_| window(&mut rng, tasks)).collect();
            watch.add(Comparison { change: &change, baseline: &window(&mut rng, tasks) });
        }
        for (share, change) in [(before, false), (after, true)] {
            let slow = (0..300).filter(|_| rng.random_bool(share)).count() as f64;
            let target = RequestTarget { slow_share: 0.01, bound_s: 0.05 };
            watch.add_requests("web", target, Some(Requests { all: 300.0, slow }), change);
        }
    }
    watch.victims(0.05)
}

#[test]
fn a_service_of_which_more_requests_are_slow_is_named() {
    let victims = requests(10, 0.002, 0.05);
    assert_eq!(
        victims.iter().map(|v| (&v.subject, v.loss)).collect::<Vec<_>>(),
        [(&Subject::Service("web".into()), Loss::Slow)]
    );
    assert!((3.0..8.0).contains(&victims[0].ratio), "{victims:?}");
    // Of a promise that was broken before: three times as many, and fewer than half as many again.
    assert_eq!((requests(20, 0.04, 0.12).len(), requests(20, 0.04, 0.05).len()), (1, 0));
    assert_eq!(requests(1, 0.002, 0.5), [], "few requests are no proof");
    for share in [0.001, 0.01, 0.3] {
        assert_eq!(requests(40, share, share), []);
    }
}

#[test]
fn those_who_are_judged_in_several_ways_share_what_may_be_false() {
    let evidence = |tasks: &[(f64, f64)]| {
        requests_beside(10, 0.002, 0.05, tasks)
            .iter()
            .map(|victim| victim.evidence.round())
            .collect::<Vec<_>>()
    };
    assert_eq!((evidence(&[]), evidence(&[(20.0, 4.0); 5])), (vec![20.0], vec![40.0]));
}

#[test]
fn a_loss_within_the_limit_is_no_harm_however_sure() {
    let baseline = vec![(20.0, 4.0); 10];
    let mut change = baseline.clone();
    change[0] = (18.8, 4.0);
    assert_eq!(watched(3, 400, &baseline, &change), []);
}

#[test]
fn chance_tiny_tasks_and_tiny_waits_accuse_nobody() {
    for seed in 0..40 {
        assert_eq!(watched(seed, 8, &[(20.0, 4.0); 50], &[(20.0, 4.0); 50]), []);
    }
    assert_eq!(watched(4, 8, &[(20.0, 0.02); 5], &[(20.0, 0.2); 5]), []);
    assert_eq!(watched(4, 8, &[(0.09, 0.01); 5], &[(0.01, 0.5); 5]), []);
}

#[test]
fn a_window_that_evenkeel_slept_through_tells_no_more_than_the_others() {
    let tasks = [(20.0, 4.0); 10];
    for seed in 0..20 {
        let mut rng = Pcg32::seed_from_u64(seed);
        let mut watch = Watch::new(VictimLimits::default());
        for block in 0..8 {
            let change: Vec<Seen> = (0..4).map(|_| window(&mut rng, &tasks)).collect();
            let seconds = if block == 7 { 300.0 } else { 3.0 };
            let baseline = Seen { seconds, ..window(&mut rng, &tasks) };
            watch.add(Comparison { change: &change, baseline: &baseline });
        }
        assert_eq!(watch.victims(0.05), [], "seed {seed}");
    }
}

#[test]
fn a_task_that_ends_is_forgotten_and_one_that_came_late_is_not_compared() {
    let mut rng = Pcg32::seed_from_u64(5);
    let mut watch = Watch::new(VictimLimits::default());
    let both = vec![(20.0, 4.0); 2];
    for block in 0..30 {
        let change: Vec<Seen> = (0..4).map(|_| window(&mut rng, &both)).collect();
        let baseline = window(&mut rng, if block < 15 { &both } else { &both[..1] });
        watch.add(Comparison { change: &change, baseline: &baseline });
    }
    assert_eq!(watch.everybody.keys().collect::<Vec<_>>(), [&id(0)]);
}

#[test]
fn a_common_variance_is_found_again() {
    // Variances of 200 tasks that are all 4, from 10 values each: much in common.
    let mut rng = Pcg32::seed_from_u64(6);
    let mut draw = |sd: f64| {
        let values: Vec<f64> = (0..11).map(|_| sd * 12f64.sqrt() * (rng.random::<f64>() - 0.5)).collect();
        let mean = values.iter().sum::<f64>() / 11.0;
        (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 10.0, 10.0)
    };
    let alike: Vec<_> = (0..200).map(|_| draw(2.0)).collect();
    let common = Common::of(&alike);
    assert!(common.freedom > 20.0 && (3.5..4.5).contains(&common.variance), "{common:?}");
    let mixed: Vec<_> = (0..200).map(|at| draw(if at % 2 == 0 { 0.5 } else { 5.0 })).collect();
    assert!(Common::of(&mixed).freedom < 2.0);
    assert_eq!(Common::of(&alike[..2]).freedom, 0.0, "two are no crowd");
    // pi²/6, and the tables' trigamma(5)
    assert!((trigamma(1.0) - std::f64::consts::PI.powi(2) / 6.0).abs() < 1e-9);
    assert!((trigamma(5.0) - 0.221_322_955_737).abs() < 1e-9);
    assert!((inverse_trigamma(trigamma(3.0)) - 3.0).abs() < 1e-6);
}

#[test]
fn a_block_weighs_by_its_shortest_window_and_by_how_many_there_are() {
    let window = |seconds: f64| Seen { seconds, ..Seen::default() };
    let weight = |change: &[f64], baseline: f64| {
        let change: Vec<Seen> = change.iter().map(|seconds| window(*seconds)).collect();
        Comparison { change: &change, baseline: &window(baseline) }.weight()
    };
    let near =
        |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} and not {expected}");
    near(weight(&[3.0; 4], 3.0), 1.0);
    near(weight(&[3.0, 1.5, 300.0, 3.0], 3.0), 0.5);
    near(weight(&[3.0; 4], 1.5), 0.5);
    // The variance of a difference of two is 2, and not 1.25.
    near(weight(&[3.0], 3.0), 1.25 / 2.0);
}

/// Comparisons of these weights and values.
fn moments(of: &[(f64, f64)]) -> Moments {
    let mut moments = Moments::default();
    of.iter().for_each(|(weight, value)| moments.add(*weight, *value));
    moments
}

#[test]
fn evidence_of_a_loss_as_reckoned_by_hand() {
    // Sums: weights 4, values 12, squares 44.
    let three = moments(&[(1.0, 1.0), (2.0, 3.0), (1.0, 5.0)]);
    // (44 - 12²/4) / 2, and 12 / (4 + 1).
    assert_eq!((three.variance(), three.estimate()), (Some(4.0), 2.4));
    assert_eq!((moments(&[(1.0, 3.0)]).variance(), moments(&[]).variance()), (None, None));
    assert_eq!(moments(&[(1.0, 0.2), (1.0, 0.2)]).variance(), Some(LEAST_VARIANCE), "alike by chance");
    // None: 6 · 2 + 44 = 56; some: 56 - 12²/5 = 27.2; 9 degrees of freedom. ln(1/5)/2 + 4.5 ln(56/27.2) is 2.444 887, and
    // t = 2.4 / sqrt(27.2 / (9 · 5)) = 3.086 975, below which lie 0.993 504.
    let common = Common { freedom: 6.0, variance: 2.0 };
    let near =
        |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} and not {expected}");
    near(three.ln_evidence(1.0, common), 3.131_517);
    near(three.ln_evidence(-1.0, common), -1.898_474);
    // What is rather nothing is so whatever its sign: precision 3, 2.44 and 2.44 - 0.04/3.
    let little = moments(&[(1.0, 1.2), (1.0, -1.0)]);
    let (none, some): (f64, f64) = (2.44, 2.44 - 0.04 / 3.0);
    for sign in [1.0, -1.0] {
        let none_known = Common { freedom: 0.0, variance: 0.0 };
        near(little.ln_evidence(sign, none_known), -0.5 * 3f64.ln() + (none / some).ln());
    }
}

#[test]
fn the_common_variance_of_four_as_reckoned_by_hand() {
    // Logarithms of 1, 2, 4, 8 have the variance ln²2 · 5/3 = 0.800 755; 0.644 934 of it is trigamma(2), that of four degrees of
    // freedom each. The rest is trigamma(6.904 694).
    let four = Common::of(&[(1.0, 4.0), (2.0, 4.0), (4.0, 4.0), (8.0, 4.0)]);
    assert!((four.freedom - 13.809_387).abs() < 1e-5 && (four.variance - 3.441_560).abs() < 1e-5, "{four:?}");
    let mixed = Common::of(&[(1.0, 3.0), (2.0, 5.0), (4.0, 4.0), (9.0, 6.0)]);
    assert!(
        (mixed.freedom - 14.339_906).abs() < 1e-5 && (mixed.variance - 3.507_446).abs() < 1e-5,
        "{mixed:?}"
    );
    assert_eq!(Common::of(&[(2.0, 4.0); 4]).freedom, MOST_FREEDOM, "alike");
}

#[test]
fn a_proved_loss_beyond_its_limit_makes_a_victim_and_one_within_it_does_not() {
    let named = |subject: Subject, loss: usize, ratio: f64| {
        let mut watch = Watch::new(VictimLimits::default());
        // The estimate is shrunken by a comparison that shows none: 401 of 400 undo that.
        let x = 2.0 * (ratio - 1.0) / (ratio + 1.0) * 401.0 / 400.0;
        let mut known = Known::default();
        (0..400).for_each(|at| known.moments[loss].add(1.0, x + if at % 2 == 0 { 1e-3 } else { -1e-3 }));
        watch.everybody.insert(subject, known);
        let victims = watch.victims(0.05);
        victims.iter().for_each(|victim| assert!((victim.ratio - ratio).abs() < 1e-9, "{victim:?}"));
        victims.len() == 1
    };
    for outside in [Subject::Outside, Subject::Group("/web".into())] {
        assert!(named(outside.clone(), 0, 0.949) && !named(outside, 0, 0.951));
    }
    assert!(named(id(1), 0, 0.899) && !named(id(1), 0, 0.901) && !named(id(1), 0, 1.5));
    assert!(named(id(1), 1, 1.501) && !named(id(1), 1, 1.499) && !named(id(1), 1, 0.5));
}

#[test]
fn the_evidence_of_one_is_weighed_by_what_all_vary() {
    let mut watch = Watch::new(VictimLimits::default());
    let mut variances = Vec::new();
    for tid in 0..6 {
        let spread = 0.1 * f64::from(tid + 1);
        let values: Vec<(f64, f64)> =
            (0..4).map(|at| (1.0, if at % 2 == 0 { spread } else { -spread })).collect();
        let values = if tid == 0 { vec![(1.0, -1.0), (1.0, -1.1), (1.0, -0.9), (1.0, -1.0)] } else { values };
        let known = moments(&values);
        // Of four values three degrees of freedom are left.
        variances.push((known.variance().unwrap(), 3.0));
        watch.everybody.insert(id(tid), Known { moments: [known, Moments::default()], last: 0 });
    }
    let expected = watch.everybody[&id(0)].moments[0].ln_evidence(-1.0, Common::of(&variances)).exp();
    let victims = watch.victims(0.5);
    assert_eq!(victims.iter().map(|v| (&v.subject, v.loss)).collect::<Vec<_>>(), [(&id(0), Loss::Cpu)]);
    assert!((victims[0].evidence / expected - 1.0).abs() < 1e-9, "{victims:?} {expected}");
}

#[test]
fn who_gets_the_least_that_counts_is_watched_and_a_window_without_anything_is_no_difference() {
    let usage = |cpu_pct: f64| Usage { cpu_pct, waited_pct: None };
    let watched = |change: f64, baseline: f64| {
        let mut watch = Watch::new(VictimLimits { min_cpu_pct: 0.5, ..VictimLimits::default() });
        let window = |cpu: f64| Seen { seconds: 3.0, usages: vec![(id(1), usage(cpu))], ..Seen::default() };
        let change: Vec<Seen> = (0..4).map(|_| window(change)).collect();
        watch.add(Comparison { change: &change, baseline: &window(baseline) });
        watch.everybody.contains_key(&id(1))
    };
    // The mean of both arms.
    assert!(watched(1.0, 0.0) && watched(0.0, 1.0) && !watched(0.99, 0.0));
    let cpu = |usage: &Usage| Some(usage.cpu_pct);
    assert_eq!(difference(&[usage(0.0), usage(7.0)], &usage(0.0), cpu), Some(1.0));
    assert_eq!(difference(&[usage(3.0), usage(1.0)], &usage(1.0), cpu), Some(0.5));
}

#[test]
fn a_quarter_of_an_hour_of_waits_and_requests_is_remembered() {
    let mut watch = Watch::new(VictimLimits::default());
    let target = RequestTarget { slow_share: 0.01, bound_s: 0.05 };
    for _ in 0..TAIL_WINDOWS + 2 {
        let waits = Histogram::of(&[(1_000_000, 1)]);
        let window =
            Seen { seconds: 3.0, waits: BTreeMap::from([("/web".into(), waits)]), ..Seen::default() };
        watch.add(Comparison { change: &vec![window.clone(); 4], baseline: &window });
        for change in [false, true, true, true, true] {
            watch.add_requests("web", target, Some(Requests { all: 1.0, slow: 0.0 }), change);
        }
    }
    assert_eq!(watch.tails["/web"].0.waits(), 200.0);
    assert_eq!(watch.requests["web"].1.clone().into_candidate().len(), 160);
}

#[test]
fn fewer_than_two_hundred_waits_accuse_nobody() {
    let accused = |short: u64| {
        let mut watch = Watch::new(VictimLimits::default());
        let window = |waits: &[(u64, u64)]| {
            let waits = BTreeMap::from([("/web".into(), Histogram::of(waits))]);
            Seen { seconds: 3.0, waits, ..Seen::default() }
        };
        let change = vec![window(&[(50_000_000, 20)]); 4];
        let baseline = window(&[(1_000_000, short), (5_000_000, 1)]);
        watch.add(Comparison { change: &change, baseline: &baseline });
        watch.tail_victims(0.05).count()
    };
    assert_eq!((accused(118), accused(119)), (0, 1), "80 of them under the change");
}

#[test]
fn who_was_not_seen_in_ten_comparisons_is_remembered_and_in_eleven_forgotten() {
    let mut watch = Watch::new(VictimLimits::default());
    let usages = vec![(id(1), Usage { cpu_pct: 20.0, waited_pct: None })];
    let seen = Seen { seconds: 3.0, usages, ..Seen::default() };
    watch.add(Comparison { change: &vec![seen.clone(); 4], baseline: &seen });
    let nobody = Seen { seconds: 3.0, ..Seen::default() };
    let known: Vec<bool> = (0..11)
        .map(|_| {
            watch.add(Comparison { change: &vec![nobody.clone(); 4], baseline: &nobody });
            watch.everybody.contains_key(&id(1))
        })
        .collect();
    assert_eq!(known, [[true; 10].as_slice(), &[false]].concat());
}

#[test]
fn three_comparisons_accuse_and_two_do_not() {
    let mut watch = Watch::new(VictimLimits::default());
    let window = |cpu_pct: f64| {
        let usages = vec![(id(1), Usage { cpu_pct, waited_pct: None })];
        Seen { seconds: 3.0, usages, ..Seen::default() }
    };
    let accused: Vec<usize> = [20.0, 20.5, 21.0]
        .map(|before| {
            watch.add(Comparison { change: &vec![window(2.0); 4], baseline: &window(before) });
            watch.victims(1.0).len()
        })
        .to_vec();
    assert_eq!(accused, [0, 0, 1]);
}
