//! A process and its memory are on one NUMA node.

use std::collections::BTreeMap;

use evenkeel_base::facts::Unknown;
use evenkeel_base::{CpuSet, Observation, TaskView};

use crate::view::busy_by_cpu;
use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "numa-task",
    severity: Severity::Warning,
    about: "a busy process that fits one NUMA node runs on one, next to its memory",
    check,
};

/// CPU of a process below which remote memory costs nothing to speak of.
const BUSY_PCT: f64 = 10.0;

/// Part of a node's CPUs a process may want and still fit there next to others.
const FITS: f64 = 0.75;

/// Part of a process's CPU on other nodes than its main one from which it counts as spread.
const SPREAD: f64 = 0.2;

/// Part of its memory that is remote from where it runs, from which it is reported: a remote access takes 1.5 to 2
/// times as long, so 30 % remote is some 15 to 30 % of memory-bound speed.
const REMOTE: f64 = 0.3;

/// Memory below which the caches hold most of it anyway.
const MIN_BYTES: u64 = 64 << 20;

/// Memory of a process that fits neither node that is tried may be so much more remote than with its pages taking turns on all nodes, which is
/// what the fix does.
const INTERLEAVED: f64 = 0.1;

/// A process: its threads, and their CPU by node.
struct Process<'a> {
    main: &'a TaskView,
    /// Those that may be moved.
    threads: Vec<&'a TaskView>,
    /// Those that somebody pinned to isolated CPUs: they stay.
    pinned: Vec<&'a TaskView>,
    cpu_pct: f64,
    /// Of threads of which it is known where they ran last.
    by_node: BTreeMap<u32, f64>,
}

impl Process<'_> {
    /// Part of its CPU on a node, as far as that is known.
    fn part(&self, node: u32) -> f64 {
        let known: f64 = self.by_node.values().sum();
        self.by_node.get(&node).copied().unwrap_or(0.0) / known.max(1e-9)
    }

    /// Part of its CPU that these of its threads use elsewhere than on a node, as far as that is known.
    fn elsewhere(&self, observation: &Observation, threads: &[&TaskView], node: u32) -> f64 {
        let known: f64 = self.by_node.values().sum();
        let away = threads.iter().filter(|task| node_of(observation, task).is_some_and(|on| on != node));
        away.map(|task| task.cpu_pct).sum::<f64>() / known.max(1e-9)
    }

    /// The command that gives the threads that may be moved these CPUs.
    fn move_to(&self, cpus: &CpuSet) -> String {
        let tids = |threads: &[&TaskView]| {
            threads.iter().map(|task| task.id.tid.to_string()).collect::<Vec<_>>().join(" ")
        };
        match self.pinned.is_empty() {
            true => format!("taskset -apc {cpus} {}", self.main.id.tgid),
            false => format!(
                "for tid in {}; do taskset -pc {cpus} $tid; done   # not {}: pinned to isolated CPUs",
                tids(&self.threads),
                tids(&self.pinned)
            ),
        }
    }
}

/// Where a task ran last.
fn node_of(observation: &Observation, task: &TaskView) -> Option<u32> {
    task.cpu.and_then(|cpu| observation.topology.cpu(cpu)).and_then(|cpu| cpu.node)
}

fn processes(observation: &Observation) -> BTreeMap<u32, Process<'_>> {
    let mut all = BTreeMap::new();
    for task in observation.tasks.iter().filter(|t| !t.kernel_thread) {
        let process = all.entry(task.id.tgid).or_insert_with(|| Process {
            main: task,
            threads: Vec::new(),
            pinned: Vec::new(),
            cpu_pct: 0.0,
            by_node: BTreeMap::new(),
        });
        let isolated = &observation.topology.isolated;
        let is_pinned =
            task.affinity.as_ref().is_some_and(|cpus| !cpus.is_empty() && cpus.is_subset(isolated));
        if is_pinned { &mut process.pinned } else { &mut process.threads }.push(task);
        process.cpu_pct += task.cpu_pct;
        if let Some(node) = node_of(observation, task) {
            *process.by_node.entry(node).or_default() += task.cpu_pct;
        }
    }
    all.retain(|_, process| process.cpu_pct >= BUSY_PCT);
    all
}

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let topology = &input.observation.topology;
    let nodes = topology.nodes.iter().filter(|node| !node.cpus.is_empty()).count();
    if nodes < 2 {
        return Ok(vec![rule.pass("host", "one NUMA node")]);
    }
    let all = processes(input.observation);
    let busy = busy_by_cpu(input.observation);
    let (mut findings, mut looked_at) = (Vec::new(), 0);
    for (tgid, process) in &all {
        let Some((&home, _)) = process.by_node.iter().max_by(|a, b| a.1.total_cmp(b.1)) else {
            continue;
        };
        let subject = format!("process {tgid} ({})", process.main.comm);
        let mut unknown = |reason: String| findings.push((process.cpu_pct, rule.unknown(&subject, reason)));
        let bytes = memory(input, *tgid).unwrap_or_else(|reason| {
            unknown(reason.to_string());
            None
        });
        looked_at += usize::from(bytes.is_some());
        let bytes = bytes.map(Vec::as_slice).unwrap_or_default();
        let total: u64 = bytes.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n));
        let remote: f64 = if total < MIN_BYTES {
            0.0
        } else {
            bytes.iter().map(|(node, n)| *n as f64 / total as f64 * (1.0 - process.part(*node))).sum()
        };
        let is_spread = 1.0 - process.part(home) >= SPREAD;
        if !is_spread && remote < REMOTE {
            continue;
        }
        let mut tried = vec![home];
        tried
            .extend(bytes.iter().max_by_key(|(_, n)| *n).map(|(node, _)| *node).filter(|&node| node != home));
        let room = match room(input, &busy, process, &tried) {
            Ok(room) => room,
            Err(cpus) => {
                unknown(format!("busy time of CPUs {cpus} not read: it may fit their node"));
                continue;
            }
        };
        let may_move = |node: u32| process.elsewhere(input.observation, &process.threads, node) >= SPREAD;
        if let Some((node, cpus)) = room.as_ref().filter(|(node, _)| is_spread && may_move(*node)) {
            let where_: Vec<String> =
                process.by_node.iter().map(|(node, pct)| format!("node {node}: {pct:.0} %")).collect();
            findings.push((
                process.cpu_pct,
                rule.fail(
                    &subject,
                    format!(
                        "{:.0} % CPU, last on {}; it would fit node {node} ({cpus})",
                        process.cpu_pct,
                        where_.join(", ")
                    ),
                    "threads share data across the interconnect, and each has part of its memory remote",
                    process.move_to(cpus),
                ),
            ));
        }
        let least = match &room {
            // To whoever stays elsewhere it would be remote then.
            Some((node, _)) => REMOTE + process.elsewhere(input.observation, &process.pinned, *node),
            None => 1.0 - 1.0 / nodes as f64 + INTERLEAVED,
        };
        if remote < least {
            continue;
        }
        let where_: Vec<String> = bytes.iter().map(|(n, b)| format!("node {n}: {} MiB", b >> 20)).collect();
        let balancing = match input.facts.numa_balancing.ok() {
            Some(true) => "; kernel.numa_balancing is on and may move it in time",
            Some(false) => "; kernel.numa_balancing is off",
            None => "",
        };
        let fix = match &room {
            Some((node, cpus)) => {
                let away: Vec<String> =
                    bytes.iter().filter(|(n, _)| n != node).map(|(n, _)| n.to_string()).collect();
                let pages = (!away.is_empty()).then(|| {
                    format!("migratepages {tgid} {} {node}   # migratepages: package numactl", away.join(","))
                });
                // Of a node whose CPUs are all isolated it can have the memory alone: its other threads hardly run.
                let threads =
                    (!process.threads.is_empty() && !cpus.is_empty()).then(|| process.move_to(cpus));
                let and = if process.pinned.is_empty() { " && " } else { "\n" };
                threads.into_iter().chain(pages).collect::<Vec<_>>().join(and)
            }
            None => {
                let tried: Vec<String> = tried.iter().map(|node| format!("node {node}")).collect();
                format!(
                    "# it does not fit {} with what else runs there: interleave its memory at the next start: numactl --interleave=all COMMAND\n\
                     sysctl kernel.numa_balancing=1",
                    tried.join(" or ")
                )
            }
        };
        findings.push((
            process.cpu_pct,
            rule.fail(
                &subject,
                format!(
                    "if it uses all of its memory alike, {:.0} % of its accesses are remote: memory {}, CPU mostly on node {home}{balancing}",
                    100.0 * remote,
                    where_.join(", ")
                ),
                "each cache miss to a remote node takes 1.5 to 2 times as long",
                fix,
            ),
        ));
    }
    findings.sort_by(|a, b| b.0.total_cmp(&a.0));
    let findings = findings.into_iter().map(|(_, finding)| finding).collect();
    Ok(rule.or_pass(
        findings,
        format!(
            "busy processes: {}, on {nodes} nodes; memory of {looked_at} looked at, none so remote that it matters",
            all.len()
        ),
    ))
}

/// The first of these nodes that a process fits next to others, and the CPUs that it may use there; `Err` with those of which no
/// busy time was read.
fn room(
    input: &Input<'_>,
    busy: &BTreeMap<u32, f64>,
    process: &Process<'_>,
    nodes: &[u32],
) -> Result<Option<(u32, CpuSet)>, CpuSet> {
    let topology = &input.observation.topology;
    for &node in nodes {
        let Some(view) = topology.nodes.iter().find(|view| view.node == node) else { continue };
        let mut cpus = view.cpus.intersection(&topology.online).difference(&topology.isolated);
        // Its cgroup may not have all of them, and others use them, too.
        if let Some(own) = input.observation.group_of(process.main).and_then(|group| group.cpuset.as_ref()) {
            cpus = cpus.intersection(own);
        }
        let unread: CpuSet = cpus.iter().filter(|cpu| !busy.contains_key(cpu)).collect();
        if !unread.is_empty() {
            return Err(unread);
        }
        let room = 100.0 * cpus.len() as f64;
        let used: f64 = cpus.iter().filter_map(|cpu| busy.get(&cpu)).sum();
        // What it uses elsewhere is not among that.
        let own = process.threads.iter().filter(|task| task.cpu.is_some_and(|cpu| cpus.contains(cpu)));
        let others = (used - own.map(|task| task.cpu_pct).sum::<f64>()).max(0.0);
        let wanted: f64 = process.threads.iter().map(|task| task.cpu_pct).sum();
        if wanted <= (FITS * room).min(room - others) {
            return Ok(Some((node, cpus)));
        }
    }
    Ok(None)
}

/// Memory of a process; `None` when it was not among those looked at.
fn memory<'a>(input: &Input<'a>, tgid: u32) -> Result<Option<&'a Vec<(u32, u64)>>, Unknown> {
    let all = input.facts.memory.get()?;
    match all.iter().find(|memory| memory.tgid == tgid) {
        Some(memory) => memory.bytes_by_node.get().map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use crate::Status;
    use crate::testing::{TaskExt, World};

    #[test]
    fn one_node_and_local_memory_pass() {
        assert_eq!(World::new(2).only("numa-task").status, Status::Pass);
        let mut world = World::numa(2, 4);
        world.task("db", 90.0).cpu(1);
        world.memory(100, &[(0, 1 << 30), (1, 1 << 20)]);
        let finding = world.only("numa-task");
        assert_eq!(finding.status, Status::Pass);
        assert!(finding.evidence.ends_with(" 1 looked at, none so remote that it matters"), "{finding:?}");
    }

    #[test]
    fn remote_memory_fails_with_the_command_that_moves_it() {
        let mut world = World::numa(2, 4);
        world.task("db", 90.0).cpu(1);
        world.memory(100, &[(0, 200 << 20), (1, 800 << 20)]);
        let finding = world.only("numa-task");
        assert_eq!(finding.status, Status::Fail);
        // 80 % of the memory is on node 1, all CPU time on node 0.
        assert!(finding.evidence.contains(" 80 % of its accesses"), "{}", finding.evidence);
        assert!(finding.fix.unwrap().starts_with("taskset -apc 0-3 100 && migratepages 100 1 0"));
        world.memory(100, &[(1, 1 << 20)]);
        assert_eq!(world.only("numa-task").status, Status::Pass, "a megabyte is in the cache");
    }

    #[test]
    fn a_process_spread_over_nodes_fails_only_if_it_would_fit_one() {
        let mut world = World::numa(2, 4);
        world.task("web", 90.0).cpu(1);
        world.thread(100, "web", 90.0).cpu(6);
        world.memory(100, &[]);
        assert!(world.only("numa-task").evidence.contains("it would fit node"));
        for cpu in [0, 2, 4, 5] {
            world.thread(100, "web", 100.0).cpu(cpu);
        }
        assert_eq!(world.only("numa-task").status, Status::Pass);
    }

    #[test]
    fn a_process_that_its_node_has_no_room_for_does_not_fit() {
        let spread = || {
            let mut world = World::numa(2, 4);
            world.task("web", 90.0).cpu(1);
            world.thread(100, "web", 80.0).cpu(6);
            world
        };
        let mut world = spread();
        assert_eq!(world.only("numa-task").status, Status::Fail);
        // Others use all but half a CPU of node 0.
        world.busy(&[95.0, 95.0, 95.0, 95.0, 0.0, 0.0, 80.0, 0.0]);
        assert_eq!(world.only("numa-task").status, Status::Pass);
        // Its cgroup has two CPUs of each node.
        let mut world = spread();
        let group = world.group("/web", 1024);
        world.observation.groups[group as usize].cpuset = Some("0-1,6-7".parse().unwrap());
        world.observation.tasks.iter_mut().for_each(|task| task.group = Some(group));
        assert_eq!(world.only("numa-task").status, Status::Pass);
    }

    #[test]
    fn who_is_pinned_to_isolated_cpus_stays_there() {
        let mut world = World::numa(2, 4).isolated("3,7");
        world.task("dpdk", 30.0).cpu(1);
        world.thread(100, "poll", 100.0).cpu(7).affinity("7");
        let fix = world.only("numa-task").fix.unwrap();
        assert_eq!(fix, "for tid in 100; do taskset -pc 4-6 $tid; done   # not 101: pinned to isolated CPUs");
        // Its memory goes where those are that may move, unless it is in use elsewhere.
        world.memory(100, &[(0, 1 << 30)]);
        let findings = world.run("numa-task");
        let fix = findings[1].fix.clone().unwrap();
        assert!(
            fix.contains("4-6 $tid; done")
                && fix.ends_with("\nmigratepages 100 0 1   # migratepages: package numactl"),
            "{fix}"
        );
        // Those that may move have been moved: to the other node's memory there is no better place.
        let mut world = World::numa(2, 4).isolated("3,7");
        world.task("dpdk", 80.0).cpu(1);
        world.thread(100, "poll", 70.0).cpu(7).affinity("7");
        world.memory(100, &[(1, 1 << 30)]);
        assert_eq!(world.only("numa-task").status, Status::Pass);
        // Nobody may: its memory can.
        world.observation.tasks.remove(0);
        world.memory(100, &[(0, 1 << 30)]);
        assert!(world.only("numa-task").fix.unwrap().starts_with("migratepages 100 0 1 "));
    }

    #[test]
    fn what_it_uses_elsewhere_is_no_room_on_the_cpus_that_it_may_use() {
        let mut world = World::numa(2, 4);
        let group = world.group("/web", 1024);
        world.task("web", 90.0).cpu(3).in_group(group);
        world.thread(100, "web", 80.0).cpu(6).in_group(group);
        world.observation.groups[group as usize].cpuset = Some("0-2,6-7".parse().unwrap());
        // Others use half of what it may use; it was on CPU 3 before it got that cpuset.
        world.busy(&[50.0, 50.0, 50.0, 90.0, 0.0, 0.0, 80.0, 0.0]);
        assert_eq!(world.only("numa-task").status, Status::Pass);
        world.observation.tasks[0].cpu = Some(2);
        world.busy(&[10.0, 10.0, 90.0, 0.0, 0.0, 0.0, 80.0, 0.0]);
        assert_eq!(world.only("numa-task").status, Status::Fail, "it has room where it is");
    }

    #[test]
    fn where_a_thread_ran_that_does_not_say_is_no_other_node() {
        let mut world = World::numa(2, 4);
        world.task("db", 60.0).cpu(1);
        world.thread(100, "db", 60.0).no_cpu();
        world.memory(100, &[(0, 1 << 30)]);
        assert_eq!(world.only("numa-task").status, Status::Pass);
    }

    #[test]
    fn memory_of_a_process_that_fits_no_node_is_to_be_interleaved_once() {
        let mut world = World::numa(2, 4);
        for cpu in 0..8 {
            world.thread(100, "db", 90.0).cpu(cpu);
        }
        world.memory(100, &[(0, 1 << 30), (1, 1 << 30)]);
        assert_eq!(world.only("numa-task").status, Status::Pass, "it is");
        for task in &mut world.observation.tasks[4..] {
            task.cpu_pct = 10.0;
        }
        world.memory(100, &[(1, 1 << 30)]);
        let fix = world.only("numa-task").fix.unwrap();
        assert!(fix.starts_with("# it does not fit node 0 ") && fix.contains("--interleave=all"), "{fix}");
    }

    #[test]
    fn the_node_with_its_memory_is_tried_where_its_own_has_no_room() {
        let mut world = World::numa(2, 4);
        let group = world.group("/db", 1024);
        world.task("db", 90.0).cpu(1).in_group(group);
        world.observation.groups[group as usize].cpuset = Some("1,4-7".parse().unwrap());
        world.memory(100, &[(0, 1 << 20), (1, 1 << 30)]);
        let fix = world.only("numa-task").fix.unwrap();
        assert!(fix.starts_with("taskset -apc 4-7 100 && migratepages 100 0 1 "), "{fix}");
        world.memory(100, &[(1, 1 << 30)]);
        assert_eq!(world.only("numa-task").fix.unwrap(), "taskset -apc 4-7 100", "nothing is to be moved");
        world.observation.groups[group as usize].cpuset = Some("1,4".parse().unwrap());
        let fix = world.only("numa-task").fix.unwrap();
        assert!(fix.starts_with("# it does not fit node 0 or node 1 with "), "{fix}");
    }

    #[test]
    fn a_cpu_whose_busy_time_is_not_read_is_not_idle() {
        let mut world = World::numa(2, 4);
        world.task("web", 90.0).cpu(1);
        world.thread(100, "web", 80.0).cpu(6);
        world.busy(&[0.0, 90.0, 0.0]);
        let finding = world.only("numa-task");
        assert_eq!(finding.status, Status::Unknown);
        assert!(finding.evidence.starts_with("busy time of CPUs 3 not read"), "{}", finding.evidence);
        world.observation.tasks[1].cpu = Some(2);
        assert_eq!(
            world.only("numa-task").status,
            Status::Pass,
            "it is on one node, whatever the others use"
        );
    }

    #[test]
    fn unreadable_memory_is_unknown() {
        let mut world = World::numa(2, 4);
        world.task("db", 90.0).cpu(1);
        world.facts.memory = World::denied("/proc/100/numa_maps");
        let finding = world.only("numa-task");
        assert_eq!((finding.status, &*finding.subject), (Status::Unknown, "process 100 (db)"));
    }
}
