//! Waits so far, while the programs are at work.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray};
use evenkeel_base::Histogram;

use super::collect::{map, reading};
use super::raw::{BUCKETS, Counts};
use crate::BpfError;

/// Counts of waits by length and cgroup up to some instant, as the kernel has them: they go round at 2^32.
#[derive(Debug, Clone, Default)]
pub struct Waited {
    /// By inode number of the cgroup's directory; `None` for those that found no room.
    cells: BTreeMap<Option<u64>, [u32; BUCKETS]>,
}

impl Waited {
    /// What has ended since an earlier instant, by inode number of the cgroup's directory (`None`: of those that found
    /// no room). cgroups without any are left out.
    pub fn since<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = (Option<u64>, Histogram)> + 'a {
        self.cells.iter().filter_map(|(id, now)| {
            let before = earlier.cells.get(id).unwrap_or(&[0; BUCKETS]);
            let mut grown = [0; BUCKETS];
            for ((grown, now), before) in grown.iter_mut().zip(now).zip(before) {
                *grown = now.wrapping_sub(*before);
            }
            let mut histogram = Histogram::default();
            histogram.add_counts(&grown);
            (histogram.total() > 0).then_some((*id, histogram))
        })
    }
}

pub(super) fn read(ebpf: &Ebpf, cells: u32) -> Result<Waited, BpfError> {
    let slots: HashMap<&MapData, u32, u64> = map(ebpf, "slots")?;
    let histograms: PerCpuArray<&MapData, Counts> = map(ebpf, "histograms")?;
    let known = slots.iter().filter_map(Result::ok).map(|(cell, id)| (cell, Some(id)));
    let mut waited = Waited::default();
    for (cell, id) in known.chain([(cells.saturating_sub(1), None)]) {
        let sums = waited.cells.entry(id).or_insert([0; BUCKETS]);
        for counts in histograms.get(&cell, 0).map_err(reading)?.iter() {
            for (sum, count) in sums.iter_mut().zip(counts.0) {
                *sum = sum.wrapping_add(count);
            }
        }
    }
    Ok(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(cells: &[(Option<u64>, usize, u32)]) -> Waited {
        let mut waited = Waited::default();
        for (id, bucket, count) in cells {
            waited.cells.entry(*id).or_insert([0; BUCKETS])[*bucket] = *count;
        }
        waited
    }

    #[test]
    fn counts_that_went_round_are_told_apart_and_new_cgroups_begin_at_none() {
        let before = waited(&[(Some(7), 80, u32::MAX - 1), (Some(8), 80, 5)]);
        let after = waited(&[(Some(7), 80, 3), (Some(8), 80, 5), (None, 90, 2)]);
        let grown: Vec<_> = after.since(&before).map(|(id, waits)| (id, waits.total())).collect();
        assert_eq!(grown, [(None, 2), (Some(7), 5)]);
    }
}
