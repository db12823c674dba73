//! Figures of a point's tenants with their errors, straight from the record: repetitions are the sample; where there is
//! one, its runs are.

use super::PointStudy;
use super::point::{alike, feasible, rates, weight};
use super::window::{Window, competing, inside, rate, span, work};
use crate::decide::{Figure, Mean};
use crate::record::{Cell, Ended, Record, RunRecord, TenantRecord};

/// Exit status of a command that SIGKILL ended.
const KILLED: i32 = 128 + 9;

/// Cells of a point that have tenants.
pub fn cells<'a>(record: &'a Record, point: &PointStudy) -> Vec<&'a Cell> {
    record.cells.iter().filter(|c| c.point.index == point.index && !c.tenants.is_empty()).collect()
}

/// A tenant over the repetitions of a point.
pub fn tenants<'a>(record: &'a Record, point: &PointStudy, index: usize) -> Vec<&'a TenantRecord> {
    cells(record, point).into_iter().filter_map(|cell| cell.tenants.get(index)).collect()
}

/// A quantity of a tenant, a value a repetition; `None` where one does not know it.
pub fn each(tenants: &[&TenantRecord], of: impl Fn(&TenantRecord) -> Option<f64>) -> Option<Mean> {
    Mean::of(&tenants.iter().map(|t| of(t)).collect::<Option<Vec<f64>>>()?)
}

/// A quantity of a tenant's runs.
pub fn runs(tenants: &[&TenantRecord], of: impl Fn(&RunRecord) -> Option<f64>) -> Option<Mean> {
    Mean::of_groups(&tenants.iter().map(|t| t.runs.iter().filter_map(&of).collect()).collect::<Vec<_>>())
}

pub fn events_per_s(run: &RunRecord) -> Option<f64> {
    run.events_per_s
        .or_else(|| Some(run.events? as f64 / (run.end_s - run.start_s)))
        .filter(|v| v.is_finite())
}

/// How long a tenant took for its work in one cell, and whether it was cut off: then it is a lower bound. `None` of what
/// failed: that was no quicker.
pub fn taken(cell: &Cell, tenant: &TenantRecord) -> Option<(f64, bool)> {
    if failed(tenant) {
        return None;
    }
    let cut = matches!(tenant.ended, Ended::TimeLimit(_));
    let known = span(tenant).map(|s| s.seconds());
    if cut { Some((known.unwrap_or(0.0).max(cell.seconds), true)) } else { Some((known?, false)) }
}

/// Whether a tenant ended before its work was done: it died, or a command of its failed.
fn failed(tenant: &TenantRecord) -> bool {
    // In records without `cut_off` a command that the time limit ended is one that was killed.
    let of_old = matches!(tenant.ended, Ended::TimeLimit(_)) && !tenant.runs.iter().any(|run| run.cut_off);
    let cut = |run: &RunRecord, status: i32| run.cut_off || of_old && status == KILLED;
    let wrong = |run: &RunRecord| run.exit_status.is_some_and(|status| status != 0 && !cut(run, status));
    matches!(tenant.ended, Ended::Died(_) | Ended::Interrupted) || tenant.runs.iter().any(wrong)
}

/// The same over the repetitions of a point.
pub fn elapsed(record: &Record, point: &PointStudy, index: usize) -> Option<Mean> {
    let all: Vec<(f64, bool)> = cells(record, point)
        .into_iter()
        .map(|cell| taken(cell, cell.tenants.get(index)?))
        .collect::<Option<_>>()?;
    let mean = Mean::of(&all.iter().map(|(s, _)| *s).collect::<Vec<_>>())?;
    Some(mean.cut_off(all.iter().any(|(_, cut)| *cut)))
}

/// How far each tenant's share is from what was expected of it, percent of the latter.
fn off(
    record: &Record,
    point: &PointStudy,
    expected: impl Fn(&Cell) -> Option<Vec<f64>>,
) -> Option<Vec<Mean>> {
    let cells = cells(record, point);
    let first = *cells.first()?;
    let expected = expected(first)?;
    let sum: f64 = expected.iter().sum();
    let (rates, _) = rates(&cells);
    let shares: Vec<Vec<f64>> = rates
        .into_iter()
        .map(|cell| {
            let cell = cell.into_iter().collect::<Option<Vec<f64>>>()?;
            let all: f64 = cell.iter().sum();
            (all > 0.0).then(|| cell.iter().map(|r| r / all).collect())
        })
        .collect::<Option<_>>()?;
    let relative = |index: usize, share: f64| 100.0 * (share * sum / expected[index] - 1.0);
    if expected.iter().any(|e| *e <= 0.0) || shares.iter().any(|s| s.len() != expected.len()) {
        return None;
    }
    if let [only] = shares.as_slice() {
        // One repetition: the runs in the window tell how steady each is.
        let errors = within(first)?;
        return only
            .iter()
            .enumerate()
            .map(|(index, share)| {
                let mut mean = Mean::of(&[relative(index, *share)])?;
                if let Some((relative_error, n)) = errors.get(index)? {
                    let per_point = 100.0 * share * sum / expected[index];
                    mean = Mean {
                        error: Some(per_point * relative_error),
                        freedom: (n - 1) as f64,
                        n: *n,
                        of_runs: true,
                        ..mean
                    };
                }
                Some(mean)
            })
            .collect();
    }
    (0..expected.len())
        .map(|i| Mean::of(&shares.iter().map(|s| relative(i, s[i])).collect::<Vec<_>>()))
        .collect()
}

/// Relative standard error of each tenant's share in one cell, and the runs it comes from; `None` for fewer than three.
fn within(cell: &Cell) -> Option<Vec<Option<(f64, usize)>>> {
    let window = competing(cell)?;
    let by_events = alike(&cell.tenants);
    let of = |run: &RunRecord| {
        let done = if by_events { work(run)? } else { run.account.cpu_s()? };
        Some(done / (run.end_s - run.start_s)).filter(|rate| rate.is_finite())
    };
    let each: Vec<Option<Mean>> = cell
        .tenants
        .iter()
        .map(|t| Mean::of(&inside(t, window).filter_map(of).collect::<Vec<_>>()).filter(|m| m.n >= 3))
        .collect();
    let Some(known) = each.iter().copied().collect::<Option<Vec<Mean>>>() else {
        return Some(vec![None; each.len()]);
    };
    let all: f64 = known.iter().map(|m| m.value).sum();
    let least = known.iter().map(|m| m.n).min()?;
    // d ln(share_i) = (1 - p_i) d ln(r_i) - sum over others p_j d ln(r_j)
    let relative = |m: &Mean| m.error.unwrap_or(0.0) / m.value;
    Some(
        (0..known.len())
            .map(|i| {
                let squares = known.iter().enumerate().map(|(j, m)| {
                    let part = m.value / all;
                    let factor = if i == j { 1.0 - part } else { part };
                    (factor * relative(m)).powi(2)
                });
                Some((squares.sum::<f64>().sqrt(), least)).filter(|(e, _)| e.is_finite())
            })
            .collect(),
    )
}

/// Deviations of shares from the weights'.
pub fn off_weights(record: &Record, point: &PointStudy) -> Option<Vec<Mean>> {
    off(record, point, |cell| Some(cell.tenants.iter().map(weight).collect()))
}

/// Deviations of shares from the feasible ones.
pub fn off_feasible(record: &Record, point: &PointStudy) -> Option<Vec<Mean>> {
    off(record, point, |cell| feasible(&record.host, &cell.tenants))
}

/// The largest of deviations; of two whose shares make up the whole one tells both.
pub fn deviation(mut off: Vec<Mean>) -> Figure {
    // 1:1: what one has too much the other lacks, in percent of the same.
    if let [a, b] = off.as_slice()
        && (a.value + b.value).abs() < 1e-9 * a.value.abs().max(1.0)
    {
        off.truncate(1);
    }
    Figure::Deviation(off.into_iter().map(Figure::Mean).collect())
}

/// The largest less the smallest of deviations from equal shares.
pub fn bias(off: Vec<Mean>) -> Figure {
    match off.as_slice() {
        [a, _] => Figure::Deviation(vec![Figure::Mean(a.times(2.0))]),
        _ => Figure::Range(off.into_iter().map(Figure::Mean).collect()),
    }
}

/// Rates of a tenant in the window in which all compete, a value a repetition.
pub fn competing_per_s(record: &Record, point: &PointStudy, index: usize) -> Option<Mean> {
    let cells = cells(record, point);
    let (rates, by_events) = rates(&cells);
    let own: Vec<f64> = rates.iter().map(|cell| *cell.get(index)?).collect::<Option<_>>()?;
    let mean = Mean::of(&own).filter(|_| by_events)?;
    if let ([only], Some(window)) = (cells.as_slice(), cells.first().and_then(|c| competing(c))) {
        let tenant = only.tenants.get(index)?;
        let inside: Vec<f64> =
            inside(tenant, window).filter_map(|r| Some(work(r)? / (r.end_s - r.start_s))).collect();
        let spread = Mean::of(&inside).filter(|m| m.n >= 3);
        return Some(spread.map_or(mean, |s| Mean { value: mean.value, of_runs: true, ..s }));
    }
    Some(mean)
}

/// Rate in the window by the work counted, of one cell; see [`rate`].
pub fn rate_in(tenant: &TenantRecord, window: Window) -> Option<f64> {
    rate(tenant, window, work)
}
