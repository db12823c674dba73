//! Processes of the laboratory, started in a given order; they end with it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::RunError;
use evenkeel_linux::children::{Children, end_all, end_with, join_and_die_with};
use evenkeel_linux::sys::{RawSchedAttr, sched_setattr};

/// One process to start.
#[derive(Debug)]
pub(crate) struct Launch {
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// `cgroup.procs` of its groups.
    pub entrances: Vec<File>,
    /// Where its output goes; nowhere unless given.
    pub output: Option<File>,
    /// Where its messages go; to ours unless given.
    pub messages: Option<File>,
    /// Policy and nice it starts with; ours unless given.
    pub sched: Option<RawSchedAttr>,
    /// It undoes what it did when it is asked to end, so it is asked where we die, and not killed.
    pub undoes: bool,
}

impl Launch {
    /// A program with its arguments.
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<String>) -> Self {
        let (entrances, output, messages) = (Vec::new(), None, None);
        Self { program: program.into(), arguments, entrances, output, messages, sched: None, undoes: false }
    }

    /// In these groups.
    #[must_use]
    pub fn inside(self, entrances: Vec<File>) -> Self {
        Self { entrances, ..self }
    }
}

/// Starts all, or none; running processes in the order of the launches.
pub(crate) fn start(launches: Vec<Launch>) -> Result<Children, RunError> {
    Children::start(move || start_all(launches), |what, error| RunError::system(what, error))
}

fn start_all(launches: Vec<Launch>) -> Result<Vec<Child>, RunError> {
    let mut children: Vec<Child> = Vec::new();
    for launch in launches {
        let program = launch.program.display().to_string();
        match start_one(launch) {
            Ok(child) => children.push(child),
            Err(error) => {
                end_all(children.iter_mut());
                return Err(RunError::system(format!("cannot start {program}"), error));
            }
        }
    }
    Ok(children)
}

fn start_one(launch: Launch) -> io::Result<Child> {
    let entrances: Vec<i32> = launch.entrances.iter().map(AsRawFd::as_raw_fd).collect();
    let Launch { sched, undoes, .. } = launch;
    let parent = std::process::id();
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(launch.output.map_or_else(Stdio::null, Stdio::from))
        // Ctrl-C on the terminal is for the starter, which then ends its tenants.
        .process_group(0);
    if let Some(messages) = launch.messages {
        command.stderr(messages);
    }
    // SAFETY: only async-signal-safe system calls on descriptors and memory prepared before the fork.
    unsafe {
        command.pre_exec(move || {
            join_and_die_with(parent, &entrances)?;
            if undoes {
                end_with(parent, libc::SIGTERM)?;
            }
            sched.as_ref().map_or(Ok(()), |attr| sched_setattr(0, attr))
        });
    }
    command.spawn()
}
