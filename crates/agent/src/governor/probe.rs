//! Work done per run time: a few microseconds of arithmetic, timed by the thread's own CPU clock. Where a hypervisor steals
//! without saying so, the clock runs on while nothing is done.

use std::collections::VecDeque;

use evenkeel_linux::sys::thread_cpu_ns;

/// Rounds of a probe: about 20 microseconds.
const ROUNDS: u64 = 20_000;
/// Probes looked at together.
const WINDOW: usize = 20;

/// Integer work without memory access: about a nanosecond a round.
fn work(rounds: u64, seed: u64) -> u64 {
    (0..rounds).fold(seed | 1, |x, _| std::hint::black_box(x ^ x << 13).rotate_left(7))
}

#[derive(Debug, Default)]
pub(super) struct Probe {
    recent: VecDeque<u64>,
    best: Option<u64>,
}

impl Probe {
    /// One probe; gives the share of run time in which nothing was done, over the last few.
    pub fn look(&mut self) -> f64 {
        let before = thread_cpu_ns();
        std::hint::black_box(work(ROUNDS, before));
        self.note(thread_cpu_ns().saturating_sub(before).max(1))
    }

    fn note(&mut self, took_ns: u64) -> f64 {
        self.best = Some(self.best.map_or(took_ns, |b| b.min(took_ns)));
        self.recent.push_back(took_ns);
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
        let (Some(best), true) = (self.best, self.recent.len() == WINDOW) else { return 0.0 };
        // Without the slowest two: a single interrupt or page fault is no steal.
        let mut sorted: Vec<u64> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        let kept = &sorted[..WINDOW - 2];
        let mean = kept.iter().sum::<u64>() as f64 / kept.len() as f64;
        (1.0 - best as f64 / mean).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_probes_show_and_a_single_one_does_not() {
        let mut probe = Probe::default();
        let last = (0..40).map(|i| probe.note(if i == 39 { 1_000_000 } else { 20_000 })).last().unwrap();
        assert!(last < 0.01, "{last}");
        let last = (0..40).map(|_| probe.note(50_000)).last().unwrap();
        assert!((last - 0.6).abs() < 0.01, "{last}");
    }

    #[test]
    fn a_probe_of_this_machine_is_a_share() {
        let mut probe = Probe::default();
        assert!((0..50).map(|_| probe.look()).all(|s| (0.0..=1.0).contains(&s)));
    }
}
