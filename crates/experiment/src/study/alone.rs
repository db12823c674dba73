//! What a command would do next to others, by its run alone: its need is measured where the record has it alone and
//! without a limit; elsewhere it gets its fair share of CPUs (weights, quotas, cpusets), again each time one of the
//! tenants begins or is done.
//!
//! ```text
//! alone: 6 CPU seconds in 4 s = 1.5 CPUs wanted
//! next to an equal one on 2 CPUs: 1 CPU each, so 6 s; the share of one that is done goes to the other
//! ```

use super::point::{PointStudy, group, machine, shares};
use super::window::work;
use crate::file::PlannedPoint;
use crate::record::{Cell, Ended, Host, Record, TenantRecord};
use evenkeel_base::stats::mean;

/// What one run of a command needs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Need {
    real_s: f64,
    cpu_s: f64,
    events: Option<f64>,
}

/// A tenant next to others, as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Job {
    /// CPUs it would use at most.
    wanted: f64,
    /// CPU seconds left; `None`: it never ends.
    left_s: Option<f64>,
    /// When it begins, seconds from the release.
    start_s: f64,
}

/// Whether a tenant runs a command: only those have an exit status.
fn is_command(tenant: &TenantRecord) -> bool {
    tenant.runs.iter().any(|run| run.exit_status.is_some())
}

/// Whether a tenant had the host to itself.
fn is_alone(host: &Host, cell: &Cell) -> bool {
    let [only] = cell.tenants.as_slice() else { return false };
    cell.enforcer.is_none()
        && only.ended == Ended::Done
        && only.limits.quota_pct.is_none()
        && !host.is_confined_by(only.limits.cpus.as_ref())
        && only.runs.iter().all(|run| run.exit_status == Some(0))
}

/// The mean run alone of a workload.
fn need(record: &Record, workload: &str) -> Option<Need> {
    let runs: Vec<_> = record
        .cells
        .iter()
        .filter(|cell| is_alone(&record.host, cell))
        .flat_map(|cell| &cell.tenants)
        .filter(|tenant| tenant.workload == workload)
        .flat_map(|tenant| &tenant.runs)
        .collect();
    let of = |f: &dyn Fn(&crate::record::RunRecord) -> Option<f64>| {
        mean(&runs.iter().map(|run| f(run)).collect::<Option<Vec<f64>>>()?)
    };
    let need = Need {
        real_s: of(&crate::record::RunRecord::length_s)?,
        cpu_s: of(&|run| run.account.cpu_s())?,
        events: of(&work),
    };
    (need.real_s > 0.0 && need.cpu_s > 0.0).then_some(need)
}

/// When each tenant begins, seconds from the release, as the experiment says.
fn starts(planned: &[PlannedPoint], cell: &Cell) -> Vec<f64> {
    let start_s = |tenant: &TenantRecord| {
        let experiment = &planned.get(cell.point.index)?.experiment;
        let planned = experiment.tenants().into_iter().find(|planned| planned.name == tenant.name)?;
        Some(experiment.tenants.get(planned.spec)?.start_s)
    };
    cell.tenants.iter().map(|tenant| start_s(tenant).unwrap_or(0.0)).collect()
}

/// How long each job takes from its start, seconds; `None` for those that never end.
fn ends(host: &Host, tenants: &[TenantRecord], jobs: &[Job]) -> Option<Vec<Option<f64>>> {
    let machine = machine(host)?;
    let mut left: Vec<Option<f64>> = jobs.iter().map(|job| job.left_s).collect();
    let mut ends: Vec<Option<f64>> = vec![None; jobs.len()];
    // Nobody runs before.
    let mut now = jobs.iter().map(|job| job.start_s).min_by(f64::total_cmp).unwrap_or(0.0);
    while left.iter().zip(&ends).any(|(left, end)| left.is_some() && end.is_none()) {
        // Who has not begun has no share yet.
        let runs = |n: &usize| ends[*n].is_none() && jobs[*n].start_s <= now + 1e-9;
        let running: Vec<usize> = (0..jobs.len()).filter(runs).collect();
        let wants = |&n: &usize| (group(&tenants[n]), jobs[n].wanted, jobs[n].wanted.ceil().max(1.0) as u32);
        let got = shares(&machine, running.iter().map(wants))?;
        let until = |at: usize| Some(left[running[at]]? / got[at]).filter(|s| s.is_finite());
        let begins = jobs.iter().map(|job| job.start_s - now).filter(|s| *s > 1e-9);
        let step = (0..running.len()).filter_map(until).chain(begins).min_by(f64::total_cmp)?;
        now += step;
        for (at, &n) in running.iter().enumerate() {
            if let Some(left) = &mut left[n] {
                *left -= got[at] * step;
                if *left <= 1e-9 {
                    ends[n] = Some(now - jobs[n].start_s);
                }
            }
        }
    }
    Some(ends)
}

/// Sets what is expected of commands at every point but those where they are alone.
pub(super) fn predict(record: &Record, points: &mut [PointStudy]) {
    let planned =
        record.experiment.as_ref().and_then(|experiment| experiment.points().ok()).unwrap_or_default();
    for point in points {
        let mut cells = record.cells.iter().filter(|cell| cell.point.index == point.index);
        let Some(cell) = cells.find(|cell| !cell.tenants.is_empty()) else { continue };
        if !cell.tenants.iter().any(is_command) {
            continue;
        }
        match of_cell(record, &planned, cell) {
            Ok(all) => {
                for (study, (need, end_s)) in point.tenants.iter_mut().zip(all) {
                    let (Some(need), Some(end_s)) = (need, end_s) else { continue };
                    let run_s = end_s / f64::from(study_runs(cell, &study.name));
                    study.predicted_elapsed_s = Some(end_s);
                    study.predicted_run_s = Some(run_s);
                    study.predicted_per_s = need.events.map(|events| events / run_s);
                    study.unpredicted = None;
                }
            }
            Err(why) => {
                for study in point.tenants.iter_mut().filter(|t| t.predicted_elapsed_s.is_none()) {
                    study.unpredicted = Some(why.clone());
                }
            }
        }
    }
}

fn study_runs(cell: &Cell, name: &str) -> u32 {
    cell.tenants.iter().find(|t| t.name == name).map_or(1, |t| t.runs_planned.max(1))
}

/// The need of one run and the end of each tenant.
type Expected = Vec<(Option<Need>, Option<f64>)>;

fn of_cell(record: &Record, planned: &[PlannedPoint], cell: &Cell) -> Result<Expected, String> {
    if cell.enforcer.is_some() {
        return Err("under a steal emulator only loads whose need is known beforehand are predicted".into());
    }
    if is_alone(&record.host, cell) {
        return Err("it is the run alone that the others are predicted from".into());
    }
    let mut needs = Vec::new();
    let mut jobs = Vec::new();
    for (tenant, start_s) in cell.tenants.iter().zip(starts(planned, cell)) {
        if tenant.runs_planned == 0 {
            needs.push(None);
            jobs.push(Job { wanted: f64::from(tenant.threads.max(1)), left_s: None, start_s });
            continue;
        }
        if !is_command(tenant) {
            return Err(format!("next to {}, which runs a built-in load, nothing is predicted", tenant.name));
        }
        let need = need(record, &tenant.workload).ok_or_else(|| {
            format!(
                "the record has no run of `{}` alone and without a limit to predict it from",
                tenant.workload
            )
        })?;
        needs.push(Some(need));
        let left_s = Some(need.cpu_s * f64::from(tenant.runs_planned));
        jobs.push(Job { wanted: need.cpu_s / need.real_s, left_s, start_s });
    }
    let ends = ends(&record.host, &cell.tenants, &jobs).ok_or("the host's CPUs are not known")?;
    Ok(needs.into_iter().zip(ends).collect())
}

#[cfg(test)]
mod tests {
    use super::super::study;
    use super::super::testing::{cell, record, tenant};
    use super::*;
    use crate::file::{Experiment, TenantSpec};
    use crate::record::{Account, Limits};

    /// One run of a command of so many CPU seconds in so many seconds.
    fn make(name: &str, real_s: f64, cpu_s: f64, limits: Limits) -> TenantRecord {
        let mut tenant = tenant(name, None, &[(0.0, real_s, 0.0)]);
        tenant.workload = "make".into();
        tenant.limits = limits;
        let run = &mut tenant.runs[0];
        (run.events, run.events_per_s, run.exit_status) = (None, None, Some(0));
        run.account = Account { real_s, user_s: Some(cpu_s), sys_s: Some(0.0), ..Account::default() };
        tenant
    }

    fn none() -> Limits {
        Limits::default()
    }

    #[test]
    fn a_command_is_predicted_from_its_run_alone() {
        // Alone: 6 CPU seconds in 4 s, so 1.5 of the two CPUs.
        let quota = Limits { quota_pct: Some(50.0), ..none() };
        let heavy = Limits { shares: Some(3072), ..none() };
        let mut record = record(vec![
            ("alone", cell(vec![make("a", 4.0, 6.0, none())])),
            ("quota", cell(vec![make("a", 13.0, 6.0, quota)])),
            ("two", cell(vec![make("a", 7.0, 6.0, none()), make("b", 7.0, 6.0, none())])),
            ("3:1", cell(vec![make("a", 4.1, 6.0, heavy), make("b", 7.0, 6.0, none())])),
        ]);
        record.host.cpus = Some(2);
        let points = study(&record).points;
        let expected = |point: usize, tenant: usize| points[point].tenants[tenant].predicted_elapsed_s;
        assert!(points[0].tenants[0].unpredicted.as_ref().is_some_and(|why| why.contains("run alone")));
        // 6 / 0.5; one CPU each; 1.5 CPUs for the heavy one: done after 4 s, the light one has done 2 of 6 and goes on
        // with its 1.5 CPUs.
        let close = |got: Option<f64>, s: f64| assert!((got.unwrap() - s).abs() < 1e-6, "{got:?} {s}");
        close(expected(1, 0), 12.0);
        close(expected(2, 0), 6.0);
        close(expected(3, 0), 4.0);
        close(expected(3, 1), 4.0 + 4.0 / 1.5);
    }

    /// The second one begins after 3 s: the first has done 4.5 of its 6 CPU seconds by then, and both share two CPUs until it
    /// is done.
    #[test]
    fn who_begins_later_takes_nothing_before() {
        let mut record = record(vec![
            ("later", cell(vec![make("a", 5.0, 6.0, none()), make("b", 5.0, 6.0, none())])),
            ("alone", cell(vec![make("a", 4.0, 6.0, none())])),
        ]);
        let mut experiment = Experiment::new("x", "");
        experiment.tenants = vec![TenantSpec::new("a"), TenantSpec { start_s: 3.0, ..TenantSpec::new("b") }];
        record.experiment = Some(experiment);
        for tenant in &study(&record).points[0].tenants {
            let elapsed_s = tenant.predicted_elapsed_s.unwrap();
            assert!((elapsed_s - 4.5).abs() < 1e-6, "{}: {elapsed_s}", tenant.name);
        }
    }

    #[test]
    fn without_a_run_alone_the_reason_is_said() {
        let record =
            record(vec![("two", cell(vec![make("a", 7.0, 6.0, none()), make("b", 7.0, 6.0, none())]))]);
        for tenant in &study(&record).points[0].tenants {
            assert_eq!(tenant.predicted_run_s, None);
            assert!(tenant.unpredicted.as_ref().is_some_and(|why| why.contains("`make` alone")));
        }
    }
}
