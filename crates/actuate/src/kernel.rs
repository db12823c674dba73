//! What actuation needs of a kernel: read, write, and recognise. [`crate::Linux`] is the real one, [`crate::fake`] a
//! scripted one for tests.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use evenkeel_base::{BootId, CpuSet, GroupRef, Knob, SchedPolicy, Setting, Target, TaskId};
use serde::{Deserialize, Serialize};

/// Namespaces of a process: inodes of `/proc/self/ns/*`. `None`: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Namespaces {
    /// Numbers of tasks.
    pub pid: Option<u64>,
    /// Start times of tasks.
    pub time: Option<u64>,
    pub net: Option<u64>,
    pub cgroup: Option<u64>,
}

/// Why the kernel did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The task ended or the cgroup was removed. Normal.
    #[error("gone")]
    Gone,
    /// Not allowed; what is missing is reported.
    #[error("not permitted: {0}")]
    Denied(String),
    /// This kernel, or this cgroup layout, does not have the property.
    #[error("not supported here: {0}")]
    Unsupported(String),
    /// The kernel refused the value, or holds one that makes no sense here.
    #[error("not accepted: {0}")]
    Invalid(String),
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    Io { path: String, error: String },
}

/// What identifies a thread, and what decides whether it may be touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFacts {
    /// Number, thread group and start time.
    pub id: TaskId,
    /// Process that is its parent now (`real_parent`'s thread group); 0 for none.
    pub ppid: u32,
    /// Process group, which children share until they leave it.
    pub process_group: u32,
    /// Session, which children share until they leave it.
    pub session: u32,
    /// Name, at most 15 bytes.
    pub comm: String,
    /// A thread of the kernel (`PF_KTHREAD`).
    pub kernel_thread: bool,
    /// Scheduling policy; `None` for one unknown here (treated as real-time: not touched).
    pub policy: Option<SchedPolicy>,
    /// Its cgroup lines, as `/proc/PID/cgroup` has them; empty when not readable.
    pub cgroup: String,
    /// Orphans are reparented to it: the first process of a pid namespace, or one known to ask for them
    /// (`PR_SET_CHILD_SUBREAPER`, which the kernel does not show). Only [`Kernel::identity`] tells.
    pub reaper: bool,
    /// Running or in an uninterruptible wait, so possibly inside `fork`.
    pub busy: bool,
    /// Where its program has its stack: a number that a child shares until it calls `exec`, and no one else is likely to
    /// (the kernel draws it); 0 when it is not shown.
    pub image: u64,
}

/// Threads that started since some time.
#[derive(Debug, Default)]
pub struct Born {
    pub tasks: Vec<TaskFacts>,
    /// Why not every thread could be looked at.
    pub unseen: Option<KernelError>,
}

/// The kernel as actuation sees it. Methods that take a task's number do not check who it is: the caller does, before
/// and after (see [`Kernel::identity`]).
pub trait Kernel {
    fn boot_id(&mut self) -> Result<BootId, KernelError>;

    /// Time since boot in clock ticks, the clock of [`TaskId::start_time`].
    fn now_ticks(&mut self) -> u64;

    /// The present value of a property.
    ///
    /// # Errors
    /// [`KernelError::Gone`] when the target is no more; [`KernelError::Unsupported`] when it has no such property.
    fn read(&mut self, target: &Target, knob: Knob) -> Result<Setting, KernelError>;

    /// Writes a property. Does not read it back.
    ///
    /// # Errors
    /// As [`Kernel::read`], and [`KernelError::Invalid`] for a value the kernel refuses.
    fn write(&mut self, target: &Target, to: &Setting) -> Result<(), KernelError>;

    /// Writes an original back. It is not done where an owner that remembers another value could not be told, even if the kernel has it.
    fn write_back(&mut self, target: &Target, to: &Setting) -> Result<(), KernelError> {
        self.write(target, to)
    }

    /// Who has this number now.
    fn identity(&mut self, tid: u32) -> Result<TaskFacts, KernelError>;

    /// The process that changes things.
    fn own_process(&self) -> u32 {
        std::process::id()
    }

    /// Whether the task with this identity still exists (a zombie does: its number is not free).
    fn is_alive(&mut self, id: TaskId) -> Result<bool, KernelError> {
        match self.identity(id.tid) {
            Ok(facts) => Ok(facts.id == id),
            Err(KernelError::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The namespaces in which numbers and names are meant here.
    fn namespaces(&mut self) -> Namespaces;

    /// A number that no other cgroup has had under the same path in this boot (the directory's inode), and no other link
    /// under the same name (its index); 0 for what needs none.
    fn identity_of(&mut self, target: &Target, knob: Knob) -> Result<u64, KernelError>;

    /// [`Kernel::identity_of`] of every cgroup that has this property; `None` where not all of the host's cgroups can be seen.
    fn every_cgroup(&mut self, _group: &GroupRef, _knob: Knob) -> Option<HashSet<u64>> {
        None
    }

    /// The same property where [`Kernel::identity_of`] is this number: a link may have another name now.
    fn renamed(&mut self, _target: &Target, _identity: u64) -> Option<Target> {
        None
    }

    /// The widest affinity a task can have now: its effective cpuset's online CPUs.
    fn widest_affinity(&mut self, id: TaskId) -> Result<CpuSet, KernelError>;

    /// Whether tasks can have a slice of their own (Linux 6.12 and later).
    fn has_task_slice(&mut self) -> bool;

    /// A number that changes whenever a task is born; `None` when there is no cheap one.
    fn births(&mut self) -> Option<u64>;

    /// Threads that started at or after `since_ticks`: main threads of every process, other threads of the processes
    /// named and of those that themselves started since.
    fn tasks_born_since(&mut self, since_ticks: u64, processes: &BTreeSet<u32>) -> Result<Born, KernelError>;

    /// Whether the owner of a cgroup (Docker) remembers a value written through it beyond a reboot.
    fn outlives_boot(&mut self, _target: &Target, _knob: Knob) -> bool {
        false
    }

    /// Whether the owner of a cgroup keeps a value written through it for the next cgroup of that name: what [`Kernel::outlives_boot`]
    /// does, and what systemd was told until the next boot.
    fn outlives_group(&mut self, target: &Target, knob: Knob) -> bool {
        self.outlives_boot(target, knob)
    }

    /// Waits; a fake kernel's time passes at once.
    fn pause(&mut self, time: Duration);
}
