//! No task runs on an isolated CPU it was not given.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuSet, TaskView};

use crate::view::{housekeeping, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "isolated-task",
    severity: Severity::Warning,
    about: "no task ran on an isolated CPU it was not given (by `[[given]]`, or by an affinity within the isolated CPUs)",
    check,
};

/// CPU below which a kernel thread is left out: bound and unbound workers pass by everywhere now and then.
const KERNEL_THREAD_PCT: f64 = 0.1;

/// Whether the CPU was given to the task; `Err` with the reason when that cannot be told.
fn is_given(input: &Input<'_>, task: &TaskView, cpu: u32, isolated: &CpuSet) -> Result<bool, String> {
    match (input.expectations.is_given(input.observation, task, cpu), &task.affinity) {
        (Some(is_given), _) => Ok(is_given),
        (None, Some(affinity)) => Ok(affinity.is_subset(isolated)),
        (None, None) => Err(format!("last ran on isolated CPU {cpu}; its affinity could not be read")),
    }
}

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let isolated = &input.observation.topology.isolated;
    if isolated.is_empty() {
        return Ok(vec![rule.pass("host", "no CPU is isolated")]);
    }
    let free = housekeeping(input.observation);
    let fix = |command: &dyn Fn() -> String| match free.is_empty() {
        true => "# every online CPU is isolated: see isolcpus-housekeeping".to_owned(),
        false => command(),
    };
    let (mut findings, mut seen) = (Vec::new(), 0);
    for task in &input.observation.tasks {
        let Some(cpu) = task.cpu.filter(|&cpu| isolated.contains(cpu)) else { continue };
        // Its affinity was changed since: one that runs leaves at once, one that sleeps wakes elsewhere.
        if task.affinity.as_ref().is_some_and(|affinity| !affinity.contains(cpu)) {
            continue;
        }
        seen += 1;
        let slept = task.cpu_pct <= 0.0 && task.wait_pct.is_none_or(|pct| pct <= 0.0);
        let affinity = task.affinity.as_ref().map_or("unknown".to_owned(), ToString::to_string);
        if task.kernel_thread {
            // Bound to one CPU (ksoftirqd/N, migration/N, ...): belongs there.
            if task.affinity.as_ref().is_none_or(|a| a.len() == 1) || task.cpu_pct < KERNEL_THREAD_PCT {
                continue;
            }
            findings.push((
                task.cpu_pct,
                rule.fail(
                    task_name(task),
                    format!(
                        "kernel thread, last ran on CPU {cpu} (isolated: {isolated}), affinity {affinity}, {:.1} % CPU",
                        task.cpu_pct
                    ),
                    "kernel work interrupts whatever the CPU was isolated for",
                    fix(&|| {
                        format!(
                            "echo {} > /sys/devices/virtual/workqueue/cpumask   # unbound kernel workers\n\
                             taskset -pc {free} {}",
                            free.to_mask(),
                            task.id.tid
                        )
                    }),
                )
                .severity(Severity::Info),
            ));
            continue;
        }
        match is_given(input, task, cpu, isolated) {
            Ok(true) => {}
            Ok(false) => {
                let fix = fix(&|| {
                    format!(
                        "taskset -apc {free} {}   # until it starts again; lasting: CPUAffinity={free} in its unit",
                        task.id.tgid
                    )
                });
                let place = format!("last ran on CPU {cpu} (isolated: {isolated}), affinity {affinity}");
                let (evidence, consequence) = if slept {
                    (
                        format!("slept; before that it {place}"),
                        format!("it may wake there, and then disturbs whatever CPU {cpu} was isolated for"),
                    )
                } else {
                    (
                        format!("{place}, {:.1} % CPU", task.cpu_pct),
                        format!(
                            "it disturbs whatever CPU {cpu} was isolated for; nothing balances it away from there"
                        ),
                    )
                };
                let finding = rule.fail(task_name(task), evidence, consequence, fix);
                let named = input.expectations.given.iter().any(|given| given.cpus.contains(cpu));
                let severity = match named {
                    _ if slept => Severity::Info,
                    true => Severity::Error,
                    false => Severity::Warning,
                };
                findings.push((task.cpu_pct, finding.severity(severity)));
            }
            Err(reason) => findings.push((task.cpu_pct, rule.unknown(task_name(task), reason))),
        }
    }
    findings.sort_by(|a, b| b.0.total_cmp(&a.0));
    let findings = findings.into_iter().map(|(_, finding)| finding).collect();
    Ok(rule.or_pass(findings, format!("{seen} tasks last ran on {isolated}, all bound there or given it")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn a_stray_task_fails_and_a_pinned_one_passes() {
        let mut world = World::new(4).isolated("2-3");
        assert_eq!(world.only("isolated-task").status, Status::Pass);
        world.task("dpdk", 100.0).cpu(2).affinity("2");
        assert_eq!(world.only("isolated-task").status, Status::Pass);
        world.task("stray", 40.0).cpu(3).affinity("0-3");
        let finding = world.only("isolated-task");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Warning));
        assert_eq!(finding.subject, "task 101 (stray)");
        assert!(finding.fix.unwrap().starts_with("taskset -apc 0-1 101 "));
    }

    #[test]
    fn who_sleeps_disturbs_nobody_yet() {
        let mut world = World::new(4).isolated("2-3").expect("[[given]]\ncpus = '3'\nto = ['comm:^dpdk']");
        world.task("sshd", 0.0).cpu(3).affinity("0-3");
        let finding = world.only("isolated-task");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Info));
        assert!(
            finding.evidence.starts_with("slept; before that it last ran on CPU 3 "),
            "{}",
            finding.evidence
        );
        assert!(finding.consequence.unwrap().starts_with("it may wake there"));
        world.observation.tasks[0].wait_pct = Some(5.0);
        assert_eq!(world.only("isolated-task").severity, Severity::Error, "it waits for that CPU");
    }

    #[test]
    fn who_may_not_run_there_any_more_is_not_there() {
        let mut world = World::new(4).isolated("2-3");
        world.task("sshd", 0.0).cpu(3).affinity("0-1");
        world.task("moved", 20.0).cpu(3).affinity("0-1");
        assert_eq!(world.only("isolated-task").status, Status::Pass);
    }

    #[test]
    fn the_policy_decides_whom_a_cpu_is_given_to() {
        let mut world = World::new(4).isolated("2-3").expect("[[given]]\ncpus = '2-3'\nto = ['comm:^dpdk']");
        world.task("dpdk-1", 100.0).cpu(2).affinity("0-3");
        assert_eq!(world.only("isolated-task").status, Status::Pass);
        world.task("thief", 1.0).cpu(2).affinity("2");
        assert!(world.only("isolated-task").subject.contains("thief"));
    }

    #[test]
    fn an_unreadable_affinity_is_unknown() {
        let mut world = World::new(4).isolated("2-3");
        world.task("who", 10.0).cpu(3).no_affinity();
        assert_eq!(world.only("isolated-task").status, Status::Unknown);
    }

    #[test]
    fn only_unbound_busy_kernel_threads_are_named() {
        let mut world = World::new(4).isolated("2-3");
        world.task("ksoftirqd/2", 5.0).cpu(2).affinity("2").kernel();
        world.task("kworker/u8:1", 0.0).cpu(2).affinity("0-3").kernel();
        assert_eq!(world.only("isolated-task").status, Status::Pass);
        world.task("kworker/u8:2", 5.0).cpu(2).affinity("0-3").kernel();
        let finding = world.only("isolated-task");
        assert_eq!((finding.status, finding.severity), (Status::Fail, Severity::Info));
        assert!(finding.fix.unwrap().contains("echo 3 > /sys/devices/virtual/workqueue/cpumask"));
        let fix = world.isolated("0-3").only("isolated-task").fix.unwrap();
        assert!(!fix.contains("echo") && fix.contains("isolcpus-housekeeping"), "{fix}");
    }
}
