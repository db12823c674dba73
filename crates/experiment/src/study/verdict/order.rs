//! Does the order matter in which tenants are activated?

use super::weights::MORE_CPUS_PCT;
use super::words::of;
use crate::decide::{Claim, Draft, Figure, Mean, by};
use crate::record::{Cell, Record};
use crate::study::sample;
use crate::study::window::competing;

pub(super) fn add(record: &Record, all: &mut Vec<Draft<'_>>) {
    all.extend(order(record).map(Draft::of_measuring));
}

/// Shares of the same tenants, started in different orders.
fn order<'a>(record: &Record) -> Option<Draft<'a>> {
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
    let mut ranges: Vec<(Figure, u64)> = Vec::new();
    let mut orders = 0;
    for (units, cells) in &sets {
        // Shares by units, for each order in which the units were activated.
        let mut by_order: Vec<(Vec<u64>, Vec<Vec<f64>>)> = Vec::new();
        for cell in cells {
            let order: Vec<u64> =
                cell.activation.iter().filter_map(|&i| cell.tenants.get(i)?.units).collect();
            let Some(window) = competing(cell) else { continue };
            let of_unit =
                |unit: &Option<u64>| sample::rate_in(cell.tenants.iter().find(|t| t.units == *unit)?, window);
            let Some(rates) = units.iter().map(of_unit).collect::<Option<Vec<f64>>>() else { continue };
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
            let means: Vec<Mean> = by_order
                .iter()
                .filter_map(|(_, all)| Mean::of(&all.iter().map(|s| s[index]).collect::<Vec<_>>()))
                .collect();
            let middle = evenkeel_base::stats::mean(&means.iter().map(|m| m.value).collect::<Vec<_>>())?;
            let parts = means.iter().map(|m| Figure::Mean(m.times(100.0 / middle))).collect();
            ranges.push((Figure::Range(parts), (*unit)?));
        }
    }
    let value = |f: &Figure| f.value().unwrap_or(0.0);
    let unit = ranges.iter().max_by(|a, b| value(&a.0).total_cmp(&value(&b.0)))?.1;
    Some(Draft::new(
        "order-of-activation",
        "",
        ("largest difference of a tenant's mean share between orders", "% of the share"),
        Figure::Largest(ranges.into_iter().map(|(figure, _)| figure).collect()),
        Claim::AtMost(MORE_CPUS_PCT),
        move |d| {
            format!(
                "{}: over {orders} orders the share of a tenant differs by at most {} % of itself ({}).",
                by(
                    d[0].holds,
                    "The order of activation does not matter",
                    "The order of activation matters",
                    "Whether the order of activation matters is open"
                ),
                of(&d[0]),
                evenkeel_base::text::count(unit as usize, "unit")
            )
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;
    use crate::study::testing::{cell, record, steady};

    #[test]
    fn orders_of_activation_are_compared() {
        let mut there = cell(vec![steady("a", 1, 4, 100.0), steady("b", 2, 4, 200.0)]);
        let mut back = there.clone();
        back.activation = vec![1, 0];
        let twice = |there: &Cell, back: &Cell| {
            study(&record(
                [there, back, there, back]
                    .map(|c| (if c.activation[0] == 0 { "up" } else { "down" }, c.clone()))
                    .into(),
            ))
        };
        let same = twice(&there, &back);
        assert_eq!(same.verdicts.iter().find(|v| v.id == "order-of-activation").unwrap().holds, Some(true));
        there.tenants[0] = steady("a", 1, 4, 200.0);
        let other = twice(&there, &back);
        assert_eq!(other.verdicts.iter().find(|v| v.id == "order-of-activation").unwrap().holds, Some(false));
        // One of each order decides nothing.
        let once = study(&record(vec![("up", there), ("down", back)]));
        assert_eq!(once.verdicts.iter().find(|v| v.id == "order-of-activation").unwrap().holds, None);
    }
}
