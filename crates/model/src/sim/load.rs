//! What tasks do: the next goal after a wake-up, and what follows when a goal is reached.

use rand::Rng;

use super::engine::Sim;
use super::queue::Event;
use super::report::Run;
use super::spec::{DutyKind, Load};
use super::state::{Behaviour, Goal, Phase};

impl Sim<'_> {
    /// Sets the goal of a task that wakes (or starts).
    pub(super) fn wake_goal(&mut self, task: u32) {
        let load = self.tasks[task as usize].load.clone();
        let until = self.scenario.tasks.get(task as usize).and_then(|t| t.until_ns);
        match load {
            // Its last pause is over: nothing more to do.
            Load::Duty { .. } | Load::Idle if until.is_some_and(|until| self.now >= until) => {
                self.tasks[task as usize].goal = Goal::Work(0.0);
            }
            Load::Duty { .. } => self.next_cycle(task),
            Load::Spin => self.tasks[task as usize].goal = until.map_or(Goal::Never, Goal::Until),
            Load::Runs { overhead_work_ns, .. } => {
                let now = self.now;
                let t = &mut self.tasks[task as usize];
                let (so_far, so_long) = (t.got, t.waited);
                if let Behaviour::Runs { phase, started_ns, got, waited, .. } = &mut t.behaviour {
                    (*phase, *started_ns, *got, *waited) = (Phase::Setup, now, so_far, so_long);
                }
                t.goal = Goal::Work(overhead_work_ns as f64);
            }
            Load::Job { work_ns } => self.tasks[task as usize].goal = Goal::Work(work_ns as f64),
            Load::Counter { counter, .. } => {
                if !self.next_item(task, counter) {
                    self.tasks[task as usize].goal = Goal::Work(0.0);
                }
            }
            Load::Idle => self.tasks[task as usize].goal = Goal::Work(0.0),
        }
    }

    /// What follows when a running task has reached its goal.
    pub(super) fn goal_done(&mut self, task: u32) {
        let load = self.tasks[task as usize].load.clone();
        let until = self.scenario.tasks.get(task as usize).and_then(|t| t.until_ns);
        match load {
            Load::Duty { .. } | Load::Spin | Load::Idle if until.is_some_and(|until| self.now >= until) => {
                self.tasks[task as usize].cycles += 1;
                self.sleep(task, None);
            }
            Load::Duty { kind, .. } => self.end_cycle(task, kind),
            Load::Spin => {}
            Load::Runs { run_ns, runs, event_ns, overhead_sleep_ns, .. } => {
                self.run_step(task, run_ns, runs, event_ns, overhead_sleep_ns);
            }
            Load::Job { .. } => self.sleep(task, None),
            Load::Idle => self.sleep(task, Some(until.unwrap_or(u64::MAX))),
            Load::Counter { counter, rounds } => {
                self.tasks[task as usize].cycles += 1;
                if self.next_item(task, counter) || self.next_round(task, counter, rounds) {
                    let cpu = self.tasks[task as usize].cpu;
                    self.mark_program(cpu);
                }
            }
        }
    }

    /// Takes the next item of a counter; false when none is left.
    fn next_item(&mut self, task: u32, counter: usize) -> bool {
        let at = self.work.counters[counter].next;
        match self.scenario.counters[counter].get(at) {
            Some(&work) => {
                self.work.counters[counter].next = at + 1;
                self.tasks[task as usize].goal = Goal::Work(f64::from(work));
                true
            }
            None => false,
        }
    }

    /// A running task found no item left: it waits for the others of its counter. The last of them ends the round, and it is
    /// the one that goes on at once if there is another (true).
    fn next_round(&mut self, task: u32, counter: usize, rounds: u32) -> bool {
        let (now, empty) = (self.now, self.scenario.counters[counter].is_empty());
        let state = &mut self.work.counters[counter];
        state.busy = state.busy.saturating_sub(1);
        if state.busy > 0 {
            state.through.push(task);
            self.sleep(task, Some(u64::MAX));
            return false;
        }
        state.rounds.push(now);
        let through = std::mem::take(&mut state.through);
        let more = state.rounds.len() < rounds as usize && !empty;
        if more {
            state.next = 0;
            state.busy = through.len() as u32 + 1;
        }
        for other in through {
            if more {
                self.tasks[other as usize].ticket = self.queue.push(now, Event::Wake(other));
            } else {
                self.end_asleep(other);
            }
        }
        if !more || !self.next_item(task, counter) {
            self.sleep(task, None);
            return false;
        }
        true
    }

    /// Draws a period and its share of work.
    fn next_cycle(&mut self, task: u32) {
        let now = self.now;
        let t = &mut self.tasks[task as usize];
        let Load::Duty { percent, period_ns, jitter, .. } = t.load else { return };
        let factor = if jitter > 0.0 { 1.0 + jitter * (2.0 * t.rng.random::<f64>() - 1.0) } else { 1.0 };
        let period = period_ns as f64 * factor;
        let work = period * percent / 100.0;
        let Behaviour::Duty { kind, rest_ns, arrival_ns } = &mut t.behaviour else { return };
        *rest_ns = (period - work).round() as u64;
        t.goal = match kind {
            DutyKind::Wall => Goal::Begin(work.round()),
            DutyKind::Closed => Goal::Cpu(work.round()),
            DutyKind::Open => {
                let from = if *arrival_ns == 0 { now } else { *arrival_ns };
                *arrival_ns = from + period.round() as u64;
                Goal::Cpu(work.round())
            }
        };
    }

    fn end_cycle(&mut self, task: u32, kind: DutyKind) {
        let now = self.now;
        let last = self.scenario.tasks.get(task as usize).and_then(|t| t.until_ns);
        let t = &mut self.tasks[task as usize];
        t.cycles += 1;
        let Behaviour::Duty { rest_ns, arrival_ns, .. } = t.behaviour else { return };
        let until = match kind {
            DutyKind::Wall | DutyKind::Closed => now + rest_ns,
            DutyKind::Open => arrival_ns,
        };
        if until > now {
            self.sleep(task, Some(last.map_or(until, |last| until.min(last))));
            return;
        }
        // No pause between the cycles: it goes on running.
        self.next_cycle(task);
        let t = &mut self.tasks[task as usize];
        if let Goal::Begin(ns) = t.goal {
            t.goal = Goal::Until(now + ns as u64);
        }
        let cpu = t.cpu;
        self.mark_program(cpu);
    }

    fn run_step(&mut self, task: u32, run_ns: u64, runs: u32, event_ns: u64, pause_ns: u64) {
        let now = self.now;
        let t = &mut self.tasks[task as usize];
        let cpu = t.cpu;
        let (got, waited) = (t.got, t.waited);
        let Behaviour::Runs { phase, done, started_ns, first_ns, got: got_then, waited: waited_then } =
            &mut t.behaviour
        else {
            return;
        };
        match phase {
            Phase::Setup => {
                *phase = Phase::Running;
                *first_ns = now;
                t.goal = Goal::Events(event_ns as f64, 0.0, now + run_ns);
                self.mark_program(cpu);
            }
            Phase::Running => {
                let work = if let Goal::Events(_, work, _) = t.goal { work } else { 0.0 };
                let events = (work / event_ns as f64).round() as u64;
                t.runs.push(Run {
                    started_ns: *started_ns,
                    first_ns: *first_ns,
                    ended_ns: now,
                    events,
                    // Counting may have begun again in between.
                    got_ns: (got - *got_then).max(0.0) as u64,
                    waited_ns: waited.saturating_sub(*waited_then),
                });
                *done += 1;
                *phase = Phase::Between;
                let more = *done < runs;
                self.sleep(task, more.then(|| now + pause_ns));
            }
            Phase::Between => {}
        }
    }
}
