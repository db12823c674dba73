//! The processes of a set of loads: started by a thread that lives as long as they may, killed on drop.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use evenkeel_base::CpuSet;

use super::TenantError;
use crate::load::LoadSpec;

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

/// Running processes.
#[derive(Debug)]
pub(super) struct Processes {
    children: Vec<(Child, Option<ExitStatus>)>,
    /// Ends the starting thread when dropped.
    keep: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Processes {
    /// Starts all, or none. `PR_SET_PDEATHSIG` fires when the *thread* that forked ends, so a thread of our own forks.
    pub fn start(order: Order) -> Result<Self, TenantError> {
        let (keep, kept): (Sender<()>, Receiver<()>) = channel();
        let (tell, told) = channel();
        let thread = std::thread::Builder::new()
            .name("lab-starter".into())
            .spawn(move || {
                let _ = tell.send(start_all(order));
                let _ = kept.recv();
            })
            .map_err(|e| TenantError::system("cannot start a thread", e))?;
        let children = told.recv().unwrap_or_else(|_| {
            Err(TenantError::system("starting loads", io::Error::other("the starter failed")))
        });
        match children {
            Ok(children) => Ok(Self {
                children: children.into_iter().map(|child| (child, None)).collect(),
                keep: Some(keep),
                thread: Some(thread),
            }),
            Err(error) => {
                drop(keep);
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// The status of a process that has ended.
    pub fn ended(&mut self, index: usize) -> Option<ExitStatus> {
        let (child, status) = self.children.get_mut(index)?;
        if status.is_none() {
            *status = child.try_wait().ok().flatten();
        }
        *status
    }

    /// Whether all have ended.
    pub fn finished(&mut self) -> bool {
        (0..self.children.len()).all(|index| self.ended(index).is_some())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        end_all(self.children.iter_mut().map(|(child, _)| child));
        self.keep.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Kills and reaps. A child not yet reaped keeps its pid, so none of these can hit a stranger.
fn end_all<'a>(children: impl Iterator<Item = &'a mut Child>) {
    let children: Vec<_> = children.collect();
    let mut killed = Vec::with_capacity(children.len());
    for child in children {
        let _ = child.kill();
        killed.push(child);
    }
    for child in killed {
        let _ = child.wait();
    }
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
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
            // Killed between the fork and the line above: nobody would ever end us.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for fd in &entrances {
                // "0" is the writing process itself, in cgroup v1 and v2.
                check(libc::write(*fd, c"0".as_ptr().cast(), 1) as i32)?;
            }
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

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
