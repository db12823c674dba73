//! A Gaussian process for noisy measurements of few settings: Matérn 5/2 with a length a parameter (Rasmussen and
//! Williams, *Gaussian Processes for Machine Learning*, 4.2.1 and 5.4.1), whose lengths and noise are those of the
//! largest posterior probability.
//!
//! Why not a library: the maintained one (egobox-ego 0.42) was tried. It interpolates, i.e. takes every measurement as exact; a
//! service's throughput is not exact, and its repeated runs say how inexact it is. Its `suggest` panics instead of failing, and it
//! adds some 200 crates and 76 s of cold build on two cores.

const SQRT5: f64 = 2.236_067_977_499_79;
/// Steps of the search for lengths and noise from each start.
const ROUNDS: usize = 12;

/// What is measured at one place.
#[derive(Debug, Clone, PartialEq)]
pub struct Datum {
    /// Place in the unit cube.
    pub x: Vec<f64>,
    /// Mean of the runs.
    pub y: f64,
    pub runs: f64,
}

/// Lengths and noise.
#[derive(Debug, Clone, PartialEq)]
struct Hyper {
    /// Natural logarithms of the lengths.
    log_length: Vec<f64>,
    /// Natural logarithm of a run's noise variance relative to the signal's.
    log_noise: f64,
}

/// The true value at a place, as far as it is known.
pub struct Prediction {
    pub mean: f64,
    pub sd: f64,
}

/// A fitted process.
#[derive(Debug, Clone)]
pub struct Gp {
    data: Vec<Datum>,
    categorical: Vec<bool>,
    hyper: Hyper,
    factor: Cholesky,
    /// Inverse covariance times what the mean leaves over.
    alpha: Vec<f64>,
    /// Inverse covariance times ones, and its sum: for the uncertainty of the mean.
    ones: Vec<f64>,
    ones_sum: f64,
    mean: f64,
    signal: f64,
    /// Of the values given: they are standardised inside.
    shift: f64,
    scale: f64,
}

/// Lower triangle by rows.
#[derive(Debug, Clone)]
struct Cholesky {
    n: usize,
    l: Vec<f64>,
}

impl Cholesky {
    /// Of a symmetric matrix given by rows; `None` when it is not positive definite.
    fn of(n: usize, mut a: Vec<f64>) -> Option<Self> {
        for i in 0..n {
            for j in 0..=i {
                let (head, tail) = a.split_at(i * n);
                let (row_i, row_j) = (&tail[..j], if i == j { &tail[..j] } else { &head[j * n..j * n + j] });
                let dot: f64 = row_i.iter().zip(row_j).map(|(x, y)| x * y).sum();
                let value = a[i * n + j] - dot;
                if i == j {
                    if value.is_nan() || value <= 1e-12 {
                        return None;
                    }
                    a[i * n + i] = value.sqrt();
                } else {
                    a[i * n + j] = value / a[j * n + j];
                }
            }
        }
        Some(Self { n, l: a })
    }

    /// Solves `L x = b`.
    fn forward(&self, b: &[f64]) -> Vec<f64> {
        let mut x = Vec::with_capacity(self.n);
        for (i, value) in b.iter().enumerate().take(self.n) {
            let row = &self.l[i * self.n..i * self.n + i];
            let dot: f64 = row.iter().zip(&x).map(|(a, b): (&f64, &f64)| a * b).sum();
            x.push((value - dot) / self.l[i * self.n + i]);
        }
        x
    }

    /// Solves `L' x = b`.
    fn backward(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in (0..self.n).rev() {
            x[i] /= self.l[i * self.n + i];
            let value = x[i];
            for (j, out) in x.iter_mut().enumerate().take(i) {
                *out -= self.l[i * self.n + j] * value;
            }
        }
        x
    }

    fn solve(&self, b: &[f64]) -> Vec<f64> {
        self.backward(&self.forward(b))
    }

    fn log_determinant(&self) -> f64 {
        2.0 * (0..self.n).map(|i| self.l[i * self.n + i].ln()).sum::<f64>()
    }
}

impl Hyper {
    fn correlation(&self, a: &[f64], b: &[f64], categorical: &[bool]) -> f64 {
        let mut square = 0.0;
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            let gap = if categorical.get(i).copied().unwrap_or(false) {
                f64::from(u8::from((x - y).abs() > 1e-9))
            } else {
                x - y
            };
            let part = gap * (-self.log_length.get(i).copied().unwrap_or(0.0)).exp();
            square += part * part;
        }
        let r = SQRT5 * square.sqrt();
        (1.0 + r + r * r / 3.0) * (-r).exp()
    }

    fn covariance(&self, data: &[Datum], categorical: &[bool]) -> Vec<f64> {
        let n = data.len();
        let noise = self.log_noise.exp();
        let mut k = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..i {
                let value = self.correlation(&data[i].x, &data[j].x, categorical);
                (k[i * n + j], k[j * n + i]) = (value, value);
            }
            k[i * n + i] = 1.0 + noise / data[i].runs.max(1.0) + 1e-8;
        }
        k
    }

    /// Logarithm of the posterior density, up to a constant, the mean and the signal's variance at their best.
    /// Priors: lengths about half the range within a factor of e, noise about a thousandth of the signal within one of
    /// e^2.5, or about what repeated runs showed (`known`, relative to the variance of the data).
    fn log_posterior(&self, data: &[Datum], categorical: &[bool], known: Option<f64>) -> f64 {
        let n = data.len();
        let Some(factor) = Cholesky::of(n, self.covariance(data, categorical)) else {
            return f64::NEG_INFINITY;
        };
        let ones = factor.forward(&vec![1.0; n]);
        let y = factor.forward(&data.iter().map(|d| d.y).collect::<Vec<_>>());
        let mean = dot(&ones, &y) / dot(&ones, &ones);
        let square: f64 = y.iter().zip(&ones).map(|(y, o)| (y - mean * o).powi(2)).sum();
        // An inverse-gamma prior about 1 keeps few points from showing no variance at all.
        let signal = (square + 2.0) / (n as f64 + 2.0);
        let likelihood = -0.5 * (n as f64 + 2.0) * signal.ln() - 0.5 * factor.log_determinant();
        let lengths: f64 =
            self.log_length.iter().map(|l| -0.5 * (l - 0.5f64.ln()).powi(2) / 1.0f64.powi(2)).sum();
        let noise = match known {
            Some(variance) => {
                let ratio = (variance.max(1e-6) / signal).ln();
                -0.5 * ((self.log_noise - ratio) / 0.5).powi(2)
            }
            None => -0.5 * ((self.log_noise - 1e-3f64.ln()) / 2.5).powi(2),
        };
        likelihood + lengths + noise
    }

    /// Steps along one coordinate at a time, steps halved when none helps.
    fn improved(mut self, data: &[Datum], categorical: &[bool], known: Option<f64>) -> (Self, f64) {
        let mut best = self.log_posterior(data, categorical, known);
        let mut step = 1.0;
        for _ in 0..ROUNDS {
            let before = best;
            for i in 0..=self.log_length.len() {
                for way in [step, -step] {
                    let mut other = self.clone();
                    match other.log_length.get_mut(i) {
                        Some(length) => *length = (*length + way).clamp(0.02f64.ln(), 20f64.ln()),
                        None => other.log_noise = (other.log_noise + way).clamp(1e-7f64.ln(), 10f64.ln()),
                    }
                    let value = other.log_posterior(data, categorical, known);
                    if value > best {
                        (self, best) = (other, value);
                        break;
                    }
                }
            }
            if best - before < 0.02 {
                step /= 2.0;
                if step < 0.2 {
                    break;
                }
            }
        }
        (self, best)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl Gp {
    /// Fits to data. `noise` is a run's standard deviation where repeated runs showed it. `None` for fewer than two
    /// places or values that are not numbers.
    pub fn fit(data: &[Datum], categorical: &[bool], noise: Option<f64>) -> Option<Self> {
        let dim = data.first()?.x.len();
        let sane = |d: &Datum| d.y.is_finite() && d.x.len() == dim && d.x.iter().all(|x| x.is_finite());
        if data.len() < 2 || !data.iter().all(sane) {
            return None;
        }
        let n = data.len() as f64;
        let shift = data.iter().map(|d| d.y).sum::<f64>() / n;
        let variance = data.iter().map(|d| (d.y - shift).powi(2)).sum::<f64>() / n;
        if !variance.is_finite() {
            return None;
        }
        let scale = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        let data: Vec<Datum> = data.iter().map(|d| Datum { y: (d.y - shift) / scale, ..d.clone() }).collect();
        let known = noise.map(|n| (n / scale).powi(2));
        let starts = [(0.4f64, 1e-3f64), (1.2, 1e-2)];
        let (hyper, _) = starts
            .iter()
            .map(|(length, noise)| {
                let start = Hyper { log_length: vec![length.ln(); dim], log_noise: noise.ln() };
                start.improved(&data, categorical, known)
            })
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        let n = data.len();
        let factor = Cholesky::of(n, hyper.covariance(&data, categorical))?;
        let ones = factor.solve(&vec![1.0; n]);
        let ones_sum: f64 = ones.iter().sum();
        let y: Vec<f64> = data.iter().map(|d| d.y).collect();
        let mean = dot(&ones, &y) / ones_sum;
        let rest: Vec<f64> = y.iter().map(|y| y - mean).collect();
        let alpha = factor.solve(&rest);
        let signal = (dot(&rest, &alpha) + 2.0) / (n as f64 + 2.0);
        let categorical = categorical.to_vec();
        Some(Self { data, categorical, hyper, factor, alpha, ones, ones_sum, mean, signal, shift, scale })
    }

    fn cross(&self, x: &[f64]) -> Vec<f64> {
        self.data.iter().map(|d| self.hyper.correlation(x, &d.x, &self.categorical)).collect()
    }

    /// Expected value at a place, without a run's noise.
    pub fn mean(&self, x: &[f64]) -> f64 {
        self.shift + self.scale * (self.mean + dot(&self.cross(x), &self.alpha))
    }

    /// The true value at a place.
    pub fn predict(&self, x: &[f64]) -> Prediction {
        let k = self.cross(x);
        let mean = self.mean + dot(&k, &self.alpha);
        let v = self.factor.forward(&k);
        // The second term: the mean itself is only estimated.
        let gap = 1.0 - dot(&k, &self.ones);
        let variance = self.signal * (1.0 - dot(&v, &v) + gap * gap / self.ones_sum);
        Prediction { mean: self.shift + self.scale * mean, sd: self.scale * variance.max(1e-12).sqrt() }
    }

    /// Standard deviation of a single run that the fit found.
    pub fn noise(&self) -> f64 {
        self.scale * (self.hyper.log_noise.exp() * self.signal).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg32;

    fn datum(x: f64, y: f64) -> Datum {
        Datum { x: vec![x], y, runs: 1.0 }
    }

    #[test]
    fn a_triangle_times_its_transpose_is_the_matrix() {
        let a = vec![4.0, 2.0, 0.6, 2.0, 5.0, 1.0, 0.6, 1.0, 3.0];
        let factor = Cholesky::of(3, a.clone()).unwrap();
        let x = factor.solve(&[1.0, 2.0, 3.0]);
        for (row, wanted) in a.chunks(3).zip([1.0, 2.0, 3.0]) {
            assert!((dot(row, &x) - wanted).abs() < 1e-12);
        }
        // 4*(15-1) - 2*(6-0.6) + 0.6*(2-3) = 56 - 10.8 - 0.6
        assert!((factor.log_determinant() - (56.0f64 - 10.8 - 0.6).ln()).abs() < 1e-12);
        assert!(Cholesky::of(2, vec![1.0, 2.0, 2.0, 1.0]).is_none());
    }

    #[test]
    fn a_smooth_function_is_followed_between_its_points() {
        let f = |x: f64| 3.0 + 10.0 * (4.0 * x).sin();
        let data: Vec<Datum> = (0..9).map(|i| datum(f64::from(i) / 8.0, f(f64::from(i) / 8.0))).collect();
        let gp = Gp::fit(&data, &[false], None).unwrap();
        for i in 0..40 {
            let x = f64::from(i) / 40.0;
            let Prediction { mean, sd } = gp.predict(&[x]);
            assert!((mean - f(x)).abs() < 0.5, "{x}: {mean} {}", f(x));
            assert!((mean - f(x)).abs() < 5.0 * sd + 0.05, "{x}: {mean} {} {sd}", f(x));
        }
    }

    #[test]
    fn noise_is_told_from_signal_and_averaged() {
        let mut rng = Pcg32::seed_from_u64(4);
        let f = |x: f64| 100.0 * x;
        let data: Vec<Datum> = (0..60)
            .map(|_| {
                let x: f64 = rng.random();
                datum(x, f(x) + 20.0 * (rng.random::<f64>() - 0.5))
            })
            .collect();
        let gp = Gp::fit(&data, &[false], None).unwrap();
        // evenly drawn from -10..10: standard deviation 5.8
        assert!((3.5..9.0).contains(&gp.noise()), "{}", gp.noise());
        assert!((gp.mean(&[0.5]) - 50.0).abs() < 5.0);
        let repeated: Vec<Datum> = data.iter().map(|d| Datum { runs: 50.0, ..d.clone() }).collect();
        let sure = Gp::fit(&repeated, &[false], Some(5.8)).unwrap();
        assert!(sure.predict(&[0.5]).sd < gp.predict(&[0.5]).sd * 1.5);
    }

    #[test]
    fn choices_have_no_order() {
        let data: Vec<Datum> = [0.1, 0.3, 0.5, 0.7, 0.9, 0.1, 0.5, 0.9]
            .iter()
            .map(|x| datum(*x, if *x == 0.5 { 0.0 } else { 1.0 }))
            .collect();
        let gp = Gp::fit(&data, &[true], None).unwrap();
        assert!(gp.mean(&[0.5]) < 0.3 && gp.mean(&[0.3]) > 0.7 && gp.mean(&[0.7]) > 0.7);
    }

    proptest! {
        #[test]
        fn any_data_gives_numbers_or_nothing(
            ys in proptest::collection::vec(prop_oneof![Just(0.0), Just(1e300), -1e9f64..1e9, Just(1e-300)], 0..8),
            xs in proptest::collection::vec(0f64..1.0, 16),
        ) {
            let data: Vec<Datum> =
                ys.iter().enumerate().map(|(i, y)| Datum { x: vec![xs[i], xs[i + 8]], y: *y, runs: 1.0 }).collect();
            if let Some(gp) = Gp::fit(&data, &[false, true], None) {
                let Prediction { mean, sd } = gp.predict(&[0.3, 0.6]);
                prop_assert!(!sd.is_nan() && sd >= 0.0);
                prop_assert!(!mean.is_nan());
            }
        }
    }
}
