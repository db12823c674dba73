//! The source's empty tables, filled: work that reads files, by its share of the machine, under each kind of limit.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::verdict::{Held, held};
use super::{Study, option};

/// One cell of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// `own` file each, or the `same` file.
    pub file: String,
    /// `cpuset`, `shares` or `quota`.
    pub limit: String,
    /// Share of the machine it was promised, percent.
    pub share_pct: f64,
    /// Real time, seconds.
    pub real_s: Option<Estimate>,
    /// CPU time in the kernel, seconds.
    pub sys_s: Option<Estimate>,
    /// CPU time in user mode, seconds.
    pub user_s: Option<Estimate>,
}

/// Every reader of files that was held by something, ordered by file, share and limit.
pub(super) fn readings(study: &Study) -> Vec<Reading> {
    let cpus = f64::from(study.host.cpus.unwrap_or(1).max(1));
    let mut found: Vec<Reading> = study
        .points
        .iter()
        .flat_map(|point| point.tenants.iter().map(move |tenant| (point, tenant)))
        .filter_map(|(point, tenant)| {
            let file = option(&tenant.workload, "--read").filter(|file| *file != "none")?;
            let (limit, share) = match held(study, point, &tenant.limits) {
                Held::Cpuset => ("cpuset", tenant.limits.cpus.as_ref()?.len() as f64 / cpus),
                Held::Quota => ("quota", tenant.limits.quota_pct? / 100.0 / cpus),
                Held::Shares => ("shares", tenant.weight_pct? / 100.0),
                Held::Nothing => return None,
            };
            Some(Reading {
                file: file.to_owned(),
                limit: limit.to_owned(),
                share_pct: 100.0 * share,
                real_s: tenant.elapsed_s,
                sys_s: tenant.sys_s,
                user_s: tenant.user_s,
            })
        })
        .collect();
    found.sort_by(|a, b| {
        (&a.file, &a.limit).cmp(&(&b.file, &b.limit)).then(a.share_pct.total_cmp(&b.share_pct))
    });
    found
}

#[cfg(test)]
mod tests {
    use crate::record::Limits;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady};

    #[test]
    fn shares_of_the_machine_are_told_by_what_holds_the_reader() {
        let point = |limits: Limits, read: &str| {
            let mut reader = steady("b", 1, 1, 10.0);
            reader.limits = limits;
            reader.workload = format!("sieve --from 1 --to 9 --read {read}");
            let mut burner = steady("a", 1, 1, 10.0);
            burner.limits.shares = Some(1024);
            cell(vec![burner, reader])
        };
        let study = study(&record(vec![
            ("1", point(Limits { quota_pct: Some(50.0), shares: Some(1024), ..Limits::default() }, "own")),
            (
                "2",
                point(Limits { shares: Some(3072), cpus: "0-1".parse().ok(), ..Limits::default() }, "same"),
            ),
            ("3", point(Limits { shares: Some(1024), cpus: "0".parse().ok(), ..Limits::default() }, "same")),
            ("4", point(Limits::default(), "none")),
        ]));
        let told: Vec<_> =
            study.readings.iter().map(|r| (r.file.as_str(), r.limit.as_str(), r.share_pct)).collect();
        assert_eq!(told, [("own", "quota", 25.0), ("same", "cpuset", 50.0), ("same", "shares", 75.0)]);
    }
}
