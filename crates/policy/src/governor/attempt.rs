//! Attempts above the threshold found.

use super::*;

/// The first step up, as a share of the limit.
pub(super) const STEP: f64 = 0.08;
const LARGEST_STEP: f64 = 0.2;
/// A smaller one is not worth anything.
const LEAST_STEP: f64 = 0.01;
/// Windows to hold a limit before the next step.
const PATIENCE: f64 = 1.2;
/// Time in which an onset and its end are noticed, seconds.
const NOTICED_S: f64 = 0.8;
/// Part of a window to hold the first threshold before the leap.
const BEFORE_LEAP: f64 = 0.25;

impl Governor {
    /// After a quiet time at one limit: a higher one.
    pub(super) fn attempt(&mut self, now: f64) {
        let State::Holding { limit, since_s } = self.state else { return };
        if self.rules.for_services {
            return;
        }
        let Some(fit) = self.fit else { return };
        // Only a scope that uses its limit learns anything by a higher one.
        let (seconds, got) = self.recent.iter().fold((0.0, 0.0), |(s, g), t| (s + t.0, g + t.2));
        if got < 0.75 * limit * seconds {
            return;
        }
        let quiet = now - since_s;
        let next = if self.leap == Leap::Over {
            if quiet >= RECONSIDER_S {
                // The rule may be another by now.
                (self.step, self.failed_attempts) = (STEP, 0);
            }
            // A bucket's penalty costs more than the last percent is worth, and a known rule is known.
            let Threshold::Window { window_s, .. } = fit.threshold else { return };
            if self.rules.known.is_some() || quiet < PATIENCE * window_s || !self.pays(&fit, now) {
                return;
            }
            let next = limit * (1.0 + self.step);
            // What goes well may go on in larger steps: the threshold was far too low, then.
            self.step = (1.5 * self.step).min(LARGEST_STEP);
            next
        } else {
            match fit.threshold {
                Threshold::Window { window_s, .. }
                    if quiet >= window_s * if self.leap == Leap::Under { 0.25 } else { BEFORE_LEAP } =>
                {
                    if self.leap == Leap::Under {
                        let used = self.history.used(now - window_s, now) / window_s;
                        if used < REFUTED * fit.threshold.rate() {
                            return;
                        }
                        self.fit =
                            Some(Fit { threshold: Threshold::Window { window_s, share: used }, ..fit });
                    }
                }
                Threshold::Bucket { penalty_s, .. } if quiet >= penalty_s => {}
                _ => return,
            }
            self.leap = Leap::Under;
            LEAP * limit
        };
        self.state = if next >= 0.98 * self.rules.cpus {
            State::Free
        } else {
            State::Holding { limit: next, since_s: now }
        };
    }

    /// Whether a step up is likely to gain more than it risks. How long the job still takes is not known: about as long as
    /// it has taken so far. Each failure makes success less likely.
    fn pays(&self, fit: &Fit, now: f64) -> bool {
        let success = 1.0 / f64::from(2 + self.failed_attempts);
        let gain = self.step * now * success;
        let risk = (fit.costs_s + NOTICED_S) * (1.0 - success);
        self.step >= LEAST_STEP && gain >= risk
    }
}
