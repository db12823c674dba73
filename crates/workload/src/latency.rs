//! Latencies of transactions in a histogram, and their summary.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies: from 1 us to a minute, two significant digits (1 % exact), about 10 KiB. Programs are compared by them, where
/// the quarter to which `evenkeel_base::Histogram` knows a quantile would hide the difference.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// `None` if hdrhistogram refused its bounds, which are constants it documents as fine: then nothing is known.
    histogram: Option<Histogram<u32>>,
}

/// Lowest and highest latency told apart, nanoseconds.
const RANGE_NS: (u64, u64) = (1_000, 60_000_000_000);

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_bounds(RANGE_NS.0, RANGE_NS.1, 2).ok() }
    }
}

impl Latencies {
    /// Counts one; beyond the range it counts as the range's end.
    pub fn record(&mut self, latency_ns: u64) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(latency_ns);
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        if let (Some(mine), Some(other)) = (&mut self.histogram, &other.histogram) {
            // Same bounds: cannot fail.
            let _ = mine.add(other);
        }
    }

    /// The longest counted, nanoseconds; 0 of none.
    pub fn longest_ns(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::max)
    }

    pub fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::len)
    }

    /// Mean and percentiles; `None` when nothing was counted.
    pub fn summary(&self) -> Option<LatencySummary> {
        let histogram = self.histogram.as_ref().filter(|h| !h.is_empty())?;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Some(LatencySummary {
            mean_usec: histogram.mean() / 1e3,
            p50_usec: at(0.5),
            p90_usec: at(0.9),
            p99_usec: at(0.99),
            p999_usec: Some(at(0.999)),
            max_usec: histogram.max() as f64 / 1e3,
        })
    }

    /// Counts by upper bound in microseconds, zeros left out: for a picture.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let of = |histogram: &Histogram<u32>| {
            let values = histogram.iter_recorded();
            values.map(|v| (v.value_iterated_to() as f64 / 1e3, v.count_since_last_iteration())).collect()
        };
        self.histogram.as_ref().map(of).unwrap_or_default()
    }
}

/// Latencies in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    pub mean_usec: f64,
    /// Median, microseconds.
    pub p50_usec: f64,
    /// 90 % are at most this, microseconds.
    pub p90_usec: f64,
    /// 99 % are at most this, microseconds.
    pub p99_usec: f64,
    /// 99.9 % are at most this, microseconds; `None` from tools that do not tell, and in old records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_usec: Option<f64>,
    /// The longest, microseconds.
    pub max_usec: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn latencies_are_summed_up_and_added() {
        let mut a = Latencies::default();
        assert_eq!(a.summary(), None);
        (1..=100).for_each(|i| a.record(i * 10_000));
        let mut b = Latencies::default();
        b.record(u64::MAX);
        a.add(&b);
        let s = a.summary().unwrap();
        assert_eq!(a.count(), 101);
        assert!((s.p50_usec / 510.0 - 1.0).abs() < 0.02, "{s:?}");
        assert!((s.p99_usec / 1000.0 - 1.0).abs() < 0.02, "{s:?}");
        // Of 101 values the 101st, which is the other's.
        assert!(s.p999_usec.unwrap() >= 60e6 * 0.99, "{s:?}");
        assert!(s.max_usec >= 60e6 * 0.99, "{s:?}");
        assert_eq!(a.buckets().iter().map(|(_, n)| n).sum::<u64>(), 101);
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_one_percent(ns in 1_000u64..60_000_000_000) {
            let mut l = Latencies::default();
            l.record(ns);
            let p50 = l.summary().unwrap().p50_usec * 1e3;
            prop_assert!((p50 / ns as f64 - 1.0).abs() < 0.01, "{ns} became {p50}");
        }
    }
}
