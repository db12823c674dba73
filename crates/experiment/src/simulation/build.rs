//! From a file to what the simulator takes; what cannot be is refused with its line.

use evenkeel_base::{CpuQuota, CpuShares, CpuWeight, Limit, Nice, SchedAttr, Topology};
use evenkeel_model::credit::Rule;
use evenkeel_model::sim::{DutyKind, Group, Kernel, Load, Machine, Scenario, SpecError, Steal, Task};

use super::lines::line_of_key;
use super::{Experiment, GroupSpec, Kind, MachineSpec, TaskSpec, line_of, parse_error};
use crate::instance::rule_of;

/// Longest time, seconds: 30 days.
const MOST_S: f64 = 2_592_000.0;
/// Most tasks, and most repetitions.
const MOST_TASKS: usize = 100_000;
const MOST_REPETITIONS: u32 = 10_000;

/// Why an experiment is refused.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// Not the TOML expected.
    #[error("line {line}: {message}{}", hint.as_ref().map(|h| format!("; did you mean {h:?}?")).unwrap_or_default())]
    Parse {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
        /// The nearest known key.
        hint: Option<String>,
    },
    /// A value that cannot be.
    #[error("line {line}: {message}")]
    Value {
        /// Line of the object, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The simulator refuses it.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl Experiment {
    /// Reads an experiment and checks that it can be simulated.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let experiment: Self = toml::from_str(text).map_err(|error| parse_error(text, &error))?;
        experiment.build(text, 0)?;
        Ok(experiment)
    }

    /// The scenario of one repetition (from 0). `text` is where lines of errors are looked up; may be empty.
    pub fn build(&self, text: &str, repetition: u32) -> Result<Scenario, ExperimentError> {
        let refuse = |line: usize, message: String| Err(ExperimentError::Value { line, message });
        if !(1..=MOST_REPETITIONS).contains(&self.repetitions) {
            let message = format!("repetitions {} is not 1 to {MOST_REPETITIONS}", self.repetitions);
            return refuse(line_of_key(text, "repetitions"), message);
        }
        let Some(warmup) = nanoseconds(self.warmup_s) else {
            let message = format!("warmup_s {} is not 0 to {MOST_S} seconds (30 days)", self.warmup_s);
            return refuse(line_of_key(text, "warmup_s"), message);
        };
        let whole = self.warmup_s + self.duration_s;
        let Some(duration) = nanoseconds(self.duration_s).filter(|ns| *ns > 0 && whole <= MOST_S) else {
            let message = format!(
                "duration_s {} must be above 0, with warmup_s at most {MOST_S} seconds (30 days)",
                self.duration_s
            );
            return refuse(line_of_key(text, "duration_s"), message);
        };
        let mut s = self.machine.build(text)?;
        s.seed = self.seed.wrapping_add(u64::from(repetition));
        s.measure_from_ns = warmup;
        s.duration_ns = warmup + duration;
        for (index, group) in self.groups.iter().enumerate() {
            let refuse = |message: String| ExperimentError::Value {
                line: line_of(text, "[[group]]", index),
                message: format!("group {}: {message}", group.name),
            };
            if self.groups[..index].iter().any(|other| other.name == group.name) {
                return Err(refuse("two groups have this name".into()));
            }
            let parent = match &group.parent {
                Some(name) => {
                    let found = self.groups[..index].iter().position(|g| &g.name == name);
                    Some(found.ok_or_else(|| refuse(format!("no group {name:?} before it")))?)
                }
                None => None,
            };
            s.groups.push(Group { parent, ..group.build().map_err(refuse)? });
        }
        let mut task_lines: Vec<(String, usize)> = Vec::new();
        for (index, task) in self.tasks.iter().enumerate() {
            let line = line_of(text, "[[task]]", index);
            let group = match &task.group {
                Some(name) => match self.groups.iter().position(|g| &g.name == name) {
                    Some(group) => Some(group),
                    None => return refuse(line, format!("no group {name:?}")),
                },
                None => None,
            };
            let one = match task.build() {
                Ok(one) => one,
                Err(message) => return refuse(line, message),
            };
            let base = task.name.clone().unwrap_or_else(|| format!("task{}", index + 1));
            for number in 0..task.count {
                let name = if task.count > 1 { format!("{base}.{}", number + 1) } else { base.clone() };
                task_lines.push((name.clone(), line));
                s.tasks.push(Task { name, group, ..one.clone() });
            }
        }
        if s.tasks.len() > MOST_TASKS {
            let message = format!("{} tasks are more than {MOST_TASKS}", s.tasks.len());
            return refuse(line_of(text, "[[task]]", 0), message);
        }
        s.check().map_err(|error| {
            let message = error.to_string();
            // The object with the longest name that the message names: `task t10`, not `task t1`.
            let groups = self.groups.iter().enumerate();
            let groups =
                groups.map(|(index, g)| (format!("group {}", g.name), line_of(text, "[[group]]", index)));
            let tasks = task_lines.iter().map(|(name, line)| (format!("task {name}"), *line));
            let named = groups.chain(tasks).filter(|(what, _)| message.contains(what.as_str()));
            let line = named
                .max_by_key(|(what, _)| what.len())
                .map_or_else(|| line_of(text, "[machine]", 0), |(_, line)| line);
            ExperimentError::Value { line, message }
        })?;
        Ok(s)
    }
}

/// A time of a file in nanoseconds; `None` for what is none.
fn nanoseconds(s: f64) -> Option<u64> {
    (0.0..=MOST_S).contains(&s).then_some((s * 1e9) as u64)
}

impl MachineSpec {
    /// A scenario on this machine, without tasks.
    fn build(&self, text: &str) -> Result<Scenario, ExperimentError> {
        let refuse =
            |message: String| Err(ExperimentError::Value { line: line_of(text, "[machine]", 0), message });
        let logical = u64::from(self.cpus) * u64::from(self.threads_per_core);
        if logical == 0 || logical > 4096 || self.nodes == 0 || !self.cpus.is_multiple_of(self.nodes) {
            return refuse(
                "a machine has 1 to 4096 logical CPUs, its cores divided evenly over its nodes".into(),
            );
        }
        let release = self.kernel.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let Some((major, minor)) = release else {
            return refuse(format!("kernel {:?} is not a release such as \"6.1\"", self.kernel));
        };
        let mut s = Scenario::new(1);
        s.machine =
            Machine::new(Topology::synthetic(self.nodes, 1, self.cpus / self.nodes, self.threads_per_core));
        s.machine.smt_speedup = self.smt_speedup;
        s.machine.steal = self
            .steal()
            .map_err(|what| ExperimentError::Value { line: line_of(text, "[machine]", 0), message: what })?;
        s.machine.background_per_s = self.background_per_s;
        s.kernel = Kernel::release(major, minor);
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
    fn build(&self) -> Result<Group, String> {
        let weight = match (self.weight, self.shares) {
            (Some(_), Some(_)) => return Err("weight or shares, not both".into()),
            (Some(w), None) if !(1..=10_000).contains(&w) => {
                return Err(format!("weight {w} is not 1 to 10000"));
            }
            (None, Some(w)) if !(2..=262_144).contains(&w) => {
                return Err(format!("shares {w} is not 2 to 262144"));
            }
            (Some(w), None) => CpuWeight::new(w).load_weight() as f64,
            (None, shares) => f64::from(CpuShares::new(shares.unwrap_or(1024)).get()),
        };
        let quota_usec = match self.quota_pct {
            None => Limit::Max,
            Some(pct) if pct > 0.0 && pct < 1e6 => {
                Limit::Value((pct / 100.0 * self.period_usec as f64) as u64)
            }
            Some(pct) => return Err(format!("quota {pct} % is not above 0")),
        };
        if let Some(quota) = quota_usec.value()
            && self.burst_usec > quota
        {
            return Err(format!("burst_usec {} is above the quota of {quota} us", self.burst_usec));
        }
        Ok(Group {
            name: self.name.clone(),
            parent: None,
            weight,
            quota: CpuQuota { quota_usec, period_usec: self.period_usec, burst_usec: self.burst_usec },
            cpus: self.cpus.clone(),
        })
    }
}

impl TaskSpec {
    /// One of these tasks, without its group and number.
    fn build(&self) -> Result<Task, String> {
        if !(1..=MOST_TASKS as u32).contains(&self.count) {
            return Err(format!("count {} is not 1 to {MOST_TASKS}", self.count));
        }
        if !(-20..=19).contains(&self.nice) {
            return Err(format!("nice {} is not -20 to 19", self.nice));
        }
        if let Some(ms) = self.slice_ms.filter(|ms| !(0.1..=100.0).contains(ms)) {
            return Err(format!("slice_ms {ms} is not 0.1 to 100"));
        }
        let start_ns =
            nanoseconds(self.start_s).ok_or_else(|| format!("start_s {} is not a time", self.start_s))?;
        let mut task = Task::new("", None, self.load()?);
        task.attr = SchedAttr {
            policy: self.policy,
            nice: Nice::new(self.nice),
            rt_priority: u8::from(self.policy.is_realtime()),
            slice_ns: self.slice_ms.map(|ms| (ms * 1e6) as u64),
            reset_on_fork: false,
        };
        task.cpus.clone_from(&self.cpus);
        task.start_ns = start_ns;
        Ok(task)
    }

    fn load(&self) -> Result<Load, String> {
        let need = |value: Option<f64>, key: &str| match value {
            Some(v) if v > 0.0 && v.is_finite() => Ok(v),
            Some(v) => Err(format!("{key} is {v}, but must be above 0")),
            None => Err(format!("a task of kind {:?} needs {key}", self.kind).to_lowercase()),
        };
        let duty = |kind| {
            Ok(Load::Duty {
                percent: need(self.percent, "percent")?,
                period_ns: (self.period_ms * 1e6) as u64,
                jitter: self.jitter_pct / 100.0,
                kind,
            })
        };
        match self.kind {
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
        let s = Experiment::parse(GOOD).unwrap().build(GOOD, 4).unwrap();
        assert_eq!((s.tasks.len(), s.seed, s.groups[0].weight), (3, 5, 2048.0));
        let text = GOOD.replace("cpus = 2", "cpus = 2\ninstance = 'm3.medium'");
        assert_eq!(
            Experiment::parse(&text).unwrap().build(&text, 0).unwrap().machine.steal,
            Steal::Constant(0.45)
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (from, to, line, part) in [
            ("count = 3", "coutn = 3", 10, "\"count\""),
            ("cpus = 2", "cpus = 0", 2, "logical CPUs"),
            ("weight = 200", "weight = 0", 4, "1 to 10000"),
            ("group = 'g'", "group = 'h'", 7, "no group"),
            ("kind = 'spin'", "kind = 'closed'", 7, "percent"),
            ("kind = 'spin'", "kind = 'spinn'", 8, "spin"),
            ("name = 'g'", "name = 'g'\nparent = 'g'", 4, "before it"),
            ("name = 'x'", "name = 'x'\nduration_s = -1", 2, "duration_s"),
            ("cpus = 2", "cpus = 2\ninstance = 'm3.medum'", 2, "near: m3.medium, "),
            ("cpus = 2", "cpus = 2\ninstance = 't2.micro'", 2, "[enforcer]"),
            ("cpus = 2", "cpus = 2\ninstance = 'm3.medium'\nsteal_pct = 3", 2, "not both"),
        ] {
            let text = GOOD.replace(from, to);
            let error = Experiment::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}:")) && error.contains(part), "{to}: {error}");
        }
        let error = Experiment::parse(&GOOD.replace("weight = 200", "cpus = '7'")).unwrap_err().to_string();
        assert!(error.contains("no online CPU"), "{error}");
    }
}
