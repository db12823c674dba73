//! How network load is spread over CPUs: `/sys/class/net/LINK/queues`, `/proc/softirqs`, the host's table of flows.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::{Known, LinkQueues, Network, ReceiveQueue, TransmitQueue};

use crate::{ParseError, ReadError, Root, cgroupfs};

/// The CPUs' counts in a line of `/proc/softirqs`, such as `NET_RX`; CPUs with none are left out.
pub fn parse_softirqs(text: &str, name: &str) -> Result<Vec<(u32, u64)>, ParseError> {
    const FILE: &str = "/proc/softirqs";
    let header = text.lines().next().unwrap_or_default();
    let cpus: Option<Vec<u32>> =
        header.split_ascii_whitespace().map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let cpus = cpus.filter(|cpus| !cpus.is_empty());
    let cpus = cpus.ok_or_else(|| ParseError::expected(FILE, 1, "`CPU0 CPU1 ...`", header))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let line = line.ok_or_else(|| ParseError::new(FILE, 1, format!("no line starts with `{name}:`")))?;
    let counts = line.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    Ok(cpus.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect())
}

/// Reads everything. A link that vanishes meanwhile is left out.
pub fn read(root: &Root) -> Result<Network, ReadError> {
    let received = root.parse("proc/softirqs", |text| parse_softirqs(text, "NET_RX"))?;
    let sock_flow_entries =
        root.parse("proc/sys/net/core/rps_sock_flow_entries", cgroupfs::parse_number).into();
    let mut links = Vec::new();
    for name in root.names("sys/class/net")? {
        let dir = format!("sys/class/net/{name}");
        let queues = format!("{dir}/queues");
        let (Ok(receive), Ok(transmit)) = (root.numbered(&queues, "rx-"), root.numbered(&queues, "tx-"))
        else {
            continue;
        };
        let mask = |file: String| -> Known<CpuSet> {
            let parse = |text: &str| {
                CpuSet::parse_mask(text).map_err(|_| {
                    ParseError::expected("a queue's CPUs", 1, "a hexadecimal mask", text.trim_end())
                })
            };
            root.parse(file, parse).into()
        };
        links.push(LinkQueues {
            // What is made of software only has no device behind it.
            physical: root.path(format!("{dir}/device")).exists(),
            receive: receive
                .iter()
                .map(|queue| ReceiveQueue {
                    rps_cpus: mask(format!("{queues}/rx-{queue}/rps_cpus")),
                    rps_flow_cnt: root
                        .parse(format!("{queues}/rx-{queue}/rps_flow_cnt"), cgroupfs::parse_number)
                        .into(),
                })
                .collect(),
            transmit: transmit
                .iter()
                .map(|queue| TransmitQueue { xps_cpus: mask(format!("{queues}/tx-{queue}/xps_cpus")) })
                .collect(),
            name,
        });
    }
    Ok(Network { received_by_cpu: received, sock_flow_entries, links })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTIRQS: &str = "                    CPU0       CPU1       \n          HI:          1          0\n      NET_RX:       1000          0\n";

    #[test]
    fn counts_by_cpu() {
        assert_eq!(parse_softirqs(SOFTIRQS, "NET_RX").unwrap(), [(0, 1000)]);
        assert!(parse_softirqs(SOFTIRQS, "NET").is_err() && parse_softirqs("", "HI").is_err());
    }

    #[test]
    fn links_with_their_queues() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("proc/softirqs", SOFTIRQS),
            ("proc/sys/net/core/rps_sock_flow_entries", "0\n"),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "3\n"),
            ("sys/class/net/eth0/queues/rx-0/rps_flow_cnt", "4096\n"),
            ("sys/class/net/eth0/queues/tx-0/tx_timeout", "0\n"),
            ("sys/class/net/eth0/device/vendor", "x\n"),
            ("sys/class/net/bonding_masters", "\n"),
        ];
        crate::testing::lay(dir.path(), &files);
        let network = read(&Root::at(dir.path())).unwrap();
        assert_eq!(network.links.len(), 1);
        let link = &network.links[0];
        assert!(link.physical && link.name == "eth0");
        assert_eq!(link.receive[0].rps_cpus, Known::Value("0-1".parse().unwrap()));
        assert_eq!(link.receive[0].rps_flow_cnt, Known::Value(4096));
        assert!(link.transmit[0].xps_cpus.get().unwrap_err().to_string().contains("xps_cpus"));
    }
}
