//! Which carrier goes to which CPU, where threads that share several CPUs must not meet more promises on one than it has.

use evenkeel_base::CpuSet;

/// A thread with its part of a promise.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its part, percent of one CPU.
    pub points: f64,
    pub cpus: CpuSet,
    /// Where it is now: it stays there if that is possible.
    pub at: Option<u32>,
}

/// Steps of the search before it is given up: 32 items on 8 CPUs take some hundreds.
const STEPS: u32 = 100_000;

/// A CPU for each item such that no CPU holds more than its capacity (percent); `None` when none was found. Of all
/// possible ones, one that leaves things where they are and spreads the rest: each item goes to the CPU with most room.
pub fn pack(items: &[Item], capacity: &[(u32, f64)]) -> Option<Vec<u32>> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|&a, &b| {
        // Placed ones first among equals, so that newcomers adapt to them.
        (items[b].points, items[b].at.is_some())
            .partial_cmp(&(items[a].points, items[a].at.is_some()))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut room: Vec<f64> = capacity.iter().map(|(_, pct)| *pct).collect();
    let mut placed = vec![0usize; items.len()];
    // First with everybody staying where it is, then from nothing.
    for sticky in [true, false] {
        let mut steps = STEPS;
        if descend(items, capacity, &order, sticky, &mut room, &mut placed, &mut steps) {
            return Some(placed.into_iter().map(|slot| capacity[slot].0).collect());
        }
        for (room, (_, pct)) in room.iter_mut().zip(capacity) {
            *room = *pct;
        }
    }
    None
}

fn descend(
    items: &[Item],
    capacity: &[(u32, f64)],
    order: &[usize],
    sticky: bool,
    room: &mut [f64],
    placed: &mut [usize],
    steps: &mut u32,
) -> bool {
    let Some((&index, rest)) = order.split_first() else { return true };
    let item = &items[index];
    let mut slots: Vec<usize> = (0..capacity.len())
        .filter(|&slot| item.cpus.contains(capacity[slot].0) && room[slot] + 1e-9 >= item.points)
        .collect();
    let stays = |slot: usize| sticky && item.at == Some(capacity[slot].0);
    slots.sort_by(|&a, &b| stays(b).cmp(&stays(a)).then(room[b].total_cmp(&room[a])));
    if let Some(&first) = slots.first()
        && stays(first)
    {
        slots.truncate(1);
    }
    let mut tried: Vec<f64> = Vec::new();
    for slot in slots {
        // CPUs with the same room are alike, unless some item may use only one of them.
        if tried.iter().any(|room_there| (room_there - room[slot]).abs() < 1e-12)
            && order.iter().all(|&i| items[i].cpus.len() >= capacity.len())
        {
            continue;
        }
        tried.push(room[slot]);
        *steps = steps.saturating_sub(1);
        if *steps == 0 {
            return false;
        }
        room[slot] -= item.points;
        placed[index] = slot;
        if descend(items, capacity, rest, sticky, room, placed, steps) {
            return true;
        }
        room[slot] += item.points;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(points: f64, cpus: &str, at: Option<u32>) -> Item {
        Item { points, cpus: cpus.parse().unwrap(), at }
    }

    #[test]
    fn a_set_that_fits_only_one_way_is_packed() {
        // 50+40 and 30+30+30: largest first onto the emptiest would put 50, 40 apart and fail with 90 on each.
        let items: Vec<Item> = [50.0, 40.0, 30.0, 30.0, 30.0].map(|p| item(p, "0-1", None)).to_vec();
        let placed = pack(&items, &[(0, 90.0), (1, 90.0)]).unwrap();
        let on0: f64 = items.iter().zip(&placed).filter(|(_, cpu)| **cpu == 0).map(|(i, _)| i.points).sum();
        assert_eq!(on0, 90.0);
        assert_eq!(pack(&items, &[(0, 90.0), (1, 89.0)]), None);
    }

    #[test]
    fn who_is_there_stays_there_if_that_works() {
        let items = [item(40.0, "0-1", Some(1)), item(30.0, "0-1", Some(1)), item(20.0, "0-1", None)];
        assert_eq!(pack(&items, &[(0, 100.0), (1, 100.0)]).unwrap(), [1, 1, 0]);
        let items = [item(60.0, "0-1", Some(1)), item(60.0, "0-1", Some(1))];
        let placed = pack(&items, &[(0, 100.0), (1, 100.0)]).unwrap();
        assert_ne!(placed[0], placed[1], "if not, it moves");
    }

    #[test]
    fn masks_are_respected() {
        let items = [item(60.0, "0-1", None), item(60.0, "0", None)];
        assert_eq!(pack(&items, &[(0, 100.0), (1, 100.0)]).unwrap(), [1, 0]);
        assert_eq!(pack(&[item(10.0, "5", None)], &[(0, 100.0)]), None);
        assert_eq!(pack(&[], &[(0, 100.0)]), Some(vec![]));
    }

    proptest! {
        #[test]
        fn what_was_made_to_fit_is_packed(
            bins in proptest::collection::vec(proptest::collection::vec(1.0f64..50.0, 1..5), 1..5)
        ) {
            // Each bin's items are scaled to fill it to 90 %.
            let mut items = Vec::new();
            for bin in &bins {
                let sum: f64 = bin.iter().sum();
                items.extend(bin.iter().map(|p| item(p * 90.0 / sum, &format!("0-{}", bins.len() - 1), None)));
            }
            let capacity: Vec<(u32, f64)> = (0..bins.len() as u32).map(|cpu| (cpu, 100.0)).collect();
            let placed = pack(&items, &capacity);
            prop_assert!(placed.is_some());
            for (cpu, pct) in capacity {
                let on: f64 = items.iter().zip(placed.as_ref().unwrap()).filter(|(_, at)| **at == cpu).map(|(i, _)| i.points).sum();
                prop_assert!(on <= pct + 1e-6);
            }
        }
    }
}
