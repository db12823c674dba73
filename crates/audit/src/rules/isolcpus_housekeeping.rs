//! Isolation leaves enough CPUs for everything else.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::Unknown;
use evenkeel_base::text::count;

use crate::view::{busy_by_cpu, housekeeping};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "isolcpus-housekeeping",
    severity: Severity::Warning,
    about: "isolation leaves enough CPUs for the kernel and everything else",
    check,
};

/// One CPU for housekeeping for each this many: interrupts, RCU callbacks and timers of the isolated ones land there.
/// Telecom set-ups keep one core of each socket of 16 to 32 CPUs.
const ISOLATED_PER_HOUSEKEEPING: usize = 32;

/// Mean busy time of the housekeeping CPUs from which they are short, while isolated ones idle.
const FULL_PCT: f64 = 90.0;

/// Mean busy time of the isolated CPUs below which they would have room.
const IDLE_PCT: f64 = 50.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let topology = &observation.topology;
    let isolated = topology.isolated.intersection(&topology.online);
    let free = housekeeping(observation);
    let wanted = input.expectations.housekeeping.map(|n| n as usize);
    let least = least_left(input, isolated.len());
    if isolated.is_empty() && wanted.is_none_or(|wanted| free.len() >= wanted) {
        return Ok(vec![rule.pass("host", format!("no CPU is isolated, {} for everything", free.len()))]);
    }
    let mut findings = Vec::new();
    let cpus = free.len() + isolated.len();
    if least > cpus {
        findings.push(
            rule.fail(
                "host",
                format!(
                    "this host has {} online; the policy wants {least} for housekeeping",
                    count(cpus, "CPU")
                ),
                "no setting can give them",
                "# correct the policy: housekeeping is at most the number of CPUs",
            )
            .severity(Severity::Error),
        );
    } else if free.len() < least {
        let give_back: CpuSet = isolated.iter().take(least - free.len()).collect();
        let keep = isolated.difference(&give_back);
        findings.push(
            rule.fail(
                "host",
                format!("{} left ({free}) with {isolated} isolated; at least {least} wanted", count(free.len(), "CPU")),
                "interrupts, kernel threads and every ordinary process crowd there and delay the isolated CPUs too",
                fix::boot_isolated(&keep, ""),
            )
            .severity(if free.is_empty() || wanted.is_some() { Severity::Error } else { Severity::Warning }),
        );
    }
    let busy = busy_by_cpu(observation);
    match (mean(&busy, &free), mean(&busy, &isolated)) {
        (Some(full), Some(idle)) if full >= FULL_PCT && idle < IDLE_PCT => {
            let give_back: CpuSet = isolated.iter().take(1).collect();
            let keep = isolated.difference(&give_back);
            findings.push(rule.fail(
                format!("cpus {free}"),
                format!("housekeeping CPUs {free} are {full:.0} % busy, isolated {isolated} {idle:.0} %"),
                "everything that is not pinned waits while CPUs idle next to it",
                fix::boot_isolated(&keep, ""),
            ));
        }
        (None, _) if !free.is_empty() => {
            findings.push(rule.unknown(format!("cpus {free}"), "their busy time could not be read"));
        }
        _ => {}
    }
    for node in &topology.nodes {
        if !node.cpus.is_empty() && node.cpus.is_subset(&isolated) {
            findings.push(
                rule.fail(
                    format!("node {}", node.node),
                    format!("all its CPUs ({}) are isolated", node.cpus),
                    "interrupts and kernel work for its devices and memory are served by another node",
                    fix::boot_isolated(&isolated.difference(&node.cpus.iter().take(1).collect()), ""),
                )
                .severity(Severity::Info),
            );
        }
    }
    Ok(rule.or_pass(findings, format!("{isolated} isolated, {free} left")))
}

/// CPUs that should be left for housekeeping beside so many isolated ones: what the policy wants, or one for each 32.
pub(super) fn least_left(input: &Input<'_>, isolated: usize) -> usize {
    let wanted = input.expectations.housekeeping.map(|n| n as usize);
    wanted.unwrap_or_else(|| isolated.div_ceil(ISOLATED_PER_HOUSEKEEPING).max(1))
}

fn mean(busy: &std::collections::BTreeMap<u32, f64>, cpus: &CpuSet) -> Option<f64> {
    let known: Vec<f64> = cpus.iter().filter_map(|cpu| busy.get(&cpu).copied()).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn too_few_left_fails_by_default_and_by_policy() {
        assert_eq!(World::new(4).only("isolcpus-housekeeping").status, Status::Pass);
        assert_eq!(World::new(4).isolated("2-3").only("isolcpus-housekeeping").status, Status::Pass);
        let finding = World::new(64).isolated("1-63").only("isolcpus-housekeeping");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert!(finding.fix.unwrap().contains("isolcpus=managed_irq,domain,2-63"));
        let finding = World::new(4).isolated("2-3").expect("housekeeping = 3").only("isolcpus-housekeeping");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Error));
    }

    #[test]
    fn a_policy_that_no_setting_can_meet_is_to_be_corrected() {
        for world in [World::new(2), World::new(2).isolated("1")] {
            let finding = world.expect("housekeeping = 99").only("isolcpus-housekeeping");
            let fix = finding.fix.unwrap();
            assert!(fix.contains("correct the policy") && !fix.contains("reboot"), "{fix}");
            assert!(finding.evidence.contains("2 CPUs online"), "{}", finding.evidence);
        }
    }

    #[test]
    fn crowded_housekeeping_beside_idle_isolated_cpus_fails() {
        let mut world = World::new(4).isolated("1-3");
        world.busy(&[97.0, 0.0, 10.0, 0.0]);
        let finding = world.only("isolcpus-housekeeping");
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.evidence.contains("97 % busy"), "{}", finding.evidence);
        // The kernel takes the first of two: what is there already must not come before it.
        let fix = finding.fix.unwrap();
        let line = "GRUB_CMDLINE_LINUX=\"isolcpus=managed_irq,domain,2-3 $GRUB_CMDLINE_LINUX\"";
        assert!(fix.contains(line), "{fix}");
    }

    #[test]
    fn no_list_of_cpus_is_empty() {
        let mut world = World::new(2).isolated("1");
        world.busy(&[97.0, 0.0]);
        let fix = world.only("isolcpus-housekeeping").fix.unwrap();
        assert!(!fix.contains("domain,") && fix.contains("--remove-args=isolcpus"), "{fix}");
    }

    #[test]
    fn unread_busy_time_is_unknown() {
        let mut world = World::new(4).isolated("2-3");
        world.busy(&[]);
        assert_eq!(world.only("isolcpus-housekeeping").status, Status::Unknown);
    }
}
