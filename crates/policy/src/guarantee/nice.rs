//! Weights by nice values: steps of 1.25 are too coarse to divide a CPU to a point, so a task goes back and forth between
//! two neighbouring values in the right proportion.

use evenkeel_base::Nice;

/// Chooses a nice value at each tick such that the mean of the logarithm of the weight is the one wanted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dither {
    /// What was given too little so far, in natural logarithms of weight.
    owed: f64,
}

/// Owed at most: half a step would do, more absorbs a changed wish without a long echo.
const MOST_OWED: f64 = 0.25;

impl Dither {
    /// The value for the next tick.
    pub fn next(&mut self, load_weight: f64) -> Nice {
        let wanted = load_weight.clamp(1.0, 1e6).ln();
        let log = |nice: Nice| f64::from(nice.weight()).ln();
        let nearest = Nice::nearest(wanted.exp());
        // Its neighbour on the other side of the weight wanted; a smaller number is heavier.
        let other = Nice::new(nearest.get() + if log(nearest) > wanted { 1 } else { -1 });
        let aim = wanted + self.owed;
        let nice = if (log(other) - aim).abs() < (log(nearest) - aim).abs() { other } else { nearest };
        self.owed = (self.owed + wanted - log(nice)).clamp(-MOST_OWED, MOST_OWED);
        nice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_exact_weight_needs_no_dithering() {
        let mut dither = Dither::default();
        assert!((0..10).all(|_| dither.next(1024.0) == Nice::new(0)));
    }

    proptest! {
        #[test]
        fn the_mean_is_the_weight_wanted_and_only_neighbours_are_used(weight in 15.0f64..88_761.0) {
            let mut dither = Dither::default();
            let values: Vec<Nice> = (0..200).map(|_| dither.next(weight)).collect();
            let mean = values.iter().map(|n| f64::from(n.weight()).ln()).sum::<f64>() / 200.0;
            prop_assert!((mean - weight.ln()).abs() < 0.003, "{mean} {}", weight.ln());
            let numbers = values.iter().map(|n| n.get());
            prop_assert!(numbers.clone().max().unwrap() - numbers.min().unwrap() <= 1);
        }

        #[test]
        fn any_number_gives_a_nice_value(weight in proptest::num::f64::ANY) {
            let mut dither = Dither::default();
            for _ in 0..3 { dither.next(weight); }
        }
    }
}
