//! What runs were asked for, and which of them were alone.

use serde_json::Value;

use super::point::kind;
use crate::record::{Cell, Record, RunRecord, TenantRecord};

/// The value of an option in a command line, as `--read own` or `--read=own`.
pub(crate) fn option<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut words = line.split_ascii_whitespace();
    while let Some(word) = words.next() {
        match word.strip_prefix(name) {
            Some("") => return words.next(),
            Some(rest) if rest.starts_with('=') => return rest.strip_prefix('='),
            _ => {}
        }
    }
    None
}

/// Seconds a run was asked to last: by the workload's command line (`--seconds 10`, `--time=10`), else by the experiment,
/// where all its tenants are asked for the same.
pub fn asked_s(record: &Record, workload: &str) -> Option<f64> {
    let said = option(workload, "--seconds").or_else(|| option(workload, "--time"));
    if let Some(seconds) = said.and_then(|v| v.trim_end_matches('s').parse().ok()) {
        return Some(seconds);
    }
    let tenants = record.experiment.iter().flat_map(|e| &e.tenants).filter(|t| !t.background);
    let mut asked = tenants.map(|t| t.run_s);
    let first = asked.next()??;
    asked.all(|other| other == Some(first)).then_some(first)
}

/// What a run does: the load, the seconds or events asked for, also where a sweep says so, and the threads that share
/// these, a command's own, too. Only lengths of the same work can be held against each other.
type Work<'a> = (
    Vec<&'a str>,
    Option<f64>,
    Option<&'a str>,
    Option<(u32, Option<&'a str>)>,
    Vec<(&'a String, &'a Value)>,
);

fn work<'a>(record: &Record, cell: &'a Cell, tenant: &'a TenantRecord) -> Work<'a> {
    let line = &tenant.workload;
    let seconds = asked_s(record, line);
    let sizes = |(field, _): &(&String, &Value)| field.ends_with(".run_s") || field.ends_with(".events");
    let swept = cell.point.settings.iter().filter(sizes).collect();
    let threads = seconds.is_none().then(|| (tenant.threads, option(line, "--threads")));
    (kind(line), seconds, option(line, "--events"), threads, swept)
}

/// Lengths of the runs of tenants that were alone, had no quota, and computed, seconds.
pub(super) struct Alone<'a> {
    record: &'a Record,
    /// By their work, a group a repetition.
    works: Vec<(Work<'a>, Vec<Vec<f64>>)>,
}

impl<'a> Alone<'a> {
    pub fn of(record: &'a Record) -> Self {
        let mut works: Vec<(Work<'a>, Vec<Vec<f64>>)> = Vec::new();
        // Under an enforcer nobody has the host to itself (a simulated cell tells of none).
        let enforced = record.experiment.as_ref().is_some_and(|e| e.enforcer.is_some());
        for cell in record.cells.iter().filter(|cell| cell.enforcer.is_none() && !enforced) {
            let [tenant] = cell.tenants.as_slice() else { continue };
            // Held to fewer CPUs it is not alone on the host.
            let held =
                tenant.limits.quota_pct.is_some() || record.host.is_confined_by(tenant.limits.cpus.as_ref());
            let lengths: Vec<f64> = tenant.runs.iter().filter_map(RunRecord::length_s).collect();
            if held || lengths.is_empty() {
                continue;
            }
            let work = work(record, cell, tenant);
            match works.iter_mut().find(|(known, _)| *known == work) {
                Some((_, groups)) => groups.push(lengths),
                None => works.push((work, vec![lengths])),
            }
        }
        Self { record, works }
    }

    /// Those of the work that a tenant does.
    pub fn like(&self, cell: &Cell, tenant: &TenantRecord) -> &[Vec<f64>] {
        let work = work(self.record, cell, tenant);
        self.works.iter().find(|(known, _)| *known == work).map_or(&[], |(_, groups)| groups)
    }

    /// All of them, with the seconds asked for, where they did the same work.
    pub fn only(&self) -> Option<(Option<f64>, &[Vec<f64>])> {
        let [((_, seconds, ..), groups)] = self.works.as_slice() else { return None };
        Some((*seconds, groups))
    }
}
