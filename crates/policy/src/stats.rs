//! The little statistics that decisions rest on: means with Student-t intervals.

use evenkeel_base::run::Estimate;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Mean of the values; `None` of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Standard error of the mean; `None` for fewer than two values.
pub fn standard_error(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    if values.len() < 2 {
        return None;
    }
    let n = values.len() as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((variance / n).sqrt())
}

/// The factor on the standard error for a one-sided bound at error probability `alpha` with `n` values.
/// Infinite when `n` < 2: nothing is known of the spread then.
pub fn t_factor(n: usize, alpha: f64) -> f64 {
    if n < 2 {
        return f64::INFINITY;
    }
    StudentsT::new(0.0, 1.0, (n - 1) as f64)
        .map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - alpha.clamp(1e-9, 0.5)))
}

/// Mean with its two-sided 95 % interval, assuming independent windows; unbounded for a single value.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    estimate_at(values, 0.05)
}

/// Mean with a two-sided interval at error probability `alpha`.
pub fn estimate_at(values: &[f64], alpha: f64) -> Option<Estimate> {
    let value = mean(values)?;
    let margin = standard_error(values).map_or(f64::INFINITY, |se| {
        let margin = t_factor(values.len(), alpha / 2.0) * se;
        if margin.is_nan() { f64::INFINITY } else { margin }
    });
    Some(Estimate { value, low: value - margin, high: value + margin })
}

/// Difference of two means, `a` less `b`, with its two-sided interval at error probability `alpha`, for samples whose
/// spreads differ (Welch 1947, with Satterthwaite's degrees of freedom). Unbounded when either has fewer than two
/// values; `None` when either has none.
pub fn difference(a: &[f64], b: &[f64], alpha: f64) -> Option<Estimate> {
    let value = mean(a)? - mean(b)?;
    let (Some(ea), Some(eb)) = (standard_error(a), standard_error(b)) else {
        return Some(Estimate { value, low: f64::NEG_INFINITY, high: f64::INFINITY });
    };
    let (va, vb) = (ea * ea, eb * eb);
    let spread = va + vb;
    if spread <= 0.0 {
        return Some(Estimate { value, low: value, high: value });
    }
    let freedom = spread * spread / (va * va / (a.len() - 1) as f64 + vb * vb / (b.len() - 1) as f64);
    let factor = StudentsT::new(0.0, 1.0, freedom.max(1.0))
        .map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - alpha.clamp(1e-9, 1.0) / 2.0));
    let margin = factor * spread.sqrt();
    Some(Estimate { value, low: value - margin, high: value + margin })
}

/// Population variance of the values, 0 for none.
pub fn variance(values: &[f64]) -> f64 {
    mean(values).map_or(0.0, |m| values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_factors_match_the_tables() {
        // two-sided 95 % with 5 values: t(0.975, 4) = 2.776
        assert!((t_factor(5, 0.025) - 2.776).abs() < 0.001);
        assert_eq!(t_factor(1, 0.025), f64::INFINITY);
    }

    #[test]
    fn welch_matches_a_worked_example() {
        // equal spreads and sizes give the pooled test: df = 8, t(0.975, 8) = 2.306
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [3.0, 4.0, 5.0, 6.0, 7.0];
        let d = difference(&b, &a, 0.05).unwrap();
        assert!((d.value - 2.0).abs() < 1e-12);
        assert!((d.high - 2.0 - 2.306).abs() < 0.01, "{d:?}");
        assert!(difference(&[1.0], &a, 0.05).unwrap().low.is_infinite());
        assert_eq!(difference(&[], &a, 0.05), None);
    }

    #[test]
    fn an_estimate_brackets_its_mean() {
        let e = estimate(&[1.0, 2.0, 3.0]).unwrap();
        assert!((e.value - 2.0).abs() < 1e-12);
        // se = 1/sqrt(3), t(0.975, 2) = 4.303
        assert!((e.high - 2.0 - 4.303 / 3f64.sqrt()).abs() < 0.01);
        assert_eq!(estimate(&[]), None);
        assert!(estimate(&[5.0]).unwrap().low.is_infinite());
    }
}
