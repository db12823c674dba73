//! Accounting: time run, virtual time, quotas, decaying averages.

use super::engine::{EPSILON_NS, Sim};
use super::pelt::Average;
use super::spec::Generation;
use super::state::{Goal, NICE_0, NONE};

/// Differences below this are not learnt (`UTIL_EST_MARGIN`, 1024/100).
const UTIL_EST_MARGIN: f64 = 10.0;

impl Sim<'_> {
    /// Accounts the running task of a CPU up to now (`update_curr`).
    pub(super) fn update_current(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        let wall = (self.now - c.since) as f64;
        c.since = self.now;
        if wall == 0.0 || c.current == NONE {
            return;
        }
        let (task, cpu_time, work) = (c.current, wall * c.rate, wall * c.work_rate);
        c.busy += wall;
        c.demanded += wall;
        let t = &mut self.tasks[task as usize];
        t.got += cpu_time;
        t.work += work;
        t.last_ran = self.now;
        match &mut t.goal {
            Goal::Cpu(left) => *left -= cpu_time,
            Goal::Work(left) => *left -= work,
            Goal::Events(_, done, _) => *done += work,
            _ => {}
        }
        if !t.policy.is_fair() {
            t.rr_left -= cpu_time;
            return;
        }
        let mut e = task;
        let mut resched = false;
        loop {
            let ent = &mut self.entities[e as usize];
            ent.vruntime += cpu_time * NICE_0 / ent.weight;
            ent.exec += cpu_time;
            let queue = ent.queue;
            let contested = self.queues[queue as usize].entities.len() > 1;
            if self.tuning.generation == Generation::Cfs {
                self.advance_zero(queue);
            } else {
                let ent = &mut self.entities[e as usize];
                if ent.vruntime >= ent.deadline - EPSILON_NS {
                    ent.deadline = ent.vruntime + ent.slice * NICE_0 / ent.weight;
                    resched |= contested;
                    if self.tuning.generation != Generation::EevdfMinSlice {
                        ent.vprot = f64::NEG_INFINITY;
                    }
                }
                if contested && !resched && self.eevdf_time_left(e) <= EPSILON_NS {
                    resched = true;
                }
            }
            let q = &mut self.queues[queue as usize];
            if q.limited {
                q.runtime -= cpu_time;
                if q.runtime <= 0.0 {
                    self.take_runtime(queue);
                }
            }
            e = self.queues[queue as usize].owner;
            if e == NONE {
                break;
            }
        }
        if resched {
            self.mark_resched(cpu);
        }
    }

    pub(super) fn task_average(&mut self, task: u32, runnable: bool) {
        let weight = if runnable { self.entities[task as usize].weight } else { 0.0 };
        let now = self.now;
        let average: &mut Average = &mut self.tasks[task as usize].load_avg;
        average.set(now, weight);
    }

    /// Tasks of all classes that run or wait on a CPU (`rq::nr_running`).
    pub(super) fn runnable(&self, cpu: u32) -> u32 {
        self.queues[cpu as usize].tasks + self.cpus[cpu as usize].rt.len() as u32
    }

    /// Brings a CPU's average of runnable tasks up to date.
    pub(super) fn count_runnable(&mut self, cpu: u32) {
        let tasks = f64::from(self.queues[cpu as usize].tasks) * 1024.0;
        let now = self.now;
        self.balance.overloaded |= tasks > 1024.0;
        self.cpus[cpu as usize].runnable.set(now, tasks);
    }

    /// Time the queues above a task have been throttled, summed.
    pub(super) fn throttle_clock(&self, task: u32) -> u64 {
        if self.tasks[task as usize].group == NONE {
            return 0;
        }
        let mut queue = self.entities[task as usize].queue;
        let mut sum = 0;
        loop {
            let q = &self.queues[queue as usize];
            if q.limited {
                sum += q.throttled_ns + if q.throttled { self.now - q.throttled_at } else { 0 };
            }
            if q.owner == NONE {
                return sum;
            }
            queue = self.entities[q.owner as usize].queue;
        }
    }

    /// A fair task became runnable on its CPU, or stopped being so: what the CPU expects of it.
    pub(super) fn expect(&mut self, task: u32, runnable: bool) {
        let t = &self.tasks[task as usize];
        let idle = u32::from(self.entities[task as usize].idle);
        let c = &mut self.cpus[t.cpu as usize];
        if runnable {
            c.util_est += t.util_est;
            c.idle_tasks += idle;
        } else {
            c.util_est = (c.util_est - t.util_est).max(0.0);
            c.idle_tasks = c.idle_tasks.saturating_sub(idle);
        }
    }

    /// A task goes to sleep: what it used tells what to expect of it next time (`util_est_update`).
    pub(super) fn learn_use(&mut self, task: u32) {
        let now = self.now;
        let weight = self.entities[task as usize].weight;
        let t = &mut self.tasks[task as usize];
        let used = t.util.read(now);
        let runnable = t.load_avg.read(now) / weight * 1024.0;
        let above = t.util_est - used;
        if above <= 0.0 {
            t.util_est = used;
        } else if above >= UTIL_EST_MARGIN && used + UTIL_EST_MARGIN >= runnable {
            t.util_est -= above / 4.0;
        }
    }

    /// Use of a CPU by the fair class as balancing sees it (`cpu_util_cfs`), of 1024.
    pub(super) fn cpu_util(&mut self, cpu: u32) -> f64 {
        let now = self.now;
        let c = &mut self.cpus[cpu as usize];
        c.util.read(now).max(c.util_est).min(1024.0)
    }
}
