//! `/proc/PID/net/dev` and `snmp`: what a network namespace received, sent, and sent again.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;

use crate::{ParseError, ReadError, Root};

/// Counted since the namespace was made. What is not told is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes received by all interfaces but the loopback; of the host see [`read_host`].
    pub received_bytes: Option<u64>,
    /// Bytes sent by these.
    pub sent_bytes: Option<u64>,
    /// TCP segments sent again, the loopback's included.
    pub retransmits: Option<u64>,
}

/// What interfaces carried, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// By the host.
    pub received: u64,
    /// By the host.
    pub sent: u64,
}

/// Traffic of these interfaces; where none of them is there, of all but the loopback.
pub fn parse_dev(text: &str, counted: &BTreeSet<String>) -> Result<Traffic, ParseError> {
    let (mut traffic, mut all) = (None, Traffic::default());
    // Two lines of heading.
    for (at, line) in text.lines().enumerate().skip(2) {
        let bad = || ParseError::expected("net/dev", at + 1, "`NAME: BYTES .. BYTES ..`", line);
        // A name may hold a colon; the numbers do not.
        let (name, numbers) = line.rsplit_once(':').ok_or_else(bad)?;
        let numbers: Vec<&str> = numbers.split_ascii_whitespace().collect();
        let number = |at: usize| numbers.get(at).and_then(|text| text.parse::<u64>().ok()).ok_or_else(bad);
        let (of_in, of_out) = (number(0)?, number(8)?);
        let add = |sum: &mut Traffic| {
            sum.received = sum.received.saturating_add(of_in);
            sum.sent = sum.sent.saturating_add(of_out);
        };
        if counted.contains(name.trim()) {
            add(traffic.get_or_insert_default());
        }
        if name.trim() != "lo" {
            add(&mut all);
        }
    }
    Ok(traffic.unwrap_or(all))
}

/// TCP segments sent again.
pub fn parse_retransmits(text: &str) -> Result<u64, ParseError> {
    let bad = || ParseError::expected("net/snmp", 1, "`Tcp: .. RetransSegs ..` and its numbers", text);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next().ok_or_else(bad)?, lines.next().ok_or_else(bad)?);
    let at = names.split_ascii_whitespace().position(|name| name == "RetransSegs").ok_or_else(bad)?;
    numbers.split_ascii_whitespace().nth(at).and_then(|text| text.parse().ok()).ok_or_else(bad)
}

/// Of the namespace that a process is in.
pub fn read(root: &Root, pid: u32) -> Result<Counters, ReadError> {
    read_of(root, pid, &BTreeSet::new())
}

/// Of the namespace that process 1 is in. Cards alone count, where there are any: what bridges, bonds, VLANs and the ends of
/// containers' links carry passes a card, too, if it leaves the host. A card below another is counted by that (Azure's).
pub fn read_host(root: &Root) -> Result<Counters, ReadError> {
    let class = |rest: &str| root.path(format!("sys/class/net/{rest}"));
    let mut cards = root.names("sys/class/net").unwrap_or_default();
    cards.retain(|name| {
        class(&format!("{name}/device")).exists() && !class(&format!("{name}/master/device")).exists()
    });
    read_of(root, 1, &cards.into_iter().collect())
}

fn read_of(root: &Root, pid: u32, counted: &BTreeSet<String>) -> Result<Counters, ReadError> {
    let traffic = root.parse_optional(format!("proc/{pid}/net/dev"), |text| parse_dev(text, counted))?;
    Ok(Counters {
        received_bytes: traffic.map(|traffic| traffic.received),
        sent_bytes: traffic.map(|traffic| traffic.sent),
        retransmits: root.parse_optional(format!("proc/{pid}/net/snmp"), parse_retransmits)?,
    })
}

/// What tells the namespace that a process is in from others: the inode of its `net/dev`, of which each namespace has one.
/// `ns/net` would take the right to trace the process, which `serve` gives up.
pub fn namespace(root: &Root, pid: u32) -> Option<u64> {
    let file = std::fs::metadata(root.path(format!("proc/{pid}/net/dev"))).ok()?;
    Some(file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Inter-|   Receive  |  Transmit\n face |bytes    packets |bytes    packets\n";

    #[test]
    fn bytes_of_all_interfaces_but_the_loopback_are_summed() {
        let text = format!(
            "{HEAD}    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n  eth0: 1000 2 0 0 0 0 0 0 30 3 0 0 0 0 0 0\n\
             eth0:1:7 2 0 0 0 0 0 0 8 3 0 0 0 0 0 0\n"
        );
        let parse_dev = |text: &str| parse_dev(text, &BTreeSet::new());
        assert_eq!(parse_dev(&text).unwrap(), Traffic { received: 1007, sent: 38 });
        assert_eq!(parse_dev(HEAD).unwrap(), Traffic::default(), "a namespace without interfaces");
        for bad in ["  eth0 1 2", "  eth0: 1 2", "  eth0: -1 2 0 0 0 0 0 0 30 3 0 0 0 0 0 0"] {
            assert!(parse_dev(&format!("{HEAD}{bad}\n")).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_the_host_what_passes_a_card_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let line = |name: &str, n: u32| format!(" {name}: {n} 0 0 0 0 0 0 0 {} 0\n", n + 1);
        let dev = [line("lo", 9), line("eth0", 70), line("vf0", 70), line("docker0", 60), line("veth1", 60)];
        std::fs::create_dir_all(root.path("proc/1/net")).unwrap();
        std::fs::write(root.path("proc/1/net/dev"), HEAD.to_owned() + &dev.concat()).unwrap();
        let received = || read_host(&root).unwrap().received_bytes;
        assert_eq!(received(), Some(260), "nobody says which is a card");
        for card in ["eth0/device", "vf0/device", "vf0/master/device", "docker0", "veth1"] {
            std::fs::create_dir_all(root.path(format!("sys/class/net/{card}"))).unwrap();
        }
        let counters = read_host(&root).unwrap();
        assert_eq!((counters.received_bytes, counters.sent_bytes), (Some(70), Some(71)));
    }

    #[test]
    fn retransmits_are_found_by_their_name() {
        let text =
            "Ip: A B\nIp: 1 2\nTcp: MaxConn OutSegs RetransSegs InErrs\nTcp: -1 900 12 0\nUdp: X\nUdp: 1\n";
        assert_eq!(parse_retransmits(text).unwrap(), 12);
        for bad in ["", "Tcp: RetransSegs\n", "Tcp: OutSegs\nTcp: 1\n", "Tcp: RetransSegs\nTcp: x\n"] {
            assert!(parse_retransmits(bad).is_err(), "{bad}");
        }
    }
}
