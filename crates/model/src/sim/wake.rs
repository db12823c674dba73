//! Waking, sleeping and moving between CPUs (`try_to_wake_up`, `dequeue_task`, `set_task_cpu`).

use super::engine::Sim;
use super::queue::Event;
use super::spec::Load;
use super::state::{NONE, Status};

impl Sim<'_> {
    /// A task becomes runnable (`try_to_wake_up`).
    pub(super) fn wake(&mut self, task: u32) {
        let t = &mut self.tasks[task as usize];
        if t.status != Status::Asleep {
            return;
        }
        let initial = t.first_ran_ns.is_none();
        self.wake_goal(task);
        if self.tasks[task as usize].status == Status::Ended {
            return;
        }
        let now = self.now;
        self.tasks[task as usize].status = Status::Ready;
        self.tasks[task as usize].waiting_since = now;
        let fair = self.tasks[task as usize].policy.is_fair();
        if fair && self.entities[task as usize].delayed {
            let cpu = self.tasks[task as usize].cpu;
            self.update_current(cpu);
            self.task_average(task, true);
            self.enqueue_fair(task, false);
            self.after_wake(cpu, task);
            return;
        }
        let cpu = if fair && matches!(self.tasks[task as usize].load, Load::Runs { .. }) && !initial {
            self.select_for_fork(task)
        } else {
            self.select_cpu(task, initial)
        };
        self.update_current(cpu);
        self.move_to(task, cpu);
        self.task_average(task, true);
        if fair {
            self.enqueue_fair(task, initial);
        } else {
            self.enqueue_rt(cpu, task);
        }
        self.after_wake(cpu, task);
    }

    pub(super) fn after_wake(&mut self, cpu: u32, task: u32) {
        let mark = self.throttle_clock(task);
        self.tasks[task as usize].throttle_mark = mark;
        self.mark_program(cpu);
        let current = self.cpus[cpu as usize].current;
        if current == NONE {
            self.mark_resched(cpu);
            return;
        }
        let (cur_fair, new_fair) =
            (self.tasks[current as usize].policy.is_fair(), self.tasks[task as usize].policy.is_fair());
        let preempt = match (cur_fair, new_fair) {
            (true, true) => {
                !self.cpus[cpu as usize].resched
                    && self.reachable(task)
                    && self.reachable(current)
                    && self.wakeup_preempts(current, task)
            }
            (true, false) => true,
            (false, true) => false,
            (false, false) => self.tasks[task as usize].priority > self.tasks[current as usize].priority,
        };
        if preempt {
            self.mark_resched(cpu);
        } else {
            self.check_overload(cpu);
        }
    }

    /// Whether no queue above the task is throttled or left.
    pub(super) fn reachable(&self, task: u32) -> bool {
        let mut e = task;
        loop {
            if !self.entities[e as usize].queued {
                return false;
            }
            let q = &self.queues[self.entities[e as usize].queue as usize];
            if q.throttled {
                return false;
            }
            if q.owner == NONE {
                return true;
            }
            e = q.owner;
        }
    }

    /// A running task stops until `at` (`None`: for ever).
    pub(super) fn sleep(&mut self, task: u32, at: Option<u64>) {
        let cpu = self.tasks[task as usize].cpu;
        let t = &mut self.tasks[task as usize];
        t.status = if at.is_some() { Status::Asleep } else { Status::Ended };
        t.voluntary += 1;
        let (fair, now, slack) = (t.policy.is_fair(), self.now, self.scenario.kernel.timer_slack_ns);
        self.task_average(task, false);
        if fair {
            self.dequeue_fair(task, at.is_some());
            self.learn_use(task);
        } else {
            self.dequeue_rt(cpu, task);
        }
        match at {
            Some(at) => {
                let at = if at == u64::MAX { at } else { at.max(now) + if fair { slack } else { 0 } };
                self.tasks[task as usize].ticket = self.queue.push(at, Event::Wake(task));
            }
            None => {
                self.tasks[task as usize].ended_ns = Some(now);
                self.work.alive = self.work.alive.saturating_sub(1);
            }
        }
        self.mark_resched(cpu);
    }

    /// A task that sleeps will not wake again.
    pub(super) fn end_asleep(&mut self, task: u32) {
        let t = &mut self.tasks[task as usize];
        // What was to wake it is void.
        t.ticket = 0;
        t.status = Status::Ended;
        t.ended_ns = Some(self.now);
        self.work.alive = self.work.alive.saturating_sub(1);
    }

    /// A real-time task that waits goes to a CPU where it would run (`push_rt_task`).
    pub(super) fn push_rt(&mut self, cpu: u32) {
        let c = &self.cpus[cpu as usize];
        let waiting = c.rt.iter().filter(|entry| entry.2 != c.current);
        let first = waiting.max_by_key(|(priority, order, _)| (*priority, std::cmp::Reverse(*order)));
        let Some(&(_, _, task)) = first else { return };
        let target = self.select_rt(task);
        if target != cpu {
            self.dequeue_rt(cpu, task);
            self.move_to(task, target);
            self.enqueue_rt(target, task);
            self.mark_resched(target);
        }
    }

    /// Moves a task that is not queued to a CPU's queues.
    pub(super) fn move_to(&mut self, task: u32, cpu: u32) {
        let t = &mut self.tasks[task as usize];
        let from = t.cpu;
        if from == cpu {
            return;
        }
        t.cpu = cpu;
        let group = t.group;
        let (old, new) = (self.entities[task as usize].queue, self.queue_of(group, cpu));
        let now = self.now;
        // Its part of the load average goes along.
        let weight = self.entities[task as usize].weight;
        let t = &mut self.tasks[task as usize];
        let (part, util) = (t.load_avg.read(now), t.util.read(now));
        if t.policy.is_fair() {
            let runnable = part / weight * 1024.0;
            for (cpu, sign) in [(from, -1.0), (cpu, 1.0)] {
                let c = &mut self.cpus[cpu as usize];
                c.util.shift(now, sign * util);
                c.runnable.shift(now, sign * runnable);
            }
        }
        self.queues[old as usize].load.shift(now, -part);
        self.queues[new as usize].load.shift(now, part);
        if !self.eevdf() {
            let shift = self.queues[new as usize].zero - self.queues[old as usize].zero;
            self.entities[task as usize].vruntime += shift;
        }
        self.entities[task as usize].queue = new;
    }

    /// Index of a group's queue on a CPU.
    pub(super) fn queue_of(&self, group: u32, cpu: u32) -> u32 {
        let base = if group == NONE { 0 } else { group + 1 };
        base * self.cpus.len() as u32 + cpu
    }
}
