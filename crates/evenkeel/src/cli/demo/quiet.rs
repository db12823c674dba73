//! Is the host quiet enough to show anything? What disturbs is named before the first load starts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_base::Observation;
use evenkeel_linux::Root;
use evenkeel_observe::{Detail, Observer, ObserverOptions, Select};

use crate::cli::Failure;

/// How long other programs are watched.
const WATCH: Duration = Duration::from_millis(1500);
/// Other programs and steal above this share of the CPUs are named, as they disturb what is measured ...
const DISTURBED: f64 = 0.1;
/// ... and above this one nothing could be shown.
const HOPELESS: f64 = 0.5;
/// Programs named at most.
const NAMED: usize = 5;

/// CPU used by programs, percent of one CPU, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ByName(BTreeMap<String, f64>);

impl ByName {
    /// Adds a program's use.
    pub fn add(&mut self, name: &str, pct: f64) {
        *self.0.entry(name.to_owned()).or_insert(0.0) += pct;
    }

    /// The largest, such as `cargo (120 %), rustc (60 %)`; those below 1 % are left out.
    pub fn largest(&self, divisor: f64) -> String {
        let mut sorted: Vec<(&String, f64)> =
            self.0.iter().map(|(name, pct)| (name, pct / divisor)).collect();
        sorted.retain(|(_, pct)| *pct >= 1.0);
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        let named: Vec<String> =
            sorted.iter().take(NAMED).map(|(name, pct)| format!("{name} ({pct:.0} %)")).collect();
        named.join(", ")
    }
}

/// What stands in the way of a demonstration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Disturbance {
    /// What and by whom, and what to do.
    pub text: String,
    /// Whether it would drown what is to be shown.
    pub hopeless: bool,
}

/// Watches the host for a moment.
pub(super) fn look() -> Result<Option<Disturbance>, Failure> {
    let mut observer =
        Observer::new(&Root::host(), ObserverOptions::default()).context("cannot observe this host")?;
    let before = observer.sample_of(&Select::All, &Select::None).context("cannot observe this host")?;
    std::thread::sleep(WATCH);
    let after = observer.sample_of(&Select::All, &Select::None).context("cannot observe this host")?;
    let seen = observer.observe(&before, &after, &Detail::None).context("cannot observe this host")?;
    Ok(judge(&seen))
}

fn judge(seen: &Observation) -> Option<Disturbance> {
    let all = 100.0 * f64::from(seen.host.cpus);
    let steal = seen.host.steal_pct.unwrap_or(0.0);
    let me = std::process::id();
    let mut others = ByName::default();
    let mut sum = 0.0;
    for task in seen.tasks.iter().filter(|task| task.id.tgid != me) {
        others.add(&task.comm, task.cpu_pct);
        sum += task.cpu_pct;
    }
    let (busy, stolen) = (sum / all, steal / all);
    if busy + stolen < DISTURBED {
        return None;
    }
    let mut parts = Vec::new();
    if busy >= DISTURBED / 2.0 {
        parts.push(format!(
            "other programs use {:.0} % of the host's CPUs: {}; stop them or start again when they are done",
            100.0 * busy,
            others.largest(f64::from(seen.host.cpus))
        ));
    }
    if stolen >= DISTURBED / 2.0 {
        parts.push(format!(
            "the hypervisor steals {:.0} % of the host's CPUs; a quieter hour or another machine shows more",
            100.0 * stolen
        ));
    }
    Some(Disturbance { text: parts.join("; "), hopeless: busy + stolen >= HOPELESS })
}

/// An error where nothing could be shown.
pub(super) fn refuse(disturbance: &Disturbance) -> Failure {
    Failure::Cannot(anyhow!(
        "this host is too busy to show anything: {}; --anyway tries all the same",
        disturbance.text
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_largest_first_and_summed() {
        let mut others = ByName::default();
        for (name, pct) in [("rustc", 30.0), ("cargo", 50.0), ("rustc", 40.0), ("sshd", 0.2)] {
            others.add(name, pct);
        }
        assert_eq!(others.largest(1.0), "rustc (70 %), cargo (50 %)");
        assert_eq!(others.largest(10.0), "rustc (7 %), cargo (5 %)");
    }
}
