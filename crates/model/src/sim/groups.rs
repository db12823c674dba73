//! Groups: the share of each CPU (`calc_group_shares`, `reweight_entity`) and bandwidth control
//! (`account_cfs_rq_runtime`, `throttle_cfs_rq`, `__refill_cfs_bandwidth_runtime`).

use super::engine::Sim;
use super::queue::Event;
use super::state::NONE;

/// Runtime a CPU takes from the pool at once (`sched_cfs_bandwidth_slice_us`, 5 ms).
const BANDWIDTH_SLICE_NS: f64 = 5_000_000.0;
/// Runtime a CPU keeps when its queue runs empty (`min_cfs_rq_runtime`, 1 ms).
const KEPT_NS: f64 = 1_000_000.0;

impl Sim<'_> {
    /// Recomputes the weight of a group's entity on its CPU: the group's weight times this CPU's part of the group's
    /// load.
    pub(super) fn update_share(&mut self, e: u32) {
        let owned = self.entities[e as usize].owns;
        if owned == NONE {
            return;
        }
        let now = self.now;
        self.refresh_contributions(self.queues[owned as usize].group);
        let q = &mut self.queues[owned as usize];
        let average = q.load.read(now);
        let group = &mut self.groups[q.group as usize];
        // `update_tg_load_avg`: only changes above 1/64, at most one per millisecond.
        let delta = average - q.contribution;
        let due = now >= q.contributed_ns + 1_000_000 && delta.abs() > q.contribution / 64.0;
        if due || q.contribution == 0.0 {
            if q.contribution == 0.0 && average > 0.0 {
                group.contributing.push(owned);
            }
            group.load += delta;
            q.contribution = average;
            q.contributed_ns = now;
        }
        let load = q.weight.max(average);
        let total = (group.load - q.contribution + load).max(load);
        let share = if total > 0.0 { group.weight * load / total } else { group.weight };
        let share = share.clamp(2.0, group.weight);
        self.reweight(e, share);
    }

    /// Lets what a group's queues contribute decay where nothing runs any more (`update_blocked_averages`), at most once a
    /// tick.
    fn refresh_contributions(&mut self, group: u32) {
        let now = self.now;
        let g = &mut self.groups[group as usize];
        if now < g.refreshed_ns + self.tuning.tick_ns {
            return;
        }
        g.refreshed_ns = now;
        let queues = &mut self.queues;
        let mut sum = 0.0;
        g.contributing.retain(|&queue| {
            let q = &mut queues[queue as usize];
            q.contribution = q.load.read(now);
            q.contributed_ns = now;
            if q.contribution < 1.0 && q.entities.is_empty() {
                q.contribution = 0.0;
            }
            sum += q.contribution;
            q.contribution > 0.0
        });
        g.load = sum;
    }

    /// Changes an entity's weight; what it is owed keeps its worth in service.
    pub(super) fn reweight(&mut self, e: u32, weight: f64) {
        let old = self.entities[e as usize].weight;
        if (weight - old).abs() < 1e-3 * old {
            return;
        }
        let ent = &self.entities[e as usize];
        let queue = ent.queue;
        if !ent.queued {
            let ent = &mut self.entities[e as usize];
            ent.vlag *= old / weight;
            ent.weight = weight;
            return;
        }
        if self.eevdf() {
            let mean = self.mean_vruntime(queue);
            let q = &self.queues[queue as usize];
            let others = q.weight - old;
            let ent = &mut self.entities[e as usize];
            let lag = (mean - ent.vruntime) * old / weight;
            let left = (ent.deadline - ent.vruntime) * old / weight;
            let protect = (ent.vprot - ent.vruntime) * old / weight;
            // The mean of the others, and from it the place at which the lag is `lag` again.
            let other_mean =
                if others > 0.0 { (mean * (others + old) - ent.vruntime * old) / others } else { mean };
            ent.vruntime =
                if others > 0.0 { other_mean - lag * (others + weight) / others } else { ent.vruntime };
            ent.deadline = ent.vruntime + left;
            ent.vprot = ent.vruntime + protect;
            ent.weight = weight;
        } else {
            self.entities[e as usize].weight = weight;
        }
        let now = self.now;
        let q = &mut self.queues[queue as usize];
        q.weight += weight - old;
        let total = q.weight;
        q.load.set(now, total);
    }

    /// Updates the shares of all groups above a task.
    pub(super) fn update_shares(&mut self, task: u32) {
        let mut e = self.queues[self.entities[task as usize].queue as usize].owner;
        while e != NONE {
            if self.entities[e as usize].queued {
                self.update_share(e);
            }
            e = self.queues[self.entities[e as usize].queue as usize].owner;
        }
    }

    /// A limited queue has used up what it had: take more from the pool, or be throttled.
    pub(super) fn take_runtime(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        let group = &mut self.groups[q.group as usize];
        let want = BANDWIDTH_SLICE_NS - q.runtime;
        let take = want.min(group.pool).max(0.0);
        group.pool -= take;
        q.runtime += take;
        if q.runtime <= 0.0 && !q.throttled && !q.entities.is_empty() {
            self.throttle(queue);
        }
    }

    fn throttle(&mut self, queue: u32) {
        let now = self.now;
        let (group, owner, tasks, cpu) = {
            let q = &mut self.queues[queue as usize];
            q.throttled = true;
            q.throttled_at = now;
            (q.group, q.owner, q.tasks, q.cpu)
        };
        self.groups[group as usize].throttled.push(queue);
        if owner != NONE && self.entities[owner as usize].queued {
            self.remove_group_entity(owner, tasks);
        }
        self.count_runnable(cpu);
        self.cpus[cpu as usize].resched = true;
        self.mark_resched(cpu);
    }

    fn unthrottle(&mut self, queue: u32) {
        let now = self.now;
        let (owner, tasks, cpu, empty) = {
            let q = &mut self.queues[queue as usize];
            q.throttled = false;
            q.throttled_ns += now - q.throttled_at;
            (q.owner, q.tasks, q.cpu, q.entities.is_empty())
        };
        self.update_current(cpu);
        if owner != NONE && !empty && !self.entities[owner as usize].queued {
            self.add_group_entity(owner, tasks);
        }
        self.count_runnable(cpu);
        self.mark_resched(cpu);
    }

    /// Takes a throttled group's entity, and ancestors left empty, off the queues.
    fn remove_group_entity(&mut self, entity: u32, tasks: u32) {
        let mut e = entity;
        let mut leaving = true;
        loop {
            let queue = self.entities[e as usize].queue;
            if leaving {
                self.leave(e);
                leaving = self.queues[queue as usize].entities.is_empty();
            }
            let q = &mut self.queues[queue as usize];
            q.tasks = q.tasks.saturating_sub(tasks);
            if q.owner == NONE || q.throttled {
                return;
            }
            e = q.owner;
            if !self.entities[e as usize].queued {
                return;
            }
            self.update_share(e);
        }
    }

    /// Puts an unthrottled group's entity, and ancestors that were empty, back.
    fn add_group_entity(&mut self, entity: u32, tasks: u32) {
        let mut e = entity;
        loop {
            let queue = self.entities[e as usize].queue;
            if !self.entities[e as usize].queued {
                self.update_share(e);
                self.place(e, false);
                self.queue_entity(e);
            } else if self.entities[e as usize].delayed {
                self.requeue_delayed(e);
            }
            let q = &mut self.queues[queue as usize];
            q.tasks += tasks;
            if q.owner == NONE || q.throttled {
                return;
            }
            e = q.owner;
        }
    }

    /// A limited queue ran empty: what it does not need goes back to the pool.
    pub(super) fn return_runtime(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        if !q.limited || q.throttled || q.runtime <= KEPT_NS {
            return;
        }
        let group = q.group;
        self.groups[group as usize].pool += q.runtime - KEPT_NS;
        q.runtime = KEPT_NS;
        if self.groups[group as usize].pool > BANDWIDTH_SLICE_NS
            && !self.groups[group as usize].throttled.is_empty()
        {
            self.queue.distribution.push(group);
        }
    }

    /// A new period: refill (with saved-up burst) and let throttled queues go on.
    pub(super) fn period(&mut self, group: u32) {
        let g = &mut self.groups[group as usize];
        let Some(quota) = g.quota_ns else { return };
        let at = self.now + g.period_ns;
        g.periods += 1;
        if !g.throttled.is_empty() {
            g.throttled_periods += 1;
        }
        g.pool = (g.pool + quota).min(quota + g.burst_ns);
        self.queue.push(at, Event::Period(group));
        self.distribute(group);
    }

    /// Gives throttled queues what the pool has (`distribute_cfs_runtime`).
    pub(super) fn distribute(&mut self, group: u32) {
        let throttled = std::mem::take(&mut self.groups[group as usize].throttled);
        let mut still = Vec::new();
        for queue in throttled {
            let q = &mut self.queues[queue as usize];
            let g = &mut self.groups[group as usize];
            let give = (1.0 - q.runtime).min(g.pool).max(0.0);
            g.pool -= give;
            q.runtime += give;
            if q.runtime > 0.0 {
                self.unthrottle(queue);
            } else {
                still.push(queue);
            }
        }
        self.groups[group as usize].throttled = still;
    }
}
