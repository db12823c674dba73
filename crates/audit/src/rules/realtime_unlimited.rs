//! Real-time tasks cannot take a whole CPU for ever.

use evenkeel_base::SchedPolicy;
use evenkeel_base::facts::Unknown;

use crate::view::{list, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "realtime-unlimited",
    severity: Severity::Warning,
    about: "a busy real-time task outside the isolated CPUs leaves room for others",
    check,
};

/// CPU of a real-time task from which others on its CPU starve noticeably.
const BUSY_PCT: f64 = 80.0;

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
    // Without real-time groups Linux 6.12 ended this limit ("sched/rt: Remove default bandwidth control"): a server for ordinary tasks
    // leaves them 5 % of each CPU.
    let (limited, set_limit) = match limit {
        Some(usec) => (format!("kernel.sched_rt_runtime_us is {usec}"), ""),
        None => (
            "kernel.sched_rt_runtime_us is -1 (no limit)".to_owned(),
            "\nsysctl kernel.sched_rt_runtime_us=950000   # acts before Linux 6.12, and with CONFIG_RT_GROUP_SCHED",
        ),
    };
    let finding = rule.fail(
        list(greedy.iter().map(|task| task_name(task))),
        format!(
            "real-time, {:.0} % CPU, on CPU {}; {limited}",
            first.cpu_pct,
            first.cpu.map_or("?".to_owned(), |c| c.to_string())
        ),
        "ordinary tasks of that CPU run only in what real-time leaves; kernel threads bound there may starve",
        format!("chrt --other -p 0 {}   # or give it a CPU of its own: isolcpus{set_limit}", first.id.tid),
    );
    Ok(vec![finding.severity(if limit.is_none() { Severity::Warning } else { Severity::Info })])
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
}
