//! What each line of `ps` holds, once for text, CSV and JSON.

use std::collections::BTreeMap;

use evenkeel_base::observation::CpuView;
use evenkeel_base::{ContainerView, ExitedView, GroupView, Observation, PodView, TaskView, VmView};
use evenkeel_observe::Observer;
use evenkeel_report::why::Waits;
use evenkeel_report::{Field, Table, Value};
use serde_json::{Value as Json, json};

use super::By;

/// A thread, or a process with its threads added up, with its owners at hand.
#[derive(Clone)]
pub struct Row {
    /// The thread; of a process its first thread with the sums.
    pub task: TaskView,
    /// Threads added up.
    pub threads: usize,
    /// Time its group was throttled, as far as it can be told of the task: 0 where no group above has a quota, the
    /// group's where it is the only one that ran or waited there.
    pub throttled_pct: Option<f64>,
    pub cgroup: Option<String>,
    pub container: Option<String>,
    pub pod: Option<String>,
    pub vm: Option<String>,
    pub unit: Option<String>,
    /// Whether ownership is known at all: the task's cgroup could be read.
    pub placed: bool,
}

/// Sums of a container, pod or machine.
pub struct Sum<'a, T> {
    pub what: &'a T,
    pub name: String,
    pub pod: Option<String>,
    pub group: Option<&'a GroupView>,
    pub cpu_pct: f64,
    pub wait_pct: Option<f64>,
    pub tasks: usize,
    /// Lengths of its waits; containers only, `None` where they are not known.
    pub waits: Option<Waits>,
}

/// The observation with what documents and text both need.
pub struct View<'a> {
    pub observation: &'a Observation,
    pub tasks: Vec<Row>,
    pub processes: Vec<Row>,
    /// Lengths of containers' waits, where they were looked at.
    pub waits: super::waits::ByContainer,
}

/// Sums of tasks that ended; 0 where nobody counts them.
#[derive(Default)]
struct Ended {
    cpu_pct: f64,
    wait_pct: f64,
}

impl<'a> View<'a> {
    pub fn new(observation: &'a Observation, observer: &Observer) -> Self {
        let active = active_by_group(observation);
        let mut tasks: Vec<Row> =
            observation.tasks.iter().map(|task| row(observation, observer, &active, task)).collect();
        let mut processes: BTreeMap<u32, Row> = BTreeMap::new();
        for task in &tasks {
            match processes.get_mut(&task.task.id.tgid) {
                None => {
                    processes.insert(task.task.id.tgid, task.clone());
                }
                Some(sum) => add(sum, task),
            }
        }
        let mut processes: Vec<Row> = processes.into_values().collect();
        sort(&mut tasks);
        sort(&mut processes);
        Self { observation, tasks, processes, waits: None }
    }

    pub fn containers(&self) -> Vec<Sum<'a, ContainerView>> {
        let all = self.observation.containers.iter().enumerate();
        all.map(|(at, what)| {
            let pod = what.pod.and_then(|pod| self.observation.pods.get(pod as usize)).map(pod_name);
            let own = Some(at as u32);
            let ended = self.ended(|exited| exited.container == own);
            let mut sum =
                self.sum(what, what.name.clone(), pod, what.group, ended, |task| task.container == own);
            sum.waits = self.waits.as_ref().and_then(|waits| waits.get(&(at as u32))).cloned();
            sum
        })
        .collect()
    }

    pub fn pods(&self) -> Vec<Sum<'a, PodView>> {
        let all = self.observation.pods.iter().enumerate();
        all.map(|(at, what)| {
            let own = Some(at as u32);
            let containers = &self.observation.containers;
            let pod_of = |container: u32| containers.get(container as usize).and_then(|view| view.pod);
            let ended = self.ended(|exited| exited.container.and_then(pod_of) == own);
            self.sum(what, pod_name(what), None, what.group, ended, |task| task.pod == own)
        })
        .collect()
    }

    pub fn vms(&self) -> Vec<Sum<'a, VmView>> {
        let all = self.observation.vms.iter().enumerate();
        all.map(|(at, what)| {
            let none = Ended::default();
            self.sum(what, what.name.clone(), None, what.group, none, |task| task.vm == Some(at as u32))
        })
        .collect()
    }

    fn sum<T>(
        &self,
        what: &'a T,
        name: String,
        pod: Option<String>,
        group: Option<u32>,
        ended: Ended,
        of: impl Fn(&TaskView) -> bool,
    ) -> Sum<'a, T> {
        let members: Vec<&TaskView> = self.observation.tasks.iter().filter(|task| of(task)).collect();
        let group = group.and_then(|group| self.observation.groups.get(group as usize));
        let sum: f64 = ended.cpu_pct + members.iter().map(|task| task.cpu_pct).sum::<f64>();
        let waits: Option<f64> = members.iter().map(|task| task.wait_pct).sum();
        Sum {
            what,
            name,
            pod,
            group,
            // The group's own count has what short-lived tasks used too; the tasks' is finer over short intervals.
            cpu_pct: group.and_then(|group| group.cpu_pct).filter(|pct| *pct > sum).unwrap_or(sum),
            wait_pct: waits.map(|waits| waits + ended.wait_pct),
            tasks: members.len(),
            waits: None,
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

    pub fn document(&self) -> Json {
        let o = self.observation;
        json!({
            "schema": "evenkeel.ps/v1",
            "interval_ms": (o.interval_s * 1e3 * 1e3).round() / 1e3,
            "host": {
                "cpus": o.host.cpus,
                "busy_pct": o.host.busy_pct,
                "steal_pct": o.host.steal_pct,
                "unattributed_pct": self.unattributed_pct(),
            },
            "cpus": self.cpu_table().json(&o.host.per_cpu),
            "tasks": task_table().json(&self.tasks),
            "containers": container_table().json(&self.containers()),
            "pods": pod_table().json(&self.pods()),
            "vms": vm_table().json(&self.vms()),
            "exited": exited_table(o).json(&o.exited),
        })
    }

    pub fn csv(&self, by: By) -> String {
        match by {
            By::Task => task_table().csv(&self.tasks),
            By::Process => process_table().csv(&self.processes),
            By::Container => container_table().csv(&self.containers()),
            By::Pod => pod_table().csv(&self.pods()),
            By::Vm => vm_table().csv(&self.vms()),
            By::Cpu => self.cpu_table().csv(&self.observation.host.per_cpu),
        }
    }

    fn cpu_table(&self) -> Table<CpuView> {
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

    fn owned(&self, name: &Option<String>) -> Value {
        if self.placed { name.clone().into() } else { Value::Unknown }
    }
}

fn pod_name(pod: &PodView) -> String {
    match &pod.namespace {
        Some(namespace) => format!("{namespace}/{}", pod.name),
        None => pod.name.clone(),
    }
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
    observer: &Observer,
    active: &BTreeMap<u32, usize>,
    task: &TaskView,
) -> Row {
    let group = observation.group_of(task);
    Row {
        throttled_pct: throttled(observation, active, task),
        cgroup: group.map(|group| group.path.clone()),
        container: task.container.map(|at| observation.containers[at as usize].name.clone()),
        pod: task.pod.map(|at| pod_name(&observation.pods[at as usize])),
        vm: task.vm.map(|at| observation.vms[at as usize].name.clone()),
        unit: observer.unit(task.id).map(str::to_owned),
        placed: group.is_some(),
        threads: 1,
        task: task.clone(),
    }
}

fn throttled(observation: &Observation, active: &BTreeMap<u32, usize>, task: &TaskView) -> Option<f64> {
    let mut at = Some(task.group?);
    while let Some(index) = at {
        let group = observation.groups.get(index as usize)?;
        let limited = match group.quota {
            Some(quota) => quota.quota_usec.value().is_some(),
            // Only the root has no bandwidth files.
            None => group.parent.is_some(),
        };
        if limited {
            let alone = Some(index) == task.group && active.get(&index) == Some(&1);
            let idle = task.cpu_pct == 0.0 && task.wait_pct == Some(0.0);
            return if idle { Some(0.0) } else { group.throttled_pct.filter(|pct| alone || *pct == 0.0) };
        }
        at = group.parent;
    }
    Some(0.0)
}

fn add(sum: &mut Row, thread: &Row) {
    let plus = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
    // The core that counts is the busiest thread's.
    if thread.task.cpu_pct > sum.task.cpu_pct / sum.threads as f64 {
        sum.task.cpu = thread.task.cpu;
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

fn core(row: &Row) -> Value {
    row.task.cpu.map_or(Value::Unknown, |cpu| Value::Integer(cpu.into()))
}

fn common() -> Vec<Field<Row>> {
    let unknown_or = |value: Option<String>| value.map_or(Value::Unknown, Value::Text);
    vec![
        Field::new("start_time", "START", |row: &Row| Value::Integer(row.task.id.start_time as i64))
            .documents_only(),
        Field::new("cpu", "CORE", core).right(),
        Field::new("affinity", "AFFINITY", move |row: &Row| {
            unknown_or(row.task.affinity.as_ref().map(ToString::to_string))
        })
        .documents_only(),
        Field::new("policy", "CLASS", move |row: &Row| {
            unknown_or(row.task.sched.map(|sched| sched.policy.to_string()))
        }),
        Field::new("nice", "NI", |row: &Row| {
            row.task.sched.map_or(Value::Unknown, |sched| Value::Integer(sched.nice.get().into()))
        })
        .right(),
        Field::new("slice_usec", "SLICE", |row: &Row| match row.task.sched {
            None => Value::Unknown,
            Some(sched) => sched.slice_ns.map_or(Value::Absent, |ns| Value::Integer((ns / 1000) as i64)),
        })
        .documents_only(),
        Field::new("cgroup", "CGROUP", |row: &Row| row.owned(&row.cgroup)).documents_only(),
        Field::new("container", "CONTAINER", |row: &Row| row.owned(&row.container)).documents_only(),
        Field::new("pod", "POD", |row: &Row| row.owned(&row.pod)).documents_only(),
        Field::new("vm", "VM", |row: &Row| row.owned(&row.vm)).documents_only(),
        Field::new("unit", "UNIT", |row: &Row| row.owned(&row.unit)).documents_only(),
        Field::number("cpu_pct", "CPU %", 1, |row: &Row| Some(row.task.cpu_pct)),
        Field::number("wait_pct", "WAIT %", 1, |row: &Row| row.task.wait_pct),
        Field::number("throttled_pct", "THR %", 1, |row: &Row| row.throttled_pct),
        Field::number("voluntary_per_s", "VOL/s", 0, |row: &Row| row.task.voluntary_per_s),
        Field::number("involuntary_per_s", "INV/s", 0, |row: &Row| row.task.involuntary_per_s),
    ]
}

/// Tasks that ended within the interval, by group.
fn exited_table(observation: &Observation) -> Table<ExitedView> {
    let group_path = |at: Option<u32>| Some(observation.groups.get(at? as usize)?.path.clone());
    let container_name = |at: Option<u32>| Some(observation.containers.get(at? as usize)?.name.clone());
    let groups: BTreeMap<Option<u32>, Option<String>> =
        observation.exited.iter().map(|exited| (exited.group, group_path(exited.group))).collect();
    let containers: BTreeMap<Option<u32>, Option<String>> = observation
        .exited
        .iter()
        .map(|exited| (exited.container, container_name(exited.container)))
        .collect();
    Table::new(vec![
        Field::new("cgroup", "CGROUP", move |row: &ExitedView| {
            groups.get(&row.group).cloned().flatten().map_or(Value::Unknown, Value::Text)
        }),
        Field::new("container", "CONTAINER", move |row: &ExitedView| {
            containers.get(&row.container).cloned().flatten().into()
        }),
        Field::number("tasks_per_s", "ENDED/s", 0, |row: &ExitedView| Some(row.tasks_per_s)),
        Field::number("cpu_pct", "CPU %", 1, |row: &ExitedView| Some(row.cpu_pct)),
        Field::number("wait_pct", "WAIT %", 1, |row: &ExitedView| Some(row.wait_pct)),
    ])
}

/// Threads, with all fields of the contract.
pub fn task_table() -> Table<Row> {
    let mut fields = vec![
        Field::new("tgid", "PID", |row: &Row| Value::Integer(row.task.id.tgid.into())).right(),
        Field::new("tid", "TID", |row: &Row| Value::Integer(row.task.id.tid.into())).right(),
        Field::text("comm", "NAME", |row: &Row| row.task.comm.clone()),
    ];
    fields.extend(common());
    fields.push(
        Field::new("kernel_thread", "KERNEL", |row: &Row| Value::Bool(row.task.kernel_thread))
            .documents_only(),
    );
    Table::new(fields)
}

/// Processes.
pub fn process_table() -> Table<Row> {
    let mut fields = vec![
        Field::new("tgid", "PID", |row: &Row| Value::Integer(row.task.id.tgid.into())).right(),
        Field::text("comm", "NAME", |row: &Row| row.task.comm.clone()),
        Field::new("threads", "THREADS", |row: &Row| Value::Integer(row.threads as i64)).right(),
    ];
    fields.extend(common());
    Table::new(fields)
}

/// Fields of a group's limits, shared by containers, pods and machines.
macro_rules! sum_table {
    ($what:ty, [$($own:expr),* $(,)?]) => {{
        Table::new(vec![
            $($own,)*
            Field::number("cpu_pct", "CPU %", 1, |sum: &Sum<'_, $what>| Some(sum.cpu_pct)),
            Field::number("wait_pct", "WAIT %", 1, |sum: &Sum<'_, $what>| sum.wait_pct),
            Field::number("throttled_pct", "THR %", 1, |sum: &Sum<'_, $what>| sum.group?.throttled_pct),
            Field::new("shares", "SHARES", |sum: &Sum<'_, $what>| {
                sum.group.and_then(|g| g.raw_weight).map_or(Value::Unknown, |n| Value::Integer(n as i64))
            })
            .right(),
            Field::new("quota_pct", "QUOTA %", |sum: &Sum<'_, $what>| quota(sum.group)).right(),
            Field::new("cpuset", "CPUS", |sum: &Sum<'_, $what>| {
                let cpus = sum.group.and_then(|g| g.cpuset.as_ref());
                cpus.map_or(Value::Unknown, |cpus| Value::Text(cpus.to_string()))
            }),
            Field::new("tasks", "TASKS", |sum: &Sum<'_, $what>| Value::Integer(sum.tasks as i64)).right(),
            Field::new("cgroup", "CGROUP", |sum: &Sum<'_, $what>| {
                sum.group.map_or(Value::Unknown, |g| Value::Text(g.path.clone()))
            })
            .documents_only(),
        ])
    }};
}

fn quota(group: Option<&GroupView>) -> Value {
    match group.and_then(|group| group.quota) {
        None => Value::Unknown,
        Some(quota) => quota.pct().map_or(Value::Absent, Value::Number),
    }
}

pub fn container_table<'a>() -> Table<Sum<'a, ContainerView>> {
    sum_table!(
        ContainerView,
        [
            Field::text("id", "ID", |sum: &Sum<'_, ContainerView>| sum.what.id.clone()).documents_only(),
            Field::text("name", "NAME", |sum: &Sum<'_, ContainerView>| sum.name.clone()),
            Field::text("runtime", "RUNTIME", |sum: &Sum<'_, ContainerView>| sum.what.runtime.clone()),
            Field::new("confirmed", "CONFIRMED", |sum: &Sum<'_, ContainerView>| Value::Bool(
                sum.what.confirmed
            ))
            .documents_only(),
            Field::text("pod", "POD", |sum: &Sum<'_, ContainerView>| sum.pod.clone()),
            Field::number("wait_p50_usec", "P50 us", 0, |sum: &Sum<'_, ContainerView>| sum
                .waits
                .as_ref()?
                .p50_usec),
            Field::number("wait_p99_usec", "P99 us", 0, |sum: &Sum<'_, ContainerView>| sum
                .waits
                .as_ref()?
                .p99_usec),
            Field::number("wait_max_usec", "MAX us", 0, |sum: &Sum<'_, ContainerView>| sum
                .waits
                .as_ref()?
                .max_usec),
        ]
    )
}

pub fn pod_table<'a>() -> Table<Sum<'a, PodView>> {
    sum_table!(
        PodView,
        [
            Field::text("uid", "UID", |sum: &Sum<'_, PodView>| sum.what.uid.clone()).documents_only(),
            Field::new("namespace", "NAMESPACE", |sum: &Sum<'_, PodView>| {
                sum.what.namespace.clone().map_or(Value::Unknown, Value::Text)
            }),
            Field::text("name", "NAME", |sum: &Sum<'_, PodView>| sum.what.name.clone()),
        ]
    )
}

pub fn vm_table<'a>() -> Table<Sum<'a, VmView>> {
    sum_table!(
        VmView,
        [
            Field::text("name", "NAME", |sum: &Sum<'_, VmView>| sum.name.clone()),
            Field::new("pid", "PID", |sum: &Sum<'_, VmView>| Value::Integer(sum.what.pid.into())).right(),
            Field::new("vcpus", "VCPUS", |sum: &Sum<'_, VmView>| Value::Json(json!(sum.what.vcpus)))
                .documents_only(),
        ]
    )
}
