//! What deciding costs: the plan for 10,000 tasks on 256 CPUs (to stay within 10 ms), every lever's proposal on such a
//! host, and a trial with 500 tasks under guard.

use divan::{Bencher, black_box};
use evenkeel_base::{CpuSet, GroupView, HostView, Nice, Observation, SchedAttr, TaskId, TaskView, Topology};
use evenkeel_policy::guard::{Guard, GuardLimits};
use evenkeel_policy::levers::{self, Features, Scene};
use evenkeel_policy::placement::{self, Load, Slot};
use evenkeel_policy::priority;
use evenkeel_policy::trial::{Pace, Trial, TrialRules};
use evenkeel_policy::window::{Rates, Summary};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

const TASKS: u32 = 10_000;
const CPUS: u32 = 256;
/// Tasks of one process, and processes of one cgroup.
const THREADS: u32 = 10;
const PROCESSES: u32 = 10;

fn main() {
    divan::main();
}

/// 256 CPUs without structure: greedy placement needs nothing but loads.
fn flat() -> Topology {
    Topology::synthetic(1, 1, CPUS, 1)
}

/// 256 CPUs as servers have them: 2 nodes, 8 last-level caches each, 8 cores each, 2 threads each.
fn server() -> Topology {
    Topology::synthetic(2, 8, 8, 2)
}

/// Demands that sum to three quarters of the host, each process's threads a family.
fn loads(allowed: &CpuSet) -> Vec<Load<'_>> {
    let mut rng = Pcg32::seed_from_u64(1);
    let mean = 75.0 * f64::from(CPUS) / f64::from(TASKS);
    (0..TASKS)
        .map(|i| Load { pct: mean * rng.random_range(0.2..1.8), allowed, family: Some(i / THREADS) })
        .collect()
}

/// Placement on every CPU's slot, then niceness on each CPU: the published recipe, in full.
fn plan(loads: &[Load<'_>], slots: &[Slot], base: &[Nice]) -> (Vec<Option<u32>>, Vec<Nice>) {
    let placed = placement::place(loads, slots);
    let mut on_cpu: Vec<Vec<usize>> = vec![Vec::new(); CPUS as usize];
    for (index, cpu) in placed.iter().enumerate() {
        if let Some(cpu) = cpu {
            on_cpu[*cpu as usize].push(index);
        }
    }
    let mut nice = base.to_vec();
    for members in &on_cpu {
        let pcts: Vec<f64> = members.iter().map(|&i| loads[i].pct).collect();
        let had: Vec<Nice> = members.iter().map(|&i| base[i]).collect();
        for (&index, value) in members.iter().zip(priority::proportional(&pcts, &had)) {
            nice[index] = value;
        }
    }
    (placed, nice)
}

#[divan::bench]
fn placement_and_niceness_of_10_000_tasks_on_256_cpus(bencher: Bencher<'_, '_>) {
    let all = CpuSet::first_n(CPUS);
    let (loads, slots) = (loads(&all), placement::slots(&flat(), |_| 0.0));
    let base = vec![Nice::default(); loads.len()];
    bencher.bench_local(|| plan(black_box(&loads), &slots, &base));
}

#[divan::bench]
fn placement_and_niceness_on_256_cpus_with_nodes_and_siblings(bencher: Bencher<'_, '_>) {
    let all = CpuSet::first_n(CPUS);
    let (loads, slots) = (loads(&all), placement::slots(&server(), |_| 0.0));
    let base = vec![Nice::default(); loads.len()];
    bencher.bench_local(|| plan(black_box(&loads), &slots, &base));
}

/// A host of 10,000 busy threads in 1,000 processes in 100 cgroups.
fn observation(topology: Topology) -> Observation {
    let all = CpuSet::first_n(CPUS);
    let loads = loads(&all);
    let mut groups = vec![group("/", None)];
    groups.extend((0..TASKS / THREADS / PROCESSES).map(|g| group(&format!("/pod{g}"), Some(0))));
    let tasks: Vec<TaskView> = (0..TASKS)
        .zip(&loads)
        .map(|(i, load)| TaskView {
            ppid: 50,
            cpu: Some(i % CPUS),
            affinity: Some(topology.online.clone()),
            sched: Some(SchedAttr::DEFAULT),
            group: Some(1 + i / THREADS / PROCESSES),
            cpu_pct: load.pct,
            wait_pct: Some(load.pct / 10.0),
            voluntary_per_s: Some(10.0),
            involuntary_per_s: Some(1.0),
            ..TaskView::of(
                TaskId { tgid: 100 + i / THREADS * THREADS, tid: 100 + i, start_time: 5 },
                format!("t{i}"),
            )
        })
        .collect();
    Observation { host: HostView::evenly(CPUS, 75.0), tasks, groups, ..Observation::of(topology) }
}

fn group(path: &str, parent: Option<u32>) -> GroupView {
    GroupView { load_weight: Some(1024), raw_weight: Some(1024), ..GroupView::of(path, parent, false) }
}

#[divan::bench]
fn every_lever_for_10_000_tasks_on_256_cpus(bencher: Bencher<'_, '_>) {
    let observation = observation(server());
    assert!(levers::plans(&Scene::new(&observation, Features::MODERN, |_| true)).len() > 3);
    bencher.bench_local(|| {
        let scene = Scene::new(black_box(&observation), Features::MODERN, |_| true);
        levers::with_pull(&scene, levers::plans(&scene))
    });
}

#[divan::bench(args = levers::LEVERS.iter().map(|lever| lever.name).filter(|name| *name != "nice" && *name != "realtime" && !name.starts_with("scx_")))]
fn one_lever(bencher: Bencher<'_, '_>, name: &str) {
    let observation = observation(server());
    let scene = Scene::new(&observation, Features::MODERN, |_| true);
    bencher.bench_local(|| levers::plan_named(name, black_box(&scene)));
}

/// One window of a host with 500 tasks; challengers are a little better, noise is added.
fn window(rng: &mut Pcg32, candidate: usize) -> Summary {
    let rates = |tid| {
        let rates = Rates {
            got_pct: 5.0 * rng.random_range(0.9..1.1),
            waited_pct: Some(2.0 * rng.random_range(0.8..1.2) / (1.0 + candidate as f64)),
            waits: Some(100),
            in_scope: tid < 400,
            owner: None,
        };
        (TaskId { tgid: tid, tid, start_time: 1 }, rates)
    };
    Summary { outside_pct: Some(100.0), ..Summary::of(1.0, (0..500).map(rates).collect()) }
}

#[divan::bench]
fn guard_of_500_tasks_over_twelve_windows(bencher: Bencher<'_, '_>) {
    let mut rng = Pcg32::seed_from_u64(2);
    let before: Vec<Summary> = (0..12).map(|_| window(&mut rng, 0)).collect();
    let after: Vec<Summary> = (0..12).map(|_| window(&mut rng, 1)).collect();
    bencher.bench_local(|| {
        let mut guard = Guard::new(GuardLimits::default(), &before, &[]);
        before.iter().zip(&after).for_each(|(before, after)| guard.pair(black_box(before), after));
        guard.doubts()
    });
}

#[divan::bench]
fn trial_of_eight_candidates_with_500_tasks(bencher: Bencher<'_, '_>) {
    let mut rng = Pcg32::seed_from_u64(3);
    let windows: Vec<Vec<Summary>> = (0..8).map(|c| (0..12).map(|_| window(&mut rng, c)).collect()).collect();
    bencher.bench_local(|| {
        let mut trial = Trial::new(7, TrialRules::default(), Pace::new(1.0, 0.1));
        let mut count = 0;
        while let Some(turn) = trial.next(100.0 - count as f64) {
            trial.record(windows[turn.candidate][count % 12].clone(), Vec::new());
            count += 1;
        }
        trial.decide()
    });
}
