//! Ranges of numbers whose sieving takes a given CPU time on this host.

use super::Plan;
use crate::cost;

/// First number sieved by those that only compute.
pub(super) const FROM: u64 = 1_000_001;
/// First number sieved by those that read in each step: a prime among them costs thousands of reads, not half a
/// million, so that no thread is left alone with the last of them.
pub(super) const READ_FROM: u64 = 10_001;
/// Numbers whose cost is counted at a time.
const CHUNK: u64 = 1 << 14;

/// Last number of a range that takes about `cpu_s` CPU seconds when a step costs `step_ns` more than a division.
pub(super) fn last_number(plan: &Plan, from: u64, cpu_s: f64, step_ns: f64) -> u64 {
    let mut left = cpu_s / (cost::division_s(plan.primes_per_s) + step_ns / 1e9);
    let mut n = from;
    while let Some(chunk) = cost::of_range(n, n + CHUNK - 1) {
        for divisions in chunk {
            if left <= 0.0 {
                return n.max(from + 10);
            }
            left -= f64::from(divisions);
            n += 1;
        }
    }
    n
}

/// The load, as after `evenkeel load`; `read` is what stands after `--read`.
pub(super) fn load(from: u64, last: u64, read: &str) -> String {
    format!("sieve --from {from} --to {last} --read {read}")
}

/// Threads: a fifth more than CPUs, as the source's 48 on 40.
pub(super) fn threads(plan: &Plan) -> u32 {
    (plan.count() * 6).div_ceil(5)
}
