//! Properties of the fair-share solver.

use evenkeel_base::{CpuSet, Topology};
use evenkeel_model::fair::{Capacity, FairGroup, FairTask, solve};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn machine(cpus: u32) -> Capacity {
    Capacity::time(&Topology::synthetic(1, 1, cpus, 1))
}

fn task(group: Option<usize>, weight: f64, wanted: f64) -> FairTask {
    FairTask { group, weight, wanted_cpus: wanted, threads: 1, cpus: None }
}

fn group(parent: Option<usize>, weight: f64) -> FairGroup {
    FairGroup { parent, weight, quota_cpus: None, cpus: None }
}

#[track_caller]
fn near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() < 1e-6, "{got:?}, expected {expected:?}");
    }
}

#[test]
fn what_one_leaves_the_others_share_by_weight() {
    // 1 CPU: 40/50/10 promised as weights; the second wants only 20, its 30 go 40:10 to the others.
    let shares =
        solve(&machine(1), &[], &[task(None, 40., 1.), task(None, 50., 0.2), task(None, 10., 1.)]).unwrap();
    near(&shares.tasks, &[0.64, 0.2, 0.16]);
}

#[test]
fn groups_share_first_and_their_tasks_then() {
    // Weights 1024:512 give 2/3 and 1/3 however many tasks are inside.
    let groups = [group(None, 1024.), group(None, 512.)];
    let tasks = [task(Some(0), 1., 1.), task(Some(1), 1., 1.), task(Some(1), 1., 1.), task(Some(1), 2., 1.)];
    let shares = solve(&machine(1), &groups, &tasks).unwrap();
    near(&shares.groups, &[2. / 3., 1. / 3.]);
    near(&shares.tasks, &[2. / 3., 1. / 12., 1. / 12., 1. / 6.]);
}

#[test]
fn a_quota_leaves_the_rest_to_others_and_holds_over_all_below() {
    let mut groups = [group(None, 1.), group(Some(0), 1.), group(Some(0), 1.)];
    groups[0].quota_cpus = Some(0.5);
    let tasks = [task(Some(1), 1., 9.), task(Some(2), 3., 9.), task(None, 1., 9.)];
    let shares = solve(&machine(2), &groups, &tasks).unwrap();
    near(&shares.tasks, &[0.25, 0.25, 1.0]);
}

#[test]
fn cpusets_that_overlap() {
    // a on CPU 0, b on 0-1, c on 1: 2 CPUs for three equal tasks, 2/3 each is possible.
    let mut tasks = [task(None, 1., 1.), task(None, 1., 1.), task(None, 1., 1.)];
    tasks[0].cpus = Some(CpuSet::single(0));
    tasks[2].cpus = Some(CpuSet::single(1));
    near(&solve(&machine(2), &[], &tasks).unwrap().tasks, &[2. / 3.; 3]);
    // With two more on CPU 1 the second moves over to CPU 0.
    let mut more = tasks.to_vec();
    more.push(tasks[2].clone());
    more.push(tasks[2].clone());
    near(&solve(&machine(2), &[], &more).unwrap().tasks, &[0.5, 0.5, 1. / 3., 1. / 3., 1. / 3.]);
}

#[test]
fn siblings_share_a_core() {
    let work = Capacity::work(&Topology::synthetic(1, 1, 2, 2), 1.25);
    let tasks = vec![task(None, 1., 1.); 4];
    near(&solve(&work, &[], &tasks).unwrap().tasks, &[0.625; 4]);
    near(&solve(&work, &[], &tasks[..2]).unwrap().tasks, &[1.0; 2]);
}

#[test]
fn nonsense_is_refused() {
    assert!(solve(&machine(1), &[], &[task(None, 0., 1.)]).is_err());
    assert!(solve(&machine(1), &[], &[task(Some(0), 1., 1.)]).is_err());
    assert!(solve(&machine(1), &[group(Some(0), 1.)], &[]).is_err());
    assert!(solve(&machine(1), &[], &[task(None, 1., f64::NAN)]).is_err());
    assert_eq!(solve(&machine(1), &[], &[]).unwrap().tasks, []);
}

prop_compose! {
    fn random_task(groups: usize, cpus: u32)(
        weight in 1u32..2000, wanted in 0.0..2.0f64, threads in 1u32..4,
        group in 0..=groups, mask in 1u64..(1 << cpus), masked: bool,
    ) -> FairTask {
        FairTask {
            group: (group > 0).then(|| group - 1),
            weight: f64::from(weight),
            wanted_cpus: wanted,
            threads,
            cpus: masked.then(|| CpuSet::from_words(&[mask])),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn nobody_above_a_limit_and_nothing_wasted(
        cpus in 1u32..6,
        quotas in proptest::collection::vec(proptest::option::of(0.05..2.0f64), 0..4),
        parents in proptest::collection::vec(0usize..4, 4),
        seeds in proptest::collection::vec(random_task(3, 5), 1..12),
    ) {
        let groups: Vec<FairGroup> = quotas.iter().enumerate().map(|(i, quota)| FairGroup {
            parent: (parents[i] > 0 && i > 0).then(|| (parents[i] - 1) % i),
            weight: 100.0 * (i + 1) as f64,
            quota_cpus: *quota,
            cpus: None,
        }).collect();
        let mut tasks = seeds;
        for task in &mut tasks {
            task.group = task.group.filter(|g| *g < groups.len());
            if let Some(set) = &task.cpus
                && set.intersection(&CpuSet::first_n(cpus)).is_empty()
            {
                task.cpus = None;
            }
        }
        let shares = solve(&machine(cpus), &groups, &tasks).unwrap();
        let below = |g: usize, t: &FairTask| {
            let mut at = t.group;
            while let Some(x) = at {
                if x == g { return true; }
                at = groups[x].parent;
            }
            false
        };
        for (i, t) in tasks.iter().enumerate() {
            prop_assert!(shares.tasks[i] <= t.wanted_cpus.min(f64::from(t.threads)) + 1e-6);
        }
        for (g, spec) in groups.iter().enumerate() {
            if let Some(quota) = spec.quota_cpus {
                prop_assert!(shares.groups[g] <= quota + 1e-6);
            }
        }
        // Hall's condition for every set of CPUs: the tasks confined to it do not exceed it.
        let confined = |set: u64| -> f64 {
            tasks.iter().zip(&shares.tasks).filter(|(t, _)| {
                let own = t.cpus.as_ref().map_or((1u64 << cpus) - 1, |c| c.words()[0] & ((1 << cpus) - 1));
                own & !set == 0
            }).map(|(_, s)| s).sum()
        };
        for set in 1u64..(1 << cpus) {
            prop_assert!(confined(set) <= f64::from(set.count_ones()) + 1e-6);
        }
        // Work conservation: who has less than its wish is stopped by a full set of CPUs or a full quota.
        for (i, t) in tasks.iter().enumerate() {
            if shares.tasks[i] < t.wanted_cpus.min(f64::from(t.threads)) - 1e-6 {
                let by_quota = (0..groups.len()).any(|g| below(g, t)
                    && groups[g].quota_cpus.is_some_and(|q| shares.groups[g] >= q - 1e-6));
                let own = t.cpus.as_ref().map_or((1u64 << cpus) - 1, |c| c.words()[0] & ((1 << cpus) - 1));
                let by_cpus = (1u64..(1 << cpus)).any(|set| {
                    own & !set == 0 && confined(set) >= f64::from(set.count_ones()) - 1e-5
                });
                // Or every CPU it may use is one on which it would need to run twice at once.
                let by_threads = shares.tasks[i] >= f64::from(own.count_ones().min(t.threads)) - 1e-6;
                prop_assert!(by_quota || by_cpus || by_threads, "task {i} of {tasks:?}: {shares:?}");
            }
        }
    }

    #[test]
    fn max_min_one_pool_agrees_with_bisection(
        cpus in 1u32..5,
        spec in proptest::collection::vec((1u32..1000, 0.01..1.0f64), 1..15),
    ) {
        // Independent oracle: in one pool each gets min(cap, level * weight); the level is found by bisection.
        let tasks: Vec<FairTask> = spec.iter().map(|&(w, wanted)| task(None, f64::from(w), wanted)).collect();
        let shares = solve(&machine(cpus), &[], &tasks).unwrap();
        let total = |level: f64| -> f64 { spec.iter().map(|&(w, c)| c.min(level * f64::from(w))).sum() };
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..200 {
            let mid = (low + high) / 2.0;
            if total(mid) <= f64::from(cpus) { low = mid } else { high = mid }
        }
        for (share, &(w, c)) in shares.tasks.iter().zip(&spec) {
            prop_assert!((share - c.min(low * f64::from(w))).abs() < 1e-6);
        }
    }

    #[test]
    fn nobody_gains_but_from_one_who_has_no_more_per_weight(
        cpus in 2u32..5,
        tasks in proptest::collection::vec(random_task(0, 4), 2..7),
    ) {
        // Max-min optimality: moving a little from a task with more per weight to one that is short must be impossible, i.e. the
        // short one's CPUs are held, through any chain, only by tasks with no more per weight.
        let mut tasks = tasks;
        for t in &mut tasks {
            t.threads = 1;
            if t.cpus.as_ref().is_some_and(|c| c.intersection(&CpuSet::first_n(cpus)).is_empty()) {
                t.cpus = None;
            }
        }
        let shares = solve(&machine(cpus), &[], &tasks).unwrap().tasks;
        for i in 0..tasks.len() {
            let cap = tasks[i].wanted_cpus.min(1.0);
            if shares[i] > cap - 1e-5 { continue; }
            for j in 0..tasks.len() {
                let (wi, wj) = (tasks[i].weight, tasks[j].weight);
                if i == j || shares[j] / wj <= shares[i] / wi + 1e-5 || shares[j] < 1e-3 { continue; }
                // With j held to a little less, i must not be able to get more: solve with everybody's amounts as wishes.
                let mut fixed = tasks.clone();
                let step = 1e-3 * shares[j];
                for (k, t) in fixed.iter_mut().enumerate() {
                    t.wanted_cpus = shares[k] + if k == i { step.min(cap - shares[i]) } else if k == j { -step } else { 0.0 };
                }
                let wish: f64 = fixed.iter().map(|t| t.wanted_cpus).sum();
                let got: f64 = solve(&machine(cpus), &[], &fixed).unwrap().tasks.iter().sum();
                prop_assert!(got < wish - 1e-9, "{i} could take from {j}: {tasks:?} {shares:?}");
            }
        }
    }
}
