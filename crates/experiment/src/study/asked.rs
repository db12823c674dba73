//! What runs were asked for, and which of them were alone.

use crate::record::{Record, TenantRecord};

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

/// Mean run alone, milliseconds, as [`Overhead`] has it.
pub(super) fn alone_ms(record: &Record) -> Option<crate::decide::Mean> {
    let of = |tenant: &&TenantRecord| tenant.runs.iter().filter_map(|r| Some(1e3 * r.length_s()?)).collect();
    crate::decide::Mean::of_groups(&alone_runs(record).iter().map(of).collect::<Vec<_>>())
}

/// Tenants that were alone, had no quota, and computed.
pub(super) fn alone_runs(record: &Record) -> Vec<&TenantRecord> {
    // Under an enforcer nobody has the host to itself (a simulated cell tells of none).
    let enforced = record.experiment.as_ref().is_some_and(|e| e.enforcer.is_some());
    record
        .cells
        .iter()
        .filter(|cell| cell.tenants.len() == 1 && cell.enforcer.is_none() && !enforced)
        .flat_map(|cell| &cell.tenants)
        .filter(|tenant| tenant.limits.quota_pct.is_none() && !tenant.runs.is_empty())
        // Held to fewer CPUs it is not alone on the host.
        .filter(|tenant| !record.host.is_confined_by(tenant.limits.cpus.as_ref()))
        .collect()
}
