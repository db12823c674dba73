//! Exact hierarchical weighted max-min fair shares: what each group and task gets in the long run.
//!
//! # What is computed
//!
//! A tree of groups with weights, quotas and cpusets; tasks with weights, cpusets, a number of threads and a wanted amount. The
//! allocation is built level by level, from the root down, by *filling*: all children of a group receive CPU at rates in
//! proportion to their weights until one of them can take no more (it has what it wants, its quota, one CPU per thread, or
//! its CPUs are full); it is frozen there, and the others go on. What the children of a group can use together is what the group
//! wants, so nothing is left idle that somebody may use.
//!
//! "Can take no more" is decided by a maximum flow from leaves to CPUs, so cpusets of any shape are exact, and so are
//! *infeasible weights*: one thread of weight 3 next to one of weight 1 on two CPUs cannot have 1.5 CPUs, gets one, and
//! leaves the other to the second.
//!
//! # How the kernel differs
//!
//! The kernel has no global share. A group's weight is split over CPUs in proportion to its load there, each CPU divides its own
//! time, and load balancing moves tasks now and then. Where the threads cannot be spread in proportion to the weights the
//! outcome differs by some percent; `docs/model.md` has what was measured.

use evenkeel_base::{CpuSet, Topology};

use crate::flow::Network;

/// Smallest amount told apart, in CPUs.
const EPSILON: f64 = 1e-9;

/// A group: inner node of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct FairGroup {
    /// Index of its parent, which comes before it; `None` is the root.
    pub parent: Option<usize>,
    /// Weight among its siblings (groups and tasks alike).
    pub weight: f64,
    /// Most it may use, in CPUs; `None` without a quota.
    pub quota_cpus: Option<f64>,
    /// CPUs it may use; `None` is all.
    pub cpus: Option<CpuSet>,
}

/// A task: leaf of the tree.
#[derive(Debug, Clone, PartialEq)]
pub struct FairTask {
    /// Index of its group; `None` is the root.
    pub group: Option<usize>,
    /// Weight among its siblings.
    pub weight: f64,
    /// What it would use at most, in CPUs; `f64::INFINITY` for one that never has enough.
    pub wanted_cpus: f64,
    /// Threads: it cannot use more CPUs than these.
    pub threads: u32,
    /// CPUs it may use; `None` is all of its group.
    pub cpus: Option<CpuSet>,
}

/// The machine as the solver sees it: pools of capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct Capacity {
    /// Online CPUs, ascending.
    cpus: Vec<u32>,
    /// Physical core of each, as an index.
    core: Vec<usize>,
    /// What each gives, 1 for a whole one.
    cpu_capacity: Vec<f64>,
    /// Capacity of each core in CPUs' worth of work.
    core_capacity: Vec<f64>,
}

impl Capacity {
    /// CPU time as the kernel counts it: each logical CPU is one.
    pub fn time(topology: &Topology) -> Self {
        Self::work(topology, f64::INFINITY)
    }

    /// Work: the CPUs of one core together do no more than `smt_speedup` (1.0 to 2.0) times what one does alone.
    pub fn work(topology: &Topology, smt_speedup: f64) -> Self {
        let cpus: Vec<u32> = topology.online.iter().collect();
        let mut cores: Vec<u32> = Vec::new();
        let mut core = Vec::with_capacity(cpus.len());
        let mut threads: Vec<f64> = Vec::new();
        for &cpu in &cpus {
            let id = topology.cpu(cpu).and_then(|c| c.core).unwrap_or(cpu);
            let index = cores.iter().position(|&c| c == id).unwrap_or_else(|| {
                cores.push(id);
                threads.push(0.0);
                cores.len() - 1
            });
            threads[index] += 1.0;
            core.push(index);
        }
        let core_capacity = threads.iter().map(|&n| if n > 1.0 { smt_speedup.min(n) } else { n }).collect();
        Self { cpu_capacity: vec![1.0; cpus.len()], cpus, core, core_capacity }
    }

    /// Less what nobody here can have of each CPU: a hypervisor gives it to others. Parts of a CPU, 0 to 1.
    #[must_use]
    pub fn without(mut self, lost: impl Fn(u32) -> f64) -> Self {
        for (cpu, capacity) in self.cpus.iter().zip(&mut self.cpu_capacity) {
            *capacity = (1.0 - lost(*cpu)).clamp(0.0, 1.0);
        }
        self
    }
}

/// Why a problem is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FairError {
    #[error("{kind} {index}: weight {weight} is not above 0")]
    Weight {
        /// `group` or `task`.
        kind: &'static str,
        index: usize,
        weight: f64,
    },
    #[error("{kind} {index}: amount {amount} is not a number of CPUs")]
    Amount {
        /// `group` or `task`.
        kind: &'static str,
        index: usize,
        amount: f64,
    },
    #[error("{kind} {index}: its group must exist and come before it")]
    Parent {
        /// `group` or `task`.
        kind: &'static str,
        index: usize,
    },
}

/// What each gets, in CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    pub tasks: Vec<f64>,
    /// By group: the sum of what is below it.
    pub groups: Vec<f64>,
}

/// Solves for the fair shares.
///
/// ```
/// use evenkeel_base::Topology;
/// use evenkeel_model::fair::{Capacity, FairTask, solve};
/// let spin = |weight| FairTask { group: None, weight, wanted_cpus: f64::INFINITY, threads: 1, cpus: None };
/// // 8/15 of two CPUs is more than one: infeasible, so the largest gets 1 and 1:2:4 share the other CPU.
/// let machine = Capacity::time(&Topology::synthetic(1, 1, 2, 1));
/// let shares = solve(&machine, &[], &[spin(1.0), spin(2.0), spin(4.0), spin(8.0)]).unwrap();
/// assert!((shares.tasks[3] - 1.0).abs() < 1e-6 && (shares.tasks[2] - 4.0 / 7.0).abs() < 1e-6);
/// ```
pub fn solve(machine: &Capacity, groups: &[FairGroup], tasks: &[FairTask]) -> Result<Shares, FairError> {
    check(groups, tasks)?;
    let problem = Problem { machine, groups, tasks };
    // Rate of each task: the tree is filled top down. Tasks still growing share their parent's rate by weight.
    let mut given = vec![0.0; tasks.len()];
    let mut network = problem.network();
    let mut frozen = vec![false; tasks.len()];
    problem.fill(&mut network, &mut given, &mut frozen);
    let mut sums = vec![0.0; groups.len()];
    for (task, amount) in tasks.iter().zip(&given) {
        let mut at = task.group;
        while let Some(group) = at {
            sums[group] += amount;
            at = groups[group].parent;
        }
    }
    Ok(Shares { tasks: given, groups: sums })
}

fn check(groups: &[FairGroup], tasks: &[FairTask]) -> Result<(), FairError> {
    let weight_ok = |w: f64| w > 0.0 && w.is_finite();
    for (index, group) in groups.iter().enumerate() {
        if !weight_ok(group.weight) {
            return Err(FairError::Weight { kind: "group", index, weight: group.weight });
        }
        if let Some(amount) = group.quota_cpus
            && !(amount >= 0.0 && amount.is_finite())
        {
            return Err(FairError::Amount { kind: "group", index, amount });
        }
        if group.parent.is_some_and(|p| p >= index) {
            return Err(FairError::Parent { kind: "group", index });
        }
    }
    for (index, task) in tasks.iter().enumerate() {
        if !weight_ok(task.weight) {
            return Err(FairError::Weight { kind: "task", index, weight: task.weight });
        }
        if task.wanted_cpus.is_nan() || task.wanted_cpus < 0.0 {
            return Err(FairError::Amount { kind: "task", index, amount: task.wanted_cpus });
        }
        if task.group.is_some_and(|g| g >= groups.len()) {
            return Err(FairError::Parent { kind: "task", index });
        }
    }
    Ok(())
}

struct Problem<'a> {
    machine: &'a Capacity,
    groups: &'a [FairGroup],
    tasks: &'a [FairTask],
}

/// Nodes of the flow network: source, tasks, groups of tasks with a quota, CPUs, cores, sink.
struct Built {
    network: Network,
    /// Edge from the source into each task: its capacity is what the task is to get.
    demand: Vec<usize>,
}

impl Problem<'_> {
    /// Source → group (quota) → … → task (demand) → CPUs → core → sink. A thread uses one CPU at a time, so a task takes no more
    /// than its threads in all; that one thread runs in one place at a time is then feasible by time slicing
    /// (McNaughton's rule).
    fn network(&self) -> Built {
        let (groups, tasks, cpus) = (self.groups.len(), self.tasks.len(), self.machine.cpus.len());
        let cores = self.machine.core_capacity.len();
        let node_group = |g: usize| 2 + g;
        let node_task = |t: usize| 2 + groups + t;
        let node_cpu = |c: usize| 2 + groups + tasks + c;
        let node_core = |c: usize| 2 + groups + tasks + cpus + c;
        let mut network = Network::new(2 + groups + tasks + cpus + cores);
        for (index, group) in self.groups.iter().enumerate() {
            let from = group.parent.map_or(0, node_group);
            network.edge(from, node_group(index), group.quota_cpus.unwrap_or(f64::INFINITY));
        }
        let mut demand = Vec::with_capacity(tasks);
        for (index, task) in self.tasks.iter().enumerate() {
            let from = task.group.map_or(0, node_group);
            demand.push(network.edge(from, node_task(index), 0.0));
            let allowed = self.allowed(task);
            let threads = f64::from(task.threads);
            for (c, cpu) in self.machine.cpus.iter().enumerate() {
                if allowed.as_ref().is_none_or(|set| set.contains(*cpu)) {
                    network.edge(node_task(index), node_cpu(c), threads.min(1.0));
                }
            }
        }
        for (c, &core) in self.machine.core.iter().enumerate() {
            network.edge(node_cpu(c), node_core(core), self.machine.cpu_capacity[c]);
        }
        for (core, &capacity) in self.machine.core_capacity.iter().enumerate() {
            network.edge(node_core(core), 1, capacity);
        }
        Built { network, demand }
    }

    fn allowed(&self, task: &FairTask) -> Option<CpuSet> {
        let mut cpus = task.cpus.clone();
        let mut at = task.group;
        while let Some(group) = at {
            if let Some(own) = &self.groups[group].cpus {
                cpus = Some(cpus.map_or_else(|| own.clone(), |c| c.intersection(own)));
            }
            at = self.groups[group].parent;
        }
        cpus
    }

    fn cap(&self, task: usize) -> f64 {
        let t = &self.tasks[task];
        t.wanted_cpus.min(f64::from(t.threads))
    }

    /// Each growing task's part of a unit given to the root: weights among the siblings that still grow, level by level.
    fn rates(&self, frozen: &[bool]) -> Vec<f64> {
        let mut active = vec![0usize; self.groups.len()];
        for (task, &frozen) in self.tasks.iter().zip(frozen) {
            if !frozen && let Some(group) = task.group {
                active[group] += 1;
            }
        }
        for group in (0..self.groups.len()).rev() {
            if active[group] > 0
                && let Some(parent) = self.groups[group].parent
            {
                active[parent] += active[group];
            }
        }
        // Index 0 is the root.
        let mut sums = vec![0.0; self.groups.len() + 1];
        let slot = |parent: Option<usize>| parent.map_or(0, |p| p + 1);
        for (group, &active) in self.groups.iter().zip(&active) {
            if active > 0 {
                sums[slot(group.parent)] += group.weight;
            }
        }
        for (task, &frozen) in self.tasks.iter().zip(frozen) {
            if !frozen {
                sums[slot(task.group)] += task.weight;
            }
        }
        let mut part = vec![1.0; self.groups.len() + 1];
        for (index, group) in self.groups.iter().enumerate() {
            let parent = slot(group.parent);
            part[index + 1] =
                if sums[parent] > 0.0 { part[parent] * group.weight / sums[parent] } else { 0.0 };
        }
        self.tasks
            .iter()
            .zip(frozen)
            .map(|(t, &frozen)| {
                let parent = slot(t.group);
                if frozen || sums[parent] <= 0.0 { 0.0 } else { part[parent] * t.weight / sums[parent] }
            })
            .collect()
    }

    /// Progressive filling over the whole tree. A group's children keep its level together: a child that is frozen leaves its
    /// rate to its siblings, so the group's own rate is unchanged until all of its children are frozen.
    fn fill(&self, built: &mut Built, given: &mut [f64], frozen: &mut [bool]) {
        // The level of a group is what it has got per weight; siblings that could have had more are at the same level.
        for (index, frozen) in frozen.iter_mut().enumerate() {
            *frozen = self.cap(index) <= EPSILON;
        }
        while frozen.iter().any(|f| !f) {
            let rates = self.rates(frozen);
            // The largest common step: bounded by wishes directly, by CPUs and quotas through the flow.
            let mut step = f64::INFINITY;
            for (index, &rate) in rates.iter().enumerate() {
                if rate > 0.0 {
                    step = step.min((self.cap(index) - given[index]) / rate);
                }
            }
            let step = self.feasible_step(built, given, &rates, step);
            for (amount, rate) in given.iter_mut().zip(&rates) {
                *amount += step * rate;
            }
            let before = frozen.iter().filter(|f| **f).count();
            self.freeze(built, given, frozen);
            if frozen.iter().filter(|f| **f).count() == before {
                // Rounding: nobody was recognised as full although no step is possible; the fastest is taken for full.
                let fastest = rates.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
                if step <= EPSILON
                    && let Some(index) = fastest
                {
                    frozen[index] = true;
                }
            }
        }
    }

    fn flow(&self, built: &mut Built, amounts: impl Iterator<Item = f64>) -> f64 {
        for (&edge, amount) in built.demand.iter().zip(amounts) {
            built.network.set_capacity(edge, amount);
        }
        built.network.max_flow(0, 1)
    }

    /// The largest step up to `most` for which all amounts fit, by Newton's method on the cuts (each cut gives a linear
    /// bound; the tightest is reached after finitely many).
    fn feasible_step(&self, built: &mut Built, given: &[f64], rates: &[f64], most: f64) -> f64 {
        let mut step = most.min(self.machine.core_capacity.iter().sum::<f64>() / 1e-3);
        for _ in 0..100 {
            let total: f64 = given.iter().zip(rates).map(|(g, r)| g + step * r).sum();
            let flow = self.flow(built, given.iter().zip(rates).map(|(g, r)| g + step * r));
            if flow >= total - EPSILON * (1.0 + total) {
                return step.max(0.0);
            }
            // Tasks whose demand edge is not in the cut are short; the rest of the cut is constant.
            let side = built.network.source_side(0);
            let (mut fixed, mut growing, mut rate_cut) = (0.0, 0.0, 0.0);
            for (index, &edge) in built.demand.iter().enumerate() {
                let (from, to) = built.network.ends(edge);
                if side[from] && !side[to] {
                    growing += given[index];
                    rate_cut += rates[index];
                }
            }
            for (from, to, capacity, is_demand) in built.network.edges(&built.demand) {
                if side[from] && !side[to] && !is_demand {
                    fixed += capacity;
                }
            }
            // total(step) <= fixed + growing + step * rate_cut
            let all: f64 = given.iter().sum();
            let rate_all: f64 = rates.iter().sum();
            let slope = rate_all - rate_cut;
            if slope <= 1e-15 {
                return step.max(0.0);
            }
            let next = ((fixed + growing - all) / slope).max(0.0);
            if next >= step - EPSILON * step.max(1.0) {
                return next.min(step).max(0.0);
            }
            step = next;
        }
        step.max(0.0)
    }

    /// Freezes every task that cannot have more while no task has less.
    fn freeze(&self, built: &mut Built, given: &[f64], frozen: &mut [bool]) {
        self.flow(built, given.iter().copied());
        let reach = built.network.reaches_sink(1);
        for (index, frozen) in frozen.iter_mut().enumerate() {
            if *frozen {
                continue;
            }
            let full = given[index] >= self.cap(index) - EPSILON;
            let (from, to) = built.network.ends(built.demand[index]);
            // More needs room below (CPUs) and above (every quota on the way from the source).
            let room_above = built.network.residual_from_source(0, from);
            if full || !reach[to] || !room_above {
                *frozen = true;
            }
        }
    }
}
