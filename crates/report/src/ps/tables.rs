//! The columns of `ps`, once for text, CSV and JSON.

use std::collections::BTreeMap;

use evenkeel_base::{ContainerView, ExitedView, GroupView, Observation, PodView, VmView};
use serde_json::json;

use super::{Row, Sum};
use crate::{Field, Table, Value};

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
pub fn exited_table(observation: &Observation) -> Table<ExitedView> {
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
            Field::number("throttled_pct", "THR %", 1, |sum: &Sum<'_, $what>| sum.throttled_pct),
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
            Field::integer("rss_bytes", "RSS", |sum: &Sum<'_, ContainerView>| {
                i64::try_from(sum.beside.rss_bytes?).ok()
            })
            .documents_only(),
            Field::number("memory_pressure_pct", "MEMORY PSI %", 1, |sum: &Sum<'_, ContainerView>| {
                sum.beside.memory_pressure_pct
            })
            .documents_only(),
            Field::number("io_pressure_pct", "IO PSI %", 1, |sum: &Sum<'_, ContainerView>| {
                sum.beside.io_pressure_pct
            })
            .documents_only(),
            Field::integer("net_received_bytes", "NET IN", |sum: &Sum<'_, ContainerView>| {
                i64::try_from(sum.beside.network.net_received_bytes?).ok()
            })
            .documents_only(),
            Field::integer("net_sent_bytes", "NET OUT", |sum: &Sum<'_, ContainerView>| {
                i64::try_from(sum.beside.network.net_sent_bytes?).ok()
            })
            .documents_only(),
            Field::integer("tcp_retransmits", "RETRANSMITS", |sum: &Sum<'_, ContainerView>| {
                i64::try_from(sum.beside.network.tcp_retransmits?).ok()
            })
            .documents_only(),
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
