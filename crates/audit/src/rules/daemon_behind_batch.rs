//! A daemon that mostly sleeps gets its turn next to work that takes whatever it gets.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::facts::Unknown;
use evenkeel_base::{TaskView, excerpt};

use crate::fix::quote;
use crate::view::{self, HUNGRY_PCT, Place, demand_pct, is_fair, list, may_meet, task_name};
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "daemon-behind-batch",
    severity: Severity::Warning,
    about: "no process that mostly sleeps waits longer than it works behind busy ones of its own run queue",
    check,
};

/// A daemon wants less than this, percent of one CPU: works and sleeps.
const SLEEPS_PCT: f64 = 30.0;
/// It waits at least so long, percent of the time, and so many seconds per second of work.
const WAITS_PCT: f64 = 5.0;
const WAITS_PER_WORK: f64 = 2.0;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let observation = input.observation;
    if !observation.tasks.is_empty() && observation.tasks.iter().all(|task| task.wait_pct.is_none()) {
        return Err(Unknown("the kernel does not tell how long tasks wait (schedstats)".into()));
    }
    let autogroups = view::autogroups(input);
    let mut queues: BTreeMap<Place, Vec<&TaskView>> = BTreeMap::new();
    for task in observation.tasks.iter().filter(|task| is_fair(task) && !task.kernel_thread) {
        if let Some(place) = view::place(observation, &autogroups, task) {
            queues.entry(place).or_default().push(task);
        }
    }
    let mut findings = Vec::new();
    for tasks in queues.values() {
        let busy: Vec<&TaskView> =
            tasks.iter().copied().filter(|task| demand_pct(task) >= HUNGRY_PCT).collect();
        for daemon in tasks.iter().filter(|task| task.cpu_pct < SLEEPS_PCT) {
            let waits = daemon.wait_pct.unwrap_or(0.0);
            // Who runs elsewhere is not in its way, and of many CPUs only those count that it may use.
            let hungry: Vec<&TaskView> = busy.iter().copied().filter(|task| may_meet(daemon, task)).collect();
            if hungry.len() <= view::usable_cpus(observation, daemon)
                || waits < WAITS_PCT
                || waits < WAITS_PER_WORK * daemon.cpu_pct
                || demand_pct(daemon) >= HUNGRY_PCT
                // A quota makes all of them wait, whoever is busy.
                || daemon.group.is_some_and(|group| view::is_throttled(observation, group))
            {
                continue;
            }
            let pid = daemon.id.tgid;
            findings.push(rule.fail(
                task_name(daemon),
                format!(
                    "worked {:.1} % of the time and waited {waits:.1} % for a CPU, behind {} busy tasks of its own group: {}",
                    daemon.cpu_pct,
                    hungry.len(),
                    list(hungry.iter().map(|task| task_name(task)))
                ),
                "build agents and batch jobs next to a daemon delay each of its answers; health checks fail first",
                format!(
                    "evenkeel run --service pid:{pid}{}   # proved or taken back; {} is {pid}\n\
                     # or start the jobs by: evenkeel exec --weight 2 COMMAND",
                    backgrounds(daemon, &hungry),
                    excerpt(&daemon.comm)
                ),
            ));
        }
    }
    Ok(rule.or_pass(findings, "whoever mostly sleeps waits less than it works, or not behind its own group"))
}

/// Options that name the busy tasks: by their names, new ones included, but for a name that the daemon's process has, too. Names are what
/// anybody gives himself, and the line is there to be run.
fn backgrounds(daemon: &TaskView, hungry: &[&TaskView]) -> String {
    let scopes: BTreeSet<String> = hungry
        .iter()
        .filter(|task| task.id.tgid != daemon.id.tgid)
        .map(|task| match task.comm == daemon.comm || task.comm.contains(char::is_control) {
            true => format!("pid:{}", task.id.tgid),
            false => format!("comm:^{}$", regex::escape(&task.comm)),
        })
        .collect();
    scopes.iter().map(|scope| format!(" --background {}", quote(scope))).collect()
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    /// A daemon that waits so much next to so many compilers, all in one group.
    fn world(waits: f64, compilers: u32) -> World {
        let mut world = World::new(2);
        let agent = world.group("/agent", 1024);
        world.thread(900, "dockerd", 3.0).wait(waits).in_group(agent);
        for n in 0..compilers {
            world.thread(1000 + n, "cc1", 30.0).wait(60.0).in_group(agent);
        }
        world
    }

    #[test]
    fn a_daemon_that_waits_behind_its_own_builds_is_named() {
        let finding = world(12.0, 6).only("daemon-behind-batch");
        assert_eq!((finding.status, &*finding.subject), (Status::Fail, "task 900/100 (dockerd)"));
        assert!(finding.evidence.contains("behind 6 busy tasks"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().starts_with("evenkeel run --service pid:900 --background 'comm:^cc1$'"));
    }

    #[test]
    fn the_line_to_run_names_all_who_are_busy_and_is_no_ones_to_write() {
        let mut world = world(12.0, 6);
        let names = ["cc1plus", "it's; reboot", "a\nreboot", "c++", "dockerd", "cc1plus"];
        for (task, name) in world.observation.tasks.iter_mut().skip(1).zip(names) {
            task.comm = name.into();
        }
        world.observation.tasks[0].comm = "dockerd".into();
        let fix = world.only("daemon-behind-batch").fix.unwrap();
        let line = fix.lines().next().unwrap();
        let options = line.split("   # ").next().unwrap();
        assert_eq!(
            options,
            "evenkeel run --service pid:900 --background 'comm:^c\\+\\+$' --background 'comm:^cc1plus$' \
             --background 'comm:^it'\\''s; reboot$' --background pid:1002 --background pid:1004"
        );
        assert_eq!(fix.lines().count(), 2, "{fix}");
    }

    #[test]
    fn short_waits_idle_cpus_and_builds_elsewhere_pass() {
        assert_eq!(world(4.0, 6).only("daemon-behind-batch").status, Status::Pass);
        assert_eq!(world(12.0, 2).only("daemon-behind-batch").status, Status::Pass, "a CPU for each");
        let mut apart = world(12.0, 6);
        let other = apart.group("/builds", 1024);
        apart.observation.tasks.iter_mut().skip(1).for_each(|task| task.group = Some(other));
        assert_eq!(apart.only("daemon-behind-batch").status, Status::Pass, "weights are for that");
    }

    #[test]
    fn of_a_large_host_the_cpus_count_that_it_may_use() {
        let mut small = world(12.0, 6);
        let wide = World::new(64);
        small.observation.topology = wide.observation.topology.clone();
        small.observation.host = wide.observation.host.clone();
        assert_eq!(small.only("daemon-behind-batch").status, Status::Fail, "its cpuset has two of 64");
        // They are bound to one CPU of the two, it to the other: somebody else is in its way.
        let mut apart = world(12.0, 6);
        apart.observation.tasks.iter_mut().skip(1).for_each(|task| {
            task.affinity("1");
        });
        apart.observation.tasks[0].affinity("0");
        assert_eq!(apart.only("daemon-behind-batch").status, Status::Pass);
    }

    #[test]
    fn who_is_throttled_waits_for_its_quota_and_not_behind_the_builds() {
        let mut world = world(12.0, 6);
        world.observation.groups[1].throttled_pct = Some(60.0);
        assert_eq!(world.only("daemon-behind-batch").status, Status::Pass);
    }

    #[test]
    fn unread_waits_are_unknown() {
        let mut world = world(12.0, 6);
        world.observation.tasks.iter_mut().for_each(|task| task.wait_pct = None);
        assert_eq!(world.only("daemon-behind-batch").status, Status::Unknown);
    }
}
