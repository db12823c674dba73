//! Bias and fair shares of the test's own, after the textbook.

use crate::textbook::average;

/// (max - min) / mean, percent.
pub fn bias(values: &[f64]) -> Option<f64> {
    let mean = average(values);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (mean != 0.0 && !values.is_empty()).then(|| 100.0 * (most - least) / mean)
}

/// CPUs that each gets by weighted max-min, where no task can use more than so many: whoever cannot use its part leaves the rest.
pub fn max_min(cpus: f64, weights: &[f64], most: &[f64]) -> Vec<f64> {
    let mut got: Vec<Option<f64>> = vec![None; weights.len()];
    loop {
        let left = cpus - got.iter().flatten().sum::<f64>();
        let open: f64 = got.iter().zip(weights).filter(|(g, _)| g.is_none()).map(|(_, w)| w).sum();
        let full = (0..weights.len())
            .filter(|i| got[*i].is_none() && most[*i] <= left * weights[*i] / open + 1e-12)
            .collect::<Vec<_>>();
        if full.is_empty() {
            return (0..weights.len()).map(|i| got[i].unwrap_or(left * weights[i] / open)).collect();
        }
        full.into_iter().for_each(|i| got[i] = Some(most[i]));
    }
}

#[test]
fn fair_shares_are_the_textbooks() {
    assert_eq!(max_min(2.0, &[1.0, 2.0], &[1.0, 1.0]), [1.0, 1.0]);
    assert_eq!(max_min(4.0, &[1.0, 6.0, 1.0], &[4.0, 2.0, 4.0]), [1.0, 2.0, 1.0]);
}
