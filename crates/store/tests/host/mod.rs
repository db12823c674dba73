//! A host with tasks, made up, and a place for its history.

use std::path::PathBuf;

use evenkeel_base::run::{Estimate, Predicted, Stage};
use evenkeel_base::{CpuTimes, GroupSample, Sample, TaskId, TaskSample};
use evenkeel_store::Store;

pub const S: u64 = 1_000_000_000;

pub fn now_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

pub fn task(tgid: u32, ran_ns: u64) -> TaskSample {
    TaskSample {
        id: TaskId { tgid, tid: tgid, start_time: 10 },
        cpu: Some(tgid % 2),
        ran_ns,
        waited_ns: Some(ran_ns / 2),
        timeslices: Some(ran_ns / 1000),
        ..TaskSample::default()
    }
}

/// A host of `tasks` tasks of which the first `busy` run; `at` seconds after `start_ns`.
pub fn sample(start_ns: u64, at: u64, tasks: u32, busy: u32) -> Sample {
    Sample {
        monotonic_ns: 1000 * S + at * S,
        wall_ns: start_ns + at * S,
        cpus: (0..2)
            .map(|cpu| CpuTimes { cpu, busy_ns: at * S / 2, idle_ns: at * S / 2, irq_ns: 0, steal_ns: None })
            .collect(),
        tasks: (1..=tasks)
            .map(|n| task(n, if n <= busy { at * S * u64::from(n) / 1000 } else { 5_000_000 }))
            .collect(),
        groups: vec![GroupSample {
            path: "/".into(),
            usage_ns: Some(at * S),
            throttled_ns: Some(0),
            ..GroupSample::default()
        }],
        ..Sample::default()
    }
}

pub fn dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    (dir, path)
}

pub fn read_all(store: &Store) -> Vec<Sample> {
    store.samples(0, u64::MAX).unwrap().map(|s| s.unwrap().sample).collect()
}

pub fn stage(name: &str, at: u64) -> Stage {
    Stage {
        name: name.into(),
        started_ns: at * S,
        seconds: 3.0,
        cpu_pct: Some(Estimate { value: 150.0, low: 149.0, high: 151.0 }),
        wait_per_ran: None,
        fulfilment: Some(Estimate { value: 0.95, low: 0.94, high: 0.96 }),
        fulfilment_estimated: true,
        kept: Some(false),
        why: "no better".into(),
        predicted: Some(Predicted { cpu_pct: 151.0, cpu_change_pct: Some(0.7), wait_per_ran: None }),
    }
}
