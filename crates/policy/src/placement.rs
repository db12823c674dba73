//! Greedy placement: longest processing time first onto the least loaded CPU.
//!
//! Properties (tested below):
//! - on identical CPUs without cpusets the busiest CPU carries at most 4/3 - 1/(3m) of the optimum (Graham 1969);
//! - a task is only ever placed on a CPU it may use, never on an offline or isolated one it was not given;
//! - the NUMA- and SMT-aware variants are used only where they do not raise the busiest CPU's load.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use evenkeel_base::{CpuSet, Observation, Topology};

use evenkeel_base::stats;

#[derive(Debug, Clone, PartialEq)]
pub struct Load<'a> {
    /// Demand, percent of one CPU.
    pub pct: f64,
    /// CPUs it may use (affinity and effective cpuset).
    pub allowed: &'a CpuSet,
    /// Things with the same number share memory and should share a NUMA node (a process's threads).
    pub family: Option<u32>,
}

/// One CPU to place on.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// Logical number.
    pub cpu: u32,
    /// Speed relative to the fastest CPU, in (0, 1].
    pub speed: f64,
    /// Load already there that cannot be moved, percent.
    pub fixed_pct: f64,
    /// Index into the slots of the SMT siblings' group: equal numbers share a core.
    pub core: u32,
    pub node: u32,
}

/// Slowdown of a thread whose SMT sibling is busy: two busy threads of a core together do about 1.25 times the
/// work of one on common server parts, so a sibling's load counts this much on top of one's own.
const SIBLING_SHARE: f64 = 0.6;

/// The slots of a topology on which `allowed` tasks may be placed: online, and not isolated unless every CPU
/// allowed to the tasks is.
pub fn slots(topology: &Topology, fixed_pct: impl Fn(u32) -> f64) -> Vec<Slot> {
    let top = topology.cpus.iter().filter_map(|c| c.capacity).max().unwrap_or(1024).max(1);
    topology
        .cpus
        .iter()
        .filter(|c| c.online)
        .map(|c| Slot {
            cpu: c.cpu,
            speed: f64::from(c.capacity.unwrap_or(top).clamp(1, top)) / f64::from(top),
            fixed_pct: fixed_pct(c.cpu),
            core: c.core.unwrap_or(c.cpu),
            node: c.node.unwrap_or(0),
        })
        .collect()
}

/// Where each load goes: a CPU number, or `None` when no slot is allowed to it. Deterministic.
pub fn place(loads: &[Load<'_>], slots: &[Slot]) -> Vec<Option<u32>> {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|&a, &b| loads[b].pct.total_cmp(&loads[a].pct).then(a.cmp(&b)));
    let plain = lpt(loads, &order, slots, false);
    let aware = slots.iter().any(|s| s.node != slots[0].node) || has_smt(slots);
    if !aware {
        return plain;
    }
    let careful = lpt(loads, &order, slots, true);
    if busiest(loads, slots, &careful) <= busiest(loads, slots, &plain) + 1e-9 { careful } else { plain }
}

/// Utilisation of each slot under an assignment, percent of that CPU's speed.
pub fn utilisation(loads: &[Load<'_>], slots: &[Slot], placed: &[Option<u32>]) -> Vec<f64> {
    let mut sums: Vec<f64> = slots.iter().map(|s| s.fixed_pct).collect();
    for (load, cpu) in loads.iter().zip(placed) {
        if let Some(index) = cpu.and_then(|cpu| slots.iter().position(|s| s.cpu == cpu)) {
            sums[index] += load.pct;
        }
    }
    sums.iter().zip(slots).map(|(sum, slot)| sum / slot.speed).collect()
}

/// Standard deviation of the online CPUs' utilisation from which placing again is worth a look, points.
pub const UNEVEN_POINTS: f64 = 15.0;

/// Whether it is.
pub fn is_uneven(observation: &Observation) -> bool {
    let busy: Vec<f64> = observation.host.per_cpu.iter().map(|cpu| cpu.busy_pct).collect();
    stats::variance(&busy) > UNEVEN_POINTS * UNEVEN_POINTS
}

fn has_smt(slots: &[Slot]) -> bool {
    let mut cores: Vec<u32> = slots.iter().map(|s| s.core).collect();
    cores.sort_unstable();
    cores.windows(2).any(|pair| pair[0] == pair[1])
}

fn busiest(loads: &[Load<'_>], slots: &[Slot], placed: &[Option<u32>]) -> f64 {
    let index: std::collections::HashMap<u32, usize> =
        slots.iter().enumerate().map(|(i, s)| (s.cpu, i)).collect();
    let mut sums: Vec<f64> = slots.iter().map(|s| s.fixed_pct).collect();
    for (load, cpu) in loads.iter().zip(placed) {
        if let Some(&i) = cpu.and_then(|cpu| index.get(&cpu)) {
            sums[i] += load.pct;
        }
    }
    sums.iter().zip(slots).map(|(sum, slot)| sum / slot.speed).fold(0.0, f64::max)
}

/// Loads in their order, longest processing time first. `careful` also counts the load of SMT siblings and prefers the node
/// on which a load's family already sits.
///
/// Slots of equal speed and node differ, for every load, only by what they carry already: they are kept in order of that,
/// so that a load looks at the first one allowed to it of each such class rather than at every slot.
fn lpt(loads: &[Load<'_>], order: &[usize], slots: &[Slot], careful: bool) -> Vec<Option<u32>> {
    let mut board = Board::new(slots, careful);
    let mut homes: HashMap<u32, u32> = HashMap::new();
    let mut placed = vec![None; loads.len()];
    for &index in order {
        let load = &loads[index];
        let home = load.family.filter(|_| careful).and_then(|family| homes.get(&family).copied());
        if let Some(slot) = board.best(load, home) {
            board.put(slot, load.pct);
            if let Some(family) = load.family {
                homes.entry(family).or_insert(slots[slot].node);
            }
            placed[index] = Some(slots[slot].cpu);
        }
    }
    placed
}

/// What a slot carries, as an ordered key; never NaN for finite loads, and total in any case.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Carried(f64);

impl Eq for Carried {}

impl PartialOrd for Carried {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Carried {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Slots of equal speed and node, least loaded first.
struct Class {
    speed: f64,
    node: u32,
    order: BTreeSet<(Carried, usize)>,
}

/// The slots and what they carry so far.
struct Board<'a> {
    slots: &'a [Slot],
    careful: bool,
    sums: Vec<f64>,
    class: Vec<usize>,
    classes: Vec<Class>,
    /// Slots of each slot's core, itself included; itself alone where siblings do not count.
    siblings: Vec<Vec<usize>>,
}

impl<'a> Board<'a> {
    fn new(slots: &'a [Slot], careful: bool) -> Self {
        let mut cores: HashMap<u32, Vec<usize>> = HashMap::new();
        if careful {
            for (index, slot) in slots.iter().enumerate() {
                cores.entry(slot.core).or_default().push(index);
            }
        }
        let mut board = Self {
            slots,
            careful,
            sums: slots.iter().map(|s| s.fixed_pct).collect(),
            class: Vec::with_capacity(slots.len()),
            classes: Vec::new(),
            siblings: slots
                .iter()
                .enumerate()
                .map(|(index, slot)| cores.get(&slot.core).cloned().unwrap_or_else(|| vec![index]))
                .collect(),
        };
        for (index, slot) in slots.iter().enumerate() {
            let node = if careful { slot.node } else { 0 };
            let class = board.classes.iter().position(|c| c.speed == slot.speed && c.node == node);
            let class = class.unwrap_or_else(|| {
                board.classes.push(Class { speed: slot.speed, node, order: BTreeSet::new() });
                board.classes.len() - 1
            });
            board.class.push(class);
            let carried = board.carried(index);
            board.classes[class].order.insert((carried, index));
        }
        board
    }

    /// The slot's own load, and its siblings' by their share.
    fn carried(&self, index: usize) -> Carried {
        let siblings: f64 = self.siblings[index].iter().filter(|&&i| i != index).map(|&i| self.sums[i]).sum();
        Carried(self.sums[index] + SIBLING_SHARE * siblings)
    }

    /// The cheapest slot allowed to a load.
    fn best(&self, load: &Load<'_>, home: Option<u32>) -> Option<usize> {
        let firsts = self.classes.iter().filter_map(|class| {
            let (carried, index) =
                class.order.iter().find(|(_, index)| load.allowed.contains(self.slots[*index].cpu))?;
            let mut cost = (carried.0 + load.pct) / class.speed;
            // Off the family's node costs as much as its own remote share would: a fifth of its demand.
            if self.careful && home.is_some_and(|node| node != class.node) {
                cost += 0.2 * load.pct;
            }
            Some((cost, *index))
        });
        firsts.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, index)| index)
    }

    fn put(&mut self, slot: usize, pct: f64) {
        for place in 0..self.siblings[slot].len() {
            let index = self.siblings[slot][place];
            let key = (self.carried(index), index);
            self.classes[self.class[index]].order.remove(&key);
        }
        self.sums[slot] += pct;
        for place in 0..self.siblings[slot].len() {
            let index = self.siblings[slot][place];
            let key = (self.carried(index), index);
            self.classes[self.class[index]].order.insert(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identical(n: u32) -> Vec<Slot> {
        (0..n).map(|cpu| Slot { cpu, speed: 1.0, fixed_pct: 0.0, core: cpu, node: 0 }).collect()
    }

    fn free<'a>(pcts: &[f64], allowed: &'a CpuSet) -> Vec<Load<'a>> {
        pcts.iter().map(|&pct| Load { pct, allowed, family: None }).collect()
    }

    #[test]
    fn the_published_mix_is_spread_evenly() {
        // five each of 5,10,15,20,25 on 5 CPUs: 375 / 5 = 75 on each
        let pcts: Vec<f64> = [5.0, 10.0, 15.0, 20.0, 25.0].repeat(5);
        let five = CpuSet::first_n(5);
        let loads = free(&pcts, &five);
        let slots = identical(5);
        let used = utilisation(&loads, &slots, &place(&loads, &slots));
        assert!(used.iter().all(|u| (u - 75.0).abs() < 1e-9), "{used:?}");
    }

    #[test]
    fn siblings_are_filled_last_and_families_stay_together() {
        let topology = Topology::synthetic(2, 1, 2, 2);
        let slots = slots(&topology, |_| 0.0);
        let eight = CpuSet::first_n(8);
        let mut loads = free(&[40.0; 4], &eight);
        for (i, load) in loads.iter_mut().enumerate() {
            load.family = Some(i as u32 / 2);
        }
        let placed = place(&loads, &slots);
        let cores: std::collections::HashSet<_> =
            placed.iter().map(|c| topology.cpu(c.unwrap()).unwrap().core).collect();
        assert_eq!(cores.len(), 4, "each on its own core: {placed:?}");
        let node = |i: usize| topology.cpu(placed[i].unwrap()).unwrap().node;
        assert_eq!(node(0), node(1));
        assert_eq!(node(2), node(3));
    }

    #[test]
    fn nothing_allowed_means_not_placed() {
        let (two, other) = (CpuSet::first_n(2), CpuSet::single(7));
        assert_eq!(place(&free(&[10.0], &other), &identical(2)), [None]);
        assert_eq!(place(&free(&[10.0], &two), &[]), [None]);
    }

    /// Optimal makespan by exhaustive search; small cases only.
    fn optimum(pcts: &[f64], bins: &mut Vec<f64>) -> f64 {
        match pcts.split_first() {
            None => bins.iter().copied().fold(0.0, f64::max),
            Some((first, rest)) => (0..bins.len())
                .map(|i| {
                    bins[i] += first;
                    let best = optimum(rest, bins);
                    bins[i] -= first;
                    best
                })
                .fold(f64::INFINITY, f64::min),
        }
    }

    proptest! {
        #[test]
        fn never_worse_than_four_thirds_of_the_optimum(
            pcts in proptest::collection::vec(0.1f64..100.0, 1..8), m in 1u32..4
        ) {
            let all = CpuSet::first_n(m);
            let loads = free(&pcts, &all);
            let slots = identical(m);
            let worst = busiest(&loads, &slots, &place(&loads, &slots));
            let best = optimum(&pcts, &mut vec![0.0; m as usize]);
            prop_assert!(worst <= best * (4.0 / 3.0 - 1.0 / (3.0 * f64::from(m))) + 1e-6, "{worst} against {best}");
        }

        #[test]
        fn only_allowed_cpus_are_used(
            items in proptest::collection::vec((0.0f64..100.0, proptest::collection::vec(0u32..20, 0..6), 0u32..5), 0..40)
        ) {
            let topology = Topology::synthetic(2, 1, 4, 2);
            let sets: Vec<CpuSet> = items.iter().map(|(_, cpus, _)| cpus.iter().copied().collect()).collect();
            let loads: Vec<Load<'_>> = items
                .iter()
                .zip(&sets)
                .map(|((pct, _, family), allowed)| Load { pct: *pct, allowed, family: Some(*family) })
                .collect();
            let slots = slots(&topology, |_| 0.0);
            for (load, cpu) in loads.iter().zip(place(&loads, &slots)) {
                match cpu {
                    Some(cpu) => prop_assert!(load.allowed.contains(cpu) && topology.online.contains(cpu)),
                    None => prop_assert!(!load.allowed.intersects(&topology.online)),
                }
            }
        }
    }
}
