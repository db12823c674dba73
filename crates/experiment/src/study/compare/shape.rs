//! Whether a share of units buys the same share of each machine, whatever a unit is worth there.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::{PointStudy, Side, letter};
use crate::decide::{Claim, Draft, Figure};
use crate::study::{sample, stats};

/// A share of units buys the same share of two machines where these differ by less than this, percent of the share.
const SHAPE_PCT: f64 = 8.0;

/// What a share of units buys on each host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShapeRow {
    pub units: String,
    /// Units of this tenant.
    pub own: u64,
    /// Its share of all units, percent.
    pub of_units_pct: f64,
    /// Its share of what all tenants get on each host, percent; of several with these units the mean.
    pub share_pct: Vec<Option<Estimate>>,
}

/// A point where tenants of units compete: its units in ascending order, and whose they are.
fn competing(point: &PointStudy) -> Option<Vec<(u64, usize)>> {
    let mut units: Vec<(u64, usize)> =
        point.tenants.iter().enumerate().map(|(index, t)| Some((t.units?, index))).collect::<Option<_>>()?;
    units.sort_unstable();
    (units.len() > 1 && units.iter().all(|(u, _)| *u > 0)).then_some(units)
}

/// The sum of a list of units.
fn total(list: &[(u64, usize)]) -> f64 {
    list.iter().map(|(units, _)| *units as f64).sum()
}

/// Whether two lists are the same shares of their sums.
fn proportional(a: &[(u64, usize)], b: &[(u64, usize)]) -> bool {
    let (all_a, all_b) = (total(a), total(b));
    let same = |x: u64, y: u64| (x as f64 / all_a - y as f64 / all_b).abs() < 1e-9;
    a.len() == b.len() && a.iter().zip(b).all(|((x, _), (y, _))| same(*x, *y))
}

/// A host's point that goes with one of the first host's, and its list of units.
type Found<'a> = (&'a Side, &'a PointStudy, Vec<(u64, usize)>);

/// What a share of units buys on each host, at the points that all have with the same list of units (in proportion), and
/// whether it is the same share.
pub(super) fn shape<'a>(
    sides: &'a [Side],
    drafts: &mut Vec<Draft<'a>>,
    missing: &mut Vec<String>,
) -> Vec<ShapeRow> {
    let mut rows = Vec::new();
    let mut deviations: Vec<Vec<Figure>> = vec![Vec::new(); sides.len()];
    let Some((first, others)) = sides.split_first() else { return rows };
    for point in &first.study.points {
        let Some(list) = competing(point) else { continue };
        let found: Option<Vec<Found<'_>>> = others
            .iter()
            .map(|side| {
                let of =
                    |p: &'a PointStudy| Some((side, p, competing(p).filter(|l| proportional(&list, l))?));
                side.study.points.iter().find_map(of)
            })
            .collect();
        let Some(found) = found.filter(|found| !found.is_empty()) else { continue };
        let words: Vec<String> = list.iter().map(|(units, _)| units.to_string()).collect();
        let off = |side: &Side, point: &PointStudy| sample::off_weights(&side.record, point);
        let here = off(first, point);
        let theirs: Vec<_> = found.iter().map(|(side, p, _)| off(side, p)).collect();
        for (rank, (_, index)) in list.iter().enumerate() {
            for (k, (_, _, list)) in found.iter().enumerate() {
                let own = here.as_ref().and_then(|all| all.get(*index));
                let other = theirs[k].as_ref().and_then(|all| all.get(list[rank].1));
                if let Some(difference) = own.zip(other).and_then(|(own, other)| other.less(*own)) {
                    deviations[k + 1].push(Figure::Mean(difference));
                }
            }
        }
        // A row for each number of units, at its ranks.
        for ranks in list.iter().enumerate().collect::<Vec<_>>().chunk_by(|(_, a), (_, b)| a.0 == b.0) {
            let Some((from, (units, _))) = ranks.first() else { continue };
            let got = |point: &PointStudy, list: &[(u64, usize)]| -> Option<Estimate> {
                let of = |(_, index): &(u64, usize)| point.tenants.get(*index)?.share_pct;
                let each: Vec<Estimate> =
                    list.iter().skip(*from).take(ranks.len()).map(of).collect::<Option<_>>()?;
                match each.as_slice() {
                    [one] => Some(*one),
                    several => stats::estimate(&several.iter().map(|e| e.value).collect::<Vec<_>>()),
                }
            };
            let there = found.iter().map(|(_, point, list)| got(point, list));
            rows.push(ShapeRow {
                units: words.join(" "),
                own: *units,
                of_units_pct: 100.0 * *units as f64 / total(&list),
                share_pct: std::iter::once(got(point, &list)).chain(there).collect(),
            });
        }
    }
    if rows.is_empty() {
        missing.push(
            "No list of units was run with all tenants competing on every host: whether a share of units buys the same share \
             of each machine is not shown. Run the same experiment on each, such as `evenkeel lab run cpu-units-mixed`."
                .into(),
        );
    }
    for (index, parts) in deviations.into_iter().enumerate().skip(1).filter(|(_, parts)| !parts.is_empty()) {
        drafts.push(same_shape(index, parts));
    }
    rows
}

fn same_shape<'a>(index: usize, parts: Vec<Figure>) -> Draft<'a> {
    let name = letter(index);
    let statistic =
        ("largest difference of a tenant's share between the hosts, of the share its units are", "%");
    Draft::new(
        "shape-holds",
        &name.clone(),
        statistic,
        Figure::Deviation(parts),
        Claim::AtMost(SHAPE_PCT),
        move |d| {
            let says = match d[0].holds {
                Some(true) => "A share of units buys the same share of the machine",
                Some(false) => "A share of units does not buy the same share of the machine",
                None => "Whether a share of units buys the same share of the machine is open",
            };
            format!("{says} in {name} as in A: shares differ by {} % at most.", d[0].words(1))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::platforms;
    use super::*;
    use crate::study::testing::{cell, record, steady};

    #[test]
    fn a_share_of_units_buys_the_same_share_or_does_not() {
        let mixed = |name: &str, units: [u64; 3], rates: [f64; 3]| {
            let cells = (0..5).map(|n| {
                let noise = 1.0 + 0.002 * f64::from(n);
                let tenant = |i: usize| {
                    steady(&format!("t{i}"), units[i], 5, rates[i] * if i == 1 { noise } else { 1.0 })
                };
                ("list", cell((0..3).map(tenant).collect()))
            });
            Side::of(name, record(cells.collect()))
        };
        let a = mixed("a", [16, 32, 64], [1000.0, 2000.0, 4000.0]);
        // Half as fast, twice the units: the shape is the same.
        let b = mixed("b", [32, 64, 128], [500.0, 1000.0, 2000.0]);
        // Units that hardly matter.
        let c = mixed("c", [16, 32, 64], [1900.0, 2100.0, 2600.0]);
        let view = platforms(&[a, b, c], &[]);
        assert_eq!(view.shape.len(), 3);
        assert!((view.shape[2].of_units_pct - 400.0 / 7.0).abs() < 1e-9 && view.shape[2].own == 64);
        let holds: Vec<Option<bool>> = view.verdicts.iter().map(|v| v.holds).collect();
        assert_eq!(holds, [Some(true), Some(false)], "{:?}", view.verdicts);
        assert!(view.missing.is_empty());
    }
}
