//! Differences between two sorted lists of counters, in columns.
//!
//! Two consecutive samples hold nearly the same rows in the same order. Walking both in step, only rows that appear,
//! disappear or change are written: how many untouched rows to pass over, what happened, and the changed fields as
//! differences. Each of these goes to a column of its own, where zstd finds the repetitions.

use std::cmp::Ordering;

use evenkeel_base::{CpuTimes, GroupSample, TaskId, TaskSample};

use crate::bytes::{self, Column, Damaged};

/// Most fields a row may have: they share a byte with [`NEW`] and [`GONE`].
const MAX_FIELDS: usize = 6;
const NEW: u8 = 0x40;
const GONE: u8 = 0x80;

/// A row of counters with an identity by which lists of it are ordered.
pub trait Row: Clone + PartialEq {
    const FIELDS: usize;

    /// Order of identities; equal means the same row later.
    fn order(&self, other: &Self) -> Ordering;
    /// The counters. Those beyond [`Self::FIELDS`] are ignored.
    fn fields(&self) -> [Option<u64>; MAX_FIELDS];
    /// Replaces the counters.
    fn set_fields(&mut self, fields: [Option<u64>; MAX_FIELDS]) -> Result<(), Damaged>;
    /// Writes the identity, given the last one written.
    fn put_key(&self, last: Option<&Self>, key: &mut Vec<u8>);
    /// Reads an identity written by [`Self::put_key`]; counters are to be set after.
    fn key(last: Option<&Self>, key: &mut Column) -> Result<Self, Damaged>;
}

/// Lengths of all columns of a [`Writer`] at some time.
pub type Mark = [usize; 4 + MAX_FIELDS];

/// Columns being written.
#[derive(Debug, Default)]
pub struct Writer {
    counts: Vec<u8>,
    gaps: Vec<u8>,
    events: Vec<u8>,
    keys: Vec<u8>,
    fields: [Vec<u8>; MAX_FIELDS],
}

impl Writer {
    /// Writes how `to` differs from `from`; both are ordered and without duplicates. `appeared` is called for each
    /// row that `from` does not have, in order.
    pub fn push<R: Row>(&mut self, from: &[R], to: &[R], mut appeared: impl FnMut(&R)) {
        let (mut old, mut new) = (from.iter().peekable(), to.iter().peekable());
        let mut gap = 0u128;
        let mut count = 0u128;
        let mut last: Option<&R> = None;
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.order(new),
            };
            let event = match order {
                Ordering::Less => {
                    old.next();
                    GONE
                }
                Ordering::Greater => {
                    let Some(row) = new.next() else { break };
                    row.put_key(last, &mut self.keys);
                    appeared(row);
                    last = Some(row);
                    NEW | self.put_fields::<R>([Some(0); MAX_FIELDS], row.fields())
                }
                Ordering::Equal => match (old.next(), new.next()) {
                    (Some(old), Some(new)) => self.put_fields::<R>(old.fields(), new.fields()),
                    _ => break,
                },
            };
            if event == 0 {
                gap += 1;
                continue;
            }
            bytes::put(&mut self.gaps, gap);
            self.events.push(event);
            count += 1;
            gap = 0;
        }
        bytes::put(&mut self.counts, count);
    }

    fn put_fields<R: Row>(&mut self, from: [Option<u64>; MAX_FIELDS], to: [Option<u64>; MAX_FIELDS]) -> u8 {
        let mut mask = 0;
        for (index, column) in self.fields.iter_mut().enumerate().take(R::FIELDS) {
            if from[index] != to[index] {
                mask |= 1 << index;
                bytes::put_option(column, from[index].unwrap_or(0), to[index]);
            }
        }
        mask
    }

    fn columns(&self) -> impl Iterator<Item = &Vec<u8>> {
        [&self.counts, &self.gaps, &self.events, &self.keys].into_iter().chain(&self.fields)
    }

    /// Appends what was written to all columns since `from`, with its lengths.
    pub fn finish(&self, from: &Mark, out: &mut Vec<u8>) {
        for (column, from) in self.columns().zip(from) {
            let column = column.get(*from..).unwrap_or_default();
            bytes::put(out, column.len() as u128);
            out.extend_from_slice(column);
        }
    }

    /// How long the columns are now.
    pub fn mark(&self) -> Mark {
        let mut mark = Mark::default();
        mark.iter_mut().zip(self.columns()).for_each(|(mark, column)| *mark = column.len());
        mark
    }

    /// Bytes held, uncompressed.
    pub fn len(&self) -> usize {
        self.columns().map(Vec::len).sum()
    }
}

/// Columns being read.
#[derive(Debug)]
pub struct Reader {
    counts: Column,
    gaps: Column,
    events: Column,
    keys: Column,
    fields: [Column; MAX_FIELDS],
}

impl Reader {
    /// Takes the columns [`Writer::finish`] wrote.
    pub fn new(block: &mut Column) -> Result<Self, Damaged> {
        let mut next = || block.chunk().map(Column::new);
        Ok(Self {
            counts: next()?,
            gaps: next()?,
            events: next()?,
            keys: next()?,
            fields: [next()?, next()?, next()?, next()?, next()?, next()?],
        })
    }

    /// Turns the rows of one sample into those of the next. `appeared` is called as in [`Writer::push`].
    pub fn advance<R: Row>(
        &mut self,
        rows: &mut Vec<R>,
        mut appeared: impl FnMut(&R),
    ) -> Result<(), Damaged> {
        const BEYOND: Damaged = Damaged("a row is changed that is not there");
        let count = self.counts.number()?;
        let mut out = Vec::with_capacity(rows.len() + 4);
        let mut old = std::mem::take(rows).into_iter();
        let mut last: Option<R> = None;
        for _ in 0..count {
            let gap = self.gaps.number()?;
            if gap > old.len() as u128 {
                return Err(BEYOND);
            }
            out.extend(old.by_ref().take(gap as usize));
            let event = self.events.byte()?;
            if event == GONE {
                old.next().ok_or(BEYOND)?;
                continue;
            }
            let (mut row, before) = if event & NEW != 0 {
                let row = R::key(last.as_ref(), &mut self.keys)?;
                appeared(&row);
                last = Some(row.clone());
                (row, [Some(0); MAX_FIELDS])
            } else {
                let row = old.next().ok_or(BEYOND)?;
                let before = row.fields();
                (row, before)
            };
            let mut fields = before;
            for (index, column) in self.fields.iter_mut().enumerate().take(R::FIELDS) {
                if event & (1 << index) != 0 {
                    fields[index] = column.option(before[index].unwrap_or(0))?;
                }
            }
            row.set_fields(fields)?;
            out.push(row);
        }
        out.extend(old);
        *rows = out;
        Ok(())
    }
}

const MISSING: Damaged = Damaged("a counter that always exists is missing");

impl Row for TaskSample {
    const FIELDS: usize = 6;

    fn order(&self, other: &Self) -> Ordering {
        self.id.cmp(&other.id)
    }

    fn fields(&self) -> [Option<u64>; MAX_FIELDS] {
        [
            Some(self.ran_ns),
            self.waited_ns,
            self.timeslices,
            self.cpu.map(u64::from),
            self.voluntary,
            self.involuntary,
        ]
    }

    fn set_fields(&mut self, fields: [Option<u64>; MAX_FIELDS]) -> Result<(), Damaged> {
        let [ran, waited_ns, timeslices, cpu, voluntary, involuntary] = fields;
        let cpu = cpu.map(u32::try_from).transpose().map_err(|_| Damaged("a CPU number is too large"))?;
        *self = Self {
            id: self.id,
            cpu,
            ran_ns: ran.ok_or(MISSING)?,
            waited_ns,
            timeslices,
            voluntary,
            involuntary,
        };
        Ok(())
    }

    fn put_key(&self, last: Option<&Self>, key: &mut Vec<u8>) {
        let zero = TaskId { tgid: 0, tid: 0, start_time: 0 };
        let last = last.map_or(zero, |row| row.id);
        bytes::put_delta(key, u64::from(last.tgid), u64::from(self.id.tgid));
        bytes::put_delta(key, u64::from(self.id.tgid), u64::from(self.id.tid));
        bytes::put_delta(key, last.start_time, self.id.start_time);
    }

    fn key(last: Option<&Self>, key: &mut Column) -> Result<Self, Damaged> {
        const LARGE: Damaged = Damaged("a task number is too large");
        let last = last.map_or(TaskId { tgid: 0, tid: 0, start_time: 0 }, |row| row.id);
        let tgid = key.delta(u64::from(last.tgid))?;
        let tid = key.delta(tgid)?;
        let start_time = key.delta(last.start_time)?;
        Ok(Self {
            id: TaskId {
                tgid: u32::try_from(tgid).map_err(|_| LARGE)?,
                tid: u32::try_from(tid).map_err(|_| LARGE)?,
                start_time,
            },
            cpu: Some(0),
            ran_ns: 0,
            waited_ns: Some(0),
            timeslices: Some(0),
            voluntary: Some(0),
            involuntary: Some(0),
        })
    }
}

impl Row for CpuTimes {
    const FIELDS: usize = 4;

    fn order(&self, other: &Self) -> Ordering {
        self.cpu.cmp(&other.cpu)
    }

    fn fields(&self) -> [Option<u64>; MAX_FIELDS] {
        [Some(self.busy_ns), Some(self.idle_ns), Some(self.irq_ns), self.steal_ns, None, None]
    }

    fn set_fields(&mut self, fields: [Option<u64>; MAX_FIELDS]) -> Result<(), Damaged> {
        let [busy, idle, irq, steal_ns, ..] = fields;
        *self = Self {
            cpu: self.cpu,
            busy_ns: busy.ok_or(MISSING)?,
            idle_ns: idle.ok_or(MISSING)?,
            irq_ns: irq.ok_or(MISSING)?,
            steal_ns,
        };
        Ok(())
    }

    fn put_key(&self, last: Option<&Self>, key: &mut Vec<u8>) {
        bytes::put_delta(key, last.map_or(0, |row| u64::from(row.cpu)), u64::from(self.cpu));
    }

    fn key(last: Option<&Self>, key: &mut Column) -> Result<Self, Damaged> {
        let cpu = key.delta(last.map_or(0, |row| u64::from(row.cpu)))?;
        let cpu = u32::try_from(cpu).map_err(|_| Damaged("a CPU number is too large"))?;
        Ok(Self { cpu, busy_ns: 0, idle_ns: 0, irq_ns: 0, steal_ns: Some(0) })
    }
}

impl Row for GroupSample {
    const FIELDS: usize = 4;

    fn order(&self, other: &Self) -> Ordering {
        self.path.cmp(&other.path)
    }

    fn fields(&self) -> [Option<u64>; MAX_FIELDS] {
        [self.usage_ns, self.nr_periods, self.nr_throttled, self.throttled_ns, None, None]
    }

    fn set_fields(&mut self, fields: [Option<u64>; MAX_FIELDS]) -> Result<(), Damaged> {
        [self.usage_ns, self.nr_periods, self.nr_throttled, self.throttled_ns] =
            [fields[0], fields[1], fields[2], fields[3]];
        Ok(())
    }

    fn put_key(&self, _last: Option<&Self>, key: &mut Vec<u8>) {
        bytes::put_text(key, &self.path);
    }

    fn key(_last: Option<&Self>, key: &mut Column) -> Result<Self, Damaged> {
        Ok(Self {
            path: key.text()?,
            usage_ns: Some(0),
            nr_periods: Some(0),
            nr_throttled: Some(0),
            throttled_ns: Some(0),
        })
    }
}
