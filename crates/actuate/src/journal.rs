//! The journal: originals and every value of ours, written before the kernel gets them.
//!
//! Append-only text, one record a line: eight hexadecimal digits of CRC-32 over the JSON that follows, a space, the
//! JSON. The first record names the boot, the namespaces and the process; it is there from the first byte on, because
//! the file is renamed into place.
//!
//! A process killed in an append leaves a prefix of the line: its change was never made. So a last line without its
//! newline is accepted if it is such a prefix. Anything else that does not check is damage: zeros, garbage, an empty
//! file, a value whose original is missing, an original that no actuator would have found changeable.

use std::collections::HashSet;

use evenkeel_base::{BootId, CpuSet, Knob, Setting, Target};
use serde::{Deserialize, Serialize};

use crate::guard;
use crate::kernel::Namespaces;

/// Version of the format.
///
/// 2: [`Record::TemporaryPin`]. 3: [`Namespaces`], settings of the network, [`Origin::image`]. 4: the host's scheduler.
pub const VERSION: u32 = 4;

/// Who wrote a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub version: u32,
    /// Boot in which the values were found: cgroups and tasks do not outlive it.
    pub boot: BootId,
    /// Process that wrote it.
    pub pid: u32,
    /// Wall clock when it was opened, seconds since 1970.
    pub since: u64,
    /// Where its numbers and names mean what they say. Unknown in journals before version 3.
    #[serde(default)]
    pub namespaces: Namespaces,
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
    /// Inode of the cgroup, index of the link; 0 for anything else.
    #[serde(rename = "group_id")]
    pub identity: u64,
    /// Where the program that the task ran had its stack ([`crate::TaskFacts::image`]); 0 when unknown.
    #[serde(default)]
    pub image: u64,
    /// For a thread that is not the main one: what the main thread had. Should the thread call `exec`, it takes the
    /// main thread's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Setting>,
    /// It was born while its parent had our value: the original is the parent's.
    pub descendant: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    Header(Header),
    /// A property as it was found, before its first write.
    Found {
        target: Target,
        original: Setting,
        /// How to recognise the target.
        origin: Origin,
    },
    /// A value about to be written for the first time.
    Wrote {
        target: Target,
        to: Setting,
    },
    /// A task that may be found pinned to one of these CPUs. Journals have called it so since version 2.
    #[serde(rename = "lent")]
    TemporaryPin {
        target: Target,
        cpus: CpuSet,
    },
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Contents {
    /// Readable records, in order.
    pub records: Vec<Record>,
    /// Lines that do not check, from 1. A last line that a crash cut short is not among them.
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
    seal(record)
}

/// What can be written as JSON as a line with a checksum; an empty line (never valid) otherwise.
pub fn seal(what: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(what).unwrap_or_default();
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    line
}

/// Reads what is there, never fails: what is damaged is listed.
pub fn decode(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let mut found: HashSet<(Target, Knob)> = HashSet::new();
    let mut rest = bytes;
    let mut number = 0;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        number += 1;
        let record = unseal::<Record>(&rest[..end]);
        let sound = match &record {
            // A header anywhere but in front: two journals were joined.
            Some(Record::Header(_)) => number == 1,
            Some(Record::Found { target, original, .. }) => {
                found.insert((target.clone(), original.knob()));
                guard::original(target, original).is_ok()
            }
            Some(Record::Wrote { target, to }) => found.contains(&(target.clone(), to.knob())),
            Some(Record::TemporaryPin { target, .. }) => found.contains(&(target.clone(), Knob::Affinity)),
            None => false,
        };
        if !sound {
            contents.damaged.push(number);
        }
        contents.records.extend(record);
        rest = &rest[end + 1..];
        contents.whole_bytes = bytes.len() - rest.len();
    }
    if !is_cut_short(rest) {
        contents.damaged.push(number + 1);
    }
    if !matches!(contents.records.first(), Some(Record::Header(_))) && contents.damaged.is_empty() {
        contents.damaged.push(1);
    }
    contents
}

/// What a line made by [`seal`] says, without its newline; `None` where a single bit of it has changed.
pub fn unseal<T: serde::de::DeserializeOwned>(line: &[u8]) -> Option<T> {
    let (sum, json) = (line.get(..9)?, line.get(9..)?);
    // As it is written and in no other way: a digit in capitals is a changed byte, too.
    if sum != format!("{:08x} ", crc32fast::hash(json)).as_bytes() {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// Whether bytes without a newline are the beginning of a line.
fn is_cut_short(tail: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let (sum, json) = tail.split_at(tail.len().min(9));
    let digits = &sum[..sum.len().min(8)];
    if !digits.iter().all(is_digit) || sum.get(8).is_some_and(|byte| *byte != b' ') {
        return false;
    }
    match serde_json::from_slice::<serde_json::Value>(json) {
        // Only the newline is missing.
        Ok(_) => unseal::<Record>(tail).is_some(),
        Err(error) => error.is_eof(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_base::{CpuQuota, GroupRef, HostScheduler, NetKnob, SchedAttr, SchedPolicy, TaskId};
    use proptest::prelude::*;

    fn header() -> Record {
        let namespaces = Namespaces { pid: Some(4_026_531_836), ..Namespaces::default() };
        Record::Header(Header { version: VERSION, boot: BootId("b".into()), pid: 7, since: 1, namespaces })
    }

    fn sample() -> Vec<Record> {
        let task = Target::Task(TaskId { tgid: 10, tid: 11, start_time: 12 });
        let group = Target::Group(GroupRef { path: "/a\nb \u{e9}".into(), v2: true });
        let link = Target::Net(NetKnob::RpsCpus { link: "eth0".into(), queue: 1 });
        vec![
            header(),
            Record::Found {
                target: task.clone(),
                original: Setting::Sched(SchedAttr::DEFAULT),
                origin: Origin { comm: "a b\\\"".into(), ..Origin::default() },
            },
            Record::Found {
                target: task.clone(),
                original: Setting::Affinity(CpuSet::first_n(2)),
                origin: Origin::default(),
            },
            Record::TemporaryPin { target: task.clone(), cpus: CpuSet::first_n(3) },
            Record::Wrote { target: task, to: Setting::Affinity(crate::all_cpus()) },
            Record::Found {
                target: group.clone(),
                original: Setting::Quota(CpuQuota::UNLIMITED),
                origin: Origin::default(),
            },
            Record::Wrote { target: group, to: Setting::Quota(CpuQuota::UNLIMITED) },
            Record::Found {
                target: link.clone(),
                original: Setting::Net(String::new()),
                origin: Origin { identity: 7, ..Origin::default() },
            },
            Record::Wrote { target: link, to: Setting::Net("0-1".into()) },
            Record::Found {
                target: Target::Host,
                original: Setting::Scheduler(HostScheduler::Kernel),
                origin: Origin::default(),
            },
            Record::Wrote {
                target: Target::Host,
                to: Setting::Scheduler(HostScheduler::Program("scx_rusty".into())),
            },
        ]
    }

    fn bytes(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(encode).collect()
    }

    #[test]
    fn records_have_the_names_that_journals_on_disk_have() {
        let names = ["header", "found", "wrote", "lent"];
        let text = String::from_utf8(bytes(&sample())).unwrap();
        for name in names {
            assert!(text.contains(&format!("\"record\":\"{name}\"")), "{name}: {text}");
        }
        assert_eq!(text.matches("\"record\":").count(), text.lines().count());
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
        for cut in lines[0]..=all.len() {
            let contents = decode(&all[..cut]);
            let whole = lines.iter().filter(|end| **end <= cut).count();
            assert_eq!(contents.records, sample()[..whole], "cut at {cut}");
            assert!(contents.damaged.is_empty(), "cut at {cut}");
            assert_eq!(contents.whole_bytes, lines[whole - 1]);
        }
        // The header is there from the first byte on.
        for cut in 0..lines[0] {
            assert_eq!(decode(&all[..cut]).damaged, [1], "cut at {cut}");
        }
    }

    #[test]
    fn zeros_and_garbage_are_damage_with_or_without_a_newline() {
        let all = bytes(&sample());
        let lines = sample().len();
        for tail in [
            &b"\0"[..],
            &[0; 4096],
            b"garbage",
            b"0123456",
            b"01234567x",
            b"01234567 x",
            b"01234567 {}",
            b"\xff",
        ] {
            let expected: &[usize] = if tail == b"0123456" { &[] } else { &[lines + 1] };
            assert_eq!(decode(&[&all, tail].concat()).damaged, expected, "{tail:?}");
            assert_eq!(decode(&[&all, tail, b"\n"].concat()).damaged, [lines + 1], "{tail:?}");
        }
        assert_eq!(decode(&[0; 4096]).damaged, [1]);
    }

    #[test]
    fn a_value_without_its_original_is_damage() {
        let all = sample();
        for missing in 1..all.len() {
            let rest: Vec<Record> = all
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != missing)
                .map(|(_, record)| record.clone())
                .collect();
            let is_original = matches!(all[missing], Record::Found { .. });
            // The first task's class was never written.
            assert_eq!(decode(&bytes(&rest)).damaged.is_empty(), !is_original || missing == 1, "{missing}");
        }
    }

    #[test]
    fn originals_that_nobody_would_have_changed_are_damage() {
        let fifo = SchedAttr { policy: SchedPolicy::Fifo, rt_priority: 50, ..SchedAttr::DEFAULT };
        let task = |tid| Target::Task(TaskId { tgid: tid, tid, start_time: 12 });
        let group = |path: &str| Target::Group(GroupRef { path: path.into(), v2: true });
        let link = |link: &str| Target::Net(NetKnob::RpsCpus { link: link.into(), queue: 1 });
        // What is restored would be started, as root.
        let planted = HostScheduler::Program("scx_evil".into());
        for (target, original) in [
            (task(10), Setting::Sched(fifo)),
            (task(1), Setting::Sched(SchedAttr::DEFAULT)),
            (task(10), Setting::Weight(5)),
            (group("/a/../.."), Setting::Weight(5)),
            (group("/a"), Setting::Affinity(CpuSet::first_n(1))),
            (link("../../etc"), Setting::Net("0".into())),
            (link("eth0"), Setting::Net("0; rm".into())),
            (Target::Host, Setting::Scheduler(planted)),
            (Target::Host, Setting::Scheduler(HostScheduler::Other("lavd".into()))),
            (Target::Host, Setting::Weight(5)),
            (group("/a"), Setting::Scheduler(HostScheduler::Kernel)),
        ] {
            let planted = Record::Found { target, original, origin: Origin::default() };
            assert_eq!(decode(&bytes(&[header(), planted.clone()])).damaged, [2], "{planted:?}");
        }
    }

    #[test]
    fn a_journal_without_a_header_is_damaged() {
        assert_eq!(decode(&bytes(&sample()[1..])).damaged, [1]);
        assert_eq!(decode(b"").damaged, [1], "it has a header from the first byte on");
    }

    #[test]
    fn every_changed_bit_is_seen() {
        let whole = bytes(&sample());
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut all = whole.clone();
            all[at] ^= 1 << bit;
            let contents = decode(&all);
            assert!(!contents.damaged.is_empty(), "bit {bit} of byte {at}");
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
            prop_assert!(!contents.damaged.is_empty());
            prop_assert!(contents.records.len() >= sample().len() - 2);
        }
    }
}
