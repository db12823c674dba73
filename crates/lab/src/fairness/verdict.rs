//! What the figures of tenants mean, in words; decided in one place, see [`evenkeel_experiment::decide`].

use evenkeel_experiment::decide::{Claim, Draft, Figure, Mean, Verdict, page};
use evenkeel_experiment::study::stats::bias_pct;

use super::plan::Which;
use super::record::{Results, TenantsRecord};
use super::study::{Row, cpu_shares, series};
use crate::net::measure::{Measured, TenantMeasured};

/// The source's bound on the bias of default machines, percent.
const BIAS_PCT: f64 = 10.0;
/// Largest deviation from proportion on one CPU, percent of the share.
const ONE_CPU_PCT: f64 = 2.0;
/// The same on several.
const MORE_CPUS_PCT: f64 = 8.0;
/// A feasible share further from the weight's than this is called infeasible weights, percent of the share.
const INFEASIBLE_PCT: f64 = 1.0;

/// All that may be said of a record, from its rows.
pub(super) fn verdicts(record: &TenantsRecord, rows: &[Row]) -> Vec<Verdict> {
    page(match record.options.which {
        Which::TenantsNet => net(record, rows),
        Which::TenantsCpu => rows.iter().filter_map(|row| weights(record, row)).collect(),
    })
}

/// Repetitions of a row that have a result.
fn results<'a>(record: &'a TenantsRecord, row: &Row) -> Results<'a> {
    record.results(record.points.iter().position(|point| *point == row.point).unwrap_or(usize::MAX))
}

/// The throughput of a point, a value a repetition.
fn rate(record: &TenantsRecord, row: &Row) -> Option<Mean> {
    results(record, row).net(Measured::throughput)
}

fn by<'a>(holds: Option<bool>, yes: &'a str, no: &'a str, open: &'a str) -> &'a str {
    match holds {
        Some(true) => yes,
        Some(false) => no,
        None => open,
    }
}

fn net<'a>(record: &'a TenantsRecord, rows: &'a [Row]) -> Vec<Draft<'a>> {
    let mut all = Vec::new();
    type Of<'a> = &'a dyn Fn(&TenantMeasured) -> Option<f64>;
    let kinds: [(&str, &str, Of<'_>); 3] = [
        ("bias-throughput", "throughput", &TenantMeasured::throughput),
        ("bias-latency", "latency", &TenantMeasured::mean_usec),
        ("bias-cpu", "CPU load", &|tenant| tenant.cpu_pct),
    ];
    for (id, what, of) in kinds {
        let known: Vec<(String, Mean)> = rows
            .iter()
            .filter(|row| row.point.tenants > 1)
            .filter_map(|row| {
                Some((row.point.to_string(), results(record, row).net(|m| bias_pct(&m.each(of)?))?))
            })
            .collect();
        let Some((point, _)) = known.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value)) else { continue };
        let point = point.clone();
        all.push(Draft::new(
            id,
            "",
            ("largest bias between tenants, (max - min) / mean, mean of the repetitions", "%"),
            Figure::Largest(known.into_iter().map(|(_, m)| Figure::Mean(m)).collect()),
            Claim::AtMost(BIAS_PCT),
            move |d| {
                format!(
                    "Bias of {what} between tenants is at most {} % (at {point}); the source's \"below {BIAS_PCT:.0} %\" for \
                     default machines {}.",
                    d[0].words(1),
                    by(d[0].holds, "holds here", "does not hold here", "may or may not hold here"),
                )
            },
        ));
    }
    all.extend(rows.iter().filter_map(|row| standstill(record, row)));
    all.extend(series(rows).into_iter().filter_map(|series| peak(record, rows, series)));
    all.extend(rows.iter().filter(|row| row.point.rps).filter_map(|row| steering(record, rows, row)));
    all
}

/// Whole windows in which a tenant got no answer at all, though its flows waited for one; nothing where there was none.
fn standstill<'a>(record: &'a TenantsRecord, row: &'a Row) -> Option<Draft<'a>> {
    let cells: Vec<&Measured> = results(record, row).0.into_iter().filter_map(|c| c.net.as_ref()).collect();
    let count = |tenant: usize| {
        let windows = cells.iter().filter_map(|m| m.tenants.get(tenant)).flat_map(|t| &t.windows);
        (windows.clone().filter(|n| **n == 0).count(), windows.count())
    };
    let (worst, (zero, of)) = (0..row.point.tenants.max(1))
        .map(|tenant| (tenant, count(tenant)))
        .max_by_key(|(_, (zero, _))| *zero)
        .filter(|(_, (zero, _))| *zero > 0)?;
    let waited = |tenant: usize| {
        let known = cells.iter().filter_map(|m| m.tenants.get(tenant)?.wait_pct);
        evenkeel_experiment::study::stats::mean(&known.collect::<Vec<_>>())
    };
    let others = (0..row.point.tenants).filter(|other| *other != worst).filter_map(waited);
    let least = others.min_by(f64::total_cmp);
    let waits = match (waited(worst), least) {
        (Some(own), Some(least)) => format!(
            " Its threads were ready and waited for a CPU {own:.0} % of one thread's time on average, the least of the others' \
             {least:.0} % (docs/tenants.md, \"Groups that lose their turn\")."
        ),
        _ => String::new(),
    };
    let name = cells.iter().find_map(|m| Some(m.tenants.get(worst)?.name.clone()))?;
    Some(Draft::new(
        "standstill",
        &row.point.to_string(),
        ("windows without a transaction of the tenant that had most of them, of all", "windows"),
        Figure::Observed(zero as f64),
        Claim::AtMost(0.0),
        move |_| format!("{}: {name} did not get one answer in {zero} of {of} windows.{waits}", row.point),
    ))
}

/// At how many tenants a line's throughput is highest.
fn peak<'a>(record: &'a TenantsRecord, rows: &[Row], series: String) -> Option<Draft<'a>> {
    let line: Vec<(usize, Mean)> = rows
        .iter()
        .filter(|row| row.series == series && row.point.tenants > 0)
        .filter_map(|row| Some((row.point.tenants, rate(record, row)?)))
        .collect();
    let unit = rows.iter().find(|row| row.series == series)?;
    let unit = if unit.transactions_per_s.is_some() { "/s" } else { " Mbit/s" };
    let (at, (tenants, best)) =
        line.iter().copied().enumerate().max_by(|a, b| a.1.1.value.total_cmp(&b.1.1.value))?;
    let others = line.iter().enumerate().filter(|(index, _)| *index != at);
    let ratios: Vec<Figure> = others.map(|(_, (_, other))| best.over(*other)).collect::<Option<_>>()?;
    if ratios.is_empty() {
        return None;
    }
    let cpus = record.host.cpus.map_or_else(String::new, |n| format!(" (the host has {n} CPUs)"));
    let tried = line.len();
    Some(
        Draft::new(
            "throughput-peak",
            &series.clone(),
            ("throughput at the peak over the next best", ""),
            Figure::Smallest(ratios),
            Claim::AtLeast(1.0),
            move |d| match d[0].holds {
                Some(true) => format!("{series}: throughput peaks at {tenants} tenants, {:.0}{unit}{cpus}.", best.value),
                _ => format!(
                    "{series}: no number of tenants is ahead of all others beyond the intervals; the highest mean is that of \
                     {tenants}, {:.0}{unit}{cpus}.",
                    best.value
                ),
            },
        )
        .picked_from(tried),
    )
}

/// Whether packet steering helped.
fn steering<'a>(record: &TenantsRecord, rows: &[Row], row: &Row) -> Option<Draft<'a>> {
    let off = rows.iter().find(|other| {
        !other.point.rps
            && (other.point.kind, other.point.tenants, other.point.vcpus)
                == (row.point.kind, row.point.tenants, row.point.vcpus)
    })?;
    let ratio = rate(record, row)?.over(rate(record, off)?)?;
    let point = off.point.to_string();
    Some(Draft::new(
        "packet-steering",
        &row.point.to_string(),
        ("throughput with RPS over without", ""),
        ratio,
        Claim::AtLeast(1.0),
        move |d| {
            let what = by(
                d[0].holds,
                "Packet steering (RPS) helps",
                "Packet steering (RPS) costs throughput",
                "Whether packet steering (RPS) helps is open",
            );
            format!("{what}: throughput of {point} is {} times that without it.", d[0].words(2))
        },
    ))
}

/// How far tenants' mean shares are from those due, percent of the latter: the largest.
fn deviation(record: &TenantsRecord, row: &Row, due: &[f64]) -> Option<Figure> {
    let results = results(record, row);
    let off = |tenant: usize| {
        results.mean(|cell| Some(100.0 * (cpu_shares(cell)?.get(tenant)? / due.get(tenant)? - 1.0)))
    };
    let all = (0..due.len()).map(off).collect::<Option<Vec<Mean>>>()?;
    (!all.is_empty()).then(|| evenkeel_experiment::study::sample::deviation(all))
}

fn weights<'a>(record: &'a TenantsRecord, row: &'a Row) -> Option<Draft<'a>> {
    let shares: Vec<String> = row.shares_pct.iter().map(|share| format!("{share:.1}")).collect();
    let shares = shares.join(" : ");
    let bound = if row.point.one_cpu { ONE_CPU_PCT } else { MORE_CPUS_PCT };
    let sum: f64 = row.point.weights.iter().map(|w| *w as f64).sum();
    let due: Vec<f64> = row.point.weights.iter().map(|w| 100.0 * *w as f64 / sum).collect();
    // Who cannot use what its weight promises.
    let capped = due
        .iter()
        .copied()
        .zip(row.feasible_pct.iter().copied())
        .enumerate()
        .filter(|(_, (due, feasible))| *feasible < due * (1.0 - INFEASIBLE_PCT / 100.0))
        .max_by(|a, b| a.1.0.total_cmp(&b.1.0));
    if let Some((index, (due, feasible))) = capped {
        let cpus = if row.point.one_cpu { 1.0 } else { f64::from(record.host.cpus?) };
        let error = deviation(record, row, &row.feasible_pct)?;
        let possible: Vec<String> = row.feasible_pct.iter().map(|share| format!("{share:.1}")).collect();
        let threads = match row.point.vcpus.unwrap_or(1) {
            1 => "one thread".to_owned(),
            n => format!("{n} threads"),
        };
        return Some(Draft::new(
            "weights-infeasible",
            &row.point.to_string(),
            ("largest deviation of a share from the feasible one (exact weighted max-min)", "% of the share"),
            error,
            Claim::AtMost(bound),
            move |d| {
                format!(
                    "{}: shares {shares} %. These weights cannot be in proportion: tenant {} has {due:.1} % of the weight, which \
                     is {:.2} of {cpus:.0} CPUs, but its {threads} can use no more than {:.2}. Feasible are {} %; the largest \
                     deviation from those is {} %, {} {bound:.0} %.",
                    row.point,
                    index + 1,
                    due / 100.0 * cpus,
                    feasible / 100.0 * cpus,
                    possible.join(" : "),
                    d[0].words(1),
                    by(d[0].holds, "within", "beyond", "which may or may not be within")
                )
            },
        ));
    }
    let error = deviation(record, row, &due)?;
    Some(Draft::new(
        "weights-hold",
        &row.point.to_string(),
        ("largest deviation of a share from its weight's", "% of the share"),
        error,
        Claim::AtMost(bound),
        move |d| {
            format!(
                "{}: shares {shares} %; the largest deviation from the weights is {} %: they {} within {bound:.0} %.",
                row.point,
                d[0].words(1),
                by(d[0].holds, "hold", "do not hold", "may or may not hold")
            )
        },
    ))
}
