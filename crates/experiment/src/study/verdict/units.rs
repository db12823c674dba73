//! What CPU units buy: the questions of the source, asked of this host.

use std::collections::BTreeSet;

use evenkeel_base::stats::{mean, quantile};

use super::words::{of, three};
use crate::decide::{Claim, Decision, Draft, Figure, Mean, Said, by};
use crate::record::Record;
use crate::study::asked::Alone;
use crate::study::sample;
use crate::study::{PointStudy, Study};

/// The waits a user may have in mind, milliseconds.
const BUDGET_MS: f64 = 20.0;
/// Rates alone may differ by this much, percent.
const ALONE_PCT: f64 = 2.0;
/// A spread that grows by less than this as units double is no wider spread, percent of the mean spread.
const SPREAD_PCT: f64 = 5.0;
/// A run time that grows by less than this as the total doubles does not matter, percent.
const TOTAL_PCT: f64 = 1.0;
/// Largest error of a rule that fits, percent.
const FITS_PCT: f64 = 15.0;

pub(super) fn add<'a>(record: &'a Record, study: &'a Study, all: &mut Vec<Draft<'a>>) {
    all.extend(alone(record, study));
    let questions = [wait_budget(record, study), spread(record, study), balance(record, study)];
    all.extend(questions.into_iter().flatten().map(Draft::question));
}

/// The one number of units all tenants of a point have.
fn equal_units(point: &PointStudy) -> Option<u64> {
    let first = point.tenants.first()?.units?;
    point.tenants.iter().all(|t| t.units == Some(first)).then_some(first)
}

fn different(values: impl IntoIterator<Item = u64>) -> usize {
    values.into_iter().collect::<BTreeSet<_>>().len()
}

/// Runs of all tenants of a point: of each repetition the statistic, or of the one repetition the runs themselves.
fn run_ms(record: &Record, point: &PointStudy) -> Option<Mean> {
    let cells = sample::cells(record, point);
    let runs = cells.iter().map(|cell| cell.run_lengths_s().map(|s| 1e3 * s).collect());
    Mean::of_groups(&runs.collect::<Vec<Vec<f64>>>())
}

/// Alone, units do not matter.
fn alone<'a>(record: &Record, study: &'a Study) -> Option<Draft<'a>> {
    let points: Vec<(u64, Mean)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() == 1)
        .filter_map(|p| {
            Some((p.tenants[0].units?, sample::runs(&sample::tenants(record, p, 0), sample::events_per_s)?))
        })
        .collect();
    if different(points.iter().map(|p| p.0)) < 3 {
        return None;
    }
    let middle = mean(&points.iter().map(|p| p.1.value).collect::<Vec<_>>()).filter(|m| *m > 0.0)?;
    let parts = points.iter().map(|(_, m)| Figure::Mean(m.times(100.0 / middle))).collect();
    let least = points.iter().map(|p| p.0).min()?;
    let most = points.iter().map(|p| p.0).max()?;
    Some(Draft::new(
        "alone-units-do-not-matter",
        "",
        ("(max - min) / mean of the rate alone, over all units", "%"),
        Figure::Range(parts),
        Claim::AtMost(ALONE_PCT),
        move |d| {
            format!(
                "Alone, {}: {} events/s with {least} to {most} units, a spread of {} %.",
                by(
                    d[0].holds,
                    "the number of units does not matter",
                    "the number of units seems to matter",
                    "whether the number of units matters is open"
                ),
                three(middle),
                of(&d[0]),
            )
        },
    ))
}

/// How many fit into a budget of waiting.
fn wait_budget<'a>(record: &'a Record, study: &'a Study) -> Option<Draft<'a>> {
    let alone = Alone::of(record);
    // Of tenants that all do what one did alone.
    let wait = |point: &PointStudy| {
        let cell = *sample::cells(record, point).first()?;
        let mut each = cell.tenants.iter().map(|tenant| alone.like(cell, tenant));
        let first = each.next().filter(|first| each.all(|other| other == *first))?;
        run_ms(record, point)?.less(Mean::of_groups(first)?.times(1e3))
    };
    let mut waits: Vec<(usize, Mean)> = study
        .points
        .iter()
        .filter(|p| !p.tenants.is_empty())
        .filter(|p| equal_units(p).is_some() || p.tenants.iter().all(|t| t.units.is_none()))
        .filter_map(|p| Some((p.tenants.len(), wait(p)?)))
        .collect();
    waits.sort_by_key(|(count, _)| *count);
    if different(waits.iter().map(|(count, _)| *count as u64)) < 3 {
        return None;
    }
    let claims = waits.iter().map(|(_, wait)| (Figure::Mean(*wait), Claim::AtMost(BUDGET_MS))).collect();
    let counts: Vec<usize> = waits.iter().map(|(count, _)| *count).collect();
    Some(Draft::with(
        "how-many-fit",
        "",
        ("wait of a run (mean run - mean run alone) at the smallest number tried", "ms"),
        claims,
        move |d| {
            let sorted: Vec<(usize, &Decision)> = d.iter().enumerate().collect();
            let sure = sorted.iter().take_while(|(_, d)| d.yes()).count();
            let over = sorted.iter().find(|(_, d)| d.no());
            let says = |(index, d): &(usize, &Decision)| (counts[*index], d.words(1));
            let budget = three(BUDGET_MS);
            let not = over.map(says).map_or_else(String::new, |(n, ms)| format!("; {n} wait {ms} ms"));
            // What lies between what fits and what does not.
            let next = sorted.get(sure).filter(|(_, d)| d.holds.is_none()).map(says);
            let open = next.map_or_else(String::new, |(n, ms)| format!("; open is {n} ({ms} ms)"));
            let text = match sure.checked_sub(1).map(|last| says(&sorted[last])) {
                Some((n, ms)) if sure == sorted.len() => format!(
                    "All of the up to {n} tenants tried stay within a budget of {budget} ms of waiting a run ({ms} ms)."
                ),
                Some((n, ms)) => format!(
                    "With a budget of {budget} ms of waiting a run, {n} tenants fit ({ms} ms each){open}{not}."
                ),
                None if sorted[0].1.no() => {
                    format!(
                        "Not even the smallest number tried stays within {budget} ms of waiting a run{not}."
                    )
                }
                None => {
                    format!("How many fit into a budget of {budget} ms of waiting a run is open{open}{not}.")
                }
            };
            Some(Said { holds: d[0].holds, text, shown: Some(0) })
        },
    ))
}

/// Change of a quantity as x doubles, percent of its mean, by least squares.
fn per_doubling(points: &[(f64, Mean)]) -> Option<Figure> {
    let middle = mean(&points.iter().map(|p| p.1.value).collect::<Vec<_>>()).filter(|m| *m > 0.0)?;
    let logs: Vec<(f64, Mean)> = points.iter().map(|(x, m)| (x.log2(), m.times(100.0 / middle))).collect();
    super::limits::slope(&logs).map(Figure::Mean)
}

/// Points of equal tenants, by their number of units. More tenants spread wider whatever their units: only numbers of
/// tenants that were tried with all the units are there, so that these are the same at each end.
fn equal_points(study: &Study) -> Vec<(u64, &PointStudy)> {
    let all = || {
        let several = study.points.iter().filter(|p| p.tenants.len() > 1);
        several.filter_map(|p| Some((equal_units(p)?, p)))
    };
    let units_of = |count: usize| -> BTreeSet<u64> {
        all().filter(|(_, p)| p.tenants.len() == count).map(|(units, _)| units).collect()
    };
    let most = all().map(|(_, p)| units_of(p.tenants.len())).max_by_key(BTreeSet::len).unwrap_or_default();
    all().filter(|(_, p)| units_of(p.tenants.len()) == most).collect()
}

/// Larger equal units, wider spread?
fn spread<'a>(record: &Record, study: &'a Study) -> Option<Draft<'a>> {
    let points: Vec<(u64, Mean)> = equal_points(study)
        .into_iter()
        .filter_map(|(units, p)| {
            // The middle 90 % of each repetition's runs.
            let widths: Vec<f64> = sample::cells(record, p)
                .into_iter()
                .filter_map(|cell| {
                    let mut runs: Vec<f64> = cell.run_lengths_s().collect();
                    runs.sort_by(f64::total_cmp);
                    Some(1e3 * (quantile(&runs, 0.95)? - quantile(&runs, 0.05)?))
                })
                .collect();
            Some((units, Mean::of(&widths)?))
        })
        .collect();
    if different(points.iter().map(|p| p.0)) < 3 {
        return None;
    }
    let figure = per_doubling(&points.iter().map(|p| (p.0 as f64, p.1)).collect::<Vec<_>>())?;
    // Of several numbers of tenants with the same units the mean.
    let at = |units: u64| {
        let widths: Vec<f64> = points.iter().filter(|p| p.0 == units).map(|p| p.1.value).collect();
        Some((units, mean(&widths)?))
    };
    let units = || points.iter().map(|p| p.0);
    let (small, large) = (at(units().min()?)?, at(units().max()?)?);
    Some(Draft::new(
        "larger-units-wider-spread",
        "",
        ("growth of the spread (95th - 5th percentile of run time) as units double, of its mean", "%"),
        figure,
        Claim::AtLeast(SPREAD_PCT),
        move |d| {
            format!(
                "{}: the middle 90 % of runs span {} ms with {} units and {} ms with {}, {} % a doubling. The source saw a \
                 wider spread with larger units.",
                by(
                    d[0].holds,
                    "Larger equal units spread run times more here",
                    "Larger equal units do not spread run times more here",
                    "Whether larger equal units spread run times more is open here"
                ),
                three(small.1),
                small.0,
                three(large.1),
                large.0,
                of(&d[0]),
            )
        },
    ))
}

/// The source's EPS = 256 * (1/2)^C * U, in form: the rate of a unit halves with each container more.
pub(super) fn rule_of_thumb<'a>(record: &Record, study: &'a Study) -> Option<Draft<'a>> {
    let mixed: Vec<&PointStudy> = study
        .points
        .iter()
        .filter(|p| {
            p.tenants.len() > 2 && equal_units(p).is_none() && p.tenants.iter().all(|t| t.units.is_some())
        })
        .collect();
    // The largest may be held back by its one thread: the others tell, by the median of the rate of a unit.
    let per_unit = |p: &PointStudy| -> Option<Mean> {
        let mut rates: Vec<Mean> = p
            .tenants
            .iter()
            .enumerate()
            .map(|(i, t)| Some(sample::competing_per_s(record, p, i)?.times(1.0 / t.units? as f64)))
            .collect::<Option<_>>()?;
        rates.sort_by(|a, b| a.value.total_cmp(&b.value));
        let (low, high) = (rates.get((rates.len() - 1) / 2)?, rates.get(rates.len() / 2)?);
        Mean::sum(&[(0.5, *low), (0.5, *high)])
    };
    let total = |p: &PointStudy| p.tenants.iter().filter_map(|t| t.units).sum::<u64>() as f64;
    let known: Vec<(f64, f64, Mean)> =
        mixed.iter().filter_map(|p| Some((p.tenants.len() as f64, total(p), per_unit(p)?.ln()?))).collect();
    if different(known.iter().map(|k| k.0 as u64)) < 2 {
        return None;
    }
    // Both forms fitted by their constant (geometric mean): each point's error is its distance from it.
    let errors = |form: &dyn Fn(&(f64, f64, Mean)) -> f64| -> Option<Figure> {
        let logs: Vec<Mean> = known.iter().map(|k| k.2.plus(-form(k).ln())).collect();
        let n = logs.len() as f64;
        let parts = (0..logs.len())
            .map(|i| {
                let weight = |j: usize| if i == j { 1.0 - 1.0 / n } else { -1.0 / n };
                let terms: Vec<_> = logs.iter().enumerate().map(|(j, m)| (weight(j), *m)).collect();
                Mean::sum(&terms).map(|m| Figure::Mean(m.times(100.0)))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Figure::Deviation(parts))
    };
    let thumb = errors(&|k| 0.5f64.powf(k.0))?;
    let proportional = errors(&|k| 1.0 / k.1)?.value()?;
    Some(Draft::new(
        "rule-of-thumb",
        "",
        (
            "largest error of a point's median rate of a unit against constant x (1/2)^containers, of the logarithm",
            "%",
        ),
        thumb,
        Claim::AtMost(FITS_PCT),
        move |d| {
            format!(
                "The source's rule (a unit is worth half as much with each container more) {} here: by the median of a \
                 point's containers it is off by up to {} %. It follows from its lists, whose sum doubles each time: rate = \
                 capacity x units / sum of units is off by up to {} % and needs no doubling.",
                by(d[0].holds, "fits", "does not fit", "may or may not fit"),
                of(&d[0]),
                three(proportional)
            )
        },
    ))
}

/// "A small difference and a small total": the second half of the advice, tested.
fn balance<'a>(record: &Record, study: &'a Study) -> Option<Draft<'a>> {
    let ratio = |p: &PointStudy| -> Option<u64> {
        let units: Vec<u64> = p.tenants.iter().map(|t| t.units).collect::<Option<_>>()?;
        let (min, max) = (*units.iter().min()?, *units.iter().max()?);
        (min > 0).then(|| max / min)
    };
    let points: Vec<(u64, f64, Mean)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() > 2)
        .filter_map(|p| {
            let total: u64 = p.tenants.iter().filter_map(|t| t.units).sum();
            let run = run_ms(record, p)?;
            ratio(p).filter(|r| *r > 1).map(|r| (r, total as f64, run))
        })
        .collect();
    let same_ratio = points.windows(2).all(|w| w[0].0 == w[1].0);
    let same_count = study.points.windows(2).all(|w| w[0].tenants.len() == w[1].tenants.len());
    if points.len() < 3 || !same_ratio || !same_count || different(points.iter().map(|p| p.1 as u64)) < 3 {
        return None;
    }
    let by_total: Vec<(f64, Mean)> = points.iter().map(|p| (p.1, p.2)).collect();
    let figure = per_doubling(&by_total)?;
    let small = *by_total.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let large = *by_total.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Draft::new(
        "a-small-total-helps",
        "",
        ("growth of the mean run time as the total of units doubles, of its mean", "%"),
        figure,
        Claim::AtLeast(TOTAL_PCT),
        move |d| {
            format!(
                "The source's advice to keep the total of units small {}: at the same ratio of largest to smallest a run \
                 takes {} ms with {} units in all and {} ms with {}, {} % a doubling.",
                by(
                    d[0].holds,
                    "agrees with this record",
                    "is not borne out",
                    "is neither borne out nor refuted"
                ),
                three(small.1.value),
                three(small.0),
                three(large.1.value),
                three(large.0),
                of(&d[0]),
            )
        },
    ))
}

#[cfg(test)]
mod tests {
    use crate::study::study;
    use crate::study::testing::{cell, record, steady, tenant};

    fn find(study: &crate::study::Study, id: &str) -> crate::decide::Verdict {
        study
            .verdicts
            .iter()
            .find(|v| v.id == id)
            .cloned()
            .unwrap_or_else(|| panic!("{id}: {:?}", study.verdicts.iter().map(|v| &v.id).collect::<Vec<_>>()))
    }

    #[test]
    fn units_alone() {
        let points = |rates: [f64; 3]| {
            let cells = [("1", 1), ("64", 64), ("1155", 1155)];
            study(&record(
                cells
                    .into_iter()
                    .zip(rates)
                    .map(|((l, u), r)| (l, cell(vec![steady("a", u, 5, r)])))
                    .collect(),
            ))
        };
        assert_eq!(find(&points([1155.0, 1154.0, 1157.0]), "alone-units-do-not-matter").holds, Some(true));
        assert_eq!(find(&points([1155.0, 1254.0, 1357.0]), "alone-units-do-not-matter").holds, Some(false));
    }

    #[test]
    fn how_many_fit_a_budget_is_the_sources_six() {
        // The source's table: wait of a run by number of containers.
        let table = [
            (1usize, -0.000_142),
            (2, 0.002_013),
            (3, 0.008_121),
            (4, 0.011_349),
            (5, 0.015_753),
            (6, 0.018_704),
            (8, 0.032_754),
            (10, 0.043_329),
        ];
        let labels: Vec<String> = table.iter().map(|(n, _)| n.to_string()).collect();
        let cells = table
            .iter()
            .zip(&labels)
            .map(|((n, wait), label)| {
                let length = 10.013_160 + wait;
                let tenants = (0..*n)
                    .map(|_| tenant("a", Some(64), &[(0.0, length, 100.0), (length, 2.0 * length, 100.0)]))
                    .collect();
                (label.as_str(), cell(tenants))
            })
            .collect();
        let v = find(&study(&record(cells)), "how-many-fit");
        assert!(v.text.contains("6 tenants fit"), "{}", v.text);
        assert!(v.text.contains("8 wait 32.9"), "{}", v.text);
    }

    #[test]
    fn the_spread_at_few_units_is_not_that_of_fewer_tenants() {
        // Twice as many tenants spread twice as wide, whatever their units.
        let point = |units: u64, count: usize| {
            let width = 0.1 * count as f64;
            let runs: Vec<_> = (0..21)
                .map(|n| {
                    (10.0 * f64::from(n), 10.0 * f64::from(n) + 1.0 + width * f64::from(n) / 20.0, 100.0)
                })
                .collect();
            (format!("{units}x{count}"), cell(vec![tenant("a", Some(units), &runs); count]))
        };
        let mut points: Vec<_> =
            [4, 8].into_iter().flat_map(|count| [64, 256, 1024].map(|units| point(units, count))).collect();
        let of = |points: &[(String, crate::record::Cell)]| {
            let cells = points.iter().map(|(label, cell)| (label.as_str(), cell.clone())).collect();
            find(&study(&record(cells)), "larger-units-wider-spread")
        };
        let verdict = of(&points);
        assert!(verdict.text.contains("span 540 ms with 64 units and 540 ms with 1024"), "{}", verdict.text);
        // A number of tenants that was tried with some of the units only tells nothing of them.
        points.remove(3);
        let verdict = of(&points);
        assert!(
            verdict.text.contains("span 360 ms with 64 units and 360 ms with 1024, 0"),
            "{}",
            verdict.text
        );
    }

    #[test]
    fn the_rule_of_thumb_fits_the_sources_lists() {
        let point = |units: &[u64]| {
            let sum: u64 = units.iter().sum();
            cell(
                units.iter().map(|&u| steady(&u.to_string(), u, 5, 2000.0 * u as f64 / sum as f64)).collect(),
            )
        };
        let study = study(&record(vec![
            ("5", point(&[16, 16, 32, 64, 128])),
            ("6", point(&[16, 16, 32, 64, 128, 256])),
            ("7", point(&[16, 16, 32, 64, 128, 256, 512])),
        ]));
        let v = find(&study, "rule-of-thumb");
        assert_eq!(v.holds, Some(true), "{}", v.text);
    }
}
