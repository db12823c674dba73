//! The tenants' processes, started in a given order.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::RunError;
use evenkeel_linux::children::{Children, end_all, join_and_die_with};

/// One process to start.
pub(crate) struct Launch {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// `cgroup.procs` of its groups.
    pub entrances: Vec<File>,
}

/// Starts all, or none; running processes in the order of the launches.
pub(crate) fn start(binary: PathBuf, launches: Vec<Launch>) -> Result<Children, RunError> {
    Children::start(move || start_all(&binary, launches), |what, error| RunError::system(what, error))
}

fn start_all(binary: &PathBuf, launches: Vec<Launch>) -> Result<Vec<Child>, RunError> {
    let mut children: Vec<Child> = Vec::new();
    for launch in launches {
        match start_one(binary, &launch) {
            Ok(child) => children.push(child),
            Err(error) => {
                end_all(children.iter_mut());
                return Err(RunError::system(
                    format!("cannot start {} as a tenant", binary.display()),
                    error,
                ));
            }
        }
    }
    Ok(children)
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
    unsafe { command.pre_exec(move || join_and_die_with(parent, &entrances)) };
    command.spawn()
}
