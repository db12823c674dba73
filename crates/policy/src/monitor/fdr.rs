//! Many questions at once, without being fooled by their number.

use serde::{Deserialize, Serialize};

/// Those of many e-values that are discoveries, with at most `alpha` of them false on average, however the values depend
/// on each other and whenever they are looked at (e-BH; Wang and Ramdas 2022). Given and answered in logarithms and
/// indices.
pub fn discoveries(ln_evidence: &[f64], alpha: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ln_evidence.len()).filter(|&i| !ln_evidence[i].is_nan()).collect();
    order.sort_by(|&a, &b| ln_evidence[b].total_cmp(&ln_evidence[a]));
    let all = ln_evidence.len() as f64;
    // The largest k of which the k-th largest is at least all / (alpha k).
    let found = (1..=order.len())
        .rev()
        .find(|&k| ln_evidence[order[k - 1]] >= (all / (alpha * k as f64)).ln())
        .unwrap_or(0);
    order.truncate(found);
    order
}

/// Control over a run with many decisions: at most a share of what is kept is false, however many decisions were taken
/// and whatever they learn from each other (e-LOND; Xu and Ramdas 2024).
///
/// Decision number `t` may spend `rate · share(t) · (kept + 1)`: the shares of all decisions sum up to one, and what was
/// found earns budget for what comes. Half of it belongs to the first decision, for most runs take few. What the monitor takes
/// back earns nothing more: levels only become smaller by that, so the promise stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OnlineControl {
    rate: f64,
    decisions: u64,
    kept: u64,
}

/// Share of the budget of the first decision.
const FIRST: f64 = 0.5;
/// The others' shares fall like `(t + LATE)^-1.5`: slowly for the first twenty or so.
const LATE: f64 = 20.0;

impl OnlineControl {
    /// At most `rate` of what is kept is false.
    pub fn new(rate: f64) -> Self {
        Self { rate: rate.clamp(1e-6, 1.0), decisions: 0, kept: 0 }
    }

    /// Error budget of the next decision: keep only what has an e-value of at least one over it.
    pub fn alpha(&self) -> f64 {
        (self.rate * share(self.decisions) * (self.kept + 1) as f64).min(1.0)
    }

    /// A decision fell by the budget that [`Self::alpha`] gave. Only decisions that reached confirmation count: others
    /// could not have kept anything.
    pub fn decided(&mut self, kept: bool) {
        self.decisions += 1;
        self.kept += u64::from(kept);
    }

    /// Something that was kept is found to be none: what comes no longer profits from it.
    pub fn taken_back(&mut self) {
        self.kept = self.kept.saturating_sub(1);
    }
}

/// Share of the decision with this number, the first being 0. Sums up to just below one.
fn share(decision: u64) -> f64 {
    if decision == 0 {
        return FIRST;
    }
    // The sum from 1 on of (t + LATE)^-1.5 is less than the integral from 1/2 on.
    let sum = 2.0 * (LATE + 0.5).powf(-0.5);
    (1.0 - FIRST) * (decision as f64 + LATE).powf(-1.5) / sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_needs_evidence_for_all_of_them() {
        let ln = f64::ln;
        // One in ten at 5 %: 10 / 0.05 = 200; two: 100 each.
        let mut values = vec![0.0; 10];
        values[3] = ln(199.0);
        assert!(discoveries(&values, 0.05).is_empty());
        values[3] = ln(200.1);
        assert_eq!(discoveries(&values, 0.05), [3]);
        values[7] = ln(100.1);
        assert_eq!(discoveries(&values, 0.05), [3, 7]);
        values[3] = f64::NAN;
        assert!(discoveries(&values, 0.05).is_empty());
        assert!(discoveries(&[], 0.05).is_empty());
    }

    #[test]
    fn the_first_decision_has_five_percent_and_all_together_ten() {
        let control = OnlineControl::new(0.1);
        assert!((control.alpha() - 0.05).abs() < 1e-12);
        let all: f64 = (0..2_000_000).map(share).sum();
        assert!((0.998..1.0).contains(&all), "{all}");
        // A probability, whatever the rate and however much was found.
        assert!(OnlineControl::new(0.0).alpha() > 0.0);
        let mut control = OnlineControl::new(f64::INFINITY);
        assert_eq!(control.alpha(), 0.5);
        (0..500).for_each(|_| control.decided(true));
        control.decisions = 0;
        assert_eq!(control.alpha(), 1.0);
    }

    #[test]
    fn what_is_found_pays_for_what_comes() {
        let mut control = OnlineControl::new(0.1);
        control.decided(false);
        let poor = control.alpha();
        assert!(poor < 0.01);
        control.decided(true);
        assert!(control.alpha() > 1.8 * poor * share(2) / share(1));
        let rich = control.alpha();
        control.taken_back();
        assert!((control.alpha() - rich / 2.0).abs() < 1e-12, "what is taken back earns nothing");
        for _ in 0..200 {
            control.decided(false);
        }
        assert!(control.alpha() > 1e-5, "after a day there is still a way: {}", control.alpha());
    }
}
