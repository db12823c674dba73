//! Moving tasks between CPUs: new-idle, no-tick-idle and periodic load balancing (`sched_balance_newidle`,
//! `sched_balance_rq`), real-time push and pull.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::engine::{RR_NS, Sim};
use super::state::{NONE, Status};

/// A task that ran on its CPU this recently is not pulled away (`sysctl_sched_migration_cost`, 0.5 ms).
const HOT_NS: u64 = 500_000;
/// `imbalance_pct` within a cache.
const IMBALANCE: f64 = 1.17;
/// `busy_factor`: a busy CPU balances this much more rarely.
const BUSY_FACTOR: u64 = 16;
/// Failures after which an idle CPU takes a running task where none that waits may come (`cache_nice_tries + 2`).
const ACTIVE_AFTER: u32 = 3;

/// How full a CPU is (`enum group_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fullness {
    Spare,
    Busy,
    Overloaded,
}

/// How much is to be moved.
#[derive(Debug, Clone, Copy)]
struct Moved {
    /// Tasks at most.
    tasks: u32,
    /// Load at most; infinite when tasks count.
    load: f64,
    /// Balancing failures before.
    failed: u32,
}

impl Moved {
    /// One task, whatever its load.
    const ONE: Self = Self { tasks: 1, load: f64::INFINITY, failed: 0 };
}

/// What balancing keeps of all CPUs.
pub(super) struct Balance {
    /// Idle CPUs, a bit each, and how many they are.
    idle: Vec<u64>,
    idle_count: u32,
    /// Next kick of the idle CPUs, and the ticks from one to the next.
    kick_at: u64,
    kick_backoff: u64,
    /// Some CPU had two runnable tasks and nobody has looked since (`root_domain::overloaded`).
    pub overloaded: bool,
    /// Order in which real-time tasks were queued last.
    rt_order: i64,
    rng: Pcg32,
}

impl Balance {
    /// Of a host on which no CPU is idle yet.
    pub fn new(cpus: usize, seed: u64) -> Self {
        Self {
            idle: vec![0; cpus.div_ceil(64)],
            idle_count: 0,
            kick_at: 0,
            kick_backoff: 1,
            overloaded: false,
            rt_order: 0,
            rng: Pcg32::seed_from_u64(seed ^ 0xd1ce),
        }
    }
}

impl Sim<'_> {
    pub(super) fn is_idle(&self, cpu: u32) -> bool {
        self.balance.idle[cpu as usize / 64] & (1 << (cpu % 64)) != 0
    }

    pub(super) fn set_idle(&mut self, cpu: u32, idle: bool) {
        let (word, bit) = (cpu as usize / 64, 1u64 << (cpu % 64));
        if idle && self.balance.idle[word] & bit == 0 {
            self.balance.idle[word] |= bit;
            self.balance.idle_count += 1;
        } else if !idle && self.balance.idle[word] & bit != 0 {
            self.balance.idle[word] &= !bit;
            self.balance.idle_count -= 1;
        }
    }

    /// Idle with nothing on its way to it.
    pub(super) fn available(&self, cpu: u32) -> bool {
        self.is_idle(cpu) && self.queues[cpu as usize].tasks == 0 && self.cpus[cpu as usize].rt.is_empty()
    }

    pub(super) fn core_idle(&self, cpu: u32) -> bool {
        self.available(cpu) && self.cpus[cpu as usize].spans[0].iter().all(|&s| self.available(s))
    }

    /// A CPU became idle: pull one waiting task. Returns whether one came.
    pub(super) fn pull_for_idle(&mut self, cpu: u32) -> bool {
        if self.pull_rt(cpu) {
            return true;
        }
        if !self.balance.overloaded {
            return false;
        }
        let mut looked_everywhere = true;
        let mut found = false;
        for level in 0..3 {
            if self.cpus[cpu as usize].spans[level].is_empty() {
                continue;
            }
            let mut weight = 1;
            if self.scenario.kernel.proportional_newidle {
                let dice = self.balance.rng.random_range(0..1024);
                let stats = &mut self.cpus[cpu as usize].newidle[level];
                weight = 1 + stats.ratio;
                if dice > weight {
                    stats.count(0);
                    looked_everywhere = false;
                    continue;
                }
                weight = (1024 + weight / 2) / weight;
            }
            let from = self.busiest(cpu, level, 2);
            found |= from.is_some();
            let pulled = from.is_some_and(|from| self.pull(cpu, from, Moved::ONE) > 0);
            self.cpus[cpu as usize].newidle[level].count(if pulled { weight } else { 0 });
            if pulled {
                return true;
            }
        }
        if looked_everywhere && !found {
            self.balance.overloaded = false;
        }
        false
    }

    /// Whether any task of a queue may run on a CPU (`LBF_ALL_PINNED`).
    fn has_task_for(&self, queue: u32, cpu: u32) -> bool {
        let queue = &self.queues[queue as usize];
        !queue.throttled
            && queue.entities.iter().any(|&e| match self.entities[e as usize].owns {
                NONE => self.tasks[e as usize].may_run_on(cpu) && !self.entities[e as usize].delayed,
                owned => self.has_task_for(owned, cpu),
            })
    }

    /// The CPU with most runnable tasks in a span, at least `least`, one of which may run here.
    fn busiest(&self, cpu: u32, level: usize, least: u32) -> Option<u32> {
        let mut best = None;
        let mut most = least - 1;
        for &other in &self.cpus[cpu as usize].spans[level] {
            let tasks = self.runnable(other);
            if tasks > most && self.has_task_for(other, cpu) {
                (most, best) = (tasks, Some(other));
            }
        }
        best
    }

    /// Moves waiting tasks from one CPU to another; those that waited longest first (`detach_tasks`).
    fn pull(&mut self, to: u32, from: u32, limit: Moved) -> u32 {
        self.update_current(from);
        // What could not be moved for being hot or too large may be after some failures.
        let mut waiting = self.waiting(from, to, limit.failed > 1);
        waiting.sort_unstable();
        let mut left = limit.load;
        let mut moved = 0;
        for (_, task) in waiting {
            if moved >= limit.tasks || left <= 0.0 {
                break;
            }
            if limit.load.is_finite() {
                let load = self.task_load(task);
                if load / f64::from(1u32 << limit.failed.min(16)) > left {
                    continue;
                }
                left -= load;
            }
            let before = self.throttle_clock(task);
            self.dequeue_fair(task, false);
            self.move_to(task, to);
            self.enqueue_fair(task, false);
            let after = self.throttle_clock(task);
            let t = &mut self.tasks[task as usize];
            t.throttled += before.saturating_sub(t.throttle_mark);
            t.throttle_mark = after;
            moved += 1;
        }
        if moved > 0 {
            self.mark_program(from);
        }
        moved
    }

    /// Load of a task as seen from the root (`task_h_load`).
    fn task_load(&mut self, task: u32) -> f64 {
        let now = self.now;
        let mut load = self.tasks[task as usize].load_avg.read(now);
        let mut queue = self.entities[task as usize].queue;
        loop {
            let q = &self.queues[queue as usize];
            if q.owner == NONE {
                return load;
            }
            let owner = &self.entities[q.owner as usize];
            load *= owner.weight / q.weight.max(1.0);
            queue = owner.queue;
        }
    }

    /// Tasks that wait on a CPU and may be moved to another, with when they ran.
    fn waiting(&self, cpu: u32, to: u32, hot: bool) -> Vec<(u64, u32)> {
        let (mut stack, mut out) = (vec![cpu], Vec::new());
        let running = self.cpus[cpu as usize].current;
        while let Some(queue) = stack.pop() {
            let q = &self.queues[queue as usize];
            if q.throttled {
                continue;
            }
            for &e in &q.entities {
                let ent = &self.entities[e as usize];
                if ent.owns != NONE {
                    stack.push(ent.owns);
                } else if e != running && !ent.delayed {
                    let t = &self.tasks[e as usize];
                    let cold = hot || self.now.saturating_sub(t.last_ran) >= HOT_NS;
                    let target = self.queue_of(t.group, to);
                    if t.may_run_on(to) && (cold || ent.idle) && !self.queues[target as usize].throttled {
                        out.push((t.last_ran, e));
                    }
                }
            }
        }
        out
    }

    /// A CPU has tasks waiting while another is idle: its next tick asks the idle ones to pull (`nohz_balancer_kick`).
    pub(super) fn check_overload(&mut self, cpu: u32) {
        if self.balance.idle_count > 0 && self.runnable(cpu) >= 2 && self.balance.kick_at <= self.now {
            let at = (self.now / self.tuning.tick_ns + self.balance.kick_backoff) * self.tuning.tick_ns;
            self.balance.kick_at = at;
            self.queue.push(at, super::queue::Event::Kick);
        }
    }

    pub(super) fn kick_idle(&mut self) {
        let mut helped = false;
        let mut overloaded = NONE;
        for word in 0..self.balance.idle.len() {
            let mut bits = self.balance.idle[word];
            while bits != 0 {
                let cpu = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if !self.available(cpu) {
                    continue;
                }
                self.update_scan(cpu);
                let failed = std::mem::take(&mut self.cpus[cpu as usize].idle_failed);
                for level in 0..3 {
                    if let Some(from) = self.busiest(cpu, level, 2) {
                        overloaded = from;
                        if self.pull(cpu, from, Moved::ONE) > 0
                            || failed >= ACTIVE_AFTER
                                && self.waiting(from, cpu, true).is_empty()
                                && self.take_running(cpu, from)
                        {
                            self.cpus[cpu as usize].idle_failed = 0;
                            self.mark_resched(cpu);
                            helped = true;
                            break;
                        }
                        self.cpus[cpu as usize].idle_failed = failed + 1;
                    }
                }
                self.spread_cores(cpu);
            }
        }
        self.balance.kick_backoff = if helped { 1 } else { (self.balance.kick_backoff * 2).min(16) };
        if overloaded != NONE {
            self.check_overload(overloaded);
        }
    }

    /// An idle core takes the running task of a core whose siblings are both busy (`prefer_sibling`, active balancing).
    fn spread_cores(&mut self, cpu: u32) {
        if self.cpus[cpu as usize].spans[0].is_empty() || !self.core_idle(cpu) {
            return;
        }
        let others = self.cpus[cpu as usize].spans[1].clone();
        for from in others {
            let shared = self.cpus[from as usize].spans[0].iter().any(|&s| !self.is_idle(s));
            if shared && self.take_running(cpu, from) {
                return;
            }
        }
    }

    /// Moves the task that runs on another CPU to an idle one, where it may run (`active_load_balance_cpu_stop`).
    fn take_running(&mut self, cpu: u32, from: u32) -> bool {
        let task = self.cpus[from as usize].current;
        let Some(t) = self.tasks.get(task as usize).filter(|t| t.may_run_on(cpu)) else { return false };
        let throttled = self.queues[self.queue_of(t.group, cpu) as usize].throttled;
        if !t.policy.is_fair() || t.status != Status::Ready || throttled {
            return false;
        }
        self.update_current(from);
        self.dequeue_fair(task, false);
        self.take_off(from, task);
        self.move_to(task, cpu);
        self.update_current(cpu);
        self.enqueue_fair(task, false);
        let mark = self.throttle_clock(task);
        self.tasks[task as usize].throttle_mark = mark;
        self.mark_resched(cpu);
        true
    }

    /// How many CPUs a wake-up may look at, from the use of the cache's CPUs (`update_idle_cpu_scan`, SIS_UTIL):
    /// the share `1 - (1.17 use)^2` of them. At 60 % use of a two-CPU host that is none but the one it ran on.
    fn update_scan(&mut self, cpu: u32) {
        if !self.scenario.kernel.limited_idle_search {
            return;
        }
        let span = self.cpus[cpu as usize].spans[1].clone();
        let mut sum = self.cpu_util(cpu);
        for &other in &span {
            sum += self.cpu_util(other);
        }
        let weight = (span.len() + 1) as f64;
        let x = sum / weight / 1024.0 * IMBALANCE;
        let scan = ((1.0 - x * x).max(0.0) * weight) as u32;
        self.cpus[cpu as usize].scan = scan;
        for &other in &span {
            self.cpus[other as usize].scan = scan;
        }
    }

    /// Periodic balancing of a busy CPU: evens out loads between overloaded CPUs.
    pub(super) fn periodic_balance(&mut self, cpu: u32) {
        let llc = u64::from(self.cpus[cpu as usize].llc.max(2));
        let idle = self.is_idle(cpu);
        let mut balanced = true;
        self.update_scan(cpu);
        if !idle {
            for level in 0..3 {
                if !self.cpus[cpu as usize].spans[level].is_empty() && self.balance_busy(cpu, level) {
                    balanced = false;
                    break;
                }
            }
        }
        // Milliseconds: as many as CPUs, twice that when balanced; sixteen times as rare while busy.
        let ms = llc * if balanced { 2 } else { 1 } * if idle { 1 } else { BUSY_FACTOR };
        let at = self.now + ms * 1_000_000;
        let at = at.div_ceil(self.tuning.tick_ns) * self.tuning.tick_ns;
        let at = if idle { at } else { at - self.tuning.tick_ns };
        let at = at.max((self.now / self.tuning.tick_ns + 1) * self.tuning.tick_ns);
        self.cpus[cpu as usize].balance_ticket = self.queue.push(at, super::queue::Event::Balance(cpu));
    }

    /// How full a CPU is (`group_classify` of a group of one CPU).
    fn fullness(&mut self, cpu: u32) -> Fullness {
        let now = self.now;
        let tasks = self.runnable(cpu);
        let util = self.cpu_util(cpu) * IMBALANCE;
        let runnable = self.cpus[cpu as usize].runnable.read(now);
        if tasks > 1 && (util > 1024.0 || runnable > 1024.0 * IMBALANCE) {
            Fullness::Overloaded
        } else if tasks < 1 || (runnable <= 1024.0 * IMBALANCE && util < 1024.0) {
            Fullness::Spare
        } else {
            Fullness::Busy
        }
    }

    /// A busy CPU takes load from an overloaded one (`sched_balance_find_src_group`, `calculate_imbalance`). Returns whether
    /// it was not balanced.
    fn balance_busy(&mut self, cpu: u32, level: usize) -> bool {
        let own_fullness = self.fullness(cpu);
        if own_fullness == Fullness::Spare {
            self.cpus[cpu as usize].failed = 0;
            return false;
        }
        let now = self.now;
        let own = self.queues[cpu as usize].load.read(now);
        let span = self.cpus[cpu as usize].spans[level].clone();
        let mut total = own;
        let mut busiest = (0.0, NONE);
        for &other in &span {
            let load = self.queues[other as usize].load.read(now);
            total += load;
            if load > busiest.0
                && self.has_task_for(other, cpu)
                && self.fullness(other) == Fullness::Overloaded
            {
                busiest = (load, other);
            }
        }
        let average = total / (span.len() + 1) as f64;
        let near = own_fullness == Fullness::Overloaded && busiest.0 <= IMBALANCE * own;
        if busiest.1 == NONE || own >= average || own >= busiest.0 || near {
            self.cpus[cpu as usize].failed = 0;
            return false;
        }
        let imbalance = (busiest.0 - average).min(average - own);
        let failed = self.cpus[cpu as usize].failed;
        let limit = Moved { tasks: u32::MAX, load: imbalance, failed };
        let moved = self.pull(cpu, busiest.1, limit);
        self.cpus[cpu as usize].failed = if moved > 0 { 0 } else { (failed + 1).min(16) };
        if moved > 0 {
            let current = self.cpus[cpu as usize].current;
            if current == NONE {
                self.mark_resched(cpu);
            } else {
                self.mark_program(cpu);
            }
        }
        true
    }

    // Real-time class.

    /// `select_task_rq_rt`: stays unless an equal or higher real-time task runs there.
    pub(super) fn select_rt(&self, task: u32) -> u32 {
        let t = &self.tasks[task as usize];
        let rank = |cpu: u32| {
            let current = self.cpus[cpu as usize].current;
            if current == NONE {
                return 0;
            }
            let c = &self.tasks[current as usize];
            if c.policy.is_fair() { 1 } else { 1 + u32::from(c.priority) }
        };
        let own = 1 + u32::from(t.priority);
        if t.may_run_on(t.cpu) && rank(t.cpu) < own.max(2) && self.cpus[t.cpu as usize].rt.is_empty() {
            return t.cpu;
        }
        let count = self.cpus.len() as u32;
        let lowest = (0..count)
            .map(|step| (t.cpu + step) % count)
            .filter(|&cpu| t.may_run_on(cpu))
            .min_by_key(|&cpu| rank(cpu));
        match lowest {
            Some(cpu) if rank(cpu) < own || !t.may_run_on(t.cpu) => cpu,
            _ => t.cpu,
        }
    }

    pub(super) fn pick_rt(&self, cpu: u32) -> Option<u32> {
        let rt = &self.cpus[cpu as usize].rt;
        rt.iter()
            .max_by_key(|(priority, order, _)| (*priority, std::cmp::Reverse(*order)))
            .map(|entry| entry.2)
    }

    /// Behind the others of its priority.
    pub(super) fn enqueue_rt(&mut self, cpu: u32, task: u32) {
        self.balance.rt_order += 1;
        let t = &mut self.tasks[task as usize];
        t.rr_left = RR_NS;
        self.cpus[cpu as usize].rt.push((t.priority, self.balance.rt_order, task));
    }

    pub(super) fn dequeue_rt(&mut self, cpu: u32, task: u32) {
        self.cpus[cpu as usize].rt.retain(|entry| entry.2 != task);
    }

    /// A round-robin task used up its turn.
    pub(super) fn rotate_rt(&mut self, cpu: u32, task: u32) {
        self.dequeue_rt(cpu, task);
        self.enqueue_rt(cpu, task);
    }

    /// A CPU without real-time work takes a waiting real-time task from another (`pull_rt_task`).
    pub(super) fn pull_rt(&mut self, cpu: u32) -> bool {
        let mut best: Option<(u8, std::cmp::Reverse<i64>, u32, u32)> = None;
        for other in 0..self.cpus.len() as u32 {
            if other == cpu || self.cpus[other as usize].rt.len() < 2 {
                continue;
            }
            for &(priority, order, task) in &self.cpus[other as usize].rt {
                let candidate = (priority, std::cmp::Reverse(order), task, other);
                if self.cpus[other as usize].current != task
                    && self.tasks[task as usize].may_run_on(cpu)
                    && best.is_none_or(|b| candidate > b)
                {
                    best = Some(candidate);
                }
            }
        }
        let Some((_, _, task, from)) = best else { return false };
        self.dequeue_rt(from, task);
        self.move_to(task, cpu);
        self.enqueue_rt(cpu, task);
        true
    }
}
