//! The few system calls about scheduling that neither the standard library nor rustix offers whole:
//! `sched_getattr(2)`, `sched_setattr(2)`, affinity masks of any length, and the clocks samples are stamped with.
//!
//! The calls take a thread number, which the kernel reuses: the caller proves before and after that the number
//! still means the same task.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_base::{CpuSet, Nice, SchedAttr, SchedPolicy};

/// `SCHED_FLAG_RESET_ON_FORK` of [`RawSchedAttr::flags`].
pub const FLAG_RESET_ON_FORK: u64 = 0x01;

/// Longest affinity mask tried, in 64-bit words (65,536 CPUs).
const MAX_MASK_WORDS: usize = 1024;

/// `struct sched_attr` as of Linux 5.3 (`SCHED_ATTR_SIZE_VER1`, 56 bytes), see `include/uapi/linux/sched/types.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawSchedAttr {
    /// Size of this structure; set by the calls here.
    pub size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Nice, fair policies only.
    pub nice: i32,
    /// Real-time priority, `SCHED_FIFO` and `SCHED_RR` only.
    pub priority: u32,
    /// Deadline runtime; since Linux 6.12 the slice of a fair task, nanoseconds (0 when setting: the default).
    pub runtime: u64,
    /// Deadline only, nanoseconds.
    pub deadline: u64,
    /// Deadline only, nanoseconds.
    pub period: u64,
    /// Utilisation clamp, acts only with its flag.
    pub util_min: u32,
    /// Utilisation clamp, acts only with its flag.
    pub util_max: u32,
}

impl RawSchedAttr {
    /// What the kernel reported, in our terms. A fair task's slice equal to `default_slice_ns` (see
    /// [`default_slice_ns`]) or reported by a kernel without custom slices becomes `None`; so does the whole when
    /// the policy is one not known here.
    pub fn decode(&self, default_slice_ns: Option<u64>) -> Option<SchedAttr> {
        let policy = SchedPolicy::from_raw(self.policy)?;
        let slice =
            Some(self.runtime).filter(|&ns| policy.is_fair() && ns != 0 && Some(ns) != default_slice_ns);
        let deadline = (policy == SchedPolicy::Deadline).then_some((self.runtime, self.period));
        Some(SchedAttr {
            policy,
            nice: Nice::new(self.nice),
            rt_priority: self.priority.min(99) as u8,
            slice_ns: deadline.map_or(default_slice_ns.and(slice), |(runtime, _)| Some(runtime)),
            period_ns: deadline.map(|(_, period)| period),
            reset_on_fork: self.flags & FLAG_RESET_ON_FORK != 0,
        })
    }

    /// The argument that sets `attr`.
    pub fn encode(attr: &SchedAttr) -> Self {
        let has_runtime = attr.policy.is_fair() || attr.policy == SchedPolicy::Deadline;
        let period = attr.period_ns.filter(|_| attr.policy == SchedPolicy::Deadline).unwrap_or(0);
        Self {
            policy: attr.policy.raw(),
            flags: if attr.reset_on_fork { FLAG_RESET_ON_FORK } else { 0 },
            nice: attr.nice.get(),
            priority: if attr.policy.is_realtime() { u32::from(attr.rt_priority) } else { 0 },
            runtime: if has_runtime { attr.slice_ns.unwrap_or(0) } else { 0 },
            deadline: period,
            period,
            ..Self::default()
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Reads a thread's attributes (`tid` 0 is the caller). Older kernels fill fewer fields; the rest stay 0.
///
/// # Errors
/// `ESRCH` when no such thread exists, `EPERM` under a security module.
pub fn sched_getattr(tid: u32) -> io::Result<RawSchedAttr> {
    let mut attr = RawSchedAttr::default();
    let size = size_of::<RawSchedAttr>() as libc::c_uint;
    // SAFETY: the kernel writes at most `size` bytes into `attr`, which is plain old data of that size.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size, 0 as libc::c_uint) })?;
    Ok(attr)
}

/// Sets a thread's attributes (`tid` 0 is the caller); `attr.size` is filled in here.
///
/// # Errors
/// `EPERM` without privilege (or for real-time in a v1 cgroup without runtime), `EINVAL`, `ESRCH`.
pub fn sched_setattr(tid: u32, attr: &RawSchedAttr) -> io::Result<()> {
    let attr = RawSchedAttr { size: size_of::<RawSchedAttr>() as u32, ..*attr };
    // SAFETY: the kernel only reads `attr.size` bytes of `attr`, which is that long.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0 as libc::c_uint) })?;
    Ok(())
}

/// CPUs a thread may run on (`tid` 0 is the caller), any number of CPUs.
pub fn getaffinity(tid: u32) -> io::Result<CpuSet> {
    let mut words = vec![0u64; 16];
    loop {
        let bytes = words.len() * 8;
        // SAFETY: the kernel writes at most `bytes` bytes into the buffer, which is that long.
        let result = checked(unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, tid, bytes, words.as_mut_ptr().cast::<libc::c_ulong>())
        });
        match result {
            // The kernel fills a whole number of longs and says how many bytes; the rest is still zero.
            Ok(_) => return Ok(CpuSet::from_words(&words)),
            // EINVAL: the buffer is shorter than the kernel's `nr_cpu_ids`.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && words.len() < MAX_MASK_WORDS => {
                words = vec![0; words.len() * 2];
            }
            Err(error) => return Err(error),
        }
    }
}

/// CPUs that the calling thread may use, whatever its cgroup's quota. Where the kernel does not say it is one.
pub fn usable_cpus() -> CpuSet {
    getaffinity(0).unwrap_or_else(|_| CpuSet::first_n(1))
}

/// Sets the CPUs a thread may run on (`tid` 0 is the caller). CPUs that do not exist or are outside the cpuset are
/// dropped by the kernel; an effective set that is empty is `EINVAL`.
pub fn setaffinity(tid: u32, cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel only reads `len * 8` bytes of the slice; for an empty set it reads nothing.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            words.len() * 8,
            words.as_ptr().cast::<libc::c_ulong>(),
        )
    })?;
    Ok(())
}

/// Tells the slice that the kernel gives a fair task that asked for none. It changes with the number of CPUs online
/// (`update_sysctl` in `kernel/sched/fair.c`) and by debugfs.
///
/// A thread of its own sleeps for that. Its slice is put to the default before it is read (a child inherits its parent's
/// slice), so that the answer holds even when this process was itself tuned. To ask waits for nobody.
#[derive(Debug)]
pub struct DefaultSlice {
    tid: u32,
    /// The thread ends when this is dropped.
    _alive: Sender<()>,
}

impl DefaultSlice {
    /// `None` where the thread cannot be started.
    pub fn new() -> Option<Self> {
        let (alive, ended) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let sleep = move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            if tell.send(own).is_ok() {
                let _ = ended.recv();
            }
        };
        std::thread::Builder::new().name("slice-probe".into()).spawn(sleep).ok()?;
        Some(Self { tid: told.recv().ok()?, _alive: alive })
    }

    /// Nanoseconds; `None` before Linux 6.12, which has no slices of one's own.
    pub fn ns(&self) -> Option<u64> {
        let now = sched_getattr(self.tid).ok()?;
        // SCHED_IDLE takes no slice (`__setscheduler_params`), and who may not leave it keeps the one there is.
        let policy = SchedPolicy::from_raw(now.policy).filter(|policy| policy.has_nice());
        let policy = policy.unwrap_or(SchedPolicy::Other).raw();
        let plain = RawSchedAttr { policy, nice: now.nice, flags: now.flags, ..RawSchedAttr::default() };
        let may_stay = now.policy == SchedPolicy::Idle.raw();
        sched_setattr(self.tid, &plain).ok().or(may_stay.then_some(()))?;
        Some(sched_getattr(self.tid).ok()?.runtime).filter(|&ns| ns != 0)
    }
}

/// What [`DefaultSlice`] tells now.
pub fn default_slice_ns() -> Option<u64> {
    DefaultSlice::new()?.ns()
}

/// `CLOCK_MONOTONIC`, nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Monotonic)
}

/// CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`), nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(rustix::time::ClockId::ThreadCPUTime)
}

fn clock_ns(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// What `getrusage(2)` counts.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub user_s: f64,
    pub sys_s: f64,
    /// Voluntary context switches.
    pub voluntary: u64,
    pub involuntary: u64,
    /// Most resident memory.
    pub max_rss_bytes: u64,
}

/// Of `libc::RUSAGE_SELF`, `RUSAGE_THREAD` or `RUSAGE_CHILDREN`: those reaped so far, with theirs.
pub fn usage(who: libc::c_int) -> Usage {
    // SAFETY: getrusage fills the zeroed struct it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
    Usage {
        user_s: seconds(usage.ru_utime),
        sys_s: seconds(usage.ru_stime),
        voluntary: count(usage.ru_nvcsw),
        involuntary: count(usage.ru_nivcsw),
        max_rss_bytes: count(usage.ru_maxrss).saturating_mul(1024),
    }
}

/// Wall clock, nanoseconds since 1970 (0 when the clock is set before that).
pub fn wall_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// Raises the soft limit of open descriptors to the hard one and returns it, so that descriptors of thousands of
/// tasks can be kept open.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: now.maximum, maximum: now.maximum };
    let limit = if setrlimit(Resource::Nofile, wanted).is_ok() { now.maximum } else { now.current };
    limit.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_thread_round_trips() {
        std::thread::spawn(|| {
            let before = sched_getattr(0).unwrap();
            let default = default_slice_ns();
            let mut attr = before.decode(default).unwrap();
            attr.policy = SchedPolicy::Batch;
            attr.slice_ns = default.map(|_| 20_000_000);
            sched_setattr(0, &RawSchedAttr::encode(&attr)).unwrap();
            assert_eq!(sched_getattr(0).unwrap().decode(default), Some(attr));
            // The probe is not misled by the slice this thread now hands to its children.
            assert_eq!(default_slice_ns(), default);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_default_slice_is_told_to_an_idle_thread_with_one_of_its_own() {
        std::thread::spawn(|| {
            let default = default_slice_ns();
            let attr = |policy: SchedPolicy, runtime| RawSchedAttr {
                policy: policy.raw(),
                runtime,
                ..RawSchedAttr::default()
            };
            sched_setattr(0, &attr(SchedPolicy::Other, 20_000_000)).unwrap();
            sched_setattr(0, &attr(SchedPolicy::Idle, 0)).unwrap();
            let told = default_slice_ns();
            let is_allowed = sched_setattr(0, &attr(SchedPolicy::Other, 0)).is_ok();
            assert!(told == default || !is_allowed, "{told:?}, {default:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn affinity_of_the_own_thread_round_trips() {
        std::thread::spawn(|| {
            let before = getaffinity(0).unwrap();
            let one = CpuSet::single(before.first().unwrap());
            setaffinity(0, &one).unwrap();
            assert_eq!((getaffinity(0).unwrap(), usable_cpus()), (one.clone(), one.clone()));
            // All ones, far beyond the CPUs there are, is how a full mask is restored.
            setaffinity(0, &CpuSet::first_n(4096)).unwrap();
            assert!(one.is_subset(&getaffinity(0).unwrap()));
            assert!(setaffinity(0, &CpuSet::new()).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_does_not_exist_is_esrch() {
        assert_eq!(sched_getattr(u32::MAX >> 2).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(getaffinity(u32::MAX >> 2).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_slice_is_unknown_where_the_kernel_has_none() {
        let raw = RawSchedAttr { runtime: 5, ..RawSchedAttr::default() };
        assert_eq!(raw.decode(None).unwrap().slice_ns, None);
        assert_eq!(raw.decode(Some(5)).unwrap().slice_ns, None);
        assert_eq!(raw.decode(Some(6)).unwrap().slice_ns, Some(5));
        assert_eq!(RawSchedAttr { policy: 4, ..raw }.decode(None), None);
    }

    #[test]
    fn clocks_advance() {
        let a = monotonic_ns();
        assert!(monotonic_ns() >= a);
        assert!(wall_ns() > 1_600_000_000_000_000_000);
        assert!(raise_descriptor_limit() > 0);
    }
}
