//! Counts the waits for a CPU of one scope by length.
//!
//! Where programs in the kernel can be had, each scope has its own set, which counts every wait of its processes
//! (`evenkeel_bpf::why`, throttled time left out), those included that go on; processes that come later are added at the next
//! observation. Elsewhere the tasks' schedstat counters are read ten times a second: they give the mean wait for each switch, and the 99th percentile of
//! those means is an estimate from below. Which of the two it is, [`RunqLatProbe::problem`] tells.

use std::collections::BTreeSet;
use std::time::Instant;

use evenkeel_base::{Histogram, TaskId, TaskView};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Probe, Waited, Watch, WatchOptions};

use crate::guarantee::counters::Counters;

/// What counts the waits of one scope.
#[derive(Debug)]
pub(crate) enum RunqLatProbe {
    /// Every wait. Boxed, for it is large.
    Exact(Box<Exact>),
    /// Means, from counters; why it is not exact.
    Means { why: String, counters: Counters, sum: Histogram },
}

#[derive(Debug)]
pub(crate) struct Exact {
    probe: Probe,
    known: BTreeSet<(u32, u64)>,
    last: Waited,
}

impl Exact {
    fn start(processes: BTreeSet<(u32, u64)>) -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        // Entries that are nobody have the kernel look into the list: it may grow.
        let all = processes.iter().copied().chain([(0, 0), (0, 0)]).collect();
        let probe = Probe::start(
            &types,
            &Watch::Processes(all),
            &WatchOptions { waits_only: true, ..WatchOptions::default() },
        )?;
        Ok(Self { probe, known: processes, last: Waited::default() })
    }

    /// Waits since the last call. A wait belongs to the time in which it began; one that goes on counts with what it has
    /// lasted since then.
    fn take(&mut self) -> Result<Histogram, BpfError> {
        let now = self.probe.waited()?;
        let open = self.probe.open_waits()?;
        self.probe.begin_window()?;
        let mut sum = Histogram::default();
        now.since(&self.last).chain(open).for_each(|(_, waits)| sum.merge(&waits));
        self.last = now;
        Ok(sum)
    }

    /// Adds processes that are new. The kernel's list has room for some thousands, the ended ones included: when it is
    /// full, everything starts anew.
    fn follow(&mut self, processes: BTreeSet<(u32, u64)>) -> Result<(), BpfError> {
        for id in processes.difference(&self.known) {
            if self.probe.add_process(id.0, id.1).is_err() {
                *self = Self::start(processes)?;
                return Ok(());
            }
        }
        self.known.extend(processes);
        Ok(())
    }
}

impl RunqLatProbe {
    /// Exact where it can be had; nobody is followed yet.
    pub fn start() -> Self {
        match Exact::start(BTreeSet::new()) {
            Ok(exact) => Self::Exact(Box::new(exact)),
            Err(error) => Self::means(error.to_string()),
        }
    }

    /// Means from counters, and why they must do.
    pub fn means(why: String) -> Self {
        Self::Means { why, counters: Counters::default(), sum: Histogram::default() }
    }

    /// Why it is not exact; `None` if it is.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Exact(_) => None,
            Self::Means { why, .. } => Some(why),
        }
    }

    /// What is to be said of waits that are not exact; `None` if they are.
    pub fn caveat(&self) -> Option<String> {
        let why = self.problem()?;
        Some(format!("means for each switch from /proc, less than a 99th percentile: {why}"))
    }

    /// Waits since the last call; `None` where they could not be read.
    pub fn take(&mut self) -> Option<Histogram> {
        match self {
            Self::Exact(exact) => match exact.take() {
                Ok(waits) => Some(waits),
                Err(error) => {
                    *self = Self::means(error.to_string());
                    None
                }
            },
            Self::Means { sum, .. } => Some(std::mem::take(sum)),
        }
    }

    /// Follows these tasks from now on.
    pub fn follow<'a>(&mut self, tasks: impl Iterator<Item = &'a TaskView>) {
        let failed = match self {
            Self::Exact(exact) => {
                let main = tasks.filter(|task| task.id.tid == task.id.tgid);
                exact.follow(main.map(|task| (task.id.tgid, task.id.start_time)).collect()).err()
            }
            Self::Means { counters, .. } => {
                counters.follow(&tasks.map(|task| task.id).collect::<BTreeSet<TaskId>>());
                None
            }
        };
        if let Some(error) = failed {
            *self = Self::means(error.to_string());
        }
    }

    /// Reads counters, where waits come from them; to be called several times a second.
    pub fn tick(&mut self, now: Instant) {
        let Self::Means { counters, sum, .. } = self else { return };
        let Some((_, changes)) = counters.read(now) else { return };
        for change in changes.values().filter(|change| change.timeslices > 0) {
            let mean_ns = 1e9 * change.ended_s / change.timeslices as f64;
            sum.add_many(mean_ns as u64, change.timeslices);
        }
    }
}
