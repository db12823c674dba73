//! The simulator's state: CPUs, run queues, entities, tasks.

use evenkeel_base::SchedPolicy;
use rand_pcg::Pcg32;

use super::pelt::Average;
use super::report::{Histogram, Run};
use super::spec::{DutyKind, Load};

/// No entity, task or queue.
pub(super) const NONE: u32 = u32::MAX;
/// Weight of nice 0.
pub(super) const NICE_0: f64 = 1024.0;

/// Something the fair class queues: a task, or a group's share of one CPU. Virtual times are nanoseconds at weight 1024.
#[derive(Debug, Clone, Default)]
pub(super) struct Entity {
    pub weight: f64,
    pub vruntime: f64,
    /// Virtual deadline (EEVDF).
    pub deadline: f64,
    /// Lag when it was last dequeued (EEVDF).
    pub vlag: f64,
    /// Requested slice, nanoseconds.
    pub slice: f64,
    /// Virtual time up to which it is protected from preemption (EEVDF).
    pub vprot: f64,
    /// Time it had run when it was last picked, and runs since (CFS), nanoseconds.
    pub exec: f64,
    pub exec_at_pick: f64,
    /// Queue it belongs to.
    pub queue: u32,
    /// Queue it owns; `NONE` for a task.
    pub owns: u32,
    /// Whether it is queued (the running one is).
    pub queued: bool,
    /// Whether it sleeps but is still queued until its lag is used up (6.12).
    pub delayed: bool,
    /// The slice is its own, not the kernel's.
    pub custom_slice: bool,
    pub idle: bool,
}

/// Fair run queue of a group on a CPU.
#[derive(Debug, Clone, Default)]
pub(super) struct RunQueue {
    /// Entities queued, the running one included, in no order.
    pub entities: Vec<u32>,
    /// The one running (or leading to the one running).
    pub current: u32,
    /// Sum of the weights.
    pub weight: f64,
    /// Virtual time to start from when empty (EEVDF), `min_vruntime` (CFS).
    pub zero: f64,
    /// Entity of the group in the parent's queue; `NONE` at the root.
    pub owner: u32,
    pub cpu: u32,
    /// Group; `NONE` at the root.
    pub group: u32,
    /// Runnable tasks below, those below a throttled queue not counted above it.
    pub tasks: u32,
    /// Decaying average of the weight; root: of the CPU's load.
    pub load: Average,
    /// What this queue last added to the group's sum.
    pub contribution: f64,
    /// When that was.
    pub contributed_ns: u64,
    /// Bandwidth: whether limited, what is left here, whether throttled, since when, for how long in all.
    pub limited: bool,
    pub runtime: f64,
    pub throttled: bool,
    pub throttled_at: u64,
    pub throttled_ns: u64,
}

/// A group over all CPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupState {
    pub parent: u32,
    pub weight: f64,
    /// Sum of its queues' load contributions (`task_group::load_avg`).
    pub load: f64,
    /// Queues that contribute, and when those left behind were last looked at.
    pub contributing: Vec<u32>,
    pub refreshed_ns: u64,
    /// Bandwidth: quota, period, burst in nanoseconds; what is left in the pool.
    pub quota_ns: Option<f64>,
    pub period_ns: u64,
    pub burst_ns: f64,
    pub pool: f64,
    pub throttled: Vec<u32>,
    /// Periods passed and periods in which it was throttled.
    pub periods: u64,
    pub throttled_periods: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Cpu {
    /// Running task or `NONE`.
    pub current: u32,
    /// Up to when its running task is accounted.
    pub since: u64,
    /// CPU time per wall time (1 - steal), and work per wall time.
    pub rate: f64,
    pub work_rate: f64,
    /// Must pick again.
    pub resched: bool,
    /// Time and ticket of its one pending event.
    pub event_at: u64,
    pub ticket: u64,
    /// Real-time tasks queued (running one included): priority, order, task.
    pub rt: Vec<(u8, i64, u32)>,
    /// Decaying averages: runnable tasks and use by the fair class, both times 1024.
    pub runnable: Average,
    pub util: Average,
    /// Sum of what its runnable fair tasks are expected to use (`util_est`), of 1024.
    pub util_est: f64,
    /// Runnable SCHED_IDLE tasks.
    pub idle_tasks: u32,
    /// Time with a task, nanoseconds.
    pub busy: f64,
    /// The same, taken by the steal rule every second.
    pub demanded: f64,
    /// New-idle balancing: calls, weighted successes, and their ratio of 1024, per level.
    pub newidle: [NewIdle; 3],
    /// Last balancing failures.
    pub failed: u32,
    /// The same of this CPU while it idles.
    pub idle_failed: u32,
    /// Others on its core, on its cache, and everywhere.
    pub spans: [Vec<u32>; 3],
    /// Number of CPUs, itself included, that share its cache.
    pub llc: u32,
    pub balance_ticket: u64,
    /// CPUs of its cache that a wake-up may look at for an idle one (`nr_idle_scan`).
    pub scan: u32,
}

/// How often new-idle balancing paid (`update_newidle_stats`).
#[derive(Debug, Clone, Copy)]
pub(super) struct NewIdle {
    pub calls: u32,
    pub successes: u32,
    pub ratio: u32,
}

impl Default for NewIdle {
    /// As a new scheduling domain has it.
    fn default() -> Self {
        Self { calls: 512, successes: 256, ratio: 512 }
    }
}

impl NewIdle {
    /// Counts one call.
    pub fn count(&mut self, success: u32) {
        self.calls += 1;
        self.successes += success;
        if self.calls >= 1024 {
            self.ratio = self.successes;
            self.calls /= 2;
            self.successes /= 2;
        }
    }
}

/// What the running task heads for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// Not decided before it runs: wall-clock work of this length.
    Begin(f64),
    /// Until a moment.
    Until(u64),
    /// CPU time.
    Cpu(f64),
    /// Work: nanoseconds at full speed.
    Work(f64),
    /// Work in events until the first event that ends after a moment: event size, work done, the moment.
    Events(f64, f64, u64),
    Never,
}

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Not started yet, or asleep.
    Asleep,
    Ready,
    Ended,
}

#[derive(Debug, Clone, Default)]
pub(super) struct CounterState {
    /// The next item.
    pub next: usize,
    /// Tasks that may still take items.
    pub busy: u32,
    /// Tasks that found none left and wait for the others.
    pub through: Vec<u32>,
    /// When each round was done, nanoseconds.
    pub rounds: Vec<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct TaskState {
    pub load: Load,
    pub behaviour: Behaviour,
    pub goal: Goal,
    pub status: Status,
    pub policy: SchedPolicy,
    pub priority: u8,
    pub group: u32,
    pub cpu: u32,
    /// Allowed CPUs as words; empty means all.
    pub allowed: Vec<u64>,
    pub allowed_count: u32,
    pub rng: Pcg32,
    pub ticket: u64,
    /// Since when it waits, and its queues' throttled time then.
    pub waiting_since: u64,
    pub throttle_mark: u64,
    pub recent_cpu: u32,
    pub last_ran: u64,
    /// Decaying average of its runnable weight.
    pub load_avg: Average,
    /// Decaying average of its running, times 1024, and what it is expected to reach when it runs (`util_est`).
    pub util: Average,
    pub util_est: f64,
    /// CPU it was on before its last wake-up (`recent_used_cpu`).
    pub used_cpu: u32,
    pub rr_left: f64,
    // Counted.
    pub got: f64,
    pub work: f64,
    pub waited: u64,
    pub throttled: u64,
    pub waits: Histogram,
    pub voluntary: u64,
    pub involuntary: u64,
    pub migrations: u64,
    pub cycles: u64,
    pub wanted: f64,
    pub runs: Vec<Run>,
    pub ended_ns: Option<u64>,
    pub first_ran_ns: Option<u64>,
}

/// The part of a load that changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Behaviour {
    Duty { kind: DutyKind, rest_ns: u64, arrival_ns: u64 },
    Runs { phase: Phase, done: u32, started_ns: u64, first_ns: u64, got: f64, waited: u64 },
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Setup,
    Running,
    Between,
}

impl TaskState {
    pub fn may_run_on(&self, cpu: u32) -> bool {
        self.allowed.is_empty()
            || self.allowed.get(cpu as usize / 64).is_some_and(|w| w & (1 << (cpu % 64)) != 0)
    }
}
