//! What the built-in computing loads cost, in divisions: `primes` measured on a host tells what `sieve` takes there.

/// The smallest divisor from 2 to the root of a number.
fn smallest_divisor(n: u64) -> Option<u64> {
    (2..).take_while(|d| d * d <= n).find(|d| n.is_multiple_of(*d))
}

/// Divisions of testing whether a number is prime by every integer up to its root, until one divides.
fn up_to_root(n: u64) -> u64 {
    smallest_divisor(n).map_or(n.isqrt().saturating_sub(1), |d| d - 1)
}

/// Divisions in one event of `primes --max-prime MAX`: each number below MAX is tested up to its root.
pub(crate) fn of_a_pass(max: u64) -> u64 {
    (3..max).map(up_to_root).sum()
}

/// Divisions of `sieve` for one number: by every i below its half until one divides.
pub(crate) fn of_a_number(n: u64) -> u64 {
    smallest_divisor(n).map_or(n / 2, |d| d - 1)
}

/// Most numbers of a range that are looked at: a second or so.
const MOST_NUMBERS: u64 = 20_000_000;
/// Largest number looked at, so that the primes up to its root are few.
const LARGEST: u64 = 1 << 40;

/// Divisions of `sieve` for each number of a range; `None` where counting them would take too long.
pub(crate) fn of_range(from: u64, to: u64) -> Option<Vec<u32>> {
    let count = to.checked_sub(from)?.saturating_add(1);
    if count > MOST_NUMBERS || to > LARGEST {
        return None;
    }
    let of_number = |(n, divisor): (u64, u32)| {
        if divisor > 0 { Some(divisor - 1) } else { u32::try_from(n / 2).ok() }
    };
    (from..=to).zip(smallest_divisors(from, to)).map(of_number).collect()
}

/// The smallest divisor from 2 to the root of each number of a range; 0 where there is none. By Eratosthenes' sieve.
fn smallest_divisors(from: u64, to: u64) -> Vec<u32> {
    let mut smallest = vec![0u32; usize::try_from(to - from + 1).unwrap_or(0)];
    let root = to.isqrt();
    let mut composite = vec![false; usize::try_from(root + 1).unwrap_or(0)];
    for prime in 2..=root {
        if composite[prime as usize] {
            continue;
        }
        (prime * prime..=root).step_by(prime as usize).for_each(|n| composite[n as usize] = true);
        // A number's smallest divisor is at most its root.
        let first = from.next_multiple_of(prime).max(prime * prime);
        for n in (first..=to).step_by(prime as usize) {
            let known = &mut smallest[(n - from) as usize];
            if *known == 0 {
                *known = prime as u32;
            }
        }
    }
    smallest
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
        assert_eq!((of_range(9, 8), of_range(1, 1 << 60)), (None, None));
        for from in [0, 1_000_001] {
            let each: Vec<u64> = of_range(from, from + 400).unwrap().into_iter().map(u64::from).collect();
            assert_eq!(each, (from..=from + 400).map(of_a_number).collect::<Vec<_>>());
        }
        // 3 by none, 4 by 2, 5 and 7 by 2, 6 and 8 by 2, 9 by 2 and 3.
        assert_eq!(of_a_pass(10), 7);
        let events = of_a_pass(10_000);
        assert!((50_000..500_000).contains(&events), "{events}");
    }
}
