//! Several studies side by side: what changed in means and in distributions, each with an interval; and what a unit is
//! worth on each host ([`platforms`]).
//!
//! ```text
//! sides ─ matching (by place, else by units and load) ─ rows of means, rows of distributions ─ decide: all of a page together
//! ```

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::asked::Alone;
use super::stats::ratio;
use super::{PointStudy, Study, TenantStudy, sample};
use crate::decide::{Claim, Decision, Figure, Mean, Verdict, decide};
use crate::record::{Host, Record, RunRecord};

pub mod distribution;
pub mod matching;
pub mod platforms;
pub mod shape;
pub mod units;

pub use distribution::DistributionRow;
pub use matching::MatchedPoint;
pub use platforms::{Platform, Platforms, platforms};
pub use shape::ShapeRow;
pub use units::{Promise, UnitsError, published};

use matching::{Match, Place};

/// A change smaller than this is not worth a word even when it is certain.
const NOTABLE_PCT: f64 = 1.0;

/// One of what is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// Result folder.
    pub name: String,
    pub record: Record,
    pub study: Study,
}

impl Side {
    pub fn of(name: &str, record: Record) -> Self {
        let study = super::study(&record);
        Self { name: name.into(), record, study }
    }
}

/// The letter a side is called by in tables: `A` is the first; a number after `Z`.
pub fn letter(index: usize) -> String {
    u8::try_from(index)
        .ok()
        .filter(|i| *i < 26)
        .map_or_else(|| (index + 1).to_string(), |i| char::from(b'A' + i).to_string())
}

/// One figure of one tenant at one point, in each study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedRow {
    pub point: String,
    /// Tenant, or the units of those that are compared together.
    pub tenant: String,
    /// What: `events_per_s`, `run_s`, `elapsed_s`, `cpu_ms_per_event`, `wait_per_run_s`.
    pub quantity: String,
    /// In each study; `None` where it has none.
    pub values: Vec<Option<Estimate>>,
    /// Change of each against the first, percent, with its own 95 % interval.
    pub changes_pct: Vec<Option<Estimate>>,
    /// What is said when all figures of the comparison are to hold together at 95 %: `better` or `worse` (some change is
    /// beyond its interval, and at least 1 %), `same` (all intervals are within 1 %), `open` (neither), `unknown` (there is no
    /// interval).
    pub verdict: String,
}

/// Studies side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub schema: String,
    /// Name and begin of each.
    pub studies: Vec<String>,
    /// Hosts differ: rates are those of different machines.
    pub different_hosts: bool,
    /// Rows, in the order of the first study's points.
    pub rows: Vec<ComparedRow>,
    /// How the values of single runs are distributed, in the same order.
    #[serde(default)]
    pub distributions: Vec<DistributionRow>,
    /// What each point of the first study was compared with.
    #[serde(default)]
    pub matched: Vec<MatchedPoint>,
    /// What has no counterpart, and why.
    #[serde(default)]
    pub unmatched: Vec<String>,
    /// Whether runs are as long as in the first study, in words.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// Confidence of each `verdict`, percent: with it all of them hold together at 95 %.
    #[serde(default)]
    pub level_pct: Option<f64>,
}

/// Quantities compared, and whether more is better.
type Quantity =
    (&'static str, bool, fn(&TenantStudy) -> Option<Estimate>, fn(&Place<'_>, usize) -> Option<Mean>);
const QUANTITIES: [Quantity; 5] = [
    (
        "events_per_s",
        true,
        |t| {
            // A single repetition's window has no interval; its runs have.
            let competing = t.competing_per_s.filter(|e| e.low < e.high);
            competing.or_else(|| t.events_per_s.map(|s| s.estimate())).or(t.competing_per_s)
        },
        |place, index| {
            let competing = sample::competing_per_s(&place.side.record, place.point, index);
            let runs = || sample::runs(&place.records(index), sample::events_per_s);
            competing.filter(|m| m.error.is_some()).or_else(runs).or(competing)
        },
    ),
    (
        "run_s",
        false,
        |t| t.run_s.map(|s| s.estimate()),
        |place, index| sample::runs(&place.records(index), RunRecord::length_s),
    ),
    (
        "elapsed_s",
        false,
        // A bound is no figure to compare.
        |t| t.elapsed_s.filter(|_| !t.cut_off),
        |place, index| sample::elapsed(&place.side.record, place.point, index),
    ),
    (
        "cpu_ms_per_event",
        false,
        |t| t.cpu_ms_per_event,
        |place, index| sample::each(&place.records(index), super::point::cpu_ms_per_event),
    ),
    (
        "wait_per_run_s",
        false,
        |t| t.wait_per_run_s,
        |place, index| {
            let alone = Alone::of(&place.side.record);
            let cell = *sample::cells(&place.side.record, place.point).first()?;
            let alone = Mean::of_groups(alone.like(cell, cell.tenants.get(index)?))?;
            sample::runs(&place.records(index), RunRecord::length_s)?.less(alone)
        },
    ),
];

/// Compares studies. Points are matched by label and number of tenants, and tenants by their place in the list; where the
/// lists differ, tenants are matched by units and load, and the competition is not the same.
pub fn compare(sides: &[Side]) -> Comparison {
    let matching = matching::matching(sides);
    let mut rows: Vec<(ComparedRow, Changes)> = Vec::new();
    let mut spread = Vec::new();
    for one in &matching.matches {
        rows.extend(QUANTITIES.iter().filter_map(|quantity| row(one, quantity)));
        spread.extend(distribution::rows(one));
    }
    let changes = rows.iter().map(|(_, c)| c).chain(spread.iter().map(|r: &distribution::Found| &r.changes));
    let claims = changes.flat_map(|c| &c.figures).flatten().count();
    let alpha = crate::decide::each(claims);
    let verdicts = distribution::verdicts(&matching.matches, claims);
    let key = |host: &Host| (host.cpu_model.clone(), host.cpus, host.kernel.clone(), host.name.clone());
    Comparison {
        schema: "evenkeel.lab-compare/v1".into(),
        studies: sides.iter().map(|side| side.name.clone()).collect(),
        different_hosts: sides.windows(2).any(|w| key(&w[0].study.host) != key(&w[1].study.host)),
        rows: rows
            .into_iter()
            .map(|(row, changes)| ComparedRow { verdict: changes.word(alpha).into(), ..row })
            .collect(),
        distributions: spread.into_iter().map(|found| found.decided(alpha)).collect(),
        matched: matching.points,
        unmatched: matching.unmatched,
        verdicts,
        level_pct: (claims > 0).then_some(100.0 * (1.0 - alpha)),
    }
}

/// Changes of a figure against the first study, percent.
struct Changes {
    figures: Vec<Option<Figure>>,
    more_is_better: bool,
}

impl Changes {
    /// What is said of them at error probability `alpha`.
    fn word(&self, alpha: f64) -> &'static str {
        let at = |alpha: f64| -> Vec<Decision> {
            let figures = self.figures.iter().flatten();
            figures.map(|figure| decide(figure, Claim::AtMost(0.0), alpha)).collect()
        };
        let within =
            |d: &Decision, most: f64| d.interval.is_some_and(|[low, high]| low >= -most && high <= most);
        let sure = |d: &&Decision| d.interval.is_some_and(|[low, high]| low > 0.0 || high < 0.0);
        let notable = |d: &&Decision| d.value.is_some_and(|v| v.abs() >= NOTABLE_PCT);
        let size = |d: &Decision| d.value.map_or(0.0, f64::abs);
        let decided = at(alpha);
        let most = decided.iter().filter(sure).filter(notable).max_by(|a, b| size(a).total_cmp(&size(b)));
        match most.and_then(|d| d.value) {
            Some(change) if (change > 0.0) == self.more_is_better => "better",
            Some(_) => "worse",
            None if !decided.is_empty() && decided.iter().all(|d| within(d, NOTABLE_PCT)) => "same",
            None if at(0.05).iter().any(|d| within(d, f64::MAX)) => "open",
            None => "unknown",
        }
    }
}

fn row(one: &Match<'_>, quantity: &Quantity) -> Option<(ComparedRow, Changes)> {
    let (name, more_is_better, of, mean) = quantity;
    if !one.is_comparable(name) {
        return None;
    }
    let means: Vec<Option<Mean>> = one.sides.iter().map(|s| s.as_ref()?.mean(mean)).collect();
    let values: Vec<Option<Estimate>> = one
        .sides
        .iter()
        .zip(&means)
        .map(|(side, mean)| match side.as_ref()?.only() {
            Some(tenant) => of(tenant),
            None => {
                let mean = (*mean).filter(|mean| !mean.at_least && !mean.at_most)?;
                let e = Figure::Mean(mean).estimate(0.05)?;
                // As of one tenant, a single value is its own.
                Some(if e.low.is_finite() { e } else { Estimate { low: e.value, high: e.value, ..e } })
            }
        })
        .collect();
    let first = (*values.first()?)?;
    let changes_pct = values.iter().skip(1).map(|v| change_pct(first, (*v)?)).collect();
    let change = |to: &Option<Mean>| {
        let log = to.as_ref()?.ln()?.less(means.first()?.as_ref()?.ln()?)?;
        Some(Figure::Ratio(log).over(Figure::Observed(0.01)).less(Figure::Observed(100.0)))
    };
    let figures = means.iter().skip(1).map(change).collect();
    let row = ComparedRow {
        point: one.point.clone(),
        tenant: one.tenant.clone(),
        quantity: (*name).into(),
        values,
        changes_pct,
        verdict: String::new(),
    };
    Some((row, Changes { figures, more_is_better: *more_is_better }))
}

/// Change from `a` to `b`, percent of `a`, with its interval. A single value has no interval: then the change has
/// none either and is not called certain.
pub fn change_pct(a: Estimate, b: Estimate) -> Option<Estimate> {
    let known = |e: &Estimate| e.low < e.high;
    let r = ratio(b, a)?;
    let pct = |v: f64| 100.0 * (v - 1.0);
    if known(&a) && known(&b) {
        Some(Estimate { value: pct(r.value), low: pct(r.low), high: pct(r.high) })
    } else {
        Some(Estimate { value: pct(r.value), low: f64::NEG_INFINITY, high: f64::INFINITY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::testing::{cell, record, side, steady};

    #[test]
    fn changes_beyond_their_interval_are_named() {
        let result = compare(&[side("old", 1.0), side("new", 1.1)]);
        let rate = result.rows.iter().find(|r| r.quantity == "events_per_s").unwrap();
        assert_eq!(rate.verdict, "better");
        let change = rate.changes_pct[0].unwrap();
        assert!((change.value - 10.0).abs() < 0.2 && change.low > 8.0, "{change:?}");
        let same = compare(&[side("old", 1.0), side("again", 1.0)]);
        assert!(same.rows.iter().all(|r| r.verdict != "better" && r.verdict != "worse"), "{:?}", same.rows);
        assert!(same.rows.iter().any(|r| r.quantity == "run_s" && r.verdict == "same"), "{:?}", same.rows);
        assert!(same.distributions.iter().all(|r| r.verdict != "better" && r.verdict != "worse"));
        assert!(!same.different_hosts && same.unmatched.is_empty());
        assert!(same.level_pct.is_some_and(|level| level > 99.0 && level < 100.0), "{:?}", same.level_pct);
        assert!(compare(&[]).rows.is_empty());
    }

    #[test]
    fn what_an_event_costs_is_decided_by_the_figures_shown() {
        // The same in each run; what lies between the runs takes half as much again in the second study.
        let side = |name: &str, between: f64| {
            let one = |jitter: f64| {
                let mut tenant = steady("a", 1, 4, 100.0);
                for run in &mut tenant.runs {
                    (run.account.user_s, run.account.sys_s) = (Some(0.5 + jitter), Some(0.0));
                }
                (tenant.total.user_s, tenant.total.sys_s) = (Some(between * 2.0), Some(0.0));
                ("p", cell(vec![tenant]))
            };
            Side::of(name, record([0.0, 1e-4, -1e-4].map(one).into()))
        };
        let result = compare(&[side("old", 1.0), side("new", 1.5)]);
        let cost = result.rows.iter().find(|r| r.quantity == "cpu_ms_per_event").unwrap();
        assert!(cost.changes_pct[0].is_some_and(|c| c.value.abs() < 1e-9), "{cost:?}");
        assert_eq!(cost.verdict, "same");
    }

    #[test]
    fn more_figures_on_a_page_need_more_certainty() {
        // Certain at 95 % by itself, not among hundreds.
        let changes = Changes {
            figures: vec![Mean::of(&[4.0, 5.0, 6.0, 7.5]).map(Figure::Mean)],
            more_is_better: false,
        };
        assert_eq!((changes.word(0.05), changes.word(0.05 / 200.0)), ("worse", "open"));
        let nothing = Changes { figures: vec![None], more_is_better: true };
        assert_eq!(nothing.word(0.05), "unknown");
    }

    #[test]
    fn sides_are_called_by_letters() {
        assert_eq!((letter(0), letter(25), letter(26)), ("A".into(), "Z".into(), "27".into()));
    }
}
