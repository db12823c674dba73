//! What a plan would do on a host as observed: the observation becomes a scenario, the plan is applied to it, both are
//! simulated.
//!
//! What is not known is assumed: a task is taken for a *closed* load (it computes for as long as it did between two
//! sleeps, then sleeps for as long as it did), the kernel's background work is that of an idle host, and tasks below
//! one percent outside the scope do not exist. A prediction orders plans; the trial decides.

use std::collections::{BTreeMap, HashMap};

use evenkeel_base::{Nice, Observation, Plan, SchedAttr, Setting, Target, TaskId, TaskView, load_weight};

use crate::sim::{self, DutyKind, Group, Kernel, Load, Report, Scenario, SpecError, Task};

/// Tasks outside the scope that use less than this are left out, percent of one CPU.
const LEAST_PCT: f64 = 1.0;
/// Most tasks simulated; those of the scope come first, then by use.
const MOST_TASKS: usize = 2_000;
/// A task that sleeps more rarely than this a second is taken to want the CPU always while it waits or runs.
const RARELY_PER_S: f64 = 0.5;
/// Simulated seconds times tasks.
const TASK_SECONDS: f64 = 1_000.0;

/// A host as the simulator sees it.
#[derive(Debug, Clone)]
pub struct Host {
    scenario: Scenario,
    /// Index of each task.
    tasks: HashMap<TaskId, usize>,
    /// Index of each group, by path.
    groups: HashMap<String, usize>,
    scope: Vec<TaskId>,
}

/// What a task or a scope gets.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Use {
    /// CPU got, percent of one CPU.
    pub got_pct: f64,
    /// Time waited for a CPU, percent of the interval, summed.
    pub wait_pct: f64,
}

/// What a plan would do.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The scope as found, simulated.
    pub before: Use,
    /// The scope under the plan, simulated.
    pub after: Use,
    /// The same for each task of the scope.
    pub tasks: BTreeMap<TaskId, (Use, Use)>,
}

impl Use {
    /// Time waited per CPU time got; `None` when nothing was got.
    pub fn wait_per_ran(&self) -> Option<f64> {
        (self.got_pct > 0.0).then(|| self.wait_pct / self.got_pct)
    }
}

impl Prediction {
    /// Change of the CPU the scope gets, percent of what it gets as found; `None` when that is nothing.
    pub fn cpu_change_pct(&self) -> Option<f64> {
        (self.before.got_pct > 0.0).then(|| 100.0 * (self.after.got_pct / self.before.got_pct - 1.0))
    }

    /// In a few words: `CPU +1.9 %, wait per CPU second 0.081 to 0.031`.
    pub fn in_words(&self) -> String {
        describe(self.before, self.after)
    }

    /// The same for one task; `None` for one that was not simulated.
    pub fn task_in_words(&self, task: TaskId) -> Option<String> {
        self.tasks.get(&task).map(|(before, after)| describe(*before, *after))
    }
}

fn describe(before: Use, after: Use) -> String {
    let cpu = if before.got_pct > 0.0 {
        format!("CPU {:+.1} %", 100.0 * (after.got_pct / before.got_pct - 1.0))
    } else {
        format!("CPU {:.1} % of one", after.got_pct)
    };
    match (before.wait_per_ran(), after.wait_per_ran()) {
        (Some(b), Some(a)) => format!("{cpu}, wait per CPU second {b:.3} to {a:.3}"),
        _ => cpu,
    }
}

impl Host {
    /// From an observation with the slow facts (class, slice, affinity, switches) of the scope's tasks.
    pub fn new(observation: &Observation, kernel: Kernel, in_scope: impl Fn(&TaskView) -> bool) -> Self {
        let mut scenario = Scenario::new(1);
        scenario.machine = sim::Machine::new((*observation.topology).clone());
        scenario.machine.background_per_s = 20.0;
        if let Some(steal) = observation.host.steal_pct {
            let share = steal / 100.0 / f64::from(observation.host.cpus.max(1));
            if share > 0.005 {
                scenario.machine.steal = sim::Steal::Constant(share.min(0.95));
            }
        }
        scenario.kernel = kernel;
        let mut groups = HashMap::new();
        let mut index_of = vec![None; observation.groups.len()];
        for (index, view) in observation.groups.iter().enumerate() {
            // The root is nobody's child: its tasks are the scenario's root tasks.
            if view.path == "/" {
                continue;
            }
            let mut group =
                Group::new(view.path.clone(), view.parent.and_then(|p| *index_of.get(p as usize)?));
            if let Some(weight) = view.load_weight {
                group.weight = (weight as f64).clamp(2.0, 262_144.0);
            }
            if let Some(quota) = view.quota {
                group.quota = quota;
            }
            index_of[index] = Some(scenario.groups.len());
            groups.insert(view.path.clone(), scenario.groups.len());
            scenario.groups.push(group);
        }
        let wanted = |t: &TaskView| t.cpu_pct + t.wait_pct.unwrap_or(0.0);
        let mut chosen: Vec<(bool, &TaskView)> = observation
            .tasks
            .iter()
            .filter(|t| !t.kernel_thread)
            .map(|t| (in_scope(t), t))
            .filter(|(scope, t)| if *scope { wanted(t) > 0.0 } else { t.cpu_pct >= LEAST_PCT })
            .collect();
        chosen.sort_by(|a, b| b.0.cmp(&a.0).then(wanted(b.1).total_cmp(&wanted(a.1))));
        chosen.truncate(MOST_TASKS);
        let mut tasks = HashMap::new();
        let mut scope = Vec::new();
        for (is_scope, view) in chosen {
            let Some(load) = load_of(view) else { continue };
            let group = view.group.and_then(|g| *index_of.get(g as usize)?);
            let mut task = Task::new(view.comm.clone(), group, load);
            task.attr = view.sched.unwrap_or(SchedAttr { nice: Nice::new(0), ..SchedAttr::DEFAULT });
            // Most programs do not read their CPU clock.
            task.clock_read_ns = None;
            let online = &observation.topology.online;
            let cpuset = observation.group_of(view).and_then(|g| g.cpuset.as_ref());
            for limit in [view.affinity.as_ref(), cpuset].into_iter().flatten() {
                let now = task.cpus.as_ref().unwrap_or(online);
                if now.intersects(limit) {
                    task.cpus = Some(now.intersection(limit));
                }
            }
            tasks.insert(view.id, scenario.tasks.len());
            if is_scope {
                scope.push(view.id);
            }
            scenario.tasks.push(task);
        }
        let seconds = (TASK_SECONDS / scenario.tasks.len().max(1) as f64).clamp(0.5, 10.0);
        scenario.measure_from_ns = 500_000_000;
        scenario.duration_ns = scenario.measure_from_ns + (seconds * 1e9) as u64;
        Self { scenario, tasks, groups, scope }
    }

    /// Simulates the host under the baseline and under each plan. An empty list for a scope without running tasks.
    ///
    /// # Errors
    /// What was observed, or a plan, cannot be simulated: a deadline task, a weight or quota out of range.
    pub fn predict(&self, plans: &[Plan]) -> Result<Vec<Prediction>, SpecError> {
        if self.scope.is_empty() {
            return Ok(Vec::new());
        }
        let before = self.simulate(&Plan::default())?;
        plans
            .iter()
            .map(|plan| {
                let after = if plan.changes.is_empty() { before.clone() } else { self.simulate(plan)? };
                let sum = |uses: &[Use]| Use {
                    got_pct: uses.iter().map(|u| u.got_pct).sum(),
                    wait_pct: uses.iter().map(|u| u.wait_pct).sum(),
                };
                let tasks = self.scope.iter().copied().zip(before.iter().copied().zip(after.iter().copied()));
                Ok(Prediction { before: sum(&before), after: sum(&after), tasks: tasks.collect() })
            })
            .collect()
    }

    /// Means of three seeds for the scope's tasks.
    fn simulate(&self, plan: &Plan) -> Result<Vec<Use>, SpecError> {
        const SEEDS: u64 = 3;
        let mut scenario = self.scenario.clone();
        self.apply(plan, &mut scenario);
        let mut uses = vec![Use::default(); self.scope.len()];
        for seed in 1..=SEEDS {
            scenario.seed = seed;
            let report: Report = sim::simulate(&scenario)?;
            for (id, sum) in self.scope.iter().zip(&mut uses) {
                let Some(task) = self.tasks.get(id).and_then(|&index| report.tasks.get(index)) else {
                    continue;
                };
                sum.got_pct += task.got_pct / SEEDS as f64;
                sum.wait_pct += 100.0 * task.waited_s / report.measured_s / SEEDS as f64;
            }
        }
        Ok(uses)
    }

    /// Changes the scenario as the plan says. What is not simulated (a group's `cpu.idle`, real-time budgets, BPF schedulers) and what
    /// names nobody known is left out.
    fn apply(&self, plan: &Plan, scenario: &mut Scenario) {
        for change in &plan.changes {
            match (&change.target, &change.to) {
                (Target::Task(id), to) => {
                    let Some(task) = self.tasks.get(id).and_then(|&i| scenario.tasks.get_mut(i)) else {
                        continue;
                    };
                    match to {
                        Setting::Sched(attr) => task.attr = *attr,
                        Setting::Affinity(cpus) => task.cpus = Some(cpus.clone()),
                        _ => {}
                    }
                }
                (Target::Group(target), to) => {
                    let Some(group) = self.groups.get(&target.path).and_then(|&i| scenario.groups.get_mut(i))
                    else {
                        continue;
                    };
                    match to {
                        Setting::Weight(raw) => group.weight = load_weight(*raw, target.v2) as f64,
                        Setting::Quota(quota) => group.quota = *quota,
                        Setting::Cpuset(cpus) => group.cpus = Some(cpus.clone()),
                        _ => {}
                    }
                }
                (Target::Net(_) | Target::Host, _) => {}
            }
        }
    }
}

/// A closed load like the task; `None` for one that used nothing.
fn load_of(view: &TaskView) -> Option<Load> {
    let (got, waited) = (view.cpu_pct / 100.0, view.wait_pct.unwrap_or(0.0) / 100.0);
    let slept = (1.0 - got - waited).max(0.0);
    if got <= 0.0 {
        return None;
    }
    let cycles = view.voluntary_per_s.unwrap_or(10.0);
    if cycles < RARELY_PER_S || slept < 0.002 {
        return (slept < 0.3).then_some(Load::Spin).or_else(|| duty(got, slept, 1.0));
    }
    duty(got, slept, cycles)
}

/// Works `got` and sleeps `slept` of each second, in so many cycles.
fn duty(got: f64, slept: f64, cycles: f64) -> Option<Load> {
    let busy = got + slept;
    let period_ns = (busy / cycles * 1e9).clamp(50_000.0, 10e9) as u64;
    let percent = (100.0 * got / busy).clamp(0.01, 100.0);
    Some(Load::Duty { percent, period_ns, jitter: 0.5, kind: DutyKind::Closed })
}
