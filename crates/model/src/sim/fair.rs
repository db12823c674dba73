//! The fair class on one CPU: placement, eligibility, picking, preemption, for CFS and EEVDF.
//! The rules follow `kernel/sched/fair.c`; function names of the kernel are given where they help.

use super::engine::Sim;
use super::spec::Generation;
use super::state::{NICE_0, NONE};

/// CFS: the queue length up to which one latency period serves all (`sched_nr_latency`).
const CFS_NR_LATENCY: f64 = 8.0;

/// Virtual nanoseconds by which an entity may be ahead of the mean and still count as eligible: an entity placed at the mean
/// must, whatever the rounding (the kernel rounds in its favour, `avg_vruntime`).
const ROUNDING: f64 = 0.5;

impl Sim<'_> {
    pub(super) fn eevdf(&self) -> bool {
        self.tuning.generation != Generation::Cfs
    }

    fn slices(&self) -> bool {
        self.tuning.generation >= Generation::EevdfSlices
    }

    /// Weighted mean virtual runtime of a queue (`avg_vruntime`): an entity at or before it is owed time.
    pub(super) fn mean_vruntime(&self, queue: u32) -> f64 {
        let q = &self.queues[queue as usize];
        let (mut sum, mut weight) = (0.0, 0.0);
        for &e in &q.entities {
            let e = &self.entities[e as usize];
            sum += e.weight * (e.vruntime - q.zero);
            weight += e.weight;
        }
        if weight > 0.0 { q.zero + sum / weight } else { q.zero }
    }

    /// Shortest slice queued (`cfs_rq_min_slice`).
    pub(super) fn min_slice(&self, queue: u32) -> f64 {
        let entities = &self.queues[queue as usize].entities;
        let min = entities.iter().map(|&e| self.entities[e as usize].slice).fold(f64::INFINITY, f64::min);
        if min.is_finite() { min } else { self.tuning.granularity }
    }

    /// Remembers what the entity is owed (`update_entity_lag`).
    fn save_lag(&mut self, e: u32) {
        let mean = self.mean_vruntime(self.entities[e as usize].queue);
        let tick = self.tuning.tick_ns as f64;
        let e = &mut self.entities[e as usize];
        let limit = (2.0 * e.slice).max(tick) * NICE_0 / e.weight;
        e.vlag = (mean - e.vruntime).clamp(-limit, limit);
    }

    /// Gives a new or returning entity its virtual times (`place_entity`).
    pub(super) fn place(&mut self, e: u32, initial: bool) {
        let index = e as usize;
        let queue = self.entities[index].queue;
        if !self.eevdf() {
            // CFS: sleepers get half a latency period of credit (GENTLE_FAIR_SLEEPERS).
            let zero = self.queues[queue as usize].zero;
            let ent = &mut self.entities[index];
            let bonus = if ent.idle { self.tuning.granularity } else { self.tuning.cfs_latency / 2.0 };
            let at = if initial { zero } else { zero - bonus };
            ent.vruntime = ent.vruntime.max(at);
            return;
        }
        let mean = self.mean_vruntime(queue);
        let load = self.queues[queue as usize].weight;
        let ent = &mut self.entities[index];
        if !ent.custom_slice {
            ent.slice = self.tuning.granularity;
        }
        let mut lag = 0.0;
        if load > 0.0 && ent.vlag != 0.0 {
            // The mean moves when the entity joins; scaled so that its lag afterwards is what it had.
            lag = ent.vlag * (load + ent.weight) / load;
        }
        ent.vruntime = mean - lag;
        let vslice = ent.slice * NICE_0 / ent.weight;
        ent.deadline = ent.vruntime + if initial { vslice / 2.0 } else { vslice };
    }

    /// Puts an entity into its queue.
    pub(super) fn queue_entity(&mut self, e: u32) {
        let (queue, weight) = {
            let ent = &mut self.entities[e as usize];
            ent.queued = true;
            (ent.queue, ent.weight)
        };
        let q = &mut self.queues[queue as usize];
        if q.entities.is_empty() {
            q.weight = 0.0;
            if self.tuning.generation != Generation::Cfs {
                q.zero = self.entities[e as usize].vruntime;
            }
        }
        q.entities.push(e);
        q.weight += weight;
        let total = q.weight;
        q.load.set(self.now, total);
    }

    /// Takes an entity out of its queue, lag remembered.
    fn unqueue_entity(&mut self, e: u32) {
        if self.eevdf() {
            self.save_lag(e);
            if self.entities[e as usize].delayed {
                let ent = &mut self.entities[e as usize];
                ent.vlag = ent.vlag.min(0.0);
            }
        } else {
            self.advance_zero(self.entities[e as usize].queue);
        }
        let mean = self.mean_vruntime(self.entities[e as usize].queue);
        let ent = &mut self.entities[e as usize];
        ent.queued = false;
        ent.delayed = false;
        let (queue, weight, vruntime) = (ent.queue, ent.weight, ent.vruntime);
        let q = &mut self.queues[queue as usize];
        if let Some(at) = q.entities.iter().position(|&x| x == e) {
            q.entities.swap_remove(at);
        }
        q.weight = if q.entities.is_empty() { 0.0 } else { q.weight - weight };
        let total = q.weight;
        q.load.set(self.now, total);
        if self.tuning.generation != Generation::Cfs {
            q.zero = if total > 0.0 { mean } else { vruntime };
        }
    }

    /// CFS: `min_vruntime` follows the leftmost entity and never runs backwards.
    pub(super) fn advance_zero(&mut self, queue: u32) {
        let q = &self.queues[queue as usize];
        let min =
            q.entities.iter().map(|&e| self.entities[e as usize].vruntime).fold(f64::INFINITY, f64::min);
        if min.is_finite() && min > q.zero {
            self.queues[queue as usize].zero = min;
        }
    }

    /// Makes a task runnable on its CPU's queues (`enqueue_task_fair`).
    pub(super) fn enqueue_fair(&mut self, task: u32, initial: bool) {
        self.expect(task, true);
        let cpu = self.tasks[task as usize].cpu;
        let mut e = task;
        let mut slice = None;
        loop {
            let index = e as usize;
            let queue = self.entities[index].queue;
            if self.entities[index].queued {
                if self.entities[index].delayed {
                    self.requeue_delayed(e);
                }
                if let Some(slice) = slice {
                    self.entities[index].slice = slice;
                }
            } else {
                if let Some(slice) = slice {
                    self.entities[index].slice = slice;
                    self.entities[index].custom_slice = true;
                }
                self.place(e, initial);
                self.queue_entity(e);
            }
            self.queues[queue as usize].tasks += 1;
            let q = &self.queues[queue as usize];
            let owner = q.owner;
            if owner == NONE || q.throttled {
                break;
            }
            slice = self.slices().then(|| self.min_slice(queue));
            e = owner;
            self.update_share(e);
        }
        self.count_runnable(cpu);
    }

    /// Takes a task off its CPU's queues (`dequeue_task_fair`). With `sleep`, a task that has had more than its due stays
    /// queued until the others have caught up (6.12, `DELAY_DEQUEUE`). Returns whether it left.
    pub(super) fn dequeue_fair(&mut self, task: u32, sleep: bool) -> bool {
        let was_delayed = self.entities[task as usize].delayed;
        if !was_delayed {
            self.expect(task, false);
        }
        let left = self.dequeue_chain(task, sleep && !was_delayed, !was_delayed);
        self.count_runnable(self.tasks[task as usize].cpu);
        left
    }

    /// Takes an entity out of its queue for throttling.
    pub(super) fn leave(&mut self, e: u32) {
        self.unqueue_entity(e);
    }

    /// Takes a delayed entity that was picked off its queues.
    pub(super) fn finish_delayed(&mut self, e: u32) {
        self.dequeue_chain(e, false, false);
    }

    fn dequeue_chain(&mut self, start: u32, sleep: bool, counted: bool) -> bool {
        let mut e = start;
        let mut leaving = true;
        let mut may_delay = sleep;
        let mut left = true;
        let mut counting = counted;
        loop {
            let queue = self.entities[e as usize].queue;
            if leaving {
                let delay = may_delay && self.slices() && {
                    let mean = self.mean_vruntime(queue);
                    self.entities[e as usize].vruntime > mean + ROUNDING
                };
                if delay {
                    self.entities[e as usize].delayed = true;
                    left = left && e != start;
                    leaving = false;
                } else {
                    self.unqueue_entity(e);
                    leaving = self.queues[queue as usize].entities.is_empty();
                    may_delay = true;
                }
            }
            let q = &mut self.queues[queue as usize];
            if counting {
                q.tasks = q.tasks.saturating_sub(1);
            }
            if q.throttled {
                counting = false;
                leaving = false;
            }
            let owner = q.owner;
            if q.entities.is_empty() {
                self.return_runtime(queue);
            }
            if owner == NONE {
                break;
            }
            if !leaving
                && self.slices()
                && self.entities[owner as usize].queued
                && !self.queues[queue as usize].throttled
            {
                let slice = self.min_slice(queue);
                self.entities[owner as usize].slice = slice;
            }
            e = owner;
            if !self.entities[e as usize].queued {
                // Below a throttled queue: the ancestors neither hold nor count it.
                leaving = false;
                if !counting {
                    break;
                }
            } else {
                self.update_share(e);
            }
        }
        left
    }

    /// A delayed entity becomes runnable again where it is (`requeue_delayed_entity`).
    pub(super) fn requeue_delayed(&mut self, e: u32) {
        self.save_lag(e);
        if self.entities[e as usize].vlag > 0.0 {
            self.entities[e as usize].delayed = false;
            self.unqueue_entity(e);
            self.entities[e as usize].vlag = 0.0;
            self.place(e, false);
            self.queue_entity(e);
        }
        self.entities[e as usize].delayed = false;
    }

    /// The entity to run next in a queue (`pick_eevdf`, `__pick_eevdf`; leftmost for CFS). `protect`: a running entity within
    /// its protection stays.
    pub(super) fn pick_entity(&self, queue: u32, protect: bool) -> u32 {
        let q = &self.queues[queue as usize];
        if q.entities.len() == 1 {
            return q.entities[0];
        }
        let mut best = NONE;
        if !self.eevdf() {
            let mut least = f64::INFINITY;
            for &e in &q.entities {
                let v = self.entities[e as usize].vruntime;
                // SCHED_IDLE entities run only when nothing else is left of them; ties go to the running one.
                if v < least || (v == least && e == q.current) {
                    (least, best) = (v, e);
                }
            }
            return best;
        }
        let mean = self.mean_vruntime(queue);
        if protect && q.current != NONE {
            let current = &self.entities[q.current as usize];
            if current.queued
                && !current.delayed
                && current.vruntime <= mean + ROUNDING
                && self.protected(q.current)
            {
                return q.current;
            }
        }
        let mut earliest = f64::INFINITY;
        for &e in &q.entities {
            let ent = &self.entities[e as usize];
            if ent.vruntime <= mean + ROUNDING
                && (ent.deadline < earliest || (ent.deadline == earliest && e == q.current))
            {
                (earliest, best) = (ent.deadline, e);
            }
        }
        if best == NONE {
            // Rounding may leave no task eligible: the one furthest behind is.
            let mut least = f64::INFINITY;
            for &e in &q.entities {
                let v = self.entities[e as usize].vruntime;
                if v < least {
                    (least, best) = (v, e);
                }
            }
        }
        best
    }

    /// Whether a running entity is within its protection (`protect_slice`).
    fn protected(&self, e: u32) -> bool {
        let e = &self.entities[e as usize];
        e.vruntime < e.vprot
    }

    /// Starts an entity's turn (`set_next_entity`, `set_protect_slice`).
    pub(super) fn set_current(&mut self, e: u32) {
        let queue = self.entities[e as usize].queue;
        self.queues[queue as usize].current = e;
        let min_slice = if self.tuning.generation == Generation::EevdfMinSlice {
            self.min_slice(queue)
        } else {
            f64::INFINITY
        };
        let ent = &mut self.entities[e as usize];
        ent.exec_at_pick = ent.exec;
        ent.vprot = ent.deadline;
        if min_slice < ent.slice {
            ent.vprot = ent.vprot.min(ent.vruntime + min_slice * NICE_0 / ent.weight);
        }
    }

    /// Whether a task that just became runnable takes the CPU from the fair task running there
    /// (`check_preempt_wakeup_fair`).
    pub(super) fn wakeup_preempts(&mut self, running: u32, woken: u32) -> bool {
        let Some((curr, new)) = self.same_queue(running, woken) else { return false };
        if curr == new {
            return false;
        }
        let (curr_idle, new_idle) = (self.entities[curr as usize].idle, self.entities[new as usize].idle);
        if curr_idle && !new_idle {
            self.entities[curr as usize].vprot = f64::NEG_INFINITY;
            return true;
        }
        if curr_idle != new_idle || self.tasks[woken as usize].policy != evenkeel_base::SchedPolicy::Other {
            return false;
        }
        if !self.eevdf() {
            let gran = self.tuning.cfs_wakeup_granularity * NICE_0 / self.entities[new as usize].weight;
            return self.entities[curr as usize].vruntime - self.entities[new as usize].vruntime > gran;
        }
        let queue = self.entities[curr as usize].queue;
        let short = self.slices() && self.entities[new as usize].slice < self.entities[curr as usize].slice;
        if self.pick_entity(queue, !short) == new {
            if short {
                self.entities[curr as usize].vprot = f64::NEG_INFINITY;
            }
            return true;
        }
        if short && self.tuning.generation == Generation::EevdfMinSlice {
            let min = self.min_slice(queue);
            let ent = &mut self.entities[curr as usize];
            ent.vprot = ent.vprot.min(ent.vruntime + min * NICE_0 / ent.weight);
        }
        false
    }

    /// The two ancestors (or selves) that meet in one queue (`find_matching_se`).
    fn same_queue(&self, a: u32, b: u32) -> Option<(u32, u32)> {
        let depth = |mut e: u32| {
            let mut depth = 0;
            while self.queues[self.entities[e as usize].queue as usize].owner != NONE {
                e = self.queues[self.entities[e as usize].queue as usize].owner;
                depth += 1;
            }
            depth
        };
        let up = |e: u32| self.queues[self.entities[e as usize].queue as usize].owner;
        let (mut a, mut b) = (a, b);
        let (mut da, mut db) = (depth(a), depth(b));
        while da > db {
            a = up(a);
            da -= 1;
        }
        while db > da {
            b = up(b);
            db -= 1;
        }
        while self.entities[a as usize].queue != self.entities[b as usize].queue {
            (a, b) = (up(a), up(b));
            if a == NONE || b == NONE {
                return None;
            }
        }
        Some((a, b))
    }

    /// CFS: the part of the latency period due to an entity (`sched_slice`), nanoseconds.
    fn cfs_slice(&self, e: u32) -> f64 {
        let mut e = e;
        let nr = self.queues[self.entities[e as usize].queue as usize].entities.len() as f64;
        let mut slice =
            if nr > CFS_NR_LATENCY { nr * self.tuning.granularity } else { self.tuning.cfs_latency };
        loop {
            let ent = &self.entities[e as usize];
            let q = &self.queues[ent.queue as usize];
            slice *= ent.weight / q.weight.max(ent.weight);
            if q.owner == NONE {
                return slice;
            }
            e = q.owner;
        }
    }

    /// CFS: nanoseconds of CPU after which a tick preempts this running entity (`check_preempt_tick`); infinite when it is
    /// alone.
    pub(super) fn cfs_time_left(&self, e: u32) -> f64 {
        let ent = &self.entities[e as usize];
        let q = &self.queues[ent.queue as usize];
        if q.entities.len() < 2 {
            return f64::INFINITY;
        }
        let ideal = self.cfs_slice(e);
        let ran = ent.exec - ent.exec_at_pick;
        let mut left = ideal - ran;
        let others = q.entities.iter().filter(|&&x| x != e);
        let first = others.map(|&x| self.entities[x as usize].vruntime).fold(f64::INFINITY, f64::min);
        if first.is_finite() {
            let behind = (first + ideal - ent.vruntime) * ent.weight / NICE_0;
            left = left.min(behind.max(self.tuning.granularity - ran));
        }
        left
    }

    /// Virtual runtime of a running entity at which the choice among the queued ones changes, if none comes or goes.
    fn next_change(&self, e: u32) -> f64 {
        let ent = &self.entities[e as usize];
        let q = &self.queues[ent.queue as usize];
        let mean = self.mean_vruntime(ent.queue);
        if ent.vruntime > mean + ROUNDING {
            return ent.vruntime;
        }
        // While it runs by x, the mean moves by x * w / W.
        let part = (ent.weight / q.weight).min(1.0);
        let mut change = ent.vruntime + (mean - ent.vruntime + 2.0 * ROUNDING) / (1.0 - part).max(1e-9);
        for &other in &q.entities {
            let o = &self.entities[other as usize];
            if other != e && o.deadline < ent.deadline && o.vruntime > mean {
                change = change.min(ent.vruntime + (o.vruntime - mean) / part);
            }
        }
        change
    }

    /// EEVDF: nanoseconds of CPU after which this running entity is up for another choice; infinite when it is alone.
    pub(super) fn eevdf_time_left(&self, e: u32) -> f64 {
        let ent = &self.entities[e as usize];
        if self.queues[ent.queue as usize].entities.len() < 2 {
            return f64::INFINITY;
        }
        let mut until = ent.deadline;
        if ent.vruntime < ent.vprot {
            until = until.min(ent.vprot);
        } else if self.tuning.generation == Generation::EevdfMinSlice {
            // Chosen again without protection: until it is no longer eligible, or one with an earlier deadline is.
            until = until.min(self.next_change(e));
        } else if self.tuning.generation == Generation::EevdfSlices {
            // `did_preempt_short`: once its protection was cancelled it is up as soon as it is not eligible.
            until = until.min(self.mean_vruntime(ent.queue));
        }
        (until - ent.vruntime) * ent.weight / NICE_0
    }
}
