//! From a file's machine, groups and tasks to what the simulator takes.

use evenkeel_base::{Topology, load_weight};
use evenkeel_model::credit::Rule;
use evenkeel_model::sim::{DutyKind, Group, Kernel, Load, Machine, Report, Scenario, Steal, Task, simulate};

use super::check::{MOST_S, check_each};
use super::{Experiment, GroupSpec, Kind, MachineSpec, Place, TaskSpec, TenantSpec, Wrong};
use crate::instance::rule_of;

const MOST_TASKS: u32 = 100_000;

impl Experiment {
    /// One repetition (from 0) of the tasks on their machine.
    pub fn scenario(&self, repetition: u32) -> Result<Scenario, Wrong> {
        let Some(machine) = &self.machine else {
            let message = "tasks and groups are simulated on a machine: describe it in a [machine]";
            return Err(Wrong::new(if self.tasks.is_empty() { "[[group]]" } else { "[[task]]" }, 0, message));
        };
        let nanoseconds = |s: f64| (0.0..=MOST_S).contains(&s).then_some((s * 1e9) as u64);
        let Some(warmup) = nanoseconds(self.warmup_s) else {
            let message = format!("warmup_s {} is not 0 to {MOST_S} seconds (30 days)", self.warmup_s);
            return Err(Wrong::new("warmup_s", 0, message));
        };
        let within = self.warmup_s + self.duration_s <= MOST_S;
        let Some(duration) = nanoseconds(self.duration_s).filter(|ns| *ns > 0 && within) else {
            let message = format!(
                "duration_s {} must be above 0, with warmup_s at most {MOST_S} seconds (30 days)",
                self.duration_s
            );
            return Err(Wrong::new("duration_s", 0, message));
        };
        let mut s = machine.scenario().map_err(|message| Wrong::new("[machine]", 0, message))?;
        s.seed = self.seed.wrapping_add(u64::from(repetition));
        (s.measure_from_ns, s.duration_ns) = (warmup, warmup + duration);
        let place = |name: &str| self.groups.iter().position(|group| group.name == name);
        for (index, group) in self.groups.iter().enumerate() {
            let refuse =
                |message: String| Wrong::new("[[group]]", index, format!("group {}: {message}", group.name));
            if group.name.is_empty() || place(&group.name) != Some(index) {
                return Err(refuse("without a name, or two groups have this name".into()));
            }
            group.check().map_err(refuse)?;
            let parent = match &group.parent {
                Some(name) => match place(name).filter(|parent| *parent < index) {
                    None => return Err(refuse(format!("no group {name:?} before it"))),
                    parent => parent,
                },
                None => None,
            };
            s.groups.push(Group { parent, ..group.group() });
        }
        // Which `[[task]]` each of the scenario's is.
        let mut written = Vec::new();
        for (index, task) in self.tasks.iter().enumerate() {
            let refuse = |message: String| Wrong::new("[[task]]", index, message);
            let mut one = task.task().map_err(refuse)?;
            if let Some(name) = &task.group {
                one.group = Some(place(name).ok_or_else(|| refuse(format!("no group {name:?}")))?);
            }
            let base = task.name(index);
            for number in 1..=task.count {
                let name = if task.count > 1 { format!("{base}.{number}") } else { base.clone() };
                s.tasks.push(Task { name, ..one.clone() });
                written.push(index);
            }
            if s.tasks.len() > MOST_TASKS as usize {
                return Err(refuse(format!("more than {MOST_TASKS} tasks")));
            }
        }
        s.check().map_err(|error| {
            let message = error.to_string();
            // The object with the longest name that the message names: `task t10`, not `task t1`.
            let groups = s.groups.iter().enumerate();
            let groups = groups.map(|(index, group)| (format!("group {}", group.name), "[[group]]", index));
            let tasks = s.tasks.iter().zip(&written);
            let tasks = tasks.map(|(task, index)| (format!("task {}", task.name), "[[task]]", *index));
            let named = groups.chain(tasks).filter(|(what, ..)| message.contains(what.as_str()));
            let (_, part, index) =
                named.max_by_key(|(what, ..)| what.len()).unwrap_or((String::new(), "[machine]", 0));
            Wrong::new(part, index, message)
        })?;
        Ok(s)
    }

    /// What the simulator reports of one repetition (from 0).
    pub fn simulate(&self, repetition: u32) -> Result<Report, Wrong> {
        if self.is_of_tenants() {
            return Err(Wrong::new(
                "name",
                0,
                "tasks alone are simulated here: no [[tenant]], [enforcer] or cpus",
            ));
        }
        simulate(&self.scenario(repetition)?).map_err(|error| Wrong::new("[machine]", 0, error.to_string()))
    }

    /// The same with its tasks written as tenants: plain processes that want what the tasks want until their time is over.
    pub fn tasks_as_tenants(mut self) -> Result<Self, Wrong> {
        if !self.groups.is_empty() {
            let message = "a [[group]] of [[task]]s is for `evenkeel sim` alone; write them as [[tenant]]s, each with its \
                           own weight and quota_pct";
            return Err(Wrong::new("[[group]]", 0, message));
        }
        let whole_s = self.warmup_s + self.duration_s;
        for (index, task) in std::mem::take(&mut self.tasks).iter().enumerate() {
            let tenant = task.tenant(index, whole_s);
            self.tenants.push(tenant.map_err(|message| Wrong::new("[[task]]", index, message))?);
        }
        self.verify()?;
        Ok(self)
    }
}

impl MachineSpec {
    /// A scenario on this machine, without tasks.
    pub fn scenario(&self) -> Result<Scenario, String> {
        let logical = u64::from(self.cpus) * u64::from(self.threads_per_core);
        if logical == 0 || logical > 4096 || self.nodes == 0 || !self.cpus.is_multiple_of(self.nodes) {
            return Err(
                "a machine has 1 to 4096 logical CPUs, its cores divided evenly over its nodes".into()
            );
        }
        let mut s = Scenario::new(1);
        s.machine =
            Machine::new(Topology::synthetic(self.nodes, 1, self.cpus / self.nodes, self.threads_per_core));
        s.machine.smt_speedup = self.smt_speedup;
        s.machine.steal = self.steal()?;
        s.machine.background_per_s = self.background_per_s;
        s.kernel = Kernel::of(&self.kernel)
            .ok_or_else(|| format!("kernel {:?} is not a release such as \"6.1\"", self.kernel))?;
        // The built-in loads switch it off.
        s.kernel.timer_slack_ns = 1;
        Ok(s)
    }

    /// What the hypervisor takes.
    fn steal(&self) -> Result<Steal, String> {
        let Some(instance) = &self.instance else {
            let none = self.steal_pct == 0.0;
            return Ok(if none { Steal::None } else { Steal::Constant(self.steal_pct / 100.0) });
        };
        if self.steal_pct != 0.0 {
            return Err("steal_pct or instance, not both".into());
        }
        match rule_of(instance)? {
            Rule::None => Ok(Steal::None),
            Rule::Constant { stolen } => Ok(Steal::Constant(stolen)),
            // The simulator's window counts what is demanded.
            Rule::Window { window_s, above, below, stolen, counts_stolen: true } => {
                Ok(Steal::Window { window_ns: (window_s * 1e9) as u64, above, below, stolen })
            }
            _ => Err(format!(
                "a [machine] cannot play the rule of instance {instance:?}, only shared cores and windows over demanded \
                 time; a file with one [[tenant]] and an [enforcer] can, for `evenkeel sim` as for `lab run`"
            )),
        }
    }
}

impl GroupSpec {
    /// The group, without its parent.
    pub fn group(&self) -> Group {
        let raw = self.weight.or(self.shares).unwrap_or(1024);
        let weight = load_weight(raw, self.weight.is_some()) as f64;
        Group { weight, quota: self.quota(), cpus: self.cpus.clone(), ..Group::new(self.name.clone(), None) }
    }
}

impl TaskSpec {
    /// One of these tasks, without its group and name.
    fn task(&self) -> Result<Task, String> {
        check_each(self.count, MOST_TASKS, self.nice, self.slice_ms, self.start_s)?;
        let start_ns = (self.start_s * 1e9) as u64;
        let task = Task::new("", None, self.demand()?);
        Ok(Task { attr: self.attr(), cpus: self.cpus.clone(), start_ns, ..task })
    }

    /// Its name, also where none is written.
    fn name(&self, index: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("task{}", index + 1))
    }

    /// The same as a tenant, for as long as the experiment takes.
    fn tenant(&self, index: usize, whole_s: f64) -> Result<TenantSpec, String> {
        let (run_s, runs) = match self.kind {
            Some(Kind::Runs) => (self.run_s, self.runs),
            _ => (whole_s - self.start_s, 1),
        };
        Ok(TenantSpec {
            count: self.count,
            place: Place::Process,
            cpus: self.cpus.clone(),
            nice: self.nice,
            policy: self.policy,
            slice_ms: self.slice_ms,
            load: Some(self.load()?),
            runs,
            run_s: Some(run_s),
            start_s: self.start_s,
            ..TenantSpec::new(self.name(index))
        })
    }

    /// What it does, as after `evenkeel load`.
    pub fn load(&self) -> Result<String, String> {
        let kind = self.kind.map_or_else(String::new, |kind| kind.to_string());
        match self.demand()? {
            Load::Duty { percent, period_ns, .. } => Ok(format!(
                "duty --percent {percent} --period {}us --jitter {} --kind {kind}",
                period_ns / 1000,
                self.jitter_pct
            )),
            Load::Runs { .. } => Ok("primes".into()),
            Load::Job { .. } => Err(
                "a task of kind job is for `evenkeel sim` alone: hosts differ in what a CPU second does; \
                                     write a [[tenant]] with load = \"primes\" and events"
                    .into(),
            ),
            _ => Ok(kind),
        }
    }

    /// The same in the simulator's terms.
    fn demand(&self) -> Result<Load, String> {
        let kind = self.kind.ok_or("a task needs a kind: wall, closed, open, spin, runs, job or idle")?;
        let need = |value: Option<f64>, key: &str| match value {
            Some(v) if v > 0.0 && v.is_finite() => Ok(v),
            Some(v) => Err(format!("{key} is {v}, but must be above 0")),
            None => Err(format!("a task of kind {kind} needs {key}")),
        };
        let duty = |kind| {
            Ok(Load::Duty {
                percent: need(self.percent, "percent")?,
                period_ns: (self.period_ms * 1e6) as u64,
                jitter: self.jitter_pct / 100.0,
                kind,
            })
        };
        match kind {
            Kind::Wall => duty(DutyKind::Wall),
            Kind::Closed => duty(DutyKind::Closed),
            Kind::Open => duty(DutyKind::Open),
            Kind::Spin => Ok(Load::Spin),
            Kind::Idle => Ok(Load::Idle),
            Kind::Job => Ok(Load::Job { work_ns: (need(self.work_s, "work_s")? * 1e9) as u64 }),
            Kind::Runs => Ok(Load::Runs {
                run_ns: (self.run_s * 1e9) as u64,
                runs: self.runs,
                event_ns: (1e9 / need(self.events_per_s, "events_per_s")?) as u64,
                overhead_work_ns: 3_000_000,
                overhead_sleep_ns: 9_700_000,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = 'x'\n[machine]\ncpus = 2\n[[group]]\nname = 'g'\nweight = 200\n[[task]]\nkind = 'spin'\n\
        group = 'g'\ncount = 3\n";

    #[test]
    fn a_file_becomes_a_scenario() {
        let s = Experiment::parse(GOOD).unwrap().scenario(4).unwrap();
        assert_eq!((s.tasks.len(), s.seed, s.groups[0].weight), (3, 5, 2048.0));
        let text = GOOD.replace("cpus = 2", "cpus = 2\ninstance = 'm3.medium'");
        let s = Experiment::parse(&text).unwrap().scenario(0).unwrap();
        assert_eq!(s.machine.steal, Steal::Constant(0.45));
    }

    #[test]
    fn tasks_become_tenants_that_want_the_same() {
        let text = "name = 'x'\nwarmup_s = 1\nduration_s = 4\n[machine]\ncpus = 2\n[[task]]\nkind = 'open'\npercent = 12.5\n\
            period_ms = 20\ncount = 2\nnice = 3\nstart_s = 2\n[[task]]\nname = 'r'\nkind = 'runs'\nevents_per_s = 9\nruns = 3\n";
        let of = |text: &str| Experiment::parse(text).unwrap().tasks_as_tenants();
        let experiment = of(text).unwrap();
        let [a, b] = experiment.tenants.as_slice() else { panic!("{experiment:?}") };
        assert_eq!(a.load.as_deref(), Some("duty --percent 12.5 --period 20000us --jitter 0 --kind open"));
        assert_eq!((a.count, a.nice, a.place, a.run_s, a.start_s), (2, 3, Place::Process, Some(3.0), 2.0));
        assert_eq!((b.load.as_deref(), b.run_s, b.runs), (Some("primes"), Some(10.0), 3));
        let names: Vec<String> = experiment.tenants().into_iter().map(|t| t.name).collect();
        assert_eq!((names, experiment.tasks.len()), (vec!["task11".into(), "task12".into(), "r".into()], 0));
        for (from, to, line, part) in [
            ("kind = 'open'", "kind = 'job'\nwork_s = 1", 6, "[[tenant]]"),
            ("nice = 3", "policy = 'fifo'", 1, "other, batch or idle"),
            ("[machine]", "[[group]]\nname = 'g'\n[machine]", 4, "evenkeel sim"),
        ] {
            let text = text.replace(from, to);
            let error = of(&text).unwrap_err().in_text(&text);
            assert!(error.line == line && error.message.contains(part), "{to}: {error}");
        }
    }
}
