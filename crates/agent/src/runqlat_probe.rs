//! Counts the waits for a CPU of some scopes by length.
//!
//! Where programs in the kernel can be had, one set of them counts every wait of all the scopes' processes
//! (`evenkeel_bpf::why`), those included that go on; processes that come later are added at the next observation. Time that a
//! quota holds a task back is part of a wait: whoever asks a service for something does not care why it has no CPU. Elsewhere the
//! tasks' schedstat counters are read ten times a second: they give the mean wait for each switch, and the 99th percentile of
//! those means is an estimate from below. Which of the two it is, [`RunqLatProbe::problem`] tells.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use evenkeel_base::{Histogram, Observation, TaskId, TaskView};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Probe, ScopeNumber, Waited, Watch, WatchOptions, scope_of};

use crate::guarantee::counters::Counters;
use crate::runq_latency::LEAST_AGE;

/// Scopes that one probe tells apart.
pub const MOST: usize = 64;

/// What counts the waits of scopes, which are numbers below [`MOST`].
#[derive(Debug)]
pub(crate) enum RunqLatProbe {
    /// Every wait. Boxed, for it is large.
    Exact(Box<Exact>),
    /// Means, from counters; why it is not exact.
    Means { why: String, scopes: BTreeMap<usize, (Counters, Histogram)> },
}

#[derive(Debug)]
pub(crate) struct Exact {
    probe: Probe,
    /// Processes with their start times, and whose they are.
    known: BTreeMap<(u32, u64), ScopeNumber>,
    last: Waited,
    started: Instant,
}

/// Scopes begin at 1 in the kernel.
const NOBODY: ScopeNumber = 0;

fn number(scope: usize) -> ScopeNumber {
    ScopeNumber::try_from(scope + 1).unwrap_or(NOBODY)
}

/// Every thread of the processes that these belong to.
pub(crate) fn of_processes<'a>(
    observation: &'a Observation,
    tasks: impl Iterator<Item = &'a TaskView>,
) -> Vec<&'a TaskView> {
    let processes: BTreeSet<u32> = tasks.map(|task| task.id.tgid).collect();
    observation.tasks.iter().filter(|task| processes.contains(&task.id.tgid)).collect()
}

impl Exact {
    fn start() -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let options = WatchOptions { waits_only: true, throttled_waits: true, ..WatchOptions::default() };
        let probe = Probe::start(&types, &Watch::Scopes, &options)?;
        Ok(Self { probe, known: BTreeMap::new(), last: Waited::default(), started: Instant::now() })
    }

    /// Waits since the last call. A wait belongs to the time in which it began; one that goes on counts with what it has
    /// lasted since then. Where cgroups found no room, their waits are missing until everything starts again.
    fn take(&mut self) -> Result<BTreeMap<usize, Histogram>, BpfError> {
        let now = self.probe.waited()?;
        let open = self.probe.open_waits()?;
        self.probe.begin_window()?;
        let mut sums: BTreeMap<usize, Histogram> = BTreeMap::new();
        let mut crowded = false;
        for (cell, waits) in now.since(&self.last).chain(open) {
            match scope_of(cell) {
                None => crowded = true,
                Some(NOBODY) => {}
                Some(scope) => sums.entry(usize::from(scope) - 1).or_default().merge(&waits),
            }
        }
        self.last = now;
        if crowded && self.started.elapsed() > LEAST_AGE {
            self.start_anew()?;
        }
        Ok(sums)
    }

    /// A scope's processes are these from now on, but for those that belong to another one still. The kernel's lists have room
    /// for some thousands, the ended ones included: when they are full, everything starts again.
    fn follow(&mut self, scope: ScopeNumber, processes: &BTreeSet<(u32, u64)>) -> Result<(), BpfError> {
        let left = self.known.iter().filter(|(id, of)| **of == scope && !processes.contains(*id));
        let left: Vec<_> = left.map(|(id, _)| (*id, NOBODY)).collect();
        let news = processes.iter().filter(|id| matches!(self.known.get(*id), None | Some(&NOBODY)));
        let news: Vec<_> = news.map(|id| (*id, scope)).collect();
        for (id, scope) in left.into_iter().chain(news) {
            self.known.insert(id, scope);
            if self.probe.put(id.0, id.1, scope).is_err() {
                return self.start_anew();
            }
        }
        Ok(())
    }

    fn start_anew(&mut self) -> Result<(), BpfError> {
        let mut known = std::mem::take(&mut self.known);
        known.retain(|_, scope| *scope != NOBODY);
        *self = Self::start()?;
        for (id, scope) in &known {
            self.probe.put(id.0, id.1, *scope)?;
        }
        self.known = known;
        Ok(())
    }
}

impl RunqLatProbe {
    /// Exact where it can be had; no task is followed yet.
    pub fn start() -> Self {
        match Exact::start() {
            Ok(exact) => Self::Exact(Box::new(exact)),
            Err(error) => Self::means(error.to_string()),
        }
    }

    /// Means from counters, and why they must do.
    pub fn means(why: String) -> Self {
        Self::Means { why, scopes: BTreeMap::new() }
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

    /// Waits since the last call by scope, those that had none left out; `None` where they could not be read.
    pub fn take(&mut self) -> Option<BTreeMap<usize, Histogram>> {
        match self {
            Self::Exact(exact) => match exact.take() {
                Ok(waits) => Some(waits),
                Err(error) => {
                    *self = Self::means(error.to_string());
                    None
                }
            },
            Self::Means { scopes, .. } => {
                Some(scopes.iter_mut().map(|(scope, (_, sum))| (*scope, std::mem::take(sum))).collect())
            }
        }
    }

    /// A scope's tasks are these from now on. Exact waits are counted by process: where some of a process's threads are meant, all of
    /// them are to be named.
    pub fn follow<'a>(&mut self, scope: usize, tasks: impl Iterator<Item = &'a TaskView>) {
        let failed = match self {
            Self::Exact(exact) => {
                let main = tasks.filter(|task| task.id.tid == task.id.tgid);
                let processes = main.map(|task| (task.id.tgid, task.id.start_time)).collect();
                exact.follow(number(scope), &processes).err()
            }
            Self::Means { scopes, .. } => {
                let (counters, _) = scopes.entry(scope).or_default();
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
        let Self::Means { scopes, .. } = self else { return };
        for (counters, sum) in scopes.values_mut() {
            let Some((_, changes)) = counters.read(now) else { continue };
            for change in changes.values().filter(|change| change.timeslices > 0) {
                let mean_ns = 1e9 * change.ended_s / change.timeslices as f64;
                sum.add_many(mean_ns as u64, change.timeslices);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_thread_stands_for_its_process_and_for_no_other() {
        let mut host = testing::observation(&[("/", None)]);
        let of = |tgid, tid| TaskView::of(TaskId { tgid, tid, start_time: 1 }, "t");
        host.tasks = vec![of(7, 7), of(7, 8), of(9, 9)];
        let tids = |at: usize| {
            of_processes(&host, host.tasks[at..=at].iter()).iter().map(|task| task.id.tid).collect::<Vec<_>>()
        };
        assert_eq!((tids(1), tids(0), tids(2)), (vec![7, 8], vec![7, 8], vec![9]));
    }
}
