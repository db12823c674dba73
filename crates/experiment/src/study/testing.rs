//! Records in memory, for tests.

use super::compare::Side;
use crate::record::{
    Account, Cell, Ended, Host, Limits, Point, Record, Release, RunRecord, SCHEMA, TenantRecord,
};

/// A tenant whose runs began, ended (seconds) and did so many events.
pub fn tenant(name: &str, units: Option<u64>, runs: &[(f64, f64, f64)]) -> TenantRecord {
    let runs: Vec<RunRecord> = runs
        .iter()
        .enumerate()
        .map(|(number, &(start_s, end_s, events))| RunRecord {
            number: number as u32,
            start_s,
            end_s,
            events: Some(events.round() as u64),
            events_per_s: Some(events / (end_s - start_s)),
            account: Account { real_s: end_s - start_s, ..Account::default() },
            ..RunRecord::default()
        })
        .collect();
    let real_s = runs.last().map_or(0.0, |run| run.end_s);
    TenantRecord {
        name: name.into(),
        units,
        place: "cgroup".into(),
        limits: Limits {
            shares: units.map(|u| u * 16),
            unit_factor: units.map(|_| 16.0),
            ..Limits::default()
        },
        workload: "primes --seconds=1".into(),
        threads: 1,
        runs_planned: runs.len() as u32,
        release: Release::default(),
        ended: Ended::Done,
        total: Account { real_s, ..Account::default() },
        runs,
    }
}

pub fn cell(tenants: Vec<TenantRecord>) -> Cell {
    Cell {
        seconds: tenants.iter().map(|t| t.total.real_s).fold(0.0, f64::max),
        activation: (0..tenants.len()).collect(),
        tenants,
        ..Cell::default()
    }
}

/// A record of these cells on two CPUs; points are numbered as the cells come, equal labels are one point.
pub fn record(cells: Vec<(&str, Cell)>) -> Record {
    let mut labels: Vec<String> = Vec::new();
    let cells: Vec<Cell> = cells
        .into_iter()
        .map(|(label, mut cell)| {
            let index = labels.iter().position(|l| l == label).unwrap_or_else(|| {
                labels.push(label.to_owned());
                labels.len() - 1
            });
            cell.point = Point { index, label: label.into(), ..cell.point };
            cell
        })
        .collect();
    let mut record = Record {
        schema: SCHEMA.into(),
        name: "test".into(),
        version: "0".into(),
        began: "2026-01-01T00:00:00Z".into(),
        finished: Some("2026-01-01T00:01:00Z".into()),
        host: Host { cpus: Some(2), cores: Some(2), ..Host::default() },
        planned_cells: cells.len(),
        cells,
        ..Record::default()
    };
    for (n, cell) in record.cells.iter_mut().enumerate() {
        cell.repetition = n as u32;
    }
    record
}

/// `count` runs of a second each at this many events a second.
pub fn steady(name: &str, units: u64, count: usize, per_s: f64) -> TenantRecord {
    let runs: Vec<_> = (0..count).map(|n| (n as f64, n as f64 + 1.0, per_s)).collect();
    tenant(name, Some(units), &runs)
}

/// Two tenants of one and two units at one point, three times; rates times `scale`.
pub(super) fn side(name: &str, scale: f64) -> Side {
    let one = |jitter: f64| {
        cell(vec![
            steady("a", 1, 4, scale * (10_000.0 + jitter)),
            steady("b", 2, 4, scale * (20_000.0 - jitter)),
        ])
    };
    Side::of(name, record(vec![("p", one(0.0)), ("p", one(20.0)), ("p", one(-20.0))]))
}
