//! A cpuset's memory nodes match its CPUs.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::Unknown;

use crate::view::nodes_of;
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "cpuset-mems",
    severity: Severity::Warning,
    about: "a cpuset's memory nodes are those of its CPUs, and memory follows when they change",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    let nodes = topology.nodes.len();
    if nodes < 2 {
        return Ok(vec![rule.pass("host", "one NUMA node")]);
    }
    let groups = input.facts.cpusets.get()?;
    let with_memory: CpuSet =
        topology.nodes.iter().filter(|n| n.memory_bytes != Some(0)).map(|n| n.node).collect();
    let mut findings = Vec::new();
    for group in groups.iter().filter(|g| g.path != "/" && !g.cpus.is_empty()) {
        let subject = format!("cgroup {}", group.path);
        let cpus = group.effective.as_ref().unwrap_or(&group.cpus);
        let near = nodes_of(input.observation, cpus).intersection(&with_memory);
        if near.is_empty() || near.len() == with_memory.len() {
            continue;
        }
        let Some(mems) = group.effective_mems.as_ref().or((!group.mems.is_empty()).then_some(&group.mems))
        else {
            findings.push(rule.unknown(subject, "its effective memory nodes could not be read"));
            continue;
        };
        let evidence = format!("CPUs {cpus} are on node(s) {near}, memory comes from node(s) {mems}");
        let right = fix::set_mems(input, &group.path, &near);
        if !mems.intersects(&near) {
            findings.push(rule.fail(
                &subject,
                evidence,
                "all of its memory is remote: 1.5 to 2 times the latency",
                right,
            ));
        } else if !mems.is_subset(&near) {
            findings.push(
                rule.fail(
                    &subject,
                    evidence,
                    "when its own node is short of free memory, the rest is taken from a remote one, silently",
                    format!("# if its node's memory suffices:\n{right}"),
                )
                .severity(Severity::Info),
            );
        }
        if group.memory_migrate == Some(false) && !group.mems.is_empty() {
            let mount =
                input.facts.mounts.cpuset.as_ref().map_or("/sys/fs/cgroup/cpuset", |m| m.path.as_str());
            let file = format!("{}{}/cpuset.memory_migrate", mount.trim_end_matches('/'), group.path);
            findings.push(
                rule.fail(
                    format!("{subject} (migrate)"),
                    format!("cpuset.mems is {}, cpuset.memory_migrate is 0", group.mems),
                    "memory taken before a change of mems stays where it was",
                    format!("echo 1 > {}", fix::quote(&file)),
                )
                .severity(Severity::Info),
            );
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(rule.or_pass(
        findings,
        format!("{} cpusets on {nodes} nodes, each with memory of its own nodes", groups.len()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn memory_of_the_same_node_passes() {
        assert_eq!(World::new(2).only("cpuset-mems").status, Status::Pass);
        let mut world = World::numa(2, 4);
        world.cpuset("/db", "0-3", "0");
        world.cpuset("/all", "0-7", "0-1");
        assert_eq!(world.only("cpuset-mems").status, Status::Pass);
    }

    #[test]
    fn memory_of_another_node_fails_and_of_more_is_worth_knowing() {
        let mut world = World::numa(2, 4);
        world.cpuset("/db", "0-3", "1");
        let finding = world.only("cpuset-mems");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.fix.unwrap(), "echo 0 > /sys/fs/cgroup/cpuset/db/cpuset.mems");
        let mut world = World::numa(2, 4);
        world.cpuset("/db", "0-3", "0-1");
        assert_eq!(world.only("cpuset-mems").severity, Severity::Info);
        let mut world = World::numa(2, 4);
        world.cpuset("/db", "0-3", "0").memory_migrate = Some(false);
        assert!(world.only("cpuset-mems").evidence.contains("memory_migrate is 0"));
    }

    #[test]
    fn unreadable_mems_are_unknown() {
        let mut world = World::numa(2, 4);
        let group = world.cpuset("/db", "0-3", "");
        group.effective_mems = None;
        assert_eq!(world.only("cpuset-mems").status, Status::Unknown);
        world.facts.cpusets = World::denied("/sys/fs/cgroup/cpuset");
        assert_eq!(world.only("cpuset-mems").status, Status::Unknown);
    }
}
