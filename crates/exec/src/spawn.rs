//! Starting the command inside its bounds: everything is set between fork and exec, so that not one instruction of
//! the command runs unbounded.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use evenkeel_base::CpuSet;
use evenkeel_linux::sys::{self, RawSchedAttr};

use super::ExecError;

/// What the child does to itself before it becomes the command.
pub(super) struct Inside {
    /// `cgroup.procs` files to enter by.
    pub entrances: Vec<File>,
    pub affinity: Option<CpuSet>,
    pub nice: Option<i32>,
    pub slice_ns: Option<u64>,
    /// Whether the kernel kills the command when this process is killed.
    pub dies_with_us: bool,
}

/// What a caller had the command ignore stays ignored: nohup's SIGHUP, and a terminal's signals for what a shell runs in the
/// background. Everything else is as a fresh login has it, whatever this program ignores and blocks.
const KEPT_IGNORED: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Steps in order, for the message when one fails.
const STEPS: [&str; 5] = [
    "entering the cgroup",
    "setting the CPUs",
    "setting nice",
    "setting the slice",
    "tying it to this process",
];

/// Starts it. The caller's standard streams, directory, environment and process group are the command's.
pub(super) fn start(command: &[OsString], inside: Inside) -> Result<Child, ExecError> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| ExecError::Bounds("no command was given".into()))?;
    let (mut told, mut tell) = io::pipe().map_err(|e| ExecError::system("cannot make a pipe", e))?;
    let attr = match inside.slice_ns {
        None => None,
        Some(runtime) => {
            let now = sys::sched_getattr(0).map_err(|e| ExecError::system("sched_getattr", e))?;
            let nice = inside.nice.unwrap_or(now.nice);
            Some(RawSchedAttr {
                policy: now.policy,
                flags: now.flags,
                nice,
                runtime,
                ..RawSchedAttr::default()
            })
        }
    };
    let Inside { entrances, affinity, nice, dies_with_us, .. } = inside;
    let us = std::process::id();
    let mut run = Command::new(program);
    run.args(arguments);
    let setup = move || {
        let fail = |step: u8, error: io::Error, tell: &mut io::PipeWriter| {
            let _ = tell.write(&[step]);
            Err(error)
        };
        for entrance in &entrances {
            // "0" is the writing process itself, in cgroup v1 and v2.
            // SAFETY: a write of one static byte to an open descriptor.
            if unsafe { libc::write(entrance.as_raw_fd(), c"0".as_ptr().cast(), 1) } < 0 {
                return fail(0, io::Error::last_os_error(), &mut tell);
            }
        }
        if let Some(cpus) = &affinity
            && let Err(error) = sys::setaffinity(0, cpus)
        {
            return fail(1, error, &mut tell);
        }
        if let Some(nice) = nice {
            // SAFETY: takes numbers only.
            if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } < 0 {
                return fail(2, io::Error::last_os_error(), &mut tell);
            }
        }
        if let Some(attr) = &attr
            && let Err(error) = sys::sched_setattr(0, attr)
        {
            return fail(3, error, &mut tell);
        }
        if dies_with_us && let Err(error) = evenkeel_linux::children::signal_at_end_of(us, libc::SIGKILL) {
            return fail(4, error, &mut tell);
        }
        evenkeel_linux::signals::reset_but(&KEPT_IGNORED);
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe system calls on what was prepared before the fork.
    unsafe { run.pre_exec(setup) };
    let spawned = run.spawn();
    // The parent's writing end is inside the closure.
    drop(run);
    spawned.map_err(|error| {
        let mut step = [0];
        let name = program.to_string_lossy().into_owned();
        match told.read(&mut step) {
            Ok(1) => ExecError::system(STEPS.get(usize::from(step[0])).copied().unwrap_or("starting"), error),
            _ if error.kind() == io::ErrorKind::NotFound => ExecError::NotFound(name),
            _ if error.kind() == io::ErrorKind::WouldBlock => {
                ExecError::system("cannot start a process", error)
            }
            _ => ExecError::NotExecutable(name, error),
        }
    })
}
