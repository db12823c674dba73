//! The experiment file: one TOML text for the simulator and the laboratory.
//!
//! ```toml
//! name = "guarantees"
//! duration_s = 20
//! [machine]
//! cpus = 1
//! [[task]]
//! name = "a"
//! kind = "open"
//! percent = 40
//! [[task]]
//! kind = "open"
//! percent = 30
//! nice = 5
//! count = 2
//! ```

use evenkeel_base::{CpuQuota, CpuSet, CpuShares, CpuWeight, Limit, Nice, SchedAttr, SchedPolicy, Topology};
use serde::{Deserialize, Serialize};

use crate::sim::{DutyKind, Group, Kernel, Load, Machine, Scenario, SpecError, Steal, Task};

/// An experiment as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name of the experiment.
    pub name: String,
    /// Measured time, seconds.
    #[serde(default = "ten")]
    pub duration_s: f64,
    /// Time before it that is not counted, seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// How often it is repeated, each time with another seed.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Seed of the first repetition.
    #[serde(default = "one_u64")]
    pub seed: u64,
    /// The machine simulated; the laboratory checks that the host has as many CPUs.
    pub machine: MachineSpec,
    /// Control groups, parents first.
    #[serde(default, rename = "group")]
    pub groups: Vec<GroupSpec>,
    /// Tasks.
    #[serde(rename = "task")]
    pub tasks: Vec<TaskSpec>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Physical cores (threads are counted apart).
    pub cpus: u32,
    /// Hardware threads a core.
    #[serde(default = "one")]
    pub threads_per_core: u32,
    /// NUMA nodes the cores are divided over.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Work two siblings do together, relative to one alone.
    #[serde(default = "smt")]
    pub smt_speedup: f64,
    /// Kernel release such as `6.1`.
    #[serde(default = "kernel")]
    pub kernel: String,
    /// Share of the time the hypervisor takes, percent.
    #[serde(default)]
    pub steal_pct: f64,
    /// Background work of a real host: kernel threads that wake so often a second on each CPU, for about 30 us.
    #[serde(default = "background")]
    pub background_per_s: f64,
}

/// A control group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Name, by which tasks refer to it.
    pub name: String,
    /// Name of the parent.
    pub parent: Option<String>,
    /// cgroup v2 weight, 1 to 10000.
    pub weight: Option<u64>,
    /// cgroup v1 shares, 2 to 262144.
    pub shares: Option<u64>,
    /// Quota, percent of one CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    #[serde(default = "period")]
    pub period_usec: u64,
    /// Burst, microseconds.
    #[serde(default)]
    pub burst_usec: u64,
    /// CPUs, such as `0-3`.
    pub cpus: Option<CpuSet>,
}

/// One or several equal tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Name; numbered when there are several.
    pub name: Option<String>,
    /// Name of its group.
    pub group: Option<String>,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// What it does.
    pub kind: Kind,
    /// For duty kinds: CPU wanted, percent of one CPU.
    pub percent: Option<f64>,
    /// For duty kinds: period, milliseconds.
    #[serde(default = "hundred")]
    pub period_ms: f64,
    /// For duty kinds: jitter of the period, percent.
    #[serde(default)]
    pub jitter_pct: f64,
    /// For `runs`: length of a run, seconds.
    #[serde(default = "ten")]
    pub run_s: f64,
    /// For `runs`: how many.
    #[serde(default = "one")]
    pub runs: u32,
    /// For `runs`: events a second of one undisturbed task.
    pub events_per_s: Option<f64>,
    /// For `job`: CPU seconds.
    pub work_s: Option<f64>,
    /// Scheduling policy: `other`, `batch`, `idle`, `fifo`, `rr`.
    #[serde(default = "other")]
    pub policy: SchedPolicy,
    /// Nice value.
    #[serde(default)]
    pub nice: i32,
    /// Own slice, milliseconds.
    pub slice_ms: Option<f64>,
    /// CPUs it is bound to.
    pub cpus: Option<CpuSet>,
    /// Start, seconds.
    #[serde(default)]
    pub start_s: f64,
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// See [`DutyKind::Wall`].
    Wall,
    /// See [`DutyKind::Closed`].
    Closed,
    /// See [`DutyKind::Open`].
    Open,
    /// See [`Load::Spin`].
    Spin,
    /// See [`Load::Runs`].
    Runs,
    /// See [`Load::Job`].
    Job,
    /// See [`Load::Idle`].
    Idle,
}

impl MachineSpec {
    /// A machine of so many cores without siblings, on one node, with the defaults of the file.
    pub fn new(cpus: u32) -> Self {
        Self {
            cpus,
            threads_per_core: 1,
            nodes: 1,
            smt_speedup: smt(),
            kernel: kernel(),
            steal_pct: 0.0,
            background_per_s: background(),
        }
    }
}

impl GroupSpec {
    /// A group of default weight without limits.
    pub fn new(name: impl Into<String>, parent: Option<String>) -> Self {
        Self {
            name: name.into(),
            parent,
            weight: None,
            shares: None,
            quota_pct: None,
            period_usec: period(),
            burst_usec: 0,
            cpus: None,
        }
    }
}

impl TaskSpec {
    /// One task with the defaults of the file.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self {
            name: Some(name.into()),
            group: None,
            count: 1,
            kind,
            percent: None,
            period_ms: hundred(),
            jitter_pct: 0.0,
            run_s: ten(),
            runs: 1,
            events_per_s: None,
            work_s: None,
            policy: other(),
            nice: 0,
            slice_ms: None,
            cpus: None,
            start_s: 0.0,
        }
    }
}

fn one() -> u32 {
    1
}
fn background() -> f64 {
    20.0
}
fn one_u64() -> u64 {
    1
}
fn ten() -> f64 {
    10.0
}
fn hundred() -> f64 {
    100.0
}
fn smt() -> f64 {
    1.25
}
fn period() -> u64 {
    100_000
}
fn kernel() -> String {
    "6.18".into()
}
fn other() -> SchedPolicy {
    SchedPolicy::Other
}

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
        let experiment: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
            let message = error.message().to_owned();
            let hint = nearest_key(&message);
            ExperimentError::Parse { line, message, hint }
        })?;
        experiment.build(text, 0)?;
        Ok(experiment)
    }

    /// The scenario of one repetition (from 0). `text` is where lines of errors are looked up; may be empty.
    pub fn build(&self, text: &str, repetition: u32) -> Result<Scenario, ExperimentError> {
        let m = &self.machine;
        let line_of = |header: &str, index: usize| {
            let found = text.lines().enumerate().filter(|(_, l)| l.trim() == header).nth(index);
            found.map_or(1, |(line, _)| line + 1)
        };
        let refuse = |line: usize, message: String| Err(ExperimentError::Value { line, message });
        let cores = m.cpus;
        let logical = u64::from(cores) * u64::from(m.threads_per_core);
        if cores == 0
            || m.threads_per_core == 0
            || logical > 4096
            || m.nodes == 0
            || !cores.is_multiple_of(m.nodes)
        {
            return refuse(
                line_of("[machine]", 0),
                "a machine has 1 to 4096 logical CPUs, its cores divided evenly over its nodes".into(),
            );
        }
        let Some((major, minor)) =
            m.kernel.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
        else {
            return refuse(
                line_of("[machine]", 0),
                format!("kernel {:?} is not a release such as \"6.1\"", m.kernel),
            );
        };
        let seconds =
            |s: f64| if s.is_finite() && (0.0..=1e7).contains(&s) { Some((s * 1e9) as u64) } else { None };
        let (Some(warmup), Some(duration)) = (seconds(self.warmup_s), seconds(self.duration_s)) else {
            return refuse(1, "duration_s and warmup_s must be 0 to 10000000 seconds".into());
        };
        let mut s = Scenario::new(1);
        s.machine = Machine::new(Topology::synthetic(m.nodes, 1, cores / m.nodes, m.threads_per_core));
        s.machine.smt_speedup = m.smt_speedup;
        s.machine.steal = if m.steal_pct == 0.0 { Steal::None } else { Steal::Constant(m.steal_pct / 100.0) };
        s.machine.background_per_s = m.background_per_s;
        s.kernel = Kernel::release(major, minor);
        // The built-in loads switch it off.
        s.kernel.timer_slack_ns = 1;
        s.seed = self.seed.wrapping_add(u64::from(repetition));
        s.measure_from_ns = warmup;
        s.duration_ns = warmup.saturating_add(duration);
        for (index, group) in self.groups.iter().enumerate() {
            let line = line_of("[[group]]", index);
            let parent = match &group.parent {
                Some(name) => match self.groups[..index].iter().position(|g| &g.name == name) {
                    Some(parent) => Some(parent),
                    None => {
                        return refuse(line, format!("group {}: no group {name:?} before it", group.name));
                    }
                },
                None => None,
            };
            let weight = match (group.weight, group.shares) {
                (Some(_), Some(_)) => {
                    return refuse(line, format!("group {}: weight or shares, not both", group.name));
                }
                (Some(w), None) if !(1..=10_000).contains(&w) => {
                    return refuse(line, format!("group {}: weight {w} is not 1 to 10000", group.name));
                }
                (None, Some(w)) if !(2..=262_144).contains(&w) => {
                    return refuse(line, format!("group {}: shares {w} is not 2 to 262144", group.name));
                }
                (Some(w), None) => CpuWeight::new(w).load_weight() as f64,
                (None, shares) => f64::from(CpuShares::new(shares.unwrap_or(1024)).get()),
            };
            let quota_usec = match group.quota_pct {
                None => Limit::Max,
                Some(pct) if pct > 0.0 && pct < 1e6 => {
                    Limit::Value((pct / 100.0 * group.period_usec as f64) as u64)
                }
                Some(pct) => {
                    return refuse(line, format!("group {}: quota {pct} % is not above 0", group.name));
                }
            };
            let quota = CpuQuota { quota_usec, period_usec: group.period_usec, burst_usec: group.burst_usec };
            s.groups.push(Group {
                name: group.name.clone(),
                parent,
                weight,
                quota,
                cpus: group.cpus.clone(),
            });
        }
        let mut task_lines: Vec<(String, usize)> = Vec::new();
        for (index, task) in self.tasks.iter().enumerate() {
            let line = line_of("[[task]]", index);
            if task.count > 100_000 {
                return refuse(line, format!("count {} is more than 100000", task.count));
            }
            let group = match &task.group {
                Some(name) => match self.groups.iter().position(|g| &g.name == name) {
                    Some(group) => Some(group),
                    None => return refuse(line, format!("no group {name:?}")),
                },
                None => None,
            };
            if !(-20..=19).contains(&task.nice) {
                return refuse(line, format!("nice {} is not -20 to 19", task.nice));
            }
            let load = match task.load() {
                Ok(load) => load,
                Err(message) => return refuse(line, message),
            };
            let Some(start_ns) = seconds(task.start_s) else {
                return refuse(line, format!("start_s {} is not a time", task.start_s));
            };
            for number in 0..task.count {
                let base = task.name.clone().unwrap_or_else(|| format!("task{}", index + 1));
                let name = if task.count > 1 { format!("{base}.{}", number + 1) } else { base };
                task_lines.push((name.clone(), line));
                let mut t = Task::new(name, group, load.clone());
                t.attr = SchedAttr {
                    policy: task.policy,
                    nice: Nice::new(task.nice),
                    rt_priority: u8::from(task.policy.is_realtime()),
                    slice_ns: task.slice_ms.map(|ms| (ms * 1e6) as u64),
                    reset_on_fork: false,
                };
                t.cpus.clone_from(&task.cpus);
                t.start_ns = start_ns;
                s.tasks.push(t);
            }
        }
        s.check().map_err(|error| {
            let message = error.to_string();
            // The object with the longest name that the message names: `task t10`, not `task t1`.
            let groups = self.groups.iter().enumerate();
            let groups = groups.map(|(index, g)| (format!("group {}", g.name), line_of("[[group]]", index)));
            let tasks = task_lines.iter().map(|(name, line)| (format!("task {name}"), *line));
            let named = groups.chain(tasks).filter(|(what, _)| message.contains(what.as_str()));
            let line =
                named.max_by_key(|(what, _)| what.len()).map_or_else(|| line_of("[machine]", 0), |(_, l)| l);
            ExperimentError::Value { line, message }
        })?;
        Ok(s)
    }
}

impl TaskSpec {
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

/// The key among those an error message lists that is nearest to the unknown one it names.
pub(crate) fn nearest_key(message: &str) -> Option<String> {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown") {
        return None;
    }
    let wrong = quoted.next()?;
    quoted.min_by_key(|known| distance(wrong, known)).map(str::to_owned)
}

/// Edits (insert, delete, replace) from one word to another.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = cost;
        }
    }
    row[b.len()]
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
            ("name = 'x'", "name = 'x'\nduration_s = -1", 1, "seconds"),
        ] {
            let text = GOOD.replace(from, to);
            let error = Experiment::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}:")) && error.contains(part), "{to}: {error}");
        }
        let error = Experiment::parse(&GOOD.replace("weight = 200", "cpus = '7'")).unwrap_err().to_string();
        assert!(error.contains("no online CPU"), "{error}");
    }
}
