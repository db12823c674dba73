//! The journal, and the output of `virsh` and `tc`.

use evenkeel_actuate::host::shape::{parse_counters, parse_rate};
use evenkeel_actuate::journal::{self, Record};
use evenkeel_actuate::{libvirt, old};
use evenkeel_base::{CpuSet, GroupRef, Setting};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::bytes("journal", |bytes| {
        let contents = journal::decode(bytes);
        assert!(contents.whole_bytes <= bytes.len());
        // Whatever it holds, a restore writes nothing that is not in it; what is read is written in the same way.
        let again: Vec<u8> = contents.records.iter().flat_map(journal::encode).collect();
        assert_eq!(journal::decode(&again).records.len(), contents.records.len());
    }),
    Target::text("journal-record", |text| {
        // As above without the checksum, which hardly any change survives.
        if let Ok(record) = serde_json::from_str::<Record>(text) {
            let line = journal::encode(&record);
            assert_eq!(journal::decode(&line).records, [record]);
        }
    }),
    Target::bytes("old-journal", |bytes| {
        let _ = old::contents(bytes);
    }),
    Target::text("tc-classes", |text| {
        let _ = parse_counters(text, 0xee01);
    }),
    Target::text("machine-group", |text| {
        // What is handed to `virsh` is made of numbers.
        let group = GroupRef { path: text.to_owned(), v2: true };
        for args in [
            libvirt::arguments(&group, &Setting::Weight(2)),
            libvirt::pin_arguments(text, &CpuSet::single(0)),
        ] {
            assert!(args.is_none_or(|args| args[1].bytes().all(|b| b.is_ascii_digit())), "{text}");
        }
    }),
    Target::text("rate", |text| {
        if let Ok(rate) = parse_rate(text) {
            assert!((8_000..=1_000_000_000_000).contains(&rate));
        }
    }),
];
