//! cpusets name only CPUs that are up.

use evenkeel_base::facts::Unknown;

use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "cpuset-offline",
    severity: Severity::Warning,
    about: "no cpuset is wider than the CPUs that are online",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let groups = input.facts.cpusets.get()?;
    let online = &input.observation.topology.online;
    let mut findings = Vec::new();
    for group in groups.iter().filter(|group| group.path != "/") {
        let gone = group.cpus.difference(online);
        if gone.is_empty() {
            continue;
        }
        let left = group.cpus.intersection(online);
        let what = if gone.is_subset(&input.observation.topology.present) { "offline" } else { "not there" };
        let effective = group.effective.as_ref().map_or("not readable".to_owned(), ToString::to_string);
        let finding = rule.fail(
            format!("cgroup {}", group.path),
            format!("cpuset.cpus is {}, of which {gone} {what}; effective CPUs {effective}", group.cpus),
            if left.is_empty() {
                "none of its CPUs is up: its tasks run on the parent's CPUs, where they were not meant to be"
            } else {
                "its tasks crowd on fewer CPUs than planned, and weights are worth more or less than they seem"
            },
            if left.is_empty() {
                bring_up(&gone, input).unwrap_or_else(|| fix::set_cpuset(input, &group.path, online))
            } else {
                let narrow = fix::set_cpuset(input, &group.path, &left);
                bring_up(&gone, input).map_or(narrow.clone(), |up| format!("{up}\n# or, if they are to stay off:\n{narrow}"))
            },
        );
        findings.push(finding.severity(if left.is_empty() { Severity::Error } else { Severity::Warning }));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(rule.or_pass(findings, format!("{} cpusets, all within the online CPUs {online}", groups.len())))
}

/// The command that brings offline CPUs up; `None` when one is not there at all.
fn bring_up(gone: &evenkeel_base::CpuSet, input: &Input<'_>) -> Option<String> {
    gone.is_subset(&input.observation.topology.present).then(|| {
        let numbers: Vec<String> = gone.iter().map(|cpu| cpu.to_string()).collect();
        format!("for cpu in {}; do echo 1 > /sys/devices/system/cpu/cpu$cpu/online; done", numbers.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::World;
    use crate::{Severity, Status};

    #[test]
    fn a_cpuset_with_cpus_that_are_off_fails() {
        let mut world = World::new(4);
        world.cpuset("/web", "0-3", "0");
        assert_eq!(world.only("cpuset-offline").status, Status::Pass);
        world.topology().online = "0-2".parse().unwrap();
        let finding = world.only("cpuset-offline");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert!(finding.evidence.contains("of which 3 offline"), "{}", finding.evidence);
        let fix = finding.fix.unwrap();
        assert!(
            fix.contains("for cpu in 3; do echo 1 > /sys/devices/system/cpu/cpu$cpu/online; done"),
            "{fix}"
        );
        assert!(fix.contains("echo 0-2 > /sys/fs/cgroup/cpuset/web/cpuset.cpus"), "{fix}");
    }

    #[test]
    fn every_cpu_that_is_off_is_brought_up() {
        let mut world = World::new(40);
        world.cpuset("/web", "0-39", "0");
        world.topology().online = "0-9".parse().unwrap();
        let fix = world.only("cpuset-offline").fix.unwrap();
        assert!(fix.starts_with("for cpu in 10 11 ") && fix.contains(" 38 39; do"), "{fix}");
    }

    #[test]
    fn one_with_none_left_is_an_error() {
        let mut world = World::new(4);
        world.cpuset("/gone", "3", "0");
        world.topology().online = "0-2".parse().unwrap();
        assert_eq!(world.only("cpuset-offline").severity, Severity::Error);
    }

    #[test]
    fn unreadable_cpusets_are_unknown() {
        let mut world = World::new(4);
        world.facts.cpusets = World::denied("/sys/fs/cgroup/cpuset");
        assert_eq!(world.only("cpuset-offline").status, Status::Unknown);
    }
}
