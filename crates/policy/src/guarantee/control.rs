//! The small correction that makes up for what weights alone miss: slices, wake-ups, coarse nice values, tasks on several
//! CPUs.
//!
//! A carrier that gets less than its due builds up a debt, and its weight grows with it. Its due is its points of the
//! time in which it was runnable; CPU that others left is no advance on it, so surplus hardly counts.

/// How much of a debt is forgotten per second: a shortage of long ago is not made up for.
const FORGET_PER_S: f64 = 0.1;
/// Bounds of the debt, point-seconds (one is 10 ms of CPU).
const DEBT: (f64, f64) = (-0.5, 10.0);
/// Growth of the logarithm of the weight for each point-second of debt. A share moves by at most a quarter of a change in
/// the logarithm (25 points for 1.0), so a debt is paid off with a time constant of at least 1 / (25 * 0.1) = 0.4 s: slower
/// than the ticks (0.1 s), as it must be not to swing.
const GAIN: f64 = 0.1;

/// The debt of one carrier.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Debt(f64);

impl Debt {
    /// Takes one tick into account: points promised, CPU got and time runnable, seconds, in `dt` seconds.
    pub fn add(&mut self, points: f64, got_s: f64, runnable_s: f64, dt: f64) {
        if dt.is_nan() || dt <= 0.0 {
            return;
        }
        let due = points * runnable_s.min(dt);
        let change = due - 100.0 * got_s;
        let kept = self.0 * (1.0 - FORGET_PER_S * dt).max(0.0);
        let next = kept + change;
        self.0 = if next.is_nan() { 0.0 } else { next.clamp(DEBT.0, DEBT.1) };
    }

    /// Point-seconds owed.
    pub fn points_s(self) -> f64 {
        self.0
    }

    /// Factor for its weight.
    pub fn boost(self) -> f64 {
        (GAIN * self.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A CPU that two backlogged carriers share by weight, the first of which the scheduler cheats by `bias`.
    fn settle(points: [f64; 2], bias: f64) -> Vec<[f64; 2]> {
        let mut debts = [Debt::default(); 2];
        (0..100)
            .map(|_| {
                let weights = [points[0] * debts[0].boost() * bias, points[1] * debts[1].boost()];
                let sum = weights[0] + weights[1];
                let got = [weights[0] / sum * 0.1, weights[1] / sum * 0.1];
                for (debt, (points, got)) in debts.iter_mut().zip(points.iter().zip(got)) {
                    debt.add(*points, got, 0.1, 0.1);
                }
                got.map(|s| s * 1000.0)
            })
            .collect()
    }

    #[test]
    fn a_scheduler_that_cheats_is_corrected_within_two_seconds() {
        let shares = settle([40.0, 60.0], 0.8);
        assert!((shares[0][0] - 34.8).abs() < 0.1, "{:?}", shares[0]);
        assert!(shares[20..].iter().all(|s| (s[0] - 40.0).abs() < 1.0), "{:?}", &shares[20..25]);
    }

    #[test]
    fn surplus_is_no_advance() {
        let mut debt = Debt::default();
        for _ in 0..1000 {
            debt.add(40.0, 0.1, 0.1, 0.1);
        }
        assert!(debt.boost() > 0.94);
        // After a second of shortage by ten points it is in debt.
        for _ in 0..10 {
            debt.add(40.0, 0.03, 0.1, 0.1);
        }
        assert!(debt.points_s() > 5.0 && debt.boost() > 1.6);
    }

    proptest! {
        #[test]
        fn it_settles_whatever_the_shares_and_the_bias(a in 5.0f64..95.0, bias in 0.6f64..1.6) {
            let shares = settle([a, 100.0 - a], bias);
            let last: f64 = shares[80..].iter().map(|s| s[0]).sum::<f64>() / 20.0;
            prop_assert!((last - a).abs() < 1.5, "{last} instead of {a}");
            // No swinging: neighbouring ticks differ by little.
            prop_assert!(shares[50..].windows(2).all(|w| (w[0][0] - w[1][0]).abs() < 1.0));
        }

        #[test]
        fn any_numbers_leave_it_bounded(steps in proptest::collection::vec((proptest::num::f64::ANY, proptest::num::f64::ANY, proptest::num::f64::ANY, proptest::num::f64::ANY), 0..20)) {
            let mut debt = Debt::default();
            for (points, got, runnable, dt) in steps { debt.add(points, got, runnable, dt); }
            prop_assert!((0.9..=2.8).contains(&debt.boost()), "{:?}", debt);
        }
    }
}
