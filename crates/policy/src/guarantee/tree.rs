//! From promises to weights along the whole path of the cgroup tree.

use std::collections::BTreeMap;

use evenkeel_base::{CpuSet, CpuShares, CpuWeight, GroupView, Nice, Observation, TaskView, load_weight};

/// Load weight of a group or task with default settings.
const DEFAULT_WEIGHT: f64 = 1024.0;
/// Activity, percent of one CPU (run or waited), from which somebody counts as a competitor. Whoever wakes up later is
/// covered by one default weight that is always added.
const ACTIVE_PCT: f64 = 0.5;
/// Least slack reckoned with, percent of one CPU: with none at all weights would have to be infinite.
const MIN_SLACK_PCT: f64 = 2.0;
/// Part of a promise that is spread evenly over its carriers; the rest follows their demand.
const EVEN_PART: f64 = 0.05;

/// Something whose weight carries a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchedEntity {
    /// Index into [`Observation::groups`].
    Group(u32),
    /// Index into [`Observation::tasks`].
    Task(usize),
}

/// The highest cgroup that holds only tasks of one promise, or a single task that shares its cgroup with others.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityShare {
    /// Which promise.
    pub owner: usize,
    /// What carries it.
    pub entity: SchedEntity,
    /// Its tasks, as indices into [`Observation::tasks`].
    pub tasks: Vec<usize>,
    /// Its part of the promise, percent of one CPU.
    pub points: f64,
}

/// Who holds a subtree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    One(usize),
    Several,
}

impl Holder {
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nobody, holder) | (holder, Self::Nobody) => holder,
            (Self::One(a), Self::One(b)) if a == b => self,
            _ => Self::Several,
        }
    }
}

/// Finds the carriers of all promises. `owner[i]` is the promise of `observation.tasks[i]`, `demand(i)` what the task
/// would use (percent of one CPU), `promised` the promises.
pub fn carriers(
    observation: &Observation,
    owner: &[Option<usize>],
    demand: &dyn Fn(usize) -> f64,
    promised: &[f64],
) -> Vec<EntityShare> {
    let groups = &observation.groups;
    let mut holder = vec![Holder::Nobody; groups.len()];
    for (task, owner) in observation.tasks.iter().zip(owner) {
        if let Some(group) = task.group.and_then(|g| holder.get_mut(g as usize)) {
            *group = group.with(owner.map_or(Holder::Several, Holder::One));
        }
    }
    // Parents come before children.
    for index in (0..groups.len()).rev() {
        if let Some(parent) = groups[index].parent {
            let below = holder[index];
            holder[parent as usize] = holder[parent as usize].with(below);
        }
    }
    // The topmost group of one holder alone, for each group; the root has no weight, an idle group's does not act.
    let mut top: Vec<Option<u32>> = vec![None; groups.len()];
    for index in 0..groups.len() {
        let above = groups[index].parent.and_then(|parent| top[parent as usize]);
        let own = matches!(holder[index], Holder::One(_))
            && groups[index].parent.is_some()
            && groups[index].raw_weight.is_some();
        top[index] = above.or(own.then_some(index as u32));
    }
    let mut found: BTreeMap<(usize, SchedEntity), Vec<usize>> = BTreeMap::new();
    for (index, (task, owner)) in observation.tasks.iter().zip(owner).enumerate() {
        let Some(owner) = *owner else { continue };
        let group = task.group.and_then(|g| top.get(g as usize).copied().flatten());
        let entity = group.map_or(SchedEntity::Task(index), SchedEntity::Group);
        found.entry((owner, entity)).or_default().push(index);
    }
    let wants = |tasks: &[usize]| tasks.iter().map(|&i| demand(i)).sum::<f64>();
    let mut total = vec![(0.0, 0u32); promised.len()];
    for ((owner, _), tasks) in &found {
        total[*owner].0 += wants(tasks);
        total[*owner].1 += 1;
    }
    found
        .into_iter()
        .map(|((owner, entity), tasks)| {
            let (sum, count) = total[owner];
            let even = 1.0 / f64::from(count.max(1));
            let part =
                if sum > 0.0 { EVEN_PART * even + (1.0 - EVEN_PART) * wants(&tasks) / sum } else { even };
            EntityShare { owner, entity, tasks, points: promised[owner] * part }
        })
        .collect()
}

/// What may be done to a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It holds tasks of the scope and no others.
    Own,
    /// It holds others, too; its weight may be raised where a promise needs it.
    Ancestor,
    /// It is left as found.
    Outside,
}

/// A child of a node that carries promises.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// The child: a carrier, or a group on the way to some.
    pub entity: SchedEntity,
    /// Carriers at or below it, as indices.
    pub carriers: Vec<usize>,
    /// What they are to get together, percent of one CPU.
    pub points: f64,
    /// Its load weight as found.
    pub found: f64,
    /// Those of its carriers for which it may be changed; none where it is fixed.
    pub due: Vec<usize>,
}

impl Child {
    /// It may not be changed.
    fn is_fixed(&self) -> bool {
        self.due.is_empty()
    }
}

/// Those who share one node of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Siblings {
    /// The node, index into [`Observation::groups`]; `None` where the host has no cgroups.
    pub node: Option<u32>,
    /// Children that carry promises.
    pub children: Vec<Child>,
    /// Groups of the scope next to them, which are promised nothing, with their load weights as found: what a promise needs
    /// is taken from them first.
    pub lenders: Vec<(u32, f64)>,
    /// Sum of the load weights of all other active competitors, one default weight for newcomers included.
    pub competitors: f64,
    /// Active competitors that are groups, as indices.
    pub outside: Vec<u32>,
}

/// What contests need to know of groups and tasks beyond an observation.
pub struct Ground<'a> {
    /// The load weight of a entity before anything was changed.
    pub found: &'a dyn Fn(SchedEntity) -> f64,
    /// What may be done to a group.
    pub reach: &'a dyn Fn(u32) -> Reach,
    /// Whether a promise may have the weight of an ancestor raised: those of the configuration may, labels may not.
    pub raises: &'a dyn Fn(usize) -> bool,
    /// Whether a group is the scope's, and no task in it is promised anything.
    pub lends: &'a dyn Fn(u32) -> bool,
}

/// Every siblings on the way from the root to the carriers. Parents come before their children.
pub fn contests(observation: &Observation, carriers: &[EntityShare], ground: &Ground<'_>) -> Vec<Siblings> {
    let groups = &observation.groups;
    let mut nodes: BTreeMap<Option<u32>, BTreeMap<SchedEntity, Vec<usize>>> = BTreeMap::new();
    for (index, carrier) in carriers.iter().enumerate() {
        let mut child = carrier.entity;
        let mut node = match child {
            SchedEntity::Group(group) => groups[group as usize].parent,
            SchedEntity::Task(task) => observation.tasks[task].group,
        };
        loop {
            nodes.entry(node).or_default().entry(child).or_default().push(index);
            let Some(at) = node else { break };
            child = SchedEntity::Group(at);
            match groups[at as usize].parent {
                Some(parent) => node = Some(parent),
                None => break,
            }
        }
    }
    nodes
        .into_iter()
        .map(|(node, children)| {
            let lenders = lenders(observation, node, &children, ground);
            let (competitors, outside) = competitors(observation, node, &children, &lenders);
            let children = children
                .into_iter()
                .map(|(entity, of)| {
                    let points = of.iter().map(|&i| carriers[i].points).sum();
                    let reach = match entity {
                        SchedEntity::Group(group) => (ground.reach)(group),
                        SchedEntity::Task(_) => Reach::Own,
                    };
                    let may = |i: &usize| match reach {
                        Reach::Own => true,
                        Reach::Ancestor => (ground.raises)(carriers[*i].owner),
                        Reach::Outside => false,
                    };
                    let due = of.iter().copied().filter(may).collect();
                    Child { entity, carriers: of, points, found: (ground.found)(entity).max(1.0), due }
                })
                .collect();
            Siblings { node, children, lenders, competitors, outside }
        })
        .collect()
}

/// Groups of the scope below a node that carry nothing, whether active or not: that one falls asleep is no reason to change
/// the others.
fn lenders(
    observation: &Observation,
    node: Option<u32>,
    children: &BTreeMap<SchedEntity, Vec<usize>>,
    ground: &Ground<'_>,
) -> Vec<(u32, f64)> {
    let groups = observation.groups.iter().zip(0u32..).filter(|(group, index)| {
        group.parent == node
            && node.is_some()
            && group.raw_weight.is_some()
            && !children.contains_key(&SchedEntity::Group(*index))
            && (ground.lends)(*index)
    });
    groups.map(|(_, index)| (index, (ground.found)(SchedEntity::Group(index)).max(1.0))).collect()
}

/// Load weights of active children of a node that neither carry nor lend, and one default weight; and which groups they are.
fn competitors(
    observation: &Observation,
    node: Option<u32>,
    children: &BTreeMap<SchedEntity, Vec<usize>>,
    lenders: &[(u32, f64)],
) -> (f64, Vec<u32>) {
    let groups = observation.groups.iter().zip(0u32..).filter(|(group, index)| {
        group.parent == node
            && node.is_some()
            && group.cpu_pct.is_none_or(|pct| pct >= ACTIVE_PCT)
            && !children.contains_key(&SchedEntity::Group(*index))
            && !lenders.iter().any(|(lender, _)| lender == index)
    });
    let (weights, outside): (Vec<f64>, Vec<u32>) = groups
        .map(|(group, index)| (group.load_weight.map_or(DEFAULT_WEIGHT, |weight| weight as f64), index))
        .unzip();
    let tasks = observation.tasks.iter().enumerate().filter(|(index, task)| {
        task.group == node
            && !children.contains_key(&SchedEntity::Task(*index))
            && task.cpu_pct + task.wait_pct.unwrap_or(0.0) >= ACTIVE_PCT
    });
    let tasks = tasks.map(|(_, task)| weight_of(task));
    (DEFAULT_WEIGHT + weights.into_iter().chain(tasks).sum::<f64>(), outside)
}

fn weight_of(task: &TaskView) -> f64 {
    task.sched.map_or(DEFAULT_WEIGHT, |attr| f64::from(attr.nice.weight()))
}

/// What is left of the CPUs of a siblings when every promise on them is used, percent of one CPU: the scarcest single CPU
/// where carriers stay on one each, else the sum. `cpus[i]` are the CPUs of carrier `i`.
pub fn slack_pct(
    siblings: &Siblings,
    carriers: &[EntityShare],
    cpus: &[CpuSet],
    supply: &[(u32, f64)],
) -> f64 {
    let own: Vec<usize> = siblings.children.iter().flat_map(|child| child.carriers.iter().copied()).collect();
    let left = |set: &CpuSet| -> f64 {
        let given: f64 = supply.iter().filter(|(cpu, _)| set.contains(*cpu)).map(|(_, pct)| pct).sum();
        let promised: f64 = carriers
            .iter()
            .zip(cpus)
            .filter(|(_, at)| !at.intersection(set).is_empty())
            .map(|(carrier, _)| carrier.points)
            .sum();
        given - promised
    };
    let all_pinned = own.iter().all(|&i| cpus[i].len() == 1);
    let slack = if all_pinned {
        own.iter().map(|&i| left(&cpus[i])).fold(f64::INFINITY, f64::min)
    } else {
        left(&own.iter().fold(CpuSet::new(), |set, &i| set.union(&cpus[i])))
    };
    if slack.is_finite() { slack.max(MIN_SLACK_PCT) } else { MIN_SLACK_PCT }
}

/// Largest load weight a child can have.
pub fn heaviest(observation: &Observation, entity: SchedEntity) -> f64 {
    match entity {
        SchedEntity::Task(_) => f64::from(Nice::new(-20).weight()),
        SchedEntity::Group(group) => load_weight(u64::MAX, observation.groups[group as usize].v2) as f64,
    }
}

/// The load weights of a siblings's children.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// The node, as in [`Siblings`].
    pub node: Option<u32>,
    /// Load weight of each child that carries, then of each that lends.
    pub weights: Vec<(SchedEntity, f64)>,
    /// The largest weight stood in the way: everything here was scaled down by this factor, so that proportions stay.
    pub scaled_down: Option<f64>,
    /// What competitors are left with when everybody wants everything, percent of one CPU: as found and now.
    pub outside_pct: (f64, f64),
}

/// Part of its weight that a group keeps, however much it is to lend.
const KEEPS: f64 = 0.25;
/// Least part of what a node has that is reckoned with for all others: with none weights would have to be infinite. Where
/// promises take more of a node than the rest, they fall short by up to this part.
const LEAST_REST: f64 = 0.01;
/// Room that a group on the way to carriers wins for the competitors inside it, as a part of what is promised below it.
const ROOM: f64 = 0.1;

/// Solves all contests from the root down, by the smallest change that suffices.
///
/// In a siblings a child of weight w gets w / S of what the node has (C) when everybody wants everything, S being the sum of
/// all weights. It needs q: its points, and on the way to carriers a little room for the competitors inside. A child whose
/// found weight f is enough keeps it, the others get q S / C:
///
/// 1. With S as found, what those need beyond f is taken from siblings of the scope that are promised nothing, down to
///    [`KEEPS`] of their weight. Nobody outside the scope notices.
/// 2. If that is not enough, S grows to the smallest sum that satisfies all: `S = W + sum of max(f, q S / C)`. Competitors
///    of weight W are left with less then, which [`Solved::outside_pct`] says.
///
/// `capacity` is what a siblings has at most, percent of one CPU. `gain[i]` multiplies what carrier `i` is given (1 is the
/// plain solution). `steady(node, s)` may replace the factor S / C by one near it, so that weights do not change with every
/// breath of the neighbours. `heaviest` is the largest load weight a entity can have, see [`heaviest`].
pub fn solve(
    heaviest: &dyn Fn(SchedEntity) -> f64,
    contests: &[Siblings],
    carriers: &[EntityShare],
    capacity: &dyn Fn(&Siblings) -> f64,
    gain: &[f64],
    steady: &mut dyn FnMut(Option<u32>, f64) -> f64,
) -> Vec<Solved> {
    // What a group has when everybody wants everything: as found, and now.
    let mut handed_down: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    contests
        .iter()
        .map(|siblings| {
            let most = capacity(siblings);
            let inherited = siblings.node.and_then(|node| handed_down.get(&node).copied());
            let (had, has) = inherited.map_or((most, most), |(had, has)| (had.min(most), has.min(most)));
            let found = siblings.found();
            let needs = siblings.needs(carriers, has);
            let (sum, part_lent) = siblings.smallest(&needs, has);
            let per_point = steady(siblings.node, sum / has.max(1e-3));
            let mut weights = Vec::with_capacity(siblings.children.len() + siblings.lenders.len());
            for (child, need) in siblings.children.iter().zip(&needs) {
                let points: f64 = child.due.iter().map(|&i| carriers[i].points).sum();
                let with_gain: f64 = child.due.iter().map(|&i| carriers[i].points * gain[i]).sum();
                let gain = if points > 0.0 { with_gain / points } else { 1.0 };
                let weight =
                    if child.is_fixed() { child.found } else { child.found.max(need * per_point * gain) };
                weights.push((child.entity, weight));
            }
            let over = weights.iter().map(|(entity, w)| w / heaviest(*entity)).fold(1.0, f64::max);
            for ((_, weight), child) in weights.iter_mut().zip(&siblings.children) {
                if !child.is_fixed() {
                    *weight /= over;
                }
            }
            weights.extend(
                siblings
                    .lenders
                    .iter()
                    .map(|(group, found)| (SchedEntity::Group(*group), found * (1.0 - part_lent))),
            );
            let now = siblings.competitors + weights.iter().map(|(_, weight)| weight).sum::<f64>();
            for (child, (entity, weight)) in siblings.children.iter().zip(&weights) {
                if let SchedEntity::Group(group) = entity {
                    handed_down.insert(*group, (had * child.found / found, has * weight / now));
                }
            }
            Solved {
                node: siblings.node,
                weights,
                scaled_down: (over > 1.0).then_some(over),
                outside_pct: (had * siblings.competitors / found, has * siblings.competitors / now),
            }
        })
        .collect()
}

impl Siblings {
    /// Sum of all weights as found.
    fn found(&self) -> f64 {
        let children: f64 = self.children.iter().map(|child| child.found).sum();
        let lenders: f64 = self.lenders.iter().map(|(_, found)| found).sum();
        self.competitors + children + lenders
    }

    /// What each child needs of what the node has.
    fn needs(&self, carriers: &[EntityShare], has: f64) -> Vec<f64> {
        let passes_on = |child: &Child| carriers[child.carriers[0]].entity != child.entity;
        let promised: f64 = self.children.iter().map(|child| child.points).sum();
        let passing: f64 = self.children.iter().filter(|c| passes_on(c)).map(|c| c.points).sum();
        // At most half of what is left goes into room.
        let room = (0.5 * (has - promised).max(0.0) / passing.max(1e-9)).min(ROOM);
        let due = |child: &Child| child.due.iter().map(|&i| carriers[i].points).sum::<f64>();
        let need = |child: &Child| due(child) * if passes_on(child) { 1.0 + room } else { 1.0 };
        self.children.iter().map(need).collect()
    }

    /// The smallest sum of weights with which every child that may be changed gets what it needs, and the part of their
    /// weight that lenders give up.
    fn smallest(&self, needs: &[f64], has: f64) -> (f64, f64) {
        let found = self.found();
        let lenders: f64 = self.lenders.iter().map(|(_, found)| found).sum();
        let missing: f64 =
            self.open(needs).map(|(child, need)| (need * found / has - child.found).max(0.0)).sum();
        if missing <= (1.0 - KEEPS) * lenders {
            let part = if lenders > 0.0 { missing / lenders } else { 0.0 };
            return (found, part);
        }
        let rest = found - (1.0 - KEEPS) * lenders;
        // Each round raises at least one more, with a larger sum each time.
        let mut sum = rest;
        for _ in 0..=self.children.len() {
            let raised = || self.open(needs).filter(|(child, need)| child.found < *need * sum / has);
            let part: f64 = raised().map(|(_, need)| need / has).sum();
            let kept = rest - raised().map(|(child, _)| child.found).sum::<f64>();
            sum = sum.max(kept / (1.0 - part).max(LEAST_REST));
        }
        (sum, 1.0 - KEEPS)
    }

    fn open<'a>(&'a self, needs: &'a [f64]) -> impl Iterator<Item = (&'a Child, f64)> {
        self.children.iter().zip(needs.iter().copied()).filter(|(child, _)| !child.is_fixed())
    }
}

/// The number to write for a group, from a load weight.
pub fn raw_weight(group: &GroupView, load_weight: f64) -> u64 {
    let clean = if load_weight.is_finite() { load_weight.max(0.0) } else { DEFAULT_WEIGHT };
    if group.v2 {
        u64::from(CpuWeight::new((clean * 100.0 / 1024.0).round() as u64).get())
    } else {
        u64::from(CpuShares::new(clean.round() as u64).get())
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
