//! What makes sense, and the single tenants an experiment asks for.

use evenkeel_model::units::{self, UnitError};

use super::{Experiment, Place, StealSpec, TenantSpec};
use crate::instance::rule_of;

/// One tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name, without equal in the experiment.
    pub name: String,
    /// Index of its spec.
    pub spec: usize,
    /// Units, where given.
    pub units: Option<u64>,
}

/// What is wrong, and with which `[[tenant]]`.
type Wrong = (Option<usize>, String);

impl Experiment {
    /// Checks everything that does not depend on the host.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let refuse = |message: String| Err((None, message));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty()
            || self.name.len() > 100
            || !self.name.chars().all(plain)
            || self.name.starts_with('.')
        {
            return refuse(format!("name {:?}: letters, digits, - _ . only, at most 100", self.name));
        }
        if self.tenants.is_empty() {
            return refuse("an experiment needs at least one [[tenant]]".into());
        }
        if !(1..=10_000).contains(&self.repetitions) {
            return refuse(format!("repetitions {} is not 1 to 10000", self.repetitions));
        }
        if let Some(limit) = self.time_limit_s
            && !(limit > 0.0 && limit <= 1e7)
        {
            return refuse(format!("time_limit_s {limit} is not a number of seconds above 0"));
        }
        if let Some(e) = &self.enforcer
            && !(e.time_scale >= 0.01 && e.time_scale <= 1e6)
        {
            return refuse(format!("enforcer: time_scale {} is not 0.01 to 1000000", e.time_scale));
        }
        if let Some(StealSpec { rule, instance: Some(name), .. }) = &self.enforcer
            && rule_of(name).as_ref() != Ok(rule)
        {
            return refuse(format!(
                "enforcer: the rule given is not that of instance {name:?}; give one of them"
            ));
        }
        for (index, tenant) in self.tenants.iter().enumerate() {
            tenant.check(self.units_available).map_err(|message| (Some(index), message))?;
        }
        if self.tenants.iter().all(|t| t.background) {
            return refuse("every tenant is in the background: nothing would ever end the experiment".into());
        }
        let tenants = self.tenants();
        let mut names: Vec<&str> = tenants.iter().map(|t| t.name.as_str()).collect();
        if names.len() > 10_000 {
            return refuse(format!("{} tenants are more than 10000", names.len()));
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
            return refuse(message);
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
        let weights = [self.units.is_some(), self.weight.is_some(), self.shares.is_some()];
        if weights.iter().filter(|given| **given).count() > 1 {
            return Err("units, weight or shares, not several of them".into());
        }
        if self.units.is_some() && self.count != 1 {
            return Err("count does not go with units: the list says how many, as in 64x4".into());
        }
        if let (Some(list), Some(available)) = (&self.units, available) {
            list.check(available).map_err(|e| e.to_string())?;
        }
        if !(1..=10_000).contains(&self.count) {
            return Err(format!("count {} is not 1 to 10000", self.count));
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
            let quota = pct / 100.0 * self.period_usec as f64;
            if !(quota >= 1_000.0 && pct < 1e6) {
                return Err(format!(
                    "quota_pct {pct}: {quota:.0} us a period of {} us; the kernel takes no less than 1000",
                    self.period_usec
                ));
            }
            if self.burst_usec as f64 > quota {
                return Err(format!("burst_usec {} is above the quota of {quota:.0} us", self.burst_usec));
            }
        }
        if self.cpus.as_ref().is_some_and(evenkeel_base::CpuSet::is_empty) {
            return Err("cpus is empty".into());
        }
        if !(-20..=19).contains(&self.nice) {
            return Err(format!("nice {} is not -20 to 19", self.nice));
        }
        if !self.policy.is_fair() {
            return Err(format!("policy {}: other, batch or idle", self.policy));
        }
        if let Some(ms) = self.slice_ms.filter(|ms| !(0.1..=100.0).contains(ms)) {
            return Err(format!("slice_ms {ms} is not 0.1 to 100"));
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
        if !(self.start_s >= 0.0 && self.start_s <= 1e6) {
            return Err(format!("start_s {} is not 0 to 1000000 seconds", self.start_s));
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
