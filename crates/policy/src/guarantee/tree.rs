//! From promises to weights along the whole path of the cgroup tree.

use std::collections::BTreeMap;

use evenkeel_base::{CpuSet, CpuShares, CpuWeight, GroupView, Nice, Observation, TaskView};

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
pub enum Bearer {
    /// Index into [`Observation::groups`].
    Group(u32),
    /// Index into [`Observation::tasks`].
    Task(usize),
}

/// The highest cgroup that holds only tasks of one promise, or a single task that shares its cgroup with others.
#[derive(Debug, Clone, PartialEq)]
pub struct Carrier {
    /// Which promise.
    pub owner: usize,
    /// What carries it.
    pub bearer: Bearer,
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
) -> Vec<Carrier> {
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
    let mut found: BTreeMap<(usize, Bearer), Vec<usize>> = BTreeMap::new();
    for (index, (task, owner)) in observation.tasks.iter().zip(owner).enumerate() {
        let Some(owner) = *owner else { continue };
        let group = task.group.and_then(|g| top.get(g as usize).copied().flatten());
        let bearer = group.map_or(Bearer::Task(index), Bearer::Group);
        found.entry((owner, bearer)).or_default().push(index);
    }
    let wants = |tasks: &[usize]| tasks.iter().map(|&i| demand(i)).sum::<f64>();
    let mut total = vec![(0.0, 0u32); promised.len()];
    for ((owner, _), tasks) in &found {
        total[*owner].0 += wants(tasks);
        total[*owner].1 += 1;
    }
    found
        .into_iter()
        .map(|((owner, bearer), tasks)| {
            let (sum, count) = total[owner];
            let even = 1.0 / f64::from(count.max(1));
            let part =
                if sum > 0.0 { EVEN_PART * even + (1.0 - EVEN_PART) * wants(&tasks) / sum } else { even };
            Carrier { owner, bearer, tasks, points: promised[owner] * part }
        })
        .collect()
}

/// A child of a node that carries promises.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// The child: a carrier, or a group on the way to some.
    pub bearer: Bearer,
    /// Carriers at or below it, as indices.
    pub carriers: Vec<usize>,
    /// What they are to get together, percent of one CPU.
    pub points: f64,
}

/// Those who share one node of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Contest {
    /// The node, index into [`Observation::groups`]; `None` where the host has no cgroups.
    pub node: Option<u32>,
    /// Children that carry promises.
    pub children: Vec<Child>,
    /// Sum of the load weights of active competitors, one default weight for newcomers included.
    pub competitors: f64,
}

/// Every contest on the way from the root to the carriers. Parents come before their children.
pub fn contests(observation: &Observation, carriers: &[Carrier]) -> Vec<Contest> {
    let groups = &observation.groups;
    let mut nodes: BTreeMap<Option<u32>, BTreeMap<Bearer, Vec<usize>>> = BTreeMap::new();
    for (index, carrier) in carriers.iter().enumerate() {
        let mut child = carrier.bearer;
        let mut node = match child {
            Bearer::Group(group) => groups[group as usize].parent,
            Bearer::Task(task) => observation.tasks[task].group,
        };
        loop {
            nodes.entry(node).or_default().entry(child).or_default().push(index);
            let Some(at) = node else { break };
            child = Bearer::Group(at);
            match groups[at as usize].parent {
                Some(parent) => node = Some(parent),
                None => break,
            }
        }
    }
    nodes
        .into_iter()
        .map(|(node, children)| {
            let competitors = competitors(observation, node, &children);
            let children = children
                .into_iter()
                .map(|(bearer, of)| {
                    let points = of.iter().map(|&i| carriers[i].points).sum();
                    Child { bearer, carriers: of, points }
                })
                .collect();
            Contest { node, children, competitors }
        })
        .collect()
}

/// Load weights of active children of a node that carry nothing, and one default weight.
fn competitors(observation: &Observation, node: Option<u32>, children: &BTreeMap<Bearer, Vec<usize>>) -> f64 {
    let groups = observation.groups.iter().zip(0u32..).filter(|(group, index)| {
        group.parent == node && node.is_some() && !children.contains_key(&Bearer::Group(*index))
    });
    let groups = groups
        .filter(|(group, _)| group.cpu_pct.is_none_or(|pct| pct >= ACTIVE_PCT))
        .map(|(group, _)| group.load_weight.map_or(DEFAULT_WEIGHT, |weight| weight as f64));
    let tasks = observation.tasks.iter().enumerate().filter(|(index, task)| {
        task.group == node
            && !children.contains_key(&Bearer::Task(*index))
            && task.cpu_pct + task.wait_pct.unwrap_or(0.0) >= ACTIVE_PCT
    });
    let tasks = tasks.map(|(_, task)| weight_of(task));
    DEFAULT_WEIGHT + groups.chain(tasks).sum::<f64>()
}

fn weight_of(task: &TaskView) -> f64 {
    task.sched.map_or(DEFAULT_WEIGHT, |attr| f64::from(attr.nice.weight()))
}

/// What is left of the CPUs of a contest when every promise on them is used, percent of one CPU: the scarcest single CPU
/// where carriers stay on one each, else the sum. `cpus[i]` are the CPUs of carrier `i`.
pub fn slack_pct(contest: &Contest, carriers: &[Carrier], cpus: &[CpuSet], supply: &[(u32, f64)]) -> f64 {
    let own: Vec<usize> = contest.children.iter().flat_map(|child| child.carriers.iter().copied()).collect();
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
pub fn heaviest(observation: &Observation, bearer: Bearer) -> f64 {
    match bearer {
        Bearer::Task(_) => f64::from(Nice::new(-20).weight()),
        Bearer::Group(group) if observation.groups[group as usize].v2 => {
            CpuWeight::new(u64::MAX).load_weight() as f64
        }
        Bearer::Group(_) => f64::from(CpuShares::new(u64::MAX).get()),
    }
}

/// The load weights of a contest's children.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// The node, as in [`Contest`].
    pub node: Option<u32>,
    /// Load weight of each child that carries.
    pub weights: Vec<(Bearer, f64)>,
    /// The largest weight stood in the way: everything here was scaled down by this factor, so that proportions stay.
    pub scaled_down: Option<f64>,
}

/// Solves all contests from the root down.
///
/// In a contest of capacity C, children that carry R points in all and competitors of weight W, a weight of `s * r` with
/// `s = W / (C - R)` gives each child its r even when everybody wants everything: `r s / (R s + W) = r / C`. A group on the
/// way to carriers needs slack of its own for the competitors inside it, or it would have just what its carriers are to get
/// and any competitor would take some: so half of the slack of a node goes to its competitors and the other half down,
/// in proportion to points.
///
/// `boost[i]` multiplies what carrier `i` is given (1 is the plain solution). `steady(node, s)` may replace a factor by one
/// near it, so that weights do not change with every breath of the neighbours. `heaviest` is the largest load weight a
/// bearer can have, see [`heaviest`].
pub fn solve(
    heaviest: &dyn Fn(Bearer) -> f64,
    contests: &[Contest],
    carriers: &[Carrier],
    slack: &dyn Fn(&Contest) -> f64,
    boost: &[f64],
    steady: &mut dyn FnMut(Option<u32>, f64) -> f64,
) -> Vec<Solved> {
    let mut handed_down: BTreeMap<u32, f64> = BTreeMap::new();
    contests
        .iter()
        .map(|contest| {
            let inherited = contest.node.and_then(|node| handed_down.get(&node).copied());
            let slack = inherited.map_or_else(|| slack(contest), |inherited| inherited.min(slack(contest)));
            let passes_on = |child: &Child| carriers[child.carriers[0]].bearer != child.bearer;
            let passing: f64 = contest.children.iter().filter(|c| passes_on(c)).map(|c| c.points).sum();
            let below = if passing > 0.0 { slack / 2.0 } else { 0.0 };
            let per_point = steady(contest.node, contest.competitors / (slack - below).max(1e-3));
            let mut weights = Vec::with_capacity(contest.children.len());
            for child in &contest.children {
                let mut points: f64 = child.carriers.iter().map(|&i| carriers[i].points * boost[i]).sum();
                if let Bearer::Group(group) = child.bearer
                    && passes_on(child)
                {
                    let part = below * child.points / passing;
                    handed_down.insert(group, part);
                    points += part;
                }
                weights.push((child.bearer, points * per_point));
            }
            let over = weights.iter().map(|(bearer, w)| w / heaviest(*bearer)).fold(1.0, f64::max);
            for (_, weight) in &mut weights {
                *weight /= over;
            }
            Solved { node: contest.node, weights, scaled_down: (over > 1.0).then_some(over) }
        })
        .collect()
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
