//! How long containers' threads wait for a CPU each time, from BPF where that is to be had.

use std::collections::BTreeMap;

use evenkeel_base::Observation;
use evenkeel_bpf::why::{Histogram, Probe, Seen, Watch, WatchOptions};
use evenkeel_linux::Root;
use evenkeel_observe::Observer;
use evenkeel_report::ps::WaitsByContainer;

use crate::cli::why::{Names, waits};

/// The programs at work, then what they have seen; nothing where they cannot be.
pub enum Watching {
    At(Box<Probe>),
    Over(Box<Seen>),
    Not,
}

impl Watching {
    /// Loads the programs.
    pub fn start() -> Self {
        let started = evenkeel_bpf::load::kernel_types()
            .and_then(|types| Probe::start(&types, &Watch::All, &WatchOptions::default()));
        match started {
            Ok(probe) => Self::At(Box::new(probe)),
            Err(error) => {
                tracing::info!("no lengths of waits: {error}");
                Self::Not
            }
        }
    }

    pub fn stop(self) -> Self {
        match self {
            Self::At(probe) => match probe.finish() {
                Ok(seen) => Self::Over(Box::new(seen)),
                Err(error) => {
                    tracing::warn!("no lengths of waits: {error}");
                    Self::Not
                }
            },
            other => other,
        }
    }

    /// What containers have waited.
    pub fn by_container(
        self,
        root: &Root,
        observer: &Observer,
        observation: &Observation,
    ) -> WaitsByContainer {
        let Self::Over(seen) = self else { return None };
        let cpu = observer.hierarchies().and_then(|found| found.cpu.as_ref());
        let names = Names::read(root, cpu, observation);
        let mut sums: BTreeMap<u32, (Histogram, u64)> = BTreeMap::new();
        for cell in &seen.cells {
            let path = cell.cgroup.and_then(|id| names.path(id));
            let Some(container) = path.and_then(|path| names.container(path)) else { continue };
            let (histogram, longest) = sums.entry(container as u32).or_default();
            histogram.merge(&cell.waits);
            *longest = (*longest).max(cell.max_wait_ns);
        }
        Some(sums.into_iter().map(|(at, (histogram, longest))| (at, waits(&histogram, longest))).collect())
    }
}
