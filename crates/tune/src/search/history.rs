//! What was measured: every run of every point.

use serde::{Deserialize, Serialize};

use super::space::Point;
use evenkeel_base::stats;

/// What one run of the service gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What is to become small; `None` when the run failed. A quantity that is to become large comes with its sign
    /// turned.
    pub loss: Option<f64>,
    /// For each constraint how far it was missed: above 0 is broken, 0 and below is kept.
    pub excess: Vec<f64>,
    /// Whether it belongs to the final comparison, which decides.
    pub last_round: bool,
}

impl Outcome {
    /// A run without constraints.
    pub fn of(loss: f64) -> Self {
        Self { loss: Some(loss), excess: Vec::new(), last_round: false }
    }

    /// A run that gave nothing.
    pub fn failed() -> Self {
        Self { loss: None, excess: Vec::new(), last_round: false }
    }
}

/// A point with its runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    pub point: Point,
    /// Its runs, in order.
    pub runs: Vec<Outcome>,
    /// When each was made, counted over all points.
    pub at: Vec<usize>,
}

impl Arm {
    /// Losses of the runs that gave one.
    pub fn losses(&self) -> Vec<f64> {
        self.runs.iter().filter_map(|r| r.loss).collect()
    }

    /// Whether it took part in the final comparison.
    pub fn in_last_round(&self) -> bool {
        self.runs.iter().any(|r| r.last_round)
    }

    /// Runs of the final comparison, or all runs where none of those gave anything.
    fn deciding(&self) -> impl Iterator<Item = &Outcome> {
        let last = self.runs.iter().any(|r| r.last_round && r.loss.is_some());
        self.runs.iter().filter(move |r| r.last_round || !last)
    }

    /// Losses of the final comparison, or of all runs when it took no part in it.
    pub fn decisive(&self) -> Vec<f64> {
        self.deciding().filter_map(|r| r.loss).collect()
    }

    /// Mean loss; `None` when no run gave one.
    pub fn mean(&self) -> Option<f64> {
        stats::mean(&self.losses())
    }

    /// More of its runs failed than not.
    pub fn fails(&self) -> bool {
        2 * self.losses().len() < self.runs.len() || self.losses().is_empty()
    }

    /// Mean excess of a constraint, over the runs that decide: what is said of the settings is of these runs, too.
    pub fn excess(&self, constraint: usize) -> Option<f64> {
        let values: Vec<f64> = self.deciding().filter_map(|r| r.excess.get(constraint).copied()).collect();
        stats::mean(&values)
    }

    /// It works and keeps every constraint on average.
    pub fn feasible(&self) -> bool {
        let constraints = self.runs.iter().map(|r| r.excess.len()).max().unwrap_or(0);
        !self.fails() && (0..constraints).all(|c| self.excess(c).is_some_and(|e| e <= 0.0))
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    arms: Vec<Arm>,
    runs: usize,
}

impl History {
    /// Notes a run. A loss or an excess that is not a number counts as a failure.
    pub fn push(&mut self, point: &Point, mut outcome: Outcome) {
        if outcome.loss.is_some_and(|l| !l.is_finite()) || outcome.excess.iter().any(|e| !e.is_finite()) {
            outcome = Outcome { loss: None, excess: Vec::new(), ..outcome };
        }
        let at = self.runs;
        self.runs += 1;
        match self.arms.iter_mut().find(|arm| arm.point == *point) {
            Some(arm) => {
                arm.runs.push(outcome);
                arm.at.push(at);
            }
            None => self.arms.push(Arm { point: point.clone(), runs: vec![outcome], at: vec![at] }),
        }
    }

    /// Points in the order of their first runs.
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    pub fn runs(&self) -> usize {
        self.runs
    }

    /// The point, if it was run.
    pub fn arm(&self, point: &Point) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.point == *point)
    }

    /// The best: keeps the constraints and has the smallest mean loss; among those of the final comparison once there
    /// are some. Where none keeps the constraints, `None`.
    pub fn best(&self) -> Option<&Arm> {
        let decided = self.arms.iter().any(|arm| arm.in_last_round() && arm.feasible());
        let candidates = self.arms.iter().filter(|arm| arm.feasible() && (!decided || arm.in_last_round()));
        let loss = |arm: &Arm| stats::mean(&arm.decisive()).unwrap_or(f64::INFINITY);
        candidates.min_by(|a, b| loss(a).total_cmp(&loss(b)))
    }

    /// Where none keeps the constraints: the one that misses them least.
    pub fn least_bad(&self) -> Option<&Arm> {
        let missed = |arm: &Arm| {
            let constraints = arm.runs.iter().map(|r| r.excess.len()).max().unwrap_or(0);
            (0..constraints).filter_map(|c| arm.excess(c)).map(|e| e.max(0.0)).sum::<f64>()
        };
        self.arms.iter().filter(|arm| !arm.fails()).min_by(|a, b| missed(a).total_cmp(&missed(b)))
    }

    /// Spread of a single run, from the points that were run more than once: pooled standard deviation with its degrees
    /// of freedom; `None` without any.
    pub fn noise(&self) -> Option<(f64, usize)> {
        let (mut squares, mut freedom) = (0.0, 0);
        for losses in self.arms.iter().map(Arm::losses).filter(|l| l.len() > 1) {
            squares += stats::variance(&losses) * losses.len() as f64;
            freedom += losses.len() - 1;
        }
        (freedom > 0).then(|| ((squares / freedom as f64).sqrt(), freedom))
    }
}

#[cfg(test)]
mod tests {
    use super::super::space::Value;
    use super::*;

    fn point(v: i64) -> Point {
        vec![Value::Integer(v)]
    }

    #[test]
    fn the_best_keeps_its_constraints_and_does_not_fail() {
        let mut h = History::default();
        h.push(&point(1), Outcome { excess: vec![1.0], ..Outcome::of(1.0) });
        h.push(&point(2), Outcome { excess: vec![-1.0], ..Outcome::of(2.0) });
        h.push(&point(3), Outcome::failed());
        h.push(&point(4), Outcome { excess: vec![-1.0], ..Outcome::of(f64::NAN) });
        assert_eq!(h.best().unwrap().point, point(2));
        assert_eq!(h.runs(), 4);
        assert!(h.arm(&point(4)).unwrap().fails());
        // What the final comparison says counts more than a lucky run before it.
        h.push(&point(5), Outcome { excess: vec![0.0], last_round: true, ..Outcome::of(2.5) });
        assert_eq!(h.best().unwrap().point, point(5));
    }

    #[test]
    fn noise_is_pooled_over_repeated_points() {
        let mut h = History::default();
        for loss in [1.0, 3.0] {
            h.push(&point(1), Outcome::of(loss));
        }
        for loss in [10.0, 14.0] {
            h.push(&point(2), Outcome::of(loss));
        }
        h.push(&point(3), Outcome::of(100.0));
        // squares about the means: 2 and 8; 2 degrees of freedom
        assert_eq!(h.noise(), Some((5f64.sqrt(), 2)));
    }
}
