//! What makes sense, and the single tenants an experiment asks for.

use evenkeel_base::{CpuQuota, CpuSet};
use evenkeel_model::units::{self, UnitError};

use super::{Experiment, GroupSpec, Place, PlannedPoint, StealSpec, TenantSpec, Wrong};
use crate::instance::rule_of;

const MOST_REPETITIONS: u32 = 10_000;
/// Most tenants, which are processes.
const MOST_TENANTS: u32 = 10_000;
/// Longest time, seconds: 30 days.
pub(super) const MOST_S: f64 = 2_592_000.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name, without equal in the experiment.
    pub name: String,
    /// Index of its spec.
    pub spec: usize,
    /// Units, where given.
    pub units: Option<u64>,
}

impl Experiment {
    /// Checks everything that does not depend on the host, at every point of the sweep.
    pub fn verify(&self) -> Result<(), Wrong> {
        self.check()?;
        if !self.sweeps.is_empty() && !self.tasks.is_empty() {
            return Err(Wrong::new(
                "[[sweep]]",
                0,
                "a sweep varies tenants: write each [[task]] as a [[tenant]]",
            ));
        }
        for PlannedPoint { point, experiment } in self.points()? {
            let at = |wrong: Wrong| Wrong::new("[[sweep]]", 0, format!("at {}: {wrong}", point.label));
            if experiment.repetitions != self.repetitions {
                return Err(at(Wrong::new(
                    "repetitions",
                    0,
                    "every point is repeated as often as the others",
                )));
            }
            experiment.check().map_err(at)?;
        }
        Ok(())
    }

    /// The same without its sweep.
    fn check(&self) -> Result<(), Wrong> {
        let refuse = |part: &'static str, message: String| Err(Wrong::new(part, 0, message));
        if self.name.is_empty() {
            return refuse("name", "missing field `name`: what the experiment is called".into());
        }
        if !(1..=MOST_REPETITIONS).contains(&self.repetitions) {
            let message = format!("repetitions {} is not 1 to {MOST_REPETITIONS}", self.repetitions);
            return refuse("repetitions", message);
        }
        if self.machine.is_some() || !self.groups.is_empty() || !self.tasks.is_empty() {
            self.scenario(0)?;
        }
        match (self.tenants.is_empty(), self.tasks.is_empty()) {
            (true, true) => refuse("name", "an experiment needs at least one [[tenant]] or [[task]]".into()),
            (true, false) => Ok(()),
            (false, _) => self.check_tenants(),
        }
    }

    /// Whether it has tenants, or what holds for tenants alone.
    pub fn is_of_tenants(&self) -> bool {
        !self.tenants.is_empty() || self.enforcer.is_some() || self.cpus.is_some()
    }

    fn check_tenants(&self) -> Result<(), Wrong> {
        let refuse = |part: &'static str, message: String| Err(Wrong::new(part, 0, message));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.len() > 100 || !self.name.chars().all(plain) || self.name.starts_with('.') {
            let message = format!("name {:?}: letters, digits, - _ . only, at most 100", self.name);
            return refuse("name", message);
        }
        if let Some(limit) = self.time_limit_s
            && !(limit > 0.0 && limit <= 1e7)
        {
            return refuse(
                "time_limit_s",
                format!("time_limit_s {limit} is not a number of seconds above 0"),
            );
        }
        if let Some(e) = &self.enforcer
            && !(e.time_scale >= 0.01 && e.time_scale <= 1e6)
        {
            let message = format!("enforcer: time_scale {} is not 0.01 to 1000000", e.time_scale);
            return refuse("[enforcer]", message);
        }
        if let Some(StealSpec { rule, instance: Some(name), .. }) = &self.enforcer
            && rule_of(name).as_ref() != Ok(rule)
        {
            let message =
                format!("enforcer: the rule given is not that of instance {name:?}; give one of them");
            return refuse("[enforcer]", message);
        }
        for (index, tenant) in self.tenants.iter().enumerate() {
            tenant.check(self.units_available).map_err(|message| Wrong::new("[[tenant]]", index, message))?;
        }
        if self.tenants.iter().all(|t| t.background) {
            let message = "every tenant is in the background: nothing would ever end the experiment";
            return refuse("name", message.into());
        }
        let tenants = self.tenants();
        let mut names: Vec<&str> = tenants.iter().map(|t| t.name.as_str()).collect();
        if names.len() > MOST_TENANTS as usize {
            return refuse("name", format!("{} tenants are more than {MOST_TENANTS}", names.len()));
        }
        names.sort_unstable();
        let twice = |names: &[&str]| {
            names
                .windows(2)
                .find(|pair| pair[0] == pair[1])
                .map(|pair| format!("two tenants are named {:?}", pair[0]))
        };
        let mut written: Vec<&str> = self.tenants.iter().filter_map(|t| t.name.as_deref()).collect();
        written.sort_unstable();
        if let Some(message) = twice(&names).or_else(|| twice(&written)) {
            return refuse("name", message);
        }
        Ok(())
    }

    /// Every single tenant, in the order written.
    pub fn tenants(&self) -> Vec<Tenant> {
        let mut tenants = Vec::new();
        for (spec, t) in self.tenants.iter().enumerate() {
            let base = t.name.clone().unwrap_or_else(|| format!("t{}", spec + 1));
            let units: Vec<Option<u64>> = match &t.units {
                Some(list) => list.units().iter().map(|u| Some(*u)).collect(),
                None => vec![None; t.count as usize],
            };
            let single = units.len() == 1;
            for (number, units) in units.into_iter().enumerate() {
                let name = if single { base.clone() } else { format!("{base}{}", number + 1) };
                tenants.push(Tenant { name, spec, units });
            }
        }
        tenants
    }

    /// The factor by which units become weights or shares; `None` without units.
    pub fn unit_factor(&self, v2: bool) -> Result<Option<f64>, UnitError> {
        let all: Vec<u64> = self.tenants().iter().filter_map(|t| t.units).collect();
        if all.is_empty() { Ok(None) } else { units::factor(&all, v2).map(Some) }
    }
}

impl TenantSpec {
    fn check(&self, available: Option<u64>) -> Result<(), String> {
        if let Some(name) = &self.name
            && (name.is_empty() || name.len() > 60 || name.contains(['.', '*', '/', '\n']))
        {
            return Err(format!("name {name:?}: 1 to 60 characters without . * /"));
        }
        if self.units.is_some() && (self.weight.is_some() || self.shares.is_some()) {
            return Err("units, weight or shares, not several of them".into());
        }
        if self.units.is_some() && self.count != 1 {
            return Err("count does not go with units: the list says how many, as in 64x4".into());
        }
        if let (Some(list), Some(available)) = (&self.units, available) {
            list.check(available).map_err(|e| e.to_string())?;
        }
        self.limits().check()?;
        check_each(self.count, MOST_TENANTS, self.nice, self.slice_ms, self.start_s)?;
        if !self.policy.is_fair() {
            return Err(format!("policy {}: other, batch or idle", self.policy));
        }
        if let Some(bytes) = self.memory_bytes.filter(|b| *b < 8 << 20) {
            return Err(format!("memory_bytes {bytes}: at least 8 MiB ({})", 8 << 20));
        }
        match (&self.load, &self.command) {
            (Some(_), Some(_)) => return Err("load or command, not both".into()),
            (None, None) => return Err("a tenant needs a load or a command".into()),
            (Some(load), None) if load.trim().is_empty() => return Err("load is empty".into()),
            (None, Some(words)) if words.first().is_none_or(String::is_empty) => {
                return Err("command is empty".into());
            }
            (None, Some(_)) if self.run_s.is_some() || self.events.is_some() || self.threads != 1 => {
                return Err(
                    "run_s, events and threads are for built-in loads; a command has arguments".into()
                );
            }
            _ => {}
        }
        if self.load.is_some() && self.run_s.is_none() && self.events.is_none() && !self.background {
            let load = self.load.as_deref().unwrap_or("").trim_start();
            // A sieve and a pass-through of options of its own end by themselves.
            if !load.starts_with("sieve") && !load.contains("--seconds") && !load.contains("--events") {
                return Err(format!("load {load:?} would never end: give run_s or events"));
            }
        }
        if let Some(s) = self.run_s.filter(|s| !(*s >= 0.01 && *s <= 1e6)) {
            return Err(format!("run_s {s} is not 0.01 to 1000000 seconds"));
        }
        if self.events == Some(0) {
            return Err("events is 0".into());
        }
        if !(1..=4096).contains(&self.threads) {
            return Err(format!("threads {} is not 1 to 4096", self.threads));
        }
        if !(1..=1_000_000).contains(&self.runs) {
            return Err(format!("runs {} is not 1 to 1000000", self.runs));
        }
        let limited = self.units.is_some()
            || self.weight.is_some()
            || self.shares.is_some()
            || self.quota_pct.is_some()
            || self.memory_bytes.is_some();
        if self.place == Place::Process && limited {
            return Err("place \"process\" has no cgroup: no units, weight, shares, quota or memory".into());
        }
        Ok(())
    }
}

impl GroupSpec {
    /// Checks the limits, but for what the kernel or the machine simulated must have.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.weight.is_some() && self.shares.is_some() {
            return Err("weight or shares, not both".into());
        }
        if let Some(weight) = self.weight.filter(|w| !(1..=10_000).contains(w)) {
            return Err(format!("weight {weight} is not 1 to 10000"));
        }
        if let Some(shares) = self.shares.filter(|s| !(2..=262_144).contains(s)) {
            return Err(format!("shares {shares} is not 2 to 262144"));
        }
        if !(1_000..=1_000_000).contains(&self.period_usec) {
            return Err(format!("period_usec {} is not 1000 to 1000000", self.period_usec));
        }
        if let Some(pct) = self.quota_pct {
            if !(pct > 0.0 && pct < 1e6) {
                return Err(format!("quota_pct {pct} is not above 0 and below 1000000"));
            }
            let quota = pct / 100.0 * self.period_usec as f64;
            if quota < CpuQuota::LEAST_USEC as f64 {
                return Err(format!(
                    "quota_pct {pct}: {quota:.0} us a period of {} us; the kernel takes at least {}",
                    self.period_usec,
                    CpuQuota::LEAST_USEC
                ));
            }
            if self.burst_usec as f64 > quota {
                return Err(format!("burst_usec {} is above the quota of {quota:.0} us", self.burst_usec));
            }
        }
        if self.cpus.as_ref().is_some_and(CpuSet::is_empty) {
            return Err("cpus is empty, so that no online CPU is left".into());
        }
        Ok(())
    }
}

/// Checks what tenants and tasks have in common.
pub(super) fn check_each(
    count: u32,
    most: u32,
    nice: i32,
    slice_ms: Option<f64>,
    start_s: f64,
) -> Result<(), String> {
    if !(1..=most).contains(&count) {
        return Err(format!("count {count} is not 1 to {most}"));
    }
    if !(-20..=19).contains(&nice) {
        return Err(format!("nice {nice} is not -20 to 19"));
    }
    if let Some(ms) = slice_ms.filter(|ms| !(0.1..=100.0).contains(ms)) {
        return Err(format!("slice_ms {ms} is not 0.1 to 100"));
    }
    if !(0.0..=MOST_S).contains(&start_s) {
        return Err(format!("start_s {start_s} is not 0 to {MOST_S} seconds (30 days)"));
    }
    Ok(())
}
