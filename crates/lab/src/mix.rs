//! Random mixes of duty loads, for validating what decides: the same seed gives the same mix everywhere.

use std::fmt;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::tenant::Layout;
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

/// Least and most a task of a mix wants, percent of ONE CPU.
const TASK_PCT: (f64, f64) = (1.0, 95.0);

/// A set of duty loads and the place they run in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// What it was drawn from.
    pub seed: u64,
    /// CPUs of the host it was drawn for.
    pub cpus: u32,
    /// One cgroup for all, or one each.
    pub place: Layout,
    pub tasks: Vec<Duty>,
}

impl Mix {
    /// Draws a mix: 2 to 40 tasks that together want 40 to 160 % of the CPUs; one kind for all (wall or closed three
    /// times out of four) or a kind each; jitter 0 to 80 %, one for all; periods 5 to 500 ms, one for all or one each;
    /// in one cgroup or one each.
    pub fn random(seed: u64, cpus: u32) -> Self {
        let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
        let cpus = cpus.max(1);
        let total = f64::from(cpus) * random.random_range(40.0..160.0);
        let fewest = ((total / TASK_PCT.1 * 1.05).ceil() as usize).max(2);
        let most = 40.max(fewest);
        // Uniform in the logarithm: few tasks are as likely as many.
        let count = log_uniform(&mut random, fewest as f64, most as f64).round() as usize;
        let kind = match random.random_range(0..8) {
            0..3 => Some(DutyKind::Wall),
            3..6 => Some(DutyKind::Closed),
            6 => Some(DutyKind::Open),
            _ => None,
        };
        // A fifth of the mixes has fixed periods, the case that falls into step.
        let jitter: f64 = if random.random_bool(0.2) { 0.0 } else { random.random_range(0.0..80.0) };
        let common_period =
            random.random_bool(0.5).then(|| log_uniform(&mut random, 5.0, 500.0)).map(|ms| ms.round());
        let place = if random.random_bool(0.5) { Layout::OneCgroup } else { Layout::CgroupEach };
        let tasks = split(&mut random, total, count)
            .into_iter()
            .enumerate()
            .map(|(index, percent)| Duty {
                percent: (percent * 10.0).round() / 10.0,
                period: Duration::from_millis(
                    common_period.unwrap_or_else(|| log_uniform(&mut random, 5.0, 500.0).round()) as u64,
                ),
                jitter: jitter.round(),
                kind: kind.unwrap_or_else(|| {
                    [DutyKind::Wall, DutyKind::Closed, DutyKind::Open][random.random_range(0..3)]
                }),
                seed: seed.wrapping_mul(1000).wrapping_add(index as u64),
            })
            .collect();
        Self { seed, cpus, place, tasks }
    }

    /// CPU time wanted by all, percent of ONE CPU.
    pub fn wanted_pct(&self) -> f64 {
        self.tasks.iter().map(|t| t.percent).sum()
    }

    /// Whether more is wanted than there is.
    pub fn is_overloaded(&self) -> bool {
        self.wanted_pct() > f64::from(self.cpus) * 100.0
    }

    /// The loads to start, named `mix<seed>-<n>`.
    pub fn specs(&self) -> Vec<LoadSpec> {
        let name = |n| format!("mix{}-{n}", self.seed);
        self.tasks
            .iter()
            .enumerate()
            .map(|(n, duty)| LoadSpec::new(Kind::Duty(duty.clone())).named(name(n)))
            .collect()
    }
}

/// Uniform in the logarithm.
fn log_uniform(random: &mut impl Rng, low: f64, high: f64) -> f64 {
    (low.ln() + (high.ln() - low.ln()) * random.random::<f64>()).exp()
}

/// Splits a total at random into `count` parts within [`TASK_PCT`].
fn split(random: &mut impl Rng, total: f64, count: usize) -> Vec<f64> {
    // Exponential shares: uniform over all ways to split.
    let mut parts: Vec<f64> = (0..count).map(|_| -random.random_range(1e-6..1.0f64).ln()).collect();
    // Clamp and rescale what is not clamped, until the sum fits.
    for _ in 0..100 {
        let sum: f64 = parts.iter().sum();
        for part in &mut parts {
            *part = (*part * total / sum).clamp(TASK_PCT.0, TASK_PCT.1);
        }
        if (parts.iter().sum::<f64>() - total).abs() < total * 1e-3 {
            break;
        }
    }
    parts
}

impl fmt::Display for Mix {
    /// One line: `mix 7: 12 tasks want 174 % of 200 %, closed, periods 5-80 ms +-35 %, one cgroup each`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<String> = self.tasks.iter().map(|t| t.kind.to_string()).collect();
        kinds.sort();
        kinds.dedup();
        let ms = |t: &Duty| t.period.as_millis();
        let (low, high) = (self.tasks.iter().map(ms).min(), self.tasks.iter().map(ms).max());
        let (low, high) = (low.unwrap_or(0), high.unwrap_or(0));
        let periods = if low == high { format!("period {low}") } else { format!("periods {low}-{high}") };
        write!(
            f,
            "mix {}: {} tasks want {:.0} % of {} %, {}, {periods} ms +-{:.0} %, {}",
            self.seed,
            self.tasks.len(),
            self.wanted_pct(),
            self.cpus * 100,
            kinds.join("+"),
            self.tasks.first().map_or(0.0, |t| t.jitter),
            match self.place {
                Layout::Process => "no cgroup",
                Layout::OneCgroup => "one cgroup",
                Layout::CgroupEach => "one cgroup each",
                Layout::ContainerEach => "one container each",
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_workload::Workload;
    use proptest::prelude::*;

    #[test]
    fn a_line_says_what_it_is() {
        let line = Mix::random(7, 2).to_string();
        assert!(line.starts_with("mix 7: ") && line.contains(" of 200 %") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn mixes_cover_the_cases() {
        let mixes: Vec<Mix> = (0..200).map(|seed| Mix::random(seed, 2)).collect();
        let some = |f: &dyn Fn(&Mix) -> bool| mixes.iter().filter(|m| f(m)).count();
        for (what, count) in [
            ("overloaded", some(&|m| m.is_overloaded())),
            ("underloaded", some(&|m| !m.is_overloaded())),
            ("fixed periods", some(&|m| m.tasks[0].jitter == 0.0)),
            ("one cgroup", some(&|m| m.place == Layout::OneCgroup)),
            ("one each", some(&|m| m.place == Layout::CgroupEach)),
            ("open", some(&|m| m.tasks.iter().all(|t| t.kind == DutyKind::Open))),
            ("wall", some(&|m| m.tasks.iter().all(|t| t.kind == DutyKind::Wall))),
            ("closed", some(&|m| m.tasks.iter().all(|t| t.kind == DutyKind::Closed))),
            ("mixed kinds", some(&|m| m.tasks.iter().any(|t| t.kind != m.tasks[0].kind))),
            ("few", some(&|m| m.tasks.len() <= 5)),
            ("many", some(&|m| m.tasks.len() >= 25)),
        ] {
            assert!(count >= 10, "{what}: {count} of 200");
        }
    }

    proptest! {
        #[test]
        fn every_mix_is_valid_and_reproducible(seed in any::<u64>(), cpus in 1u32..65) {
            let mix = Mix::random(seed, cpus);
            prop_assert_eq!(&mix, &Mix::random(seed, cpus));
            prop_assert!(mix.tasks.len() >= 2);
            prop_assert!(cpus > 16 || mix.tasks.len() <= 40);
            let share = mix.wanted_pct() / f64::from(cpus);
            prop_assert!((38.0..=164.0).contains(&share), "{share}");
            for task in &mix.tasks {
                prop_assert!(task.check().is_ok());
                prop_assert!((5..=500).contains(&task.period.as_millis()));
                prop_assert!((0.0..=80.0).contains(&task.jitter));
            }
            let json = serde_json::to_string(&mix).unwrap();
            prop_assert_eq!(serde_json::from_str::<Mix>(&json).unwrap(), mix);
        }
    }
}
