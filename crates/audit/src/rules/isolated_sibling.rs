//! The SMT siblings of isolated CPUs are isolated or off.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{Cpu, CpuSet, text};

use super::isolcpus_housekeeping::least_left;
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
    let here = |cpu: &&Cpu| topology.isolated.contains(cpu.cpu) && topology.online.contains(cpu.cpu);
    let cores = Cores::of(input);
    for cpu in topology.cpus.iter().filter(here) {
        let open = cpu.siblings.intersection(&topology.online).difference(&topology.isolated);
        for sibling in open.iter().filter(|&sibling| sibling != cpu.cpu) {
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
                cores.fix(sibling),
            );
            let severity = if pct >= SIBLING_BUSY_PCT { Severity::Warning } else { Severity::Info };
            findings.push(finding.severity(severity));
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(rule.or_pass(findings, format!("isolated {} have no open siblings", topology.isolated)))
}

/// What to isolate as a whole. There is one list for the next boot, whichever sibling a finding is about.
struct Cores {
    /// CPUs that are isolated now.
    now: CpuSet,
    /// Whole cores.
    whole: CpuSet,
    /// CPUs that are left once every sibling is isolated, or off, and how many are wanted; `None` where these are enough.
    too_few: Option<(usize, usize)>,
    /// More are wanted than the host has: no list is right.
    is_hopeless: bool,
}

impl Cores {
    /// All cores with an isolated CPU where that leaves enough CPUs for everything else; otherwise as many as have room for what
    /// runs on the isolated CPUs now: on a host where each core has one, all cores would be all CPUs.
    fn of(input: &Input<'_>) -> Self {
        let topology = &input.observation.topology;
        let now = topology.isolated.intersection(&topology.online);
        let mut cores: Vec<CpuSet> = Vec::new();
        for cpu in topology.cpus.iter().filter(|cpu| now.contains(cpu.cpu)) {
            let core = cpu.siblings.intersection(&topology.online).union(&CpuSet::single(cpu.cpu));
            if !cores.contains(&core) {
                cores.push(core);
            }
        }
        let left = |isolated: &CpuSet| topology.online.difference(isolated).len();
        let is_enough = |isolated: &CpuSet| left(isolated) >= least_left(input, isolated.len());
        let all = cores.iter().fold(now.clone(), |all, core| all.union(core));
        if is_enough(&all) {
            // Those that are off may be on after the next boot.
            return Self { now, whole: all.union(&topology.isolated), too_few: None, is_hopeless: false };
        }
        // Cores that are isolated as a whole stay so; the first CPU is the last to be isolated, for it boots the system.
        cores.sort_by_key(|core| (!core.is_subset(&now), std::cmp::Reverse(core.first())));
        let mut whole = CpuSet::new();
        for core in cores {
            let more = whole.union(&core);
            if whole.len() < now.len() && is_enough(&more) {
                whole = more;
            }
        }
        let wanted = least_left(input, all.len());
        Self { now, whole, too_few: Some((left(&all), wanted)), is_hopeless: wanted > topology.online.len() }
    }

    fn fix(&self, sibling: u32) -> String {
        if self.is_hopeless {
            return "# the policy wants more CPUs for housekeeping than are online: see isolcpus-housekeeping"
                .to_owned();
        }
        let boot = fix::boot_isolated(&self.whole, "");
        let Some((left, wanted)) = self.too_few else {
            return format!(
                "echo 0 > /sys/devices/system/cpu/cpu{sibling}/online   # until the next boot\n{boot}"
            );
        };
        let left =
            format!("{} would be left for the system (at least {wanted} wanted)", text::count(left, "CPU"));
        let now = &self.now;
        if self.whole.is_empty() {
            return format!(
                "# with every sibling isolated, or off, {left}, and no core can be spared: give up isolation\n{boot}"
            );
        }
        let open = now.difference(&self.whole);
        let move_them = if open.is_empty() {
            String::new()
        } else {
            format!("; what is pinned to {open} has to move there")
        };
        format!(
            "# with every sibling isolated, or off, {left}: instead of {now}, isolate the whole cores {}{move_them}\n{boot}",
            self.whole
        )
    }
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
        // Three cores with two threads: 0,3 1,4 2,5. One is left for the system.
        let fixes = fixes(&World::smt(3).isolated("1,2"));
        assert_eq!(fixes.len(), 2);
        assert!(fixes.iter().all(|fix| fix.contains("isolcpus=managed_irq,domain,1-2,4-5 ")), "{fixes:?}");
        assert!(fixes.iter().all(|fix| fix.contains("/online")), "{fixes:?}");
    }

    fn fixes(world: &World) -> Vec<String> {
        world.run("isolated-sibling").into_iter().filter_map(|f| f.fix).collect()
    }

    #[test]
    fn no_fix_leaves_the_system_without_a_cpu() {
        // Cores 0,4 1,5 2,6 3,7, one thread of each isolated: with all siblings that is the host.
        let all = fixes(&World::smt(4).isolated("0-3"));
        assert_eq!(all.len(), 4);
        for fix in &all {
            assert!(fix.contains("isolcpus=managed_irq,domain,2-3,6-7 "), "{fix}");
            assert!(
                fix.contains("0 CPUs would be left") && fix.contains("pinned to 0-1 has to move"),
                "{fix}"
            );
            assert!(!fix.contains("/online"), "{fix}");
        }
        // An odd number has room on one core more; a core that is whole already stays.
        assert!(fixes(&World::smt(3).isolated("0-2"))[0].contains("domain,1-2,4-5 "));
        assert!(fixes(&World::smt(4).isolated("0-4"))[0].contains("domain,0,2-4,6-7 "));
        // The policy wants more than a core for the system.
        let world = World::smt(4).isolated("1-3").expect("housekeeping = 4");
        let fix = &fixes(&world)[0];
        assert!(fix.contains("domain,2-3,6-7 "), "{fix}");
        assert!(fix.contains("2 CPUs would be left for the system (at least 4 wanted)"), "{fix}");
        // No isolation is to be given up for what the host does not have.
        let fix = &fixes(&World::smt(4).isolated("1-3").expect("housekeeping = 100"))[0];
        assert!(fix.contains("see isolcpus-housekeeping") && !fix.contains("reboot"), "{fix}");
        let alone = fixes(&World::smt(1).isolated("1"));
        assert!(
            alone[0].contains("give up isolation") && alone[0].contains("remove-args=isolcpus"),
            "{alone:?}"
        );
    }

    #[test]
    fn unread_busy_time_is_unknown() {
        let mut world = World::smt(2).isolated("3");
        world.busy(&[]);
        assert_eq!(world.only("isolated-sibling").status, Status::Unknown);
    }
}
