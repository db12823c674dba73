//! What a simulation reports.

/// Waits counted by powers of two: bucket 0 is below 1 us, bucket n is from 2^(n-1) up to 2^n us. Documents show these
/// counts. Not an `evenkeel_base::Histogram`: its bounds are powers of two of a nanosecond, and no sum of its buckets ends
/// at a microsecond.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    /// Waits in each bucket; as long as needed.
    pub counts: Vec<u64>,
}

impl Histogram {
    pub fn add(&mut self, ns: u64) {
        let bucket = (u64::BITS - (ns / 1000).leading_zeros()) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    /// Upper end of the bucket, microseconds, in which a share (0..1) of the waits is reached; `None` without waits.
    pub fn quantile_usec(&self, share: f64) -> Option<u64> {
        let total: u64 = self.counts.iter().sum();
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if total > 0 && seen as f64 >= share * total as f64 {
                return Some(1 << bucket.min(63));
            }
        }
        None
    }
}

/// One time-limited run of [`super::Load::Runs`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// When it was started, nanoseconds.
    pub started_ns: u64,
    /// Its first own instruction (after the set-up work).
    pub first_ns: u64,
    /// End of its last event.
    pub ended_ns: u64,
    pub events: u64,
    /// CPU time from its start on, nanoseconds.
    pub got_ns: u64,
    /// Time waited for a CPU from its start on, throttled time included, nanoseconds.
    pub waited_ns: u64,
}

impl Run {
    /// Events per second between first instruction and end.
    pub fn events_per_s(&self) -> f64 {
        let seconds = self.ended_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        if seconds > 0.0 { self.events as f64 / seconds } else { 0.0 }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TaskReport {
    pub name: String,
    /// CPU time in the measured interval, seconds.
    pub got_s: f64,
    /// CPU time as percent of one CPU.
    pub got_pct: f64,
    /// What it wants, percent of one CPU; `None` where that has no meaning.
    pub wanted_pct: Option<f64>,
    /// Work done, seconds at full speed.
    pub work_s: f64,
    /// Runnable but not running, throttled time included, seconds.
    pub waited_s: f64,
    /// The part of it under an exhausted quota, seconds.
    pub throttled_s: f64,
    /// Waits, one entry for each time it got a CPU.
    pub waits: Histogram,
    /// Switches because it slept.
    pub voluntary: u64,
    /// Switches because another took the CPU.
    pub involuntary: u64,
    /// Times it started on another CPU than before.
    pub migrations: u64,
    /// Time-limited runs, whole simulation.
    pub runs: Vec<Run>,
    /// When it first ran, nanoseconds.
    pub first_ran_ns: Option<u64>,
    /// When it ended, nanoseconds.
    pub ended_ns: Option<u64>,
}

/// What a group's bandwidth limit did, over the whole simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupReport {
    pub name: String,
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
    /// Time its queues were throttled, summed over CPUs, seconds.
    pub throttled_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// In the scenario's order.
    pub tasks: Vec<TaskReport>,
    /// In the scenario's order.
    pub groups: Vec<GroupReport>,
    /// For each counter of the scenario, when each of its rounds was done, nanoseconds.
    pub rounds: Vec<Vec<u64>>,
    /// Use of each online CPU in the measured interval, percent.
    pub cpu_pct: Vec<f64>,
    /// Length of the measured interval, seconds.
    pub measured_s: f64,
    /// Simulated time reached, nanoseconds.
    pub end_ns: u64,
    pub events: u64,
}

impl Report {
    /// CPU got by all tasks with a known wish / what they wish; `None` if no wish is known.
    pub fn fulfilment(&self) -> Option<f64> {
        let (mut got, mut wanted) = (0.0, 0.0);
        for task in &self.tasks {
            if let Some(w) = task.wanted_pct {
                got += task.got_pct;
                wanted += w;
            }
        }
        (wanted > 0.0).then(|| got / wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two_of_microseconds() {
        let mut h = Histogram::default();
        for ns in [0, 999, 1_000, 1_999, 2_000, 1_024_000] {
            h.add(ns);
        }
        assert_eq!(h.counts[..3], [2, 2, 1]);
        assert_eq!(h.counts[11], 1);
        assert_eq!(h.quantile_usec(0.5), Some(2));
        assert_eq!(h.quantile_usec(1.0), Some(2048));
        assert_eq!(Histogram::default().quantile_usec(0.5), None);
    }
}
