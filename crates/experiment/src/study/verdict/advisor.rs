//! The CPU advisor's experiments: what placement, nice and slices do to the CPU a mix gets, and whether promises are kept.

use crate::decide::{Claim, Draft, Figure, Mean, Said, by};
use crate::record::{Cell, Record, TenantRecord};
use crate::study::point::weight;
use crate::study::{PointStudy, Study, sample};

/// Nothing is changed.
pub const DEFAULT: &str = "kernel default";
/// Longest processing time first onto the least loaded CPU.
pub const PLACEMENT: &str = "placement";
/// The published recipe: the same, then nice in proportion to load, all at once.
pub const RECIPE: &str = "placement and nice";
/// SCHED_BATCH with slices of 100 ms.
pub const SLICES: &str = "batch and long slices";
/// Between a mix and what is done to it, in a point's label.
pub const OF: &str = ": ";
/// How a label begins where the tenants have promises.
pub const PROMISED: &str = "promised";

/// The source's table of stages; a record that names it has points of [`DEFAULT`] .. [`SLICES`].
pub(in crate::study) const STAGES: &str = "xadvisor_convergence";
/// The source's table of promises.
pub(in crate::study) const PROMISES: &str = "xadvisor_qos";

/// Most that a promise may be missed by, percent of one CPU.
const MISSED_PCT: f64 = 2.0;

pub(super) fn add<'a>(record: &'a Record, study: &'a Study, all: &mut Vec<Draft<'a>>) {
    let names = |table: &str| record.sources.iter().any(|name| name == table);
    if names(STAGES) {
        all.extend(mixes(study).into_iter().flat_map(|mix| stages(record, study, mix)).map(Draft::question));
    }
    if names(PROMISES) {
        all.extend(study.points.iter().filter_map(|point| promises(record, point)));
    }
}

/// The mixes, in order.
pub(in crate::study) fn mixes(study: &Study) -> Vec<&str> {
    let mut mixes: Vec<&str> = Vec::new();
    for mix in study.points.iter().filter_map(|p| Some(p.label.split_once(OF)?.0)) {
        if !mixes.contains(&mix) {
            mixes.push(mix);
        }
    }
    mixes
}

pub(in crate::study) fn stage<'a>(study: &'a Study, mix: &str, stage: &str) -> Option<&'a PointStudy> {
    study.points.iter().find(|p| p.label.split_once(OF) == Some((mix, stage)))
}

/// CPU time over real time of one tenant, CPUs.
fn got(tenant: &TenantRecord) -> Option<f64> {
    let real_s = Some(tenant.total.real_s).filter(|s| *s > 0.0)?;
    Some(tenant.total.cpu_s()? / real_s)
}

/// CPUs that all tenants of a point used, a value a repetition.
pub(in crate::study) fn used_each(record: &Record, point: &PointStudy) -> Option<Vec<f64>> {
    let of = |cell: &Cell| cell.tenants.iter().map(got).sum::<Option<f64>>();
    sample::cells(record, point).into_iter().map(of).collect()
}

fn used(record: &Record, point: &PointStudy) -> Option<Mean> {
    Mean::of(&used_each(record, point)?)
}

/// What a stage brings over another, of one mix.
fn stages<'a>(record: &Record, study: &Study, mix: &'a str) -> Vec<Draft<'a>> {
    let pairs = [
        ("published-recipe", RECIPE, DEFAULT),
        ("placement-alone", PLACEMENT, DEFAULT),
        ("long-slices", SLICES, DEFAULT),
        ("slices-against-recipe", SLICES, RECIPE),
    ];
    let of = |name: &str| used(record, stage(study, mix, name)?);
    pairs
        .into_iter()
        .filter_map(|(id, one, other)| {
            let ratio = of(one)?.over(of(other)?)?;
            Some(Draft::new(
                id,
                mix,
                ("CPU time that the mix got, over that of the other stage", ""),
                ratio,
                Claim::AtLeast(1.0),
                move |d| {
                    format!(
                        "{mix}: with {one} the mix gets {} times the CPU that it gets with {other}: {}.",
                        d[0].words(3),
                        by(d[0].holds, "more", "less, it turns against itself", "which is more is open")
                    )
                },
            ))
        })
        .collect()
}

/// What a tenant wants, percent of one CPU; `None` where its load does not say.
pub(in crate::study) fn wanted_pct(tenant: &TenantRecord) -> Option<f64> {
    let mut words = tenant.workload.split_ascii_whitespace();
    match words.next()? {
        "idle" => Some(0.0),
        "duty" => words.skip_while(|w| *w != "--percent").nth(1)?.parse().ok(),
        _ => None,
    }
}

/// Whether each tenant got what it was promised, or what it wanted where that is less.
fn promises<'a>(record: &Record, point: &'a PointStudy) -> Option<Draft<'a>> {
    point.label.starts_with(PROMISED).then_some(())?;
    let first = *sample::cells(record, point).first()?;
    let weights: f64 = first.tenants.iter().map(weight).sum();
    let mut over = Vec::new();
    for (index, tenant) in first.tenants.iter().enumerate() {
        let due = (100.0 * weight(tenant) / weights).min(wanted_pct(tenant)?);
        let tenants = sample::tenants(record, point, index);
        over.push((due, sample::each(&tenants, |t| Some(100.0 * got(t)?))?));
    }
    let figures = over.iter().map(|(due, got)| Figure::Mean(got.plus(-due))).collect();
    let words: Vec<String> =
        over.iter().map(|(due, got)| format!("{:.1} of {due:.0} %", got.value)).collect();
    Some(Draft::with(
        "promises-kept",
        &point.label,
        ("CPU got less CPU due (the promise, or what was wanted), the least of the tasks", "% of one CPU"),
        vec![(Figure::Smallest(figures), Claim::AtLeast(-MISSED_PCT))],
        move |d| {
            let holds = d.first()?.holds;
            let text = format!(
                "{}: the tasks got {}; the least of them {} points from what is due: {}.",
                point.label,
                words.join(", "),
                d[0].words(1),
                by(holds, "kept", "not kept", "whether it is kept is open")
            );
            Some(Said { holds, text, shown: Some(0) })
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady};

    fn tenant(name: &str, percent: f64, cpus: f64) -> TenantRecord {
        let mut tenant = steady(name, 1, 1, 1.0);
        tenant.units = None;
        tenant.workload = format!("duty --percent {percent} --kind open");
        tenant.total.real_s = 10.0;
        (tenant.total.user_s, tenant.total.sys_s) = (Some(10.0 * cpus), Some(0.0));
        tenant
    }

    fn staged(recipe: f64) -> Record {
        let of = |stage: &str, by: f64| {
            let label: &'static str = Box::leak(format!("75 %, fixed: {stage}").into_boxed_str());
            [0.99, 1.0, 1.01].map(|jitter| (label, cell(vec![tenant("a", 75.0, 0.7 * by * jitter)])))
        };
        let mut record = record([of(DEFAULT, 1.0), of(RECIPE, recipe)].concat());
        record.sources = vec![STAGES.into()];
        record
    }

    fn answer(record: &Record, id: &str) -> (Option<bool>, String) {
        let study = study(record);
        let verdict = study.verdicts.iter().find(|v| v.id == id).unwrap_or_else(|| panic!("{id}"));
        (verdict.holds, verdict.text.clone())
    }

    #[test]
    fn a_recipe_that_costs_cpu_is_said_to_turn_against_itself() {
        let (holds, text) = answer(&staged(0.8), "published-recipe");
        assert!(holds == Some(false) && text.contains("turns against itself"), "{text}");
        assert_eq!(answer(&staged(1.2), "published-recipe").0, Some(true));
        let (holds, text) = answer(&staged(1.0), "published-recipe");
        assert!(holds.is_none() && text.contains("is open") && text.contains("Undecided"), "{text}");
    }

    #[test]
    fn a_promise_counts_up_to_what_is_wanted() {
        let world = |third: f64| {
            let mut tenants =
                vec![tenant("1", 40.0, 0.395), tenant("2", 30.0, 0.298), tenant("3", 80.0, third)];
            for (tenant, shares) in tenants.iter_mut().zip([400, 500, 100]) {
                tenant.limits.shares = Some(shares);
            }
            let mut record = record(
                [1.0, 1.001, 0.999]
                    .map(|by| {
                        let mut tenants = tenants.clone();
                        tenants.iter_mut().for_each(|t| t.total.user_s = t.total.user_s.map(|s| s * by));
                        ("promised 40 : 50 : 10", cell(tenants))
                    })
                    .into(),
            );
            record.sources = vec![PROMISES.into()];
            record
        };
        let (holds, text) = answer(&world(0.10), "promises-kept");
        assert!(holds == Some(true) && text.contains("29.8 of 30 %"), "{text}");
        let (holds, text) = answer(&world(0.05), "promises-kept");
        assert!(holds == Some(false) && text.contains("5.0 of 10 %"), "{text}");
    }
}
