//! No interrupt is sent to an isolated CPU.

use evenkeel_base::facts::Unknown;

use crate::view::{booted_host, housekeeping};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "isolated-irq",
    severity: Severity::Warning,
    about: "no interrupt is sent to an isolated CPU (effective affinity)",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let isolated = &input.observation.topology.isolated;
    if isolated.is_empty() {
        return Ok(vec![rule.pass("host", "no CPU is isolated")]);
    }
    let irqs = input.facts.irqs.get()?;
    let free = housekeeping(input.observation);
    let managed =
        input.facts.cmdline.ok().map(|cmdline| cmdline.isolated_from("managed_irq", &booted_host(input)));
    let mut findings = Vec::new();
    for irq in irqs {
        let name = if irq.name.is_empty() { "no handler" } else { &irq.name };
        let subject = format!("irq {} ({name})", irq.irq);
        let (target, file) = match (irq.effective.get(), irq.affinity.get()) {
            (Ok(effective), _) => (effective, "effective_affinity_list"),
            // Without the effective one, an affinity wholly within or without the isolated CPUs still decides.
            (Err(_), Ok(affinity)) if affinity.is_subset(isolated) || !affinity.intersects(isolated) => {
                (affinity, "smp_affinity_list")
            }
            (Err(reason), _) => {
                findings.push((0, rule.unknown(subject, reason.to_string())));
                continue;
            }
        };
        let hit = target.intersection(isolated);
        if hit.is_empty() {
            continue;
        }
        let served = irq.served_on(&hit);
        let mut evidence =
            format!("{file} is {target}, isolated are {isolated}; {served} served there since boot");
        if let Some(affinity) = irq.affinity.ok() {
            evidence.push_str(&format!("; allowed on {affinity}"));
        }
        let mut fix = format!("echo {free} > /proc/irq/{}/smp_affinity_list", irq.irq);
        if !managed.as_ref().is_some_and(|cpus| hit.is_subset(cpus)) {
            fix.push_str(
                "\n# \"Input/output error\": the driver manages it; then boot with isolcpus=managed_irq,domain,CPUS",
            );
        }
        fix.push_str(&format!(
            "\n# where irqbalance runs, keep it away too: IRQBALANCE_BANNED_CPULIST={isolated} in /etc/default/irqbalance"
        ));
        let finding = rule.fail(
            subject,
            evidence,
            format!(
                "each one stops the task CPU {hit} was isolated for, for microseconds, and evicts its cache"
            ),
            fix,
        );
        let severity = if served > 0 { Severity::Warning } else { Severity::Info };
        findings.push((served, finding.severity(severity)));
    }
    findings.sort_by_key(|(served, _)| std::cmp::Reverse(*served));
    let findings = findings.into_iter().map(|(_, finding)| finding).collect();
    Ok(rule.or_pass(findings, format!("{} interrupts, none on {isolated}", irqs.len())))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn an_irq_on_an_isolated_cpu_fails_and_tells_how_often() {
        let mut world = World::new(4).isolated("2-3");
        world.irq(24, "eth0-rx-0", "0-3", Some("1"), &[(1, 500)]);
        assert_eq!(world.only("isolated-irq").status, Status::Pass);
        world.irq(25, "eth0-rx-1", "0-3", Some("3"), &[(3, 70_000)]);
        let finding = world.only("isolated-irq");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.subject, "irq 25 (eth0-rx-1)");
        assert!(finding.evidence.contains("70000 served"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().starts_with("echo 0-1 > /proc/irq/25/smp_affinity_list\n"));
    }

    #[test]
    fn only_an_isolcpus_that_the_kernel_took_keeps_managed_interrupts_away() {
        let is_advised = |cmdline: &str| {
            let mut world = World::new(4).isolated("2-3").cmdline(cmdline);
            world.irq(25, "nvme0q3", "2-3", Some("3"), &[(3, 1)]);
            world.only("isolated-irq").fix.unwrap().contains("then boot with isolcpus=managed_irq")
        };
        assert!(!is_advised("isolcpus=managed_irq,domain,2-3 isolcpus=2-3"));
        assert!(is_advised("isolcpus=2-3") && is_advised("isolcpus=2-3 isolcpus=managed_irq,domain,3"));
        // The interrupt is on CPU 3.
        assert!(is_advised("isolcpus=managed_irq,2 isolcpus=domain,2-3"));
        assert!(!is_advised("isolcpus=managed_irq,3 isolcpus=domain,2-3"));
    }

    #[test]
    fn one_that_never_fired_there_is_only_worth_knowing() {
        let mut world = World::new(4).isolated("2-3");
        world.irq(9, "acpi", "0-3", Some("2"), &[(0, 10)]);
        assert_eq!(world.only("isolated-irq").severity, Severity::Info);
    }

    #[test]
    fn unreadable_interrupts_are_unknown() {
        let mut world = World::new(4).isolated("2-3");
        world.irq(9, "acpi", "0-3", None, &[]);
        assert_eq!(world.only("isolated-irq").status, Status::Unknown);
        world.irq(10, "inside", "2", None, &[(2, 1)]);
        assert_eq!(world.run("isolated-irq").iter().filter(|f| f.status == Status::Fail).count(), 1);
        world.facts.irqs = Known::Unknown("/proc/irq: permission denied (os error 13)".into());
        let finding = world.only("isolated-irq");
        assert_eq!(finding.status, Status::Unknown);
        assert!(finding.evidence.contains("/proc/irq: permission denied"));
    }
}
