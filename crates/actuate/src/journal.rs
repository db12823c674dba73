//! The journal: originals and every value of ours, on disk before they are written to the kernel.
//!
//! Append-only text, one record a line: eight hexadecimal digits of CRC-32 over the JSON that follows, a space, the
//! JSON. The first record names the boot and the process. A last line without its newline is the append that a crash
//! cut short: its change was never made. Anything else that does not check is damage.

use evenkeel_base::{BootId, CpuSet, Setting, Target};
use serde::{Deserialize, Serialize};

/// Version of the format.
///
/// 2: [`Record::Lent`].
pub const VERSION: u32 = 2;

/// Who wrote a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// Boot in which the values were found: cgroups and tasks do not outlive it.
    pub boot: BootId,
    /// Process that wrote it.
    pub pid: u32,
    /// Wall clock when it was opened, seconds since 1970.
    pub since: u64,
}

/// How a target was found, so that it and its descendants can be recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Clock ticks since boot just before the first write: descendants born earlier have nothing of ours.
    pub since_ticks: u64,
    /// Name of the task; empty for a cgroup.
    pub comm: String,
    /// Its process group; 0 for a cgroup.
    pub process_group: u32,
    /// Its session; 0 for a cgroup.
    pub session: u32,
    /// Its cgroup lines; empty for a cgroup or when unknown.
    pub cgroup: String,
    /// Processes it descends from, nearest first: where its orphans are reparented to.
    pub ancestors: Vec<u32>,
    /// Inode of the cgroup; 0 for a task.
    pub group_id: u64,
    /// It was born while its parent had our value: the original is the parent's.
    pub descendant: bool,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// First line.
    Header(Header),
    /// A property as it was found, before its first write.
    Found {
        /// Whose.
        target: Target,
        /// The original value.
        original: Setting,
        /// How to recognise the target.
        origin: Origin,
    },
    /// A value about to be written for the first time.
    Wrote {
        /// Whose.
        target: Target,
        /// The value.
        to: Setting,
    },
    /// A task that may be found pinned to one of these CPUs.
    Lent {
        /// Whose affinity.
        target: Target,
        /// The CPUs.
        cpus: CpuSet,
    },
}

/// What a journal holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Contents {
    /// Readable records, in order.
    pub records: Vec<Record>,
    /// Lines that do not check, from 1. The last line cut short is not among them.
    pub damaged: Vec<usize>,
    /// Bytes up to and including the last whole line.
    pub whole_bytes: usize,
}

impl Contents {
    /// The first line, if readable.
    pub fn header(&self) -> Option<&Header> {
        self.records.iter().find_map(|record| match record {
            Record::Header(header) => Some(header),
            _ => None,
        })
    }
}

/// A record as a line. Infallible for the types it is made of; an empty line (never valid) otherwise.
pub fn encode(record: &Record) -> Vec<u8> {
    let json = serde_json::to_vec(record).unwrap_or_default();
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    line
}

/// Reads what is there, never fails: what is damaged is said.
pub fn decode(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let mut rest = bytes;
    let mut number = 0;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        number += 1;
        match decode_line(&rest[..end]) {
            // A header anywhere but in front is damage: two journals were joined.
            Some(Record::Header(header)) if number > 1 => {
                contents.damaged.push(number);
                contents.records.push(Record::Header(header));
            }
            Some(record) => contents.records.push(record),
            None => contents.damaged.push(number),
        }
        rest = &rest[end + 1..];
        contents.whole_bytes = bytes.len() - rest.len();
    }
    if number > 0
        && !matches!(contents.records.first(), Some(Record::Header(_)))
        && contents.damaged.is_empty()
    {
        contents.damaged.push(1);
    }
    contents
}

fn decode_line(line: &[u8]) -> Option<Record> {
    let (sum, json) = (line.get(..9)?, line.get(9..)?);
    // As it is written and in no other way: a digit in capitals is a changed byte, too.
    if sum != format!("{:08x} ", crc32fast::hash(json)).as_bytes() {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::{CpuQuota, GroupRef, SchedAttr, TaskId};
    use proptest::prelude::*;

    fn header() -> Record {
        Record::Header(Header { version: VERSION, boot: BootId("b".into()), pid: 7, since: 1 })
    }

    fn sample() -> Vec<Record> {
        let task = Target::Task(TaskId { tgid: 10, tid: 11, start_time: 12 });
        let group = Target::Group(GroupRef { path: "/a\nb \u{e9}".into(), v2: true });
        vec![
            header(),
            Record::Found {
                target: task.clone(),
                original: Setting::Sched(SchedAttr::DEFAULT),
                origin: Origin { comm: "a b\\\"".into(), ..Origin::default() },
            },
            Record::Lent { target: task.clone(), cpus: CpuSet::first_n(3) },
            Record::Wrote { target: task, to: Setting::Affinity(crate::all_cpus()) },
            Record::Found {
                target: group.clone(),
                original: Setting::Quota(CpuQuota::UNLIMITED),
                origin: Origin::default(),
            },
            Record::Wrote { target: group, to: Setting::RtRuntime(-1) },
        ]
    }

    fn bytes(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(encode).collect()
    }

    #[test]
    fn records_survive_the_round_trip() {
        let contents = decode(&bytes(&sample()));
        assert_eq!(contents.records, sample());
        assert!(contents.damaged.is_empty());
    }

    #[test]
    fn a_torn_end_is_not_damage() {
        let all = bytes(&sample());
        let lines: Vec<usize> = all.iter().enumerate().filter(|b| *b.1 == b'\n').map(|b| b.0 + 1).collect();
        for cut in 0..=all.len() {
            let contents = decode(&all[..cut]);
            let whole = lines.iter().filter(|end| **end <= cut).count();
            assert_eq!(contents.records, sample()[..whole], "cut at {cut}");
            assert!(contents.damaged.is_empty(), "cut at {cut}");
            assert_eq!(contents.whole_bytes, if whole == 0 { 0 } else { lines[whole - 1] });
        }
    }

    #[test]
    fn a_journal_without_a_header_is_damaged() {
        assert_eq!(decode(&bytes(&sample()[1..])).damaged, [1]);
        assert_eq!(decode(b"").damaged, [0usize; 0]);
    }

    #[test]
    fn every_changed_bit_is_seen() {
        let whole = bytes(&sample());
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut all = whole.clone();
            all[at] ^= 1 << bit;
            let contents = decode(&all);
            assert!(!contents.damaged.is_empty() || !all.ends_with(b"\n"), "bit {bit} of byte {at}");
        }
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_seen_and_costs_no_other_record(at in 0usize..4000, flip in 1u8..) {
            let mut all = bytes(&sample());
            let at = at % all.len();
            all[at] ^= flip;
            let contents = decode(&all);
            // whatever was hit, every record that is still returned is a true one
            for record in &contents.records {
                prop_assert!(sample().contains(record));
            }
            let tail_cut = !all.ends_with(b"\n");
            prop_assert!(!contents.damaged.is_empty() || tail_cut);
            prop_assert!(contents.records.len() >= sample().len() - 2);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            decode(&bytes);
        }
    }
}
