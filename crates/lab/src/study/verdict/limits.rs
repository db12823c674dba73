//! What limits cost: does a quota give what it says, and what does a unit of work cost under each kind of limit?

use super::{Test, Verdict, three, verdict, with_interval};
use crate::record::Limits;
use crate::study::stats::{log_line, ratio};
use crate::study::{PointStudy, Study, TenantStudy, option, prefix};

/// A quota is kept to so many points.
const QUOTA_POINTS: f64 = 0.5;
/// A difference of CPU per event worth a statement.
const COST: f64 = 1.05;

/// How a tenant is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::study) enum Held {
    Nothing,
    Cpuset,
    Quota,
    Shares,
}

impl Held {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no limit",
            Self::Cpuset => "cpuset",
            Self::Quota => "quota",
            Self::Shares => "shares",
        }
    }
}

pub(in crate::study) fn held(study: &Study, point: &PointStudy, limits: &Limits) -> Held {
    let alone = point.tenants.len() == 1;
    // A cpuset of all CPUs holds nobody.
    let confines = |cpus: &evenkeel_base::CpuSet| study.host.cpus.is_none_or(|all| cpus.len() < all as usize);
    if limits.quota_pct.is_some() {
        Held::Quota
    } else if limits.cpus.as_ref().is_some_and(confines) {
        Held::Cpuset
    } else if !alone && (limits.shares.is_some() || limits.weight.is_some()) {
        Held::Shares
    } else {
        Held::Nothing
    }
}

pub(super) fn add(study: &Study, all: &mut Vec<Verdict>) {
    all.extend(quotas(study));
    all.extend(costs(study));
    all.extend(in_the_kernel(study));
}

fn tenants(study: &Study) -> impl Iterator<Item = (&PointStudy, &TenantStudy)> {
    study.points.iter().flat_map(|point| point.tenants.iter().map(move |tenant| (point, tenant)))
}

/// Every quota that throttled, against the CPU got.
fn quotas(study: &Study) -> Option<Verdict> {
    let mut worst: Option<(f64, &PointStudy, &TenantStudy)> = None;
    let mut count = 0;
    for (point, tenant) in tenants(study) {
        let (Some(quota), Some(got)) = (tenant.limits.quota_pct, tenant.cpu_pct) else { continue };
        // One that was never throttled did not want more, or was kept from it by others.
        if tenant.throttled_s.is_none_or(|t| t.value <= 0.0)
            || tenant.stolen_s.zip(tenant.elapsed_s).is_some_and(|(s, e)| s.value > 0.01 * e.value)
        {
            continue;
        }
        count += 1;
        let off = got.value - quota;
        if worst.is_none_or(|(w, ..)| off.abs() > w.abs()) {
            worst = Some((off, point, tenant));
        }
    }
    let (off, point, tenant) = worst?;
    let holds = off.abs() <= QUOTA_POINTS;
    let got = tenant.cpu_pct?;
    Some(verdict(
        "quota-kept",
        &point.label,
        Some(holds),
        format!(
            "{} the {count} tenant{} throttled by one{}: {}{} had {} % and got {} %.",
            if holds { "Quotas are kept by" } else { "Quotas are not kept by all of" },
            if count == 1 { "" } else { "s" },
            if count == 1 { "" } else { "; farthest off" },
            prefix(&point.label),
            tenant.name,
            three(tenant.limits.quota_pct?),
            with_interval(got, 2)
        ),
        Test::of("largest |CPU got - quota|", "points of one CPU", format!("<= {QUOTA_POINTS}"))
            .value(off.abs()),
    ))
}

/// CPU time for a unit of work under a quota, against a cpuset (or no limit) of the same work.
fn costs(study: &Study) -> Option<Verdict> {
    // The kernel's part apart: reading files is another question.
    let of = |kind: Held| {
        tenants(study)
            .filter(move |(p, t)| held(study, p, &t.limits) == kind)
            .filter(|(_, t)| matches!(option(&t.workload, "--read"), None | Some("none")))
            .filter_map(|(p, t)| Some((p, t, t.cpu_ms_per_event?)))
            .collect::<Vec<_>>()
    };
    let quota = of(Held::Quota);
    let (point, tenant, cost) = quota.iter().max_by(|a, b| a.2.value.total_cmp(&b.2.value))?;
    // The cpuset nearest in size; else the same without a limit.
    let cpus = tenant.limits.quota_pct? / 100.0;
    let same = |t: &TenantStudy| t.workload == tenant.workload && t.threads == tenant.threads;
    let size =
        |t: &TenantStudy| t.limits.cpus.as_ref().map_or(f64::INFINITY, |c| (c.len() as f64 - cpus).abs());
    let cpuset = of(Held::Cpuset);
    let free = of(Held::Nothing);
    let reference = cpuset
        .iter()
        .filter(|(_, t, _)| same(t))
        .min_by(|a, b| size(a.1).total_cmp(&size(b.1)))
        .or_else(|| free.iter().find(|(_, t, _)| same(t)))?;
    let times = ratio(*cost, reference.2)?;
    let dearer = times.value >= COST;
    let against = match &reference.1.limits.cpus {
        Some(cpus) => format!("a cpuset of CPUs {cpus}"),
        None => "no limit".to_owned(),
    };
    let because = because(study, tenant, reference.1, dearer);
    Some(verdict(
        "quota-costs-cpu",
        &point.label,
        Some(dearer),
        format!(
            "A quota costs {}x the CPU time for the same work that {against} costs ({} against {} ms an event){because}",
            with_interval(times, 2),
            three(cost.value),
            three(reference.2.value),
        ),
        Test::of(
            "CPU time an event, quota over reference",
            "",
            format!(">= {COST} means the quota costs extra"),
        )
        .estimate(times),
    ))
}

/// Reasons the record can show, or why the source's figure is not seen.
fn because(study: &Study, quota: &TenantStudy, reference: &TenantStudy, dearer: bool) -> String {
    let mut reasons = Vec::new();
    let smt = study.host.threads_per_core.is_some_and(|n| n > 1);
    if dearer {
        let wide =
            study.host.cpus.map(f64::from).zip(quota.limits.quota_pct).is_some_and(|(c, q)| q < 100.0 * c);
        if smt && wide && reference.limits.cpus.is_some() {
            reasons.push("its threads run on all CPUs at once until the period's quota is gone, so that siblings share their cores, where the cpuset's need not".to_owned());
        }
        let sys = |t: &TenantStudy| Some(t.sys_s?.value / (t.sys_s?.value + t.user_s?.value));
        if let (Some(a), Some(b)) = (sys(quota), sys(reference))
            && a > b + 0.02
        {
            reasons.push(format!(
                "{} % of its CPU time is spent in the kernel instead of {} %",
                three(100.0 * a),
                three(100.0 * b)
            ));
        }
        if let (Some(a), Some(b)) = (quota.involuntary_per_cpu_s, reference.involuntary_per_cpu_s)
            && a > 2.0 * b.max(1.0)
        {
            reasons.push(format!(
                "it is switched out {} times a CPU second instead of {}, and caches go cold",
                three(a),
                three(b)
            ));
        }
        if study.host.governor.is_some() {
            reasons.push("CPUs that idle while throttled may run at a lower frequency".to_owned());
        }
        if reasons.is_empty() {
            return "; nothing in this record says why.".into();
        }
        return format!(", because {}.", reasons.join(", and "));
    }
    if !smt {
        let frequency = study.host.governor.is_none();
        let text = if frequency {
            "no siblings and no frequency control that a throttled CPU could lose speed to"
        } else {
            "no siblings"
        };
        return format!(
            ": it makes work wait, it does not make it dearer. The source's 1.5x is not a property of quotas as such: its \
             threads ran on all 40 logical CPUs in bursts and slept between them, on a host with siblings and frequency \
             control; this host has {text}."
        );
    }
    ": it makes work wait, it does not make it dearer.".into()
}

/// Work with much time in the kernel: real time and system time against the share of the machine.
fn in_the_kernel(study: &Study) -> Vec<Verdict> {
    let cpus = f64::from(study.host.cpus.unwrap_or(1).max(1));
    let mut out = Vec::new();
    for mode in ["own", "same"] {
        for kind in [Held::Cpuset, Held::Shares, Held::Quota] {
            let mut real = Vec::new();
            let mut sys = Vec::new();
            for (point, tenant) in tenants(study) {
                let reads = option(&tenant.workload, "--read") == Some(mode);
                if !reads || held(study, point, &tenant.limits) != kind {
                    continue;
                }
                let share = match kind {
                    Held::Cpuset => tenant.limits.cpus.as_ref().map(|c| c.len() as f64 / cpus),
                    Held::Quota => tenant.limits.quota_pct.map(|q| q / 100.0 / cpus),
                    _ => tenant.weight_pct.map(|w| w / 100.0),
                };
                let (Some(share), Some(elapsed)) = (share, tenant.elapsed_s) else { continue };
                real.push((share, elapsed.value));
                sys.extend(tenant.sys_s.map(|s| (share, s.value)));
            }
            let Some(line) = log_line(&real).filter(|_| real.len() >= 2) else { continue };
            let holds = line.slope <= -0.8;
            let growth = log_line(&sys).map_or_else(String::new, |l| {
                format!("; system time changes by a factor of {:.2} as the share doubles", 2f64.powf(l.slope))
            });
            out.push(verdict(
                &format!("{mode}-file-{}", kind.name()),
                "",
                Some(holds),
                format!(
                    "Reading {} under {}: {} ({} points; real time falls as share^{:.2}){growth}.",
                    if mode == "own" { "a file of its own" } else { "the same file" },
                    kind.name(),
                    if holds {
                        "scales with the share of the machine"
                    } else {
                        "does not scale with the share of the machine"
                    },
                    real.len(),
                    -line.slope
                ),
                Test::of("slope of log real time against log share", "", "<= -0.8 means it scales")
                    .value(line.slope)
                    .interval(line.slope_interval),
            ));
        }
    }
    out
}
