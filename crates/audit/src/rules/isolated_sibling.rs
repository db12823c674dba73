//! The SMT siblings of isolated CPUs are isolated or off.

use evenkeel_base::Cpu;
use evenkeel_base::facts::Unknown;

use crate::view::busy_by_cpu;
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "isolated-sibling",
    severity: Severity::Warning,
    about: "the SMT siblings of isolated CPUs are isolated too, or off",
    check,
};

/// Busy time of a sibling from which it takes a noticeable part of the shared core.
const SIBLING_BUSY_PCT: f64 = 5.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    if topology.isolated.is_empty() {
        return Ok(vec![rule.pass("host", "no CPU is isolated")]);
    }
    let busy = busy_by_cpu(input.observation);
    let mut findings = Vec::new();
    let isolated = || {
        let here = |cpu: &&Cpu| topology.isolated.contains(cpu.cpu) && topology.online.contains(cpu.cpu);
        topology.cpus.iter().filter(here)
    };
    let open = |cpu: &Cpu| cpu.siblings.intersection(&topology.online).difference(&topology.isolated);
    // There is one list for the next boot, whichever sibling the finding is about.
    let all = isolated().fold(topology.isolated.clone(), |all, cpu| all.union(&open(cpu)));
    for cpu in isolated() {
        for sibling in open(cpu).iter().filter(|&sibling| sibling != cpu.cpu) {
            let subject = format!("cpu {sibling}");
            let Some(&pct) = busy.get(&sibling) else {
                findings.push(
                    rule.unknown(subject, format!("sibling of isolated CPU {}; no busy time read", cpu.cpu)),
                );
                continue;
            };
            let finding = rule.fail(
                subject,
                format!(
                    "shares a core with isolated CPU {}, is not isolated itself, {pct:.0} % busy",
                    cpu.cpu
                ),
                format!(
                    "while CPU {sibling} works, the task on CPU {} gets part of the core's units and caches only",
                    cpu.cpu
                ),
                format!(
                    "echo 0 > /sys/devices/system/cpu/cpu{sibling}/online   # until the next boot\n{}",
                    fix::boot_isolated(&all, "")
                ),
            );
            let severity = if pct >= SIBLING_BUSY_PCT { Severity::Warning } else { Severity::Info };
            findings.push(finding.severity(severity));
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(rule.or_pass(findings, format!("isolated {} have no open siblings", topology.isolated)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn an_open_sibling_is_named_and_matters_when_busy() {
        // Two cores with two threads: 0,2 and 1,3.
        let mut world = World::smt(2).isolated("1,3");
        assert_eq!(world.only("isolated-sibling").status, Status::Pass);
        world = World::smt(2).isolated("3");
        world.busy(&[0.0, 80.0, 0.0, 100.0]);
        let finding = world.only("isolated-sibling");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.subject, "cpu 1");
        assert!(finding.fix.unwrap().contains("cpu1/online"));
        world.busy(&[0.0, 1.0, 0.0, 100.0]);
        assert_eq!(world.only("isolated-sibling").severity, Severity::Info);
    }

    #[test]
    fn every_fix_for_the_next_boot_names_all_siblings() {
        // Two cores with two threads: 0,2 and 1,3.
        let mut world = World::smt(2).isolated("0,1");
        world.busy(&[0.0, 0.0, 9.0, 9.0]);
        let fixes: Vec<String> = world.run("isolated-sibling").into_iter().filter_map(|f| f.fix).collect();
        assert_eq!(fixes.len(), 2);
        assert!(fixes.iter().all(|fix| fix.contains("0-3")), "{fixes:?}");
    }

    #[test]
    fn unread_busy_time_is_unknown() {
        let mut world = World::smt(2).isolated("3");
        world.busy(&[]);
        assert_eq!(world.only("isolated-sibling").status, Status::Unknown);
    }
}
