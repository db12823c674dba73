//! Means, their intervals, differences and ratios after the textbook, for the tests of consistency, those of other crates included.
//! Nothing of the tested code is used.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

pub fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Logarithm of the gamma function (Stirling's series after a shift).
fn ln_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    shift + (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series
}

/// Both tails of Student's t beyond `t`: x = sqrt(freedom) cot(angle), and Simpson's rule over the fourth root of the angle,
/// which makes it smooth.
fn tails(t: f64, freedom: f64) -> f64 {
    let scale =
        (ln_gamma((freedom + 1.0) / 2.0) - ln_gamma(freedom / 2.0)).exp() / std::f64::consts::PI.sqrt();
    let (to, steps) =
        ((freedom.sqrt() / t.max(1e-300)).atan().powf(0.25), 200 + 2 * (20.0 * freedom.sqrt()) as i32);
    let width = to / f64::from(steps);
    let height = |i: i32| {
        let root = width * f64::from(i);
        root.powi(4).sin().powf(freedom - 1.0) * 4.0 * root.powi(3)
    };
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
    2.0 * scale * width / 3.0 * (0..=steps).map(|i| weight(i) * height(i)).sum::<f64>()
}

/// Factors reckoned already.
static KNOWN: Mutex<BTreeMap<[u64; 2], f64>> = Mutex::new(BTreeMap::new());

/// Factor of Student's t that leaves `alpha` in both tails together.
pub fn student(freedom: f64, alpha: f64) -> f64 {
    let key = [freedom.to_bits(), alpha.to_bits()];
    let known = KNOWN.lock().unwrap().get(&key).copied();
    known.unwrap_or_else(|| {
        let factor = solve(freedom, alpha);
        KNOWN.lock().unwrap().insert(key, factor);
        factor
    })
}

fn solve(freedom: f64, alpha: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while tails(high, freedom) > alpha && high < 1e9 {
        high *= 2.0;
    }
    while high - low > 1e-7 * high {
        let middle = (low + high) / 2.0;
        if tails(middle, freedom) > alpha { low = middle } else { high = middle }
    }
    high
}

/// A mean, its standard error (`None` of one value), degrees of freedom.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub mean: f64,
    pub error: Option<f64>,
    pub freedom: f64,
}

pub fn sample(values: &[f64]) -> Option<Sample> {
    let n = values.len() as f64;
    if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let mean = average(values);
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let error = (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
    Some(Sample { mean, error, freedom: n - 1.0 })
}

impl Sample {
    /// An interval; none of a single value.
    pub fn known(&self, alpha: f64) -> Option<[f64; 2]> {
        self.error.map(|_| self.interval(alpha))
    }

    /// As of so many times as many values that spread alike.
    pub fn grown(&self, times: f64) -> Self {
        let freedom = (self.freedom + 1.0) * times - 1.0;
        Self { error: self.error.map(|error| error / times.sqrt()), freedom, ..*self }
    }

    pub fn interval(&self, alpha: f64) -> [f64; 2] {
        let reach = match self.error {
            None => f64::INFINITY,
            Some(error) if error > 0.0 => error * student(self.freedom, alpha),
            Some(_) => 0.0,
        };
        [self.mean - reach, self.mean + reach]
    }

    /// Difference of two means with its interval: Welch.
    pub fn less(&self, other: &Self, alpha: f64) -> (f64, [f64; 2]) {
        let error = self.error.zip(other.error).map(|(a, b)| (a * a + b * b).sqrt());
        let fourth = |s: &Self| s.error.unwrap_or(0.0).powi(4) / s.freedom;
        let freedom = match error {
            Some(error) if error > 0.0 => error.powi(4) / (fourth(self) + fourth(other)),
            _ => 1.0,
        };
        let difference = Self { mean: self.mean - other.mean, error, freedom };
        (difference.mean, difference.interval(alpha))
    }

    /// Ratio of two means with its interval: logarithms, Welch.
    pub fn over(&self, other: &Self, alpha: f64) -> Option<(f64, [f64; 2])> {
        if self.mean <= 0.0 || other.mean <= 0.0 {
            return None;
        }
        let ratio = self.mean / other.mean;
        let (Some(a), Some(b)) = (self.error, other.error) else {
            return Some((ratio, [0.0, f64::INFINITY]));
        };
        let (a, b) = ((a / self.mean).powi(2), (b / other.mean).powi(2));
        if a + b == 0.0 {
            return Some((ratio, [ratio; 2]));
        }
        let freedom = (a + b).powi(2) / (a * a / self.freedom + b * b / other.freedom);
        let reach = student(freedom, alpha) * (a + b).sqrt();
        Some((ratio, [ratio * (-reach).exp(), ratio * reach.exp()]))
    }
}

#[test]
fn these_statistics_are_those_of_printed_tables() {
    for (freedom, alpha, t) in [
        (1.0, 0.05, 12.706),
        (2.0, 0.05, 4.303),
        (2.0, 0.01, 9.925),
        (4.0, 0.05, 2.776),
        (4.0, 0.01, 4.604),
        (9.0, 0.001, 4.781),
        (30.0, 0.02, 2.457),
        (60.0, 0.05, 2.0003),
    ] {
        let ours = student(freedom, alpha);
        assert!((ours / t - 1.0).abs() < 1e-3, "{freedom} {alpha}: {ours}");
    }
    let of = |values: [f64; 5]| sample(&values).unwrap();
    let (d, ends) = of([3.0, 4.0, 5.0, 6.0, 7.0]).less(&of([1.0, 2.0, 3.0, 4.0, 5.0]), 0.05);
    assert!((d - 2.0).abs() < 1e-12 && (ends[1] - 4.306).abs() < 0.01, "{ends:?}");
}
