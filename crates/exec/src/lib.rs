//! Any command under a limit, a weight or a set of CPUs, with an account of where its time went.
//!
//! * [`Bounds`]: what it may have. With none it runs where the caller does and is only accounted for.
//! * [`run`]: starts it (bounds are set between fork and exec), passes signals on, accounts for it and its
//!   descendants, removes its cgroups. Groups left by a `kill -9` go with the next start ([`sweep`]).
//! * [`Running`]: a look at it while it runs, and its quota to change: for whoever looks for the right limit.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, Nice};
use evenkeel_linux::sys;
use rustix::event::{PollFd, PollFlags, poll};

mod account;
mod bounds;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod signals;
mod spawn;
mod sweep;
mod taskstats;
mod waits;

pub use account::Account;
pub use bounds::{Bounds, CpuLimit, quota};
use sweep::Claimed;
pub use sweep::{Owner, PREFIX, sweep};
pub use waits::WaitSource;

use account::Before;
use group::{Counted, ExecGroup, NoGroup, OwnCgroup, QuotasAbove};
use signals::Signals;
use spawn::Inside;
use waits::{Waits, living_descendants};

/// How often a running command is looked at.
pub const TICK: Duration = Duration::from_millis(100);

/// What happens to descendants that outlive the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Leftover {
    /// They keep running within its bounds; when they have ended, the next `exec` or `restore` removes the cgroup.
    #[default]
    Leave,
    /// They are waited for.
    Wait,
    /// They are killed; also, and the command with them, when this process is killed.
    End,
}

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    pub command: Vec<OsString>,
    pub bounds: Bounds,
    /// Descendants that outlive it.
    pub leftover: Leftover,
    /// Directory of the records by which a later start finds what a killed one left.
    pub records: PathBuf,
}

/// Why a command did not run as asked.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The bounds make no sense.
    #[error("{0}")]
    Bounds(String),
    /// The host cannot bound it, or this user may not.
    #[error("{0}")]
    Cannot(String),
    #[error("{0}: command not found")]
    NotFound(String),
    /// It is there and cannot be executed.
    #[error("{0}: {1}")]
    NotExecutable(String, io::Error),
    #[error("{what}: {error}")]
    System { what: String, error: io::Error },
}

impl ExecError {
    fn system(what: impl Into<String>, error: io::Error) -> Self {
        Self::System { what: what.into(), error }
    }

    /// The exit status by which shells and `timeout` tell: 127 not found, 126 not executable, 125 anything else.
    pub fn status(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(..) => 126,
            _ => 125,
        }
    }
}

impl From<NoGroup> for ExecError {
    fn from(error: NoGroup) -> Self {
        Self::Cannot(error.0)
    }
}

#[derive(Debug)]
pub struct Running<'a> {
    group: Option<&'a ExecGroup>,
    pub pid: u32,
}

impl Running<'_> {
    /// CPU time of it and its descendants so far, nanoseconds; `None` without a cgroup that counts it.
    pub fn cpu_ns(&self) -> Option<u64> {
        self.group?.counted().cpu_ns
    }

    /// Processes inside its cgroup now; none without one.
    pub fn processes(&self) -> Vec<u32> {
        self.group.map(ExecGroup::processes).unwrap_or_default()
    }

    /// Changes its quota. The group must have been made with one ([`Bounds::quota`], which may be without limit).
    pub fn set_quota(&self, quota: &CpuQuota) -> Result<(), ExecError> {
        match self.group {
            Some(group) => Ok(group.set_quota(quota)?),
            None => Err(ExecError::Cannot("the command has no cgroup".into())),
        }
    }
}

/// Runs a command and waits for its end; `tick` is called ten times a second.
pub fn run(spec: &Spec, tick: &mut dyn FnMut(&Running<'_>)) -> Result<Account, ExecError> {
    for dir in sweep(&spec.records) {
        tracing::info!("{}, left by an earlier evenkeel exec, is still in use", dir.display());
    }
    let mut notes = Vec::new();
    let signals = Signals::listen().map_err(|e| ExecError::system("cannot listen to signals", e))?;
    // Orphans of the command come to us, so that their CPU time is counted whoever forgot to wait for them.
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let (mut group, bounds) = bound(spec, &mut notes)?;
    let mut waits = Waits::start();
    let before = Before::now(QuotasAbove::find(group.as_ref()));
    let inside = Inside {
        entrances: group.as_ref().map_or(Ok(Vec::new()), ExecGroup::entrances)?,
        affinity: bounds.cpus.clone().filter(|_| !group.as_ref().is_some_and(ExecGroup::has_cpuset)),
        nice: bounds.nice,
        slice_ns: bounds.slice_ns,
        dies_with_us: spec.leftover == Leftover::End,
    };
    let started = Instant::now();
    let pid = spawn::start(&spec.command, inside)?.id();
    let mut end = None;
    while end.is_none_or(|_| spec.leftover == Leftover::Wait) {
        {
            let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            fds.extend(waits.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ExecError::system("poll", error.into())),
            }
        }
        for signal in signals.take() {
            if end.is_none() {
                // Not yet reaped, so the number is still the command's.
                // SAFETY: takes numbers only.
                unsafe { libc::kill(pid as libc::pid_t, signal) };
            }
        }
        waits.look(living_descendants);
        let nobody = reap(pid, started, &mut end);
        if end.is_none() {
            group.iter().for_each(ExecGroup::follow_quota);
            tick(&Running { group: group.as_ref(), pid });
        } else if nobody {
            break;
        }
    }
    let Some((status, real)) = end else {
        return Err(ExecError::system("waiting for the command", io::ErrorKind::Other.into()));
    };
    if spec.leftover == Leftover::End {
        end_leftovers(group.as_ref());
    }
    let counted = group.as_ref().map_or_else(Counted::default, ExecGroup::counted);
    let left = group.as_ref().map(ExecGroup::processes).unwrap_or_default();
    let alive: BTreeSet<u32> = living_descendants().into_iter().chain(left).collect();
    let waited = waits.finish(&alive);
    let cgroup = group.as_ref().and_then(|group| Some(group.cpu_dir()?.display().to_string()));
    if let Some(group) = &mut group {
        notes.append(&mut group.notes);
        if !group.remove() {
            notes.push(format!(
                "{} outlived the command and still run{} inside its bounds; the next start after their end removes {}",
                people(group.processes().len()),
                if group.processes().len() == 1 { "s" } else { "" },
                group.groups().first().map(|group| group.dir().display().to_string()).unwrap_or_default()
            ));
        }
    }
    Ok(before.account(account::End { spec, status, real, counted, waited, left: alive, cgroup, notes }))
}

fn people(count: usize) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

/// Makes the groups, or finds what serves instead; gives the bounds that are left to set on the task itself.
fn bound(spec: &Spec, notes: &mut Vec<String>) -> Result<(Option<ExecGroup>, Bounds), ExecError> {
    let owner = Owner::this().map_err(|e| ExecError::system("/proc", e))?;
    let mut bounds = spec.bounds.clone();
    if let (Some(_), true) = (bounds.slice_ns, sys::default_slice_ns().is_none()) {
        notes
            .push("this kernel has no slices of a task's own (Linux 6.12 has): --slice has no effect".into());
        bounds.slice_ns = None;
    }
    let make = |bounds: &Bounds| {
        let claimed = Claimed::new(&owner, &spec.records, spec.leftover == Leftover::End);
        ExecGroup::make(&OwnCgroup::find()?, bounds, claimed)
    };
    let error = match make(&bounds) {
        Ok(group) => {
            if bounds.nice.is_some() && bounds.needs_cpu() {
                notes.push(
                    "nice acts among the command's own tasks only, as it has a group of its own".into(),
                );
            }
            let used = !group.groups().is_empty();
            return Ok((used.then_some(group), bounds));
        }
        Err(error) => error,
    };
    // A quota has no substitute, and CPUs that are not there are a mistake.
    if bounds.quota.is_some() || (bounds.cpus.is_none() && bounds.claim.is_none()) {
        return Err(error.into());
    }
    if let Some(cpus) = &bounds.cpus {
        let online = sys::getaffinity(0).ok();
        group::check_available(cpus, online.as_ref())?;
        notes.push(format!("CPUs by affinity, which the command can change, not by cpuset: {error}"));
    }
    if let Some(claim) = bounds.claim.take() {
        let weight = f64::from(claim.shares());
        let nice = Nice::nearest(weight).get();
        if bounds.nice.is_none() {
            bounds.nice = Some(nice);
        }
        notes.push(format!(
            "{claim} as nice {}, which acts only among tasks of this group or session: {error}",
            bounds.nice.unwrap_or(nice)
        ));
    }
    Ok((None, bounds))
}

/// Reaps whoever ended; notes how and when the command did. `true` when no child is left.
fn reap(pid: u32, started: Instant, end: &mut Option<(i32, Duration)>) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int.
        let who = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        match who {
            0 => return false,
            who if who < 0 => return io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
            who if who == pid as libc::pid_t => {
                if libc::WIFSTOPPED(status) {
                    // The shell above must see its job stopped. Whoever continues us continues the whole job.
                    if matches!(libc::WSTOPSIG(status), libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                        // SAFETY: takes numbers only.
                        unsafe { libc::raise(libc::SIGSTOP) };
                    }
                } else {
                    *end = Some((status, started.elapsed()));
                }
            }
            _ => {}
        }
    }
}

fn end_leftovers(group: Option<&ExecGroup>) {
    if let Some(group) = group {
        group.kill();
    }
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        let left = living_descendants();
        for pid in &left {
            // Our own descendants, none of them reaped by anybody else yet.
            // SAFETY: takes numbers only.
            unsafe { libc::kill(*pid as libc::pid_t, libc::SIGKILL) };
        }
        let mut none = None;
        if reap(0, Instant::now(), &mut none) || left.is_empty() || Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
