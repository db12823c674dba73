//! The processes of a set of loads.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use evenkeel_base::CpuSet;

use super::TenantError;
use evenkeel_linux::children::{Children, check, end_all, join_and_die_with};
use evenkeel_workload::load::LoadSpec;

/// What to start.
pub(super) struct Order {
    pub binary: PathBuf,
    pub specs: Vec<LoadSpec>,
    /// `cgroup.procs` of each load's group in every hierarchy; one entry for all, one each, or none.
    pub groups: Vec<Vec<File>>,
    pub page: File,
    pub cpus: Option<CpuSet>,
    /// Network namespace of each load; none for the starter's.
    pub namespaces: Arc<Vec<OwnedFd>>,
}

/// Starts all, or none.
pub(super) fn start(order: Order) -> Result<Children, TenantError> {
    Children::start(move || start_all(order), |what, error| TenantError::system(what, error))
}

fn start_all(order: Order) -> Result<Vec<Child>, TenantError> {
    let mut children: Vec<Child> = Vec::new();
    let mut slot = 0;
    for (index, spec) in order.specs.iter().enumerate() {
        let mut spec = spec.clone();
        spec.common.progress = Some(format!("/proc/self/fd/{}", order.page.as_raw_fd()).into());
        spec.common.slot = Some(slot);
        spec.common.gate = true;
        slot += spec.common.thread_count();
        let group = order.groups.get(index).or(order.groups.first()).map_or(&[][..], |files| files);
        match start_one(&order, &spec, group, order.namespaces.get(index)) {
            Ok(child) => children.push(child),
            Err(error) => {
                end_all(children.iter_mut());
                return Err(TenantError::system(
                    format!(
                        "cannot start {} for load {}",
                        order.binary.display(),
                        super::name_of(&spec, index)
                    ),
                    error,
                ));
            }
        }
    }
    Ok(children)
}

fn start_one(
    order: &Order,
    spec: &LoadSpec,
    group: &[File],
    namespace: Option<&OwnedFd>,
) -> io::Result<Child> {
    let entrances: Vec<i32> = group.iter().map(AsRawFd::as_raw_fd).collect();
    let page = order.page.as_raw_fd();
    let namespace = namespace.map(AsRawFd::as_raw_fd);
    let parent = std::process::id();
    let mask = order.cpus.as_ref().map(|cpus| cpus.words().to_vec());
    let mut command = Command::new(&order.binary);
    command
        .arg("load")
        .args(spec.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Ctrl-C on the terminal is for the starter, which then ends its loads.
        .process_group(0);
    // SAFETY: only async-signal-safe system calls on descriptors and memory prepared before the fork.
    unsafe {
        command.pre_exec(move || {
            join_and_die_with(parent, &entrances)?;
            if let Some(namespace) = namespace {
                check(libc::setns(namespace, libc::CLONE_NEWNET))?;
            }
            if let Some(mask) = &mask {
                check(libc::sched_setaffinity(0, mask.len() * 8, mask.as_ptr().cast()))?;
            }
            check(libc::fcntl(page, libc::F_SETFD, 0))
        });
    }
    command.spawn()
}
