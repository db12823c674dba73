//! Before the release: groups and orders of the tenants, and their start.

use std::path::Path;
use std::sync::Arc;

use evenkeel_base::SchedPolicy;
use evenkeel_experiment::file::{Place, Tenant};
use evenkeel_experiment::record::Limits;

use super::super::RunError;
use super::super::contained;
use super::super::groups::ExperimentCgroup;
use super::super::order::{Order, Work};
use super::super::running::Running;
use super::super::work;
use super::member::{Member, Task};
use crate::launch::containers::{LIBRARIES, SYSTEM};
use crate::launch::{Container, Launch};
use crate::mounts::CgroupMounts;
use crate::private::PrivateDir;

/// Groups and orders of all tenants: where groups are, the sandbox that holds ours, the members.
pub(super) type Prepared = (Option<CgroupMounts>, Option<ExperimentCgroup>, Vec<Member>);

pub(super) fn prepare(
    task: &Task<'_>,
    name: &str,
    scratch: &PrivateDir,
    tenants: Vec<Tenant>,
    page: &Path,
) -> Result<Prepared, RunError> {
    let experiment = task.experiment;
    let specs = &experiment.tenants;
    let in_groups = specs.iter().any(|t| t.place != Place::Process);
    let mounts = if in_groups { Some(CgroupMounts::find()?) } else { None };
    let v2 = mounts.as_ref().is_some_and(CgroupMounts::is_v2);
    let factor = experiment.unit_factor(v2).map_err(|e| RunError::Missing(e.to_string()))?;
    let cpuset = experiment.cpus.is_some() || specs.iter().any(|t| t.cpus.is_some());
    let memory = specs.iter().any(|t| t.memory_bytes.is_some());
    // A CRI runtime makes its groups in ours.
    let ours = specs.iter().any(|t| matches!(t.place, Place::Cgroup | Place::Pod));
    let sandbox = match mounts.as_ref().filter(|_| ours) {
        Some(mounts) => Some(ExperimentCgroup::make(mounts, name, cpuset, memory)?),
        None => None,
    };
    if let (Some(sandbox), Some(cpus)) = (&sandbox, &experiment.cpus) {
        sandbox.set_cpus(cpus)?;
    }
    let mut members = Vec::new();
    let mut weights = Vec::new();
    for (number, tenant) in tenants.into_iter().enumerate() {
        let spec = &specs[tenant.spec];
        let seed = experiment
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(u64::from(task.repetition) * 10_007 + number as u64);
        let work = work::work(&tenant, spec, seed)?;
        let mut wanted = work::wanted(&tenant, spec, factor, v2);
        if matches!(spec.place, Place::Docker | Place::Pod) {
            wanted.cpus = wanted.cpus.or_else(|| experiment.cpus.clone());
        }
        let group = match (&sandbox, spec.place) {
            (Some(sandbox), Place::Cgroup) => {
                Some(Arc::new(sandbox.tenant(number, &wanted, experiment.enforcer.is_some())?))
            }
            _ => None,
        };
        weights.push(wanted.weight);
        let affinity =
            spec.cpus.clone().or_else(|| experiment.cpus.clone()).filter(|_| spec.place == Place::Process);
        let limits = Limits {
            unit_factor: tenant.units.and(factor),
            nice: Some(spec.nice).filter(|nice| *nice != 0),
            policy: Some(spec.policy).filter(|p| *p != SchedPolicy::Other).map(|p| p.to_string()),
            slice_ms: spec.slice_ms,
            cpus: affinity.clone(),
            ..group.as_ref().map(|g| g.limits()).unwrap_or_default()
        };
        let limits = Limits { cpus: limits.cpus.or_else(|| group.as_ref()?.limits().cpus), ..limits };
        let order = Order {
            page: page.to_owned(),
            slot: u32::try_from(number).unwrap_or(u32::MAX),
            answers: scratch.path().join(format!("answers-{number}")),
            work,
            runs: spec.runs,
            offset_ns: (spec.start_s * 1e9) as u64,
            background: spec.background,
            nice: spec.nice,
            policy: spec.policy.raw(),
            slice_ns: spec.slice_ms.map(|ms| (ms * 1e6) as u64),
            cpus: affinity,
            cpu_stat: match spec.place {
                Place::Docker | Place::Pod => contained::cpu_stat(),
                _ => group.iter().map(|g| g.cpu_stat()).collect(),
            },
            owned: matches!(spec.place, Place::Docker | Place::Pod),
        };
        members.push(Member {
            tenant,
            order,
            group,
            wanted,
            limits,
            ended: None,
            early: None,
            over_time: false,
        });
    }
    if let Some(sandbox) = &sandbox {
        sandbox.weigh(weights.into_iter())?;
    }
    Ok((mounts, sandbox, members))
}

/// Starts the tenants in the order of `activation` (those in containers after the others).
pub(super) fn start(
    task: &Task<'_>,
    name: &str,
    mounts: Option<&CgroupMounts>,
    members: &mut [Member],
    activation: &[usize],
    scratch: &PrivateDir,
) -> Result<Running, RunError> {
    let specs = &task.experiment.tenants;
    let place = |member: &Member| specs[member.tenant.spec].place;
    let in_container = |member: &Member| matches!(place(member), Place::Docker | Place::Pod);
    let any = |wanted: Place| members.iter().any(|member| place(member) == wanted);
    let mut running = Running::prepare(name, any(Place::Docker), any(Place::Pod))?;
    let mut launches = Vec::new();
    for &number in activation {
        let member = &members[number];
        let path = scratch.path().join(format!("order-{number}"));
        let text = serde_json::to_vec(&member.order)
            .map_err(|e| RunError::system("an order", std::io::Error::other(e)))?;
        std::fs::write(&path, text).map_err(|e| RunError::system(path.display().to_string(), e))?;
        if in_container(member) {
            continue;
        }
        let arguments = vec!["lab".to_owned(), "tenant".to_owned(), path.display().to_string()];
        let entrances = member.group.as_ref().map_or_else(|| Ok(Vec::new()), |g| g.entrances())?;
        launches.push((number, Launch::new(task.binary, arguments).inside(entrances)));
    }
    running.launch(launches)?;
    for &number in activation {
        let member = &mut members[number];
        let (true, Some(mounts)) = (in_container(member), mounts) else { continue };
        let order = scratch.path().join(format!("order-{number}"));
        let container = Container {
            binary: task.binary,
            arguments: vec!["lab".into(), "tenant".into(), order.display().to_string()],
            shared: (scratch.path(), scratch.path()),
            system: if matches!(member.order.work, Work::Command(_)) { &SYSTEM } else { &LIBRARIES },
            resources: contained::resources(&member.wanted, mounts.is_v2()),
            may_nice: member.order.nice < 0,
        };
        let pod = place(member) == Place::Pod;
        if let Some(group) = running.contain(number, pod, &container, mounts)? {
            let found = group.limits();
            let own = std::mem::take(&mut member.limits);
            member.limits = Limits {
                unit_factor: own.unit_factor,
                nice: own.nice,
                policy: own.policy,
                slice_ms: own.slice_ms,
                ..found
            };
        }
    }
    Ok(running)
}
