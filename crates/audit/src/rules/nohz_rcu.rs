//! The tick and RCU callbacks are off the CPUs that are isolated, and only off those.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::Unknown;

use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "nohz-rcu",
    severity: Severity::Warning,
    about: "nohz_full and rcu_nocbs name the CPUs that are isolated",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    let (isolated, nohz) = (&topology.isolated, &topology.nohz_full);
    let cmdline = input.facts.cmdline.get()?;
    let asked = cmdline.value("nohz_full");
    if isolated.is_empty() && nohz.is_empty() && asked.is_none() {
        return Ok(vec![rule.pass("host", "no CPU is isolated or without tick")]);
    }
    let set = |cpus: &CpuSet| if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() };
    let evidence = format!(
        "isolated {}, nohz_full {}, rcu_nocbs {}",
        set(isolated),
        set(nohz),
        set(&topology.rcu_nocbs)
    );
    let right = fix::boot_isolated(isolated, &format!(" nohz_full={isolated} rcu_nocbs={isolated}"));
    let mut findings = Vec::new();
    if let Some(asked) = asked.filter(|_| nohz.is_empty()) {
        findings.push(rule.fail(
            "host",
            format!("booted with nohz_full={asked}, but the kernel has no CPU without tick; {evidence}"),
            "the parameter does nothing: this kernel is built without CONFIG_NO_HZ_FULL, or refused the list",
            "grep NO_HZ_FULL /boot/config-$(uname -r); dmesg | grep -i nohz   # then boot a kernel that has it",
        ));
    }
    let open = nohz.difference(isolated);
    if !open.is_empty() {
        findings.push(rule.fail(
            format!("cpus {open}"),
            format!("without tick but not isolated; {evidence}"),
            "other tasks are balanced there; with two to run the tick comes back, and system calls pay for nothing",
            if isolated.is_empty() { fix::boot_isolated(nohz, "") } else { right.clone() },
        ));
    }
    let ticking = isolated.difference(nohz);
    if !ticking.is_empty() {
        findings.push(
            rule.fail(
                format!("cpus {ticking}"),
                format!("isolated but with the periodic tick; {evidence}"),
                "the timer stops the isolated task up to CONFIG_HZ (100 to 1000) times a second",
                right.clone(),
            )
            .severity(Severity::Info),
        );
    }
    // nohz_full implies rcu_nocbs (the kernel's `rcu_init_nohz`).
    let callbacks = isolated.difference(&topology.rcu_nocbs.union(nohz));
    if !callbacks.is_empty() {
        findings.push(
            rule.fail(
                format!("cpus {callbacks} (rcu)"),
                format!("isolated but run their own RCU callbacks; {evidence}"),
                "freeing memory for the whole kernel runs in softirq on CPUs that should be quiet",
                right,
            )
            .severity(Severity::Info),
        );
    }
    Ok(rule.or_pass(findings, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn matching_lists_pass_and_others_fail() {
        assert_eq!(World::new(4).only("nohz-rcu").status, Status::Pass);
        let mut world = World::new(4).isolated("2-3");
        world.topology().nohz_full = "2-3".parse().unwrap();
        assert_eq!(world.only("nohz-rcu").status, Status::Pass);
        world.topology().nohz_full = "1-3".parse().unwrap();
        let finding = world.only("nohz-rcu");
        assert_eq!(
            (finding.status, finding.severity, &*finding.subject),
            (Status::Fail, Severity::Warning, "cpus 1")
        );
        world.topology().nohz_full = CpuSet::new();
        assert!(
            world.run("nohz-rcu").iter().all(|f| f.status == Status::Fail && f.severity == Severity::Info)
        );
        assert_eq!(world.run("nohz-rcu").len(), 2);
    }

    #[test]
    fn a_parameter_without_effect_fails() {
        let world = World::new(4).cmdline("nohz_full=2-3");
        assert!(world.only("nohz-rcu").evidence.contains("booted with nohz_full=2-3"));
    }

    #[test]
    fn unreadable_boot_parameters_are_unknown() {
        let mut world = World::new(4);
        world.facts.cmdline = World::denied("/proc/cmdline");
        assert_eq!(world.only("nohz-rcu").status, Status::Unknown);
    }
}
