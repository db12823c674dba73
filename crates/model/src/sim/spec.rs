//! What is simulated: machine, kernel, groups, tasks and their loads.

use evenkeel_base::facts::release_version;
use evenkeel_base::{CpuQuota, CpuSet, SchedAttr, Topology};

/// Everything one simulation needs. Deterministic: the same scenario gives the same report.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub machine: Machine,
    /// The scheduler's version and constants.
    pub kernel: Kernel,
    /// Control groups; a parent comes before its children.
    pub groups: Vec<Group>,
    pub tasks: Vec<Task>,
    /// Shared work that [`Load::Counter`] threads take items from: the cost of each item, nanoseconds of full-speed CPU.
    pub counters: Vec<Vec<u32>>,
    /// Settings changed while running, by ascending time.
    pub changes: Vec<Timed>,
    /// Simulated time, nanoseconds.
    pub duration_ns: u64,
    /// Sums (got, waits, switches) are counted from here on, so that a start does not colour them.
    pub measure_from_ns: u64,
    pub seed: u64,
    /// Stop early once every task that can end has ended; loads that go on for ever do not count.
    pub stop_when_done: bool,
}

/// The hardware and what the hypervisor takes of it.
#[derive(Debug, Clone)]
pub struct Machine {
    /// CPUs and how they relate.
    pub topology: Topology,
    /// Work two busy siblings of one core do together, relative to one alone: 1.0 (siblings add nothing) to 2.0.
    pub smt_speedup: f64,
    /// Work per CPU second relative to the reference the loads are stated for.
    pub clock: f64,
    pub steal: Steal,
    /// Kernel threads that wake so often a second on each CPU, at random, for [`Machine::background_ns`] each; they
    /// are not part of the report. About 20 on an idle virtual machine.
    pub background_per_s: f64,
    /// How long each of them runs, nanoseconds.
    pub background_ns: u64,
    /// Work lost at each context switch, nanoseconds.
    pub switch_cost_ns: u64,
    /// Work lost when a task starts on another CPU than before (cold caches), nanoseconds.
    pub migration_cost_ns: u64,
}

/// Time the hypervisor keeps from every CPU of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Steal {
    None,
    /// A fixed share of the time in which a CPU is wanted, 0..1.
    Constant(f64),
    /// A burst rule: demanded use over `window_ns` above `above` makes `stolen` of the time disappear, until the
    /// demand falls below `below`.
    Window {
        /// Length of the window, nanoseconds.
        window_ns: u64,
        /// Share of one CPU (0..1, of the machine's CPUs together) that starts the stealing.
        above: f64,
        /// Share below which it ends.
        below: f64,
        /// Share stolen meanwhile.
        stolen: f64,
    },
}

/// Generation of the fair scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// Completely fair scheduler, to Linux 6.5.
    Cfs,
    /// Earliest eligible virtual deadline first, Linux 6.6 to 6.11: lag and run-to-parity, one slice for all.
    Eevdf,
    /// Linux 6.12 to 6.16: slices of one's own, delayed dequeue, short slices preempt.
    EevdfSlices,
    /// Linux 6.17 and later: a running task is protected for the shortest slice queued next to it.
    EevdfMinSlice,
}

/// The scheduler's version and constants.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Rules in force.
    pub generation: Generation,
    /// Timer ticks a second (`CONFIG_HZ`): preemption by used-up slices happens at ticks only.
    pub hz: u32,
    /// `base_slice_ns` (EEVDF) or `min_granularity_ns` (CFS) as found on the host; `None`: what the kernel computes from
    /// the number of CPUs.
    pub base_slice_ns: Option<u64>,
    /// How late a sleeping non-real-time task is woken (`PR_SET_TIMERSLACK`, default 50 us).
    pub timer_slack_ns: u64,
    /// A CPU that becomes idle looks for work elsewhere only as often as that has paid lately (`NI_RANDOM`, Linux 6.19).
    pub proportional_newidle: bool,
    /// A waking task looks at the fewer other CPUs the busier their cache is (`SIS_UTIL`, Linux 6.0).
    pub limited_idle_search: bool,
}

impl Kernel {
    /// Defaults of a release such as 6.1 or 6.18 (major, minor).
    pub fn release(major: u32, minor: u32) -> Self {
        let generation = match (major, minor) {
            (..6, _) | (6, ..6) => Generation::Cfs,
            (6, 6..12) => Generation::Eevdf,
            (6, 12..17) => Generation::EevdfSlices,
            _ => Generation::EevdfMinSlice,
        };
        let proportional_newidle = (major, minor) >= (6, 19);
        Self {
            generation,
            hz: 250,
            base_slice_ns: None,
            timer_slack_ns: 50_000,
            proportional_newidle,
            limited_idle_search: major >= 6,
        }
    }

    /// Defaults of a release as the kernel tells it, such as `6.18.44-cloud-amd64`; `None` for another text.
    pub fn of(release: &str) -> Option<Self> {
        release_version(release).map(|(major, minor)| Self::release(major, minor))
    }

    /// Base slice or minimum granularity for a number of CPUs: 0.75 ms (0.70 ms from 6.15 on, here with
    /// [`Generation::EevdfMinSlice`]) times `1 + log2(min(cpus, 8))`, `get_update_sysctl_factor` in `kernel/sched/fair.c`.
    pub fn granularity_ns(&self, cpus: usize) -> f64 {
        let base = if self.generation == Generation::EevdfMinSlice { 700_000.0 } else { 750_000.0 };
        match self.base_slice_ns {
            Some(ns) => ns as f64,
            None => base * scale(cpus),
        }
    }
}

/// `1 + ilog2(min(cpus, 8))`: by which the kernel scales its time constants.
pub(super) fn scale(cpus: usize) -> f64 {
    f64::from(1 + cpus.clamp(1, 8).ilog2())
}

#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub name: String,
    /// Index of the parent among the scenario's groups; `None` is the root.
    pub parent: Option<usize>,
    /// Load weight (1024 is the default of both cgroup versions).
    pub weight: f64,
    pub quota: CpuQuota,
    /// CPUs its tasks may use; `None` is all.
    pub cpus: Option<CpuSet>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub name: String,
    /// Index of its group; `None` is the root.
    pub group: Option<usize>,
    /// Class, nice and slice.
    pub attr: SchedAttr,
    /// CPUs it may use; `None` is all of its group.
    pub cpus: Option<CpuSet>,
    pub load: Load,
    pub start_ns: u64,
    /// When a load that would go on for ever ends, nanoseconds: a duty load at the end of the cycle it is in then.
    pub until_ns: Option<u64>,
    /// CPU time after which it reads its own CPU clock, nanoseconds, again and again; `None`: never. Each reading brings
    /// the scheduler's account up to date, so that a used-up slice is noticed there and not at the next tick. The
    /// built-in loads: 20 us for closed and open ones, 1 ms for `spin`, 5 ms for wall ones.
    pub clock_read_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// Works for a part of each period and sleeps the rest.
    Duty {
        /// CPU wanted, percent of one CPU.
        percent: f64,
        /// Mean period, nanoseconds.
        period_ns: u64,
        /// Each period is drawn uniformly within plus or minus this share of the mean (0..1).
        jitter: f64,
        /// How work and waiting relate.
        kind: DutyKind,
    },
    /// Always wants the CPU.
    Spin,
    /// Runs of a fixed wall-clock length, back to back, each counting events (`sysbench cpu`).
    Runs {
        /// Length of one run, nanoseconds of wall clock from its first instruction.
        run_ns: u64,
        /// How many; the task ends after them.
        runs: u32,
        /// Work of one event, nanoseconds of full-speed CPU.
        event_ns: u64,
        /// Time around each run: work, nanoseconds of CPU.
        overhead_work_ns: u64,
        /// Time around each run: sleep, nanoseconds.
        overhead_sleep_ns: u64,
    },
    /// A fixed amount of work, then the end.
    Job {
        /// Nanoseconds of full-speed CPU.
        work_ns: u64,
    },
    /// Takes items from a shared counter until none is left; then, when all that share it are through, again.
    Counter {
        /// Index among the scenario's counters.
        counter: usize,
        /// How often all items are taken; every task of a counter has the same number.
        rounds: u32,
    },
    /// Sleeps for ever.
    Idle,
}

/// How a duty load counts its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DutyKind {
    /// Spins until a wall-clock deadline counted from its first instruction in the cycle: time lost to others is lost.
    Wall,
    /// Consumes a fixed CPU time, then sleeps: waiting stretches the period.
    Closed,
    /// Work arrives at fixed times and waits: a backlog is kept.
    Open,
}

/// A change of settings while running.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    pub at_ns: u64,
    pub change: Setting,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Class, nice and slice of a task.
    Sched(usize, SchedAttr),
    /// CPUs of a task; `None` is all of its group.
    Affinity(usize, Option<CpuSet>),
    /// Load weight of a group.
    Weight(usize, f64),
}

impl Scenario {
    /// A machine of `cpus` identical CPUs sharing one cache, Linux 6.18, no tasks, ten seconds of which the first is
    /// not counted.
    pub fn new(cpus: u32) -> Self {
        Self {
            machine: Machine::new(Topology::synthetic(1, 1, cpus, 1)),
            kernel: Kernel::release(6, 18),
            groups: Vec::new(),
            tasks: Vec::new(),
            counters: Vec::new(),
            changes: Vec::new(),
            duration_ns: 10_000_000_000,
            measure_from_ns: 1_000_000_000,
            seed: 1,
            stop_when_done: false,
        }
    }
}

impl Machine {
    /// A machine with the costs of today's servers: 1.5 us a switch, 5 us a migration, siblings adding 25 %.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            smt_speedup: 1.25,
            clock: 1.0,
            steal: Steal::None,
            background_per_s: 0.0,
            background_ns: 30_000,
            switch_cost_ns: 1_500,
            migration_cost_ns: 5_000,
        }
    }
}

impl Group {
    /// A group of default weight without limits.
    pub fn new(name: impl Into<String>, parent: Option<usize>) -> Self {
        Self { name: name.into(), parent, weight: 1024.0, quota: CpuQuota::UNLIMITED, cpus: None }
    }
}

impl Task {
    pub(super) fn ends(&self) -> bool {
        self.until_ns.is_some()
            || matches!(self.load, Load::Runs { .. } | Load::Job { .. } | Load::Counter { .. })
    }

    /// A default task that starts at once.
    pub fn new(name: impl Into<String>, group: Option<usize>, load: Load) -> Self {
        let clock_read_ns = match load {
            Load::Duty { kind: DutyKind::Closed | DutyKind::Open, .. } => Some(20_000),
            Load::Duty { kind: DutyKind::Wall, .. } => Some(5_000_000),
            Load::Spin => Some(1_000_000),
            _ => None,
        };
        Self {
            name: name.into(),
            group,
            attr: SchedAttr::DEFAULT,
            cpus: None,
            load,
            start_ns: 0,
            until_ns: None,
            clock_read_ns,
        }
    }
}
