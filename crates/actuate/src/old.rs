//! Journals of settings of the network as they were before version 3: one JSON document without checksums.

use evenkeel_base::{BootId, NetKnob, Setting, Target};
use serde::Deserialize;

use crate::journal::{Contents, Header, Origin, Record};
use crate::kernel::Namespaces;

const SCHEMA: &str = "evenkeel.host-journal/v1";

#[derive(Deserialize)]
struct Journal {
    schema: String,
    boot: String,
    /// Oldest first.
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    knob: NetKnob,
    identity: u64,
    original: String,
    wrote: Vec<String>,
}

/// What such a journal says; `None` when it is none.
pub fn contents(bytes: &[u8]) -> Option<Contents> {
    let journal: Journal = serde_json::from_slice(bytes).ok()?;
    if journal.schema != SCHEMA {
        return None;
    }
    let header = Header {
        version: 1,
        boot: BootId(journal.boot),
        pid: 0,
        since: 0,
        namespaces: Namespaces::default(),
    };
    let mut records = vec![Record::Header(header)];
    for Entry { knob, identity, original, wrote } in journal.entries {
        let target = Target::Net(knob);
        let origin = Origin { identity, ..Origin::default() };
        let original = Setting::Net(original);
        records.push(Record::Found { target: target.clone(), original, origin });
        let wrote = wrote.into_iter();
        records.extend(wrote.map(|to| Record::Wrote { target: target.clone(), to: Setting::Net(to) }));
    }
    Some(Contents { records, damaged: Vec::new(), whole_bytes: bytes.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_release_wrote_is_read() {
        let text = br#"{"schema":"evenkeel.host-journal/v1","boot":"b","entries":[{"knob":{"knob":"rps-cpus",
            "link":"eth0","queue":0},"identity":2,"original":"","wrote":["0","0-1"]}]}"#;
        let found = contents(text).unwrap();
        assert_eq!((found.records.len(), found.damaged.len()), (4, 0));
        assert_eq!(found.header().unwrap().boot, BootId("b".into()));
        assert!(contents(b"{}").is_none() && contents(&[0; 30]).is_none() && contents(b"").is_none());
    }
}
