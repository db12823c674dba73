//! The event loop: events, when to look at a CPU again, choosing and switching.

use evenkeel_base::SchedPolicy;

use super::balance::Balance;
use super::change::Hypervisor;
use super::queue::{Event, Queue};
use super::report::Report;
use super::spec::{Generation, Scenario};
use super::state::{CounterState, Cpu, Entity, Goal, GroupState, NONE, RunQueue, Status, TaskState};

/// Round-robin quantum (`RR_TIMESLICE`).
pub(super) const RR_NS: f64 = 100_000_000.0;
/// A picked task's first instruction: nothing shorter than this is left undone.
pub(super) const EPSILON_NS: f64 = 0.5;

pub(super) struct Sim<'a> {
    pub scenario: &'a Scenario,
    pub tuning: Tuning,
    pub now: u64,
    pub queue: Queue,
    pub cpus: Vec<Cpu>,
    pub entities: Vec<Entity>,
    pub queues: Vec<RunQueue>,
    pub groups: Vec<GroupState>,
    pub tasks: Vec<TaskState>,
    pub work: Work,
    pub balance: Balance,
    pub hypervisor: Hypervisor,
}

/// What the scenario's kernel works with.
pub(super) struct Tuning {
    pub generation: Generation,
    pub tick_ns: u64,
    pub granularity: f64,
    pub cfs_latency: f64,
    pub cfs_wakeup_granularity: f64,
}

/// What is still to be done.
pub(super) struct Work {
    pub counters: Vec<CounterState>,
    /// Tasks that have not ended, of those whose end is waited for.
    pub alive: usize,
}

impl<'a> Sim<'a> {
    pub fn run(mut self) -> Report {
        let end = self.scenario.duration_ns;
        while let Some((at, ticket, event)) = self.queue.pop() {
            if at > end || (self.scenario.stop_when_done && self.work.alive == 0) {
                break;
            }
            match event {
                Event::Cpu(cpu) if self.cpus[cpu as usize].ticket != ticket => continue,
                Event::Wake(task) if self.tasks[task as usize].ticket != ticket => continue,
                Event::Balance(cpu) if self.cpus[cpu as usize].balance_ticket != ticket => continue,
                _ => {}
            }
            self.now = at;
            self.queue.handled += 1;
            self.handle(event);
            self.settle();
        }
        if !(self.scenario.stop_when_done && self.work.alive == 0) {
            self.now = end;
        }
        self.finish()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Cpu(cpu) => {
                self.cpus[cpu as usize].event_at = u64::MAX;
                self.update_current(cpu);
                self.cpu_event(cpu);
            }
            Event::Wake(task) => self.wake(task),
            Event::Balance(cpu) => self.periodic_balance(cpu),
            Event::Kick => self.kick_idle(),
            Event::Period(group) => self.period(group),
            Event::Steal => self.steal_rule(),
            Event::Change(index) => self.change(index as usize),
            Event::Measure => self.start_measuring(),
        }
    }

    /// Lets every CPU that must choose again do so, until none must.
    fn settle(&mut self) {
        loop {
            if let Some(cpu) = self.queue.resched.pop() {
                if self.cpus[cpu as usize].resched {
                    self.cpus[cpu as usize].resched = false;
                    self.schedule(cpu);
                }
                self.program(cpu);
            } else if let Some(group) = self.queue.distribution.pop() {
                self.distribute(group);
            } else {
                return;
            }
        }
    }

    /// A CPU must choose again once the present event is handled.
    pub(super) fn mark_resched(&mut self, cpu: u32) {
        self.cpus[cpu as usize].resched = true;
        self.queue.resched.push(cpu);
    }

    /// A CPU's next event must be computed again.
    pub(super) fn mark_program(&mut self, cpu: u32) {
        self.queue.resched.push(cpu);
    }

    /// The running task of a CPU, accounted, may have reached its goal, or a tick may take the CPU from it.
    fn cpu_event(&mut self, cpu: u32) {
        let task = self.cpus[cpu as usize].current;
        if task == NONE {
            return;
        }
        self.mark_program(cpu);
        if self.goal_reached(task) {
            self.goal_done(task);
            return;
        }
        let t = &mut self.tasks[task as usize];
        if !t.policy.is_fair() {
            if t.policy == SchedPolicy::Rr && t.rr_left <= EPSILON_NS {
                t.rr_left = RR_NS;
                self.rotate_rt(cpu, task);
                self.mark_resched(cpu);
            }
            return;
        }
        self.update_shares(task);
        if self.tuning.generation == Generation::Cfs && self.now.is_multiple_of(self.tuning.tick_ns) {
            let mut e = task;
            while e != NONE {
                if self.cfs_time_left(e) <= EPSILON_NS {
                    self.mark_resched(cpu);
                }
                e = self.queues[self.entities[e as usize].queue as usize].owner;
            }
        }
    }

    /// Whether a running task has done what it was about.
    pub(super) fn goal_reached(&self, task: u32) -> bool {
        match self.tasks[task as usize].goal {
            Goal::Begin(_) | Goal::Never => false,
            Goal::Until(at) => self.now >= at,
            Goal::Cpu(left) | Goal::Work(left) => left <= EPSILON_NS,
            // Looked at on whole nanoseconds: up to one late.
            Goal::Events(size, done, stop) => {
                self.now >= stop && {
                    let over = done - (done / size).floor() * size;
                    over <= 1.0 + EPSILON_NS || size - over <= EPSILON_NS
                }
            }
        }
    }

    /// When a task running on a CPU reaches its goal if left alone.
    fn goal_time(&self, cpu: u32, task: u32) -> u64 {
        let c = &self.cpus[cpu as usize];
        let after = |ns: f64, rate: f64| {
            let wait = (ns.max(0.0) / rate.max(1e-6)).ceil();
            self.now.saturating_add(wait.min(1e18) as u64)
        };
        match self.tasks[task as usize].goal {
            Goal::Begin(_) | Goal::Never => u64::MAX,
            Goal::Until(at) => at.max(self.now),
            Goal::Cpu(left) => after(left, c.rate),
            Goal::Work(left) => after(left, c.work_rate),
            Goal::Events(size, done, stop) => {
                let at_stop = done + stop.saturating_sub(self.now) as f64 * c.work_rate;
                let target = ((at_stop - EPSILON_NS) / size).ceil() * size;
                after(target - done, c.work_rate).max(stop)
            }
        }
    }

    /// Decides when a CPU's running task must be looked at next.
    fn program(&mut self, cpu: u32) {
        let task = self.cpus[cpu as usize].current;
        let at = if task == NONE { u64::MAX } else { self.next_look(cpu, task) };
        let c = &mut self.cpus[cpu as usize];
        if at != c.event_at {
            c.event_at = at;
            c.ticket = if at == u64::MAX { 0 } else { self.queue.push(at, Event::Cpu(cpu)) };
        }
    }

    fn next_look(&self, cpu: u32, task: u32) -> u64 {
        let mut at = self.goal_time(cpu, task);
        let rate = self.cpus[cpu as usize].rate;
        let t = &self.tasks[task as usize];
        if !t.policy.is_fair() {
            if t.policy == SchedPolicy::Rr {
                at = at.min(self.tick_after(t.rr_left, rate));
            }
            return at;
        }
        // Only EEVDF's `update_curr` asks for another choice; CFS does so at ticks alone.
        let reading = self.scenario.tasks[task as usize].clock_read_ns.filter(|_| self.eevdf());
        let got = t.got;
        let check = |ns: f64| {
            let tick = self.tick_after(ns, rate);
            let Some(every) = reading else { return tick };
            // Its readings come at multiples of CPU time.
            let every = every as f64;
            let read = ((got + ns.max(0.0)) / every).ceil() * every - got;
            self.soon_after(read, rate).min(tick)
        };
        let mut e = task;
        let mut contested = false;
        while e != NONE {
            let q = &self.queues[self.entities[e as usize].queue as usize];
            contested |= q.entities.len() > 1;
            let left = if self.tuning.generation == Generation::Cfs {
                self.cfs_time_left(e)
            } else {
                self.eevdf_time_left(e)
            };
            if left.is_finite() {
                at = at.min(check(left));
            }
            if q.limited {
                at = at.min(check(q.runtime));
            }
            // Group weights follow the load; ticks keep them up to date while somebody competes.
            if contested && q.owner != NONE {
                at = at.min(self.tick_after(4.0 * self.tuning.tick_ns as f64, 1.0));
            }
            e = q.owner;
        }
        at
    }

    /// The moment at which `ns` of CPU time will have passed, at least a microsecond from now.
    fn soon_after(&self, ns: f64, rate: f64) -> u64 {
        let wait = (ns.max(0.0) / rate.max(1e-6)).min(1e18).ceil() as u64;
        self.now.saturating_add(wait.max(1_000))
    }

    /// First tick at or after the moment at which `ns` of CPU time will have passed, but after now.
    fn tick_after(&self, ns: f64, rate: f64) -> u64 {
        let wait = (ns.max(0.0) / rate.max(1e-6)).min(1e18) as u64;
        let at = self.now.saturating_add(wait);
        let tick = self.tuning.tick_ns;
        let at = at.div_ceil(tick).saturating_mul(tick);
        if at <= self.now { at + tick } else { at }
    }

    /// Chooses the next task of a CPU and switches to it (`__schedule`).
    fn schedule(&mut self, cpu: u32) {
        self.update_current(cpu);
        self.cpus[cpu as usize].resched = false;
        let previous = self.cpus[cpu as usize].current;
        let mut next = self.pick(cpu);
        if next == NONE && self.pull_for_idle(cpu) {
            next = self.pick(cpu);
        }
        if next == previous {
            return;
        }
        self.put(cpu, previous, next);
        let was_idle = previous == NONE;
        self.cpus[cpu as usize].current = next;
        if next == NONE {
            self.set_idle(cpu, true);
            // One whose task never switches sees it at its tick.
            (0..self.cpus.len() as u32).for_each(|other| self.check_overload(other));
            self.cpus[cpu as usize].util.set(self.now, 0.0);
            self.sibling_rates(cpu);
            return;
        }
        if was_idle {
            self.set_idle(cpu, false);
            self.sibling_rates(cpu);
        }
        self.start_turn(cpu, next);
        self.push_rt(cpu);
        self.check_overload(cpu);
    }

    fn pick(&mut self, cpu: u32) -> u32 {
        if let Some(task) = self.pick_rt(cpu) {
            return task;
        }
        'again: loop {
            let mut queue = cpu;
            if self.queues[queue as usize].entities.is_empty() {
                return NONE;
            }
            loop {
                let e = self.pick_entity(queue, true);
                if e == NONE {
                    return NONE;
                }
                if self.entities[e as usize].delayed {
                    self.finish_delayed(e);
                    continue 'again;
                }
                let owned = self.entities[e as usize].owns;
                if owned == NONE {
                    return e;
                }
                if self.queues[owned as usize].entities.is_empty() {
                    // A group left empty without a delay cannot be queued; taken off for safety.
                    self.finish_delayed(e);
                    continue 'again;
                }
                queue = owned;
            }
        }
    }

    /// Ends a task's turn and starts the queues' turn for the next (`put_prev_task`, `set_next_task`).
    pub(super) fn put(&mut self, cpu: u32, previous: u32, next: u32) {
        if previous != NONE {
            let t = &mut self.tasks[previous as usize];
            t.util.set(self.now, 0.0);
            if t.status == Status::Ready && t.cpu == cpu {
                t.involuntary += 1;
                t.waiting_since = self.now;
                let mark = self.throttle_clock(previous);
                self.tasks[previous as usize].throttle_mark = mark;
            }
        }
        let next_fair = next != NONE && self.tasks[next as usize].policy.is_fair();
        let mut keep = Vec::new();
        let mut e = if next_fair { next } else { NONE };
        while e != NONE {
            let q = self.entities[e as usize].queue;
            if self.queues[q as usize].current == e {
                keep.push(q);
            }
            e = self.queues[q as usize].owner;
        }
        let mut queue = cpu;
        loop {
            let current = self.queues[queue as usize].current;
            if !keep.contains(&queue) {
                self.queues[queue as usize].current = NONE;
            }
            if current == NONE {
                break;
            }
            let owned = self.entities[current as usize].owns;
            if owned == NONE {
                break;
            }
            queue = owned;
        }
        let mut e = if next_fair { next } else { NONE };
        while e != NONE {
            let q = self.entities[e as usize].queue;
            if !keep.contains(&q) {
                self.set_current(e);
            }
            e = self.queues[q as usize].owner;
        }
    }

    fn start_turn(&mut self, cpu: u32, task: u32) {
        let now = self.now;
        let cost = self.scenario.machine.switch_cost_ns as f64;
        let throttled = self.throttle_clock(task);
        let fair = self.tasks[task as usize].policy.is_fair();
        let t = &mut self.tasks[task as usize];
        let wait = now - t.waiting_since;
        t.waited += wait;
        t.waits.add(wait);
        t.throttled += throttled.saturating_sub(t.throttle_mark).min(wait);
        let moved = t.recent_cpu != cpu && t.first_ran_ns.is_some();
        t.recent_cpu = cpu;
        let first = t.first_ran_ns.is_none();
        if first {
            t.first_ran_ns = Some(now);
        }
        let mut lost = cost;
        if moved {
            t.migrations += 1;
            lost += self.scenario.machine.migration_cost_ns as f64;
        }
        match &mut t.goal {
            Goal::Work(left) => *left += lost,
            Goal::Events(size, done, _) => {
                // Never back across an event already done.
                let into = *done - (*done / *size).floor() * *size;
                *done -= lost.min(into);
            }
            _ => {}
        }
        if let Goal::Begin(ns) = t.goal {
            t.goal = Goal::Until(now + ns as u64);
        }
        self.tasks[task as usize].util.set(now, 1024.0);
        self.cpus[cpu as usize].util.set(now, if fair { 1024.0 } else { 0.0 });
        self.mark_program(cpu);
        if self.goal_reached(task) {
            self.goal_done(task);
        }
    }

    /// Takes a running task, off its queues already, from its CPU; the CPU must choose again.
    pub(super) fn take_off(&mut self, cpu: u32, task: u32) {
        self.cpus[cpu as usize].current = NONE;
        self.put(cpu, NONE, NONE);
        self.set_idle(cpu, true);
        self.cpus[cpu as usize].util.set(self.now, 0.0);
        self.tasks[task as usize].util.set(self.now, 0.0);
        self.sibling_rates(cpu);
        self.tasks[task as usize].waiting_since = self.now;
        self.mark_resched(cpu);
    }
}
