//! Real-time tasks cannot take a whole CPU for ever.

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuSet, SchedPolicy};

use crate::view::{is_since, list, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "realtime-unlimited",
    severity: Severity::Warning,
    about: "a busy real-time task outside the isolated CPUs leaves room for others",
    check,
};

/// CPU of a real-time task from which others on its CPU starve noticeably.
const BUSY_PCT: f64 = 80.0;

/// A deadline server leaves ordinary tasks a part of each CPU, whatever the limit of real-time tasks ("sched/fair: Fair server
/// interface"). Without real-time groups that limit ended with it ("sched/rt: Remove default bandwidth control").
const FAIR_SERVER: (u32, u32) = (6, 12);

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let isolated = &observation.topology.isolated;
    let greedy: Vec<_> = observation
        .tasks
        .iter()
        .filter(|task| !task.kernel_thread && task.cpu_pct >= BUSY_PCT)
        .filter(|task| task.sched.is_some_and(|s| matches!(s.policy, SchedPolicy::Fifo | SchedPolicy::Rr)))
        .filter(|task| task.cpu.is_none_or(|cpu| !isolated.contains(cpu)))
        .collect();
    let Some(first) = greedy.first() else {
        return Ok(vec![rule.pass("host", "no real-time task takes most of a CPU that others use")]);
    };
    let limit = input.facts.rt_runtime_usec.get()?;
    let limited = match limit {
        Some(usec) => format!("kernel.sched_rt_runtime_us is {usec}"),
        None => "kernel.sched_rt_runtime_us is -1 (no limit)".to_owned(),
    };
    let has_server = is_since(input, FAIR_SERVER) == Some(true);
    let switched_off = input.facts.fair_server_off.get();
    // `None` where any is not known.
    let cpus: Option<CpuSet> = greedy.iter().map(|task| task.cpu).collect();
    let is_off = |cpu: &u32| switched_off.as_ref().is_ok_and(|off| off.contains(*cpu));
    let off: CpuSet = greedy.iter().filter_map(|task| task.cpu).filter(is_off).collect();
    let under_bpf = matches!(input.facts.sched_ext.ok(), Some(Some(_)));
    let left = format!("chrt --other -p 0 {}   # or give it a CPU of its own: isolcpus", first.id.tid);
    let (server, severity, consequence, fix) = if has_server && off.is_empty() && !under_bpf {
        let consequence = "ordinary tasks of that CPU run in what real-time leaves, and otherwise in what their deadline server has: 5 % \
                           of the CPU unless set otherwise";
        let is_on = match (&switched_off, cpus) {
            (Err(reason), _) => format!("is on unless switched off (not read: {reason})"),
            (Ok(_), None) => "is on unless switched off (not all of these CPUs are known)".to_owned(),
            (Ok(_), Some(cpus)) => format!("is on for CPU {cpus}"),
        };
        let server = format!("; the deadline server for ordinary tasks (Linux 6.12) {is_on}");
        (server, Severity::Info, consequence, left)
    } else {
        let server = match (has_server, under_bpf) {
            (false, _) => String::new(),
            (true, true) => {
                "; a BPF scheduler is in charge, whose tasks the deadline server may not serve".to_owned()
            }
            (true, false) => format!("; the deadline server for ordinary tasks is off on CPU {off}"),
        };
        let on = off
            .iter()
            .map(|cpu| format!("\necho 50000000 > /sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime"));
        let set_limit = match limit {
            Some(_) => "",
            None => {
                "\nsysctl kernel.sched_rt_runtime_us=950000   # acts before Linux 6.12, and with CONFIG_RT_GROUP_SCHED"
            }
        };
        let severity = if limit.is_some() && !has_server { Severity::Info } else { Severity::Warning };
        let consequence = if has_server && off.is_empty() {
            "ordinary tasks of that CPU may run only in what real-time leaves; kernel threads bound there may starve"
        } else {
            "ordinary tasks of that CPU run only in what real-time leaves; kernel threads bound there may starve"
        };
        (server, severity, consequence, format!("{left}{}{set_limit}", on.collect::<String>()))
    };
    let finding = rule.fail(
        list(greedy.iter().map(|task| task_name(task))),
        format!(
            "real-time, {:.0} % CPU, on CPU {}; {limited}{server}",
            first.cpu_pct,
            first.cpu.map_or("?".to_owned(), |c| c.to_string())
        ),
        consequence,
        fix,
    );
    Ok(vec![finding.severity(severity)])
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use super::*;
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn a_spinning_real_time_task_fails_by_the_limit() {
        let mut world = World::new(2);
        assert_eq!(world.only("realtime-unlimited").status, Status::Pass);
        world.task("rt", 95.0).cpu(1).policy(SchedPolicy::Fifo);
        assert_eq!(world.only("realtime-unlimited").status, Status::Unknown);
        // Later kernels have more than this limit.
        world.facts.release = Known::Value("6.11.0".into());
        for (limit, severity, is_to_set) in
            [(None, Severity::Warning, true), (Some(950_000), Severity::Info, false)]
        {
            world.facts.rt_runtime_usec = Known::Value(limit);
            let finding = world.only("realtime-unlimited");
            assert_eq!((finding.severity, finding.fix.unwrap().contains("sysctl")), (severity, is_to_set));
        }
        let world = world.isolated("1");
        assert_eq!(world.only("realtime-unlimited").status, Status::Pass);
    }

    #[test]
    fn the_deadline_server_leaves_ordinary_tasks_a_part_whatever_the_limit() {
        let mut world = World::new(2);
        world.task("rt", 99.0).cpu(1).policy(SchedPolicy::Fifo);
        world.facts.release = Known::Value("6.12.3-amd64".into());
        world.facts.rt_runtime_usec = Known::Value(None);
        let found = |world: &World| {
            let finding = world.only("realtime-unlimited");
            (finding.severity, finding.evidence, finding.consequence.unwrap(), finding.fix.unwrap())
        };
        // Where debugfs cannot be read, the server is taken to be on, as the kernel has it.
        let unread = " is on unless switched off (not read: fair_server: permission denied (os error 13))";
        for (off, says) in [
            (World::denied("fair_server"), unread),
            (Known::Value(CpuSet::new()), " is on for CPU 1"),
            (Known::Value(CpuSet::single(0)), " is on for CPU 1"),
        ] {
            world.facts.fair_server_off = off;
            let (severity, evidence, consequence, fix) = found(&world);
            assert_eq!(severity, Severity::Info);
            let says = format!("; the deadline server for ordinary tasks (Linux 6.12){says}");
            assert!(evidence.ends_with(&says), "{evidence}");
            assert!(!consequence.contains("starve") && !fix.contains("sysctl"), "{consequence} {fix}");
        }
        world.observation.tasks[0].cpu = None;
        let (severity, evidence, ..) = found(&world);
        assert_eq!(severity, Severity::Info);
        assert!(
            evidence.ends_with(" is on unless switched off (not all of these CPUs are known)"),
            "{evidence}"
        );
        world.observation.tasks[0].cpu = Some(1);
        world.facts.fair_server_off = Known::Value(CpuSet::single(1));
        for limit in [None, Some(950_000)] {
            world.facts.rt_runtime_usec = Known::Value(limit);
            let (severity, evidence, consequence, fix) = found(&world);
            assert_eq!(severity, Severity::Warning);
            assert!(evidence.ends_with("is off on CPU 1") && consequence.contains("starve"), "{evidence}");
            assert!(fix.contains("fair_server/cpu1/runtime"), "{fix}");
        }
        world.facts.fair_server_off = Known::default();
        world.facts.sched_ext = Known::Value(Some("lavd".into()));
        let (severity, evidence, consequence, _) = found(&world);
        assert_eq!(severity, Severity::Warning);
        // Later kernels have a server for its tasks, too, which is not looked at.
        assert!(evidence.ends_with(" may not serve") && consequence.contains(" may run only "), "{evidence}");
    }
}
