use super::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

fn id(tid: u32) -> TaskId {
    TaskId { tgid: tid, tid, start_time: 1 }
}

fn window(tasks: &[(u32, f64, f64)]) -> Summary {
    let tasks = tasks
        .iter()
        .map(|&(tid, got_pct, waited)| {
            let in_scope = tid < 100;
            let owner: Owner = if in_scope { "/batch" } else { "/web" }.into();
            (
                id(tid),
                Rates { got_pct, waited_pct: Some(waited), waits: Some(500), in_scope, owner: Some(owner) },
            )
        })
        .collect();
    Summary { seconds: 1.0, tasks, ..Summary::default() }
}

fn guarded(before: &[(u32, f64, f64)], after: &[(u32, f64, f64)], pairs: usize) -> Vec<Doubt> {
    let baseline = window(before);
    let mut guard = Guard::new(GuardLimits::default(), std::slice::from_ref(&baseline), &[]);
    for _ in 0..pairs {
        guard.pair(&baseline, &window(after));
    }
    guard.doubts()
}

#[test]
fn everybody_is_in_doubt_until_shown_to_be_unhurt() {
    let same = [(1, 20.0, 4.0), (100, 20.0, 4.0)];
    let doubts = guarded(&same, &same, 1);
    assert_eq!(doubts.len(), 4, "CPU and waits of each: {doubts:?}");
    assert!(
        doubts.iter().all(|doubt| !doubt.proved && doubt.to_string().starts_with("it cannot be excluded"))
    );
    assert_eq!(guarded(&same, &same, 8), []);
}

#[test]
fn limits_are_those_of_each() {
    let harms = |before: &[_], after: &[_]| -> Vec<(Harm, bool)> {
        guarded(before, after, 30).into_iter().map(|doubt| (doubt.harm, doubt.proved)).collect()
    };
    // A task of the scope may lose 8 %, a container outside may not.
    assert_eq!(harms(&[(1, 20.0, 0.2)], &[(1, 18.4, 0.2)]), []);
    assert_eq!(harms(&[(100, 20.0, 0.2)], &[(100, 18.4, 0.2)]).len(), 0, "it did not wait: it wanted less");
    assert_eq!(harms(&[(100, 20.0, 0.2)], &[(100, 18.4, 1.9)])[0], (Harm::Cpu, true));
    assert_eq!(harms(&[(100, 20.0, 10.0)], &[(100, 16.0, 10.0)]).len(), 0, "nor longer for less");
    assert_eq!(harms(&[(1, 20.0, 4.0)], &[(1, 15.0, 9.0)])[0], (Harm::Cpu, true));
    // Of the time in which it is runnable it gets 83 and 78 %: 7 % less.
    assert_eq!(harms(&[(1, 20.0, 4.0)], &[(1, 18.4, 5.3)]), []);
    assert_eq!(harms(&[(100, 20.0, 4.0)], &[(100, 18.4, 5.3)]), [(Harm::Cpu, true)]);
    assert_eq!(harms(&[(1, 20.0, 1.0)], &[(1, 20.0, 1.4)]), []);
    assert_eq!(harms(&[(1, 20.0, 1.0)], &[(1, 20.0, 1.6)]), [(Harm::Wait, true)]);
    // Twice nothing is nothing.
    assert_eq!(harms(&[(1, 20.0, 0.01)], &[(1, 20.0, 0.2)]), []);
}

/// Whoever had a CPU of his own has no waits under the baseline that could be too short.
#[test]
fn waits_by_length_that_none_under_the_baseline_can_be_held_against_are_judged_by_their_sum() {
    let harms = |waits_before: u64| -> Vec<(Harm, bool)> {
        let (mut before, mut after) = (window(&[(100, 20.0, 0.1)]), window(&[(100, 20.0, 30.0)]));
        for (window, count) in [(&mut before, waits_before), (&mut after, 60)] {
            window.waits = [("/web".into(), evenkeel_base::Histogram::of(&[(5_000_000, count)]))].into();
        }
        let mut guard = Guard::new(GuardLimits::default(), std::slice::from_ref(&before), &[]);
        for _ in 0..15 {
            guard.waits(&before, false);
            guard.waits(&after, true);
            guard.pair(&before, &after);
        }
        guard.doubts().into_iter().map(|doubt| (doubt.harm, doubt.proved)).collect()
    };
    assert!(harms(0).contains(&(Harm::Wait, true)), "{:?}", harms(0));
    let counted = harms(60);
    assert!(counted.iter().all(|(harm, _)| *harm != Harm::Wait), "by length: {counted:?}");
}

#[test]
fn the_small_are_judged_together_and_who_ends_is_no_victim() {
    let small: Vec<(u32, f64, f64)> = (1..21).map(|tid| (tid, 0.5, 0.1)).collect();
    let hurt: Vec<(u32, f64, f64)> = (1..21).map(|tid| (tid, 0.3, 0.3)).collect();
    let doubts = guarded(&small, &hurt, 30);
    assert!(
        doubts.iter().any(|d| d.subject == Subject::Pool(Some("/batch".into())) && d.proved),
        "{doubts:?}"
    );
    assert_eq!(guarded(&small, &small, 8), []);
    // One that is too small even together is left to the monitor.
    assert_eq!(guarded(&small[..1], &hurt[..1], 30), []);
    assert_eq!(guarded(&[(1, 20.0, 4.0), (2, 20.0, 4.0)], &[(1, 20.0, 4.0)], 8), []);
}

/// Ten tasks that wait so many times a second, in a cgroup each or in one; one of them comes to wait so many times as long. What
/// is in doubt after some pairs with much noise.
fn rarely_waiting(per_s: [u64; 2], cgroup_each: bool, factor: f64, pairs: usize) -> Vec<Doubt> {
    let mut random = Pcg32::seed_from_u64(5);
    let mut window = |waits: u64, factor: f64, better: f64| {
        let mut tasks = BTreeMap::new();
        for tid in 1..11 {
            let factor = if tid == 1 { factor } else { better };
            let waited = 10.0 * factor * random.random_range(0.2..1.8);
            let owner =
                Owner::from(if cgroup_each { format!("/each-{tid}") } else { "/one".to_owned() }.as_str());
            let rates = Rates {
                got_pct: 20.0,
                waited_pct: Some(waited),
                waits: Some(waits),
                in_scope: true,
                owner: Some(owner),
            };
            tasks.insert(id(tid), rates);
        }
        Summary { seconds: 1.0, tasks, ..Summary::default() }
    };
    let baseline: Vec<Summary> = (0..8).map(|_| window(per_s[0], 1.0, 1.0)).collect();
    let tried: Vec<Summary> = (0..2).map(|_| window(per_s[1], factor, 0.8)).collect();
    let mut guard = Guard::new(GuardLimits::default(), &baseline, &tried);
    for _ in 0..pairs {
        guard.pair(&window(per_s[0], 1.0, 1.0), &window(per_s[1], factor, 0.8));
    }
    guard.doubts()
}

#[test]
fn the_waits_of_who_waits_rarely_are_shown_to_be_unhurt_together() {
    let rarely = [30, 11];
    for cgroup_each in [false, true] {
        let doubts = rarely_waiting(rarely, cgroup_each, 0.8, 10);
        assert_eq!(doubts, [], "together they wait less");
        let doubts = rarely_waiting(rarely, cgroup_each, 2.5, 10);
        assert_eq!(doubts.len(), 1, "{doubts:?}");
        assert_eq!((&doubts[0].subject, doubts[0].harm), (&Subject::Task(id(1)), Harm::Wait));
    }
    let often = rarely_waiting([30, 30], false, 0.8, 10);
    assert!(often.len() > 2 && often.iter().all(|doubt| doubt.harm == Harm::Wait), "{often:?}");
    // Sums are those of cgroups where these wait often enough together, else of all.
    let subjects = |per_s, cgroup_each| -> BTreeSet<Subject> {
        let doubts = rarely_waiting(per_s, cgroup_each, 1.0, 1);
        doubts.into_iter().filter(|doubt| doubt.harm == Harm::Wait).map(|doubt| doubt.subject).collect()
    };
    assert!(subjects(rarely, false).contains(&Subject::Pool(Some("/one".into()))));
    assert!(subjects(rarely, true).contains(&Subject::Pool(None)));
}

#[test]
fn everybody_is_named_as_people_would() {
    let named = |subject: Subject| subject.to_string();
    assert_eq!(named(Subject::Task(id(7))), format!("task {}", id(7)));
    assert_eq!(named(Subject::Pool(Some("/a".into()))), "what is small or waits rarely in /a");
    assert_eq!(named(Subject::Pool(None)), "what is small or waits rarely in the scope");
    assert_eq!(named(Subject::Outside("/a".into())), "/a, outside the scope,");
    assert_eq!(named(Subject::Rest), "the rest of the host");
    assert_eq!(named(Subject::Protected("web".to_owned())), "web, which is protected,");
}

/// At the very limit, chance clears somebody at most once in twenty, and noise is no proof of harm.
#[test]
fn at_its_limit_nobody_is_cleared_more_often_than_allowed() {
    let mut cleared = [0u64; 2];
    let trials = 600;
    for seed in 0..trials {
        let mut rng = Pcg32::seed_from_u64(seed);
        let mut draw = |got: f64, waited: f64| {
            let demand = rng.random_range(0.7..1.3);
            window(&[(1, got * demand, waited * demand * rng.random_range(0.7..1.3))])
        };
        let baseline = draw(20.0, 4.0);
        // It loses a tenth of its CPU and waits that much longer instead, or waits 1.5 times as long.
        for (case, (got, waited)) in [(18.0, 6.0), (20.0, 6.0)].into_iter().enumerate() {
            let mut guard = Guard::new(GuardLimits::default(), std::slice::from_ref(&baseline), &[]);
            for _ in 0..30 {
                let (before, after) = (draw(20.0, 4.0), draw(got, waited));
                guard.pair(&before, &after);
            }
            let harm = [Harm::Cpu, Harm::Wait][case];
            cleared[case] += u64::from(!guard.doubts().iter().any(|doubt| doubt.harm == harm));
        }
    }
    for count in cleared {
        let least = evenkeel_base::stats::binomial::lower(count, trials, 0.01);
        assert!(least <= 0.05, "{cleared:?} of {trials}");
    }
}

/// Windows of one task, or one container outside, with this CPU and waits.
fn alone(tid: u32, got: f64, waited: f64, windows: usize) -> Vec<Summary> {
    vec![window(&[(tid, got, waited)]); windows]
}

#[test]
fn harm_is_suspected_beyond_the_limit_and_some_more() {
    let limits = GuardLimits::default();
    let doubt =
        |subject, harm, before, after| Doubt { subject, harm, before, after, proved: false, detail: None };
    let beyond = |harm, before, after| limits.is_beyond(&doubt(Subject::Pool(None), harm, before, after));
    assert!(!beyond(Harm::Cpu, 100.0, 0.0), "he may want less");
    // 1.3 times 1.5 times as long.
    assert!(!beyond(Harm::Wait, 2.0, 1.3 * 3.0) && beyond(Harm::Wait, 2.0, (1.3f64 * 3.0).next_up()));
    assert!(
        !beyond(Harm::Wait, 0.0, 1.3 * 0.03) && beyond(Harm::Wait, 0.0, 0.04),
        "twice nothing is nothing"
    );
    let rest = |after| limits.is_beyond(&doubt(Subject::Rest, Harm::Wait, 0.0, after));
    assert!(!rest(1.3 * 0.03 + 0.0099) && rest(1.3 * 0.03 + 0.0101), "what is small may wait longer");
    assert!(!beyond(Harm::Tail, 0.0, 0.025) && beyond(Harm::Tail, 0.0, 0.025f64.next_up()));
    assert!(!beyond(Harm::Tail, 0.5, 1.25) && beyond(Harm::Tail, 0.5, 1.2500001), "of what there was");
}

#[test]
fn who_seems_to_be_hurt_by_a_few_windows() {
    let seems = |tid: u32, before: (f64, f64), after: (f64, f64)| {
        let baseline = alone(tid, before.0, before.1, 3);
        let guard = Guard::new(GuardLimits::default(), &baseline, &[]);
        guard.seems_to_hurt(&baseline, &alone(tid, after.0, after.1, 2))
    };
    assert!(seems(1, (20.0, 4.0), (20.0, 8.0)) && !seems(1, (20.0, 4.0), (20.0, 7.0)));
    assert!(seems(100, (20.0, 4.0), (20.0, 8.0)), "outside, too");
    assert!(!seems(1, (20.0, 4.0), (10.0, 2.0)), "he may want less");
    assert!(!seems(1, (20.0, 4.0), (0.0, 50.0)), "of nothing got nothing is known");
    // Of the small together a few windows say nothing.
    let small: Vec<_> = (0..4).map(|_| small_outside(0.5)).collect();
    let guard = Guard::new(GuardLimits::default(), &small, &[]);
    assert!(guard.tracks.keys().eq([&Subject::Rest]), "{guard:?}");
    assert!(!guard.seems_to_hurt(&small, &[small_outside(50.0)]));
    // Their waits are those of a second, not of a second of work.
    let mut guard = guard;
    guard.pair(&small[0], &small[0]);
    let waits = guard.doubts().into_iter().find(|doubt| doubt.harm == Harm::Wait);
    assert!(waits.is_some_and(|doubt| (doubt.before - 0.015).abs() < 1e-9));
}

#[test]
fn a_sum_waits_as_often_as_those_in_it() {
    let mut one = window(&[(1, 20.0, 4.0), (2, 20.0, 4.0), (100, 20.0, 4.0)]);
    for (id, rates) in &mut one.tasks {
        rates.waits = Some(if id.tid == 1 { 500 } else { 1 });
    }
    let guard = Guard::new(GuardLimits::default(), &[one], &[]);
    assert!(guard.single.contains(&id(1)) && guard.rare.contains(&id(2)), "{guard:?}");
    assert!(guard.pools.is_empty() && guard.tracks.contains_key(&Subject::Pool(None)), "{guard:?}");
}

/// Three small containers outside that wait so long.
fn small_outside(waited: f64) -> Summary {
    let mut all = Summary { seconds: 1.0, ..Summary::default() };
    for tid in 100..103 {
        let owner = Some(Owner::from(format!("/small-{tid}").as_str()));
        let mut one = window(&[(tid, 0.9, waited)]);
        one.tasks.values_mut().for_each(|rates| rates.owner.clone_from(&owner));
        all.tasks.append(&mut one.tasks);
    }
    all
}

#[test]
fn who_is_judged_alone_is_settled_by_the_mean_of_the_windows() {
    let subjects = |tid: u32, got: f64, windows: usize| -> Vec<Subject> {
        let guard = Guard::new(GuardLimits::default(), &alone(tid, got, 0.1, windows), &[]);
        guard.tracks.into_keys().collect()
    };
    for windows in [1, 4] {
        assert_eq!(subjects(1, 0.9, windows), [], "too small even as a sum");
        assert_eq!(subjects(100, 0.9, windows), []);
        assert_eq!(subjects(1, 1.0, windows), [Subject::Task(id(1))]);
        assert_eq!(subjects(100, 1.0, windows), [Subject::Outside("/web".into())]);
    }
    let two = vec![window(&[(1, 0.9, 0.1), (2, 0.9, 0.1)]); 4];
    let guard = Guard::new(GuardLimits::default(), &two, &[]);
    assert!(guard.tracks.keys().eq([&Subject::Pool(Some("/batch".into()))]), "{:?}", guard.tracks.keys());
    // Who was there in one of four windows has a quarter.
    let mut windows = alone(1, 3.9, 0.1, 1);
    windows.extend(alone(2, 20.0, 0.1, 3));
    let guard = Guard::new(GuardLimits::default(), &windows, &[]);
    assert!(guard.tracks.keys().eq([&Subject::Task(id(2))]), "{:?}", guard.tracks.keys());
}

#[test]
fn twenty_waits_a_second_are_often() {
    let rare = |waits: u64, seconds: f64| {
        let mut one = window(&[(1, 20.0, 4.0)]);
        one.seconds = seconds;
        one.tasks.values_mut().for_each(|rates| rates.waits = Some(waits));
        Guard::new(GuardLimits::default(), &[one.clone(), one], &[]).rare.len()
    };
    assert_eq!((rare(20, 1.0), rare(19, 1.0), rare(40, 2.0), rare(39, 2.0)), (0, 1, 0, 1));
}

#[test]
fn background_work_may_lose_and_those_outside_may_not() {
    let tasks = [(1, 20.0, 4.0), (2, 0.7, 0.1), (3, 0.7, 0.1), (100, 20.0, 4.0)];
    let mut guard = Guard::new(GuardLimits::default(), &[window(&tasks)], &[]);
    assert_eq!(guard.tracks.len(), 3, "{guard:?}");
    guard.exempt_scope();
    assert!(guard.tracks.keys().eq([&Subject::Outside("/web".into())]), "{guard:?}");
}

#[test]
fn the_more_questions_the_more_evidence_proves_harm() {
    // Evidence is 217 after nine sure losses and 405 after ten; eight tasks have two questions each, so that 320 are asked for.
    let before: Vec<(u32, f64, f64)> = (1..9).map(|tid| (tid, 20.0, 4.0)).collect();
    let mut after = before.clone();
    after[0] = (1, 10.0, 12.0);
    let proved = |pairs: usize| {
        let doubts = guarded(&before, &after, pairs);
        doubts.iter().any(|doubt| doubt.harm == Harm::Cpu && doubt.proved)
    };
    assert!(!proved(9) && proved(10));
}

#[test]
fn a_doubt_says_who_what_and_how_much() {
    let said = |subject: Subject, harm, proved, detail: Option<&str>| {
        let detail = detail.map(str::to_owned);
        Doubt { subject, harm, before: 0.24, after: 0.13, proved, detail }.to_string()
    };
    let web = || Subject::Outside("/web".into());
    assert_eq!(
        said(web(), Harm::Cpu, true, None),
        "/web, outside the scope, loses too much CPU: 0.2 to 0.1 %"
    );
    assert_eq!(
        said(web(), Harm::Wait, false, None),
        "it cannot be excluded that /web, outside the scope, waits too long: 0.13 instead of 0.24 s per second of work"
    );
    assert_eq!(
        said(Subject::Rest, Harm::Wait, true, None),
        "the rest of the host waits too long: 0.13 instead of 0.24 s per second"
    );
    assert_eq!(
        said(web(), Harm::Tail, true, None),
        "/web, outside the scope, has too many long waits: 13.0 instead of 24.0 %"
    );
    assert_eq!(said(web(), Harm::Tail, false, Some("so")), "it cannot be excluded that so");
}

#[test]
fn who_has_many_waits_is_judged_by_their_lengths() {
    use evenkeel_base::Histogram;
    let harms = |waits: u64, long: u64| -> Vec<(Harm, bool)> {
        let mut windows = alone(100, 20.0, 4.0, 1);
        let histogram = Histogram::of(&[(1_000_000, waits - 1), (50_000_000, 1)]);
        windows[0].waits.insert("/web".into(), histogram);
        windows[0].waits.insert("/scope".into(), Histogram::default());
        let mut tried = windows[0].clone();
        if let Some(histogram) = tried.waits.get_mut("/web") {
            histogram.add_many(50_000_000, long);
        }
        let mut guard = Guard::new(GuardLimits::default(), &windows, &[]);
        guard.waits(&windows[0], false);
        guard.waits(&tried, true);
        assert_eq!(guard.tails.len(), 1, "of who is judged alone outside");
        guard.pair(&windows[0], &windows[0]);
        guard.doubts().into_iter().map(|doubt| (doubt.harm, doubt.proved)).collect()
    };
    let (cpu, wait, tail) = (Harm::Cpu, Harm::Wait, Harm::Tail);
    assert_eq!(harms(100, 0), [(cpu, false), (tail, false)], "200 waits, of both");
    assert_eq!(harms(99, 1), [(cpu, false), (wait, false)], "199: there are too few");
    assert_eq!(harms(1000, 300), [(cpu, false), (tail, true)]);
}

mod tails;
