//! Waits that go on, of tasks read by `/proc`.
//!
//! The kernel adds a wait to `run_delay` when it ends (`sched_info_arrive`, `kernel/sched/stats.h`): a task that gets no CPU for
//! seconds would seem not to wait at all. So the state of one whose counters stand still is looked at. A task that is ready to run at
//! two looks and whose counters did not change in between has waited all the time between them.

use evenkeel_linux::schedstat::SchedStat;

/// A task that goes on sleeping is looked at in each so many samples.
const SELDOM: u32 = 16;

/// What is known of a task's present wait.
#[derive(Debug, Default)]
pub(crate) struct OpenWait {
    /// The counters, and when they were read, nanoseconds.
    last: Option<(SchedStat, u64)>,
    /// It was ready to run then.
    ready: bool,
    /// Samples since the counters changed.
    still: u32,
    /// What it has waited for sure, nanoseconds.
    waited_ns: u64,
}

impl OpenWait {
    /// Takes in the counters at a time, nanoseconds. Returns what the kernel will add to the waits when this one ends, as far as it
    /// is known, nanoseconds. `is_ready` looks at the state.
    pub fn see(&mut self, counters: SchedStat, at_ns: u64, is_ready: impl FnOnce() -> bool) -> u64 {
        match self.last.replace((counters, at_ns)) {
            Some((before, then_ns)) if before == counters => {
                self.still += 1;
                let sleeps =
                    !self.ready && !self.still.is_power_of_two() && !self.still.is_multiple_of(SELDOM);
                let ready = !sleeps && is_ready();
                if self.ready && ready {
                    self.waited_ns += at_ns.saturating_sub(then_ns);
                }
                self.ready = ready;
            }
            _ => (self.ready, self.still, self.waited_ns) = (is_ready(), 0, 0),
        }
        self.waited_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn counters(waited_ns: u64, timeslices: u64) -> SchedStat {
        SchedStat { ran_ns: 7, waited_ns, timeslices }
    }

    #[test]
    fn a_wait_that_goes_on_counts_from_the_first_look_and_never_more_than_the_kernel_adds() {
        let mut wait = OpenWait::default();
        let seen: Vec<u64> = (0..4).map(|n| wait.see(counters(5, 1), n * 1000, || true)).collect();
        assert_eq!(seen, [0, 1000, 2000, 3000]);
        // It ended after 3.4 microseconds: the kernel's sum is not below what was said.
        assert_eq!(5 + 3400 + wait.see(counters(5 + 3400, 2), 4000, || false), 3405);
        assert_eq!(wait.see(counters(5 + 3400, 2), 5000, || true), 0, "it may have slept until now");
        assert_eq!(wait.see(counters(5 + 3400, 2), 6000, || true), 1000);
    }

    #[test]
    fn who_sleeps_does_not_wait_and_is_looked_at_seldom() {
        let mut wait = OpenWait::default();
        let mut looks = Vec::new();
        for sample in 0..50u32 {
            assert_eq!(
                wait.see(counters(5, 1), u64::from(sample) * 1000, || {
                    looks.push(sample);
                    false
                }),
                0
            );
        }
        assert_eq!(looks, [0, 1, 2, 4, 8, 16, 32, 48]);
    }
}
