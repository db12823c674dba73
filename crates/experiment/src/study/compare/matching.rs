//! What is compared with what: points by label and tenants by place, else tenants by units and load.
//!
//! ```text
//! A: 256 256 256 256                  256 units (4 and 8 tenants): one row, an average tenant of those units
//! B: 256 256 256 256 256 256 256 256  and a note that the competition differs
//! ```

use std::collections::BTreeMap;

use evenkeel_base::text::count;
use serde::{Deserialize, Serialize};

use super::{PointStudy, Side, Study, TenantStudy, letter};
use crate::decide::Mean;
use crate::record::{Cell, RunRecord, TenantRecord};
use crate::study::{self, point, sample};

/// What a point of the first study was compared with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatchedPoint {
    /// Point of the first study; empty without a sweep.
    pub point: String,
    /// How its tenants were matched: `place` (in the list) or `units`.
    pub by: String,
    /// Label of the point in each study; `None` where there is none to compare with.
    pub points: Vec<Option<String>>,
    /// Tenants that compete there.
    pub tenants: Vec<Option<usize>>,
    /// Whether the competition differs: other tenants, or another number of them.
    pub differs: bool,
    /// What that means; empty where it does not differ.
    pub note: String,
}

/// Tenants of one side that are compared together.
#[derive(Debug, Clone)]
pub(super) struct Place<'a> {
    pub side: &'a Side,
    pub point: &'a PointStudy,
    /// Which tenants of the point.
    pub tenants: Vec<usize>,
}

impl<'a> Place<'a> {
    /// A tenant over the repetitions.
    pub fn records(&self, index: usize) -> Vec<&'a TenantRecord> {
        sample::tenants(&self.side.record, self.point, index)
    }

    /// The tenant, where it is one.
    pub fn only(&self) -> Option<&'a TenantStudy> {
        match self.tenants.as_slice() {
            [one] => self.point.tenants.get(*one),
            _ => None,
        }
    }

    /// A quantity of the tenant; of several their mean. What delays one may delay all of a repetition, so that its error is
    /// not less than theirs.
    pub fn mean(&self, of: impl Fn(&Self, usize) -> Option<Mean>) -> Option<Mean> {
        let each: Vec<Mean> = self.tenants.iter().map(|index| of(self, *index)).collect::<Option<_>>()?;
        match each.as_slice() {
            [one] => Some(*one),
            several => {
                let mean = Mean::of(&several.iter().map(|m| m.value).collect::<Vec<_>>())?;
                let errors = several.iter().map(|m| m.error).collect::<Option<Vec<f64>>>();
                let any = |of: fn(&Mean) -> bool| several.iter().any(of);
                Some(Mean {
                    error: errors.and_then(|errors| evenkeel_base::stats::mean(&errors)),
                    freedom: several.iter().map(|m| m.freedom).fold(f64::INFINITY, f64::min),
                    n: several.iter().map(|m| m.n).min()?,
                    of_runs: any(|m| m.of_runs),
                    at_least: any(|m| m.at_least),
                    at_most: any(|m| m.at_most),
                    ..mean
                })
            }
        }
    }

    /// A quantity of single runs: a group for each repetition, of one alone for each tenant.
    pub fn groups(&self, of: fn(&RunRecord) -> Option<f64>) -> Vec<Vec<f64>> {
        let runs = |t: &TenantRecord| t.runs.iter().filter_map(of).collect::<Vec<f64>>();
        let own = |cell: &'a Cell| self.tenants.iter().filter_map(move |index| cell.tenants.get(*index));
        match sample::cells(&self.side.record, self.point).as_slice() {
            [only] => own(only).map(runs).collect(),
            several => several.iter().map(|cell| own(cell).flat_map(runs).collect()).collect(),
        }
    }
}

/// One tenant, or several of the same units, in each study.
#[derive(Debug, Clone)]
pub(super) struct Match<'a> {
    pub point: String,
    pub tenant: String,
    pub sides: Vec<Option<Place<'a>>>,
    by_units: bool,
}

impl Match<'_> {
    /// Whether a quantity can be compared: times only where the work of a run, or all of it, is the same. An experiment's own
    /// number of events follows the speed of the host, so that tenants by their place in its list may differ in that.
    pub fn is_comparable(&self, quantity: &str) -> bool {
        let tenants =
            || self.sides.iter().flatten().flat_map(|p| p.tenants.iter().map(move |index| (p, *index)));
        // A length that a command line does not tell contradicts none.
        let seconds =
            |p: &Place<'_>, index: usize| study::asked_s(&p.side.record, &p.point.tenants[index].workload);
        let events = |p: &Place<'_>, index: usize| {
            study::option(&p.point.tenants[index].workload, "--events").map(str::to_owned)
        };
        let same_work = agree(tenants().filter_map(|(p, index)| seconds(p, index)))
            && (!self.by_units || agree(tenants().filter_map(|(p, index)| events(p, index))));
        let same_runs =
            || agree(tenants().flat_map(|(p, index)| p.records(index)).map(|tenant| tenant.runs_planned));
        match quantity {
            "run_s" | "wait_per_run_s" | "waited_s" => same_work,
            "elapsed_s" => same_work && same_runs(),
            _ => true,
        }
    }
}

fn agree<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    let first = values.next();
    values.all(|other| Some(&other) == first.as_ref())
}

/// All that can be compared, and what cannot.
#[derive(Debug, Default)]
pub(super) struct Matching<'a> {
    pub matches: Vec<Match<'a>>,
    pub points: Vec<MatchedPoint>,
    pub unmatched: Vec<String>,
}

/// Whether tenants by their place in the list are the same in both.
fn same_list(a: &PointStudy, b: &PointStudy) -> bool {
    let units = |p: &PointStudy| p.tenants.iter().map(|t| t.units).collect::<Vec<_>>();
    let names = |p: &PointStudy| p.tenants.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    // A label is a point of one experiment; without one, names or units must agree.
    a.label == b.label
        && a.tenants.len() == b.tenants.len()
        && (!a.label.is_empty() || units(a) == units(b) || names(a) == names(b))
}

/// Whether two tenants of units are alike in all but the competition.
fn alike(a: &TenantStudy, b: &TenantStudy) -> bool {
    a.units.is_some()
        && a.units == b.units
        && point::kind(&a.workload) == point::kind(&b.workload)
        && a.threads == b.threads
        && a.limits.quota_pct == b.limits.quota_pct
        && a.limits.cpus == b.limits.cpus
}

/// Tenants of a point that are like this one.
fn like(point: &PointStudy, tenant: &TenantStudy) -> Vec<usize> {
    (0..point.tenants.len()).filter(|index| alike(&point.tenants[*index], tenant)).collect()
}

/// The units at a point as people write them: `16, 32, 64x4`.
fn list(point: &PointStudy) -> String {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    point.tenants.iter().filter_map(|t| t.units).for_each(|units| *counts.entry(units).or_default() += 1);
    let words: Vec<String> = counts
        .into_iter()
        .map(|(units, n)| if n > 1 { format!("{units}x{n}") } else { units.to_string() })
        .collect();
    if words.is_empty() { "none with units".into() } else { words.join(", ") }
}

/// The point of a study that has most of a point's units, and of those the one whose number of tenants is nearest.
fn by_units<'a>(first: &Study, study: &'a Study, point: &PointStudy) -> Option<&'a PointStudy> {
    let has = |p: &PointStudy| point.tenants.iter().filter(|t| !like(p, t).is_empty()).count();
    study
        .points
        .iter()
        .filter(|p| has(p) > 0 && !first.points.iter().any(|other| same_list(other, p)))
        .min_by_key(|p| (std::cmp::Reverse(has(p)), p.tenants.len().abs_diff(point.tenants.len())))
}

/// What of the sides can be compared with the first.
pub(super) fn matching(sides: &[Side]) -> Matching<'_> {
    let mut all = Matching::default();
    let Some(first) = sides.first() else { return all };
    for point in first.study.points.iter().filter(|p| !p.tenants.is_empty()) {
        // With each other study: its point, and whether the lists are the same.
        let found: Vec<Option<(&PointStudy, bool)>> = sides
            .iter()
            .enumerate()
            .map(|(index, side)| {
                if index == 0 {
                    return Some((point, true));
                }
                let same = side.study.points.iter().find(|p| same_list(point, p)).map(|p| (p, true));
                same.or_else(|| by_units(&first.study, &side.study, point).map(|p| (p, false)))
            })
            .collect();
        let units = found.iter().flatten().any(|(_, same)| !same);
        let missing = found.iter().enumerate().filter(|(_, f)| f.is_none());
        all.unmatched.extend(missing.map(|(index, _)| nothing(&sides[index], index, point)));
        all.points.push(matched_point(point, &found, units));
        if units {
            by_their_units(sides, point, &found, &mut all);
        } else if found.iter().flatten().count() > 1 {
            for (index, tenant) in point.tenants.iter().enumerate() {
                let place = |side, found: &Option<(_, bool)>| {
                    found.map(|(point, _)| Place { side, point, tenants: vec![index] })
                };
                all.matches.push(Match {
                    point: point.label.clone(),
                    tenant: tenant.name.clone(),
                    sides: sides.iter().zip(&found).map(|(side, found)| place(side, found)).collect(),
                    by_units: false,
                });
            }
        }
    }
    all
}

fn by_their_units<'a>(
    sides: &'a [Side],
    point: &'a PointStudy,
    found: &[Option<(&'a PointStudy, bool)>],
    all: &mut Matching<'a>,
) {
    for (index, tenant) in point.tenants.iter().enumerate() {
        if point.tenants[..index].iter().any(|earlier| alike(earlier, tenant)) {
            continue;
        }
        let Some(units) = tenant.units else {
            all.unmatched.push(format!(
                "{}{} of A has no units to match it by, and the lists of tenants differ.",
                study::prefix(&point.label),
                tenant.name
            ));
            continue;
        };
        let places: Vec<Option<Place<'a>>> = sides
            .iter()
            .zip(found)
            .map(|(side, found)| {
                let (point, _) = (*found)?;
                let tenants = like(point, tenant);
                (!tenants.is_empty()).then_some(Place { side, point, tenants })
            })
            .collect();
        for (index, place) in places.iter().enumerate() {
            if let (None, Some((point, _))) = (place, found[index]) {
                all.unmatched.push(format!(
                    "{}{units} units: {} has no tenant of {units} units with the same load, threads and limits; it has {}.",
                    study::prefix(&point.label),
                    letter(index),
                    list(point)
                ));
            }
        }
        if places.iter().flatten().count() < 2 {
            continue;
        }
        let counts: Vec<String> =
            places.iter().map(|p| p.as_ref().map_or("no".into(), |p| p.tenants.len().to_string())).collect();
        let same = counts.iter().all(|c| *c == counts[0]);
        let counts = if same { counts[0].clone() } else { counts.join(" and ") };
        all.matches.push(Match {
            point: point.label.clone(),
            tenant: match counts.as_str() {
                "1" => count(units as usize, "unit"),
                _ => format!("{} ({counts} tenants)", count(units as usize, "unit")),
            },
            sides: places,
            by_units: true,
        });
    }
}

/// Why a point of the first study has nothing to be compared with.
fn nothing(side: &Side, index: usize, point: &PointStudy) -> String {
    let name = if point.label.is_empty() {
        "the tenants of A".to_owned()
    } else {
        format!("`{}` of A", point.label)
    };
    let theirs: Vec<String> = side
        .study
        .points
        .iter()
        .filter(|p| !p.tenants.is_empty())
        .map(|p| format!("{}{}", study::prefix(&p.label), list(p)))
        .take(6)
        .collect();
    format!(
        "{} has neither the same point as {name} (units {}) nor tenants of those units with the same load, threads and \
         limits; it has {}.",
        letter(index),
        list(point),
        if theirs.is_empty() { "no tenants".into() } else { theirs.join("; ") }
    )
}

fn matched_point(point: &PointStudy, found: &[Option<(&PointStudy, bool)>], units: bool) -> MatchedPoint {
    let sorted = |p: &PointStudy| {
        let mut units: Vec<Option<u64>> = p.tenants.iter().map(|t| t.units).collect();
        units.sort_unstable();
        units
    };
    let differs = units && found.iter().flatten().any(|(p, _)| sorted(p) != sorted(point));
    MatchedPoint {
        point: point.label.clone(),
        by: if units { "units" } else { "place" }.into(),
        points: found.iter().map(|f| f.map(|(p, _)| p.label.clone())).collect(),
        tenants: found.iter().map(|f| f.map(|(p, _)| p.tenants.len())).collect(),
        differs,
        note: if differs { note(point, found) } else { String::new() },
    }
}

fn note(point: &PointStudy, found: &[Option<(&PointStudy, bool)>]) -> String {
    let here = found.iter().enumerate().filter_map(|(index, f)| f.map(|(p, _)| (letter(index), p)));
    let here: Vec<(String, &PointStudy)> = here.collect();
    let counts: Vec<String> = here
        .iter()
        .map(|(name, p)| format!("{name} has {} ({})", count(p.tenants.len(), "tenant"), list(p)))
        .collect();
    let mut text = format!(
        "{}The competition differs: {}. Tenants are matched by units and load, and a row compares one average tenant of \
         those units; what changed is what the others leave it as well.",
        study::prefix(&point.label),
        counts.join(", ")
    );
    // What weights alone would give it, where that can be said of all.
    let shares = |tenant: &TenantStudy| -> Option<Vec<String>> {
        let own = |p: &PointStudy| {
            let own = *like(p, tenant).first()?;
            if p.tenants.len() == 1 { Some(100.0) } else { p.tenants[own].weight_pct }
        };
        here.iter().map(|(name, p)| Some(format!("{} % in {name}", crate::decide::short(own(p)?)))).collect()
    };
    if let Some((tenant, shares)) = point.tenants.iter().find_map(|t| Some((t, shares(t)?))) {
        text += &format!(
            " By units alone a tenant of {} has {} of what all tenants get.",
            tenant.units.unwrap_or_default(),
            shares.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::compare;
    use super::*;
    use crate::study::testing::{cell, record, steady};

    /// Tenants of equal units that share 2000 events a second.
    fn equal(units: u64, count: usize, runs: usize) -> Cell {
        let per_s = 2000.0 / count as f64;
        cell((0..count).map(|n| steady(&format!("c{n}"), units, runs, per_s + n as f64)).collect())
    }

    fn side(name: &str, label: &str, cells: Vec<Cell>) -> Side {
        Side::of(name, record(cells.into_iter().map(|c| (label, c)).collect()))
    }

    #[test]
    fn tenants_of_equal_units_are_compared_though_their_number_differs() {
        let sides = [side("four", "", vec![equal(256, 4, 20)]), side("eight", "", vec![equal(256, 8, 20)])];
        let result = compare(&sides);
        let rate = result.rows.iter().find(|r| r.quantity == "events_per_s").unwrap();
        assert_eq!(rate.tenant, "256 units (4 and 8 tenants)");
        let change = rate.changes_pct[0].unwrap();
        assert!((change.value + 50.0).abs() < 1.0 && rate.verdict == "worse", "{rate:?}");
        // How long all runs took is one value each.
        let elapsed = result.rows.iter().find(|r| r.quantity == "elapsed_s").unwrap();
        assert!(elapsed.values.iter().all(|v| v.is_some_and(|e| e.low == e.high)), "{elapsed:?}");
        assert!(elapsed.changes_pct[0].is_some_and(|e| e.low.is_infinite()), "{elapsed:?}");
        let [point] = result.matched.as_slice() else { panic!("{:?}", result.matched) };
        assert!(point.differs && point.by == "units" && point.tenants == [Some(4), Some(8)], "{point:?}");
        for part in ["The competition differs", "A has 4 tenants (256x4)", "25 % in A, 12.5 % in B"] {
            assert!(point.note.contains(part), "{}", point.note);
        }
        assert!(result.unmatched.is_empty());
    }

    #[test]
    fn a_repetition_that_is_faster_for_all_tenants_is_no_proof_for_each() {
        let eight = |rate: f64| {
            cell((0..8).map(|n| steady(&format!("c{n}"), 256, 20, rate + f64::from(n))).collect())
        };
        let of = |rates: [f64; 2]| {
            let four = vec![equal(256, 4, 20), equal(256, 4, 20)];
            let result = compare(&[side("four", "", four), side("eight", "", rates.map(eight).to_vec())]);
            let rate = result.rows.into_iter().find(|r| r.quantity == "events_per_s").unwrap();
            (rate.verdict, rate.changes_pct[0].unwrap().value.round())
        };
        assert_eq!(of([500.0, 560.0]), ("open".to_owned(), 6.0));
        assert_eq!(of([530.0, 530.0]), ("better".to_owned(), 6.0));
        // So it is with the middle of their runs. In a single repetition tenants tell.
        let middle = |rates: &[f64]| {
            let alike = |count: usize, rate: f64| cell(vec![steady("c", 256, 20, rate); count]);
            let four = vec![alike(4, 500.0); rates.len()];
            let eight = rates.iter().map(|rate| alike(8, *rate)).collect();
            let rows = compare(&[side("four", "", four), side("eight", "", eight)]).distributions;
            rows.into_iter().find(|r| r.quantity == "events_per_s" && r.feature == "p50").unwrap().verdict
        };
        assert_eq!((middle(&[560.0, 620.0]).as_str(), middle(&[560.0]).as_str()), ("unknown", "better"));
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        let sides = [side("a", "", vec![equal(256, 4, 5)]), side("b", "", vec![equal(64, 8, 5)])];
        let result = compare(&sides);
        assert!(result.rows.is_empty());
        let [why] = result.unmatched.as_slice() else { panic!("{:?}", result.unmatched) };
        assert!(why.contains("units 256x4") && why.contains("it has 64x8"), "{why}");
        // Some units are there, some are not.
        let mixed =
            cell(vec![steady("x", 64, 5, 100.0), steady("y", 512, 5, 800.0), steady("z", 64, 5, 100.0)]);
        let result = compare(&[side("a", "", vec![mixed]), side("b", "", vec![equal(64, 8, 5)])]);
        assert!(result.rows.iter().all(|r| r.tenant == "64 units (2 and 8 tenants)"), "{:?}", result.rows);
        assert!(
            result.unmatched[0].starts_with("512 units: B has no tenant of 512 units"),
            "{:?}",
            result.unmatched
        );
    }

    #[test]
    fn the_same_list_is_matched_by_place_and_other_loads_are_not_matched() {
        let sides = [side("a", "p", vec![equal(64, 3, 5)]), side("b", "p", vec![equal(128, 3, 5)])];
        let result = compare(&sides);
        assert_eq!((result.matched[0].by.as_str(), result.matched[0].differs), ("place", false));
        assert_eq!(result.rows.iter().filter(|r| r.quantity == "run_s").count(), 3);
        // Of the same experiment with longer runs, or more of them, a time is no news.
        let mut longer = equal(64, 3, 5);
        longer.tenants.iter_mut().for_each(|t| t.workload = "primes --seconds=5".into());
        for (other, run_s) in [(longer, false), (equal(64, 3, 9), true)] {
            let result = compare(&[side("a", "p", vec![equal(64, 3, 5)]), side("b", "p", vec![other])]);
            let has = |name: &str| result.rows.iter().any(|r| r.quantity == name);
            let found = (has("events_per_s"), has("run_s"), has("elapsed_s"));
            assert_eq!(found, (true, run_s, false), "{:?}", result.rows);
            assert!(result.verdicts.is_empty(), "{:?}", result.verdicts);
        }
        let mut other = equal(64, 8, 5);
        other.tenants.iter_mut().for_each(|t| t.workload = "sieve --seconds=1".into());
        let result = compare(&[side("a", "", vec![equal(64, 4, 5)]), side("b", "", vec![other])]);
        assert!(result.rows.is_empty() && result.unmatched.len() == 1, "{:?}", result.unmatched);
        // The same load for another time: rates can be compared, lengths of runs cannot.
        let mut longer = equal(64, 8, 5);
        longer.tenants.iter_mut().for_each(|t| t.workload = "primes --seconds=5".into());
        let result = compare(&[side("a", "", vec![equal(64, 4, 5)]), side("b", "", vec![longer])]);
        let quantities: Vec<&str> = result.rows.iter().map(|r| r.quantity.as_str()).collect();
        assert!(quantities.contains(&"events_per_s") && !quantities.contains(&"run_s"), "{quantities:?}");
    }

    #[test]
    fn of_several_points_the_one_with_the_nearest_number_of_tenants_is_taken() {
        let many = record(vec![("8", equal(64, 8, 5)), ("5", equal(64, 5, 5)), ("20", equal(64, 20, 5))]);
        let result = compare(&[side("a", "4", vec![equal(64, 4, 5)]), Side::of("b", many)]);
        assert_eq!(result.matched[0].points, [Some("4".to_owned()), Some("5".to_owned())]);
    }
}
