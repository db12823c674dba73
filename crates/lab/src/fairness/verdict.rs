//! What the figures of tenants mean, in words; decided in one place, see [`evenkeel_experiment::decide`].

use evenkeel_base::stats::bias_pct;
use evenkeel_base::text::count;
use evenkeel_experiment::decide::{Claim, Decision, Draft, Figure, Mean, Said, Verdict, by, page};
use evenkeel_experiment::study::verdict::{INFEASIBLE_PCT, MORE_CPUS_PCT, ONE_CPU_PCT};

use super::plan::Which;
use super::record::{Results, TenantsRecord};
use super::study::{Row, deviation, due, series};
use crate::net::measure::{Measured, TenantMeasured};

/// The source's bound on the bias of default machines, percent.
const BIAS_PCT: f64 = 10.0;
/// Others that use more than this on the tenants' CPUs may be why shares are off, percent of ONE CPU.
const OTHERS_PCT: f64 = 5.0;

/// All that may be said of a record, from its rows.
pub(super) fn verdicts(record: &TenantsRecord, rows: &[Row]) -> Vec<Verdict> {
    page(match record.options.which {
        Which::TenantsNet => net(record, rows),
        Which::TenantsCpu => rows.iter().filter_map(|row| weights(record, row)).collect(),
    })
}

/// Repetitions of a row that have a result.
fn results<'a>(record: &'a TenantsRecord, row: &Row) -> Results<'a> {
    Results::of(record, record.points.iter().position(|point| *point == row.point).unwrap_or(usize::MAX))
}

/// The throughput of a point, a value a repetition.
fn rate(record: &TenantsRecord, row: &Row) -> Option<Mean> {
    results(record, row).net(Measured::throughput)
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
            // No bias is below 0.
            Figure::Largest(known.into_iter().map(|(_, m)| Figure::Deviation(vec![Figure::Mean(m)])).collect()),
            Claim::AtMost(BIAS_PCT),
            move |d| {
                format!(
                    "Bias of {what} between tenants is at most {} % (at {point}); the published \"below {BIAS_PCT:.0} %\" for \
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
    let cells: Vec<&Measured> =
        results(record, row).0.into_iter().filter_map(|c| c.measured.net.as_ref()).collect();
    let count = |tenant: usize| {
        let windows = cells.iter().filter_map(|m| m.tenants.get(tenant)).flat_map(|t| &t.windows);
        (windows.clone().filter(|n| **n == 0).count(), windows.count())
    };
    let (worst, (zero, of)) = (0..row.point.tenants.max(1))
        .map(|tenant| (tenant, count(tenant)))
        .max_by_key(|(_, (zero, _))| *zero)
        .filter(|(_, (zero, _))| *zero > 0)?;
    let waited = |tenant: usize| {
        Mean::of(&cells.iter().filter_map(|m| m.tenants.get(tenant)?.wait_pct).collect::<Vec<_>>())
    };
    let others: Vec<Mean> =
        (0..row.point.tenants).filter(|other| *other != worst).filter_map(waited).collect();
    let least = others.iter().map(|other| other.value).min_by(f64::total_cmp);
    let waits = waited(worst).zip(least);
    let longer = waits.and_then(|(own, _)| others.iter().map(|o| own.less(*o).map(Figure::Mean)).collect());
    let name = cells.iter().find_map(|m| Some(m.tenants.get(worst)?.name.clone()))?;
    let draft = Draft::new(
        "standstill",
        &row.point.to_string(),
        ("windows without a transaction of the tenant that had most of them, of all", "windows"),
        Figure::Observed(zero as f64),
        Claim::AtMost(0.0),
        move |d| {
            let mut said = format!("{}: {name} did not get one answer in {zero} of {of} windows.", row.point);
            if let Some((own, least)) = waits {
                said += &format!(
                    " Its threads were ready and waited for a CPU {:.0} % of one thread's time on average, the least of the \
                     others' {least:.0} %",
                    own.value
                );
                // The cause is named only where it waited longer beyond the interval.
                let cause = d.get(1).is_some_and(Decision::no);
                said += if cause { " (docs/tenants.md, \"Groups that lose their turn\")." } else { "." };
            }
            said
        },
    );
    Some(match longer {
        Some(longer) => draft.and(Figure::Largest(longer), Claim::AtMost(0.0)),
        None => draft,
    })
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
    let cpus = record
        .host
        .cpus
        .map_or_else(String::new, |n| format!(" (the host has {})", count(n as usize, "CPU")));
    let tried = line.len();
    let claims = vec![(Figure::Smallest(ratios), Claim::AtLeast(1.0))];
    Some(
        Draft::with(
            "throughput-peak",
            &series.clone(),
            ("throughput at the peak over the next best", ""),
            claims,
            move |d| {
                let (holds, equal) = d[0].unless_equal();
                let text = match holds {
                    Some(true) => format!("throughput peaks at {tenants} tenants, {:.0}{unit}{cpus}.", best.value),
                    _ => format!(
                        "no number of tenants is ahead of all others beyond the intervals; the highest mean is that of \
                         {tenants}, {:.0}{unit}{cpus}.{equal}",
                        best.value
                    ),
                };
                Some(Said { holds, text: format!("{series}: {text}"), shown: Some(0) })
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
    Some(Draft::with(
        "packet-steering",
        &row.point.to_string(),
        ("throughput with RPS over without", ""),
        vec![(ratio, Claim::AtLeast(1.0))],
        move |d| {
            let (holds, equal) = d[0].unless_equal();
            let what = by(
                holds,
                "Packet steering (RPS) helps",
                "Packet steering (RPS) costs throughput",
                "Whether packet steering (RPS) helps is open",
            );
            let times = d[0].words(2);
            let text = format!("{what}: throughput of {point} is {times} times that without it.{equal}");
            Some(Said { holds, text, shown: Some(0) })
        },
    ))
}

fn weights<'a>(record: &'a TenantsRecord, row: &'a Row) -> Option<Draft<'a>> {
    let shares: Vec<String> = row.shares_pct.iter().map(|share| format!("{share:.1}")).collect();
    let shares = shares.join(" : ");
    let bound = if row.point.one_cpu { ONE_CPU_PCT } else { MORE_CPUS_PCT };
    let results = results(record, row);
    let due = due(&results);
    // Who cannot use what its weight promises.
    let capped = due
        .iter()
        .copied()
        .zip(row.feasible_pct.iter().copied())
        .enumerate()
        .filter(|(_, (due, feasible))| *feasible < due * (1.0 - INFEASIBLE_PCT / 100.0))
        .max_by(|a, b| a.1.0.total_cmp(&b.1.0));
    // Seen in full, not a sample: no part of the page's error.
    let others = row.others_pct.map_or(0.0, |e| e.value);
    let disturbed = others > OTHERS_PCT;
    let beside = match disturbed {
        true => format!(" Others used {others:.1} % of a CPU on the tenants' CPUs meanwhile."),
        false => String::new(),
    };
    // What others take, they take from whoever is on the same CPU: shares off by it are not the weights' doing.
    let answer = move |holds: Option<bool>| if disturbed { holds.filter(|holds| *holds) } else { holds };
    let statement = move |id: &str, statistic: &str, error, text: Box<dyn Fn(&Decision) -> String + 'a>| {
        let claims = vec![(error, Claim::AtMost(bound))];
        let about = row.point.to_string();
        Draft::with(id, &about, (statistic, "% of the share"), claims, move |d| {
            let mut said = format!("{}{beside}", text(&d[0]));
            if disturbed && d[0].no() {
                said += " Undecided: what they took may be why; repeat it on a quiet host.";
            }
            Some(Said { holds: answer(d[0].holds), text: said, shown: Some(0) })
        })
    };
    if let Some((index, (due, _))) = capped {
        let cpus = if row.point.one_cpu { 1.0 } else { f64::from(record.host.cpus?) };
        let error = deviation(&results, &row.feasible_pct)?;
        let possible: Vec<String> = row.feasible_pct.iter().map(|share| format!("{share:.1}")).collect();
        // Weights and threads are all there is: who cannot use its weight has each thread on a CPU.
        let most = row.point.vcpus.unwrap_or(1);
        let threads = if most == 1 { "one thread".to_owned() } else { format!("{most} threads") };
        return Some(statement(
            "weights-infeasible",
            "largest deviation of a share from the feasible one (exact weighted max-min)",
            error,
            Box::new(move |d| {
                format!(
                    "{}: shares {shares} %. These weights cannot be in proportion: tenant {} has {due:.1} % of the weight, which \
                     is {:.2} of {cpus:.0} CPUs, but its {threads} can use no more than {most}. Feasible are {} %; the largest \
                     deviation from those is {} %, {} {bound:.0} %.",
                    row.point,
                    index + 1,
                    due / 100.0 * cpus,
                    possible.join(" : "),
                    d.words(1),
                    by(d.holds, "within", "beyond", "which may or may not be within")
                )
            }),
        ));
    }
    let error = deviation(&results, &due)?;
    Some(statement(
        "weights-hold",
        "largest deviation of a share from its weight's",
        error,
        Box::new(move |d| {
            let found = by(answer(d.holds), "hold", "do not hold", "may or may not hold");
            format!(
                "{}: shares {shares} %; the largest deviation from the weights is {} %: they {found} within {bound:.0} %.",
                row.point,
                d.words(1),
            )
        }),
    ))
}
