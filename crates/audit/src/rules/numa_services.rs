//! Services the policy file groups are on one NUMA node together.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuSet, TaskView};

use crate::view::{list, nodes_of, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "numa-services",
    severity: Severity::Error,
    about: "services the policy file groups (`[[numa]]`) are bound to one NUMA node together",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    if input.expectations.numa.is_empty() {
        return Ok(vec![rule.pass("host", "nothing expected (no policy file says so)")]);
    }
    let observation = input.observation;
    let topology = &observation.topology;
    let mut findings = Vec::new();
    for service in &input.expectations.numa {
        let subject = format!("numa group {}", service.name);
        let tasks: Vec<&TaskView> = observation
            .tasks
            .iter()
            .filter(|task| service.services.iter().any(|matcher| matcher.matches(observation, task)))
            .collect();
        if tasks.is_empty() {
            findings.push(rule.unknown(subject, "no running task matches its `services`"));
            continue;
        }
        if let Some(node) = service.node.filter(|node| !topology.nodes.iter().any(|n| n.node == *node)) {
            findings.push(rule.fail(
                subject,
                format!("it should be on node {node}; this host has none of that number"),
                "the policy file is for another machine, or memory of that node is missing",
                "evenkeel topology   # shows the nodes; then correct `node` in the policy file",
            ));
            continue;
        }
        // Home: the node named, else where most of the CPU time is spent.
        let used = |cpus: &CpuSet| -> f64 {
            tasks
                .iter()
                .filter(|t| t.cpu.is_some_and(|c| cpus.contains(c)))
                .map(|t| t.cpu_pct.max(1e-3))
                .sum()
        };
        let home = match service.node {
            Some(node) => topology.nodes.iter().find(|n| n.node == node),
            None => topology.nodes.iter().max_by(|a, b| used(&a.cpus).total_cmp(&used(&b.cpus))),
        };
        let Some(home) = home else { return Err(Unknown("the NUMA nodes could not be read".to_owned())) };
        let unread = tasks.iter().filter(|task| task.affinity.is_none() && task.cpu.is_none()).count();
        let astray: Vec<&&TaskView> = tasks
            .iter()
            .filter(|task| match (&task.affinity, task.cpu) {
                (Some(affinity), _) => !affinity.intersection(&topology.online).is_subset(&home.cpus),
                (None, Some(cpu)) => !home.cpus.contains(cpu),
                (None, None) => false,
            })
            .collect();
        let Some(_) = astray.first() else {
            findings.push(if unread > 0 {
                rule.unknown(
                    subject,
                    format!("where {unread} of its {} tasks may run could not be read", tasks.len()),
                )
            } else {
                rule.pass(subject, format!("{} tasks, all bound to node {}", tasks.len(), home.node))
            });
            continue;
        };
        let ran: CpuSet = tasks.iter().filter_map(|task| task.cpu).collect();
        let ran_on = nodes_of(observation, &ran);
        let mut processes: Vec<u32> = astray.iter().map(|task| task.id.tgid).collect();
        processes.dedup();
        let cpus = home.cpus.intersection(&topology.online).difference(&topology.isolated);
        let cpus = if cpus.is_empty() { home.cpus.clone() } else { cpus };
        let commands: Vec<String> =
            processes.iter().map(|tgid| format!("taskset -apc {cpus} {tgid}")).collect();
        findings.push(rule.fail(
            subject,
            format!(
                "{} of {} tasks may leave node {} ({}): {}; they ran on node(s) {ran_on}",
                astray.len(),
                tasks.len(),
                home.node,
                home.cpus,
                list(astray.iter().map(|task| task_name(task))),
            ),
            "they exchange data across the interconnect, and memory is taken from whichever node they happen to be on",
            format!(
                "{}\n# lasting, for a systemd unit: systemctl set-property UNIT AllowedCPUs={cpus} AllowedMemoryNodes={}",
                commands.join("\n"),
                home.node
            ),
        ));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    const GROUP: &str = "[[numa]]\nname = 'shop'\nservices = ['comm:^db', 'comm:^web']";

    #[test]
    fn bound_to_one_node_passes_and_free_to_leave_fails() {
        assert_eq!(World::numa(2, 4).only("numa-services").status, Status::Pass);
        let mut world = World::numa(2, 4).expect(GROUP);
        world.task("db", 50.0).cpu(1).affinity("0-3");
        world.task("web", 20.0).cpu(2).affinity("0-1");
        assert_eq!(world.only("numa-services").status, Status::Pass);
        world.task("web2", 20.0).cpu(5).affinity("0-7");
        let finding = world.only("numa-services");
        assert_eq!(finding.status, Status::Fail);
        assert!(
            finding.evidence.contains("1 of 3 tasks may leave node 0 (0-3): task 102 (web2)"),
            "{}",
            finding.evidence
        );
        assert!(finding.fix.unwrap().starts_with("taskset -apc 0-3 102\n"));
    }

    #[test]
    fn the_node_named_decides() {
        let mut world = World::numa(2, 4).expect(&format!("{GROUP}\nnode = 1"));
        world.task("db", 50.0).cpu(1).affinity("0-3");
        assert_eq!(world.only("numa-services").status, Status::Fail);
        let world = World::numa(2, 4).expect(&format!("{GROUP}\nnode = 7"));
        assert_eq!(world.only("numa-services").status, Status::Unknown, "no task yet");
    }

    #[test]
    fn nobody_there_and_nothing_readable_are_unknown() {
        let mut world = World::numa(2, 4).expect(GROUP);
        assert!(world.only("numa-services").evidence.contains("no running task"));
        world.task("db", 50.0).no_affinity().no_cpu();
        assert_eq!(world.only("numa-services").status, Status::Unknown);
    }
}
