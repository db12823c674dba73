//! Waits of somebody named that a change for the others must not lengthen.
//!
//! A protection is about the 99th percentile of the waits for a CPU of a scope, pooled over windows. Its limit is the bound
//! the user gave; where the host as found is beyond that bound already, what the host as found has; without a bound, the
//! guard's factor times what the host as found has. A candidate is held against the limit by the share of waits that
//! exceed it, which must not be above one in a hundred: that is the same question as the percentile's, but a share has a
//! spread from window to window that tells how sure the answer is.

use evenkeel_base::Histogram;
use serde::{Deserialize, Serialize};

use crate::guard::Sure;
use evenkeel_base::stats;

/// Waits below this are not told apart from none where there is no bound, ns: twice nothing is nothing.
pub const FLOOR_NS: u64 = 200_000;
/// Share of waits that may exceed the limit.
const TAIL: f64 = 0.01;

/// Who is protected, and how far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// The scope as stated: its name in messages.
    pub name: String,
    /// Bound on the 99th percentile of its waits, ns; `None`: what the host as found has, times the guard's factor.
    pub wait_p99_ns: Option<u64>,
}

/// A limit passed.
#[derive(Debug, Clone, PartialEq)]
pub struct Breach {
    /// Index of the protection.
    pub protection: usize,
    /// 99th percentile in the host as found, ns; `None` when nobody waited.
    pub default_ns: Option<u64>,
    /// 99th percentile under the candidate, ns.
    pub p99_ns: u64,
    /// The limit, ns.
    pub limit_ns: u64,
    /// How sure.
    pub sure: Sure,
}

/// The 99th percentile over windows, ns; `None` without any wait.
pub fn p99_ns(windows: &[Histogram]) -> Option<u64> {
    let mut pool = Histogram::default();
    windows.iter().for_each(|window| pool.merge(window));
    pool.quantile(1.0 - TAIL)
}

impl Protection {
    /// The limit, ns, and whether it is what the host as found has, which is itself an estimate; `None` where neither a
    /// bound nor the host as found gives one.
    pub fn limit(&self, wait_factor: f64, default: &[Histogram]) -> Option<(u64, bool)> {
        let found = p99_ns(default);
        match (self.wait_p99_ns, found) {
            (Some(bound), Some(found)) if found > bound => Some((found, true)),
            (Some(bound), _) => Some((bound, false)),
            (None, Some(found)) => Some(((wait_factor * found.max(FLOOR_NS) as f64) as u64, false)),
            (None, None) => None,
        }
    }

    /// Whether windows under a candidate's settings exceed the limit that windows of the host as found give. `index` is
    /// the protection's own, for the answer.
    pub fn breach(
        &self,
        index: usize,
        (wait_factor, alpha): (f64, f64),
        default: &[Histogram],
        candidate: &[Histogram],
    ) -> Option<Breach> {
        let (limit_ns, estimated) = self.limit(wait_factor, default)?;
        let (share, residuals) = share_beyond(candidate, limit_ns)?;
        if share <= TAIL {
            return None;
        }
        let new: Vec<f64> = residuals.iter().map(|residual| share + residual).collect();
        let allowed = if estimated {
            let (share, residuals) = share_beyond(default, limit_ns)?;
            residuals.iter().map(|residual| share.max(TAIL) + residual).collect()
        } else {
            vec![TAIL; new.len()]
        };
        Some(Breach {
            protection: index,
            default_ns: p99_ns(default),
            p99_ns: p99_ns(candidate)?,
            limit_ns,
            sure: Sure::of(&new, &allowed, alpha),
        })
    }

    /// A breach in words.
    pub fn describe(&self, breach: &Breach) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let found = breach.default_ns.map_or_else(String::new, |ns| format!(" instead of {:.2} ms", ms(ns)));
        format!(
            "{}, which is protected, waits {:.2} ms in the 99th percentile{found}, beyond {:.2} ms",
            self.name,
            ms(breach.p99_ns),
            ms(breach.limit_ns)
        )
    }
}

/// Share of all waits that exceed a limit, and each window's residual from it (by the usual linearisation of a ratio of
/// sums); `None` without any wait.
fn share_beyond(windows: &[Histogram], limit_ns: u64) -> Option<(f64, Vec<f64>)> {
    let counts: Vec<(f64, f64)> =
        windows.iter().map(|window| (window.beyond(limit_ns), window.total() as f64)).collect();
    let mean = |pick: fn(&(f64, f64)) -> f64| stats::mean(&counts.iter().map(pick).collect::<Vec<_>>());
    let (beyond, total) = (mean(|c| c.0)?, mean(|c| c.1)?);
    if total <= 0.0 {
        return None;
    }
    let share = beyond / total;
    Some((share, counts.iter().map(|(beyond, all)| (beyond - share * all) / total).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg32;

    const RULES: (f64, f64) = (2.0, 0.05);
    const MS: u64 = 1_000_000;

    fn protection(bound_ns: Option<u64>) -> Protection {
        Protection { name: "container:web".into(), wait_p99_ns: bound_ns }
    }

    /// Windows of waits whose 99th percentile is about `p99_ns`: exponential, 4.6 times the mean.
    fn windows(p99_ns: u64, count: usize, seed: u64) -> Vec<Histogram> {
        let mut rng = Pcg32::seed_from_u64(seed);
        let mean = p99_ns as f64 / 100f64.ln();
        (0..count)
            .map(|_| {
                // Some windows are busier than others, and waits of one window are alike.
                let mean = mean * rng.random_range(0.9..1.1);
                let mut window = Histogram::default();
                for _ in 0..rng.random_range(200..600) {
                    window.add((-mean * rng.random_range(1e-9f64..1.0).ln()) as u64);
                }
                window
            })
            .collect()
    }

    #[test]
    fn the_limit_is_the_bound_or_what_is_found() {
        let found = windows(MS, 6, 1);
        let p99 = p99_ns(&found).unwrap();
        assert_eq!(protection(Some(2 * MS)).limit(2.0, &found), Some((2 * MS, false)));
        // The host as found is beyond the bound: no worse than that.
        assert_eq!(protection(Some(MS / 2)).limit(2.0, &found), Some((p99, true)));
        assert_eq!(protection(None).limit(2.0, &found), Some((2 * p99, false)));
        // Nothing to double: the floor.
        assert_eq!(protection(None).limit(2.0, &windows(1000, 3, 1)), Some((2 * FLOOR_NS, false)));
        assert_eq!(protection(None).limit(2.0, &[]), None);
        assert_eq!(protection(Some(MS)).limit(2.0, &[Histogram::default()]), Some((MS, false)));
    }

    #[test]
    fn nobody_who_waits_breaches_nothing_and_one_window_is_never_certain() {
        let idle = vec![Histogram::default(); 5];
        assert_eq!(protection(Some(MS)).breach(0, RULES, &windows(MS, 5, 1), &idle), None);
        assert_eq!(protection(Some(MS)).breach(0, RULES, &[], &[]), None);
        let breach = protection(Some(MS)).breach(0, RULES, &windows(MS / 2, 5, 1), &windows(9 * MS, 1, 2));
        assert_eq!(breach.unwrap().sure, Sure::Hardly);
    }

    #[test]
    fn a_breach_is_told_with_its_figures() {
        let breach = Breach {
            protection: 0,
            default_ns: Some(MS),
            p99_ns: 5 * MS,
            limit_ns: 2 * MS,
            sure: Sure::Certain,
        };
        assert_eq!(
            protection(None).describe(&breach),
            "container:web, which is protected, waits 5.00 ms in the 99th percentile instead of 1.00 ms, beyond 2.00 ms"
        );
    }

    #[test]
    fn held_against_what_is_found_alone_chance_is_seldom_certain() {
        // The bound is kept by nobody, so that the same waits are held against themselves.
        let sure = |seed| {
            let (default, candidate) = (windows(MS, 6, seed), windows(MS, 6, seed + 10_000));
            protection(Some(MS / 4)).breach(0, RULES, &default, &candidate).map(|breach| breach.sure)
        };
        let all: Vec<_> = (0..300).map(sure).collect();
        let count = |at_least| all.iter().filter(|sure| **sure >= Some(at_least)).count();
        // One in twenty by the rule, and one in six beyond a standard error, if shares were spread evenly to both sides.
        assert!(count(Sure::Certain) <= 30 && count(Sure::Probable) <= 90, "{all:?}");
        assert!(count(Sure::Hardly) >= 60, "{all:?}");
    }

    proptest! {
        /// Chance alone: the same waits again are within twice themselves, and within any bound they keep.
        #[test]
        fn the_same_waits_again_are_no_breach(seed in 0u64..2000, rounds in 4usize..10) {
            let (default, candidate) = (windows(MS, rounds, seed), windows(MS, rounds, seed + 10_000));
            for bound in [None, Some(2 * MS)] {
                prop_assert_eq!(protection(bound).breach(0, RULES, &default, &candidate), None);
            }
        }

        /// Waits four times as long are found out, whatever the limit comes from, and whatever the host had.
        #[test]
        fn waits_four_times_as_long_are_certain(seed in 0u64..2000, rounds in 4usize..10, scale in 1u64..20) {
            let found = scale * MS / 2;
            let (default, candidate) = (windows(found, rounds, seed), windows(4 * found, rounds, seed + 10_000));
            for bound in [None, Some(2 * found), Some(found / 3)] {
                let breach = protection(bound).breach(3, RULES, &default, &candidate);
                prop_assert!(breach.as_ref().is_some_and(|b| b.sure == Sure::Certain && b.protection == 3), "{bound:?} {breach:?}");
            }
        }

        /// What keeps a bound breaches nothing, even if the host as found kept it by far more.
        #[test]
        fn what_keeps_its_bound_is_allowed(seed in 0u64..2000, rounds in 1usize..10) {
            let candidate = windows(MS, rounds, seed);
            let bound = p99_ns(&candidate).unwrap() + MS / 100;
            let default = windows(MS / 10, rounds, seed + 10_000);
            prop_assert_eq!(protection(Some(bound)).breach(0, RULES, &default, &candidate), None);
        }
    }
}
