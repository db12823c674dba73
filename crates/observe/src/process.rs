//! One process in the sampler's table: its threads with their kept-open descriptors.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_base::{CpuSet, TaskId};
use evenkeel_linux::{Root, pid_stat, pid_status, schedstat};
use rustix::fs::{Mode, OFlags};

use crate::open_wait::OpenWait;
use crate::place::{Place, PlaceCache};

/// CPU time after which a task's last CPU and name are read again.
const REFRESH_AFTER_NS: u64 = 2_000_000;
/// Samples for which a new task's name and cgroup are read every time: it may still `exec` or be moved.
const SETTLING_SAMPLES: u64 = 3;

/// Descriptors that may still be kept open.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) left: u64,
}

impl Budget {
    pub(crate) fn new(descriptors: u64) -> Self {
        Self { left: descriptors }
    }

    fn take(&mut self, wanted: bool) -> bool {
        let granted = wanted && self.left > 0;
        self.left -= u64::from(granted);
        granted
    }
}

/// A file of a task: its descriptor when there is room to keep it open, else opened again each time.
#[derive(Debug)]
enum CachedFd {
    Open(OwnedFd),
    ByPath,
}

/// What is known of a task apart from its counters.
#[derive(Debug, Clone)]
pub(crate) struct TaskMeta {
    pub comm: Box<str>,
    pub ppid: u32,
    pub kernel_thread: bool,
    pub place: Arc<Place>,
}

#[derive(Debug)]
pub(crate) struct Thread {
    pub id: TaskId,
    pub meta: TaskMeta,
    pub cpu: Option<u32>,
    /// Sample in which it was first seen.
    born: u64,
    ran_at_refresh: u64,
    wait: OpenWait,
    schedstat: CachedFd,
    stat: CachedFd,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub tgid: u32,
    /// Sorted by tid.
    pub threads: Vec<Thread>,
    /// `/proc/PID/task`, kept open: its link count tells the number of threads.
    task_dir: Option<OwnedFd>,
    links: u64,
}

/// What reading one thread gave.
pub(crate) enum Counters {
    Read { ran_ns: u64, waited_ns: Option<u64>, timeslices: Option<u64> },
    Gone,
}

/// Buffers and limits shared by all reads of a pass.
pub(crate) struct Pass<'a> {
    pub root: &'a Root,
    pub buffer: &'a mut [u8],
    pub budget: &'a mut Budget,
    pub places: &'a mut PlaceCache,
    pub number: u64,
    /// When the sample began, nanoseconds.
    pub at_ns: u64,
    /// CPUs that may run without a tick.
    pub tickless: &'a CpuSet,
    /// Whether `schedstat` counts on this kernel.
    pub schedstat: bool,
}

impl Pass<'_> {
    fn read_kept(&mut self, kept: &CachedFd, path: impl FnOnce() -> PathBuf) -> Option<usize> {
        let result = match kept {
            CachedFd::Open(fd) => rustix::io::pread(fd, &mut *self.buffer, 0),
            CachedFd::ByPath => {
                open(self.root, &path()).and_then(|fd| rustix::io::pread(&fd, &mut *self.buffer, 0))
            }
        };
        // A zombie that is reaped while being read gives an empty file on some kernels.
        result.ok().filter(|&len| len > 0)
    }
}

fn open(root: &Root, path: &Path) -> rustix::io::Result<OwnedFd> {
    root.open(path).map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
}

fn keep(root: &Root, path: &Path, budget: &mut Budget) -> rustix::io::Result<CachedFd> {
    if !budget.take(true) {
        return Ok(CachedFd::ByPath);
    }
    match open(root, path) {
        Ok(fd) => Ok(CachedFd::Open(fd)),
        Err(error) => {
            budget.left += 1;
            let exhausted = matches!(error, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE);
            if exhausted {
                budget.left = 0;
            }
            if exhausted { Ok(CachedFd::ByPath) } else { Err(error) }
        }
    }
}

fn thread_path(root: &Root, tgid: u32, tid: u32, name: &str) -> PathBuf {
    root.path(format!("proc/{tgid}/task/{tid}/{name}"))
}

impl Process {
    /// A process just seen in `/proc`; `None` if it is gone already.
    pub(crate) fn open(tgid: u32, pass: &mut Pass<'_>) -> Option<Self> {
        let mut process = Self { tgid, threads: Vec::new(), task_dir: None, links: 0 };
        if pass.budget.take(pass.root.is_live()) {
            let path = pass.root.path(format!("proc/{tgid}/task"));
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            process.task_dir = rustix::fs::open(path, flags, Mode::empty()).ok();
            if process.task_dir.is_none() {
                pass.budget.left += 1;
            }
        }
        process.relist(pass);
        if process.threads.is_empty() {
            process.close(pass.budget);
            return None;
        }
        Some(process)
    }

    /// Gives the descriptors back to the budget.
    pub(crate) fn close(self, budget: &mut Budget) -> Vec<Thread> {
        budget.left += u64::from(self.task_dir.is_some());
        for thread in &self.threads {
            thread.release(budget);
        }
        self.threads
    }

    /// Whether threads came or went since the last listing. The link count of `/proc/PID/task` is threads + 2
    /// (`proc_task_getattr` in the kernel's `fs/proc/base.c`); of a dead process it is 2, whoever has its number now.
    pub(crate) fn changed(&self) -> bool {
        match self.links() {
            Some(links) => links != self.links || links <= 2,
            None => true,
        }
    }

    fn links(&self) -> Option<u64> {
        let stat = rustix::fs::fstat(self.task_dir.as_ref()?).ok()?;
        #[allow(clippy::useless_conversion)] // u64 on x86-64, u32 on arm64
        Some(u64::from(stat.st_nlink))
    }

    /// Lists the threads: keeps those known, adds those that are new, drops those gone. Returns the dropped.
    pub(crate) fn relist(&mut self, pass: &mut Pass<'_>) -> Vec<Thread> {
        // Before the listing: a thread born in between changes the count again and is seen next time.
        self.links = self.links().unwrap_or(0);
        let tids = match pass.root.numbers(format!("proc/{}/task", self.tgid)) {
            Ok(tids) if self.task_dir.is_none() || self.links > 2 => tids,
            // The process of our descriptor is dead; the directory of that number is a stranger's.
            _ => Vec::new(),
        };
        let mut known = std::mem::take(&mut self.threads).into_iter().peekable();
        let mut gone = Vec::new();
        for tid in tids {
            while known.peek().is_some_and(|thread| thread.id.tid < tid) {
                gone.extend(known.next());
            }
            match known.next_if(|thread| thread.id.tid == tid) {
                Some(thread) if thread.still_there(pass) => self.threads.push(thread),
                other => {
                    gone.extend(other);
                    self.threads.extend(Thread::open(self.tgid, tid, pass));
                }
            }
        }
        gone.extend(known);
        for thread in &gone {
            thread.release(pass.budget);
        }
        if self.threads.is_empty() && self.task_dir.take().is_some() {
            pass.budget.left += 1;
        }
        gone
    }
}

impl Thread {
    fn open(tgid: u32, tid: u32, pass: &mut Pass<'_>) -> Option<Self> {
        let path = |name: &str| thread_path(pass.root, tgid, tid, name);
        let text = pass.root.read_path(&path("stat")).ok()?;
        let stat = match pid_stat::parse(&text) {
            Ok(stat) => stat,
            Err(error) => {
                tracing::warn!("{}", error.at(&path("stat")));
                return None;
            }
        };
        let schedstat = if pass.schedstat {
            keep(pass.root, &path("schedstat"), pass.budget).ok()?
        } else {
            CachedFd::ByPath
        };
        let stat_file = if pass.schedstat {
            CachedFd::ByPath
        } else {
            keep(pass.root, &path("stat"), pass.budget).ok()?
        };
        let place = pass.places.read(&path("cgroup"));
        Some(Self {
            id: TaskId { tgid, tid, start_time: stat.start_time },
            meta: TaskMeta {
                comm: stat.comm.into(),
                ppid: stat.ppid,
                kernel_thread: stat.kernel_thread,
                place,
            },
            cpu: stat.cpu,
            born: pass.number,
            ran_at_refresh: 0,
            wait: OpenWait::default(),
            schedstat,
            stat: stat_file,
        })
    }

    fn release(&self, budget: &mut Budget) {
        budget.left += u64::from(matches!(self.schedstat, CachedFd::Open(_)));
        budget.left += u64::from(matches!(self.stat, CachedFd::Open(_)));
    }

    fn path(&self, root: &Root, name: &str) -> PathBuf {
        thread_path(root, self.id.tgid, self.id.tid, name)
    }

    /// Whether the number still means this task: by descriptor, else by start time.
    pub(crate) fn still_there(&self, pass: &mut Pass<'_>) -> bool {
        match (&self.schedstat, &self.stat) {
            (CachedFd::Open(fd), _) | (_, CachedFd::Open(fd)) => {
                rustix::io::pread(fd, &mut *pass.buffer, 0).is_ok_and(|len| len > 0)
            }
            (CachedFd::ByPath, CachedFd::ByPath) => {
                let text = pass.root.read_path(&self.path(pass.root, "stat"));
                let stat = text.ok().and_then(|text| pid_stat::parse(&text).ok());
                stat.is_some_and(|stat| stat.start_time == self.id.start_time)
            }
        }
    }

    /// Reads the counters; the CPU and the name too when the task ran a while since they were read last, is young,
    /// or `precise` is wanted.
    pub(crate) fn counters(&mut self, precise: bool, pass: &mut Pass<'_>) -> Counters {
        let counters = if pass.schedstat { self.read_schedstat(pass) } else { self.read_times(pass) };
        if let Counters::Read { ran_ns, .. } = counters {
            let young = pass.number < self.born + SETTLING_SAMPLES;
            let ran = ran_ns.wrapping_sub(self.ran_at_refresh);
            if precise || young || ran >= REFRESH_AFTER_NS {
                self.refresh(pass, young);
                self.ran_at_refresh = ran_ns;
            }
        }
        counters
    }

    fn read_schedstat(&mut self, pass: &mut Pass<'_>) -> Counters {
        let kept_open = matches!(self.schedstat, CachedFd::Open(_));
        let root = pass.root;
        let Some(len) = pass.read_kept(&self.schedstat, || self.path(root, "schedstat")) else {
            return Counters::Gone;
        };
        let Some(stat) = schedstat::parse_bytes(&pass.buffer[..len]) else {
            tracing::warn!("{}: not three numbers", self.path(root, "schedstat").display());
            return Counters::Gone;
        };
        // Without a descriptor of its own, only the start time tells whose counters these are.
        if !kept_open && !self.still_there(pass) {
            return Counters::Gone;
        }
        let mut wait = std::mem::take(&mut self.wait);
        let goes_on_ns = wait.see(stat, pass.at_ns, || self.is_ready(pass));
        self.wait = wait;
        Counters::Read {
            ran_ns: stat.ran_ns,
            waited_ns: Some(stat.waited_ns + goes_on_ns),
            timeslices: Some(stat.timeslices),
        }
    }

    /// Whether it is ready to run. The counters of one that runs on a CPU without a tick may stand still for a second: that is
    /// unknown, and not called waiting.
    fn is_ready(&self, pass: &mut Pass<'_>) -> bool {
        let root = pass.root;
        let Some(len) = pass.read_kept(&self.stat, || self.path(root, "stat")) else { return false };
        let text = &pass.buffer[..len];
        let ticks = || pid_stat::comm_and_cpu(text).is_some_and(|(_, cpu)| !pass.tickless.contains(cpu));
        pid_stat::state(text) == Some('R') && (pass.tickless.is_empty() || ticks())
    }

    /// For kernels whose `schedstat` does not count: 10 ms resolution, waits unknown.
    fn read_times(&self, pass: &mut Pass<'_>) -> Counters {
        let root = pass.root;
        let Some(len) = pass.read_kept(&self.stat, || self.path(root, "stat")) else {
            return Counters::Gone;
        };
        match pid_stat::parse(&String::from_utf8_lossy(&pass.buffer[..len])) {
            Ok(stat) if stat.start_time == self.id.start_time => {
                Counters::Read { ran_ns: stat.cpu_ns, waited_ns: None, timeslices: None }
            }
            _ => Counters::Gone,
        }
    }

    fn refresh(&mut self, pass: &mut Pass<'_>, young: bool) {
        let root = pass.root;
        if matches!(self.stat, CachedFd::ByPath)
            && root.is_live()
            && !young
            && let Ok(kept) = keep(root, &self.path(root, "stat"), pass.budget)
        {
            self.stat = kept;
        }
        let Some(len) = pass.read_kept(&self.stat, || self.path(root, "stat")) else { return };
        let Some((comm, cpu)) = pid_stat::comm_and_cpu(&pass.buffer[..len]) else { return };
        self.cpu = Some(cpu);
        let renamed = comm != self.meta.comm.as_bytes();
        if renamed {
            self.meta.comm = String::from_utf8_lossy(comm).into();
        }
        if renamed || young {
            self.refresh_place(pass);
        }
    }

    /// Reads again which cgroup the task is in.
    pub(crate) fn refresh_place(&mut self, pass: &mut Pass<'_>) {
        self.meta.place = pass.places.read(&self.path(pass.root, "cgroup"));
    }

    /// Voluntary and involuntary switches; a slow file.
    pub(crate) fn switches(&self, pass: &mut Pass<'_>) -> Option<(u64, u64)> {
        let text = pass.root.read_path(&self.path(pass.root, "status"));
        if text.as_ref().is_err_and(|error| !error.is_gone()) {
            tracing::debug!("{}: {:?}", self.path(pass.root, "status").display(), text.as_ref().err());
        }
        pid_status::switches(text.ok()?.as_bytes())
    }
}
