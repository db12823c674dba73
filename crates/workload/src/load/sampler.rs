//! Exact fulfilment of known loads: what they got by the kernel's own account, over what they want.

use std::fs::File;

use evenkeel_linux::schedstat;
use serde::{Deserialize, Serialize};

use crate::burn::monotonic_ns;

/// A thread whose wish for CPU time is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    pub pid: u32,
    pub tid: u32,
    /// CPU time it wants, percent of ONE CPU.
    pub wanted_pct: f64,
}

/// Reads `schedstat` of known loads through descriptors kept open (about 1 us each).
#[derive(Debug)]
pub struct LoadSampler {
    tasks: Vec<(Known, Option<File>)>,
}

/// Counters of all threads of a [`LoadSampler`] at about one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Per thread, in order: `CLOCK_MONOTONIC`, time run and time waited, nanoseconds; `None` for one that is gone.
    pub tasks: Vec<Option<(u64, u64, u64)>>,
}

/// One thread between two readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowTask {
    pub known: Known,
    /// CPU time got, percent of ONE CPU.
    pub got_pct: f64,
    /// Time waited for a CPU, percent of the window.
    pub waited_pct: f64,
}

impl LoadSampler {
    /// Opens the counters; a thread that is gone already is kept, and never read.
    pub fn new(known: impl IntoIterator<Item = Known>) -> Self {
        let open = |k: &Known| File::open(format!("/proc/{}/task/{}/schedstat", k.pid, k.tid)).ok();
        Self {
            tasks: known
                .into_iter()
                .map(|k| {
                    let file = open(&k);
                    (k, file)
                })
                .collect(),
        }
    }

    /// Reads all counters. The kernel brings a running thread's up to date every tick (1 to 10 ms).
    pub fn read(&self) -> Reading {
        let read = |file: &File| {
            let at = monotonic_ns();
            let read = schedstat::read_open(file)?;
            Some((at, read.ran_ns, read.waited_ns))
        };
        Reading { tasks: self.tasks.iter().map(|(_, file)| file.as_ref().and_then(read)).collect() }
    }

    /// What each thread that lived through the window got.
    pub fn window(&self, from: &Reading, to: &Reading) -> Vec<WindowTask> {
        let tasks = self.tasks.iter().zip(from.tasks.iter().zip(&to.tasks));
        tasks
            .filter_map(|((known, _), (from, to))| {
                let ((t0, ran0, waited0), (t1, ran1, waited1)) = ((*from)?, (*to)?);
                let wall = t1.checked_sub(t0).filter(|wall| *wall > 0)? as f64;
                Some(WindowTask {
                    known: known.clone(),
                    got_pct: ran1.checked_sub(ran0)? as f64 / wall * 100.0,
                    waited_pct: waited1.checked_sub(waited0)? as f64 / wall * 100.0,
                })
            })
            .collect()
    }

    /// The scope's fulfilment in a window: sum got / sum wanted; `None` when no task wanted anything.
    pub fn fulfilment(tasks: &[WindowTask]) -> Option<f64> {
        let wanted: f64 = tasks.iter().map(|t| t.known.wanted_pct).sum();
        (wanted > 0.0).then(|| tasks.iter().map(|t| t.got_pct).sum::<f64>() / wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(pid: u32, wanted_pct: f64) -> Known {
        Known { pid, tid: pid, wanted_pct }
    }

    #[test]
    fn fulfilment_is_what_was_got_over_what_was_wanted() {
        let gauge = LoadSampler {
            tasks: vec![(known(1, 20.0), None), (known(2, 60.0), None), (known(3, 50.0), None)],
        };
        let from = Reading { tasks: vec![Some((0, 0, 0)), Some((0, 5, 5)), None] };
        let to = Reading { tasks: vec![Some((1000, 200, 0)), Some((1000, 405, 305)), Some((1000, 1, 1))] };
        let window = gauge.window(&from, &to);
        // (20 + 40) / (20 + 60); the third did not live through the window
        assert_eq!(LoadSampler::fulfilment(&window), Some(0.75));
        assert!((window[1].waited_pct - 30.0).abs() < 1e-9);
        assert_eq!(LoadSampler::fulfilment(&[]), None);
        // A counter that ran backwards is unknown, not a negative rate.
        assert!(gauge.window(&to, &Reading { tasks: vec![Some((2000, 100, 0)), None, None] }).is_empty());
    }

    #[test]
    fn the_calling_thread_is_seen_to_work() {
        let me = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let gauge = LoadSampler::new([Known { pid: me, tid, wanted_pct: 100.0 }, known(0x7fff_fff0, 1.0)]);
        let from = gauge.read();
        crate::burn::burn(60_000_000);
        let window = gauge.window(&from, &gauge.read());
        assert_eq!(window.len(), 1);
        assert!(window[0].got_pct > 1.0 && window[0].got_pct < 110.0, "{window:?}");
    }
}
