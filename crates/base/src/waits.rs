//! Waits for a CPU, counted by length.

use std::iter::Sum;

use serde::{Deserialize, Serialize};

/// Buckets of a histogram: 40 octaves of nanoseconds, up to 18 minutes.
pub const BUCKETS: usize = 160;
/// A bucket counts no further, so that a sum over all buckets is no overflow.
const MOST: u64 = u64::MAX / BUCKETS as u64;

/// Counts of waits by length, four buckets to an octave of nanoseconds: a quantile is known within a quarter of itself.
/// The kernel's side counts in the same buckets, where a finer division costs memory for each task; requests are counted
/// to 1 % by `Latencies` of crate workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u8, u64)>", into = "Vec<(u8, u64)>")]
pub struct Histogram {
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS] }
    }
}

/// As pairs of bucket and count: most are 0.
impl From<Histogram> for Vec<(u8, u64)> {
    fn from(histogram: Histogram) -> Self {
        (0u8..).zip(histogram.counts).filter(|(_, count)| *count > 0).collect()
    }
}

/// Buckets that there are not are left out.
impl From<Vec<(u8, u64)>> for Histogram {
    fn from(pairs: Vec<(u8, u64)>) -> Self {
        let mut histogram = Self::default();
        for (bucket, count) in pairs {
            if let Some(sum) = histogram.counts.get_mut(usize::from(bucket)) {
                add_up(sum, count);
            }
        }
        histogram
    }
}

/// Bounds of a bucket, ns: from (included) to (excluded).
fn bounds(bucket: usize) -> (u64, u64) {
    let (octave, quarter) = ((bucket / 4) as u32, (bucket % 4) as u64);
    match octave {
        // 0 and 1 ns, and 2 and 3 ns, are not told apart.
        0 => (0, 2),
        1 => (2, 4),
        _ => {
            let step = 1 << (octave - 2);
            ((4 + quarter) * step, (5 + quarter) * step)
        }
    }
}

fn bucket(ns: u64) -> usize {
    let octave = 63 - ns.max(1).leading_zeros();
    if octave < 2 {
        return octave as usize * 4;
    }
    ((octave * 4) as usize + (ns >> (octave - 2) & 3) as usize).min(BUCKETS - 1)
}

fn add_up(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count).min(MOST);
}

/// All waits of several, such as of windows.
impl<'a> Sum<&'a Self> for Histogram {
    fn sum<I: Iterator<Item = &'a Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|one| sum.merge(one));
        sum
    }
}

impl Histogram {
    /// Of waits as long as these, ns, so many of each.
    pub fn of(waits: &[(u64, u64)]) -> Self {
        let mut histogram = Self::default();
        waits.iter().for_each(|(ns, count)| histogram.add_many(*ns, *count));
        histogram
    }

    pub fn add(&mut self, ns: u64) {
        self.add_many(ns, 1);
    }

    /// Counts as many waits of this length.
    pub fn add_many(&mut self, ns: u64, count: u64) {
        if let Some(sum) = self.counts.get_mut(bucket(ns)) {
            add_up(sum, count);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            add_up(sum, *count);
        }
    }

    /// Adds the counts of the first buckets.
    pub fn add_counts(&mut self, counts: &[u32]) {
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            add_up(sum, u64::from(*count));
        }
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The length that a share (0 to 1) of all waits does not exceed, ns, interpolated within its bucket; `None` without
    /// any wait.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let rank = (share.clamp(0.0, 1.0) * total as f64).max(1.0);
        let mut below = 0u64;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (below + count) as f64 >= rank {
                let (low, high) = bounds(index);
                let within = (rank - below as f64) / *count as f64;
                return Some(low + ((high - low) as f64 * within.clamp(0.0, 1.0)) as u64);
            }
            below += count;
        }
        None
    }

    /// By how much something that comes at a random instant of so many seconds is delayed by the wait that goes on then, if
    /// any, as a quantile, ns: what comes has to wait longer than that with probability 1 - `share`. Long waits count for as
    /// many as come meanwhile, so that it does not matter how many short ones there are besides.
    pub fn delay(&self, share: f64, seconds: f64) -> u64 {
        let budget_ns = (1.0 - share).max(0.0) * seconds * 1e9;
        let (mut count, mut sum_ns) = (0.0, 0.0);
        let middle = |index: usize| {
            let (low, high) = bounds(index);
            f64::midpoint(low as f64, high as f64)
        };
        let mut held = self.counts.iter().enumerate().rev().filter(|(_, count)| **count > 0).peekable();
        while let Some((index, here)) = held.next() {
            count += *here as f64;
            sum_ns += *here as f64 * middle(index);
            let next = held.peek().map_or(0.0, |(index, _)| middle(*index));
            // Of each wait so far, the part beyond the delay: together they are the budget.
            let delay_ns = (sum_ns - budget_ns) / count;
            if delay_ns >= next {
                return delay_ns as u64;
            }
        }
        0
    }

    /// Waits longer than this, interpolated within the bucket it falls into.
    pub fn beyond(&self, ns: u64) -> f64 {
        let at = bucket(ns);
        let above: u64 = self.counts.iter().skip(at + 1).sum();
        let (low, high) = bounds(at);
        let part = ns.clamp(low, high).abs_diff(high) as f64 / (high - low) as f64;
        let here = self.counts.get(at).copied().unwrap_or(0);
        above as f64 + part * here as f64
    }

    /// The bucket's edge at or below a length, ns: counts beyond an edge are exact.
    pub fn edge_below(ns: u64) -> u64 {
        bounds(bucket(ns)).0
    }

    /// The bucket's edge that the share of waits nearest to this (as a ratio) exceeds, ns; `None` without any wait.
    pub fn edge_beyond(&self, share: f64) -> Option<u64> {
        let total = self.total() as f64;
        let mut beyond = 0u64;
        let mut nearest: Option<(f64, u64)> = None;
        for (index, count) in self.counts.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
            beyond += count;
            let distance = (beyond as f64 / total / share).ln().abs();
            if nearest.is_none_or(|(least, _)| distance < least) {
                nearest = Some((distance, bounds(index).0));
            }
        }
        nearest.map(|(_, edge)| edge)
    }

    /// Upper end of the longest waits' bucket, ns: none was longer. `None` without any wait.
    pub fn longest(&self) -> Option<u64> {
        self.counts.iter().rposition(|count| *count > 0).map(|last| bounds(last).1)
    }

    /// Counts by powers of two of a microsecond: `(from, to, count)`, from the first to the last that is not 0. The first
    /// bucket starts at 0.
    pub fn octaves_usec(&self) -> Vec<(u64, u64, u64)> {
        // An octave of 1024 ns is taken for one of 1 us: both are powers of two, 2.4 % apart.
        let mut sums: Vec<(u64, u64, u64)> = Vec::new();
        for octave in 9..(BUCKETS / 4) {
            let range = if octave == 9 { 0..40 } else { octave * 4..octave * 4 + 4 };
            let count = self.counts[range].iter().sum();
            let (from, to) = if octave == 9 { (0, 1) } else { (1 << (octave - 10), 1 << (octave - 9)) };
            sums.push((from, to, count));
        }
        let last = sums.iter().rposition(|(_, _, count)| *count > 0);
        let first = sums.iter().position(|(_, _, count)| *count > 0);
        match (first, last) {
            (Some(first), Some(last)) => sums[first..=last].to_vec(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert!(Histogram::default().octaves_usec().is_empty());
    }

    /// As only a damaged file has them.
    #[test]
    fn more_waits_than_there_can_be_are_no_overflow() {
        let mut histogram = Histogram::from((0u8..160).map(|bucket| (bucket, u64::MAX)).collect::<Vec<_>>());
        histogram.merge(&histogram.clone());
        histogram.add_many(1, u64::MAX);
        assert!(histogram.total() > u64::MAX / 2 && histogram.quantile(0.5).is_some());
        assert!(histogram.edge_beyond(0.5).is_some() && histogram.beyond(0) > 1e19);
    }

    #[test]
    fn octaves_are_those_of_microseconds() {
        let mut histogram = Histogram::default();
        for ns in [100, 900, 1_500, 5_000_000] {
            histogram.add(ns);
        }
        let octaves = histogram.octaves_usec();
        assert_eq!(octaves[0], (0, 1, 2));
        assert_eq!(octaves[1], (1, 2, 1));
        assert_eq!(octaves.last(), Some(&(4096, 8192, 1)));
        assert_eq!(octaves.iter().map(|o| o.2).sum::<u64>(), histogram.total());
    }

    #[test]
    fn what_is_beyond_is_counted_and_interpolated() {
        let mut histogram = Histogram::default();
        histogram.add_many(1 << 20, 8);
        histogram.add_many(1 << 24, 2);
        // The bucket of 2^20 reaches up to 2^20 + 2^18: at its middle half of its waits are taken for longer.
        assert_eq!(histogram.beyond((1 << 20) + (1 << 17)), 6.0);
        assert_eq!(
            (histogram.beyond(0), histogram.beyond(1 << 22), histogram.beyond(1 << 30)),
            (10.0, 2.0, 0.0)
        );
        assert_eq!(histogram.longest(), Some((1 << 24) + (1 << 22)));
        assert_eq!(Histogram::default().longest(), None);
    }

    #[test]
    fn an_edge_is_where_counts_are_exact() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.edge_beyond(0.01), None);
        histogram.add_many(1 << 20, 985);
        histogram.add_many(1 << 22, 5);
        histogram.add_many(1 << 24, 10);
        let edge = histogram.edge_beyond(0.01).unwrap();
        assert_eq!((edge, histogram.beyond(edge)), (1 << 24, 10.0));
        assert_eq!(Histogram::edge_below((1 << 20) + 5), 1 << 20);
        assert_eq!(histogram.beyond(histogram.edge_beyond(1.0).unwrap()), 1000.0);
    }

    #[test]
    fn a_kept_histogram_may_be_of_another_make() {
        let read: Histogram = serde_json::from_str("[[84,3],[250,7]]").unwrap();
        assert_eq!(read.total(), 3);
        assert_eq!(serde_json::to_string(&read).unwrap(), "[[84,3]]");
    }

    proptest! {
        #[test]
        fn what_is_beyond_a_quantile_is_the_rest(
            waits in proptest::collection::vec(1_000u64..1 << 35, 1..200), share in 0.01f64..1.0
        ) {
            let mut histogram = Histogram::default();
            waits.iter().for_each(|ns| histogram.add(*ns));
            let count = waits.len() as f64;
            let rest = count - (share * count).max(1.0);
            // A quantile is a whole nanosecond of a bucket of 128 at least.
            prop_assert!((histogram.beyond(histogram.quantile(share).unwrap()) - rest).abs() <= count / 128.0);
            let longest = histogram.longest().unwrap();
            prop_assert!(waits.iter().all(|ns| *ns < longest) && histogram.beyond(longest) == 0.0);
        }

        #[test]
        fn a_kept_histogram_is_read_back(waits in proptest::collection::vec(any::<u64>(), 0..50)) {
            let mut histogram = Histogram::default();
            waits.iter().for_each(|ns| histogram.add(*ns));
            let text = serde_json::to_string(&histogram).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
        }

        #[test]
        fn a_wait_is_within_its_bucket(ns in 0u64..1 << 40) {
            let (low, high) = bounds(bucket(ns));
            prop_assert!((low..high).contains(&ns), "{ns}: {low}..{high}");
        }

        #[test]
        fn delays_are_what_comes_at_random_instants_meets(
            waits in proptest::collection::vec(1u64 << 14..1 << 28, 1..40), share in 0.5f64..0.999
        ) {
            let mut histogram = Histogram::default();
            waits.iter().for_each(|ns| histogram.add(*ns));
            let seconds = 2.0 * waits.iter().sum::<u64>() as f64 / 1e9;
            let delay = histogram.delay(share, seconds);
            // The time in which what comes waits longer, of all the time, if all waits were so many times as long: within a
            // bucket they are taken for its middle.
            let beyond = |times: f64| {
                let parts = waits.iter().map(|wait| (times * *wait as f64 - delay as f64).max(0.0));
                parts.sum::<f64>() / (seconds * 1e9)
            };
            let (low, high) = (beyond(0.88), beyond(1.13));
            prop_assert!(
                low <= 1.0 - share + 1e-6 && (delay == 0 || high >= 1.0 - share - 1e-6),
                "{low} {high} {delay}"
            );
        }

        #[test]
        fn quantiles_are_near_the_true_ones(
            mut waits in proptest::collection::vec(4u64..1 << 35, 1..200), share in 0.01f64..1.0
        ) {
            let mut histogram = Histogram::default();
            waits.iter().for_each(|ns| histogram.add(*ns));
            waits.sort_unstable();
            let rank = (share * waits.len() as f64).max(1.0).ceil() as usize - 1;
            let truth = waits[rank.min(waits.len() - 1)] as f64;
            let found = histogram.quantile(share).unwrap() as f64;
            prop_assert!((found - truth).abs() <= 0.25 * truth + 1.0, "{found} for {truth}");
        }
    }
}
