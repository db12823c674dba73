//! One cell: starts the tenants, releases them at one instant, watches them end, and collects what they tell.

use std::sync::atomic::Ordering;

use super::steal::StealThread;
use super::{RunError, predict};
use crate::launch::names::fresh_name;
use crate::private::PrivateDir;
use evenkeel_workload::page::Page;

mod member;
mod prepare;
mod told;
mod watch;

use evenkeel_experiment::record::{Cell, TenantRecord};
use member::Member;
pub(super) use member::Task;
use prepare::{prepare, start};
use told::record_of;
use watch::{release, wait_until_up, watch};

/// Runs it; `None` when it was stopped before its end.
pub(super) fn run(task: &Task<'_>, progress: &mut dyn FnMut(f64)) -> Result<Option<Cell>, RunError> {
    let experiment = task.experiment;
    let name = fresh_name();
    // Pages, orders and answers.
    let scratch = PrivateDir::in_memory().map_err(|e| RunError::system("cannot make a directory", e))?;
    let tenants = experiment.tenants();
    let page_path = scratch.path().join("page");
    let slots = u32::try_from(tenants.len()).unwrap_or(u32::MAX);
    let page = Page::create(&page_path, slots)
        .map_err(|e| RunError::system("the page", std::io::Error::other(e)))?;
    page.lock_as_owner().map_err(|e| RunError::system("cannot lock the page", e))?;
    let (mounts, mut sandbox, mut members) = prepare(task, &name, &scratch, tenants, &page_path)?;
    let mut activation: Vec<usize> = (0..members.len()).collect();
    if task.reversed {
        activation.reverse();
    }
    let mut processes = start(task, &name, mounts.as_ref(), &mut members, &activation, &scratch)?;
    if !wait_until_up(task, &mut members, &activation, &mut processes, &page) {
        return Ok(None);
    }
    let instant = release(task, &page)?;
    if task.stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let stealing = steal(task, &members, instant)?;
    let mut watched = watch(task, &mut members, &mut processes, &page, instant, progress);
    if task.stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let stolen = stealing.and_then(StealThread::finish).map(|(record, cpu_s)| {
        watched.host.without_emulator(cpu_s);
        record
    });
    if let Some(sandbox) = &mut sandbox {
        // What commands left running.
        sandbox.kill();
    }
    // Containers and processes go before their groups.
    drop(processes);
    let released_at = jiff::Timestamp::from_nanosecond(i128::from(watched.released_realtime_ns)).ok();
    let mut notes = Vec::new();
    let mut records: Vec<TenantRecord> =
        members.into_iter().map(|member| record_of(task, member, &watched, &mut notes)).collect();
    if let (Some(stolen), [only]) = (&stolen, records.as_mut_slice()) {
        // What the emulator kept from it is what a guest would see as stolen.
        only.total.stolen_s = Some(stolen.stolen_s);
        if let [run] = only.runs.as_mut_slice() {
            run.account.stolen_s = Some(stolen.stolen_s);
        }
    }
    let predicted = predict::predict(task.experiment, task.host, task.repetition);
    Ok(Some(Cell {
        point: task.point.clone(),
        repetition: task.repetition,
        released_at: released_at.map(|stamp| stamp.to_string()),
        seconds: watched.seconds,
        unplaced: false,
        activation,
        tenants: records,
        host: watched.host,
        enforcer: stolen,
        predicted: Some(predicted),
        node: None,
        notes,
    }))
}

/// Starts the steal emulator, if there is one.
fn steal(task: &Task<'_>, members: &[Member], instant: u64) -> Result<Option<StealThread>, RunError> {
    let Some(spec) = &task.experiment.enforcer else { return Ok(None) };
    let victim = members.iter().filter(|m| !m.order.background).find_map(|member| {
        let group = member.group.clone()?;
        let vcpu = group.vcpu()?.clone();
        Some((task.experiment.tenants[member.tenant.spec].quota_pct, group, vcpu))
    });
    let Some((limit, group, vcpu)) = victim else {
        return Err(RunError::Usage(
            "the steal emulator ([enforcer]) needs a tenant in a plain cgroup (place = \"cgroup\")".into(),
        ));
    };
    StealThread::start(spec, limit, group, vcpu, instant).map(Some)
}
