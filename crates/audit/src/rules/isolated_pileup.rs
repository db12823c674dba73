//! Busy tasks given several isolated CPUs do not pile up on one of them.

use std::collections::BTreeMap;

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuSet, TaskView, excerpt};

use crate::view::{HUNGRY_PCT, busy_by_cpu, demand_pct, is_fair, list, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "isolated-pileup",
    severity: Severity::Warning,
    about: "busy tasks given several isolated CPUs are not piled up on one (nothing balances load there)",
    check,
};

/// Busy time under which an isolated CPU counts as free for one of the piled-up tasks.
const FREE_PCT: f64 = 20.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    if topology.isolated.is_empty() {
        return Ok(vec![rule.pass("host", "no CPU is isolated")]);
    }
    let busy = busy_by_cpu(input.observation);
    let (mut by_cpu, mut findings) = (BTreeMap::<u32, Vec<&TaskView>>::new(), Vec::new());
    for task in input.observation.tasks.iter().filter(|t| is_fair(t) && !t.kernel_thread) {
        let Some(cpu) = task.cpu.filter(|&cpu| topology.isolated.contains(cpu)) else { continue };
        if task.wait_pct.is_none() && task.cpu_pct >= 1.0 {
            findings.push(rule.unknown(task_name(task), "the time it waited for a CPU could not be read"));
        }
        if demand_pct(task) >= HUNGRY_PCT {
            by_cpu.entry(cpu).or_default().push(task);
        }
    }
    let idle = |cpu: &u32| busy.get(cpu).is_some_and(|pct| *pct < FREE_PCT);
    let mut free: CpuSet = topology.isolated.iter().filter(idle).collect();
    for (cpu, tasks) in by_cpu.into_iter().filter(|(_, tasks)| tasks.len() > 1) {
        free.remove(cpu);
        let is_others = |task: &TaskView, cpu: u32| {
            input.expectations.is_given(input.observation, task, cpu) == Some(false)
        };
        let nearly_idle: CpuSet =
            free.iter().filter(|&cpu| tasks.iter().any(|task| !is_others(task, cpu))).collect();
        // Each gets a CPU of its own that it was given, and one stays.
        let moved = tasks.iter().filter_map(|task| {
            let target =
                task.affinity.as_ref()?.intersection(&free).iter().find(|&cpu| !is_others(task, cpu))?;
            free.remove(target);
            Some(format!("taskset -pc {target} {}   # {}", task.id.tid, excerpt(&task.comm)))
        });
        let fix: Vec<String> = moved.take(tasks.len() - 1).collect();
        if fix.is_empty() {
            continue;
        }
        findings.push(rule.fail(
            format!("cpu {cpu}"),
            format!(
                "{} busy tasks on isolated CPU {cpu} ({}) while isolated {nearly_idle} are nearly idle",
                tasks.len(),
                list(tasks.iter().map(|t| format!("{} {} {:.0} %", t.id, t.comm, t.cpu_pct))),
            ),
            "isolated CPUs are outside load balancing: these tasks share one CPU for ever",
            fix.join("\n"),
        ));
    }
    Ok(rule.or_pass(findings, format!("no two busy tasks share a CPU of {} needlessly", topology.isolated)))
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn threads_stuck_on_one_isolated_cpu_are_spread_by_the_fix() {
        let mut world = World::new(4).isolated("2-3");
        world.busy(&[5.0, 5.0, 100.0, 0.0]);
        world.task("poll-1", 50.0).cpu(2).affinity("2-3").wait(50.0);
        assert_eq!(world.only("isolated-pileup").status, Status::Pass);
        world.task("poll-2", 50.0).cpu(2).affinity("2-3").wait(50.0);
        let finding = world.only("isolated-pileup");
        assert_eq!(finding.status, Status::Fail);
        assert_eq!(finding.fix.unwrap(), "taskset -pc 3 100   # poll-1");
    }

    #[test]
    fn each_goes_to_a_free_cpu_that_it_was_given() {
        let mut world = World::new(8).isolated("2-7");
        world.busy(&[5.0, 5.0, 0.0, 100.0, 0.0, 100.0, 0.0, 0.0]);
        for (cpu, affinity) in [(3, "3-4"), (3, "3-4"), (5, "4-6"), (5, "4-6")] {
            world.task("poll", 50.0).cpu(cpu).affinity(affinity).wait(50.0);
        }
        let fixes: Vec<_> = world.run("isolated-pileup").into_iter().filter_map(|f| f.fix).collect();
        assert_eq!(fixes, ["taskset -pc 4 100   # poll", "taskset -pc 6 102   # poll"]);
    }

    #[test]
    fn none_goes_to_a_cpu_that_was_given_to_others() {
        let mut world = World::new(5).isolated("2-4").expect("[[given]]\ncpus = '3'\nto = ['comm:^dpdk']");
        world.busy(&[5.0, 5.0, 100.0, 0.0, 0.0]);
        for _ in 0..2 {
            world.task("poll", 50.0).cpu(2).affinity("2-4").wait(50.0);
        }
        let found = world.only("isolated-pileup");
        assert!(found.evidence.ends_with("while isolated 4 are nearly idle"), "{}", found.evidence);
        assert_eq!(found.fix.unwrap(), "taskset -pc 4 100   # poll");
    }

    #[test]
    fn unread_waits_are_unknown() {
        let mut world = World::new(4).isolated("2-3");
        world.task("poll-1", 30.0).cpu(2).affinity("2-3").no_wait();
        assert_eq!(world.only("isolated-pileup").status, Status::Unknown);
    }
}
