//! A block: some consecutive samples, complete in itself.
//!
//! The first sample is written whole, later ones as differences (see [`crate::rows`]), so an idle task costs nothing
//! after the first. Names are in the block too: a damaged block costs its own minute and nothing else, old blocks can
//! be dropped without bookkeeping, and the history of a host that forks all day does not grow a table of dead tasks.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use evenkeel_base::{Sample, TaskId};
use serde::{Deserialize, Serialize};

use crate::bytes::{self, Column, Damaged};
use crate::rows::{self, Reader, Row, Writer};

/// First byte of a block, before compression.
const FORMAT: u8 = 1;
/// A block says how large it is uncompressed; more than this is damage, not data.
const MAX_BLOCK_BYTES: usize = 256 << 20;
/// Memory is set aside at once for a block that is at most so many times as large as it is compressed.
const LIKELY_RATIO: usize = 32;
/// zstd's own default; higher levels win 5 % here for several times the CPU. What they do is left out of packages (`static_build` in
/// `scripts/lib.sh`).
const ZSTD_LEVEL: i32 = 3;

/// A part of a block lives for seconds: what is written soon is worth more than what is small.
const PART_ZSTD_LEVEL: i32 = 1;

/// What is known of a task beyond its counters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct TaskInfo {
    pub comm: String,
    /// cgroup path below the cpu controller's mount.
    pub group: Option<String>,
    /// Container's name.
    pub container: Option<String>,
    /// Pod, `namespace/name`.
    pub pod: Option<String>,
}

/// Names of tasks.
pub type Infos = HashMap<TaskId, Arc<TaskInfo>>;

/// How much of a block being filled was there at some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    samples: u32,
    times: usize,
    cpus: rows::Mark,
    tasks: rows::Mark,
    groups: rows::Mark,
    appeared: usize,
}

impl Mark {
    pub fn samples(&self) -> u32 {
        self.samples
    }
}

/// A block being filled.
#[derive(Debug, Default)]
pub struct BlockWriter {
    times: Vec<u8>,
    cpus: Writer,
    tasks: Writer,
    groups: Writer,
    appeared: Vec<TaskId>,
    last: Sample,
    samples: u32,
    first_wall_ns: u64,
    first_monotonic_ns: u64,
}

impl BlockWriter {
    /// Adds a sample. Rows out of order are put in order; of rows with the same identity the first is kept.
    pub fn push(&mut self, sample: &Sample) {
        let mut next = sample.clone();
        order(&mut next.cpus);
        order(&mut next.tasks);
        order(&mut next.groups);
        if self.samples == 0 {
            self.first_wall_ns = next.wall_ns;
            self.first_monotonic_ns = next.monotonic_ns;
        }
        bytes::put_delta(&mut self.times, self.last.monotonic_ns, next.monotonic_ns);
        bytes::put_delta(
            &mut self.times,
            self.last.wall_ns.wrapping_sub(self.last.monotonic_ns),
            next.wall_ns.wrapping_sub(next.monotonic_ns),
        );
        self.cpus.push(&self.last.cpus, &next.cpus, |_| ());
        let appeared = &mut self.appeared;
        self.tasks.push(&self.last.tasks, &next.tasks, |row| appeared.push(row.id));
        self.groups.push(&self.last.groups, &next.groups, |_| ());
        self.last = next;
        self.samples += 1;
    }

    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Wall clock of the first and last sample, nanoseconds since 1970.
    pub fn wall_ns(&self) -> (u64, u64) {
        (self.first_wall_ns, self.last.wall_ns)
    }

    /// Time from the first to the last sample, nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.last.monotonic_ns.saturating_sub(self.first_monotonic_ns)
    }

    pub fn last(&self) -> &Sample {
        &self.last
    }

    /// Bytes held, uncompressed.
    pub fn held_bytes(&self) -> usize {
        self.times.len() + self.cpus.len() + self.tasks.len() + self.groups.len()
    }

    /// How much there is now.
    pub fn mark(&self) -> Mark {
        Mark {
            samples: self.samples,
            times: self.times.len(),
            cpus: self.cpus.mark(),
            tasks: self.tasks.mark(),
            groups: self.groups.mark(),
            appeared: self.appeared.len(),
        }
    }

    /// The compressed block.
    pub fn finish(&self, infos: &Infos) -> std::io::Result<Vec<u8>> {
        zstd::bulk::compress(&self.since(&Mark::default(), infos), ZSTD_LEVEL)
    }

    /// What was added since, compressed: of the form of a block, but its differences go on from the sample before. See
    /// [`BlockReader::follow`].
    pub fn part(&self, from: &Mark, infos: &Infos) -> std::io::Result<Vec<u8>> {
        zstd::bulk::compress(&self.since(from, infos), PART_ZSTD_LEVEL)
    }

    fn since(&self, from: &Mark, infos: &Infos) -> Vec<u8> {
        let mut out = vec![FORMAT];
        bytes::put(&mut out, u128::from(self.samples.saturating_sub(from.samples)));
        let times = self.times.get(from.times..).unwrap_or_default();
        bytes::put(&mut out, times.len() as u128);
        out.extend_from_slice(times);
        self.cpus.finish(&from.cpus, &mut out);
        self.tasks.finish(&from.tasks, &mut out);
        self.groups.finish(&from.groups, &mut out);

        // Names: a table of texts, a table of distinct infos, and for every task that appeared its info.
        let mut texts = Table::default();
        let mut distinct = Table::default();
        let mut per_task = Vec::new();
        for id in self.appeared.get(from.appeared..).unwrap_or_default() {
            let index = infos.get(id).map_or(0, |info| 1 + distinct.index(info.as_ref().clone()));
            bytes::put(&mut per_task, index as u128);
        }
        let mut info_columns = Vec::new();
        for info in &distinct.entries {
            bytes::put(&mut info_columns, texts.index(info.comm.clone()) as u128);
            for text in [&info.group, &info.container, &info.pod] {
                let index = text.as_ref().map_or(0, |text| 1 + texts.index(text.clone()));
                bytes::put(&mut info_columns, index as u128);
            }
        }
        bytes::put(&mut out, texts.entries.len() as u128);
        for text in &texts.entries {
            bytes::put_text(&mut out, text);
        }
        bytes::put(&mut out, distinct.entries.len() as u128);
        out.extend_from_slice(&info_columns);
        bytes::put(&mut out, per_task.len() as u128);
        out.extend_from_slice(&per_task);
        out
    }
}

fn order<R: Row>(rows: &mut Vec<R>) {
    if rows.windows(2).any(|pair| pair[0].order(&pair[1]).is_ge()) {
        rows.sort_by(Row::order);
        rows.dedup_by(|a, b| a.order(b).is_eq());
    }
}

#[derive(Debug)]
struct Table<T> {
    entries: Vec<T>,
    index: HashMap<T, usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), index: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Table<T> {
    fn index(&mut self, entry: T) -> usize {
        let next = self.entries.len();
        *self.index.entry(entry).or_insert_with_key(|entry| {
            self.entries.push(entry.clone());
            next
        })
    }
}

/// A block being read, sample by sample.
#[derive(Debug)]
pub struct BlockReader {
    times: Column,
    cpus: Reader,
    tasks: Reader,
    groups: Reader,
    infos: Vec<Arc<TaskInfo>>,
    per_task: Column,
    names: Infos,
    sample: Sample,
    left: u32,
}

impl BlockReader {
    pub fn new(compressed: &[u8]) -> Result<Self, Damaged> {
        let mut bytes = Vec::new();
        unpack(compressed, &mut bytes)?;
        let mut block = Column::new(bytes);
        if block.byte()? != FORMAT {
            return Err(Damaged("its format is not known to this version"));
        }
        let left = block.small()?;
        let times = Column::new(block.chunk()?);
        let cpus = Reader::new(&mut block)?;
        let tasks = Reader::new(&mut block)?;
        let groups = Reader::new(&mut block)?;
        const NO_TEXT: Damaged = Damaged("a name is not in its table");
        let texts = (0..block.small()?).map(|_| block.text()).collect::<Result<Vec<_>, _>>()?;
        let text = |index: u64| -> Result<String, Damaged> {
            texts.get(usize::try_from(index).map_err(|_| NO_TEXT)?).cloned().ok_or(NO_TEXT)
        };
        let infos = (0..block.small()?)
            .map(|_| {
                let comm = text(block.word()?)?;
                let mut optional = || match block.word()? {
                    0 => Ok(None),
                    index => text(index - 1).map(Some),
                };
                Ok(Arc::new(TaskInfo { comm, group: optional()?, container: optional()?, pod: optional()? }))
            })
            .collect::<Result<Vec<_>, Damaged>>()?;
        let per_task = Column::new(block.chunk()?);
        let sample = Sample::default();
        Ok(Self { times, cpus, tasks, groups, infos, per_task, names: Infos::new(), sample, left })
    }

    /// Goes on with the part that was written after this one, see [`BlockWriter::part`].
    pub fn follow(&mut self, compressed: &[u8]) -> Result<(), Damaged> {
        let before = std::mem::replace(self, Self::new(compressed)?);
        self.sample = before.sample;
        self.names = before.names;
        Ok(())
    }

    /// Goes to the next sample and returns it; `None` after the last.
    pub fn advance(&mut self) -> Result<Option<&Sample>, Damaged> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let sample = &mut self.sample;
        let offset = sample.wall_ns.wrapping_sub(sample.monotonic_ns);
        sample.monotonic_ns = self.times.delta(sample.monotonic_ns)?;
        sample.wall_ns = sample.monotonic_ns.wrapping_add(self.times.delta(offset)?);
        self.cpus.advance(&mut sample.cpus, |_| ())?;
        let mut appeared = Vec::new();
        self.tasks.advance(&mut sample.tasks, |row| appeared.push(row.id))?;
        self.groups.advance(&mut sample.groups, |_| ())?;
        for id in appeared {
            if let Some(index) = self.per_task.small()?.checked_sub(1) {
                let info = self.infos.get(index as usize).ok_or(Damaged("a name is not in its table"))?;
                self.names.insert(id, Arc::clone(info));
            }
        }
        Ok(Some(&self.sample))
    }

    /// Names of the tasks met so far.
    pub fn names(&self) -> &Infos {
        &self.names
    }
}

/// Appends what a block was before it was compressed.
fn unpack(compressed: &[u8], into: &mut Vec<u8>) -> Result<(), Damaged> {
    let size = zstd::zstd_safe::get_frame_content_size(compressed)
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok())
        .filter(|size| *size <= MAX_BLOCK_BYTES)
        .ok_or(Damaged("its size is not credible"))?;
    // That is only a claim: a damaged block of eleven bytes may claim the largest.
    into.reserve(size.min(LIKELY_RATIO * compressed.len()));
    let read = zstd::stream::read::Decoder::with_buffer(compressed)
        .and_then(|decoder| decoder.take(size as u64 + 1).read_to_end(into))
        .map_err(|_| Damaged("it cannot be decompressed"))?;
    if read == size { Ok(()) } else { Err(Damaged("it is not as long as it says")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_claims_to_be_large_takes_no_memory_for_it() {
        // A frame's head that says 252,140,800 bytes, and nothing behind it. Found by `make fuzz`.
        let claim = [0x28, 0xb5, 0x2f, 0xfd, 0xb6, 0x47, 0x0b, 0xc5, 0x5c, 0x07, 0x0f];
        let mut bytes = Vec::new();
        assert!(unpack(&claim, &mut bytes).is_err());
        assert!(bytes.capacity() < 1 << 20, "{}", bytes.capacity());
        let whole = zstd::bulk::compress(&[7; 100_000], ZSTD_LEVEL).unwrap();
        unpack(&whole, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100_000]);
        assert!(unpack(&whole[..whole.len() - 1], &mut Vec::new()).is_err());
    }
}
