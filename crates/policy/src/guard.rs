//! What utilisation hides: a longer slice for one is a longer wait for another.
//!
//! A candidate is refused when some task, in or out of the scope, certainly loses too much CPU or certainly waits too
//! much longer for each unit of work. "Certainly" is beyond a one-sided interval, corrected (Bonferroni) for the number
//! of comparisons made, so that looking at many tasks does not by itself raise alarms.

use std::collections::BTreeSet;

use evenkeel_base::TaskId;
use serde::{Deserialize, Serialize};

use crate::window::{Rates, Summary};
use evenkeel_base::stats::{difference, mean};

/// Limits of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuardLimits {
    /// Share of its CPU that a task may lose (0.10 is a tenth).
    pub cpu_loss: f64,
    /// Factor by which a task's wait per unit of work may grow.
    pub wait_factor: f64,
    /// Tasks below this CPU use, percent of one CPU, are not looked at.
    pub min_cpu_pct: f64,
    /// Waits below this many seconds per second of work are not told apart from none: twice nothing is nothing.
    pub wait_floor: f64,
    /// Error probability of the whole comparison.
    pub alpha: f64,
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self { cpu_loss: 0.10, wait_factor: 2.0, min_cpu_pct: 1.0, wait_floor: 0.02, alpha: 0.05 }
    }
}

/// Who was hurt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// One task.
    Task(TaskId),
    /// Everything outside the scope taken together, which covers tasks too short-lived to be followed.
    Outside,
}

/// In what way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Got less CPU.
    Cpu,
    /// Waited longer per unit of work.
    Wait,
}

/// How sure a violation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sure {
    /// Only the best estimate passes the limit.
    Hardly,
    /// By more than one standard error.
    Probable,
    /// Beyond the interval, corrected for the number of comparisons: this forbids a candidate.
    Certain,
}

impl Sure {
    /// Of an excess, given both samples.
    pub(crate) fn of(larger: &[f64], smaller: &[f64], alpha: f64) -> Self {
        // A two-sided interval at 2 alpha has the one-sided bound at alpha.
        let beyond = |alpha: f64| difference(larger, smaller, 2.0 * alpha).is_some_and(|d| d.low > 0.0);
        if beyond(alpha) {
            Self::Certain
        } else if beyond(ONE_ERROR) {
            Self::Probable
        } else {
            Self::Hardly
        }
    }
}

/// Error probability of a bound one standard error away.
const ONE_ERROR: f64 = 0.16;

/// One limit passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Violation {
    /// Who.
    pub victim: Victim,
    /// How.
    pub harm: Harm,
    /// Value under the present settings (percent of a CPU, or seconds waited per second of work).
    pub before: f64,
    /// Value under the candidate.
    pub after: f64,
    /// How sure that is.
    pub sure: Sure,
}

/// Compares windows under the present settings with windows under a candidate.
pub fn violations(limits: &GuardLimits, present: &[Summary], candidate: &[Summary]) -> Vec<Violation> {
    if present.is_empty() || candidate.is_empty() {
        return Vec::new();
    }
    let ids: BTreeSet<TaskId> = present.iter().flat_map(|s| s.tasks.keys().copied()).collect();
    let followed: Vec<TaskId> = ids
        .into_iter()
        .filter(|id| {
            let got: f64 = present.iter().filter_map(|s| s.tasks.get(id)).map(|r| r.got_pct).sum();
            got / present.len() as f64 >= limits.min_cpu_pct
        })
        .collect();
    // Two questions per task and one for the rest of the host.
    let alpha = limits.alpha / (2 * followed.len() + 1) as f64;
    let mut found = Vec::new();
    for id in followed {
        let rates = |windows: &[Summary]| -> Vec<Rates> {
            windows.iter().filter_map(|s| s.tasks.get(&id).copied()).collect()
        };
        // A task that ended is not a victim.
        let (before, after) = (rates(present), rates(candidate));
        let got = |rates: &[Rates]| -> Vec<f64> { rates.iter().map(|r| r.got_pct).collect() };
        if let Some((before, after, sure)) =
            falls_below(&got(&before), &got(&after), 1.0 - limits.cpu_loss, alpha)
        {
            found.push(Violation { victim: Victim::Task(id), harm: Harm::Cpu, before, after, sure });
        }
        if let Some((before, after, sure)) = waits_longer(limits, &before, &after, alpha) {
            found.push(Violation { victim: Victim::Task(id), harm: Harm::Wait, before, after, sure });
        }
    }
    let outside =
        |windows: &[Summary]| -> Vec<f64> { windows.iter().filter_map(|s| s.outside_pct).collect() };
    let (before, after) = (outside(present), outside(candidate));
    if mean(&before).is_some_and(|m| m >= limits.min_cpu_pct)
        && let Some((before, after, sure)) = falls_below(&before, &after, 1.0 - limits.cpu_loss, alpha)
    {
        found.push(Violation { victim: Victim::Outside, harm: Harm::Cpu, before, after, sure });
    }
    found
}

/// Whether the mean of `after` is below `share` of the mean of `before`: (before, after, how sure).
fn falls_below(before: &[f64], after: &[f64], share: f64, alpha: f64) -> Option<(f64, f64, Sure)> {
    let limit: Vec<f64> = before.iter().map(|value| share * value).collect();
    let (before, mean_after) = (mean(before)?, mean(after)?);
    (share * before > mean_after).then(|| (before, mean_after, Sure::of(&limit, after, alpha)))
}

/// Whether waits per unit of work pass the limit: (before, after, how sure). The ratio of sums, with its spread by the
/// usual linearisation: what a window's waits exceed those its work explains, over the mean work.
fn waits_longer(
    limits: &GuardLimits,
    before: &[Rates],
    after: &[Rates],
    alpha: f64,
) -> Option<(f64, f64, Sure)> {
    let (before, before_residuals) = wait_ratio(before)?;
    let (after, after_residuals) = wait_ratio(after)?;
    let floor = limits.wait_floor;
    if after <= limits.wait_factor * before.max(floor) {
        return None;
    }
    let base: Vec<f64> =
        before_residuals.iter().map(|residual| limits.wait_factor * (before.max(floor) + residual)).collect();
    let new: Vec<f64> = after_residuals.iter().map(|residual| after + residual).collect();
    Some((before, after, Sure::of(&new, &base, alpha)))
}

/// Seconds waited per second of work over all windows, and each window's residual from it.
fn wait_ratio(windows: &[Rates]) -> Option<(f64, Vec<f64>)> {
    let waits: Option<Vec<f64>> = windows.iter().map(|r| r.waited_pct).collect();
    let waited = mean(&waits?)?;
    let worked = mean(&windows.iter().map(|r| r.got_pct).collect::<Vec<_>>())?;
    if worked <= 0.0 {
        return None;
    }
    let ratio = waited / worked;
    let residuals =
        windows.iter().filter_map(|r| Some((r.waited_pct? - ratio * r.got_pct) / worked)).collect();
    Some((ratio, residuals))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(tid: u32) -> TaskId {
        TaskId { tgid: tid, tid, start_time: 1 }
    }

    fn windows(values: &[(f64, f64)], tasks: u32) -> Vec<Summary> {
        values
            .iter()
            .map(|&(got, waited)| Summary {
                seconds: 1.0,
                got_pct: got,
                waited_pct: waited,
                fulfilment: None,
                tasks: (1..=tasks)
                    .map(|t| (id(t), Rates { got_pct: got, waited_pct: Some(waited), in_scope: true }))
                    .collect(),
                outside_pct: None,
            })
            .collect()
    }

    #[test]
    fn losing_a_quarter_of_its_cpu_is_certain_harm() {
        let before = windows(&[(20.0, 1.0), (21.0, 1.0), (20.5, 1.0), (19.5, 1.0), (20.0, 1.0)], 1);
        let after = windows(&[(15.0, 1.0), (15.5, 1.0), (14.5, 1.0), (15.0, 1.0), (15.2, 1.0)], 1);
        let found = violations(&GuardLimits::default(), &before, &after);
        assert!(found.iter().any(|v| v.harm == Harm::Cpu && v.sure == Sure::Certain), "{found:?}");
    }

    #[test]
    fn a_tripled_wait_is_harm_and_the_same_wait_is_not() {
        let before = windows(&[(20.0, 4.0), (21.0, 4.4), (20.5, 4.1), (19.5, 3.9), (20.0, 4.2)], 1);
        let after = windows(&[(20.0, 12.0), (20.0, 12.5), (20.0, 12.2), (20.0, 13.0), (20.0, 12.4)], 1);
        let found = violations(&GuardLimits::default(), &before, &after);
        assert!(found.iter().any(|v| v.harm == Harm::Wait && v.sure == Sure::Certain), "{found:?}");
        assert!(violations(&GuardLimits::default(), &before, &before).is_empty());
    }

    #[test]
    fn one_round_is_never_certain() {
        let found =
            violations(&GuardLimits::default(), &windows(&[(20.0, 1.0)], 1), &windows(&[(1.0, 50.0)], 1));
        assert!(!found.is_empty() && found.iter().all(|v| v.sure != Sure::Certain), "{found:?}");
    }

    #[test]
    fn tiny_waits_and_tiny_tasks_are_ignored() {
        let before = windows(&[(20.0, 0.01); 4], 1);
        let after = windows(&[(20.0, 0.2); 4], 1);
        assert!(violations(&GuardLimits::default(), &before, &after).is_empty());
        let before = windows(&[(0.5, 0.5); 4], 1);
        let after = windows(&[(0.1, 5.0); 4], 1);
        assert!(violations(&GuardLimits::default(), &before, &after).is_empty());
    }

    proptest! {
        /// Pure noise of +-10 % on many tasks must hardly ever look certain: the correction for many comparisons.
        #[test]
        fn noise_alone_is_not_certain_harm(seed in 0u64..500) {
            use rand::{Rng, SeedableRng};
            let mut rng = rand_pcg::Pcg32::seed_from_u64(seed);
            let mut draw = || -> Vec<Summary> {
                (0..6).map(|_| {
                    let mut s = windows(&[(20.0, 4.0)], 30).remove(0);
                    for rates in s.tasks.values_mut() {
                        rates.got_pct *= rng.random_range(0.9..1.1);
                        rates.waited_pct = Some(4.0 * rng.random_range(0.5..1.5));
                    }
                    s
                }).collect()
            };
            let (before, after) = (draw(), draw());
            prop_assert!(violations(&GuardLimits::default(), &before, &after).iter().all(|v| v.sure != Sure::Certain));
        }
    }
}
