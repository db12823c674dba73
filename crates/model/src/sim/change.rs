//! Settings: a task's attributes, changes while running, the hypervisor's rule.

use std::collections::VecDeque;

use evenkeel_base::{IDLE_LOAD_WEIGHT, SchedAttr, SchedPolicy};

use super::engine::{RR_NS, Sim};
use super::queue::Event;
use super::spec::{Generation, Setting, Steal};
use super::state::Status;

/// The hypervisor that takes time from the CPUs by a rule of their use.
#[derive(Default)]
pub(super) struct Hypervisor {
    pub stealing: bool,
    /// Time demanded of all CPUs in each second of its window, nanoseconds.
    demand: VecDeque<f64>,
}

impl Sim<'_> {
    /// Applies scheduling attributes to an entity.
    pub(super) fn apply_attr(&mut self, task: u32, attr: SchedAttr) {
        let custom = attr.slice_ns.filter(|_| self.tuning.generation >= Generation::EevdfSlices);
        let granularity = self.tuning.granularity;
        let ent = &mut self.entities[task as usize];
        ent.idle = attr.policy == SchedPolicy::Idle;
        ent.weight = if ent.idle { IDLE_LOAD_WEIGHT as f64 } else { f64::from(attr.nice.weight()) };
        ent.custom_slice = custom.is_some();
        ent.slice = custom.map_or(granularity, |ns| (ns as f64).clamp(100_000.0, 100_000_000.0));
        let t = &mut self.tasks[task as usize];
        t.policy = attr.policy;
        t.priority = attr.rt_priority.clamp(1, 99);
        t.rr_left = RR_NS;
    }

    pub(super) fn change(&mut self, index: usize) {
        let Some(timed) = self.scenario.changes.get(index) else { return };
        match &timed.change {
            Setting::Weight(group, weight) => {
                self.groups[*group].weight = *weight;
                for cpu in 0..self.cpus.len() as u32 {
                    self.update_current(cpu);
                    let e = self.queues[self.queue_of(*group as u32, cpu) as usize].owner;
                    self.update_share(e);
                    self.mark_program(cpu);
                }
            }
            Setting::Sched(task, attr) => {
                let attr = *attr;
                self.requeue(*task as u32, |sim, task| sim.apply_attr(task, attr));
            }
            Setting::Affinity(task, cpus) => {
                let mut spec = self.scenario.tasks[*task].clone();
                spec.cpus.clone_from(cpus);
                let allowed = self.scenario.task_cpus(&spec);
                self.requeue(*task as u32, |sim, task| {
                    sim.set_allowed(task, &allowed);
                });
            }
        }
    }

    /// Takes a task off its queues, changes it, and puts it back where it may run.
    pub(super) fn requeue(&mut self, task: u32, change: impl FnOnce(&mut Self, u32)) {
        let cpu = self.tasks[task as usize].cpu;
        self.update_current(cpu);
        let ready = self.tasks[task as usize].status == Status::Ready;
        let running = self.cpus[cpu as usize].current == task;
        let fair = self.tasks[task as usize].policy.is_fair();
        if fair && self.entities[task as usize].queued {
            self.dequeue_fair(task, false);
        } else if !fair && ready {
            self.dequeue_rt(cpu, task);
        }
        change(self, task);
        if !ready {
            return;
        }
        let target =
            if self.tasks[task as usize].may_run_on(cpu) { cpu } else { self.select_cpu(task, false) };
        if running {
            // It is put back like a preempted task and picked again at once if it is still first.
            self.take_off(cpu, task);
        }
        self.update_current(target);
        self.move_to(task, target);
        if self.tasks[task as usize].policy.is_fair() {
            self.enqueue_fair(task, false);
        } else {
            self.enqueue_rt(target, task);
        }
        let mark = self.throttle_clock(task);
        self.tasks[task as usize].throttle_mark = mark;
        self.mark_resched(cpu);
        self.mark_resched(target);
    }

    pub(super) fn steal_rule(&mut self) {
        let Steal::Window { window_ns, above, below, .. } = self.scenario.machine.steal else { return };
        // Demanded time: a stolen CPU still counts as wanted by its task.
        let busy: f64 = (0..self.cpus.len() as u32)
            .map(|cpu| {
                self.update_current(cpu);
                let c = &mut self.cpus[cpu as usize];
                std::mem::take(&mut c.demanded)
            })
            .sum();
        self.hypervisor.demand.push_back(busy);
        let slots = (window_ns / 1_000_000_000).max(1) as usize;
        while self.hypervisor.demand.len() > slots {
            self.hypervisor.demand.pop_front();
        }
        let use_share =
            self.hypervisor.demand.iter().sum::<f64>() / (slots as f64 * 1e9) / self.cpus.len().max(1) as f64;
        let was = self.hypervisor.stealing;
        self.hypervisor.stealing = if was { use_share >= below } else { use_share > above };
        if was != self.hypervisor.stealing {
            for cpu in 0..self.cpus.len() as u32 {
                self.set_rates(cpu);
            }
        }
        self.queue.push(self.now + 1_000_000_000, Event::Steal);
    }
}
