//! A mean and an interval that holds at every time it is looked at.
//!
//! Differences that are symmetric about the true mean `m` make `exp(l·S(m) - l²·V(m)/2)` a supermartingale for every `l`,
//! where `S(m)` is the sum of the deviations from `m` and `V(m)` the sum of their squares (de la Peña 1999): nothing is
//! asked of their spread or of how long their tails are. Averaged over `l` (the positive half of a normal distribution) it
//! is an e-value against every mean beyond `m`; the interval holds the means that no e-value of `1/alpha` speaks against
//! (Robbins 1970; Howard et al. 2021). The order of the two arms is random, and that is what makes a difference symmetric.
//!
//! Deviations are in units of a scale that is known before each value, so that a noisy hour does not drown a quiet one.

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::normal_cdf;

/// Width of the mixture, per unit of scale: the interval is about as narrow as it gets at some thirty values.
const MIXTURE: f64 = 0.5;
/// Values that the scale told beforehand is worth.
const PRIOR: f64 = 4.0;
/// Steps of a search for an end of the interval, each half as long again as the one before, then as many halvings.
const STEPS: usize = 60;

/// An estimate that may be looked at whenever one likes. Constant in size.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    values: u64,
    /// Sums of w·d, w, w²·d², w²·d and w², where w is one over the scale.
    sums: [f64; 5],
    /// Spread of a value as told beforehand.
    prior_sd: f64,
    /// Mean and sum of squared deviations, for the scale (Welford).
    plain: (f64, f64),
}

impl Sequence {
    /// None yet; a value is expected to vary by `sd`.
    pub fn new(sd: f64) -> Self {
        let prior_sd = if sd.is_finite() && sd > 0.0 { sd } else { 1.0 };
        Self { values: 0, sums: [0.0; 5], prior_sd, plain: (0.0, 0.0) }
    }

    pub fn values(&self) -> u64 {
        self.values
    }

    /// Standard deviation of a value, as far as is known.
    pub fn sd(&self) -> f64 {
        let n = self.values as f64;
        let freedom = (n - 1.0).max(0.0);
        ((PRIOR * self.prior_sd.powi(2) + self.plain.1) / (PRIOR + freedom)).sqrt()
    }

    /// Takes in a value; one that is not finite is not known and changes nothing.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        let w = 1.0 / self.sd();
        for (sum, part) in self.sums.iter_mut().zip([w * value, w, (w * value).powi(2), w * w * value, w * w])
        {
            *sum += part;
        }
        self.values += 1;
        let deviation = value - self.plain.0;
        self.plain.0 += deviation / self.values as f64;
        self.plain.1 += deviation * (value - self.plain.0);
    }

    /// The best estimate; `None` before the first value.
    pub fn mean(&self) -> Option<f64> {
        (self.values > 0).then(|| self.sums[0] / self.sums[1])
    }

    /// Logarithm of the e-value against the true mean being `mean` or further up (`below`), or further down.
    fn ln_evidence(&self, mean: f64, below: bool) -> f64 {
        let [wd, w, wwdd, wwd, ww] = self.sums;
        let s = wd - mean * w;
        let s = if below { -s } else { s };
        let v = (wwdd - 2.0 * mean * wwd + mean * mean * ww).max(0.0);
        let spread = 1.0 + MIXTURE.powi(2) * v;
        let z = s * MIXTURE / spread.sqrt();
        0.5 * z * z - 0.5 * spread.ln() + (2.0 * normal_cdf(z)).max(f64::MIN_POSITIVE).ln()
    }

    /// Evidence that the true mean is below `mean`, as a logarithm: the least against any mean from there up that is
    /// not absurd. 0 or less is none.
    pub fn ln_evidence_below(&self, mean: f64) -> f64 {
        match self.mean() {
            Some(estimate) if estimate < mean => self.ln_evidence(mean, true),
            _ => 0.0,
        }
    }

    /// Upper end of the one-sided interval at error probability `alpha`; infinite when not known yet.
    pub fn upper(&self, alpha: f64) -> f64 {
        self.end(alpha, true)
    }

    /// Lower end of the one-sided interval at error probability `alpha`.
    pub fn lower(&self, alpha: f64) -> f64 {
        self.end(alpha, false)
    }

    fn end(&self, alpha: f64, up: bool) -> f64 {
        let sign = if up { 1.0 } else { -1.0 };
        let Some(middle) = self.mean() else { return sign * f64::INFINITY };
        let enough = (1.0 / alpha).ln();
        let beyond = |distance: f64| self.ln_evidence(middle + sign * distance, up) >= enough;
        let mut step = 0.1 / self.sums[4].sqrt();
        let mut near = 0.0;
        // Far out a handful of values says nothing, however far: then there is no end.
        let mut far = (0..STEPS).find_map(|_| {
            let at = near + step;
            if beyond(at) {
                return Some(at);
            }
            near = at;
            step *= 1.5;
            None
        });
        if let Some(far) = &mut far {
            for _ in 0..STEPS {
                let between = f64::midpoint(near, *far);
                if beyond(between) {
                    *far = between;
                } else {
                    near = between;
                }
            }
        }
        sign * far.unwrap_or(f64::INFINITY) + middle
    }

    /// Mean with its two-sided interval at error probability `alpha`; `None` before the first value.
    pub fn estimate(&self, alpha: f64) -> Option<Estimate> {
        let value = self.mean()?;
        Some(Estimate { value, low: self.lower(alpha / 2.0), high: self.upper(alpha / 2.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg32;

    fn normal(rng: &mut Pcg32) -> f64 {
        evenkeel_base::stats::normal_of(rng.random_range(1e-12..1.0), rng.random())
    }

    /// Student's t with three degrees of freedom.
    fn t3(rng: &mut Pcg32) -> f64 {
        let chi2: f64 = (0..3).map(|_| normal(rng).powi(2)).sum();
        normal(rng) / (chi2 / 3.0).sqrt()
    }

    #[test]
    fn few_values_leave_it_open_and_many_close_it() {
        let mut sequence = Sequence::new(1.0);
        assert_eq!(sequence.estimate(0.05), None);
        assert!(sequence.upper(0.05).is_infinite() && sequence.lower(0.05) == f64::NEG_INFINITY);
        let mut rng = Pcg32::seed_from_u64(1);
        let mut widths = Vec::new();
        for n in 1..=400 {
            sequence.add(3.0 + normal(&mut rng));
            if [1, 20, 100, 400].contains(&n) {
                let estimate = sequence.estimate(0.05).unwrap();
                assert!(estimate.low <= 3.0 && 3.0 <= estimate.high, "{n}: {estimate:?}");
                widths.push(estimate.high - estimate.low);
            }
        }
        assert!(widths[0].is_infinite() || widths[0] > 3.0, "{widths:?}");
        assert!(widths[1] < 2.4 && widths[2] < 0.8 && widths[3] < 0.42, "{widths:?}");
        assert!((sequence.sd() - 1.0).abs() < 0.15);
        let known = sequence.clone();
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].iter().for_each(|unknown| sequence.add(*unknown));
        assert_eq!(sequence, known);
    }

    /// The promise: over a whole day of looks, the truth is outside at any time in at most 5 of 100.
    #[test]
    fn the_truth_is_inside_at_all_times() {
        for tails in [normal as fn(&mut Pcg32) -> f64, t3] {
            let missed = (0..400)
                .filter(|&seed| {
                    let mut rng = Pcg32::seed_from_u64(seed);
                    let mut sequence = Sequence::new(0.5);
                    // An end of the interval is beyond the truth where there is that much evidence against the truth. That
                    // takes two evaluations; to search for both ends at every look took 6 s.
                    let outside = (0..300).any(|_| {
                        sequence.add(-2.0 + tails(&mut rng));
                        [true, false]
                            .map(|below| sequence.ln_evidence(-2.0, below))
                            .iter()
                            .any(|e| *e >= 40f64.ln())
                    });
                    let ends = sequence.lower(0.025)..=sequence.upper(0.025);
                    assert_eq!(outside, !ends.contains(&-2.0), "{ends:?}");
                    outside
                })
                .count();
            // 33 of 400 would refute 5 % at one in a hundred.
            assert!(missed <= 32, "{missed} of 400");
        }
    }

    #[test]
    fn evidence_and_interval_say_the_same() {
        let mut rng = Pcg32::seed_from_u64(7);
        let mut sequence = Sequence::new(1.0);
        for _ in 0..60 {
            sequence.add(normal(&mut rng));
        }
        let upper = sequence.upper(0.05);
        assert!((sequence.ln_evidence_below(upper) - 20f64.ln()).abs() < 1e-6);
        assert!(sequence.ln_evidence_below(upper + 0.2) > 20f64.ln());
        assert_eq!(sequence.ln_evidence_below(-5.0), 0.0);
    }

    #[test]
    fn a_value_counts_by_what_was_known_before_it() {
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-12, "{found} and not {expected}")
        };
        let mut sequence = Sequence::new(2.0);
        near(sequence.sd(), 2.0);
        sequence.add(1.0);
        near(sequence.sd(), 2.0);
        sequence.add(5.0);
        // What was told counts as four values; 1 and 5 are off by 2 each.
        near(sequence.sd(), (24.0f64 / 5.0).sqrt());
        near(sequence.mean().unwrap(), 3.0);
        // Deviations from 0 in units of 2: 3 in sum, 6.5 in squares.
        let z = 1.5 / 2.625f64.sqrt();
        let evidence = |z: f64| 0.5 * z * z - 0.5 * 2.625f64.ln() + (2.0 * normal_cdf(z)).ln();
        near(sequence.ln_evidence(0.0, false), evidence(z));
        near(sequence.ln_evidence(0.0, true), evidence(-z));
        near(sequence.ln_evidence(6.0, true), evidence(z));
        assert_eq!(sequence.ln_evidence_below(3.0), 0.0, "not even the estimate is below");
        sequence.add(9.0);
        let w = 1.0 / (24.0f64 / 5.0).sqrt();
        near(sequence.mean().unwrap(), (3.0 + 9.0 * w) / (1.0 + w));
        near(sequence.sd(), ((16.0 + 32.0) / 6.0f64).sqrt());
        for unknown in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert_eq!(Sequence::new(unknown), Sequence::new(1.0));
        }
    }

    #[test]
    fn both_ends_of_an_interval_are_where_the_evidence_is_enough() {
        let mut rng = Pcg32::seed_from_u64(3);
        let mut sequence = Sequence::new(0.3);
        (0..50).for_each(|_| sequence.add(-7.0 + normal(&mut rng)));
        let Estimate { value, low, high } = sequence.estimate(0.1).unwrap();
        assert!(low < value && value < high, "{low} {value} {high}");
        for (end, below) in [(low, false), (high, true)] {
            assert!((sequence.ln_evidence(end, below) - 20f64.ln()).abs() < 1e-6, "{end}");
        }
        // They are so in every unit.
        for unit in [1e-12, 1e15] {
            let mut rng = Pcg32::seed_from_u64(3);
            let mut scaled = Sequence::new(0.3 * unit);
            (0..50).for_each(|_| scaled.add(unit * (-7.0 + normal(&mut rng))));
            let there = scaled.estimate(0.1).unwrap();
            for (end, expected) in [(there.low, low), (there.high, high)] {
                assert!((end / unit - expected).abs() < 1e-6, "{unit}: {} and not {expected}", end / unit);
            }
        }
    }
}
