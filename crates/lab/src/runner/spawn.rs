//! The tenants' processes: started in a given order by a thread that lives as long as they may, killed on drop.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use super::RunError;

/// One process to start.
pub(crate) struct Launch {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// `cgroup.procs` of its groups.
    pub entrances: Vec<File>,
}

/// Running processes, in the order of the launches.
#[derive(Debug)]
pub(crate) struct Processes {
    children: Vec<(Child, Option<ExitStatus>)>,
    /// Ends the starting thread when dropped.
    keep: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Processes {
    /// Starts all, or none. `PR_SET_PDEATHSIG` fires when the *thread* that forked ends, so a thread of our own forks.
    pub fn start(binary: PathBuf, launches: Vec<Launch>) -> Result<Self, RunError> {
        let (keep, kept) = channel::<()>();
        let (tell, told) = channel();
        let thread = std::thread::Builder::new()
            .name("lab-starter".into())
            .spawn(move || {
                let _ = tell.send(start_all(&binary, launches));
                let _ = kept.recv();
            })
            .map_err(|e| RunError::system("cannot start a thread", e))?;
        let children = told.recv().unwrap_or_else(|_| {
            Err(RunError::system("starting tenants", io::Error::other("the starter failed")))
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

    /// Asks one process to end (SIGTERM).
    pub fn ask_to_end(&mut self, index: usize) {
        if let Some((child, None)) = self.children.get(index)
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            // Not reaped yet, so the number is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        end_all(&mut self.children);
        self.keep.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Kills and reaps. A child not yet reaped keeps its pid, so none of these can hit a stranger.
fn end_all(children: &mut [(Child, Option<ExitStatus>)]) {
    for (child, status) in children.iter_mut() {
        if status.is_none() {
            let _ = child.kill();
        }
    }
    for (child, _) in children.iter_mut() {
        let _ = child.wait();
    }
}

fn start_all(binary: &PathBuf, launches: Vec<Launch>) -> Result<Vec<Child>, RunError> {
    let mut children = Vec::new();
    for launch in launches {
        match start_one(binary, &launch) {
            Ok(child) => children.push((child, None)),
            Err(error) => {
                end_all(&mut children);
                return Err(RunError::system(
                    format!("cannot start {} as a tenant", binary.display()),
                    error,
                ));
            }
        }
    }
    Ok(children.into_iter().map(|(child, _)| child).collect())
}

fn start_one(binary: &PathBuf, launch: &Launch) -> io::Result<Child> {
    let entrances: Vec<i32> = launch.entrances.iter().map(AsRawFd::as_raw_fd).collect();
    let parent = std::process::id();
    let mut command = Command::new(binary);
    command
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Ctrl-C on the terminal is for the starter, which then ends its tenants.
        .process_group(0);
    // SAFETY: only async-signal-safe system calls on descriptors prepared before the fork.
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
            Ok(())
        });
    }
    command.spawn()
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
