//! Over how many CPUs a load is spread, medians with their interval, and how flows are split over tenants.

use evenkeel_base::run::Estimate;
use evenkeel_experiment::study::stats::jain;

/// Over how many CPUs a load is spread: n times Jain's index of their loads. 1 when one CPU has all of it.
pub fn spread(cpu_pct: &[f64]) -> Option<f64> {
    jain(cpu_pct).map(|index| index * cpu_pct.len() as f64)
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
    fn a_load_on_one_cpu_is_spread_over_one() {
        assert_eq!(spread(&[50.0, 0.0, 0.0, 0.0]), Some(1.0));
        assert_eq!((spread(&[20.0, 20.0]), spread(&[]), spread(&[0.0])), (Some(2.0), None, None));
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
