//! Is the host quiet enough to show anything? What disturbs is named before the first load starts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use evenkeel_base::Observation;
use evenkeel_linux::Root;
use evenkeel_observe::{Detail, Observer, ObserverOptions, Select};

use crate::cli::Failure;

/// How long other programs are watched, and in how many parts: what comes and goes disturbs more than what stays.
const PART: Duration = Duration::from_millis(500);
const PARTS: usize = 3;
/// Share of the CPUs by which the use of one part exceeds that of another one on a host that is not steady.
const UNSTEADY: f64 = 0.15;
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

    /// The largest, such as `cargo (120 %), rustc (60 %)`; those below 1 % are left out, unless there are no others.
    pub fn largest(&self, divisor: f64) -> String {
        let mut sorted: Vec<(&String, f64)> =
            self.0.iter().map(|(name, pct)| (name, pct / divisor)).collect();
        sorted.retain(|(_, pct)| *pct >= 1.0);
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        let named: Vec<String> =
            sorted.iter().take(NAMED).map(|(name, pct)| format!("{name} ({pct:.0} %)")).collect();
        if named.is_empty() { "each below 1 %".to_owned() } else { named.join(", ") }
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
    let mut parts = Vec::new();
    let mut before = observer.sample_of(&Select::All, &Select::None).context("cannot observe this host")?;
    for _ in 0..PARTS {
        std::thread::sleep(PART);
        let after = observer.sample_of(&Select::All, &Select::None).context("cannot observe this host")?;
        let seen = observer.observe(&before, &after, &Detail::None).context("cannot observe this host")?;
        parts.push(Part::of(&seen));
        before = after;
    }
    Ok(judge(&parts))
}

/// What others than this process took in one part.
#[derive(Debug, Clone, Default)]
struct Part {
    /// Percent of all CPUs together, by program.
    by_name: ByName,
    /// Shares of all CPUs.
    busy: f64,
    stolen: f64,
}

impl Part {
    fn of(seen: &Observation) -> Self {
        let cpus = f64::from(seen.host.cpus).max(1.0);
        let me = std::process::id();
        let mut part = Self { stolen: seen.host.steal_pct.unwrap_or(0.0) / cpus / 100.0, ..Self::default() };
        for task in seen.tasks.iter().filter(|task| task.id.tgid != me) {
            part.by_name.add(&task.comm, task.cpu_pct / cpus);
            part.busy += task.cpu_pct / cpus / 100.0;
        }
        part
    }
}

fn judge(parts: &[Part]) -> Option<Disturbance> {
    let mean = |of: fn(&Part) -> f64| parts.iter().map(of).sum::<f64>() / parts.len().max(1) as f64;
    let (busy, stolen) = (mean(|part| part.busy), mean(|part| part.stolen));
    let uses = || parts.iter().map(|part| part.busy + part.stolen);
    let (least, most) = (uses().fold(f64::INFINITY, f64::min), uses().fold(0.0, f64::max));
    let unsteady = most - least >= UNSTEADY;
    if busy + stolen < DISTURBED && !unsteady {
        return None;
    }
    let mut words = Vec::new();
    if busy >= DISTURBED / 2.0 {
        let mut others = ByName::default();
        for part in parts {
            part.by_name.0.iter().for_each(|(name, pct)| others.add(name, *pct));
        }
        words.push(format!(
            "other programs use {:.0} % of the host's CPUs: {}; stop them or start again when they are done",
            100.0 * busy,
            others.largest(parts.len() as f64)
        ));
    }
    if stolen >= DISTURBED / 2.0 {
        words.push(format!(
            "the hypervisor steals {:.0} % of the host's CPUs; a quieter hour or another machine shows more",
            100.0 * stolen
        ));
    }
    if unsteady {
        words.push(format!(
            "what others take varies between {:.0} and {:.0} % within {:.1} s{}",
            100.0 * least,
            100.0 * most,
            PART.as_secs_f64() * parts.len() as f64,
            who_varies(parts).map_or_else(String::new, |who| format!(", most of all {who}"))
        ));
    }
    Some(Disturbance { text: words.join("; "), hopeless: busy + stolen >= HOPELESS })
}

/// The program whose use varies most, such as `rustc (2 to 60 %)`.
fn who_varies(parts: &[Part]) -> Option<String> {
    let of = |part: &Part, name: &String| part.by_name.0.get(name).copied().unwrap_or(0.0);
    let span = |name: &String| {
        let uses = || parts.iter().map(|part| of(part, name));
        (uses().fold(f64::INFINITY, f64::min), uses().fold(0.0, f64::max))
    };
    let spans = parts.iter().flat_map(|part| part.by_name.0.keys()).map(|name| (name, span(name)));
    let (name, (least, most)) = spans.max_by(|a, b| (a.1.1 - a.1.0).total_cmp(&(b.1.1 - b.1.0)))?;
    Some(format!("{name} ({least:.0} to {most:.0} %)"))
}

/// An error where nothing could be shown.
pub(super) fn refuse(disturbance: &Disturbance) -> Failure {
    cannot!("this host is too busy to show anything: {}; --anyway tries all the same", disturbance.text)
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
        assert_eq!(others.largest(100.0), "each below 1 %");
    }

    fn parts(uses: [&[(&str, f64)]; 3]) -> [Part; 3] {
        uses.map(|programs| {
            let mut part = Part::default();
            for (name, pct) in programs {
                part.by_name.add(name, *pct);
                part.busy += pct / 100.0;
            }
            part
        })
    }

    #[test]
    fn who_is_busy_and_who_comes_and_goes_is_named() {
        assert_eq!(judge(&parts([&[("sshd", 2.0)], &[("sshd", 3.0)], &[]])), None);
        let steady: &[_] = &[("rustc", 60.0)];
        let busy = judge(&parts([steady; 3])).unwrap();
        assert!(
            busy.hopeless
                && busy.text.starts_with("other programs use 60 % of the host's CPUs: rustc (60 %)")
        );
        assert!(!busy.text.contains("varies"), "{}", busy.text);
        let varies =
            judge(&parts([&[("cron", 1.0)], &[("cron", 1.0), ("make", 20.0)], &[("cron", 2.0)]])).unwrap();
        assert!(!varies.hopeless, "{varies:?}");
        assert!(
            varies.text.ends_with("varies between 1 and 21 % within 1.5 s, most of all make (0 to 20 %)"),
            "{}",
            varies.text
        );
    }
}
