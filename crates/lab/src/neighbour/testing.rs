//! Records for tests.

use evenkeel_experiment::record::{CellRecord, Host};
use evenkeel_workload::latency::LatencySummary;

use super::plan::{Arm, NAME, Options, Point};
use super::record::{Arms, Cell, Chosen, Measured, NeighbourRecord};

/// What was measured, by the 99th percentile, the batch's CPU and how many were asked and answered.
pub(super) fn measured(p99_usec: f64, batch_pct: f64, (asked, answered): (u64, u64)) -> Measured {
    Measured {
        seconds: 2.0,
        asked,
        answered,
        latency: Some(LatencySummary {
            mean_usec: p99_usec / 2.0,
            p50_usec: p99_usec / 2.0,
            p90_usec: p99_usec,
            p99_usec,
            p999_usec: Some(2.0 * p99_usec),
            max_usec: 3.0 * p99_usec,
        }),
        service_pct: Some(20.0),
        clients_pct: None,
        batch_pct: Some(batch_pct),
        host_pct: Some(190.0),
        steal_pct: Some(0.0),
    }
}

/// The short form on two CPUs, complete: `of` gives what a point measured in a repetition, from the start of evenkeel or not.
pub(super) fn record(of: impl Fn(&Point, u32, bool) -> Measured) -> NeighbourRecord {
    record_of(Options::defaults(true, 2), of)
}

pub(super) fn record_of(options: Options, of: impl Fn(&Point, u32, bool) -> Measured) -> NeighbourRecord {
    let points = options.points().unwrap();
    let host = Host { cpus: Some(2), ..Host::default() };
    let mut record = NeighbourRecord::begin(NAME, host, options, Vec::new(), points.clone());
    for repetition in 0..record.options.repetitions {
        for (index, point) in points.iter().enumerate() {
            let evenkeel = point.arm == Arm::Evenkeel;
            let chosen = Chosen { settings: "idle groups".into(), why: "kept".into(), not_restored: 0 };
            let measured = Arms {
                in_force: Some(of(point, repetition, false)),
                from_start: evenkeel.then(|| of(point, repetition, true)),
                evenkeel: evenkeel.then_some(chosen),
            };
            record.add(Cell { point: index, repetition, ..measured.into() }, "end".into());
        }
    }
    record
}
