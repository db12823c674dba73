//! How even shares are: the two figures of the field, and over how many CPUs a load is spread.

use evenkeel_base::run::Estimate;

/// Bias between tenants: (max - min) / mean, percent. `None` for none, or when nobody got anything.
pub fn bias_pct(shares: &[f64]) -> Option<f64> {
    let mean = mean(shares).filter(|mean| *mean > 0.0)?;
    let max = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = shares.iter().copied().fold(f64::INFINITY, f64::min);
    Some((max - min) / mean * 100.0)
}

/// Jain's index: (sum x)^2 / (n sum x^2), 1 when all are equal, 1/n when one has all (Jain, Chiu, Hawe 1984).
pub fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Over how many CPUs a load is spread: n times Jain's index of their loads. 1 when one CPU has all of it.
pub fn spread(cpu_pct: &[f64]) -> Option<f64> {
    jain(cpu_pct).map(|index| index * cpu_pct.len() as f64)
}

/// Mean; `None` of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Median with its distribution-free interval: the widest pair of order statistics that covers the true median with at
/// least 95 % (ranks k and n+1-k with P(Binomial(n, 1/2) < k) <= 2.5 %). Unbounded for fewer than six values, where no
/// pair does; `None` of none, or with a value that is no number.
pub fn median_with_interval(values: &[f64]) -> Option<Estimate> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let value = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
    let k = if n > 500 {
        ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.0) as usize
    } else {
        // Terms of the binomial distribution, summed up while the tail stays within 2.5 %.
        let (mut term, mut tail, mut k) = (0.5f64.powi(n as i32), 0.0, 0);
        while tail + term <= 0.025 && k < n / 2 {
            tail += term;
            term *= (n - k) as f64 / (k + 1) as f64;
            k += 1;
        }
        k
    };
    let (low, high) =
        if k == 0 { (f64::NEG_INFINITY, f64::INFINITY) } else { (sorted[k - 1], sorted[n - k]) };
    Some(Estimate { value, low, high })
}

/// How many flows each of `tenants` gets of `flows`.
///
/// # Errors
/// They do not divide exactly: a tenant with one flow more would be favoured by the experiment itself. The message
/// names the nearest number that does.
pub fn split(flows: u32, tenants: usize) -> Result<u32, String> {
    let Some(count) = u32::try_from(tenants).ok().filter(|t| *t > 0) else {
        return Err("no tenant".into());
    };
    if flows > 0 && flows.is_multiple_of(count) {
        return Ok(flows / count);
    }
    let nearest = (flows / count).max(1) * count;
    Err(format!("{flows} flows do not divide evenly over {tenants} tenants: {nearest} would"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_figures_of_known_shares() {
        // (120 - 80) / 100; (100 + 80 + 120)^2 / (3 * (10000 + 6400 + 14400)) = 90000 / 92400
        assert_eq!(bias_pct(&[100.0, 80.0, 120.0]), Some(40.0));
        assert!((jain(&[100.0, 80.0, 120.0]).unwrap() - 0.974_025_97).abs() < 1e-8);
        assert_eq!(spread(&[50.0, 0.0, 0.0, 0.0]), Some(1.0));
        assert_eq!((bias_pct(&[]), bias_pct(&[0.0, 0.0]), jain(&[0.0])), (None, None, None));
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
        assert!(of(5).is_some_and(|e| e.value == 3.0 && e.high.is_infinite()));
        assert_eq!((of(0), median_with_interval(&[f64::NAN])), (None, None));
    }

    #[test]
    fn flows_are_split_exactly_or_not_at_all() {
        assert_eq!(split(128, 64), Ok(2));
        assert!(split(128, 3).unwrap_err().contains("126 would"));
        assert!(split(2, 3).unwrap_err().contains("3 would"));
        assert!(split(1, 0).is_err());
    }

    proptest! {
        #[test]
        fn bounds_hold(shares in proptest::collection::vec(0.0f64..1e9, 1..40)) {
            if let (Some(bias), Some(jain)) = (bias_pct(&shares), jain(&shares)) {
                let n = shares.len() as f64;
                prop_assert!(bias >= 0.0 && bias <= 100.0 * n + 1e-6);
                prop_assert!(jain <= 1.0 + 1e-9 && jain >= 1.0 / n - 1e-9);
            }
        }

        #[test]
        fn what_is_proposed_divides(flows in 1u32..1000, tenants in 1usize..100) {
            match split(flows, tenants) {
                Ok(each) => prop_assert_eq!(each as usize * tenants, flows as usize),
                Err(message) => {
                    let proposed = message.split(": ").nth(1).unwrap().split(' ').next().unwrap();
                    prop_assert!(split(proposed.parse().unwrap(), tenants).is_ok(), "{}", message);
                }
            }
        }
    }
}
