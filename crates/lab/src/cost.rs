//! What the built-in computing loads cost, in divisions: `primes` measured on a host tells what `sieve` takes there.

/// Divisions of testing whether a number is prime by every integer up to its root, until one divides.
fn up_to_root(n: u64) -> u64 {
    (2..)
        .take_while(|d| d * d <= n)
        .find(|d| n.is_multiple_of(*d))
        .map_or(n.isqrt().saturating_sub(1), |d| d - 1)
}

/// Divisions in one event of `primes --max-prime MAX`: each number below MAX is tested up to its root.
pub(crate) fn of_a_pass(max: u64) -> u64 {
    (3..max).map(up_to_root).sum()
}

/// Divisions of `sieve` for one number: by every i below its half until one divides.
pub(crate) fn of_a_number(n: u64) -> u64 {
    let smallest = (2..).take_while(|d| d * d <= n).find(|d| n.is_multiple_of(*d));
    smallest.map_or(n / 2, |d| d - 1)
}

/// Seconds of a division where one thread does so many events of `primes` (up to 10,000) a second.
pub(crate) fn division_s(primes_per_s: f64) -> f64 {
    1.0 / (primes_per_s.max(1.0) * of_a_pass(10_000) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_counted_as_the_loads_do_them() {
        // 9: by 2, then 3 divides. 7: by 2 only (below its half, 3.5).
        assert_eq!((of_a_number(9), of_a_number(10), of_a_number(15)), (2, 1, 2));
        assert_eq!(of_a_number(1_000_003), 500_001);
        // 3 by none, 4 by 2, 5 and 7 by 2, 6 and 8 by 2, 9 by 2 and 3.
        assert_eq!(of_a_pass(10), 7);
        let events = of_a_pass(10_000);
        assert!((50_000..500_000).contains(&events), "{events}");
    }
}
