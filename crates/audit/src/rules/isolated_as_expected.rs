//! The isolated CPUs are those the policy file names.

use evenkeel_base::facts::Unknown;

use crate::view::booted_host;
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "isolated-as-expected",
    severity: Severity::Error,
    about: "the isolated CPUs are those stated in the policy file (`isolated = \"...\"`)",
    check,
};

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    let isolated = &topology.isolated;
    let named = if isolated.is_empty() { "none".to_owned() } else { isolated.to_string() };
    let Some(expected) = &input.expectations.isolated else {
        return Ok(vec![
            rule.pass("host", format!("isolated: {named}; nothing expected (no policy file says so)")),
        ]);
    };
    if expected == isolated {
        return Ok(vec![rule.pass("host", format!("isolated: {named}, as expected"))]);
    }
    let (missing, extra) = (expected.difference(isolated), isolated.difference(expected));
    let booted = match input.facts.cmdline.get() {
        Ok(cmdline) => {
            let words = |values: Vec<&str>| {
                values.iter().map(|value| format!("isolcpus={value}")).collect::<Vec<_>>().join(" ")
            };
            let (asked, taken) =
                (cmdline.values("isolcpus").collect::<Vec<_>>(), cmdline.isolcpus(&booted_host(input)));
            match (asked.len(), taken.len()) {
                (0, _) => "booted without isolcpus".to_owned(),
                (all, some) if all == some => format!("booted with {}", words(asked)),
                (_, 0) => format!("booted with {}, which the kernel refuses", words(asked)),
                _ => format!("booted with {}; the kernel takes {} of these", words(asked), words(taken)),
            }
        }
        Err(reason) => format!("boot parameters unknown ({reason})"),
    };
    let mut evidence = format!("expected {expected}, isolated are {named}; {booted}");
    let mut consequence = Vec::new();
    if !missing.is_empty() {
        consequence.push(format!("anything may be scheduled on {missing}, which should be quiet"));
        let absent = missing.difference(&topology.present);
        if !absent.is_empty() {
            evidence.push_str(&format!("; this host has no CPU {absent}"));
        }
    }
    if !extra.is_empty() {
        consequence.push(format!("{extra} stay idle unless something is pinned there"));
    }
    let possible = expected.intersection(&topology.present);
    // Those that are off run nothing for the system.
    let fix = if topology.online.is_subset(expected) {
        "# correct the policy, which expects all CPUs that are online to be isolated: none is left for the system"
            .to_owned()
    } else if possible != *expected {
        let present = &topology.present;
        format!("# correct the policy, which expects CPUs that are not there: this host has CPUs {present}")
    } else {
        fix::boot_isolated(expected, &format!(" nohz_full={expected} rcu_nocbs={expected}"))
    };
    Ok(vec![rule.fail("host", evidence, consequence.join("; "), fix)])
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use crate::testing::World;
    use crate::{Severity, Status};

    #[test]
    fn the_expected_cpus_pass_and_others_fail() {
        let world = World::new(8).isolated("2-7");
        assert_eq!(world.only("isolated-as-expected").status, Status::Pass);
        let world = world.expect("isolated = '2-7'");
        assert_eq!(world.only("isolated-as-expected").status, Status::Pass);
        let world = world.expect("isolated = '4-9'");
        let finding = world.only("isolated-as-expected");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Error));
        assert!(finding.evidence.contains("expected 4-9, isolated are 2-7"), "{}", finding.evidence);
        assert!(finding.evidence.contains("no CPU 8-9"), "{}", finding.evidence);
        let fix = finding.fix.unwrap();
        assert!(fix.contains("correct the policy") && !fix.contains("isolcpus"), "{fix}");
        let world = world.expect("isolated = '4-7'");
        let fix = world.only("isolated-as-expected").fix.unwrap();
        assert!(fix.contains("isolcpus=managed_irq,domain,4-7"), "{fix}");
        assert!(
            world.expect("isolated = ''").only("isolated-as-expected").fix.unwrap().contains("remove-args")
        );
    }

    #[test]
    fn of_two_lists_the_one_that_counts_is_named() {
        let evidence = |cmdline: &str| {
            let world = World::new(8).isolated("1").expect("isolated = '2-3'").cmdline(cmdline);
            world.only("isolated-as-expected").evidence
        };
        assert!(evidence("isolcpus=1").ends_with("booted with isolcpus=1"));
        let both = evidence("isolcpus=1 isolcpus=2-3");
        assert!(both.ends_with("isolcpus=1 isolcpus=2-3; the kernel takes isolcpus=1 of these"), "{both}");
    }

    #[test]
    fn which_list_counts_is_told_for_this_host_and_its_kernel() {
        let evidence = |release: &str| {
            let cmdline = "isolcpus=nohz,domain,1-7 nohz_full=1-N isolcpus=managed_irq,2";
            let mut world = World::new(8).isolated("1").expect("isolated = '2-3'").cmdline(cmdline);
            world.facts.release = Known::Value(release.into());
            world.only("isolated-as-expected").evidence
        };
        assert!(evidence("6.18.0").ends_with("booted with isolcpus=nohz,domain,1-7 isolcpus=managed_irq,2"));
        assert!(evidence("5.10.0").ends_with("the kernel takes isolcpus=nohz,domain,1-7 of these"));
    }

    #[test]
    fn no_fix_isolates_every_cpu() {
        let fix = World::new(4).expect("isolated = '0-3'").only("isolated-as-expected").fix.unwrap();
        assert!(fix.contains("correct the policy") && !fix.contains("reboot"), "{fix}");
        // SMT is off.
        let mut world = World::new(8).expect("isolated = '0-3'");
        world.topology().online = "0-3".parse().unwrap();
        let fix = world.only("isolated-as-expected").fix.unwrap();
        assert!(fix.contains("correct the policy") && !fix.contains("reboot"), "{fix}");
    }

    #[test]
    fn unreadable_boot_parameters_are_said_and_do_not_hide_the_mismatch() {
        let mut world = World::new(8).expect("isolated = '2-3'");
        world.facts.cmdline = World::denied("/proc/cmdline");
        let finding = world.only("isolated-as-expected");
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.evidence.contains("/proc/cmdline"), "{}", finding.evidence);
    }
}
