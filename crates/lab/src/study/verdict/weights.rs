//! Do tenants get what their weights promise, and if not, could they?

use super::{Test, Verdict, three, verdict, with_interval};
use crate::record::{Cell, Record};
use crate::study::stats::mean;
use crate::study::{PointStudy, Study, TenantStudy, prefix};

/// Largest deviation from proportion on one CPU, percent of the share.
const ONE_CPU_PCT: f64 = 2.0;
/// The same on several: the kernel splits a group's weight over CPUs and moves whole threads.
const MORE_CPUS_PCT: f64 = 8.0;
/// A feasible share further from the weight's than this is called infeasible weights, percent of the share.
const INFEASIBLE_PCT: f64 = 1.0;
/// Most that equal tenants may differ, percent of the mean.
const BIAS_PCT: f64 = 10.0;
/// With more points than this only the worst is told.
const MANY: usize = 6;

pub(super) fn add(record: &Record, study: &Study, all: &mut Vec<Verdict>) {
    let (mut equal, mut weighted, mut impossible) = (Vec::new(), Vec::new(), Vec::new());
    for point in study.points.iter().filter(|point| point.tenants.len() > 1) {
        match kind(point) {
            Some(Kind::Equal) => equal.extend(equal_verdict(point)),
            Some(Kind::Weighted) => weighted.extend(weighted_verdict(study, point)),
            Some(Kind::Infeasible) => impossible.extend(infeasible_verdict(study, point)),
            None => {}
        }
        all.extend(misleading_mean(point));
    }
    for verdicts in [weighted, impossible, equal] {
        all.extend(worst_of_many(verdicts));
    }
    all.extend(order(record));
}

enum Kind {
    Equal,
    Weighted,
    Infeasible,
}

/// What can be said of a point; nothing where shares or possible shares are not known, or something else than weights
/// (a quota) decides.
fn kind(point: &PointStudy) -> Option<Kind> {
    point.tenants.iter().all(|t| t.share_pct.is_some()).then_some(())?;
    if point.tenants.iter().any(|t| t.limits.quota_pct.is_some()) {
        return None;
    }
    let off = |t: &TenantStudy| Some(100.0 * (t.feasible_pct? / t.weight_pct? - 1.0).abs());
    let worst = point.tenants.iter().map(off).collect::<Option<Vec<_>>>()?.into_iter().fold(0.0, f64::max);
    let weights: Vec<f64> = point.tenants.iter().filter_map(|t| t.weight_pct).collect();
    let same = weights.windows(2).all(|w| (w[0] - w[1]).abs() < 1e-9);
    Some(match (same, worst > INFEASIBLE_PCT) {
        (_, true) => Kind::Infeasible,
        (true, false) => Kind::Equal,
        (false, false) => Kind::Weighted,
    })
}

/// Many points would drown the reader: then the worst stands for all.
fn worst_of_many(mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
    if verdicts.len() <= MANY {
        return verdicts;
    }
    let (count, held) = (verdicts.len(), verdicts.iter().filter(|v| v.holds == Some(true)).count());
    verdicts.sort_by(|a, b| {
        let value = |v: &Verdict| v.test.value.unwrap_or(f64::NEG_INFINITY);
        value(b).total_cmp(&value(a))
    });
    verdicts.truncate(1);
    for verdict in &mut verdicts {
        verdict.text = format!("Of {count} points {held} pass; the worst: {}", verdict.text);
    }
    verdicts
}

fn equal_verdict(point: &PointStudy) -> Option<Verdict> {
    let (bias, jain) = (point.together.bias_pct?, point.together.jain?);
    let rate = point.tenants.iter().map(|t| t.competing_per_s.map(|r| r.value)).collect::<Option<Vec<_>>>();
    let each =
        rate.and_then(|r| mean(&r)).map_or_else(String::new, |r| format!(" of {} events/s each", three(r)));
    Some(verdict(
        "equal-weights-equal-shares",
        &point.label,
        Some(bias <= BIAS_PCT),
        format!(
            "{}{} tenants of equal weight got shares{each} that differ by {} % of the mean (Jain index {jain:.4}).",
            prefix(&point.label),
            point.tenants.len(),
            three(bias)
        ),
        Test::of("(max - min) / mean of the rates while all compete", "%", format!("<= {BIAS_PCT}"))
            .value(bias),
    ))
}

fn weighted_verdict(study: &Study, point: &PointStudy) -> Option<Verdict> {
    let off = point.together.off_weights_pct?;
    let one = cpus(study, point) == Some(1);
    let bound = if one { ONE_CPU_PCT } else { MORE_CPUS_PCT };
    let slope = point.together.proportion.map_or_else(String::new, |line| {
        format!("; as a weight doubles, the rate grows by a factor of {:.3}", 2f64.powf(line.slope))
    });
    let holds = off <= bound;
    let text = format!(
        "{}Weights {} within {} % of proportion{slope}.",
        prefix(&point.label),
        if holds { "hold" } else { "do not hold" },
        three(if holds { off } else { bound })
    );
    let text = if holds {
        text
    } else {
        let worst = worst(point)?;
        format!(
            "{text} Farthest off is {}: {} % of all instead of {} %.",
            worst.name,
            three(worst.share_pct?.value),
            three(worst.weight_pct?)
        )
    };
    Some(verdict(
        "weights-hold",
        &point.label,
        Some(holds),
        text,
        Test::of(
            "largest deviation of a share from its weight's share, while all compete",
            "% of the share",
            format!("<= {bound} on {}", if one { "one CPU" } else { "several CPUs" }),
        )
        .value(off),
    ))
}

fn worst(point: &PointStudy) -> Option<&TenantStudy> {
    let off = |t: &TenantStudy| Some((t.share_pct?.value / t.weight_pct? - 1.0).abs());
    point.tenants.iter().max_by(|a, b| off(a).unwrap_or(0.0).total_cmp(&off(b).unwrap_or(0.0)))
}

fn cpus(study: &Study, point: &PointStudy) -> Option<usize> {
    let mut union = evenkeel_base::CpuSet::new();
    for tenant in &point.tenants {
        match &tenant.limits.cpus {
            Some(cpus) => union = union.union(cpus),
            None => return study.host.cpus.map(|n| n as usize),
        }
    }
    Some(union.len())
}

fn infeasible_verdict(study: &Study, point: &PointStudy) -> Option<Verdict> {
    let off = point.together.off_feasible_pct?;
    let cpus = cpus(study, point)? as f64;
    // Who cannot use what its weight promises.
    let capped = point
        .tenants
        .iter()
        .filter(|t| {
            t.feasible_pct.zip(t.weight_pct).is_some_and(|(f, w)| f < w * (1.0 - INFEASIBLE_PCT / 100.0))
        })
        .max_by(|a, b| a.weight_pct.unwrap_or(0.0).total_cmp(&b.weight_pct.unwrap_or(0.0)))?;
    let promised = capped.weight_pct? / 100.0 * cpus;
    let threads =
        if capped.threads == 1 { "one thread".to_owned() } else { format!("{} threads", capped.threads) };
    Some(verdict(
        "weights-infeasible",
        &point.label,
        Some(off <= MORE_CPUS_PCT),
        format!(
            "{}These weights cannot be in proportion: {} has {:.1} % of the weight, which is {promised:.2} of {cpus:.0} \
             CPUs, but its {threads} can use no more than {:.2}. What it cannot use goes to the others by their \
             weights; measured shares are within {} % of that.",
            prefix(&point.label),
            capped.name,
            capped.weight_pct?,
            capped.feasible_pct? / 100.0 * cpus,
            three(off)
        ),
        Test::of(
            "largest deviation of a share from the feasible one (exact weighted max-min), while all compete",
            "% of the share",
            format!("<= {MORE_CPUS_PCT}"),
        )
        .value(off),
    ))
}

/// A pair whose order over all runs is the opposite of that in the window.
fn misleading_mean(point: &PointStudy) -> Option<Verdict> {
    let of = |t: &TenantStudy| Some((t.weight_pct?, t.events_per_s?.mean, t.competing_per_s?.value));
    let mut worst: Option<(f64, &TenantStudy, &TenantStudy)> = None;
    for small in &point.tenants {
        for large in &point.tenants {
            let (Some((ws, all_s, in_s)), Some((wl, all_l, in_l))) = (of(small), of(large)) else { continue };
            if ws < wl && all_s > 1.1 * all_l && in_s < in_l {
                let factor = all_s / all_l;
                if worst.is_none_or(|(w, ..)| factor > w) {
                    worst = Some((factor, small, large));
                }
            }
        }
    }
    let (factor, small, large) = worst?;
    Some(verdict(
        "mean-over-all-runs-misleads",
        &point.label,
        Some(true),
        format!(
            "{}The mean over all runs misleads: it gives {} ({:.2} % of the weight) {} events/s, {} times {}'s ({:.2} %), \
             because the small ones go on alone when the large ones are done. While all compete it is {} against {}.",
            prefix(&point.label),
            small.name,
            small.weight_pct?,
            three(small.events_per_s?.mean),
            three(factor),
            large.name,
            large.weight_pct?,
            with_interval(small.competing_per_s?, 1),
            with_interval(large.competing_per_s?, 1),
        ),
        Test::of(
            "rate of the smaller over the larger, mean of all runs",
            "",
            "> 1, though below 1 while all compete",
        )
        .value(factor),
    ))
}

/// Whether the order of activation matters: shares of the same tenants, started in different orders.
fn order(record: &Record) -> Option<Verdict> {
    use crate::study::window::{competing, rate, work};
    let mut sets: Vec<(Vec<Option<u64>>, Vec<&Cell>)> = Vec::new();
    for cell in record.cells.iter().filter(|cell| cell.tenants.len() > 1) {
        let mut units: Vec<Option<u64>> = cell.tenants.iter().map(|t| t.units).collect();
        units.sort_unstable();
        // Equal tenants cannot be told apart by what they got.
        if units.iter().any(Option::is_none) || units.windows(2).any(|w| w[0] == w[1]) {
            continue;
        }
        match sets.iter_mut().find(|(known, _)| *known == units) {
            Some((_, cells)) => cells.push(cell),
            None => sets.push((units, vec![cell])),
        }
    }
    let mut worst: Option<(f64, u64)> = None;
    let mut orders = 0;
    for (units, cells) in &sets {
        // Shares by units, for each order in which the units were activated.
        let mut by_order: Vec<(Vec<u64>, Vec<Vec<f64>>)> = Vec::new();
        for cell in cells {
            let order: Vec<u64> =
                cell.activation.iter().filter_map(|&i| cell.tenants.get(i)?.units).collect();
            let Some(window) = competing(cell) else { continue };
            let shares: Option<Vec<f64>> = units
                .iter()
                .map(|unit| rate(cell.tenants.iter().find(|t| t.units == *unit)?, window, work))
                .collect();
            let Some(rates) = shares else { continue };
            let sum: f64 = rates.iter().sum();
            let shares: Vec<f64> = rates.iter().map(|r| r / sum).collect();
            match by_order.iter_mut().find(|(known, _)| *known == order) {
                Some((_, all)) => all.push(shares),
                None => by_order.push((order, vec![shares])),
            }
        }
        if by_order.len() < 2 {
            continue;
        }
        orders = orders.max(by_order.len());
        for (index, unit) in units.iter().enumerate() {
            let means: Vec<f64> = by_order
                .iter()
                .filter_map(|(_, all)| mean(&all.iter().map(|s| s[index]).collect::<Vec<_>>()))
                .collect();
            let (min, max) =
                means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
            let difference = 100.0 * (max - min) / mean(&means).unwrap_or(1.0);
            if let (Some(unit), true) = (unit, worst.is_none_or(|(w, _)| difference > w)) {
                worst = Some((difference, *unit));
            }
        }
    }
    let (difference, unit) = worst?;
    let holds = difference <= MORE_CPUS_PCT;
    Some(verdict(
        "order-of-activation",
        "",
        Some(holds),
        format!(
            "The order of activation {}: over {orders} orders the share of a tenant differs by at most {} % of itself \
             ({unit} units).",
            if holds { "does not matter" } else { "matters" },
            three(difference)
        ),
        Test::of(
            "largest difference of a tenant's mean share between orders",
            "% of the share",
            format!("<= {MORE_CPUS_PCT}"),
        )
        .value(difference),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady, tenant};

    fn ids(study: &Study) -> Vec<&str> {
        study.verdicts.iter().map(|v| v.id.as_str()).collect()
    }

    #[test]
    fn infeasible_weights_are_explained_and_not_called_a_failure() {
        let tenants =
            (0..4).map(|i| steady(&format!("t{i}"), 1 << i, 5, [100.0, 200.0, 400.0, 700.0][i])).collect();
        let study = study(&record(vec![("1248", cell(tenants))]));
        let v = study.verdicts.iter().find(|v| v.id == "weights-infeasible").unwrap();
        assert_eq!(v.holds, Some(true));
        assert!(v.text.contains("1.07 of 2") && v.text.contains("one thread"), "{}", v.text);
    }

    #[test]
    fn weights_that_hold_and_weights_that_do_not() {
        // Two threads each, so that everybody can use its share of two CPUs.
        let make = |rates: [f64; 2]| {
            let mut tenants = vec![steady("a", 1, 5, rates[0]), steady("b", 2, 5, rates[1])];
            tenants.iter_mut().for_each(|t| t.threads = 2);
            study(&record(vec![("x", cell(tenants))]))
        };
        let held = make([100.0, 201.0]);
        let v = held.verdicts.iter().find(|v| v.id == "weights-hold").unwrap();
        assert!(v.holds == Some(true) && v.text.contains("hold within 0.3"), "{}", v.text);
        let broken = make([100.0, 150.0]);
        let v = broken.verdicts.iter().find(|v| v.id == "weights-hold").unwrap();
        assert!(v.holds == Some(false) && v.text.contains("40.0 % of all instead of 33.3 %"), "{}", v.text);
    }

    #[test]
    fn equal_tenants_are_judged_by_their_bias() {
        let even = study(&record(vec![("64x3", cell((0..3).map(|_| steady("t", 64, 5, 100.0)).collect()))]));
        assert!(ids(&even).contains(&"equal-weights-equal-shares"), "{:?}", ids(&even));
        assert!(even.verdicts.iter().all(|v| v.holds != Some(false)));
    }

    #[test]
    fn the_misleading_mean_is_named() {
        // b is done after 3 s; a then runs ten times as fast for long.
        let a_runs: Vec<_> = (0..3)
            .map(|n| (n as f64, n as f64 + 1.0, 10.0))
            .chain((3..12).map(|n| (n as f64, n as f64 + 1.0, 300.0)))
            .collect();
        let b_runs: Vec<_> = (0..3).map(|n| (n as f64, n as f64 + 1.0, 100.0)).collect();
        let study = study(&record(vec![(
            "p",
            cell(vec![tenant("a", Some(1), &a_runs), tenant("b", Some(10), &b_runs)]),
        )]));
        let v = study.verdicts.iter().find(|v| v.id == "mean-over-all-runs-misleads").unwrap();
        assert!(v.text.contains("gives a") && v.text.contains("10.0 against 100.0"), "{}", v.text);
    }

    #[test]
    fn orders_of_activation_are_compared() {
        let mut there = cell(vec![steady("a", 1, 4, 100.0), steady("b", 2, 4, 200.0)]);
        let mut back = there.clone();
        back.activation = vec![1, 0];
        let same = study(&record(vec![("up", there.clone()), ("down", back.clone())]));
        assert_eq!(same.verdicts.iter().find(|v| v.id == "order-of-activation").unwrap().holds, Some(true));
        there.tenants[0] = steady("a", 1, 4, 200.0);
        let other = study(&record(vec![("up", there), ("down", back)]));
        assert_eq!(other.verdicts.iter().find(|v| v.id == "order-of-activation").unwrap().holds, Some(false));
    }
}
