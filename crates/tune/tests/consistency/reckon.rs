//! Statistics of this test's own: nothing of the tested code is used.

/// Mean of the values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Squared standard error of the mean.
fn squared_error(values: &[f64]) -> f64 {
    let (n, m) = (values.len() as f64, mean(values));
    values.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (n - 1.0) / n
}

/// Integral of sin^(v-1) from 0 to phi: Simpson's rule in the square root of the angle.
fn tail(v: f64, phi: f64) -> f64 {
    let (n, to) = (240, phi.sqrt());
    let h = to / f64::from(n);
    let f = |w: f64| if w == 0.0 { 0.0 } else { 2.0 * w * (w * w).sin().powf(v - 1.0) };
    let inner = (1..n).map(|i| f64::from(if i % 2 == 1 { 4 } else { 2 }) * f(f64::from(i) * h)).sum::<f64>();
    (f(0.0) + inner + f(to)) * h / 3.0
}

/// The t that a Student-t variable with `v` degrees of freedom exceeds in size with probability `alpha`: with
/// t = sqrt(v) cot(phi) that probability is the part of the angle's density up to phi.
pub fn t_two_sided(alpha: f64, v: f64) -> f64 {
    let right = std::f64::consts::FRAC_PI_2;
    let all = tail(v, right);
    let (mut low, mut high) = (0.0, right);
    for _ in 0..60 {
        let phi = (low + high) / 2.0;
        if tail(v, phi) < alpha * all { low = phi } else { high = phi }
    }
    v.sqrt() / low.tan()
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
