//! What a scenario may be: why a description is refused.

use evenkeel_base::CpuSet;

use super::spec::{Load, Scenario, Setting, Steal, Task};

/// Why a scenario is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpecError {
    #[error("the machine has no online CPU")]
    NoCpu,
    #[error("{what} is {value}, but must be {range}")]
    Range { what: String, value: String, range: &'static str },
    #[error("group {0}: its parent must be listed before it")]
    Parent(String),
    #[error("{0}: no such {1}")]
    Missing(String, &'static str),
    #[error("{0}: its cpuset leaves no online CPU of the machine")]
    NoCpuAllowed(String),
    /// A policy that is not simulated.
    #[error("task {0}: policy {1} is not simulated")]
    Policy(String, String),
}

impl Scenario {
    /// Checks every number and reference.
    pub fn check(&self) -> Result<(), SpecError> {
        let range = |what: String, value: f64, ok: bool, range: &'static str| {
            if ok { Ok(()) } else { Err(SpecError::Range { what, value: value.to_string(), range }) }
        };
        let online = &self.machine.topology.online;
        if online.is_empty() {
            return Err(SpecError::NoCpu);
        }
        let m = &self.machine;
        range("smt_speedup".into(), m.smt_speedup, (1.0..=2.0).contains(&m.smt_speedup), "1.0 to 2.0")?;
        range(
            "background_per_s".into(),
            m.background_per_s,
            (0.0..=10_000.0).contains(&m.background_per_s),
            "0 to 10000",
        )?;
        range("clock".into(), m.clock, m.clock > 0.001 && m.clock < 1000.0, "0.001 to 1000")?;
        let steals: &[(&str, f64)] = match &m.steal {
            Steal::None => &[],
            Steal::Constant(x) => &[("steal", *x)],
            Steal::Window { above, below, stolen, .. } => {
                &[("steal above", *above), ("steal below", *below), ("stolen", *stolen)]
            }
        };
        for (what, x) in steals {
            range((*what).into(), *x, (0.0..=0.999).contains(x), "0 to 0.999")?;
        }
        range(
            "hz".into(),
            f64::from(self.kernel.hz),
            (10..=10_000).contains(&self.kernel.hz),
            "10 to 10000",
        )?;
        let days = self.duration_ns as f64 / 86_400e9;
        range("duration in days".into(), days, self.duration_ns > 0 && days <= 30.0, "above 0, up to 30")?;
        range(
            "start of the measurement, ns".into(),
            self.measure_from_ns as f64,
            self.measure_from_ns < self.duration_ns,
            "before the end",
        )?;
        for (index, group) in self.groups.iter().enumerate() {
            if group.parent.is_some_and(|p| p >= index) {
                return Err(SpecError::Parent(group.name.clone()));
            }
            let w = group.weight;
            range(
                format!("weight of group {}", group.name),
                w,
                (2.0..=262_144.0).contains(&w),
                "2 to 262144",
            )?;
            let period = group.quota.period_usec as f64;
            range(
                format!("quota period of group {}, us", group.name),
                period,
                (1_000.0..=1_000_000.0).contains(&period),
                "1000 to 1000000",
            )?;
            if let Some(quota) = group.quota.quota_usec.value() {
                range(
                    format!("quota of group {}, us", group.name),
                    quota as f64,
                    quota >= 1_000,
                    "at least 1000",
                )?;
            }
            if self.group_cpus(index).is_empty() {
                return Err(SpecError::NoCpuAllowed(format!("group {}", group.name)));
            }
        }
        for task in &self.tasks {
            self.check_task(task)?;
        }
        for timed in &self.changes {
            match &timed.change {
                Setting::Sched(task, _) | Setting::Affinity(task, _) if *task >= self.tasks.len() => {
                    return Err(SpecError::Missing(format!("change of task {task}"), "task"));
                }
                Setting::Weight(group, _) if *group >= self.groups.len() => {
                    return Err(SpecError::Missing(format!("change of group {group}"), "group"));
                }
                Setting::Affinity(task, cpus) => {
                    let mut changed = self.tasks[*task].clone();
                    changed.cpus.clone_from(cpus);
                    if self.task_cpus(&changed).is_empty() {
                        return Err(SpecError::NoCpuAllowed(format!("task {}", changed.name)));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_task(&self, task: &Task) -> Result<(), SpecError> {
        let bad = |what: &str, value: String, range: &'static str| {
            Err(SpecError::Range { what: format!("{what} of task {}", task.name), value, range })
        };
        if task.group.is_some_and(|g| g >= self.groups.len()) {
            return Err(SpecError::Missing(format!("group of task {}", task.name), "group"));
        }
        if self.task_cpus(task).is_empty() {
            return Err(SpecError::NoCpuAllowed(format!("task {}", task.name)));
        }
        if !(task.attr.policy.is_fair() || task.attr.policy.is_realtime())
            || task.attr.policy == evenkeel_base::SchedPolicy::Deadline
        {
            return Err(SpecError::Policy(task.name.clone(), task.attr.policy.to_string()));
        }
        match &task.load {
            Load::Duty { percent, period_ns, jitter, .. } => {
                if !(*percent > 0.0 && *percent <= 100.0) {
                    return bad("percent", percent.to_string(), "above 0, up to 100");
                }
                if !(10_000..=3_600_000_000_000).contains(period_ns) {
                    return bad("period, ns,", period_ns.to_string(), "10 us to 1 h");
                }
                if !(0.0..1.0).contains(jitter) {
                    return bad("jitter", jitter.to_string(), "0 to below 1");
                }
            }
            Load::Runs { run_ns, event_ns, .. } => {
                if *event_ns < 1_000 {
                    return bad("event, ns,", event_ns.to_string(), "at least 1000");
                }
                if *run_ns < 1_000_000 {
                    return bad("run, ns,", run_ns.to_string(), "at least 1000000");
                }
            }
            Load::Counter { counter, .. } if *counter >= self.counters.len() => {
                return Err(SpecError::Missing(format!("counter of task {}", task.name), "counter"));
            }
            _ => {}
        }
        Ok(())
    }

    /// CPUs a group leaves its tasks: its own and its ancestors' cpusets, online ones only.
    pub fn group_cpus(&self, group: usize) -> CpuSet {
        let mut cpus = self.machine.topology.online.clone();
        let mut at = Some(group);
        while let Some(group) = at.and_then(|g| self.groups.get(g)) {
            if let Some(own) = &group.cpus {
                cpus = cpus.intersection(own);
            }
            at = group.parent;
        }
        cpus
    }

    /// CPUs a task may use.
    pub fn task_cpus(&self, task: &Task) -> CpuSet {
        let cpus = match task.group {
            Some(group) => self.group_cpus(group),
            None => self.machine.topology.online.clone(),
        };
        match &task.cpus {
            Some(own) => cpus.intersection(own),
            None => cpus,
        }
    }
}
