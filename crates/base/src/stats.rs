//! The one place for statistics: quantiles, means with Student-t intervals, binomial bounds ([`binomial`]) and evidence
//! from randomised pairs, at every stopping time ([`bets`]) or at a few looks ([`flips`]). Distributions are those of `statrs`.

pub mod bets;
pub mod binomial;
pub mod flips;

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::run::Estimate;

pub use bets::SignBets;

/// The median of values in any order; `None` of nothing. Values that are not finite count at their end.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

/// Quantile of ascending values, interpolated linearly between them; `None` of nothing.
pub fn quantile(ascending: &[f64], q: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    Some(ascending[below] + (ascending[above] - ascending[below]) * (at - below as f64))
}

/// Adds what is known; a sum of which no part is known stays unknown.
pub fn add_known(sum: &mut Option<f64>, part: Option<f64>) {
    if let Some(part) = part {
        *sum.get_or_insert(0.0) += part;
    }
}

/// Mean of the values; `None` of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Population variance of the values, 0 for none.
pub fn variance(values: &[f64]) -> f64 {
    mean(values).map_or(0.0, |m| values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / values.len() as f64)
}

/// Standard deviation of a sample (n - 1); `None` for fewer than two values.
pub fn sd(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    (values.len() > 1).then(|| (variance(values) * n / (n - 1.0)).sqrt())
}

/// Standard error of the mean; `None` for fewer than two values.
pub fn standard_error(values: &[f64]) -> Option<f64> {
    Some(sd(values)? / (values.len() as f64).sqrt())
}

/// The standard deviation that a normal distribution with this median distance from 0 has: a scale that a few wild
/// values do not move. `None` of nothing.
pub fn robust_scale(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Some(median(values.into_iter().map(f64::abs))? / 0.6745)
}

/// Degrees of freedom from which on the normal distribution's quantile is nearer than what `statrs` finds for Student's t: with
/// more it is wrong in the fifth place, then in the fourth, and from some 1e10 on the search never ends.
const NORMAL_FREEDOM: f64 = 1e5;

/// Quantile of Student's t; infinite where there are no degrees of freedom.
pub fn t_quantile(p: f64, freedom: f64) -> f64 {
    let p = p.clamp(1e-12, 1.0 - 1e-12);
    if freedom >= NORMAL_FREEDOM {
        return normal_quantile(p);
    }
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(p))
}

/// Probability that Student's t is at most `t`; `None` without degrees of freedom.
pub fn t_cdf(t: f64, freedom: f64) -> Option<f64> {
    StudentsT::new(0.0, 1.0, freedom).ok().map(|distribution| distribution.cdf(t))
}

/// Quantile of the normal distribution.
pub fn normal_quantile(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p.clamp(1e-300, 1.0 - 1e-16))
}

/// Probability that a standard normal value is at most `z`.
pub fn normal_cdf(z: f64) -> f64 {
    Normal::standard().cdf(z)
}

/// A standard normal value of two uniform ones from 0 to 1, the first above 0 (Box and Muller 1958).
pub fn normal_of(u: f64, v: f64) -> f64 {
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// The factor on the standard error for a two-sided interval at error probability `alpha`.
/// Infinite without a degree of freedom: nothing is known of the spread then.
pub fn t_factor(freedom: f64, alpha: f64) -> f64 {
    if freedom < 1.0 { f64::INFINITY } else { t_quantile(1.0 - alpha.clamp(1e-9, 1.0) / 2.0, freedom) }
}

/// Mean with its two-sided 95 % interval, assuming independent values; unbounded for a single value.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    estimate_at(values, 0.05)
}

/// Mean with a two-sided interval at error probability `alpha`.
pub fn estimate_at(values: &[f64], alpha: f64) -> Option<Estimate> {
    let value = mean(values)?;
    let margin = standard_error(values).map_or(f64::INFINITY, |se| {
        let margin = t_factor(values.len() as f64 - 1.0, alpha) * se;
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
    // Of shares of the spread, whose squares do not vanish however small the unit is.
    let part = |v: f64, n: usize| (v / spread).powi(2) / (n - 1) as f64;
    let freedom = 1.0 / (part(va, a.len()) + part(vb, b.len()));
    let margin = t_factor(freedom.max(1.0), alpha) * spread.sqrt();
    Some(Estimate { value, low: value - margin, high: value + margin })
}

/// Median with its distribution-free interval: the widest pair of order statistics that covers the true median with at
/// least 95 % (ranks k and n+1-k with P(Binomial(n, 1/2) < k) <= 2.5 %). Unbounded for fewer than six values, where no
/// pair does; `None` of none, or with a value that is no number.
pub fn median_with_interval(values: &[f64]) -> Option<Estimate> {
    let value = median(values.iter().copied()).filter(|_| !values.iter().any(|value| value.is_nan()))?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let outside = |k: &usize| binomial::at_most(*k as u64, n as u64, 0.5) <= 0.025;
    let k = (0..n).take_while(outside).count();
    let (low, high) =
        if k == 0 { (f64::NEG_INFINITY, f64::INFINITY) } else { (sorted[k - 1], sorted[n - k]) };
    Some(Estimate { value, low, high })
}

/// (max - min) / mean, percent: the bias between tenants. `None` of nothing or of a mean of 0.
pub fn bias_pct(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|mean| *mean != 0.0)?;
    let (min, max) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    Some(100.0 * (max - min) / mean)
}

/// Jain's index, (sum x)^2 / (n sum x^2): 1 for all equal, 1/n for one having all. `None` of nothing or all 0.
pub fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = (values.iter().sum::<f64>(), values.iter().map(|v| v * v).sum::<f64>());
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([5.0, 1.0, 9.0]), Some(5.0));
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), Some(3.0));
        assert_eq!(median([1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!((quantile(&[1.0, 2.0, 3.0, 4.0], 0.25), quantile(&[], 0.5)), (Some(1.75), None));
        assert_eq!(quantile(&[1.0, 2.0, 4.0, 8.0], 0.5), Some(3.0));
        assert_eq!(
            (quantile(&[1.0, 2.0, 4.0], 1.0), quantile(&[1.0, 2.0, 4.0], 0.0)),
            (Some(4.0), Some(1.0))
        );
    }

    #[test]
    fn distributions_match_the_tables() {
        // two-sided 95 % with 5 values: t(0.975, 4) = 2.776
        assert!((t_factor(4.0, 0.05) - 2.776).abs() < 0.001);
        assert_eq!(t_factor(0.0, 0.05), f64::INFINITY);
        assert!((t_factor(1.0, 0.05) - 12.706).abs() < 0.001);
        // Certainty is out of reach, not infinitely far.
        assert!(t_quantile(1.0, 4.0) > 100.0 && t_quantile(1.0, 4.0).is_finite());
        assert!(normal_quantile(1.0) > 8.0 && normal_quantile(1.0).is_finite());
        // With ever more degrees of freedom it is the normal distribution.
        for freedom in [1e5, 1e6, 1e10, f64::INFINITY] {
            let t = t_quantile(0.975, freedom);
            assert!((t - normal_quantile(0.975)).abs() < 3e-5, "{freedom}: {t}");
        }
        assert!((t_cdf(2.776, 4.0).unwrap() - 0.975).abs() < 1e-4);
        assert_eq!(t_cdf(1.0, 0.0), None);
        assert!(
            (normal_quantile(0.975) - 1.959_96).abs() < 1e-4 && (normal_cdf(1.644_85) - 0.95).abs() < 1e-5
        );
    }

    #[test]
    fn spread_of_a_sample() {
        assert_eq!((sd(&[1.0]), standard_error(&[]), robust_scale([])), (None, None, None));
        assert!((sd(&[1.0, 2.0, 3.0]).unwrap() - 1.0).abs() < 1e-12);
        assert!((variance(&[1.0, 2.0, 3.0]) - 2.0 / 3.0).abs() < 1e-12);
        assert!((robust_scale([0.6745, -0.6745, 100.0]).unwrap() - 1.0).abs() < 1e-12);
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
    fn welch_with_spreads_that_differ() {
        // Squared standard errors 5/12 and 700/9; Satterthwaite: their sum squared over (5/12)²/3 + (700/9)²/2 is 2.021 447.
        let d = difference(&[10.0, 20.0, 40.0], &[1.0, 2.0, 3.0, 4.0], 0.1).unwrap();
        let margin = t_quantile(0.95, 2.021_447) * (5.0 / 12.0 + 700.0 / 9.0f64).sqrt();
        assert!((d.value - (70.0 / 3.0 - 2.5)).abs() < 1e-9, "{d:?}");
        assert!(((d.high - d.value) / margin - 1.0).abs() < 1e-3, "{d:?} {margin}");
        assert!((d.high + d.low - 2.0 * d.value).abs() < 1e-9, "{d:?}");
        // In a unit in which the squares of squared errors are nothing it is the same.
        let tiny = difference(&[1e-99, 2e-99, 4e-99], &[1e-100, 2e-100, 3e-100, 4e-100], 0.1).unwrap();
        assert!((1e100 * (tiny.high - tiny.value) / (d.high - d.value) - 1.0).abs() < 1e-9, "{tiny:?}");
        // Without spread the difference is known.
        let d = difference(&[3.0, 3.0], &[1.0, 1.0, 1.0], 0.05).unwrap();
        assert_eq!((d.low, d.value, d.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn an_estimate_brackets_its_mean() {
        let e = estimate(&[1.0, 2.0, 3.0]).unwrap();
        assert!((e.value - 2.0).abs() < 1e-12);
        // se = 1/sqrt(3), t(0.975, 2) = 4.303
        assert!((e.high - 2.0 - 4.303 / 3f64.sqrt()).abs() < 0.01);
        assert!((e.low + e.high - 4.0).abs() < 1e-12, "{e:?}");
        assert_eq!(estimate(&[]), None);
        assert!(estimate(&[5.0]).unwrap().low.is_infinite());
    }

    #[test]
    fn the_interval_of_a_median_is_made_of_order_statistics() {
        let of = |n: u32| median_with_interval(&(1..=n).map(f64::from).collect::<Vec<_>>());
        let known = |value, low, high| Some(Estimate { value, low, high });
        // The table of every textbook: 6 values 1 to 6, 11 values 2 to 10, 20 values 6 to 15.
        assert_eq!(
            (of(6), of(11), of(20)),
            (known(3.5, 1.0, 6.0), known(6.0, 2.0, 10.0), known(10.5, 6.0, 15.0))
        );
        // As the normal distribution has it: (1000 - 1.96 * sqrt(1000)) / 2 = 469.01.
        assert_eq!(of(1000), known(500.5, 469.0, 532.0));
        assert!(of(5).is_some_and(|e| e.value == 3.0 && e.high.is_infinite()));
        assert_eq!((of(0), median_with_interval(&[f64::NAN])), (None, None));
    }

    #[test]
    fn how_even_shares_are() {
        assert_eq!(jain(&[1.0, 1.0, 0.0, 0.0]), Some(0.5));
        assert_eq!(bias_pct(&[90.0, 100.0, 110.0]), Some(20.0));
        assert_eq!((bias_pct(&[]), bias_pct(&[0.0, 0.0]), jain(&[0.0])), (None, None, None));
    }

    proptest! {
        #[test]
        fn jain_lies_between_one_nth_and_one_and_knows_no_scale(values in proptest::collection::vec(0.0f64..1e6, 1..30), scale in 0.1f64..10.0) {
            if let Some(j) = jain(&values) {
                prop_assert!(j <= 1.0 + 1e-9 && j >= 1.0 / values.len() as f64 - 1e-9);
                let scaled: Vec<f64> = values.iter().map(|v| v * scale).collect();
                prop_assert!((jain(&scaled).unwrap() - j).abs() < 1e-9);
                let bias = bias_pct(&values).unwrap();
                prop_assert!(bias >= 0.0 && bias <= 100.0 * values.len() as f64 + 1e-6);
            }
        }
    }
}
