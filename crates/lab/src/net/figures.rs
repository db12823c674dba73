//! Over how many CPUs a load is spread, and how flows are split over tenants.

use evenkeel_base::stats::jain;

/// Over how many CPUs a load is spread: n times Jain's index of their loads. 1 when one CPU has all of it.
pub fn spread(cpu_pct: &[f64]) -> Option<f64> {
    jain(cpu_pct).map(|index| index * cpu_pct.len() as f64)
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
