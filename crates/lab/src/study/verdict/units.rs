//! What CPU units buy: the questions of the source, asked of this host.

use super::{Test, Verdict, three, verdict, with_interval};
use crate::study::stats::{line, mean, rank_correlation};
use crate::study::{PointStudy, Study};

/// The waits a user may have in mind, seconds.
const BUDGET_S: f64 = 0.020;
/// Rates alone may differ by this much, percent.
const ALONE_PCT: f64 = 2.0;

pub(super) fn add(study: &Study, all: &mut Vec<Verdict>) {
    all.extend(alone(study));
    all.extend(wait_budget(study));
    all.extend(spread(study));
    all.extend(balance(study));
}

/// The one number of units all tenants of a point have.
fn equal_units(point: &PointStudy) -> Option<u64> {
    let first = point.tenants.first()?.units?;
    point.tenants.iter().all(|t| t.units == Some(first)).then_some(first)
}

fn different(values: impl IntoIterator<Item = u64>) -> usize {
    values.into_iter().collect::<std::collections::BTreeSet<_>>().len()
}

/// Alone, units do not matter.
fn alone(study: &Study) -> Option<Verdict> {
    let points: Vec<(f64, f64)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() == 1)
        .filter_map(|p| Some((p.tenants[0].units? as f64, p.tenants[0].events_per_s?.mean)))
        .collect();
    if different(points.iter().map(|p| p.0 as u64)) < 3 {
        return None;
    }
    let rates: Vec<f64> = points.iter().map(|p| p.1).collect();
    let spread = crate::study::stats::bias_pct(&rates)?;
    let logs: Vec<_> = points.iter().map(|(u, r)| (u.log2(), *r)).collect();
    let by_doubling = line(&logs).map(|l| 100.0 * l.slope / mean(&rates).unwrap_or(1.0));
    let holds = spread <= ALONE_PCT;
    Some(verdict(
        "alone-units-do-not-matter",
        "",
        Some(holds),
        format!(
            "Alone, the number of units {}: {} events/s with {} to {} units, a spread of {} % ({} % a doubling).",
            if holds { "does not matter" } else { "seems to matter" },
            three(mean(&rates)?),
            three(points.iter().map(|p| p.0).fold(f64::INFINITY, f64::min)),
            three(points.iter().map(|p| p.0).fold(0.0, f64::max)),
            three(spread),
            by_doubling.map_or_else(|| "?".into(), three),
        ),
        Test::of("(max - min) / mean of the rate alone, over all units", "%", format!("<= {ALONE_PCT}"))
            .value(spread),
    ))
}

/// How many fit into a budget of waiting.
fn wait_budget(study: &Study) -> Option<Verdict> {
    let alone = study.overhead.as_ref()?.alone_s;
    let mut waits: Vec<(usize, evenkeel_base::run::Estimate)> = study
        .points
        .iter()
        .filter(|p| equal_units(p).is_some() || p.tenants.iter().all(|t| t.units.is_none()))
        .filter_map(|p| {
            Some((p.tenants.len(), crate::study::stats::difference(p.together.run_s?.estimate(), alone)))
        })
        .collect();
    waits.sort_by_key(|(count, _)| *count);
    if different(waits.iter().map(|(count, _)| *count as u64)) < 3 {
        return None;
    }
    // The last count up to which every one fits.
    let fits = waits.iter().take_while(|(_, wait)| wait.value <= BUDGET_S).last();
    let over = waits.iter().find(|(_, wait)| wait.value > BUDGET_S);
    let text = match (fits, over) {
        (Some((n, wait)), Some((more, beyond))) => format!(
            "With a budget of {} ms of waiting a run, {n} tenants fit ({} ms each); {more} wait {} ms.",
            three(BUDGET_S * 1e3),
            with_interval(milli(*wait), 1),
            with_interval(milli(*beyond), 1)
        ),
        (Some((n, wait)), None) => format!(
            "All of the up to {n} tenants tried stay within a budget of {} ms of waiting a run ({} ms).",
            three(BUDGET_S * 1e3),
            with_interval(milli(*wait), 1)
        ),
        _ => format!(
            "Not even the smallest number tried stays within {} ms of waiting a run.",
            three(BUDGET_S * 1e3)
        ),
    };
    let decided = fits.map(|(_, wait)| wait);
    let mut test =
        Test::of("wait of a run (mean run - mean run alone) at the largest number that fits", "ms", "<= 20");
    if let Some(wait) = decided {
        test = test.estimate(milli(*wait));
    }
    Some(verdict("how-many-fit", "", Some(fits.is_some()), text, test))
}

fn milli(e: evenkeel_base::run::Estimate) -> evenkeel_base::run::Estimate {
    evenkeel_base::run::Estimate { value: e.value * 1e3, low: e.low * 1e3, high: e.high * 1e3 }
}

/// Larger equal units, wider spread?
fn spread(study: &Study) -> Option<Verdict> {
    let points: Vec<(f64, f64)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() > 1)
        .filter_map(|p| {
            let run = p.together.run_s?;
            Some((equal_units(p)? as f64, 1e3 * (run.p95 - run.p5)))
        })
        .collect();
    if different(points.iter().map(|p| p.0 as u64)) < 3 {
        return None;
    }
    let correlation = rank_correlation(&points)?;
    let holds = correlation > 0.5;
    let at = |best: fn(f64, f64) -> bool| {
        points.iter().copied().reduce(|a, b| if best(b.0, a.0) { b } else { a }).unwrap_or((0.0, 0.0))
    };
    let (small, large) = (at(|b, a| b < a), at(|b, a| b > a));
    Some(verdict(
        "larger-units-wider-spread",
        "",
        Some(holds),
        format!(
            "Larger equal units {} run times more here: the middle 90 % of runs span {} ms with {} units and {} ms \
             with {} (rank correlation {correlation:.2}). The source saw a wider spread with larger units.",
            if holds { "spread" } else { "do not spread" },
            three(small.1),
            three(small.0),
            three(large.1),
            three(large.0),
        ),
        Test::of("rank correlation of units and spread (95th - 5th percentile of run time)", "", "> 0.5")
            .value(correlation),
    ))
}

/// The source's EPS = 256 * (1/2)^C * U, in form: the rate of a unit halves with each container more.
pub(super) fn rule_of_thumb(study: &Study) -> Option<Verdict> {
    let mixed: Vec<&PointStudy> = study
        .points
        .iter()
        .filter(|p| {
            p.tenants.len() > 2 && equal_units(p).is_none() && p.tenants.iter().all(|t| t.units.is_some())
        })
        .collect();
    let per_unit = |p: &PointStudy| -> Option<f64> {
        let rates: Option<Vec<f64>> =
            p.tenants.iter().map(|t| Some(t.competing_per_s?.value / t.units? as f64)).collect();
        // The largest may be held back by its one thread: the others tell.
        crate::study::stats::median(&rates?)
    };
    let total = |p: &PointStudy| p.tenants.iter().filter_map(|t| t.units).sum::<u64>() as f64;
    let mut known: Vec<(f64, f64, f64)> =
        mixed.iter().filter_map(|p| Some((p.tenants.len() as f64, total(p), per_unit(p)?))).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    if different(known.iter().map(|k| k.0 as u64)) < 2 {
        return None;
    }
    // Both forms fitted by their constant (geometric mean), judged by their largest error.
    let error = |form: &dyn Fn(&(f64, f64, f64)) -> f64| {
        let logs: Vec<f64> = known.iter().map(|k| (k.2 / form(k)).ln()).collect();
        let middle = mean(&logs).unwrap_or(0.0);
        logs.iter().map(|l| 100.0 * ((l - middle).exp() - 1.0).abs()).fold(0.0, f64::max)
    };
    let thumb = error(&|k| 0.5f64.powf(k.0));
    let proportional = error(&|k| 1.0 / k.1);
    let holds = thumb <= 15.0;
    Some(verdict(
        "rule-of-thumb",
        "",
        Some(holds),
        format!(
            "The source's rule (a unit is worth half as much with each container more) {} here, with an error of up to \
             {} %. It follows from its lists, whose sum doubles each time: rate = capacity x units / sum of units has \
             an error of up to {} % and needs no doubling.",
            if holds { "fits" } else { "does not fit" },
            three(thumb),
            three(proportional)
        ),
        Test::of("largest error of the rate of a unit against constant x (1/2)^containers", "%", "<= 15")
            .value(thumb),
    ))
}

/// "A small difference and a small total": the second half of the advice, tested.
fn balance(study: &Study) -> Option<Verdict> {
    let ratio = |p: &PointStudy| -> Option<u64> {
        let units: Vec<u64> = p.tenants.iter().map(|t| t.units).collect::<Option<_>>()?;
        let (min, max) = (*units.iter().min()?, *units.iter().max()?);
        (min > 0).then(|| max / min)
    };
    let points: Vec<(f64, f64, f64)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() > 2)
        .filter_map(|p| {
            let total: u64 = p.tenants.iter().filter_map(|t| t.units).sum();
            let run = p.together.run_s?;
            ratio(p).filter(|r| *r > 1).map(|r| (r as f64, total as f64, 1e3 * run.mean))
        })
        .collect();
    let same_ratio = points.windows(2).all(|w| w[0].0 == w[1].0);
    let same_count = study.points.windows(2).all(|w| w[0].tenants.len() == w[1].tenants.len());
    if points.len() < 3 || !same_ratio || !same_count || different(points.iter().map(|p| p.1 as u64)) < 3 {
        return None;
    }
    let by_total: Vec<(f64, f64)> = points.iter().map(|p| (p.1, p.2)).collect();
    let correlation = rank_correlation(&by_total)?;
    let holds = correlation > 0.5;
    let best = by_total.iter().copied().reduce(|a, b| if b.1 < a.1 { b } else { a })?;
    let worst = by_total.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    Some(verdict(
        "a-small-total-helps",
        "",
        Some(holds),
        format!(
            "The source's advice to keep the total of units small {}: at the same ratio of largest to smallest, {} units \
             in all ran best ({} ms a run) and {} worst ({} ms); rank correlation of total and run time {correlation:.2}. \
             Only ratios of weights matter to the scheduler, not their sum.",
            if holds { "agrees with this record" } else { "is not borne out" },
            three(best.0),
            three(best.1),
            three(worst.0),
            three(worst.1)
        ),
        Test::of("rank correlation of the total of units and the mean run time", "", "> 0.5")
            .value(correlation),
    ))
}

#[cfg(test)]
mod tests {
    use crate::study::study;
    use crate::study::testing::{cell, record, steady, tenant};

    fn find(study: &crate::study::Study, id: &str) -> super::Verdict {
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
