//! The hypervisor does not take CPU time away.

use evenkeel_base::facts::Unknown;

use crate::view::list;
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "steal",
    severity: Severity::Warning,
    about: "the hypervisor does not take CPU time away from this guest",
    check,
};

/// Steal of one CPU, percent, from which it is felt: it comes in pieces of a whole host slice, so 2 % may be two
/// stops of 10 ms each second.
const STEAL_PCT: f64 = 2.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let host = &input.observation.host;
    let Some(total) = host.steal_pct else {
        return Err(Unknown("the kernel does not report steal (/proc/stat)".to_owned()));
    };
    let mut cpus: Vec<(u32, f64)> = host
        .per_cpu
        .iter()
        .filter_map(|cpu| cpu.steal_pct.map(|pct| (cpu.cpu, pct)))
        .filter(|c| c.1 > 0.0)
        .collect();
    // Who lost most comes first.
    cpus.sort_by(|a, b| b.1.total_cmp(&a.1));
    match cpus.first() {
        Some((_, pct)) if *pct >= STEAL_PCT => Ok(vec![rule.fail(
            "host",
            format!(
                "stolen {total:.1} % of one CPU in {:.1} s: {}",
                input.observation.interval_s,
                list(cpus.iter().map(|(cpu, pct)| format!("cpu {cpu} {pct:.1} %")))
            ),
            "tasks stop in the middle of their slice without the guest's scheduler knowing; fairness measured inside is not what users see",
            "# on the hypervisor (libvirt), raise the guest's weight or give its vCPUs their own CPUs:\n\
             virsh schedinfo GUEST --set cpu_shares=2048\n\
             virsh vcpupin GUEST VCPU CPU\n\
             # in a public cloud: a size with dedicated CPUs (not burstable), or another host: stop and start it",
        )]),
        _ => Ok(vec![rule.pass("host", format!("stolen {total:.1} % of one CPU"))]),
    }
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::World;

    #[test]
    fn steal_fails_none_passes_unreported_is_unknown() {
        let mut world = World::new(2);
        assert_eq!(world.only("steal").status, Status::Pass);
        world.observation.host.steal_pct = Some(12.0);
        world.observation.host.per_cpu[1].steal_pct = Some(12.0);
        let finding = world.only("steal");
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.evidence.contains("cpu 1 12.0 %"), "{}", finding.evidence);
        // Of many those that lost most.
        let mut many = World::new(20);
        many.observation.host.steal_pct = Some(48.0);
        many.observation.host.per_cpu.iter_mut().for_each(|cpu| cpu.steal_pct = Some(1.0));
        many.observation.host.per_cpu[17].steal_pct = Some(30.0);
        let evidence = many.only("steal").evidence;
        assert!(evidence.contains(": cpu 17 30.0 %, cpu 0 1.0 %,"), "{evidence}");
        assert!(evidence.ends_with(" and 15 more"), "{evidence}");
        world.observation.host.steal_pct = None;
        assert_eq!(world.only("steal").status, Status::Unknown);
    }
}
