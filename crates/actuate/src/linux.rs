//! The real kernel.

mod group;
mod proc;
mod scx;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use evenkeel_base::{BootId, CpuSet, GroupRef, Knob, Nice, SchedAttr, SchedPolicy, Setting, Target, TaskId};
use evenkeel_linux::machine;
use evenkeel_linux::sys::{self, DefaultSlice, RawSchedAttr};

use crate::host::Files;
use crate::kernel::{Born, Kernel, KernelError, Namespaces, TaskFacts};
use crate::libvirt;
use crate::owner::{Owners, Run, RunProgram, is_owners_answer};
use group::Groups;
use scx::Scx;

/// How long the effective CPUs of a cpuset are taken as known, so that a plan of thousands of changes reads them once.
const CPUSET_FRESH: Duration = Duration::from_millis(50);

/// How long systemd may take to bring about what it agreed to: it answers first and acts in its next turn.
const OWNER_DELAY: Duration = Duration::from_millis(100);

/// `PIDFD_THREAD` of `pidfd_open(2)`, Linux 6.9 and later.
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

/// The kernel this process runs on, its cgroups included.
pub struct Linux {
    groups: Groups,
    owners: Owners,
    default_slice: Option<DefaultSlice>,
    /// Default slices there have been, the present one last; none where the kernel has no slices of a task's own.
    default_slices: Vec<u64>,
    cpusets: HashMap<String, (Instant, CpuSet)>,
    handles: HashMap<TaskId, OwnedFd>,
    max_handles: usize,
    net: Files,
    scx: Scx,
    written: u64,
}

impl Linux {
    /// Finds the cgroup mounts, what owns the cgroups, and what this kernel can do.
    pub fn new() -> Result<Self, KernelError> {
        Self::with_programs(Box::new(RunProgram))
    }

    /// As [`Linux::new`], with another way to run `systemctl`, `docker` and `virsh`.
    pub fn with_programs(run: Box<dyn Run>) -> Result<Self, KernelError> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
        let default_slice = DefaultSlice::new();
        Ok(Self {
            groups: Groups::find()?,
            owners: Owners::find(run),
            default_slices: default_slice.as_ref().and_then(DefaultSlice::ns).into_iter().collect(),
            default_slice,
            cpusets: HashMap::new(),
            handles: HashMap::new(),
            max_handles: usize::try_from(limit / 4).unwrap_or(usize::MAX).min(16_384),
            net: Files::new(),
            scx: Scx::at("/"),
            written: 0,
        })
    }

    /// The default slice by which to read this one. A slice that no default is known to have had may be the new default; one that an
    /// earlier default had is what a task has that has not run since.
    fn default_for(&mut self, slice_ns: u64) -> Option<u64> {
        let last = *self.default_slices.last()?;
        if self.default_slices.contains(&slice_ns) {
            return Some(slice_ns);
        }
        let now = self.default_slice.as_ref().and_then(DefaultSlice::ns).unwrap_or(last);
        if now != last {
            self.default_slices.retain(|&before| before != now);
            self.default_slices.push(now);
        }
        Some(now)
    }

    fn read_sched(&mut self, tid: u32) -> Result<SchedAttr, KernelError> {
        let raw = sys::sched_getattr(tid).map_err(|error| of_task(&error, "sched_getattr"))?;
        let mut attr = raw
            .decode(self.default_for(raw.runtime))
            .ok_or_else(|| KernelError::Unsupported(format!("scheduling policy {}", raw.policy)))?;
        if !attr.policy.is_fair() {
            // sched_getattr does not tell it, but the kernel keeps it.
            let pid = rustix::process::Pid::from_raw(tid as i32);
            let nice = rustix::process::getpriority_process(pid)
                .map_err(|error| of_task(&error.into(), "getpriority"))?;
            attr.nice = Nice::new(nice);
        }
        Ok(attr)
    }

    /// After the owner said yes: what it has not brought about a little later, because its interface rounds or has no
    /// word for it (a burst), is written to the file.
    fn complete(&self, group: &GroupRef, to: &Setting) -> Result<(), KernelError> {
        let until = Instant::now() + OWNER_DELAY;
        loop {
            match self.groups.read(group, to.knob()) {
                Ok(now) if now == *to => return Ok(()),
                // A container that is not running has no cgroup; its owner has taken note.
                Err(KernelError::Gone) => return Ok(()),
                Ok(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                Ok(_) => return self.groups.write(group, to),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sets a task's affinity. A thread to which libvirt gives a cgroup of its own is pinned through libvirt, which narrows that
    /// cgroup to the same CPUs: what it shows stays true. Where it does not answer, the cgroup is widened if it has to be.
    fn pin(&mut self, id: TaskId, cpus: &CpuSet) -> Result<(), KernelError> {
        let path = proc::cpuset(id)?;
        if libvirt::is_pinnable(&path) {
            let within = cpus.intersection(&self.widest_affinity(id)?);
            let answer = if within.is_empty() { None } else { self.owners.pin(&path, &within) };
            if let Some(Err(why)) = &answer {
                tracing::info!(path, why, "libvirt did not pin the thread: its affinity is set");
            }
            let now = self.groups.effective_cpus(&path);
            if !matches!(answer, Some(Ok(()))) && now.is_some_and(|now| !within.is_subset(&now)) {
                let group = GroupRef { path, v2: self.groups.has_v2_cpusets() };
                self.groups.write(&group, &Setting::Cpuset(within))?;
            }
        }
        sys::setaffinity(id.tid, cpus).map_err(|error| of_task(&error, "sched_setaffinity"))
    }

    fn handle(&mut self, id: TaskId) -> Option<OwnedFd> {
        if self.handles.len() >= self.max_handles {
            return None;
        }
        let flags = if id.tid == id.tgid { 0 } else { PIDFD_THREAD };
        // SAFETY: the call takes two numbers and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id.tid, flags) };
        // SAFETY: a descriptor just returned by the kernel is open and ours alone.
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Properties written so far, those taken back included.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// `is_back`: see [`Kernel::write_back`].
    fn put(&mut self, target: &Target, to: &Setting, is_back: bool) -> Result<(), KernelError> {
        if let Setting::Cpuset(_) = to {
            self.cpusets.clear();
        }
        match (target, to) {
            (Target::Task(id), Setting::Affinity(cpus)) => self.pin(*id, cpus),
            (Target::Task(id), Setting::Sched(attr)) => {
                if attr.policy != SchedPolicy::Deadline {
                    shrink_deadline(id.tid);
                }
                // The kernel takes neither nice value nor slice together with SCHED_IDLE, and keeps what the task has of both
                // (`__setscheduler_params`): they go first, under the class that the task has. A real-time task does not show its slice.
                if attr.policy == SchedPolicy::Idle
                    && let Setting::Sched(now) = self.read(target, Knob::Sched)?
                    && !(now.policy.is_fair() && (now.nice, now.slice_ns) == (attr.nice, attr.slice_ns))
                {
                    let policy = if now.policy.has_nice() { now.policy } else { SchedPolicy::Other };
                    let first = RawSchedAttr::encode(&SchedAttr { policy, ..*attr });
                    sys::sched_setattr(id.tid, &first).map_err(|error| of_task(&error, "sched_setattr"))?;
                }
                if attr.policy.is_realtime()
                    && let now = self.read_sched(id.tid)?
                    && now.nice != attr.nice
                    && (SchedAttr { nice: attr.nice, ..now }) == *attr
                {
                    // The kernel keeps it for another class, and takes it by itself only: the rest, of which not all is known here, stays.
                    let pid = rustix::process::Pid::from_raw(id.tid as i32);
                    return rustix::process::setpriority_process(pid, attr.nice.get())
                        .map_err(|error| of_task(&error.into(), "setpriority"));
                }
                let raw = RawSchedAttr::encode(attr);
                sys::sched_setattr(id.tid, &raw).map_err(|error| match error.raw_os_error() {
                    Some(libc::EPERM) if attr.policy == SchedPolicy::Deadline => KernelError::Denied(
                        "SCHED_DEADLINE: needs CAP_SYS_NICE, and a task that may run on every CPU".to_owned(),
                    ),
                    Some(libc::EBUSY) if attr.policy == SchedPolicy::Deadline => KernelError::Invalid(
                        "SCHED_DEADLINE: the kernel does not admit it: with those that there are, more than 95 % of the CPUs \
                         (sched_rt_runtime_us) would be promised"
                            .to_owned(),
                    ),
                    Some(libc::EPERM) if attr.policy.is_realtime() => KernelError::Denied(
                        "sched_setattr: needs CAP_SYS_NICE, and in a v1 cpu cgroup cpu.rt_runtime_us"
                            .to_owned(),
                    ),
                    _ => of_task(&error, "sched_setattr"),
                })
            }
            (Target::Group(group), to) => match self.owners.write(group, to) {
                Some(Ok(())) => self.complete(group, to),
                Some(Err(why)) => {
                    tracing::info!(
                        group = group.path,
                        why,
                        "its owner did not take the change: writing the file"
                    );
                    let written = self.groups.write(group, to);
                    if is_back && self.owners.keeps(group, to.knob()) && !is_owners_answer(&why) {
                        let owner = if why.starts_with("systemctl") { "systemd" } else { "Docker" };
                        return Err(KernelError::Io { path: format!("not told to {owner}"), error: why });
                    }
                    written
                }
                None => self.groups.write(group, to),
            },
            (Target::Net(knob), Setting::Net(value)) => Ok(self.net.write(knob, value)?),
            (Target::Host, Setting::Scheduler(scheduler)) => self.scx.write(scheduler),
            (Target::Task(_) | Target::Net(_) | Target::Host, to) => {
                Err(KernelError::Unsupported(format!("{} is a property of cgroups", to.knob().name())))
            }
        }
    }
}

impl Kernel for Linux {
    fn boot_id(&mut self) -> Result<BootId, KernelError> {
        let path = "/proc/sys/kernel/random/boot_id";
        let text = std::fs::read_to_string(path).map_err(|error| of_file(&error, path))?;
        Ok(BootId(text.trim().to_owned()))
    }

    fn now_ticks(&mut self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // USER_HZ is 100 on every architecture supported.
        (time.tv_sec as u64).saturating_mul(100).saturating_add(time.tv_nsec as u64 / 10_000_000)
    }

    fn read(&mut self, target: &Target, knob: Knob) -> Result<Setting, KernelError> {
        match (target, knob) {
            (Target::Task(id), Knob::Affinity) => sys::getaffinity(id.tid)
                .map(Setting::Affinity)
                .map_err(|error| of_task(&error, "sched_getaffinity")),
            (Target::Task(id), Knob::Sched) => self.read_sched(id.tid).map(Setting::Sched),
            (Target::Group(group), knob) => self.groups.read(group, knob),
            (Target::Net(knob), _) => Ok(Setting::Net(self.net.read(knob)?)),
            (Target::Host, Knob::Scheduler) => self.scx.read().map(Setting::Scheduler),
            (Target::Task(_) | Target::Host, knob) => {
                Err(KernelError::Unsupported(format!("{} is a property of cgroups", knob.name())))
            }
        }
    }

    fn write(&mut self, target: &Target, to: &Setting) -> Result<(), KernelError> {
        let outcome = self.put(target, to, false);
        self.written += u64::from(outcome.is_ok());
        outcome
    }

    fn write_back(&mut self, target: &Target, to: &Setting) -> Result<(), KernelError> {
        let outcome = self.put(target, to, true);
        self.written += u64::from(outcome.is_ok());
        outcome
    }

    fn identity(&mut self, tid: u32) -> Result<TaskFacts, KernelError> {
        proc::facts(tid)
    }

    fn is_alive(&mut self, id: TaskId) -> Result<bool, KernelError> {
        if let Some(fd) = self.handles.get(&id) {
            // SAFETY: signal 0 sends nothing; the descriptor is open, the information pointer may be null.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    fd.as_raw_fd(),
                    0,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                _ if result == 0 => return Ok(true),
                Some(libc::EPERM) => return Ok(true),
                Some(libc::ESRCH) => {
                    self.handles.remove(&id);
                    return Ok(false);
                }
                _ => {
                    self.handles.remove(&id);
                }
            }
        }
        // Opened before the look at the start time: if that is right, the handle is of this very task.
        let handle = self.handle(id);
        let alive = proc::start_time(id.tgid, id.tid)? == Some(id.start_time);
        if let (true, Some(handle)) = (alive, handle) {
            self.handles.insert(id, handle);
        }
        Ok(alive)
    }

    fn namespaces(&mut self) -> Namespaces {
        let inode = |name| std::fs::metadata(format!("/proc/self/ns/{name}")).ok().map(|found| found.ino());
        Namespaces { pid: inode("pid"), time: inode("time"), net: inode("net"), cgroup: inode("cgroup") }
    }

    fn identity_of(&mut self, target: &Target, knob: Knob) -> Result<u64, KernelError> {
        match target {
            Target::Group(group) => self.groups.id(group, knob),
            Target::Net(knob) => Ok(self.net.identity(knob)?),
            Target::Task(_) | Target::Host => Ok(0),
        }
    }

    fn every_cgroup(&mut self, group: &GroupRef, knob: Knob) -> Option<HashSet<u64>> {
        self.groups.every_id(group, knob)
    }

    fn renamed(&mut self, target: &Target, identity: u64) -> Option<Target> {
        match target {
            Target::Net(knob) => self.net.renamed(knob, identity).map(Target::Net),
            _ => None,
        }
    }

    fn widest_affinity(&mut self, id: TaskId) -> Result<CpuSet, KernelError> {
        let cpuset = machine::bounding_group(&proc::cpuset(id)?).to_owned();
        if let Some((when, cpus)) = self.cpusets.get(&cpuset)
            && when.elapsed() < CPUSET_FRESH
        {
            return Ok(cpus.clone());
        }
        let online = proc::online_cpus()?;
        let cpus = match self.groups.effective_cpus(&cpuset) {
            Some(cpus) => cpus.intersection(&online),
            None => online,
        };
        if self.cpusets.len() > 1000 {
            self.cpusets.clear();
        }
        self.cpusets.insert(cpuset, (Instant::now(), cpus.clone()));
        Ok(cpus)
    }

    fn has_task_slice(&mut self) -> bool {
        !self.default_slices.is_empty()
    }

    fn births(&mut self) -> Option<u64> {
        proc::last_pid()
    }

    fn tasks_born_since(&mut self, since_ticks: u64, processes: &BTreeSet<u32>) -> Result<Born, KernelError> {
        proc::born_since("/proc", since_ticks, processes)
    }

    fn outlives_boot(&mut self, target: &Target, knob: Knob) -> bool {
        matches!(target, Target::Group(group) if self.owners.remembers(group, knob))
    }

    fn outlives_group(&mut self, target: &Target, knob: Knob) -> bool {
        matches!(target, Target::Group(group) if self.owners.keeps(group, knob))
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// What a task has of SCHED_DEADLINE for the moment before it leaves the class, nanoseconds: enough to answer if this process has to
/// wait just then.
const LEAVING: (u64, u64) = (1_000_000, 4_000_000_000);

/// Gives a task next to nothing of SCHED_DEADLINE, if it is of that class: when somebody else takes a task out of it while it sleeps, the
/// kernel goes on counting what it had as promised (`switched_from_dl` in `kernel/sched/deadline.c` gives it back for queued tasks alone;
/// seen on 6.18), until nothing more is admitted.
fn shrink_deadline(tid: u32) {
    let deadline = SchedPolicy::Deadline.raw();
    if let Ok(now) = sys::sched_getattr(tid)
        && now.policy == deadline
    {
        let (runtime, period) = LEAVING;
        let little = RawSchedAttr { runtime, deadline: period, period, ..now };
        if let Err(error) = sys::sched_setattr(tid, &little) {
            tracing::debug!(tid, %error, "its deadline could not be made small before it goes");
        }
    }
}

fn of_task(error: &io::Error, call: &str) -> KernelError {
    match error.raw_os_error() {
        Some(libc::ESRCH) => KernelError::Gone,
        Some(libc::EPERM | libc::EACCES) => KernelError::Denied(format!("{call}: needs CAP_SYS_NICE")),
        Some(libc::EINVAL) => KernelError::Invalid(format!("{call}: {error}")),
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::E2BIG) => {
            KernelError::Unsupported(format!("{call}: {error}"))
        }
        _ => KernelError::Io { path: call.to_owned(), error: error.to_string() },
    }
}

pub(crate) fn of_file(error: &io::Error, path: &str) -> KernelError {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ESRCH) => KernelError::Gone,
        Some(libc::EPERM | libc::EACCES | libc::EROFS) => KernelError::Denied(format!("{path}: {error}")),
        Some(libc::EINVAL | libc::ERANGE | libc::EBUSY | libc::ENOSPC) => {
            KernelError::Invalid(format!("{path}: {error}"))
        }
        Some(libc::EOPNOTSUPP) => KernelError::Unsupported(format!("{path}: {error}")),
        _ => KernelError::Io { path: path.to_owned(), error: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_slice_of_another_moment_is_no_slice_of_a_tasks_own() {
        let mut kernel = Linux::new().unwrap();
        let Some(&now) = kernel.default_slices.last() else { return };
        // It was another when this began; then a CPU went offline.
        let before = 2 * now;
        kernel.default_slices = vec![before];
        let own = [now, before, 3 * now].map(|runtime| {
            let raw = RawSchedAttr { runtime, ..RawSchedAttr::default() };
            raw.decode(kernel.default_for(runtime)).unwrap().slice_ns
        });
        assert_eq!(own, [None, None, Some(3 * now)]);
    }
}
