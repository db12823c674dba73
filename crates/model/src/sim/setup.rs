//! Building the initial state, counting, and the report.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::balance::Balance;
use super::change::Hypervisor;
use super::engine::{RR_NS, Sim, Tuning, Work};
use super::pelt::Average;
use super::queue::{Event, Queue};
use super::report::{GroupReport, Histogram, Report, TaskReport};
use super::spec::{Load, Scenario, Steal, Task, scale};
use super::state::{
    Behaviour, CounterState, Cpu, Entity, Goal, GroupState, NICE_0, NONE, Phase, RunQueue, Status, TaskState,
};

impl<'a> Sim<'a> {
    /// The state at time zero of a checked scenario.
    pub fn new(scenario: &'a Scenario) -> Self {
        let cpus = build_cpus(scenario);
        let count = cpus.len();
        let granularity = scenario.kernel.granularity_ns(count);
        let task_count = scenario.tasks.len();
        let mut sim = Self {
            scenario,
            now: 0,
            queue: Queue::default(),
            cpus,
            entities: Vec::with_capacity(task_count + scenario.groups.len() * count),
            queues: Vec::with_capacity((1 + scenario.groups.len()) * count),
            groups: Vec::new(),
            tasks: Vec::new(),
            work: Work { counters: counters(scenario), alive: alive(&scenario.tasks) },
            tuning: Tuning {
                generation: scenario.kernel.generation,
                tick_ns: 1_000_000_000 / u64::from(scenario.kernel.hz),
                granularity,
                cfs_latency: granularity * 8.0,
                cfs_wakeup_granularity: 1_000_000.0 * scale(count),
            },
            balance: Balance::new(count, scenario.seed),
            hypervisor: Hypervisor::default(),
        };
        for cpu in 0..count as u32 {
            sim.set_idle(cpu, true);
            sim.queues.push(run_queue(cpu, NONE, NONE, false));
        }
        for (index, task) in scenario.tasks.iter().enumerate() {
            sim.add_task(index as u32, task);
        }
        sim.add_groups();
        sim.place_tasks();
        for cpu in 0..count as u32 {
            sim.set_rates(cpu);
            if count > 1 {
                // Spread, so that not all CPUs balance in the same tick.
                let at = sim.tuning.tick_ns * u64::from(1 + cpu % 16);
                sim.cpus[cpu as usize].balance_ticket = sim.queue.push(at, Event::Balance(cpu));
            }
        }
        if scenario.measure_from_ns > 0 {
            sim.queue.push(scenario.measure_from_ns, Event::Measure);
        }
        if matches!(scenario.machine.steal, Steal::Window { .. }) {
            sim.queue.push(1_000_000_000, Event::Steal);
        }
        for (index, timed) in scenario.changes.iter().enumerate() {
            sim.queue.push(timed.at_ns, Event::Change(index as u32));
        }
        for (index, task) in scenario.tasks.iter().enumerate() {
            sim.tasks[index].ticket = sim.queue.push(task.start_ns, Event::Wake(index as u32));
        }
        sim
    }

    fn add_task(&mut self, index: u32, task: &Task) {
        let mut rng = Pcg32::seed_from_u64(
            self.scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(index)),
        );
        let _: u64 = rng.random();
        let behaviour = match &task.load {
            Load::Duty { kind, .. } => Behaviour::Duty { kind: *kind, rest_ns: 0, arrival_ns: 0 },
            Load::Runs { .. } => Behaviour::Runs {
                phase: Phase::Between,
                done: 0,
                started_ns: 0,
                first_ns: 0,
                got: 0.0,
                waited: 0,
            },
            _ => Behaviour::Other,
        };
        self.tasks.push(TaskState {
            load: task.load.clone(),
            behaviour,
            goal: Goal::Never,
            status: Status::Asleep,
            policy: task.attr.policy,
            priority: 1,
            group: task.group.map_or(NONE, |g| g as u32),
            cpu: 0,
            allowed: Vec::new(),
            allowed_count: 0,
            rng,
            ticket: 0,
            waiting_since: 0,
            throttle_mark: 0,
            recent_cpu: NONE,
            last_ran: 0,
            load_avg: Average::default(),
            util: Average::default(),
            util_est: 0.0,
            used_cpu: NONE,
            rr_left: RR_NS,
            got: 0.0,
            work: 0.0,
            waited: 0,
            throttled: 0,
            waits: Histogram::default(),
            voluntary: 0,
            involuntary: 0,
            migrations: 0,
            cycles: 0,
            wanted: 0.0,
            runs: Vec::new(),
            ended_ns: None,
            first_ran_ns: None,
        });
        self.entities.push(entity(NONE, NONE, self.tuning.granularity));
        self.apply_attr(index, task.attr);
        let allowed = self.scenario.task_cpus(task);
        self.set_allowed(index, &allowed);
        // A new task counts as fully loaded.
        let weight = self.entities[index as usize].weight;
        self.tasks[index as usize].load_avg.reset(0, weight);
    }

    fn add_groups(&mut self) {
        let count = self.cpus.len() as u32;
        for (index, group) in self.scenario.groups.iter().enumerate() {
            let quota_ns = group.quota.quota_usec.value().map(|us| us as f64 * 1000.0);
            self.groups.push(GroupState {
                parent: group.parent.map_or(NONE, |p| p as u32),
                weight: group.weight,
                quota_ns,
                period_ns: group.quota.period_usec * 1000,
                burst_ns: group.quota.burst_usec as f64 * 1000.0,
                pool: quota_ns.unwrap_or(0.0),
                ..GroupState::default()
            });
            for cpu in 0..count {
                let owner = self.entities.len() as u32;
                let own_queue = self.queues.len() as u32;
                let parent_queue = self.queue_of(self.groups[index].parent, cpu);
                let mut ent = entity(parent_queue, own_queue, self.tuning.granularity);
                ent.weight = group.weight;
                self.entities.push(ent);
                self.queues.push(run_queue(cpu, owner, index as u32, quota_ns.is_some()));
            }
            if quota_ns.is_some() {
                self.queue.push(group.quota.period_usec * 1000, Event::Period(index as u32));
            }
        }
    }

    /// Start CPUs: spread over the allowed ones, in an order that depends on the seed.
    fn place_tasks(&mut self) {
        let mut rng = Pcg32::seed_from_u64(self.scenario.seed ^ 0x5eed);
        let count = self.cpus.len() as u32;
        for task in 0..self.tasks.len() {
            let allowed: Vec<u32> = (0..count).filter(|&c| self.tasks[task].may_run_on(c)).collect();
            let pick = rng.random_range(0..allowed.len().max(1));
            let cpu = allowed.get(pick).copied().unwrap_or(0);
            self.tasks[task].cpu = cpu;
            self.entities[task].queue = self.queue_of(self.tasks[task].group, cpu);
        }
    }

    /// Index of a logical CPU among the online ones.
    pub(super) fn scenario_cpu(&self, cpu: u32) -> Option<usize> {
        online_index(self.scenario, cpu)
    }

    /// Recomputes how fast a CPU's time and work pass.
    pub(super) fn set_rates(&mut self, cpu: u32) {
        self.update_current(cpu);
        let machine = &self.scenario.machine;
        let stolen = match machine.steal {
            Steal::None => 0.0,
            Steal::Constant(share) => share,
            Steal::Window { stolen, .. } => {
                if self.hypervisor.stealing {
                    stolen
                } else {
                    0.0
                }
            }
        };
        let siblings = &self.cpus[cpu as usize].spans[0];
        let shared = siblings.iter().any(|&s| !self.is_idle(s));
        let smt = if shared { machine.smt_speedup / 2.0 } else { 1.0 };
        let c = &mut self.cpus[cpu as usize];
        c.rate = 1.0 - stolen;
        c.work_rate = c.rate * smt * machine.clock;
        self.mark_program(cpu);
    }

    /// A CPU became busy or idle: its siblings run at another speed.
    pub(super) fn sibling_rates(&mut self, cpu: u32) {
        if self.cpus[cpu as usize].spans[0].is_empty() {
            return;
        }
        self.set_rates(cpu);
        for sibling in self.cpus[cpu as usize].spans[0].clone() {
            self.set_rates(sibling);
        }
    }

    /// Forgets what was counted so far.
    pub(super) fn start_measuring(&mut self) {
        for cpu in 0..self.cpus.len() as u32 {
            self.update_current(cpu);
            self.cpus[cpu as usize].busy = 0.0;
        }
        let now = self.now;
        for task in 0..self.tasks.len() {
            let waiting = self.tasks[task].status == Status::Ready
                && self.cpus[self.tasks[task].cpu as usize].current != task as u32;
            let clock = self.throttle_clock(task as u32);
            let t = &mut self.tasks[task];
            (t.got, t.work, t.wanted) = (0.0, 0.0, 0.0);
            (t.waited, t.throttled, t.voluntary, t.involuntary, t.migrations) = (0, 0, 0, 0, 0);
            t.waits = Histogram::default();
            if waiting {
                t.waiting_since = now;
                t.throttle_mark = clock;
            }
        }
    }

    pub(super) fn finish(mut self) -> Report {
        let measured = self.now.saturating_sub(self.scenario.measure_from_ns).max(1);
        for cpu in 0..self.cpus.len() as u32 {
            self.update_current(cpu);
        }
        let pct = |ns: f64| 100.0 * ns / measured as f64;
        let mut tasks = Vec::with_capacity(self.tasks.len());
        for (index, spec) in self.scenario.tasks.iter().enumerate() {
            let clock = self.throttle_clock(index as u32);
            let t = &mut self.tasks[index];
            let waiting = t.status == Status::Ready && self.cpus[t.cpu as usize].current != index as u32;
            if waiting {
                let wait = self.now - t.waiting_since;
                t.waited += wait;
                t.throttled += clock.saturating_sub(t.throttle_mark).min(wait);
            }
            // Of the time measured: who comes later, or ends, wants nothing before and after.
            let from = spec.start_ns.max(self.scenario.measure_from_ns);
            let there = spec.until_ns.unwrap_or(self.now).min(self.now).saturating_sub(from);
            let wanted_pct = match spec.load {
                Load::Duty { percent, .. } => Some(percent * there as f64 / measured as f64),
                Load::Spin => Some(pct(there as f64)),
                Load::Idle => Some(0.0),
                _ => None,
            };
            tasks.push(TaskReport {
                name: spec.name.clone(),
                got_s: t.got / 1e9,
                got_pct: pct(t.got),
                wanted_pct,
                work_s: t.work / 1e9,
                waited_s: t.waited as f64 / 1e9,
                throttled_s: t.throttled as f64 / 1e9,
                waits: std::mem::take(&mut t.waits),
                voluntary: t.voluntary,
                involuntary: t.involuntary,
                migrations: t.migrations,
                runs: std::mem::take(&mut t.runs),
                first_ran_ns: t.first_ran_ns,
                ended_ns: t.ended_ns,
            });
        }
        let count = self.cpus.len();
        let groups = self.scenario.groups.iter().enumerate().map(|(index, group)| {
            let ns: u64 = self.queues[(index + 1) * count..(index + 2) * count]
                .iter()
                .map(|q| q.throttled_ns + if q.throttled { self.now - q.throttled_at } else { 0 })
                .sum();
            GroupReport {
                name: group.name.clone(),
                periods: self.groups[index].periods,
                throttled_periods: self.groups[index].throttled_periods,
                throttled_s: ns as f64 / 1e9,
            }
        });
        Report {
            groups: groups.collect(),
            rounds: self.work.counters.iter_mut().map(|c| std::mem::take(&mut c.rounds)).collect(),
            cpu_pct: self.cpus.iter().map(|c| pct(c.busy)).collect(),
            measured_s: measured as f64 / 1e9,
            end_ns: self.now,
            events: self.queue.handled,
            tasks,
        }
    }
}

/// Tasks whose end is waited for; none of a scenario in which all go on for ever.
pub(super) fn alive(tasks: &[Task]) -> usize {
    let ending = tasks.iter().filter(|t| t.ends()).count();
    if ending == 0 { tasks.len() } else { ending }
}

fn counters(scenario: &Scenario) -> Vec<CounterState> {
    let mut counters = vec![CounterState::default(); scenario.counters.len()];
    for task in &scenario.tasks {
        if let Load::Counter { counter, .. } = task.load
            && let Some(state) = counters.get_mut(counter)
        {
            state.busy += 1;
        }
    }
    counters
}

fn online_index(scenario: &Scenario, cpu: u32) -> Option<usize> {
    let online = &scenario.machine.topology.online;
    online.contains(cpu).then(|| online.iter().take_while(|&c| c < cpu).count())
}

fn build_cpus(scenario: &Scenario) -> Vec<Cpu> {
    let topology = &scenario.machine.topology;
    let online: Vec<u32> = topology.online.iter().collect();
    let view = |cpu: u32| {
        let c = topology.cpu(cpu);
        (c.and_then(|c| c.core).unwrap_or(cpu), c.and_then(|c| c.llc))
    };
    let views: Vec<_> = online.iter().map(|&c| view(c)).collect();
    (0..online.len())
        .map(|own| {
            let mut spans: [Vec<u32>; 3] = Default::default();
            let mut llc = 1;
            // Ring order from the next CPU on, as the kernel's idle search runs.
            for step in 1..online.len() {
                let other = (own + step) % online.len();
                if views[other].0 == views[own].0 {
                    spans[0].push(other as u32);
                }
                if views[other].1 == views[own].1 {
                    spans[1].push(other as u32);
                    llc += 1;
                } else {
                    spans[2].push(other as u32);
                }
            }
            Cpu {
                current: NONE,
                rate: 1.0,
                work_rate: 1.0,
                event_at: u64::MAX,
                spans,
                llc,
                scan: llc,
                ..Cpu::default()
            }
        })
        .collect()
}

fn entity(queue: u32, owns: u32, slice: f64) -> Entity {
    Entity { weight: NICE_0, slice, vprot: f64::NEG_INFINITY, queue, owns, ..Entity::default() }
}

fn run_queue(cpu: u32, owner: u32, group: u32, limited: bool) -> RunQueue {
    RunQueue { current: NONE, owner, cpu, group, limited, ..RunQueue::default() }
}
