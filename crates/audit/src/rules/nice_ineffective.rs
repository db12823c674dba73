//! A nice value acts: there is somebody in the same group to compare it with.

use std::collections::BTreeMap;

use evenkeel_base::facts::Unknown;
use evenkeel_base::{Observation, TaskView};

use crate::view::{
    self, ACTIVE_PCT, Place, autogroups, demand_pct, group_name, is_fair, list, may_meet, task_name,
};
use crate::{Finding, Input, Rule, Severity, fix};

pub(super) const RULE: Rule = Rule {
    name: "nice-ineffective",
    severity: Severity::Warning,
    about: "nice values act: the tasks they compete with are in the same cgroup and autogroup",
    check,
};

/// Wait of the task or of its competitors from which they really compete; below it a nice value decides nothing.
const CONTENDED_PCT: f64 = 5.0;

/// Whether a competitor at `other` is compared with a task at `own` by nice: it is in the same place or below it.
fn nice_reaches(observation: &Observation, own: Place, other: Place) -> bool {
    match (own, other) {
        (Place::Autogroup(a), Place::Autogroup(b)) => a == b,
        (Place::Group(a), Place::Group(b)) => observation.is_within(b, a),
        // Autogroups are children of the root group.
        (Place::Group(a), Place::Autogroup(_)) => {
            observation.groups.get(a as usize).is_some_and(|group| group.parent.is_none())
        }
        (Place::Autogroup(_), Place::Group(_)) => false,
    }
}

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    let active: Vec<&TaskView> = observation
        .tasks
        .iter()
        .filter(|t| !t.kernel_thread && is_fair(t) && demand_pct(t) >= ACTIVE_PCT)
        .collect();
    let nice_of = |task: &TaskView| task.sched.map_or(0, |sched| sched.nice.get());
    let niced: Vec<&&TaskView> = active.iter().filter(|task| nice_of(task) != 0).collect();
    let mut findings: Vec<Finding> = active
        .iter()
        .filter(|task| task.sched.is_none())
        .map(|task| rule.unknown(task_name(task), "its scheduling attributes could not be read"))
        .collect();
    if niced.is_empty() {
        return Ok(rule.or_pass(findings, format!("none of {} active tasks has a nice value", active.len())));
    }
    // Root-group tasks are told apart by their autogroups; without them nothing can be said.
    let in_root = |task: &TaskView| {
        view::weighted_group(observation, task)
            .and_then(|group| observation.groups.get(group as usize))
            .is_some_and(|group| group.parent.is_none())
    };
    if niced.iter().any(|task| in_root(task)) && *input.facts.autogroup.get()? {
        input.facts.autogroups.get()?;
    }
    let groups = autogroups(input);
    let place = |task: &TaskView| view::place(observation, &groups, task);
    // By place: the niced tasks there, all competitors found.
    let mut by_place: BTreeMap<Place, Vec<&TaskView>> = BTreeMap::new();
    for task in &niced {
        match place(task) {
            Some(own) => by_place.entry(own).or_default().push(task),
            None => findings.push(rule.unknown(task_name(task), "its cgroup could not be read")),
        }
    }
    for (own, tasks) in by_place {
        let waits = |task: &TaskView| task.wait_pct.unwrap_or(0.0).min(100.0);
        // Who waits most stands for them: the evidence is about it.
        let Some(first) = tasks.iter().copied().min_by(|a, b| waits(b).total_cmp(&waits(a))) else {
            continue;
        };
        let nice = nice_of(first);
        let rivals: Vec<&TaskView> = active
            .iter()
            .copied()
            .filter(|other| tasks.iter().all(|task| task.id != other.id) && may_meet(first, other))
            .collect();
        let reached = rivals.iter().any(|other| {
            place(other).is_none_or(|place| nice_reaches(observation, own, place)) && nice_of(other) != nice
        });
        let among = tasks.iter().any(|task| nice_of(task) != nice);
        if reached || among {
            continue;
        }
        let mut beyond: Vec<&TaskView> = rivals
            .into_iter()
            .filter(|other| place(other).is_some_and(|place| !nice_reaches(observation, own, place)))
            .collect();
        beyond.sort_by(|a, b| demand_pct(b).total_cmp(&demand_pct(a)));
        let contended = tasks.iter().any(|t| waits(t) >= CONTENDED_PCT)
            && beyond.iter().any(|t| demand_pct(t) >= CONTENDED_PCT);
        if beyond.is_empty() || !contended {
            continue;
        }
        let name = |place: Option<Place>| match place {
            Some(Place::Autogroup(number)) => format!("autogroup {number}"),
            Some(Place::Group(group)) => group_name(observation, group),
            None => "?".to_owned(),
        };
        let subject = match tasks.len() {
            1 => task_name(first),
            more => format!("{} and {} more", task_name(first), more - 1),
        };
        let factor = f64::from(evenkeel_base::Nice::new(nice).weight()) / 1024.0;
        let fix = match own {
            Place::Autogroup(_) => format!(
                "echo {nice} > /proc/{}/autogroup   # a nice value for the whole autogroup\n\
                 # or for all: sysctl kernel.sched_autogroup_enabled=0",
                first.id.tgid
            ),
            Place::Group(group) => {
                let view = observation.groups.get(group as usize);
                let now = view.and_then(|view| view.load_weight).unwrap_or(1024);
                fix::set_weight(input, group, now as f64 * factor)
            }
        };
        findings.push(rule.fail(
            subject,
            format!(
                "nice {nice}, waits {:.0} %; no task in {} that wants CPU has another nice value; competes with {}",
                waits(first),
                name(Some(own)),
                list(beyond.iter().map(|t| format!("{} ({}) in {}", t.id, t.comm, name(place(t)))))
            ),
            format!(
                "nice is compared only among tasks of one group: {} gets the same CPU as with nice 0",
                if tasks.len() == 1 { "it" } else { "the group" }
            ),
            fix,
        ));
    }
    findings.sort_by_key(|finding| finding.status != crate::Status::Fail);
    Ok(rule.or_pass(
        findings,
        format!("{} active tasks with a nice value, which acts or is not needed now", niced.len()),
    ))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn nice_alone_in_an_autogroup_fails() {
        let mut world = World::new(1);
        world.facts.autogroup = Known::Value(true);
        world.task("batch", 50.0).wait(50.0).nice(10);
        world.task("web", 50.0).wait(50.0);
        world.autogroup(100, 7).autogroup(101, 7);
        assert_eq!(world.only("nice-ineffective").status, Status::Pass);
        world.facts.autogroups = Known::Value(vec![]);
        world.autogroup(100, 7).autogroup(101, 8);
        let finding = world.only("nice-ineffective");
        assert_eq!((finding.status, &*finding.subject), (Status::Fail, "task 100 (batch)"));
        assert!(
            finding.evidence.contains("no task in autogroup 7 that wants CPU has another nice value"),
            "{}",
            finding.evidence
        );
        assert!(finding.evidence.contains("101 (web) in autogroup 8"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().starts_with("echo 10 > /proc/100/autogroup "));
    }

    #[test]
    fn the_evidence_is_about_who_waits_most() {
        let mut world = World::new(1);
        let (batch, web) = (world.group("/batch", 1024), world.group("/web", 1024));
        world.task("cargo", 10.0).wait(1.0).nice(5).in_group(batch);
        world.task("rustc", 50.0).wait(50.0).nice(5).in_group(batch);
        world.task("web", 50.0).wait(50.0).in_group(web);
        let finding = world.only("nice-ineffective");
        assert_eq!(finding.subject, "task 101 (rustc) and 1 more");
        assert!(finding.evidence.starts_with("nice 5, waits 50 %; no task in"), "{}", finding.evidence);
    }

    #[test]
    fn nice_across_cgroups_fails_with_the_weight_that_would_act() {
        let mut world = World::new(1);
        let (batch, web) = (world.group("/batch", 1024), world.group("/web", 1024));
        world.task("make", 50.0).wait(50.0).nice(5).in_group(batch);
        world.task("web", 50.0).wait(50.0).in_group(web);
        let finding = world.only("nice-ineffective");
        assert_eq!(finding.status, Status::Fail);
        assert_eq!(finding.fix.unwrap(), "echo 335 > /sys/fs/cgroup/cpu/batch/cpu.shares");
        // A third with another nice value in the same group gives it somebody to be compared with.
        world.task("cc1", 20.0).wait(50.0).in_group(batch);
        assert_eq!(world.only("nice-ineffective").status, Status::Pass);
    }

    #[test]
    fn in_the_root_group_nice_is_compared_with_whole_groups() {
        let mut world = World::new(1);
        let web = world.group("/web", 1024);
        world.task("make", 50.0).wait(50.0).nice(5);
        world.task("web", 50.0).wait(50.0).in_group(web);
        assert_eq!(world.only("nice-ineffective").status, Status::Pass);
    }

    #[test]
    fn without_competition_nothing_is_said() {
        let mut world = World::new(2);
        let (batch, web) = (world.group("/batch", 1024), world.group("/web", 1024));
        world.task("make", 99.0).wait(0.0).nice(5).in_group(batch);
        world.task("web", 99.0).wait(0.0).in_group(web);
        assert_eq!(world.only("nice-ineffective").status, Status::Pass);
    }

    #[test]
    fn unreadable_autogroups_and_attributes_are_unknown() {
        let mut world = World::new(1);
        world.task("batch", 50.0).wait(50.0).nice(10);
        world.facts.autogroup = World::denied("/proc/sys/kernel/sched_autogroup_enabled");
        assert_eq!(world.only("nice-ineffective").status, Status::Unknown);
        let mut world = World::new(1);
        world.task("web", 50.0).no_sched();
        assert_eq!(world.only("nice-ineffective").status, Status::Unknown);
    }
}
