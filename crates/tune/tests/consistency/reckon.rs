//! Statistics of this test's own: nothing of the tested code is used.

use crate::shared::t_two_sided;

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Squared standard error of the mean.
fn squared_error(values: &[f64]) -> f64 {
    let (n, m) = (values.len() as f64, mean(values));
    values.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (n - 1.0) / n
}

/// Mean with its 95 % interval; no interval of a single value.
pub fn one(values: &[f64]) -> (f64, Option<[f64; 2]>) {
    let m = mean(values);
    if values.len() < 2 {
        return (m, None);
    }
    let margin = t_two_sided(0.05, values.len() as f64 - 1.0) * squared_error(values).sqrt();
    (m, Some([m - margin, m + margin]))
}

/// Difference of two means with Welch's interval.
pub fn difference(a: &[f64], b: &[f64], alpha: f64) -> (f64, Option<[f64; 2]>) {
    let d = mean(a) - mean(b);
    if a.len() < 2 || b.len() < 2 {
        return (d, None);
    }
    let (va, vb) = (squared_error(a), squared_error(b));
    let all = va + vb;
    if all == 0.0 {
        return (d, Some([d, d]));
    }
    let freedom = all * all / (va * va / (a.len() as f64 - 1.0) + vb * vb / (b.len() as f64 - 1.0));
    let margin = t_two_sided(alpha, freedom) * all.sqrt();
    (d, Some([d - margin, d + margin]))
}

#[test]
fn the_tests_own_statistics_match_printed_tables() {
    for (alpha, v, t) in [(0.05, 1.0, 12.706), (0.05, 4.0, 2.776), (0.01, 2.0, 9.925), (0.02, 30.0, 2.457)] {
        assert!((t_two_sided(alpha, v) / t - 1.0).abs() < 2e-3, "{alpha} {v}: {}", t_two_sided(alpha, v));
    }
    let (d, ends) = difference(&[3.0, 4.0, 5.0, 6.0, 7.0], &[1.0, 2.0, 3.0, 4.0, 5.0], 0.05);
    assert!((d - 2.0).abs() < 1e-12 && (ends.unwrap()[1] - 4.306).abs() < 0.01, "{ends:?}");
}
