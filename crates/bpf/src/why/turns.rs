//! A watch that rests in between: nothing is attached then, so that it costs nothing.

use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues};

use super::collect::{self, map, reading};
use super::raw::{Counts, CpuState};
use super::{Probe, Seen, Waited, map_mut};
use crate::BpfError;

impl Probe {
    /// Ends a turn, and returns what was seen since it began: nothing is counted, and nothing costs anything, until
    /// [`Self::resume`]. Of a watch with [`super::WatchOptions::in_turns`].
    pub fn rest(&mut self) -> Result<(Seen, Waited), BpfError> {
        self.end()?;
        let end_ns = crate::monotonic_ns();
        self.links.clear();
        let seen = collect::collect(&self.ebpf, &self.config, self.cpus, (self.start_ns, end_ns))?;
        let waited = self.waited()?;
        self.forget()?;
        Ok((seen, waited))
    }

    /// Begins a turn, with sums of 0, and room for as many cgroups as at the first.
    pub fn resume(&mut self) -> Result<(), BpfError> {
        self.begin()
    }

    /// CPU that the programs have taken since the turn began, by CPU, ns. An estimate: every 127th call is timed.
    pub fn spent(&self) -> Result<Vec<u64>, BpfError> {
        let states: Array<&MapData, CpuState> = map(&self.ebpf, "cpus")?;
        (0..self.cpus).map(|cpu| states.get(&cpu, 0).map(|state| state.spent()).map_err(reading)).collect()
    }

    /// Everything that was counted, and whom it was counted for.
    fn forget(&mut self) -> Result<(), BpfError> {
        let slots: HashMap<&MapData, u32, u64> = map(&self.ebpf, "slots")?;
        let last = self.config.cells.saturating_sub(1);
        let used: Vec<u32> = slots.keys().filter_map(Result::ok).chain([last]).collect();
        let clearing = |error| BpfError::refused("clearing", error);
        let mut histograms: PerCpuArray<_, Counts> = map_mut(&mut self.ebpf, "histograms")?;
        for cell in used {
            let none = PerCpuValues::try_from(vec![Counts::NONE; self.cpus as usize])?;
            histograms.set(cell, none, 0).map_err(clearing)?;
        }
        self.renew_cpus()?;
        self.run("forget")?;
        self.config.used = 0;
        Ok(())
    }
}
