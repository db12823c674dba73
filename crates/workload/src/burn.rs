//! Burning CPU time in measured amounts, and the clocks it is measured by.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Duration;

pub use evenkeel_linux::sys::{monotonic_ns, thread_cpu_ns, wall_ns as realtime_ns};
use rustix::thread::{ClockId as SleepClock, clock_nanosleep_absolute};
use rustix::time::Timespec;

/// Work between two clock reads: long enough that the reads (a system call for the CPU clock) cost below 2 %.
pub const CHUNK_NS: u64 = 20_000;

/// A [`Timespec`] of nanoseconds.
pub fn to_timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// Sleeps until an instant of `CLOCK_MONOTONIC`; returns early, with `false`, when a signal arrives.
pub fn sleep_until(monotonic_ns: u64) -> bool {
    clock_nanosleep_absolute(SleepClock::Monotonic, &to_timespec(monotonic_ns)).is_ok()
}

/// As [`sleep_until`], on `CLOCK_REALTIME`.
pub fn sleep_until_realtime(realtime_ns: u64) -> bool {
    clock_nanosleep_absolute(SleepClock::Realtime, &to_timespec(realtime_ns)).is_ok()
}

/// Lets timers of this thread fire when they are due: the default slack of 50 us would be 1 % of a 5 ms period,
/// and real-time tasks have none, which would make the ceiling look better than it is.
pub fn no_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// `steps` rounds of integer work without memory access: about a nanosecond each.
pub fn alu(steps: u64, seed: u64) -> u64 {
    let mut x = seed | 1;
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x)
}

/// Rounds of [`alu`] in a nanosecond of CPU time, measured once per process in about 2 ms.
pub fn steps_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let steps = 200_000;
        // The best of several: interruptions only ever make a pass slower.
        (0..6)
            .map(|seed| {
                let before = thread_cpu_ns();
                black_box(alu(steps, seed));
                steps as f64 / (thread_cpu_ns() - before).max(1) as f64
            })
            .fold(0.01, f64::max)
    })
}

/// Burns about `ns` of CPU time.
pub fn burn(ns: u64) {
    black_box(alu((ns as f64 * steps_per_ns()) as u64, ns));
}

/// Nanoseconds of a duration, saturating.
pub fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Durations as seconds in documents.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burn_takes_cpu_time_of_about_the_asked_amount() {
        steps_per_ns();
        let ratio = |ns: u64| {
            let before = thread_cpu_ns();
            burn(ns);
            (thread_cpu_ns() - before) as f64 / ns as f64
        };
        // A hypervisor's steal counts as CPU time: the best of several.
        let best = (0..20).map(|_| ratio(2_000_000)).fold(f64::INFINITY, f64::min);
        assert!((0.5..1.5).contains(&best), "{best}");
    }

    #[test]
    fn timespecs_survive_the_round_trip() {
        for ns in [0, 1, 999_999_999, 1_000_000_000, 1_790_000_000_123_456_789] {
            let time = to_timespec(ns);
            assert_eq!(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64, ns);
        }
    }
}
