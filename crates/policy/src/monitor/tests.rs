use super::*;

fn seen(score: f64, cpu_pct: f64) -> Seen {
    Seen { seconds: 3.0, score, cpu_pct, ..Seen::default() }
}

/// When the change was kept, seconds.
const SINCE_S: f64 = 500.0;

/// Of a change kept for this gain.
fn monitor(gain: f64) -> Monitor {
    Monitor::new(MonitorRules::default(), Decided { gain, ..Decided::default() }, SINCE_S, 1)
}

/// The next block, whose windows are these; at the seventh hour.
fn block(monitor: &mut Monitor, window: impl Fn(Arm) -> Seen) -> Option<Leave> {
    let blocks = monitor.blocks();
    loop {
        let step = monitor.step();
        let leave = monitor.advance(step.until_s, 7, step.measure.then(|| window(step.arm)));
        if monitor.blocks() > blocks {
            return leave;
        }
        assert_eq!(leave, None, "in the middle of a block");
    }
}

/// Blocks with these gains in turn until the change has to go, 300 at most.
fn watched(gains: &[f64]) -> (u64, Option<Leave>) {
    let mut monitor = monitor(0.08);
    let leave = (0..300).find_map(|at| {
        let gain = gains[at % gains.len()];
        block(&mut monitor, |arm| seen(if arm == Arm::Change { 100.0 + 100.0 * gain } else { 100.0 }, 100.0))
    });
    if let Some(Leave::NoGain(upper)) = leave {
        assert_eq!(upper, monitor.gain().upper(0.025), "of the two-sided interval");
    }
    (monitor.blocks(), leave)
}

#[test]
fn a_change_goes_for_want_of_a_gain_or_for_a_loss_and_stays_for_a_gain() {
    let (blocks, leave) = watched(&[0.005, -0.005]);
    assert!(
        blocks > 8 && matches!(leave, Some(Leave::NoGain(upper)) if upper > 0.0 && upper < 0.01),
        "{leave:?}"
    );
    let (blocks, leave) = watched(&[-0.1, -0.11]);
    assert!(blocks >= 4, "a few are no evidence: {blocks}");
    assert!(matches!(leave, Some(Leave::Loss(evidence)) if (20.0..200.0).contains(&evidence)), "{leave:?}");
    assert_eq!(watched(&[0.07, 0.09]), (300, None));
    assert_eq!(watched(&[0.3, -0.2]).1, None, "never because little is known");
}

/// What was gained for long outweighs what is not any more: the closer look decides, which has nothing of it.
#[test]
fn a_gain_that_vanishes_is_looked_at_sooner_and_judged_without_what_was() {
    let mut monitor = monitor(0.08);
    let gained = |monitor: &mut Monitor, at: usize, gain: f64| {
        let gain = gain + if at.is_multiple_of(2) { 0.005 } else { -0.005 };
        block(monitor, |arm| seen(if arm == Arm::Change { 100.0 + 100.0 * gain } else { 100.0 }, 100.0))
    };
    let until_s = |monitor: &Monitor| monitor.step().until_s;
    for at in 0..200 {
        assert_eq!(gained(&mut monitor, at, 0.08), None);
    }
    let before = until_s(&monitor);
    assert_eq!(gained(&mut monitor, 0, 0.08), None);
    let usual_s = until_s(&monitor) - before;
    let mut began_s = Vec::new();
    let gone = (0..100).position(|at| {
        began_s.push(until_s(&monitor));
        gained(&mut monitor, at, 0.0).is_some()
    });
    assert!(gone.is_some_and(|blocks| (8..20).contains(&blocks)), "{gone:?}");
    let looked_s = began_s[7] - began_s[5];
    assert!(looked_s < usual_s / 4.0, "{looked_s} for two of {usual_s}");
}

#[test]
fn a_block_holds_windows_of_the_change_against_one_of_the_baseline() {
    let mut monitor = monitor(0.08);
    block(&mut monitor, |arm| match arm {
        Arm::Change => Seen { wait_p99_ms: Some(2.0), ..seen(120.0, 110.0) },
        Arm::Baseline => Seen { wait_p99_ms: Some(5.0), ..seen(100.0, 90.0) },
    });
    // Four windows of 110 and one of 90.
    assert!((monitor.gain().mean().unwrap() - 20.0 / 106.0).abs() < 1e-12);
    let effect = monitor.effect(1e3, 5, 3);
    assert_eq!((effect.at_ns, effect.blocks, effect.held_out), (5, 1, true));
    let of = |effect: Option<Effect>| effect.map(|effect| (effect.value, effect.low, effect.since_ns));
    assert_eq!(of(effect.cpu_pct), Some((20.0, None, 3)));
    assert_eq!(of(effect.wait_p99_ms), Some((-3.0, None, 3)));
    let hours: Vec<(u8, u64, f64)> =
        effect.by_hour.iter().map(|hour| (hour.hour, hour.blocks, hour.cpu_pct.value)).collect();
    assert_eq!(hours, [(7, 1, 20.0)]);
    let share = effect.holdout_share.unwrap().value;
    assert!(share > 0.005 && share < 0.008, "three to four of 500 seconds: {share}");
    // Without CPU there is nothing to compare with; waits that were not counted in one window are unknown.
    let before = monitor.clone();
    monitor.compare(
        &[Seen { wait_p99_ms: Some(9.0), ..seen(5.0, 0.0) }, seen(5.0, 0.0)],
        &Seen { wait_p99_ms: Some(1.0), ..seen(0.0, 0.0) },
        7,
    );
    assert_eq!((&monitor.gain, &monitor.cpu_pct), (&before.gain, &before.cpu_pct));
    assert_eq!((&monitor.wait_p99_ms, &monitor.by_hour), (&before.wait_p99_ms, &before.by_hour));
}

#[test]
fn until_there_are_blocks_the_decision_is_what_is_known() {
    let (cpu, wait) = ((5.0, 2.0, f64::INFINITY), (-1.0, -2.0, -0.5));
    let decided = Decided { cpu_pct: Some(cpu), wait_p99_ms: Some(wait), ..Decided::default() };
    let effect = Monitor::new(MonitorRules::default(), decided, 0.0, 1).effect(1e3, 5, 3);
    let of = |effect: Option<Effect>| effect.map(|effect| (effect.value, effect.low, effect.high));
    assert_eq!(of(effect.cpu_pct), Some((5.0, Some(2.0), None)));
    assert_eq!(of(effect.wait_p99_ms), Some((-1.0, Some(-2.0), Some(-0.5))));
    assert_eq!((effect.blocks, effect.held_out, effect.by_hour.len()), (0, false, 0));
}

#[test]
fn a_window_that_was_not_measured_ends_its_block() {
    let mut monitor = monitor(0.08);
    while !monitor.in_block() {
        monitor.advance(monitor.step().until_s, 7, None);
    }
    let until_s = monitor.step().until_s;
    assert_eq!(monitor.advance(until_s, 7, Some(seen(200.0, 100.0))), None);
    assert_eq!((monitor.in_block(), monitor.change.len()), (true, 1));
    assert_eq!(monitor.advance(monitor.step().until_s, 7, None), None);
    assert_eq!((monitor.in_block(), monitor.change.len(), monitor.blocks()), (false, 0, 0));
    // The next one begins without what was seen.
    block(&mut monitor, |_| seen(100.0, 100.0));
    assert_eq!(monitor.gain().mean(), Some(0.0));
}

#[test]
fn what_protects_a_service_is_held_out_only_where_that_was_asked_for() {
    let held_out = |protecting_share: f64, share: f64, protects: bool| {
        let holdout = HoldoutRules { share, ..HoldoutRules::default() };
        let rules = MonitorRules { protecting_share, holdout, ..MonitorRules::default() };
        Monitor::new(rules, Decided { protects, ..Decided::default() }, 0.0, 1).is_held_out()
    };
    assert!(held_out(0.0, 0.05, false) && !held_out(0.0, 0.05, true));
    assert!(held_out(0.01, 0.05, true) && !held_out(0.01, 0.0, true));
}

#[test]
fn how_much_gains_vary_is_learnt_from_the_pairs_of_the_decision() {
    let pairs = |scores: &[f64], seconds: f64| -> Vec<(Seen, Seen)> {
        let baseline = |score: f64| Seen { seconds, ..seen(2.0 * score, 90.0) };
        scores.iter().map(|score| (seen(3.0 * score, 110.0), baseline(*score))).collect()
    };
    let sd = |scores: &[f64], seconds: f64, unit| spread(&pairs(scores, seconds), unit, 3.0);
    let near = |found: Option<f64>, expected: f64| {
        assert!(found.is_some_and(|found| (found - expected).abs() < 1e-12), "{found:?} and not {expected}");
    };
    // Gains of 10, 20 and 30 % of the mean of 110 and 90; windows half as long as those of blocks.
    near(sd(&[10.0, 20.0, 30.0], 1.5, Unit::CpuGot), 0.1 * (0.625f64 * 0.5).sqrt());
    near(sd(&[10.0, 20.0, 30.0], 9.0, Unit::CpuGot), 0.1 * 0.625f64.sqrt());
    near(sd(&[10.0, 20.0, 30.0], 3.0, Unit::LogDelay), 10.0 * 0.625f64.sqrt());
    assert_eq!(sd(&[10.0, 20.0], 3.0, Unit::CpuGot), None, "two are too few");
    // Nothing is steadier than a tenth of what is expected where nothing is known.
    near(sd(&[10.0; 3], 3.0, Unit::CpuGot), 0.003);
    near(sd(&[10.0; 3], 3.0, Unit::LogDelay), 0.05);
    let of = |pairs: Vec<(Seen, Seen)>, unit| {
        let decided = Decided { pairs, unit, ..Decided::default() };
        let monitor = Monitor::new(MonitorRules::default(), decided, 0.0, 1);
        (monitor.gain.sd(), monitor.cpu_pct.sd())
    };
    let (gain, points) = of(pairs(&[10.0, 20.0, 30.0], 3.0), Unit::CpuGot);
    near(Some(gain), 0.1 * 0.625f64.sqrt());
    // Of the 90 % under the baseline.
    near(Some(points), 90.0 * gain);
    near(Some(of(Vec::new(), Unit::CpuGot).0), 0.03);
    assert_eq!(of(Vec::new(), Unit::CpuGot).1, 1.0);
    assert_eq!(of(Vec::new(), Unit::LogDelay), (0.5, 1.0));
    assert_eq!(of(pairs(&[10.0, 20.0, 30.0], 3.0), Unit::LogDelay).1, 1.0);
}

#[test]
fn what_was_seen_before_the_last_blocks_is_what_is_expected() {
    let mut one = monitor(0.08);
    let mut expected = |gain: f64, count: u64, sum: f64| {
        (one.decided.gain, one.before) = (gain, (count, sum));
        one.expected()
    };
    assert_eq!((expected(0.08, 0, 0.0), expected(0.08, 3, 0.3), expected(0.08, 4, 0.2)), (0.08, 0.08, 0.05));
    assert_eq!((expected(0.0, 0, 0.0), expected(0.08, 4, -1.0)), (0.01, 0.01), "the least gain");
    // Four of six gains are the last ones.
    let mut six = monitor(0.08);
    for at in 1..=6 {
        six.compare(&[seen(100.0 + f64::from(at), 100.0)], &seen(100.0, 100.0), 7);
    }
    assert!(six.before.0 == 2 && (six.before.1 - 0.03).abs() < 1e-12, "{:?}", six.before);
    assert_eq!(six.recent.len(), 4);
}

/// After the time in which there is a question anyhow.
const LATER_S: f64 = 1000.0;

#[test]
fn four_blocks_nearer_to_nothing_than_to_what_was_expected_raise_a_question() {
    // Half-way between the least gain and the decision's is 0.05.
    let raised = |recent: &[f64]| {
        let mut monitor = monitor(0.09);
        monitor.recent = recent.iter().copied().collect();
        let eagerness = monitor.eagerness(LATER_S);
        assert_eq!(eagerness == Eagerness::Close, monitor.look.is_some());
        monitor.look.is_some()
    };
    assert!(raised(&[0.04, 0.04, 0.04, 0.079]) && !raised(&[0.04, 0.04, 0.04, 0.081]));
    assert!(!raised(&[0.0; 3]) && !raised(&[]));
}

#[test]
fn a_closer_look_ends_with_enough_that_is_good_or_with_proof() {
    let ends = |sd: f64, gains: &[f64]| {
        let mut monitor = monitor(0.09);
        monitor.recent = [0.04; 4].into();
        let mut look = Sequence::new(sd);
        gains.iter().for_each(|gain| look.add(*gain));
        monitor.look = Some(look);
        let eagerness = monitor.eagerness(LATER_S);
        assert_eq!(eagerness == Eagerness::Close, monitor.look.is_some());
        // What was looked at closely raises no question again.
        let (count, left) = if monitor.look.is_some() { (0, 4) } else { (4, 0) };
        assert_eq!((monitor.before.0, monitor.recent.len()), (count, left));
        assert!((monitor.before.1 - 0.04 * count as f64).abs() < 1e-12);
        monitor.look.is_none()
    };
    assert!(ends(9.0, &[0.051; 8]) && !ends(9.0, &[0.051; 7]) && !ends(9.0, &[0.049; 8]));
    let proof = [0.029, 0.031].repeat(20);
    assert!(ends(0.001, &proof) && !ends(9.0, &proof[..6]));
    // Proof is the lower end of the two-sided interval.
    let mut monitor = self::monitor(0.09);
    let mut look = Sequence::new(0.01);
    let (mut almost, mut blocks) = (0, 0);
    while look.lower(0.025) <= 0.01 {
        monitor.look = Some(look.clone());
        assert_eq!(monitor.eagerness(LATER_S), Eagerness::Close, "{look:?}");
        almost += u32::from(look.lower(0.05) > 0.01);
        blocks += 1;
        look.add(if blocks % 2 == 0 { 0.01 } else { 0.03 });
    }
    monitor.look = Some(look);
    assert!(monitor.eagerness(LATER_S) != Eagerness::Close && almost > 0, "{blocks}");
    // A closer look is a sequence of its own.
    let mut monitor = self::monitor(0.09);
    monitor.look = Some(Sequence::new(1.0));
    monitor.compare(&[seen(105.0, 100.0)], &seen(100.0, 100.0), 7);
    assert_eq!(monitor.look.map(|look| look.values()), Some(1));
}

#[test]
fn how_eagerly_is_looked() {
    let mut young = monitor(0.09);
    assert_eq!(young.eagerness(SINCE_S + 119.9), Eagerness::Close, "is anybody hurt?");
    assert_eq!(young.eagerness(SINCE_S + 120.0), Eagerness::Usual);
    let known = |gains: [f64; 2], blocks: usize| {
        let mut monitor = monitor(0.09);
        monitor.gain = Sequence::new(0.001);
        gains.repeat(blocks / 2).iter().for_each(|gain| monitor.gain.add(*gain));
        monitor.eagerness(LATER_S)
    };
    assert_eq!(known([0.079, 0.081], 60), Eagerness::Narrow);
    assert_eq!(known([-0.079, -0.081], 60), Eagerness::Narrow);
    assert_eq!(known([0.079, 0.081], 2), Eagerness::Usual);
    assert_eq!(known([-0.02, 0.03], 60), Eagerness::Usual, "wider than half of the effect");
    // It is as soon as the interval is narrower than half of the effect.
    let mut monitor = self::monitor(0.09);
    let mut seen = [0, 0];
    for at in 0..60 {
        monitor.gain.add(if at % 2 == 0 { 0.06 } else { 0.1 });
        let known = monitor.gain.estimate(0.05).unwrap();
        let narrow = 2.0 * (known.high - known.low) < known.value;
        assert_eq!(monitor.eagerness(LATER_S) == Eagerness::Narrow, narrow, "{known:?}");
        seen[usize::from(narrow)] += u32::from(known.high < 0.5);
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
}

#[test]
fn victims_are_looked_for_with_new_eyes_every_two_hours_for_less() {
    let hurt = |monitor: &mut Monitor| {
        let target = RequestTarget { slow_share: 0.01, bound_s: 0.05 };
        for _ in 0..10 {
            monitor.requests("web", target, Some(Requests { all: 300.0, slow: 0.0 }), Arm::Baseline);
            monitor.requests("web", target, Some(Requests { all: 300.0, slow: 150.0 }), Arm::Change);
        }
    };
    let mut one = monitor(0.08);
    let asked = |leave: Option<Leave>| match leave {
        Some(Leave::Victims(victims)) => victims[0].evidence,
        other => panic!("{other:?}"),
    };
    // The inverse squares sum up to pi squared over 6.
    let first = 20.0 * std::f64::consts::PI.powi(2) / 6.0;
    hurt(&mut one);
    assert!((asked(one.judge(SINCE_S + 10.0)) - first).abs() < 1e-9);
    let mut two = monitor(0.08);
    assert_eq!((two.judge(SINCE_S + 7200.0), two.era), (None, 1));
    two.watch.add(Comparison { change: &[seen(0.0, 0.0)], baseline: &seen(0.0, 0.0) });
    assert_eq!((two.judge(SINCE_S + 7201.0), two.era), (None, 2));
    assert_eq!(two.watch, Watch::new(VictimLimits::default()), "what was seen is forgotten");
    hurt(&mut two);
    assert!((asked(two.judge(SINCE_S + 7202.0)) - 4.0 * first).abs() < 1e-9);
    assert_eq!((two.era, monitor(0.08).judge(1e9)), (2, None));
    let mut three = two.clone();
    three.watch.clear();
    assert_eq!((three.judge(SINCE_S + 14_400.0), three.era), (None, 2));
    assert_eq!((three.judge(SINCE_S + 14_400.1), three.era), (None, 3));
}

#[test]
fn pairs_that_were_alike_do_not_drown_what_comes_after() {
    let pairs = vec![(seen(108.0, 100.0), seen(100.0, 100.0)); 6];
    let decided = Decided { gain: 0.08, pairs, ..Decided::default() };
    let mut monitor = Monitor::new(MonitorRules::default(), decided, 0.0, 1);
    let leave = (0..100).find_map(|at| {
        let gain = [0.01, -0.01][at % 2];
        block(&mut monitor, |arm| seen(if arm == Arm::Change { 100.0 + 100.0 * gain } else { 100.0 }, 100.0))
    });
    assert!(matches!(leave, Some(Leave::NoGain(_))), "{leave:?}");
}

#[test]
fn what_the_decisions_pairs_say_of_tasks_counts() {
    let id = Subject::Task(evenkeel_base::TaskId { tgid: 1, tid: 1, start_time: 1 });
    let with = |cpu_pct: f64| Seen {
        usages: vec![(id.clone(), Usage { cpu_pct, waited_pct: None })],
        ..seen(100.0, 100.0)
    };
    let pairs = (0..20).map(|at| (with(5.0 + f64::from(at % 3)), with(20.0 + f64::from(at % 2)))).collect();
    let decided = Decided { pairs, ..Decided::default() };
    let leave = Monitor::new(MonitorRules::default(), decided, 0.0, 1).judge(10.0);
    assert!(matches!(&leave, Some(Leave::Victims(victims)) if victims[0].subject == id), "{leave:?}");
}
