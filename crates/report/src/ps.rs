//! Who used the CPU: tasks and processes with their owners at hand, and the sums of containers, pods and machines; what
//! `ps` prints and `top` shows.

mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use evenkeel_base::observation::CpuView;
use evenkeel_base::{
    BesideCpu, ContainerView, ExitedView, GroupView, NetworkRate, NetworkRates, NetworkUse, Observation,
    PodView, SchedAttr, TaskId, TaskView, VmView,
};
use serde_json::{Value as Json, json};

use crate::why::Waits;
use crate::{Field, Table, Value};
pub use tables::{container_table, exited_table, pod_table, process_table, task_table, vm_table};

/// Lengths of waits by index of the container in the observation; `None` where they are not known.
pub type WaitsByContainer = Option<BTreeMap<u32, Waits>>;

/// A thread, or a process with its threads added up, with its owners at hand.
#[derive(Debug, Clone)]
pub struct Row {
    /// The thread; of a process its main thread with the sums.
    pub task: TaskView,
    pub threads: usize,
    /// Time its group was throttled, as far as it can be told of the task: 0 where no group above has a quota, the
    /// group's where it is the only one that ran or waited there.
    pub throttled_pct: Option<f64>,
    /// Path of its cgroup below the cpu controller's mount.
    pub cgroup: Option<String>,
    pub container: Option<String>,
    pub pod: Option<String>,
    pub vm: Option<String>,
    pub unit: Option<String>,
    /// Whether ownership is known at all: the task's cgroup could be read.
    pub placed: bool,
}

/// Sums of a container, pod or machine.
#[derive(Debug)]
pub struct Sum<'a, T> {
    /// Its index in the observation.
    pub at: u32,
    /// The container, pod or machine.
    pub what: &'a T,
    /// What it is called; a pod with its namespace.
    pub name: String,
    pub pod: Option<String>,
    /// Its cgroup, where that is known.
    pub group: Option<&'a GroupView>,
    /// CPU used, percent of one CPU.
    pub cpu_pct: f64,
    /// Time its tasks were runnable but did not run, percent of the interval.
    pub wait_pct: Option<f64>,
    /// Time quotas held it back, percent of the interval, summed over CPUs: its own, those of what is in it, and one further up for
    /// no longer than it waited.
    pub throttled_pct: Option<f64>,
    pub tasks: usize,
    /// Lengths of its waits; containers only, `None` where they are not known.
    pub waits: Option<Waits>,
    /// What it uses and waits for next to CPU; containers only.
    pub beside: BesideCpu,
}

/// The observation with what documents, text and screens all need.
#[derive(Debug)]
pub struct View<'a> {
    pub observation: &'a Observation,
    /// Threads, busiest first.
    pub tasks: Vec<Row>,
    /// Processes, busiest first.
    pub processes: Vec<Row>,
    /// Lengths of containers' waits, where they were looked at.
    pub waits: WaitsByContainer,
    /// What containers use next to CPU, by index in the observation, where it was looked at.
    pub beside: BTreeMap<u32, BesideCpu>,
    /// What the host's network transferred, where it was looked at.
    pub network: NetworkUse,
    /// What networks transferred meanwhile, where it was looked at.
    pub networks: NetworkRates,
    /// Whether only the tasks of a scope are looked at.
    scoped: bool,
    /// See [`Observation::held_back_pct`].
    held: Vec<Option<f64>>,
    /// See [`Observation::counted_of_owners`].
    counted: BTreeMap<u32, f64>,
}

/// Bytes per second received and sent, short: `1.2M/30k`.
pub fn transferred(rate: NetworkRate) -> String {
    let short = |bytes: f64| {
        let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
        match units.into_iter().find(|(unit, _)| bytes >= *unit) {
            Some((unit, name)) if bytes < 10.0 * unit => format!("{:.1}{name}", bytes / unit),
            Some((unit, name)) => format!("{:.0}{name}", bytes / unit),
            None => format!("{bytes:.0}"),
        }
    };
    format!("{}/{}", short(rate.received_per_s), short(rate.sent_per_s))
}

/// Sums of tasks that ended; 0 where no one counts them.
#[derive(Default)]
struct Ended {
    cpu_pct: f64,
    wait_pct: f64,
}

impl<'a> View<'a> {
    /// With `only` these tasks alone, and the containers, pods and machines that have any of them. `unit` says which of
    /// systemd's units a task is in.
    pub fn new(
        observation: &'a Observation,
        unit: impl Fn(TaskId) -> Option<String>,
        only: Option<&dyn Fn(&TaskView) -> bool>,
    ) -> Self {
        let active = active_by_group(observation);
        let meant = |task: &&TaskView| only.is_none_or(|only| only(task));
        let mut tasks: Vec<Row> = observation
            .tasks
            .iter()
            .filter(meant)
            .map(|task| row(observation, unit(task.id), &active, task))
            .collect();
        // Name and class are the main thread's: once numbers have gone round, others have lower ones.
        let is_main = |row: &&Row| row.task.id.tid == row.task.id.tgid;
        let main_first = tasks.iter().filter(is_main).chain(tasks.iter().filter(|row| !is_main(row)));
        // With what its busiest thread used.
        let mut processes: BTreeMap<u32, (Row, f64)> = BTreeMap::new();
        for task in main_first {
            match processes.get_mut(&task.task.id.tgid) {
                None => {
                    processes.insert(task.task.id.tgid, (task.clone(), task.task.cpu_pct));
                }
                Some((sum, busiest)) => add(sum, task, busiest),
            }
        }
        let mut processes: Vec<Row> = processes.into_values().map(|(row, _)| row).collect();
        sort(&mut tasks);
        sort(&mut processes);
        let (beside, network) = (BTreeMap::new(), NetworkUse::default());
        let (networks, scoped) = (NetworkRates::default(), only.is_some());
        let (held, counted) = (observation.held_back_pct(), observation.counted_of_owners());
        Self { observation, tasks, processes, waits: None, beside, network, networks, scoped, held, counted }
    }

    /// Whether a container, pod or machine is to be shown.
    fn has(&self, of: impl Fn(&TaskView) -> bool) -> bool {
        !self.scoped || self.tasks.iter().any(|row| of(&row.task))
    }

    /// Containers, in the observation's order.
    pub fn containers(&self) -> Vec<Sum<'a, ContainerView>> {
        let all = self.observation.containers.iter().enumerate();
        let all = all.filter(|(at, _)| self.has(|task| task.container == Some(*at as u32)));
        all.map(|(at, what)| {
            let pod =
                what.pod.and_then(|pod| self.observation.pods.get(pod as usize)).map(PodView::full_name);
            let own = Some(at as u32);
            let ended = self.ended(|exited| exited.container == own);
            let mut sum =
                self.sum((at, what), what.name.clone(), pod, what.group, ended, |task| task.container == own);
            sum.waits = self.waits.as_ref().and_then(|waits| waits.get(&(at as u32))).cloned();
            sum.beside = self.beside.get(&(at as u32)).copied().unwrap_or_default();
            sum
        })
        .collect()
    }

    /// Pods, in the observation's order.
    pub fn pods(&self) -> Vec<Sum<'a, PodView>> {
        let all = self.observation.pods.iter().enumerate();
        let all = all.filter(|(at, _)| self.has(|task| task.pod == Some(*at as u32)));
        all.map(|(at, what)| {
            let own = Some(at as u32);
            let containers = &self.observation.containers;
            let pod_of = |container: u32| containers.get(container as usize).and_then(|view| view.pod);
            let ended = self.ended(|exited| exited.container.and_then(pod_of) == own);
            self.sum((at, what), what.full_name(), None, what.group, ended, |task| task.pod == own)
        })
        .collect()
    }

    /// Virtual machines, in the observation's order.
    pub fn vms(&self) -> Vec<Sum<'a, VmView>> {
        let all = self.observation.vms.iter().enumerate();
        let all = all.filter(|(at, _)| self.has(|task| task.vm == Some(*at as u32)));
        all.map(|(at, what)| {
            let none = Ended::default();
            self.sum((at, what), what.name.clone(), None, what.group, none, |task| task.vm == Some(at as u32))
        })
        .collect()
    }

    fn sum<T>(
        &self,
        (at, what): (usize, &'a T),
        name: String,
        pod: Option<String>,
        group: Option<u32>,
        ended: Ended,
        of: impl Fn(&TaskView) -> bool,
    ) -> Sum<'a, T> {
        let members: Vec<&TaskView> = self.observation.tasks.iter().filter(|task| of(task)).collect();
        let at_group = group;
        let group = group.and_then(|group| self.observation.groups.get(group as usize));
        let sum: f64 = ended.cpu_pct + members.iter().map(|task| task.cpu_pct).sum::<f64>();
        let waits: Option<f64> = members.iter().map(|task| task.wait_pct).sum();
        let wait_pct = waits.map(|waits| waits + ended.wait_pct);
        let counted = at_group.and_then(|at| self.counted.get(&at).copied());
        let counted = counted.or_else(|| group.and_then(|group| group.cpu_pct));
        Sum {
            at: at as u32,
            what,
            name,
            pod,
            group,
            // The group's own count has what short-lived tasks used too; the tasks' is finer over short intervals.
            cpu_pct: counted.filter(|pct| *pct > sum).unwrap_or(sum),
            wait_pct,
            throttled_pct: at_group.and_then(|at| self.observation.held_back_in(&self.held, at, wait_pct)),
            tasks: members.len(),
            waits: None,
            beside: BesideCpu::default(),
        }
    }

    /// What tasks that ended within the interval used of it.
    fn ended(&self, of: impl Fn(&ExitedView) -> bool) -> Ended {
        let mut sum = Ended::default();
        for exited in self.observation.exited.iter().filter(|exited| of(exited)) {
            sum.cpu_pct += exited.cpu_pct;
            sum.wait_pct += exited.wait_pct;
        }
        sum
    }

    /// Tasks that ran or waited, by the CPU they ran on last.
    pub fn on_cpu(&self, cpu: u32) -> Vec<&Row> {
        self.tasks.iter().filter(|row| row.task.cpu == Some(cpu) && row.busy()).collect()
    }

    /// Busy time of the CPUs that no task accounts for: interrupts, and by `/proc` tasks that ended meanwhile.
    pub fn unattributed_pct(&self) -> f64 {
        let seen: f64 = self.observation.tasks.iter().map(|task| task.cpu_pct).sum();
        let seen = seen + self.ended(|_| true).cpu_pct;
        (self.observation.host.busy_pct - seen).max(0.0)
    }

    /// The document `evenkeel.ps/v1`.
    pub fn document(&self) -> Json {
        let o = self.observation;
        let containers = self.containers();
        let shown = |exited: &&ExitedView| {
            !self.scoped || containers.iter().any(|container| exited.container == Some(container.at))
        };
        json!({
            "schema": "evenkeel.ps/v1",
            "interval_ms": (o.interval_s * 1e3 * 1e3).round() / 1e3,
            "host": {
                "cpus": o.host.cpus,
                "busy_pct": o.host.busy_pct,
                "steal_pct": o.host.steal_pct,
                "unattributed_pct": self.unattributed_pct(),
                "net_received_bytes": self.network.net_received_bytes,
                "net_sent_bytes": self.network.net_sent_bytes,
                "tcp_retransmits": self.network.tcp_retransmits,
            },
            "cpus": self.cpu_table().json(&o.host.per_cpu),
            "tasks": task_table().json(&self.tasks),
            "containers": container_table().json(&containers),
            "pods": pod_table().json(&self.pods()),
            "vms": vm_table().json(&self.vms()),
            "exited": exited_table(o).json(o.exited.iter().filter(shown)),
        })
    }

    /// CPUs, with the number of tasks that ran or waited there.
    pub fn cpu_table(&self) -> Table<CpuView> {
        let on: BTreeMap<u32, usize> =
            self.observation.host.per_cpu.iter().map(|cpu| (cpu.cpu, self.on_cpu(cpu.cpu).len())).collect();
        Table::new(vec![
            Field::new("cpu", "CPU", |cpu: &CpuView| Value::Integer(cpu.cpu.into())),
            Field::number("busy_pct", "BUSY %", 1, |cpu: &CpuView| Some(cpu.busy_pct)),
            Field::number("steal_pct", "STEAL %", 1, |cpu: &CpuView| cpu.steal_pct),
            Field::new("tasks", "TASKS", move |cpu: &CpuView| {
                on.get(&cpu.cpu).map_or(Value::Unknown, |n| Value::Integer(*n as i64))
            }),
        ])
    }
}

impl Row {
    /// Whether it ran or waited at all.
    pub fn busy(&self) -> bool {
        self.task.cpu_pct > 0.0 || self.task.wait_pct.is_some_and(|pct| pct > 0.0)
    }

    /// Whose it is, for people: pod and container, machine, else the unit.
    pub fn owner(&self) -> Value {
        match (&self.pod, &self.container, &self.vm) {
            (Some(pod), Some(container), _) => Value::Text(format!("{pod}/{container}")),
            (Some(owner), None, _) | (None, Some(owner), _) | (None, None, Some(owner)) => {
                Value::Text(owner.clone())
            }
            (None, None, None) if self.task.kernel_thread => Value::Text("kernel".into()),
            (None, None, None) if !self.placed => Value::Unknown,
            (None, None, None) => self.unit.clone().into(),
        }
    }

    /// The name of an owner; unknown where it is not known whose the task is.
    fn owned(&self, name: &Option<String>) -> Value {
        if self.placed { name.clone().into() } else { Value::Unknown }
    }
}

/// `other`, `other 5`, `batch 0 100ms`: class, nice where it is not 0, own slice.
pub fn class(sched: &SchedAttr) -> String {
    let mut text = sched.policy.to_string();
    if sched.policy.is_realtime() {
        let _ = write!(text, " {}", sched.rt_priority);
    } else if sched.nice.get() != 0 {
        let _ = write!(text, " {}", sched.nice);
    }
    if let Some(ns) = sched.slice_ns {
        let _ = write!(text, " {}ms", ns as f64 / 1e6);
    }
    text
}

/// Weight, quota and CPUs of a cgroup, in words; empty where nothing is known.
pub fn limits(group: Option<&GroupView>) -> String {
    let Some(group) = group else { return String::new() };
    let mut parts = Vec::new();
    if let Some(weight) = group.raw_weight {
        parts.push(format!("{} {weight}", if group.v2 { "weight" } else { "shares" }));
    }
    if let Some(pct) = group.quota.and_then(|quota| quota.pct()) {
        parts.push(format!("quota {} %", (10.0 * pct).round() / 10.0));
    }
    if let Some(cpus) = &group.cpuset {
        parts.push(format!("cpus {cpus}"));
    }
    parts.join(", ")
}

/// Number of tasks that ran or waited in each group.
fn active_by_group(observation: &Observation) -> BTreeMap<u32, usize> {
    let mut active = BTreeMap::new();
    for task in &observation.tasks {
        if task.cpu_pct > 0.0 || task.wait_pct.is_some_and(|pct| pct > 0.0) {
            *active.entry(task.group.unwrap_or(u32::MAX)).or_default() += 1;
        }
    }
    active
}

fn row(
    observation: &Observation,
    unit: Option<String>,
    active: &BTreeMap<u32, usize>,
    task: &TaskView,
) -> Row {
    let group = observation.group_of(task);
    Row {
        throttled_pct: throttled(observation, active, task),
        cgroup: group.map(|group| group.path.clone()),
        container: task.container.map(|at| observation.containers[at as usize].name.clone()),
        pod: task.pod.map(|at| observation.pods[at as usize].full_name()),
        vm: task.vm.map(|at| observation.vms[at as usize].name.clone()),
        unit,
        placed: group.is_some(),
        threads: 1,
        task: task.clone(),
    }
}

fn throttled(observation: &Observation, active: &BTreeMap<u32, usize>, task: &TaskView) -> Option<f64> {
    let own = task.group?;
    if task.cpu_pct == 0.0 && task.wait_pct == Some(0.0) {
        return Some(0.0);
    }
    let mut sum = 0.0;
    for index in observation.path_to_root(own) {
        let group = observation.groups.get(index as usize)?;
        let limited = match group.quota {
            Some(quota) => quota.quota_usec.value().is_some(),
            // Only the root has no bandwidth files.
            None => group.parent.is_some(),
        };
        let pct = if limited { group.throttled_pct? } else { 0.0 };
        let alone = index == own && active.get(&index) == Some(&1);
        if pct > 0.0 && !alone {
            return None;
        }
        sum += pct;
    }
    Some(sum)
}

fn add(sum: &mut Row, thread: &Row, busiest: &mut f64) {
    let plus = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
    // The core that counts is the busiest thread's.
    if thread.task.cpu_pct > *busiest {
        (sum.task.cpu, *busiest) = (thread.task.cpu, thread.task.cpu_pct);
    }
    sum.threads += 1;
    sum.task.cpu_pct += thread.task.cpu_pct;
    sum.task.wait_pct = plus(sum.task.wait_pct, thread.task.wait_pct);
    sum.task.voluntary_per_s = plus(sum.task.voluntary_per_s, thread.task.voluntary_per_s);
    sum.task.involuntary_per_s = plus(sum.task.involuntary_per_s, thread.task.involuntary_per_s);
    sum.throttled_pct = plus(sum.throttled_pct, thread.throttled_pct);
}

fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let waits = |row: &Row| row.task.wait_pct.unwrap_or(0.0);
        b.task
            .cpu_pct
            .total_cmp(&a.task.cpu_pct)
            .then(waits(b).total_cmp(&waits(a)))
            .then(a.task.id.cmp(&b.task.id))
    });
}
