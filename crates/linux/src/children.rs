//! Processes that end with us: started by a thread that lives as long as they may, killed on drop.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

/// Running processes, in the order in which they were started.
#[derive(Debug)]
pub struct Children {
    children: Vec<(Child, Option<ExitStatus>)>,
    /// Ends the starting thread when dropped.
    keep: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Children {
    /// Starts what `start_all` starts, all or none. `PR_SET_PDEATHSIG` fires when the *thread* that forked ends, so a
    /// thread of our own forks. `failed` makes an error of what the system said.
    pub fn start<E: Send + 'static>(
        start_all: impl FnOnce() -> Result<Vec<Child>, E> + Send + 'static,
        failed: impl Fn(&str, io::Error) -> E,
    ) -> Result<Self, E> {
        let (keep, kept) = channel::<()>();
        let (tell, told) = channel();
        let thread = std::thread::Builder::new()
            .name("starter".into())
            .spawn(move || {
                let _ = tell.send(start_all());
                let _ = kept.recv();
            })
            .map_err(|e| failed("cannot start a thread", e))?;
        let children = told
            .recv()
            .unwrap_or_else(|_| Err(failed("starting processes", io::Error::other("the starter failed"))));
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

    /// The number of a process. It is its own until this is dropped or asked whether it has ended.
    pub fn pid(&self, index: usize) -> Option<u32> {
        self.children.get(index).map(|(child, _)| child.id())
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

impl Drop for Children {
    fn drop(&mut self) {
        end_all(self.children.iter_mut().map(|(child, _)| child));
        self.keep.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Kills and reaps. A child not yet reaped keeps its pid, so none of these can hit a stranger.
pub fn end_all<'a>(children: impl Iterator<Item = &'a mut Child>) {
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

/// For the child, between fork and exec: it gets `signal` when `parent`, the process that forked it, ends, and has the
/// default reaction to all signals. Only async-signal-safe system calls.
///
/// # Errors
/// As the system says; the parent has ended already.
pub fn end_with(parent: u32, signal: libc::c_int) -> io::Result<()> {
    signal_at_end_of(parent, signal)?;
    crate::signals::reset();
    Ok(())
}

/// Has what this command starts end with us: it gets `signal` when the thread that starts it ends, see [`end_with`].
pub fn bind(command: &mut Command, signal: libc::c_int) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe { command.pre_exec(move || end_with(parent, signal)) };
}

/// For the child, between fork and exec: it gets `signal` when `parent`, the process that forked it, ends. Only
/// async-signal-safe system calls.
pub fn signal_at_end_of(parent: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: takes plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) })?;
    // Killed between the fork and the line above: nobody would ever end us.
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::getppid() } as u32 != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// As [`end_with`] SIGKILL; enters the groups whose `cgroup.procs` are given.
pub fn join_and_die_with(parent: u32, entrances: &[RawFd]) -> io::Result<()> {
    end_with(parent, libc::SIGKILL)?;
    for fd in entrances {
        // "0" is the writing process itself, in cgroup v1 and v2.
        // SAFETY: one byte of a constant.
        check(unsafe { libc::write(*fd, c"0".as_ptr().cast(), 1) } as i32)?;
    }
    Ok(())
}

/// The result of a system call as an error, where it is one.
pub fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
