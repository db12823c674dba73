//! What one measurement window saw, and its summary.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::{Histogram, TaskId};

/// What a task belongs to in messages and where it is pooled: a container, a virtual machine, or a cgroup.
pub type Owner = Arc<str>;

/// Rates of one task in one window.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// CPU got, percent of one CPU.
    pub got_pct: f64,
    /// Time waiting, percent of the window.
    pub waited_pct: Option<f64>,
    pub waits: Option<u64>,
    pub in_scope: bool,
    pub owner: Option<Owner>,
}

impl Rates {
    /// Whether it would take any amount: it was runnable all the time.
    pub fn never_sleeps(&self) -> bool {
        self.waited_pct.is_some_and(|waited| self.got_pct + waited >= NEVER_SLEEPS_PCT)
    }
}

/// A task that is runnable for this share of a window or more did not sleep in it, percent. Clocks differ a little.
const NEVER_SLEEPS_PCT: f64 = 98.0;

/// A window as decisions use it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    pub seconds: f64,
    /// CPU got by the scope, percent of one CPU, by tasks that ended, too: a job that gets more is done sooner, which is no loss.
    pub got_pct: f64,
    /// Time the scope waited, percent of the window summed over tasks whose waits are known, those that ended included.
    pub waited_pct: f64,
    /// Estimated fulfilment of the same tasks: sum got / sum (got / (1 - waited fraction)). A label, never a verdict.
    pub fulfilment: Option<f64>,
    pub tasks: BTreeMap<TaskId, Rates>,
    /// CPU of everything outside the scope, percent of one CPU.
    pub outside_pct: Option<f64>,
    /// Idle time of the host's CPUs, percent of one CPU.
    pub idle_pct: Option<f64>,
    /// Waits for a CPU by length of what does not belong to the scope, by owner, where they are counted.
    pub waits: BTreeMap<Owner, Histogram>,
    /// How long what comes to services is delayed, where they are what counts: a mean logarithm, in microseconds.
    pub services: Option<f64>,
}

impl Summary {
    /// What these rates come to. Whatever else the window saw is for the caller to add.
    pub fn of(seconds: f64, tasks: BTreeMap<TaskId, Rates>) -> Self {
        let mut summary = Self { seconds, ..Self::default() };
        let (mut got, mut wanted) = (0.0, 0.0);
        for rates in tasks.values().filter(|rates| rates.in_scope) {
            summary.got_pct += rates.got_pct;
            if let Some(waited) = rates.waited_pct {
                summary.waited_pct += waited;
                got += rates.got_pct;
                wanted += rates.got_pct / (1.0 - (waited / 100.0).clamp(0.0, 0.99));
            }
        }
        Self { fulfilment: (got > 0.0).then(|| got / wanted), tasks, ..summary }
    }

    /// Waiting per unit of work of those of the scope that live and whose waits are known; `None` when these did nothing.
    pub fn wait_per_ran(&self) -> Option<f64> {
        let mine = self.tasks.values().filter(|rates| rates.in_scope);
        let known = mine.filter_map(|rates| Some((rates.got_pct, rates.waited_pct?)));
        let (got, waited) = known.fold((0.0, 0.0), |sum, (got, waited)| (sum.0 + got, sum.1 + waited));
        (got > 0.0).then(|| waited / got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(got_pct: f64, waited_pct: f64) -> Rates {
        Rates { got_pct, waited_pct: Some(waited_pct), waits: None, in_scope: true, owner: None }
    }

    fn unknown(got_pct: f64) -> Rates {
        Rates { waited_pct: None, ..rates(got_pct, 0.0) }
    }

    fn summary(tasks: &[Rates]) -> Summary {
        let id = |tid| TaskId { tgid: tid, tid, start_time: 1 };
        Summary::of(2.0, (1..).map(id).zip(tasks.iter().cloned()).collect())
    }

    #[test]
    fn sums_only_the_scope() {
        let s =
            summary(&[rates(25.0, 25.0), rates(25.0, 0.0), Rates { in_scope: false, ..rates(50.0, 0.0) }]);
        assert!((s.got_pct - 50.0).abs() < 1e-9);
        assert!((s.wait_per_ran().unwrap() - 0.5).abs() < 1e-9);
        // wanted: 25 / (1 - 0.25) + 25
        assert!((s.fulfilment.unwrap() - 50.0 / (25.0 / 0.75 + 25.0)).abs() < 1e-9);
        assert_eq!((s.seconds, s.tasks.len()), (2.0, 3));
    }

    #[test]
    fn waits_that_are_not_known_are_not_none() {
        let of = |tasks: &[Rates]| (summary(tasks).wait_per_ran(), summary(tasks).fulfilment);
        assert_eq!(of(&[unknown(50.0), unknown(50.0)]), (None, None));
        // What others do says nothing of the scope.
        assert_eq!(of(&[unknown(50.0), Rates { in_scope: false, ..rates(50.0, 50.0) }]), (None, None));
        assert_eq!(of(&[rates(50.0, 0.0)]), (Some(0.0), Some(1.0)));
        // Nor do the waits of one who got nothing.
        assert_eq!(of(&[unknown(50.0), rates(0.0, 50.0)]), (None, None));
        assert_eq!(of(&[rates(0.0, 50.0)]), (None, None));
        // Of whom nothing is known did not wait for nothing: a quarter of its time waited who is known.
        assert_eq!(of(&[unknown(50.0), unknown(50.0), rates(75.0, 25.0)]), (Some(1.0 / 3.0), Some(0.75)));
    }

    #[test]
    fn who_is_runnable_all_the_time_but_for_the_clocks_never_sleeps() {
        assert!(rates(30.0, 68.0).never_sleeps() && !rates(30.0, 67.9).never_sleeps());
        assert!(!unknown(100.0).never_sleeps(), "unknown is not zero");
    }
}
