//! The ceiling: the same known loads under `SCHED_FIFO` for a while, where each runs to completion.
//!
//! Used to state how much of the gap between the kernel's default and this ceiling was closed; only ever on loads we
//! started ourselves. With CONFIG_RT_GROUP_SCHED a task in a cgroup without real-time runtime may not become
//! real-time (EPERM): such members stay in the root of the cpu hierarchy for the while. Everything is as before when
//! the [`Ceiling`] is dropped. `sched_setscheduler(2)` keeps nice and a slice of the task's own, in both directions.
//!
//! The kernel leaves some time to others: 5 % a second of `sched_rt_runtime_us`, so a ceiling may stay below 1 in an
//! overloaded mix.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::launch::LaunchError;
use crate::mounts::CgroupMounts;
use crate::tenant::Member;
use evenkeel_linux::error::gone;
use evenkeel_linux::process::start_time;

/// Members under `SCHED_FIFO`, priority 1, until dropped.
#[derive(Debug)]
pub struct Ceiling {
    raised: Vec<Raised>,
}

#[derive(Debug)]
struct Raised {
    member: Member,
    /// Policy before, with the reset-on-fork flag, as `sched_getscheduler` gives it.
    policy: i32,
    /// `tasks` or `cgroup.procs` file to write the member to, to put it back where it was.
    home: Option<PathBuf>,
}

impl Ceiling {
    /// Switches the members to `SCHED_FIFO`; those that have ended are left out. On an error all are restored.
    pub fn raise(members: &[Member]) -> Result<Self, LaunchError> {
        let mut ceiling = Self { raised: Vec::new() };
        for member in members {
            let failed = |what: &str, e: io::Error| LaunchError::System {
                what: format!("{what} of {} ({})", member.tid, member.name),
                error: e,
            };
            if !is_same(member) {
                continue;
            }
            let policy = match policy_of(member.tid) {
                Ok(policy) => policy,
                Err(e) if gone(&e) => continue,
                Err(e) => return Err(failed("reading the policy", e)),
            };
            let home = match set_policy(member.tid, libc::SCHED_FIFO | policy & libc::SCHED_RESET_ON_FORK, 1)
            {
                Ok(()) => None,
                Err(e) if gone(&e) => continue,
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                    match raise_in_root(member, policy & libc::SCHED_RESET_ON_FORK) {
                        Ok(home) => Some(home),
                        Err(e) if gone(&e) => continue,
                        Err(e) => return Err(failed("setting SCHED_FIFO", e)),
                    }
                }
                Err(e) => return Err(failed("setting SCHED_FIFO", e)),
            };
            ceiling.raised.push(Raised { member: member.clone(), policy, home });
        }
        Ok(ceiling)
    }

    /// Number of members raised.
    pub fn len(&self) -> usize {
        self.raised.len()
    }

    /// Whether no member was there to be raised.
    pub fn is_empty(&self) -> bool {
        self.raised.is_empty()
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        for raised in self.raised.iter().rev() {
            let member = &raised.member;
            if !is_same(member) {
                continue;
            }
            // The policy first: a real-time task is not let into a group without real-time runtime.
            let back = set_policy(member.tid, raised.policy, 0).and_then(|()| match &raised.home {
                Some(home) => fs::write(home, member.tid.to_string()),
                None => Ok(()),
            });
            if let Err(error) = back
                && !gone(&error)
            {
                tracing::warn!("cannot put {} ({}) back: {error}", member.tid, member.name);
            }
        }
    }
}

/// Moves the member to the root of the cpu hierarchy and raises it there; returns the way home.
fn raise_in_root(member: &Member, flag: i32) -> io::Result<PathBuf> {
    let mounts = CgroupMounts::find().map_err(io::Error::other)?;
    let path =
        mounts.path_of(member.pid, member.tid).ok_or_else(|| io::Error::other("its cgroup is not known"))?;
    // v1 moves single threads; v2 moves processes.
    let file = if mounts.is_v2() { "cgroup.procs" } else { "tasks" };
    let home = mounts.cpu_mount().join(path.trim_start_matches('/')).join(file);
    fs::write(mounts.cpu_mount().join(file), member.tid.to_string())?;
    match set_policy(member.tid, libc::SCHED_FIFO | flag, 1) {
        Ok(()) => Ok(home),
        Err(error) => {
            let _ = fs::write(&home, member.tid.to_string());
            Err(error)
        }
    }
}

/// Whether the pid still names the task it named when it was started.
fn is_same(member: &Member) -> bool {
    start_time(member.pid, member.tid).is_ok_and(|start| start == member.start_time)
}

fn policy_of(tid: u32) -> io::Result<i32> {
    // SAFETY: takes a number and touches no memory.
    let policy = unsafe { libc::sched_getscheduler(tid as libc::pid_t) };
    if policy < 0 { Err(io::Error::last_os_error()) } else { Ok(policy) }
}

fn set_policy(tid: u32, policy: i32, priority: i32) -> io::Result<()> {
    // SAFETY: sched_param is plain numbers, all valid as zero.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: the parameter outlives the call.
    if unsafe { libc::sched_setscheduler(tid as libc::pid_t, policy, &raw const param) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
