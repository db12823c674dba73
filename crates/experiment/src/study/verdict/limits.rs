//! What limits cost: does a quota give what it says, and what does a unit of work cost under each kind of limit?

use super::weights::slept;
use super::words::three;
use crate::decide::{Claim, Draft, Figure, Mean, Said, by};
use crate::record::{Account, Limits, Record, TenantRecord};
use crate::study::point::{cpu_ms_per_event, cpu_pct, total};
use crate::study::sample::{self, each};
use crate::study::{PointStudy, Study, TenantStudy, option, prefix};

/// A quota is kept to so many points.
const QUOTA_POINTS: f64 = 0.5;
/// A difference of CPU per event worth a statement.
const COST: f64 = 1.05;
/// A difference of the part of CPU time spent in the kernel worth naming.
const SYS_PART: f64 = 0.02;
/// A ratio of involuntary switches worth naming.
const SWITCHED: f64 = 2.0;

evenkeel_base::named! {
/// How a tenant is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::study) enum Held {
    Nothing = "no limit",
    Cpuset = "cpuset",
    Quota = "quota",
    Shares = "shares",
}
}

pub(in crate::study) fn held(study: &Study, point: &PointStudy, limits: &Limits) -> Held {
    let alone = point.tenants.len() == 1;
    if limits.quota_pct.is_some() {
        Held::Quota
    } else if study.host.is_confined_by(limits.cpus.as_ref()) {
        Held::Cpuset
    } else if !alone && (limits.shares.is_some() || limits.weight.is_some()) {
        Held::Shares
    } else {
        Held::Nothing
    }
}

pub(super) fn add<'a>(record: &'a Record, study: &'a Study, all: &mut Vec<Draft<'a>>) {
    all.extend(quotas(record, study));
    all.extend(costs(record, study).map(Draft::question));
}

/// A tenant at a point.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    record: &'a Record,
    pub point: &'a PointStudy,
    pub index: usize,
    pub tenant: &'a TenantStudy,
}

impl<'a> At<'a> {
    /// Over the repetitions.
    pub fn tenants(&self) -> Vec<&'a TenantRecord> {
        sample::tenants(self.record, self.point, self.index)
    }

    /// Whether it only makes a load for others.
    pub fn is_background(&self) -> bool {
        self.tenants().iter().any(|t| t.runs_planned == 0)
    }

    /// What runs next to it.
    pub fn neighbours(&self) -> Vec<(&'a str, u32)> {
        let others = self.point.tenants.iter().enumerate().filter(|(i, _)| *i != self.index);
        others.map(|(_, t)| (t.workload.as_str(), t.threads)).collect()
    }
}

pub(super) fn tenants<'a>(record: &'a Record, study: &'a Study) -> impl Iterator<Item = At<'a>> {
    study.points.iter().flat_map(move |point| {
        point.tenants.iter().enumerate().map(move |(index, tenant)| At { record, point, index, tenant })
    })
}

/// Every quota that throttled, against the CPU got.
fn quotas<'a>(record: &'a Record, study: &'a Study) -> Option<Draft<'a>> {
    let mut off = Vec::new();
    for at in tenants(record, study) {
        let tenant = at.tenant;
        let Some((quota, got)) = tenant.limits.quota_pct.zip(each(&at.tenants(), cpu_pct)) else { continue };
        // One that was never throttled did not want more, or was kept from it by others.
        if tenant.throttled_s.is_none_or(|t| t.value <= 0.0)
            || tenant.stolen_s.zip(tenant.elapsed_s).is_some_and(|(s, e)| s.value > 0.01 * e.value)
        {
            continue;
        }
        // One that slept did not want all of it.
        if got.value < quota && slept(record, at.point, at.index) {
            continue;
        }
        off.push((got.plus(-quota), at.point, tenant, quota));
    }
    let (worst, point, tenant, quota) =
        *off.iter().max_by(|a, b| a.0.value.abs().total_cmp(&b.0.value.abs()))?;
    let count = off.len();
    let figure = Figure::Deviation(off.into_iter().map(|(mean, ..)| Figure::Mean(mean)).collect());
    Some(Draft::new(
        "quota-kept",
        &point.label,
        ("largest |CPU got - quota|", "points of one CPU"),
        figure,
        Claim::AtMost(QUOTA_POINTS),
        move |d| {
            format!(
                "{} the {count} tenant{} throttled by one{}: {}{} had {} % and got {:.2} %.",
                by(
                    d[0].holds,
                    "Quotas are kept by",
                    "Quotas are not kept by all of",
                    "Whether quotas are kept is open for"
                ),
                if count == 1 { "" } else { "s" },
                if count == 1 { "" } else { "; farthest off" },
                prefix(&point.label),
                tenant.name,
                three(quota),
                quota + worst.value
            )
        },
    ))
}

/// CPU milliseconds for an event, a value a repetition.
fn cost(at: &At<'_>) -> Option<Mean> {
    each(&at.tenants(), |t| cpu_ms_per_event(t).filter(|ms| *ms > 0.0))
}

/// CPU time for a unit of work under a quota, against a cpuset (or no limit) of the same work next to the same neighbours.
fn costs<'a>(record: &'a Record, study: &'a Study) -> Option<Draft<'a>> {
    // The kernel's part apart: reading files is another question. What only makes a load for others is not judged.
    let of_kind = |kind: Held| {
        tenants(record, study)
            .filter(move |at| held(study, at.point, &at.tenant.limits) == kind && !at.is_background())
            .filter(|at| matches!(option(&at.tenant.workload, "--read"), None | Some("none")))
            .filter_map(|at| Some((at, cost(&at)?)))
            .collect::<Vec<_>>()
    };
    let (cpusets, free) = (of_kind(Held::Cpuset), of_kind(Held::Nothing));
    let mut pairs = Vec::new();
    for (at, dear) in of_kind(Held::Quota) {
        let cpus = at.tenant.limits.quota_pct? / 100.0;
        let same = |other: &At<'_>| {
            other.tenant.workload == at.tenant.workload
                && other.tenant.threads == at.tenant.threads
                && other.neighbours() == at.neighbours()
        };
        let size = |o: &At<'_>| {
            o.tenant.limits.cpus.as_ref().map_or(f64::INFINITY, |c| (c.len() as f64 - cpus).abs())
        };
        // The cpuset nearest in size; else the same without a limit.
        let reference = cpusets
            .iter()
            .filter(|(other, _)| same(other))
            .min_by(|a, b| size(&a.0).total_cmp(&size(&b.0)))
            .or_else(|| free.iter().find(|(other, _)| same(other)));
        if let Some((other, base)) = reference
            && let Some(times) = dear.over(*base)
        {
            pairs.push((at, *other, dear, *base, times));
        }
    }
    let worst =
        pairs.iter().max_by(|a, b| a.4.value().unwrap_or(0.0).total_cmp(&b.4.value().unwrap_or(0.0)))?;
    let (at, other, dear, base) = (worst.0, worst.1, worst.2, worst.3);
    let against = match &other.tenant.limits.cpus {
        Some(cpus) if held(study, other.point, &other.tenant.limits) == Held::Cpuset => {
            format!("a cpuset of CPUs {cpus}")
        }
        _ => "no limit".to_owned(),
    };
    let count = pairs.len();
    let times = Figure::Largest(pairs.into_iter().map(|pair| pair.4).collect());
    // Causes the record can show, each a claim of its own.
    let sys = |at: &At<'_>| {
        each(&at.tenants(), |t| {
            let (user, sys) = (total(t, |a| a.user_s)?, total(t, |a| a.sys_s)?);
            Some(sys / (user + sys)).filter(|v| v.is_finite())
        })
    };
    let switched = |at: &At<'_>| {
        each(&at.tenants(), |t| {
            let switches = total(t, |a| a.involuntary.map(|n| n as f64))?;
            Some(switches / total(t, Account::cpu_s)?).filter(|v| v.is_finite() && *v > 0.0)
        })
    };
    let mut claims = vec![(times, Claim::AtLeast(COST))];
    let mut causes: Vec<(usize, String)> = Vec::new();
    if let (Some(a), Some(b)) = (sys(&at), sys(&other))
        && let Some(more) = a.less(b)
    {
        causes.push((
            claims.len(),
            format!(
                "{} % of its CPU time is spent in the kernel instead of {} %",
                three(100.0 * a.value),
                three(100.0 * b.value)
            ),
        ));
        claims.push((Figure::Mean(more), Claim::AtLeast(SYS_PART)));
    }
    if let (Some(a), Some(b)) = (switched(&at), switched(&other))
        && let Some(more) = a.over(b)
    {
        causes.push((
            claims.len(),
            format!("it is switched out {} times a CPU second instead of {}", three(a.value), three(b.value)),
        ));
        claims.push((more, Claim::AtLeast(SWITCHED)));
    }
    let has_no_siblings = study.host.threads_per_core == Some(1);
    Some(Draft::with(
        "quota-costs-cpu",
        &at.point.label,
        ("CPU time an event, quota over reference", ""),
        claims,
        move |d| {
            let many = if count == 1 { String::new() } else { format!(" (the dearest of {count})") };
            let figures = format!("{} against {} ms an event", three(dear.value), three(base.value));
            let text = match d[0].holds {
                Some(true) => {
                    let found: Vec<String> =
                        causes.iter().filter(|(i, _)| d[*i].yes()).map(|(_, words)| words.clone()).collect();
                    let why = if found.is_empty() {
                        "; nothing in this record says why.".to_owned()
                    } else {
                        format!("; beyond their intervals differ, too: {}.", found.join(", and "))
                    };
                    format!(
                        "A quota costs {}x the CPU time for the same work that {against} costs{many} ({figures}){why}",
                        d[0].words(2)
                    )
                }
                Some(false) => format!(
                    "A quota costs {}x the CPU time for the same work that {against} costs{many} ({figures}): it makes work \
                     wait, it does not make it dearer.{}",
                    d[0].words(2),
                    if has_no_siblings {
                        " The source's 1.5x is not a property of quotas as such; its host has siblings, this one has none."
                    } else {
                        ""
                    }
                ),
                None => format!(
                    "Whether a quota costs more CPU time for the same work than {against} is open: {}x{many} ({figures}).",
                    d[0].words(2)
                ),
            };
            Some(Said { holds: d[0].holds, text, shown: Some(0) })
        },
    ))
}

/// Slope of the logarithm of a quantity against that of a share (or against another x), by least squares, with the errors
/// of its points; `None` for fewer than two shares.
pub(super) fn slope(points: &[(f64, Mean)]) -> Option<Mean> {
    let x: Vec<f64> = points.iter().map(|p| p.0).collect();
    let middle = evenkeel_base::stats::mean(&x)?;
    let all: f64 = x.iter().map(|x| (x - middle).powi(2)).sum();
    if all <= 1e-12 {
        return None;
    }
    Mean::sum(&points.iter().map(|(x, y)| ((x - middle) / all, *y)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use crate::study::study;
    use crate::study::testing::{cell, record, steady};

    #[test]
    fn a_quota_is_judged_by_those_who_wanted_all_of_it() {
        // Of five seconds under 50 %: throttled all the rest; asleep most of it, and throttled now and then.
        let of = |cpu_s: f64, waited_s: f64| {
            let mut tenant = steady("a", 1, 5, 100.0);
            tenant.limits.quota_pct = Some(50.0);
            let total = &mut tenant.total;
            (total.user_s, total.sys_s) = (Some(cpu_s), Some(0.0));
            (total.waited_s, total.throttled_s) = (Some(waited_s), Some(0.3));
            let study = study(&record(vec![("x", cell(vec![tenant])); 3]));
            study.verdicts.iter().find(|v| v.id == "quota-kept").map(|v| v.holds)
        };
        assert_eq!((of(2.5, 2.4), of(1.2, 0.3)), (Some(Some(true)), None));
        // One that got less though it wanted more, and one that got too much.
        assert_eq!((of(2.0, 2.9), of(3.0, 0.3)), (Some(Some(false)), Some(Some(false))));
    }
}
