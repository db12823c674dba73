//! Tasks pinned to one CPU do not share its core with another busy one while cores idle.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuSet, TaskView};

use crate::view::{busy_by_cpu, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "smt-pinned",
    severity: Severity::Warning,
    about: "no busy task is pinned next to a busy SMT sibling while a whole core idles",
    check,
};

/// CPU of a pinned task from which sharing a core costs it something.
const BUSY_PCT: f64 = 20.0;

/// Busy time of all threads of a core below which it counts as idle.
const IDLE_CORE_PCT: f64 = 20.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    if !topology.has_smt() {
        return Ok(vec![rule.pass("host", "no core has two threads online")]);
    }
    let busy = busy_by_cpu(input.observation);
    let online = |cpus: &CpuSet| cpus.intersection(&topology.online);
    // `None` where any is not known.
    let core_busy = |cpus: &CpuSet| cpus.iter().map(|cpu| busy.get(&cpu).copied()).sum::<Option<f64>>();
    let mut free: Vec<CpuSet> = topology
        .cpus
        .iter()
        .filter(|cpu| cpu.online && cpu.core == Some(cpu.cpu))
        .map(|cpu| online(&cpu.siblings))
        .filter(|siblings| core_busy(siblings).is_some_and(|pct| pct < IDLE_CORE_PCT))
        .collect();
    let (mut findings, mut pinned, mut moved) = (Vec::new(), 0, CpuSet::new());
    let mut tasks: Vec<&TaskView> =
        input.observation.tasks.iter().filter(|t| !t.kernel_thread && t.cpu_pct >= BUSY_PCT).collect();
    tasks.sort_by(|a, b| b.cpu_pct.total_cmp(&a.cpu_pct));
    for task in tasks {
        let Some(affinity) = &task.affinity else {
            findings.push(rule.unknown(task_name(task), "its affinity could not be read"));
            continue;
        };
        let (1, Some(cpu)) = (affinity.len(), affinity.first()) else { continue };
        pinned += 1;
        let Some(entry) = topology.cpu(cpu) else { continue };
        let mut others = online(&entry.siblings);
        others.remove(cpu);
        let Some(beside) = core_busy(&others) else {
            findings.push(rule.unknown(
                task_name(task),
                format!("pinned to CPU {cpu}; busy time of its sibling(s) {others} not read"),
            ));
            continue;
        };
        // Moving one of two pinned siblings away is enough.
        if beside < BUSY_PCT || others.intersects(&moved) {
            continue;
        }
        moved.insert(cpu);
        // The kernel refuses a CPU that its group's cpuset does not have. What has an isolated CPU keeps one, and others stay out.
        let cpuset = input.observation.group_of(task).and_then(|group| group.cpuset.as_ref());
        let is_isolated = |cpu: u32| topology.isolated.contains(cpu);
        // Whom a CPU was given may sleep now.
        let is_others = |cpu: u32| input.expectations.is_given(input.observation, task, cpu) == Some(false);
        let suitable = |core: &CpuSet| {
            let is_alike = core.iter().all(|to| is_isolated(to) == is_isolated(cpu) && !is_others(to));
            core.iter().find(|to| is_alike && cpuset.is_none_or(|cpus| cpus.contains(*to)))
        };
        let target = free.iter().enumerate().find_map(|(at, core)| Some((at, suitable(core)?)));
        let target = target.map(|(at, to)| {
            free.remove(at);
            to
        });
        let finding = rule.fail(
            task_name(task),
            format!("pinned to CPU {cpu}, {:.0} % CPU; its sibling(s) {others} {beside:.0} % busy", task.cpu_pct),
            "while both threads of a core work, each gets some 50 to 65 % of its speed",
            match target {
                Some(target) => format!("taskset -pc {target} {}   # a core that is idle now", task.id.tid),
                None => format!("# no idle core is left that it may use; for this task's sake: echo 0 > /sys/devices/system/cpu/cpu{}/online", others.first().unwrap_or(cpu)),
            },
        );
        findings.push(finding.severity(if target.is_some() { Severity::Warning } else { Severity::Info }));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(rule.or_pass(findings, format!("{pinned} busy pinned tasks, none next to a busy sibling")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn two_on_one_core_beside_an_idle_one_fail() {
        assert_eq!(World::new(2).only("smt-pinned").status, Status::Pass);
        // Core 0 is CPUs 0 and 2, core 1 is CPUs 1 and 3.
        let mut world = World::smt(2);
        world.busy(&[100.0, 0.0, 90.0, 0.0]);
        world.task("a", 100.0).cpu(0).affinity("0");
        world.task("b", 90.0).cpu(2).affinity("2");
        let finding = world.only("smt-pinned");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert!(finding.fix.unwrap().starts_with("taskset -pc 1 100 "));
        world.busy(&[100.0, 90.0, 90.0, 90.0]);
        assert_eq!(world.only("smt-pinned").severity, Severity::Info);
        world.observation.tasks.pop();
        world.busy(&[100.0, 0.0, 0.0, 0.0]);
        assert_eq!(world.only("smt-pinned").status, Status::Pass);
    }

    #[test]
    fn no_core_outside_its_cpuset_is_offered() {
        // Cores are CPUs 0 and 3, 1 and 4, 2 and 5.
        let mut world = World::smt(3);
        let group = world.group("/web", 1024);
        world.observation.groups[group as usize].cpuset = Some("0,2-3,5".parse().unwrap());
        world.busy(&[100.0, 0.0, 0.0, 90.0, 0.0, 0.0]);
        world.task("a", 100.0).cpu(0).affinity("0").in_group(group);
        world.task("b", 90.0).cpu(3).affinity("3").in_group(group);
        let fix = world.only("smt-pinned").fix.unwrap();
        assert!(fix.starts_with("taskset -pc 2 100 "), "{fix}");
        world.observation.groups[group as usize].cpuset = Some("0,3".parse().unwrap());
        assert_eq!(world.only("smt-pinned").severity, Severity::Info);
    }

    #[test]
    fn what_is_not_read_is_not_idle() {
        let mut world = World::smt(2);
        world.task("a", 100.0).cpu(0).affinity("0");
        // Of core 1 only CPU 1 is known.
        world.busy(&[100.0, 0.0, 90.0]);
        let finding = world.only("smt-pinned");
        assert!(finding.severity == Severity::Info && !finding.fix.unwrap().contains("taskset"));
        world.busy(&[100.0, 0.0]);
        assert_eq!(world.only("smt-pinned").status, Status::Unknown, "its sibling, CPU 2");
    }

    #[test]
    fn any_thread_of_an_idle_core_is_offered_that_the_task_may_use() {
        // Cores are CPUs 0 and 2, 1 and 3.
        let mut world = World::smt(2);
        let group = world.group("/web", 1024);
        world.observation.groups[group as usize].cpuset = Some("0,2-3".parse().unwrap());
        world.busy(&[100.0, 0.0, 90.0, 0.0]);
        world.task("a", 100.0).cpu(0).affinity("0").in_group(group);
        let fix = world.only("smt-pinned").fix.unwrap();
        assert!(fix.starts_with("taskset -pc 3 100 "), "{fix}");
    }

    #[test]
    fn a_task_on_an_isolated_cpu_stays_on_one() {
        // Cores are CPUs 0 and 3, 1 and 4, 2 and 5.
        let fix = |isolated: &str| {
            let mut world = World::smt(3).isolated(isolated);
            world.busy(&[100.0, 0.0, 0.0, 90.0, 0.0, 0.0]);
            world.task("poll", 100.0).cpu(0).affinity("0");
            world.only("smt-pinned").fix.unwrap()
        };
        assert!(fix("0,2-3,5").starts_with("taskset -pc 2 100 "), "{}", fix("0,2-3,5"));
        assert!(fix("1,4").starts_with("taskset -pc 2 100 "), "{}", fix("1,4"));
        assert!(fix("0,3").starts_with("# no idle core is left that it may use"), "{}", fix("0,3"));
    }

    #[test]
    fn no_core_that_was_given_to_others_is_offered() {
        // Cores are CPUs 0 and 4, 1 and 5, 2 and 6, 3 and 7.
        let fix = |to: &str| {
            let given = format!("[[given]]\ncpus = '1-2'\nto = ['{to}']");
            let mut world = World::smt(4).isolated("0-2,4-6").expect(&given);
            world.busy(&[100.0, 0.0, 0.0, 0.0, 90.0, 0.0, 0.0, 0.0]);
            world.task("poll", 100.0).cpu(0).affinity("0");
            world.only("smt-pinned").fix.unwrap()
        };
        assert!(fix("comm:^poll").starts_with("taskset -pc 1 100 "), "{}", fix("comm:^poll"));
        let none = fix("comm:^dpdk");
        assert!(none.starts_with("# no idle core is left that it may use"), "{none}");
    }

    #[test]
    fn unread_affinity_is_unknown() {
        let mut world = World::smt(2);
        world.task("a", 100.0).cpu(0).no_affinity();
        assert_eq!(world.only("smt-pinned").status, Status::Unknown);
    }
}
