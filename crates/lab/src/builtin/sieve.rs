//! Ranges of numbers whose sieving takes a given CPU time on this host.

use super::Plan;

/// First number sieved.
const FROM: u64 = 1_000_001;

/// Divisions that testing a number takes: by every i below its half until one divides.
fn divisions(n: u64) -> u64 {
    let smallest = (2..).take_while(|d| d * d <= n).find(|d| n.is_multiple_of(*d));
    smallest.map_or(n / 2, |d| d - 1)
}

/// Divisions in one event of `primes`: trial division up to the root of each number below 10,000.
fn divisions_of_an_event() -> u64 {
    let up_to_root = |n: u64| (2..).take_while(|d| d * d <= n).find(|d| n.is_multiple_of(*d)).map(|d| d - 1);
    (3..10_000u64).map(|n| up_to_root(n).unwrap_or(n.isqrt() - 1)).sum()
}

/// Last number of a range that takes about `cpu_s` CPU seconds when a step costs `step_ns` more than a division.
pub(super) fn last_number(plan: &Plan, cpu_s: f64, step_ns: f64) -> u64 {
    let division_s = 1.0 / (plan.primes_per_s.max(1.0) * divisions_of_an_event() as f64);
    let mut left = cpu_s / (division_s + step_ns / 1e9);
    let mut n = FROM;
    while left > 0.0 {
        left -= divisions(n) as f64;
        n += 1;
    }
    n.max(FROM + 10)
}

/// The load, as after `evenkeel load`.
pub(super) fn load(last: u64, read: &str) -> String {
    format!("sieve --from {FROM} --to {last} --read {read}")
}

/// Threads: a fifth more than CPUs, as the source's 48 on 40.
pub(super) fn threads(plan: &Plan) -> u32 {
    (plan.count() * 6).div_ceil(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_counted_as_the_sieve_does_them() {
        // 9: by 2, then 3 divides. 7: by 2 only (below its half, 3.5).
        assert_eq!((divisions(9), divisions(10), divisions(15)), (2, 1, 2));
        assert_eq!(divisions(1_000_003), 500_001);
        let events = divisions_of_an_event();
        assert!((50_000..500_000).contains(&events), "{events}");
    }
}
