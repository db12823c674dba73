//! Processes started in a given order; they end with the starter.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use evenkeel_base::CpuSet;
use evenkeel_linux::children::{Children, check, end_all, end_with, join_and_die_with};
use evenkeel_linux::sys::{RawSchedAttr, sched_setattr};

use super::LaunchError;

/// One process to start. What is shared between processes is open once for all of them.
#[derive(Debug, Default)]
pub(crate) struct Launch {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Its working directory; ours unless given.
    pub dir: Option<PathBuf>,
    /// `cgroup.procs` of its groups.
    pub entrances: Arc<Vec<File>>,
    /// Where its output goes; nowhere unless given.
    pub output: Option<File>,
    /// Where its messages go; to ours unless given.
    pub messages: Option<File>,
    /// Policy and nice it starts with; ours unless given.
    pub sched: Option<RawSchedAttr>,
    /// CPUs it is confined to by affinity; ours unless given.
    pub cpus: Option<CpuSet>,
    /// Its network namespace; ours unless given.
    pub namespace: Option<Arc<OwnedFd>>,
    /// A descriptor of ours that it finds open under the same number.
    pub inherits: Option<Arc<OwnedFd>>,
    /// It undoes what it did when it is asked to end, so it is asked where we die, and not killed.
    pub undoes: bool,
}

impl Launch {
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<String>) -> Self {
        Self { program: program.into(), arguments, ..Self::default() }
    }

    #[must_use]
    pub fn inside(self, entrances: impl Into<Arc<Vec<File>>>) -> Self {
        Self { entrances: entrances.into(), ..self }
    }
}

/// Where output and messages go that are not wanted.
pub(crate) fn null() -> Result<File, LaunchError> {
    File::options().write(true).open("/dev/null").map_err(|e| LaunchError::system("/dev/null", e))
}

/// Starts all, or none; running processes in the order of the launches.
pub(crate) fn start(launches: Vec<Launch>) -> Result<Children, LaunchError> {
    Children::start(move || start_all(launches), |what, error| LaunchError::system(what, error))
}

fn start_all(launches: Vec<Launch>) -> Result<Vec<Child>, LaunchError> {
    let mut children: Vec<Child> = Vec::new();
    for launch in launches {
        let program = launch.program.display().to_string();
        match start_one(launch) {
            Ok(child) => children.push(child),
            Err(error) => {
                end_all(children.iter_mut());
                return Err(LaunchError::system(format!("cannot start {program}"), error));
            }
        }
    }
    Ok(children)
}

fn start_one(launch: Launch) -> io::Result<Child> {
    let entrances: Vec<i32> = launch.entrances.iter().map(AsRawFd::as_raw_fd).collect();
    let namespace = launch.namespace.as_ref().map(|fd| fd.as_raw_fd());
    let inherits = launch.inherits.as_ref().map(|fd| fd.as_raw_fd());
    let mask = launch.cpus.as_ref().map(|cpus| cpus.words().to_vec());
    let Launch { sched, undoes, .. } = launch;
    let parent = std::process::id();
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(launch.output.map_or_else(Stdio::null, Stdio::from))
        // Ctrl-C on the terminal is for the starter, which then ends what it started.
        .process_group(0);
    if let Some(messages) = launch.messages {
        command.stderr(messages);
    }
    if let Some(dir) = launch.dir {
        command.current_dir(dir);
    }
    // SAFETY: only async-signal-safe system calls on descriptors and memory prepared before the fork.
    unsafe {
        command.pre_exec(move || {
            join_and_die_with(parent, &entrances)?;
            if undoes {
                end_with(parent, libc::SIGTERM)?;
            }
            if let Some(namespace) = namespace {
                check(libc::setns(namespace, libc::CLONE_NEWNET))?;
            }
            if let Some(mask) = &mask {
                check(libc::sched_setaffinity(0, mask.len() * 8, mask.as_ptr().cast()))?;
            }
            if let Some(inherits) = inherits {
                check(libc::fcntl(inherits, libc::F_SETFD, 0))?;
            }
            sched.as_ref().map_or(Ok(()), |attr| sched_setattr(0, attr))
        });
    }
    command.spawn()
}
