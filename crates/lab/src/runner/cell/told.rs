//! After the end: what a tenant told and what was seen from outside, as the record keeps it.

use evenkeel_experiment::record::{Account, Ended, TenantRecord};

use super::super::answers::Answers;
use super::super::work;
use super::member::{Member, Task};
use super::watch::Watched;

impl Watched {
    /// The host's steal between two instants, as a share of the CPU time it used meanwhile.
    fn steal_share(&self, from_s: f64, to_s: f64) -> Option<f64> {
        let before = self.samples.iter().rfind(|(at, _)| *at <= from_s).or(self.samples.first())?;
        let after = self.samples.iter().find(|(at, _)| *at >= to_s).or(self.samples.last())?;
        let steal = after.1.steal_s? - before.1.steal_s?;
        let busy = after.1.busy_s - before.1.busy_s;
        if steal <= 0.0 {
            return Some(0.0);
        }
        (busy > 0.0).then(|| steal / busy)
    }

    fn stolen_s(&self, account: &Account, from_s: f64, to_s: f64) -> Option<f64> {
        Some(self.steal_share(from_s, to_s)? * account.cpu_s()?)
    }
}

pub(super) fn record_of(
    task: &Task<'_>,
    member: Member,
    watched: &Watched,
    notes: &mut Vec<String>,
) -> TenantRecord {
    let Member { tenant, order, limits, ended, early, over_time, .. } = member;
    let spec = &task.experiment.tenants[tenant.spec];
    let mut answers = Answers::read(&order.answers);
    let mut total = answers.account();
    for run in &mut answers.runs {
        run.account.stolen_s = watched.stolen_s(&run.account, run.start_s, run.end_s);
    }
    let begun = answers.runs.first().map_or(0.0, |run| run.start_s);
    total.stolen_s = watched.stolen_s(&total, begun, begun + total.real_s);
    notes.extend(answers.notes.iter().map(|note| format!("{}: {note}", tenant.name)));
    let ended = if over_time {
        Ended::TimeLimit(format!("{} s", watched.limit_s))
    } else if let Some(what) = early.or(answers.failed) {
        Ended::Died(what)
    } else if answers.total.is_some() {
        Ended::Done
    } else {
        Ended::Died(ended.unwrap_or_else(|| "it was still there and had to be killed".into()))
    };
    if !matches!(ended, Ended::Done) {
        let what = match &ended {
            Ended::Died(what) => what.clone(),
            Ended::TimeLimit(limit) => format!("ended by the time limit of {limit}"),
            _ => String::new(),
        };
        notes.push(format!("{}: {what}", tenant.name));
    }
    TenantRecord {
        name: tenant.name,
        units: tenant.units,
        place: spec.place.name().to_owned(),
        limits,
        workload: work::text(spec),
        threads: work::threads(&order.work),
        runs_planned: if spec.background { 0 } else { spec.runs },
        release: answers.release,
        ended,
        total,
        runs: answers.runs,
    }
}
