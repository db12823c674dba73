//! Received packets are processed on more than one CPU.

use evenkeel_base::facts::Unknown;

use crate::view::housekeeping;
use crate::{Finding, Input, Rule, Severity};

/// Packets since boot below which a concentration says nothing.
const BUSY: u64 = 1_000_000;
/// Share of all on one CPU, percent, from which on it is a concentration.
const CONCENTRATED_PCT: f64 = 90.0;

pub(super) const RULE: Rule = Rule {
    name: "net-receive-cpu",
    severity: Severity::Info,
    about: "a busy network card's packets are not all processed on one CPU (receive queues, RPS)",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let free = housekeeping(input.observation);
    if free.len() < 2 {
        return Ok(vec![rule.pass("host", "one CPU only")]);
    }
    let network = input.facts.network.get()?;
    let all: u64 = network.received_by_cpu.iter().map(|(_, count)| count).sum();
    let Some((cpu, most)) = network.received_by_cpu.iter().max_by_key(|(_, count)| *count) else {
        return Ok(vec![rule.pass("host", "nothing was received since boot")]);
    };
    let pct = *most as f64 / all.max(1) as f64 * 100.0;
    let evidence = format!("{most} of {all} receive softirqs since boot were on CPU {cpu} ({pct:.0} %)");
    if all < BUSY || pct < CONCENTRATED_PCT {
        return Ok(vec![rule.pass("host", evidence)]);
    }
    let mut findings = Vec::new();
    // With several queues the interrupts' affinity decides, which irqbalance or the driver set.
    for link in network.links.iter().filter(|link| link.physical && link.receive.len() == 1) {
        let subject = format!("link {}", link.name);
        match link.receive[0].rps_cpus.get() {
            Err(Unknown(reason)) => findings.push(rule.unknown(subject, reason)),
            Ok(cpus) if !cpus.is_empty() => {
                findings.push(rule.pass(subject, format!("packets are processed on CPUs {cpus} (RPS)")));
            }
            Ok(_) => findings.push(rule.fail(
                subject,
                format!("one receive queue, RPS off; {evidence}"),
                format!(
                    "tasks on CPU {cpu} pay for everybody's packets; with few tenants RPS spreads them, with many it \
                     costs more than it gives: measure with `evenkeel tenants net`"
                ),
                format!(
                    "evenkeel net set --link {} --rps {free} --rfs 4096\n# back: evenkeel restore",
                    link.name
                ),
            )),
        }
    }
    Ok(rule.or_pass(findings, evidence))
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::World;
    use evenkeel_base::facts::{LinkQueues, Network, ReceiveQueue};
    use evenkeel_base::{CpuSet, Known};

    fn network(counts: &[(u32, u64)], rps: Known<CpuSet>) -> Known<Network> {
        let queue = ReceiveQueue { rps_cpus: rps, rps_flow_cnt: Known::Value(0) };
        let link = LinkQueues { name: "eth0".into(), physical: true, receive: vec![queue], transmit: vec![] };
        let sock_flow_entries = Known::Value(0);
        Known::Value(Network { received_by_cpu: counts.to_vec(), sock_flow_entries, links: vec![link] })
    }

    #[test]
    fn all_packets_on_one_cpu_are_told_with_the_way_out() {
        let mut world = World::new(4);
        world.facts.network = network(&[(2, 5_000_000), (3, 1000)], Known::Value(CpuSet::new()));
        let finding = world.only("net-receive-cpu");
        assert_eq!((finding.status, finding.subject.as_str()), (Status::Fail, "link eth0"));
        assert!(finding.fix.unwrap().starts_with("evenkeel net set --link eth0 --rps 0-3"));
    }

    #[test]
    fn spread_steered_or_idle_passes_and_unread_is_unknown() {
        let mut world = World::new(4);
        let off = || Known::Value(CpuSet::new());
        world.facts.network = network(&[(2, 5_000_000), (3, 4_000_000)], off());
        assert_eq!(world.only("net-receive-cpu").status, Status::Pass);
        world.facts.network = network(&[(2, 50)], off());
        assert_eq!(world.only("net-receive-cpu").status, Status::Pass);
        world.facts.network = network(&[(2, 5_000_000)], Known::Value(CpuSet::first_n(4)));
        assert_eq!(world.only("net-receive-cpu").status, Status::Pass);
        world.facts.network = World::denied("/proc/softirqs");
        assert_eq!(world.only("net-receive-cpu").status, Status::Unknown);
    }
}
