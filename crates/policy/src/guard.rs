//! What utilisation hides: a longer slice for one is a longer wait for another.
//!
//! A candidate is refused when some task, in or out of the scope, certainly loses too much CPU or certainly waits too
//! much longer for each unit of work. "Certainly" is beyond a one-sided interval, corrected (Bonferroni) for the number
//! of comparisons made, so that looking at many tasks does not by itself raise alarms.

use std::collections::BTreeSet;

use evenkeel_base::TaskId;
use serde::{Deserialize, Serialize};

use crate::stats::{mean, standard_error, t_factor};
use crate::window::Summary;

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
    /// Whether the interval excludes the limit; otherwise only the best estimate passes it.
    pub certain: bool,
}

/// Compares windows under the present settings with windows under a candidate, taken in the same rounds.
pub fn violations(limits: &GuardLimits, present: &[Summary], candidate: &[Summary]) -> Vec<Violation> {
    let rounds = present.len().min(candidate.len());
    if rounds == 0 {
        return Vec::new();
    }
    let (present, candidate) = (&present[..rounds], &candidate[..rounds]);
    let ids: BTreeSet<TaskId> = present.iter().flat_map(|s| s.tasks.keys().copied()).collect();
    let followed: Vec<TaskId> = ids
        .into_iter()
        .filter(|id| {
            let got: f64 = present.iter().filter_map(|s| s.tasks.get(id)).map(|r| r.got_pct).sum();
            got / rounds as f64 >= limits.min_cpu_pct
        })
        .collect();
    // Two questions per task and one for the rest of the host.
    let alpha = limits.alpha / (2 * followed.len() + 1) as f64;
    let mut found = Vec::new();
    for id in followed {
        let pairs: Vec<_> = present
            .iter()
            .zip(candidate)
            .filter_map(|(p, c)| Some((*p.tasks.get(&id)?, *c.tasks.get(&id)?)))
            .collect();
        // A task that ended is not a victim; one seen twice or less says nothing.
        if pairs.is_empty() {
            continue;
        }
        let before: Vec<f64> = pairs.iter().map(|(p, _)| p.got_pct).collect();
        let after: Vec<f64> = pairs.iter().map(|(_, c)| c.got_pct).collect();
        if let Some((before, after, certain)) = exceeds(&before, &after, 1.0 - limits.cpu_loss, alpha) {
            found.push(Violation { victim: Victim::Task(id), harm: Harm::Cpu, before, after, certain });
        }
        let waits: Option<Vec<_>> =
            pairs.iter().map(|(p, c)| Some((p.got_pct, p.waited_pct?, c.got_pct, c.waited_pct?))).collect();
        if let Some(violation) = waits.and_then(|w| longer_wait(limits, id, &w, alpha)) {
            found.push(violation);
        }
    }
    let outside: Vec<(f64, f64)> =
        present.iter().zip(candidate).filter_map(|(p, c)| Some((p.outside_pct?, c.outside_pct?))).collect();
    let (before, after): (Vec<f64>, Vec<f64>) = outside.into_iter().unzip();
    if mean(&before).is_some_and(|m| m >= limits.min_cpu_pct)
        && let Some((before, after, certain)) = exceeds(&before, &after, 1.0 - limits.cpu_loss, alpha)
    {
        found.push(Violation { victim: Victim::Outside, harm: Harm::Cpu, before, after, certain });
    }
    found
}

/// Whether `after` falls below `share` of `before`: (mean before, mean after, certain).
fn exceeds(before: &[f64], after: &[f64], share: f64, alpha: f64) -> Option<(f64, f64, bool)> {
    let differences: Vec<f64> = before.iter().zip(after).map(|(b, a)| share * b - a).collect();
    let excess = mean(&differences)?;
    let margin =
        standard_error(&differences).map_or(f64::INFINITY, |se| t_factor(differences.len(), alpha) * se);
    (excess > 0.0).then_some((mean(before)?, mean(after)?, excess > margin))
}

/// Ratio estimate of wait per work, by the usual linearisation: with W waits and R work, the residuals
/// `w/R_after - factor * v/R_before` have the mean of the excess.
fn longer_wait(
    limits: &GuardLimits,
    id: TaskId,
    pairs: &[(f64, f64, f64, f64)],
    alpha: f64,
) -> Option<Violation> {
    let n = pairs.len() as f64;
    let ran_before = pairs.iter().map(|p| p.0).sum::<f64>() / n;
    let ran_after = pairs.iter().map(|p| p.2).sum::<f64>() / n;
    if ran_before <= 0.0 || ran_after <= 0.0 {
        return None;
    }
    let before = pairs.iter().map(|p| p.1).sum::<f64>() / n / ran_before;
    let after = pairs.iter().map(|p| p.3).sum::<f64>() / n / ran_after;
    let limit = limits.wait_factor * before.max(limits.wait_floor);
    if after <= limit {
        return None;
    }
    // Deviations of each round's waits from what its own work explains.
    let residuals: Vec<f64> = pairs
        .iter()
        .map(|p| (p.3 - after * p.2) / ran_after - limits.wait_factor * (p.1 - before * p.0) / ran_before)
        .collect();
    let margin = standard_error(&residuals).map_or(f64::INFINITY, |se| t_factor(residuals.len(), alpha) * se);
    Some(Violation {
        victim: Victim::Task(id),
        harm: Harm::Wait,
        before,
        after,
        certain: after - limit > margin,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Rates;
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
        assert!(found.iter().any(|v| v.harm == Harm::Cpu && v.certain), "{found:?}");
    }

    #[test]
    fn a_tripled_wait_is_harm_and_the_same_wait_is_not() {
        let before = windows(&[(20.0, 4.0), (21.0, 4.4), (20.5, 4.1), (19.5, 3.9), (20.0, 4.2)], 1);
        let after = windows(&[(20.0, 12.0), (20.0, 12.5), (20.0, 12.2), (20.0, 13.0), (20.0, 12.4)], 1);
        let found = violations(&GuardLimits::default(), &before, &after);
        assert!(found.iter().any(|v| v.harm == Harm::Wait && v.certain), "{found:?}");
        assert!(violations(&GuardLimits::default(), &before, &before).is_empty());
    }

    #[test]
    fn one_round_is_never_certain() {
        let found =
            violations(&GuardLimits::default(), &windows(&[(20.0, 1.0)], 1), &windows(&[(1.0, 50.0)], 1));
        assert!(!found.is_empty() && found.iter().all(|v| !v.certain), "{found:?}");
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
            prop_assert!(violations(&GuardLimits::default(), &before, &after).iter().all(|v| !v.certain));
        }
    }
}
