//! The sources' tables, simulated as they were run; source beside simulated is printed (`--nocapture`).

#![allow(clippy::unwrap_used)] // helpers of tests

use evenkeel_base::{CpuQuota, CpuSet, Limit, Topology};
use evenkeel_model::sim::{Group, Kernel, Load, Machine, Report, Scenario, Task, simulate};

/// The edge router: 1158 events/s on one of two CPUs that do 1.75 times as much together (2027.65 / 1158.54); an idle run takes
/// 13 ms more than its 10 s. Linux of its time, HZ 250.
fn router(units: &[f64], runs: u32, seed: u64) -> Report {
    let mut s = Scenario::new(1);
    s.machine = Machine::new(Topology::synthetic(1, 1, 1, 2));
    s.machine.smt_speedup = 1.75;
    s.kernel = Kernel::release(4, 4);
    s.measure_from_ns = 0;
    s.duration_ns = 2_000_000_000_000;
    s.stop_when_done = true;
    s.seed = seed;
    for (i, &weight) in units.iter().enumerate() {
        s.groups.push(Group { weight: weight * 16.0, ..Group::new(format!("c{i}"), None) });
        let load = Load::Runs {
            run_ns: 10_000_000_000,
            runs,
            event_ns: (1e9 / 1158.0) as u64,
            overhead_work_ns: 12_000_000,
            overhead_sleep_ns: 1_000_000,
        };
        s.tasks.push(Task::new(format!("c{i}"), Some(i), load));
    }
    simulate(&s).unwrap()
}

/// Mean of the runs' events per second, by container.
fn eps(report: &Report) -> Vec<f64> {
    report
        .tasks
        .iter()
        .map(|t| t.runs.iter().map(|r| r.events_per_s()).sum::<f64>() / t.runs.len().max(1) as f64)
        .collect()
}

#[track_caller]
fn compare(what: &str, source: &[f64], ours: &[f64], tolerance: f64) {
    println!("{what}");
    let mut worst = 0.0f64;
    for (s, o) in source.iter().zip(ours) {
        println!("  source {s:9.2}  simulated {o:9.2}  {:+.1} %", 100.0 * (o / s - 1.0));
        worst = worst.max((o / s - 1.0).abs());
    }
    assert!(worst <= tolerance, "{what}: off by {:.1} %", 100.0 * worst);
}

#[test]
fn alone_units_do_not_matter() {
    for units in [1.0, 64.0, 1155.0] {
        compare("one container", &[1157.0], &eps(&router(&[units], 3, 1)), 0.01);
    }
    compare("two containers", &[1021.74; 2], &eps(&router(&[64.0; 2], 3, 1)), 0.02);
}

#[test]
fn mixed_units() {
    let five = eps(&router(&[16., 16., 32., 64., 128.], 20, 1));
    compare("5 containers", &[130.61, 133.09, 256.35, 510.75, 1030.06], &five, 0.06);
    let six = eps(&router(&[16., 16., 32., 64., 128., 256.], 20, 1));
    compare("6 containers", &[77.69, 76.17, 131.12, 256.60, 511.84, 1005.16], &six, 0.07);
}

#[test]
fn twenty_equal_containers() {
    compare("20 x 64", &[97.6; 20], &eps(&router(&[64.0; 20], 5, 1)), 0.08);
}

#[test]
fn small_ones_speed_up_after_the_large_have_finished() {
    let units: Vec<f64> = (0..10).map(|i| f64::from(1 << i)).collect();
    let ours = eps(&router(&units, 20, 1));
    let source = [327.26, 219.31, 120.64, 79.38, 69.61, 73.25, 134.42, 260.40, 515.35, 1001.11];
    for (s, o) in source.iter().zip(&ours) {
        println!("  source {s:9.2}  simulated {o:9.2}");
    }
    assert!(ours[0] > ours[4], "the 1-unit container ends faster than the 16-unit one: {ours:?}");
    // The same U: falling to the 16-unit one, rising from there.
    assert!(
        ours[..5].windows(2).all(|w| w[0] > w[1]) && ours[4..].windows(2).all(|w| w[0] < w[1]),
        "{ours:?}"
    );
    assert!(source[5..].iter().zip(&ours[5..]).all(|(s, o)| (o / s - 1.0).abs() < 0.06), "{ours:?}");
}

/// Cost of finding whether a number is prime as the source's times imply: divisions up to half of it for a prime, up to the smallest
/// factor otherwise. Scaled so that 20 cores without siblings need 123.06 s in all.
fn sieve_items() -> Vec<u32> {
    let small: Vec<u32> =
        (3..10_010u32).step_by(2).filter(|n| (3..=100).step_by(2).all(|d| n % d != 0 || *n == d)).collect();
    let cost = |n: u32| {
        if n.is_multiple_of(2) {
            return 2;
        }
        small.iter().copied().find(|d| n.is_multiple_of(*d)).unwrap_or(n / 2)
    };
    let divisions: Vec<u32> = (100_010_001..=100_020_000u32).map(cost).collect();
    let total: f64 = divisions.iter().map(|&d| f64::from(d)).sum();
    divisions.iter().map(|&d| (f64::from(d) * 123.06e9 / total) as u32).collect()
}

fn sieve(cpus: Option<&str>, quota: Option<u64>, groups: usize) -> Vec<f64> {
    let mut s = Scenario::new(1);
    s.machine = Machine::new(Topology::synthetic(2, 1, 10, 2));
    s.machine.smt_speedup = 2.0 * 123.06 / 227.18;
    s.kernel = Kernel::release(4, 4);
    s.measure_from_ns = 0;
    s.duration_ns = 100_000_000_000;
    s.stop_when_done = true;
    for g in 0..groups {
        s.counters.push(sieve_items());
        let quota = CpuQuota { quota_usec: quota.map_or(Limit::Max, Limit::Value), ..CpuQuota::UNLIMITED };
        let cpus: Option<CpuSet> = cpus.map(|c| c.parse().unwrap());
        s.groups.push(Group { quota, cpus, ..Group::new(format!("g{g}"), None) });
        for t in 0..48 {
            s.tasks.push(Task::new(format!("{g}.{t}"), Some(g), Load::Counter { counter: g }));
        }
    }
    let report = simulate(&s).unwrap();
    let end = |g: usize| {
        report.tasks[48 * g..48 * (g + 1)].iter().filter_map(|t| t.ended_ns).max().unwrap_or(u64::MAX)
    };
    (0..groups).map(|g| end(g) as f64 / 1e9).collect()
}

#[test]
fn prime_sieve_by_cpuset_and_shares() {
    compare("cpuset 0-19", &[6.225], &sieve(Some("0-19"), None, 1), 0.10);
    compare("cpuset 0-39", &[5.922], &sieve(Some("0-39"), None, 1), 0.10);
    compare("cpuset one socket", &[11.467], &sieve(Some("0-9,20-29"), None, 1), 0.10);
    compare("shares equal", &[11.683, 11.241], &sieve(None, None, 2), 0.10);
    // The source's quota run charged 341 CPU seconds for work that takes 228 on busy siblings: 1.5 times. Nothing in the scheduler
    // does that; CPUs that idle half of the time and are therefore clocked down would.
    let quota = sieve(None, Some(2_000_000), 1)[0];
    println!(
        "quota 20 of 40: source 17.124, simulated {quota:.2}; with the clock at 2/3: {:.2}",
        quota * 1.5
    );
    assert!((quota * 1.5 / 17.124 - 1.0).abs() < 0.12, "{quota}");
}
