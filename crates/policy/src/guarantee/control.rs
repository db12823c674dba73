//! The small correction that makes up for what weights alone miss: slices, wake-ups, coarse nice values, tasks on several
//! CPUs.
//!
//! A carrier that gets less than its due builds up a lag, and its weight grows with it. Its due is its points of the
//! time in which it was runnable; CPU that others left is no advance on it, so surplus hardly counts.

/// How much of a lag is forgotten per second: a shortage of long ago is not made up for.
const FORGET_PER_S: f64 = 0.05;
/// Bounds of the lag, point-seconds (one is 10 ms of CPU).
const BOUNDS: (f64, f64) = (-0.5, 12.0);
/// Growth of the logarithm of the weight for each point-second of lag. A share moves by at most a quarter of a change in
/// the logarithm (25 points for 1.0), so a lag is paid off with a time constant of at least 1 / (25 * 0.04) = 1 s. What a
/// change of weight does is seen late: tasks that wait show their wait only when they run again, and the scheduler makes up
/// for old lag first. Twice this gain swings with a delay of half a second (seen: whole CPUs going back and forth).
const GAIN: f64 = 0.04;
/// Longest wait that may show up late and still count, seconds.
const LATE_S: f64 = 1.0;

/// The lag of one carrier.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lag {
    points_s: f64,
    /// Time in which it was neither seen to run nor to wait: waiting that has not ended yet shows up later.
    unseen_s: f64,
}

impl Lag {
    /// Takes one tick into account: points promised, CPU got and time waited, seconds, in `dt` seconds.
    pub fn add(&mut self, points: f64, got_s: f64, waited_s: f64, dt: f64) {
        if dt.is_nan() || dt <= 0.0 {
            return;
        }
        let runnable = (got_s + waited_s).min(dt + self.unseen_s);
        let unseen = self.unseen_s + dt - runnable;
        self.unseen_s = if unseen.is_nan() { 0.0 } else { unseen.clamp(0.0, LATE_S) };
        let change = points * runnable - 100.0 * got_s;
        let next = self.points_s * (1.0 - FORGET_PER_S * dt).max(0.0) + change;
        self.points_s = if next.is_nan() { 0.0 } else { next.clamp(BOUNDS.0, BOUNDS.1) };
    }

    /// The lag, point-seconds.
    pub fn points_s(self) -> f64 {
        self.points_s
    }

    /// Factor for its weight.
    pub fn gain(self) -> f64 {
        (GAIN * self.points_s).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A CPU that two backlogged carriers share by weight, the first of which the scheduler cheats by `bias`; what weights
    /// do shows `delay` ticks later.
    fn settle(points: [f64; 2], bias: f64, delay: usize) -> Vec<[f64; 2]> {
        let mut lags = [Lag::default(); 2];
        let mut gains = vec![[1.0; 2]; delay + 1];
        (0..200)
            .map(|_| {
                let applied = gains[gains.len() - 1 - delay];
                let weights = [points[0] * applied[0] * bias, points[1] * applied[1]];
                let sum = weights[0] + weights[1];
                let got = [weights[0] / sum * 0.1, weights[1] / sum * 0.1];
                for (lag, (points, got)) in lags.iter_mut().zip(points.iter().zip(got)) {
                    lag.add(*points, got, 0.1 - got, 0.1);
                }
                gains.push(lags.map(Lag::gain));
                got.map(|s| s * 1000.0)
            })
            .collect()
    }

    #[test]
    fn a_scheduler_that_cheats_is_corrected_within_three_seconds() {
        let shares = settle([40.0, 60.0], 0.8, 1);
        assert!((shares[0][0] - 34.8).abs() < 0.1, "{:?}", shares[0]);
        assert!(shares[30..].iter().all(|s| (s[0] - 40.0).abs() < 1.0), "{:?}", &shares[30..35]);
    }

    #[test]
    fn surplus_is_no_advance() {
        let mut lag = Lag::default();
        for _ in 0..1000 {
            lag.add(40.0, 0.1, 0.0, 0.1);
        }
        assert!(lag.gain() > 0.97);
        // After a second of shortage by ten points it lags.
        for _ in 0..10 {
            lag.add(40.0, 0.03, 0.07, 0.1);
        }
        assert!(lag.points_s() > 5.0 && lag.gain() > 1.2);
    }

    #[test]
    fn a_wait_that_shows_up_late_counts_in_full() {
        let (mut late, mut even) = (Lag::default(), Lag::default());
        for n in 0..10 {
            even.add(40.0, 0.01, 0.09, 0.1);
            // It runs for a tenth of a second at the end, and only then its wait is known.
            if n < 9 { late.add(40.0, 0.0, 0.0, 0.1) } else { late.add(40.0, 0.1, 0.9, 0.1) }
        }
        assert!((late.points_s() - even.points_s()).abs() < 1.0, "{late:?} {even:?}");
    }

    proptest! {
        #[test]
        fn it_settles_whatever_the_shares_the_bias_and_the_delay(a in 5.0f64..95.0, bias in 0.7f64..1.4, delay in 0usize..7) {
            let shares = settle([a, 100.0 - a], bias, delay);
            let last: f64 = shares[150..].iter().map(|s| s[0]).sum::<f64>() / 50.0;
            prop_assert!((last - a).abs() < 1.5, "{last} instead of {a}");
            // No swinging that does not die away.
            let (low, high) = shares[150..].iter().fold((100.0f64, 0.0f64), |(l, h), s| (l.min(s[0]), h.max(s[0])));
            prop_assert!(high - low < 2.0, "{low} to {high}");
        }

        #[test]
        fn any_numbers_leave_it_bounded(steps in proptest::collection::vec((proptest::num::f64::ANY, proptest::num::f64::ANY, proptest::num::f64::ANY, proptest::num::f64::ANY), 0..20)) {
            let mut lag = Lag::default();
            for (points, got, waited, dt) in steps { lag.add(points, got, waited, dt); }
            prop_assert!((0.9..=1.7).contains(&lag.gain()), "{:?}", lag);
        }
    }
}
