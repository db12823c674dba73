//! Receive flow steering is on as a whole or not at all.

use evenkeel_base::facts::Unknown;

use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "net-rfs",
    severity: Severity::Warning,
    about: "queues' flow tables (rps_flow_cnt) and the host's (rps_sock_flow_entries) are both set, or neither",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let network = input.facts.network.get()?;
    let host = *network.sock_flow_entries.get()?;
    let mut findings = Vec::new();
    let mut queues = 0;
    for link in &network.links {
        let mut sum = 0;
        for queue in &link.receive {
            match queue.rps_flow_cnt.get() {
                Ok(entries) => sum += entries,
                Err(Unknown(reason)) => findings.push(rule.unknown(format!("link {}", link.name), reason)),
            }
        }
        queues += sum;
        if sum > host {
            findings.push(rule.fail(
                format!("link {}", link.name),
                format!("its queues have {sum} flow entries, the host's table {host}"),
                "flows are not steered to the CPU of their reader: without the host's table RFS does nothing, with a \
                 smaller one it forgets flows",
                format!("sysctl net.core.rps_sock_flow_entries={}", sum.max(1).next_power_of_two()),
            ));
        }
    }
    if host > 0 && queues == 0 {
        findings.push(
            rule.fail(
                "host",
                format!("rps_sock_flow_entries is {host}, but no queue has a flow table"),
                "every received packet pays for a look into a table that nothing uses",
                "evenkeel net set --link LINK --rfs 4096\n# or: sysctl net.core.rps_sock_flow_entries=0",
            )
            .severity(Severity::Info),
        );
    }
    Ok(rule.or_pass(findings, format!("host's table {host}, queues' tables {queues}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;
    use evenkeel_base::facts::{LinkQueues, Network, ReceiveQueue};
    use evenkeel_base::{CpuSet, Known};

    fn world(host: Known<u64>, queues: &[u64]) -> World {
        let receive = queues
            .iter()
            .map(|n| ReceiveQueue { rps_cpus: Known::Value(CpuSet::new()), rps_flow_cnt: Known::Value(*n) })
            .collect();
        let link = LinkQueues { name: "eth0".into(), physical: true, receive, transmit: vec![] };
        let mut world = World::new(4);
        world.facts.network =
            Known::Value(Network { received_by_cpu: vec![], sock_flow_entries: host, links: vec![link] });
        world
    }

    #[test]
    fn half_a_configuration_fails() {
        let finding = world(Known::Value(0), &[4096, 4096]).only("net-rfs");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.fix.as_deref(), Some("sysctl net.core.rps_sock_flow_entries=8192"));
        let finding = world(Known::Value(32_768), &[0]).only("net-rfs");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Info));
    }

    #[test]
    fn both_or_neither_passes_and_unread_is_unknown() {
        assert_eq!(world(Known::Value(0), &[0]).only("net-rfs").status, Status::Pass);
        assert_eq!(world(Known::Value(32_768), &[4096]).only("net-rfs").status, Status::Pass);
        let denied = World::denied("/proc/sys/net/core/rps_sock_flow_entries");
        assert_eq!(world(denied, &[0]).only("net-rfs").status, Status::Unknown);
    }
}
