//! The journal as the actuator uses it: what is on disk, what must still go there, and keeping it small.

use evenkeel_base::{BootId, CpuSet, Setting, Target};

use crate::error::ActuateError;
use crate::journal::{Header, Record, VERSION, encode};
use crate::kernel::{Kernel, KernelError, Namespaces};
use crate::medium::{Medium, Survives, wall_seconds};
use crate::undo::{Entry, State};

/// Size from which on a journal may be rewritten, bytes.
const COMPACT_FROM: usize = 1 << 20;

/// The journal of a living actuator.
pub(crate) struct Ledger {
    medium: Box<dyn Medium>,
    header: Header,
    bytes: usize,
    /// Size after the last rewriting.
    compacted: usize,
    sequence: u64,
}

impl Ledger {
    /// Starts a journal that holds these entries, in place of the one that is there.
    pub fn start(
        mut medium: Box<dyn Medium>,
        boot: BootId,
        namespaces: Namespaces,
        remaining: &[Entry],
    ) -> Result<Self, ActuateError> {
        let (pid, since) = (std::process::id(), wall_seconds());
        let header = Header { version: VERSION, boot, pid, since, namespaces };
        let bytes = snapshot(&header, remaining);
        let survives = if remaining.is_empty() { Survives::Kill } else { Survives::Boot };
        medium
            .replace(&bytes, survives)
            .map_err(|error| ActuateError::Journal { path: medium.name(), error })?;
        let sequence = remaining.iter().map(|entry| entry.sequence).max().unwrap_or(0);
        Ok(Self { medium, header, bytes: bytes.len(), compacted: bytes.len(), sequence })
    }

    /// Order of writes, for undoing the newest first.
    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Whether this value of this entry is in the journal.
    pub fn holds(&self, entry: &Entry, to: &Setting) -> bool {
        entry.wrote[..entry.journaled].contains(to)
    }

    /// Makes sure that these entries' originals, their values of ours and the value given are in the journal, in one append.
    pub fn record(
        &mut self,
        entries: &mut [Entry],
        writes: &[(usize, Option<&Setting>)],
        survives: Survives,
    ) -> Result<(), KernelError> {
        let mut bytes = Vec::new();
        let mut touched = Vec::new();
        for &(index, to) in writes {
            let Some(entry) = entries.get_mut(index) else { continue };
            if let Some(to) = to.filter(|to| !entry.wrote.contains(to)) {
                entry.wrote.push(to.clone());
            }
            if entry.journaled < entry.wrote.len() {
                if entry.journaled == 0 {
                    bytes.extend(encode(&found(entry)));
                }
                for wrote in &entry.wrote[entry.journaled..] {
                    bytes.extend(encode(&Record::Wrote { target: entry.target.clone(), to: wrote.clone() }));
                }
                touched.push(index);
            }
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let result = self.medium.append(&bytes, survives);
        for index in touched {
            let entry = &mut entries[index];
            if result.is_ok() {
                entry.journaled = entry.wrote.len();
            } else if !entry.origin.descendant || entry.journaled > 0 {
                // Never to be written. What a descendant inherited stays in the list: it is there.
                entry.wrote.truncate(entry.journaled);
            } else {
                entry.wrote.truncate(1);
            }
        }
        match result {
            Ok(()) => {
                self.bytes += bytes.len();
                Ok(())
            }
            Err(error) => Err(self.not_journaled(&error)),
        }
    }

    /// Makes sure that it is in the journal which tasks may be found pinned to one of which CPUs, in one append.
    pub fn lend(&mut self, entries: &mut [Entry], loans: &[(usize, CpuSet)]) -> Result<(), KernelError> {
        let mut bytes = Vec::new();
        for (index, cpus) in loans {
            let Some(entry) = entries.get(*index).filter(|entry| !cpus.is_subset(&entry.lent)) else {
                continue;
            };
            if entry.journaled == 0 && entry.lent.is_empty() {
                bytes.extend(encode(&found(entry)));
            }
            bytes.extend(encode(&Record::TemporaryPin { target: entry.target.clone(), cpus: cpus.clone() }));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.medium.append(&bytes, Survives::Kill).map_err(|error| self.not_journaled(&error))?;
        self.bytes += bytes.len();
        for (index, cpus) in loans {
            if let Some(entry) = entries.get_mut(*index) {
                entry.lent = entry.lent.union(cpus);
            }
        }
        Ok(())
    }

    fn not_journaled(&self, error: &std::io::Error) -> KernelError {
        KernelError::Io {
            path: self.medium.name().display().to_string(),
            error: format!("{error}; not changed, because it could not be journaled"),
        }
    }

    /// Rewrites a journal that has grown far beyond what it needs to say, and waits for the disk where a value is in it that an owner
    /// remembers: to set that again appends nothing. Failing is no harm.
    pub fn compact_if_grown<K: Kernel>(&mut self, kernel: &mut K, entries: &[Entry]) {
        if self.bytes < COMPACT_FROM || self.bytes < 4 * self.compacted {
            return;
        }
        let bytes = snapshot(&self.header, entries);
        let written = entries.iter().filter(|entry| entry.journaled > 0);
        match self.medium.replace(&bytes, survives(kernel, written)) {
            Ok(()) => (self.bytes, self.compacted) = (bytes.len(), bytes.len()),
            Err(error) => {
                tracing::warn!(%error, "the journal could not be made smaller");
                self.compacted = self.bytes;
            }
        }
    }

    /// Remembers a decision next to the journal.
    pub fn remember(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.medium.replace_decision(bytes)
    }

    pub fn forget(&mut self) -> std::io::Result<()> {
        self.medium.remove_decision()
    }

    /// Everything is back: no journal any more.
    pub fn finish(&mut self) -> std::io::Result<()> {
        self.medium.remove()
    }
}

/// What the journal of these entries is to survive: a reboot undoes all but what an owner remembers.
pub(crate) fn survives<'a, K: Kernel>(
    kernel: &mut K,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> Survives {
    let is_remembered = entries.into_iter().any(|entry| kernel.outlives_boot(&entry.target, entry.knob));
    if is_remembered { Survives::Boot } else { Survives::Kill }
}

/// A journal that says no more than these entries need.
pub(crate) fn snapshot(header: &Header, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = encode(&Record::Header(header.clone()));
    let known = |entry: &&Entry| entry.journaled > 0 || !entry.lent.is_empty();
    // Of a task that is gone its children may have what it had.
    let counts = |entry: &&Entry| entry.state != State::Gone || matches!(entry.target, Target::Task(_));
    let mut entries: Vec<&Entry> = entries.iter().filter(known).filter(counts).collect();
    // Who reads it undoes the newest first.
    entries.sort_by_key(|entry| entry.sequence);
    for entry in entries {
        bytes.extend(encode(&found(entry)));
        if !entry.lent.is_empty() {
            bytes.extend(encode(&Record::TemporaryPin {
                target: entry.target.clone(),
                cpus: entry.lent.clone(),
            }));
        }
        for wrote in &entry.wrote[..entry.journaled] {
            bytes.extend(encode(&Record::Wrote { target: entry.target.clone(), to: wrote.clone() }));
        }
    }
    bytes
}

fn found(entry: &Entry) -> Record {
    Record::Found {
        target: entry.target.clone(),
        original: entry.original.clone(),
        origin: entry.origin.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Event, FakeKernel, FakeMedium, World};
    use crate::journal::{Origin, decode};
    use evenkeel_base::{GroupRef, TaskId};

    fn ledger(world: &World) -> Ledger {
        let medium = Box::new(FakeMedium(world.clone()));
        Ledger::start(medium, BootId("boot-1".into()), Namespaces::default(), &[]).unwrap()
    }

    fn cpus(cpus: &str) -> Setting {
        Setting::Affinity(cpus.parse().unwrap())
    }

    /// An entry with these values of ours, of which so many are on disk.
    fn entry(wrote: &[&str], journaled: usize) -> Entry {
        let target = Target::Task(TaskId { tgid: 10, tid: 10, start_time: 1 });
        let wrote = wrote.iter().map(|wrote| cpus(wrote)).collect();
        Entry { wrote, journaled, ..Entry::new(target, cpus("0-3"), Origin::default()) }
    }

    /// Lines of the journal.
    fn lines(world: &World) -> usize {
        decode(&world.journal().unwrap()).records.len()
    }

    #[test]
    fn a_journal_is_rewritten_where_it_is_large_and_four_times_what_it_was() {
        let world = World::new(4);
        let mut ledger = ledger(&world);
        let mut rewritten = |bytes: usize, compacted: usize| {
            (ledger.bytes, ledger.compacted) = (bytes, compacted);
            ledger.compact_if_grown(&mut FakeKernel(world.clone()), &[]);
            ledger.bytes != bytes
        };
        assert!(rewritten(COMPACT_FROM, COMPACT_FROM / 4) && !rewritten(COMPACT_FROM - 1, 1));
        assert!(!rewritten(COMPACT_FROM, COMPACT_FROM / 4 + 1));
    }

    #[test]
    fn who_rewrites_a_journal_waits_for_the_disk_only_where_an_owner_remembers() {
        let waits = |own: fn(&World, &GroupRef), state: State| {
            let world = World::new(4);
            let weight = Setting::Weight;
            let group = world.add_group("/a", false, &[weight(50)]);
            own(&world, &group);
            let of_group = Entry::new(Target::Group(group), weight(1024), Origin::default());
            let entries =
                [entry(&["0"], 1), Entry { wrote: vec![weight(50)], journaled: 1, state, ..of_group }];
            let mut ledger = ledger(&world);
            (ledger.bytes, ledger.compacted) = (COMPACT_FROM, 1);
            let before = world.waits();
            ledger.compact_if_grown(&mut FakeKernel(world.clone()), &entries);
            assert_eq!(lines(&world), 5, "it was rewritten");
            world.waits() - before
        };
        let ours = State::Ours(Setting::Weight(50));
        assert_eq!(waits(|_, _| (), ours.clone()), 0);
        assert_eq!(waits(World::own_until_boot, ours.clone()), 0);
        assert_eq!((waits(World::own, ours), waits(World::own, State::Back)), (1, 1));
    }

    #[test]
    fn what_is_written_once_is_not_written_again() {
        let world = World::new(4);
        let mut ledger = ledger(&world);
        let mut entries = [entry(&[], 0)];
        ledger.record(&mut entries, &[(0, None)], Survives::Kill).unwrap();
        assert_eq!(lines(&world), 1, "nothing to say of what gets no value");
        for to in ["0", "1", "0"] {
            ledger.record(&mut entries, &[(0, Some(&cpus(to)))], Survives::Kill).unwrap();
        }
        assert_eq!((lines(&world), entries[0].journaled), (4, 2), "the original and two values");
        let mut lent = [entry(&[], 0)];
        for cpus in ["0-1", "1", "2"] {
            ledger.lend(&mut lent, &[(0, cpus.parse().unwrap())]).unwrap();
        }
        assert_eq!(lines(&world), 7, "the original and two loans");
        assert_eq!(ledger.bytes, world.journal().unwrap().len());
        // The same, and nothing of what was never written.
        let all = [entries[0].clone(), lent[0].clone(), entry(&["3"], 0)];
        assert_eq!(decode(&snapshot(&ledger.header, &all)).records.len(), 6);
    }

    #[test]
    fn a_journal_that_was_made_smaller_has_the_order_of_writes() {
        let world = World::new(4);
        let of = |tid: u32, sequence: u64| {
            let target = Target::Task(TaskId { tgid: tid, tid, start_time: 1 });
            Entry { target, sequence, ..entry(&["0"], 1) }
        };
        let bytes = snapshot(&ledger(&world).header, &[of(10, 7), of(11, 5), of(12, 6)]);
        let wrote = decode(&bytes).records.into_iter().filter_map(|record| match record {
            Record::Wrote { target: Target::Task(id), .. } => Some(id.tid),
            _ => None,
        });
        assert_eq!(wrote.collect::<Vec<_>>(), [11, 12, 10]);
    }

    #[test]
    fn what_could_not_be_journaled_is_forgotten_unless_it_is_there() {
        let world = World::new(4);
        let mut ledger = ledger(&world);
        world.happen(Event::DiskFull);
        let mut left = |wrote: &[&str], journaled: usize, descendant: bool| {
            let entry = entry(wrote, journaled);
            let mut entries = [Entry { origin: Origin { descendant, ..Origin::default() }, ..entry }];
            assert!(ledger.record(&mut entries, &[(0, Some(&cpus("3")))], Survives::Kill).is_err());
            entries[0].wrote.len()
        };
        assert_eq!((left(&[], 0, false), left(&["0", "1"], 2, false)), (0, 2));
        // What it inherited is there, whether it is in the journal or not.
        assert_eq!((left(&["0"], 0, true), left(&["0", "1"], 2, true)), (1, 2));
    }
}
