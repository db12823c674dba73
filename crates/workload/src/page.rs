//! The page a set of loads shares with its starter: one gate, and one slot of progress per thread.
//!
//! Layout (native byte order, all words atomic): a header of 64 bytes (magic, number of slots, the gate's futex word,
//! the common start instant), then slots of 128 bytes. A slot is written by its thread only, at the end of every
//! cycle and at least every 10 ms of CPU time, under a sequence counter. While a thread sleeps or waits for a CPU
//! its CPU time does not move, so a reader's own clock is the right one for the elapsed time: what is read is at most
//! 10 ms of CPU time old.
//!
//! The file must not be truncated while mapped; both sides are our own program.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// First word of a page: "evenkl" and the layout's version.
const MAGIC: u64 = u64::from_le_bytes(*b"evenkl\x00\x01");
const SLOT: usize = 128;
const HEADER: usize = 64;
/// Most slots a page may have; keeps a damaged header from mapping without bound.
const MAX_SLOTS: u32 = 65_536;

/// Why a page could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[error("progress page {path}: {what}")]
pub struct PageError {
    path: PathBuf,
    what: String,
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    slots: AtomicU32,
    /// Futex word: 0 closed, 1 open.
    gate: AtomicU32,
    /// `CLOCK_MONOTONIC` nanoseconds at which all start together; valid once the gate is open.
    start_ns: AtomicU64,
}

#[repr(C)]
struct Slot {
    sequence: AtomicU64,
    pid: AtomicU32,
    tid: AtomicU32,
    started_ns: AtomicU64,
    at_ns: AtomicU64,
    cpu_ns: AtomicU64,
    cycles: AtomicU64,
    wanted_ns: AtomicU64,
    dropped_ns: AtomicU64,
    late_ns: AtomicU64,
}

/// What one thread of a load tells about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Process id in the load's own pid namespace; 0 while it has not come up.
    pub pid: u32,
    /// Thread id in the load's own pid namespace.
    pub tid: u32,
    /// `CLOCK_MONOTONIC` at its first instruction after the gate, nanoseconds; 0 while it waits at the gate.
    pub started_ns: u64,
    /// `CLOCK_MONOTONIC` of this statement, nanoseconds.
    pub at_ns: u64,
    /// Thread CPU time since the start, nanoseconds.
    pub cpu_ns: u64,
    /// Cycles begun (`duty`), or events done.
    pub cycles: u64,
    /// CPU time its cycles asked for so far, nanoseconds: the sum of c over cycles begun or arrived (`duty`).
    pub wanted_ns: u64,
    /// CPU time given up because the backlog was at its bound (open duty), nanoseconds.
    pub dropped_ns: u64,
    /// From the common start instant to its first instruction, nanoseconds.
    pub late_ns: u64,
}

/// A mapped page.
#[derive(Debug)]
pub struct Page {
    base: NonNull<u8>,
    len: usize,
    slots: u32,
    file: File,
}

// SAFETY: the mapping is shared memory reached through atomics only and lives until drop.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// A new page without a name (a memfd), for loads that inherit its descriptor.
    pub fn anonymous(slots: u32) -> Result<Self, PageError> {
        let path = Path::new("(memfd)");
        // SAFETY: a valid C string and a flag; the result is checked.
        let fd = unsafe { libc::memfd_create(c"evenkeel-lab".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(error(path, io::Error::last_os_error()));
        }
        // SAFETY: just created, owned by no one else.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Self::make(path, file, slots)
    }

    /// A new page as a file, which must not exist; for loads that cannot inherit a descriptor (containers).
    pub fn create(path: &Path, slots: u32) -> Result<Self, PageError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| error(path, e))?;
        Self::make(path, file, slots)
    }

    fn make(path: &Path, file: File, slots: u32) -> Result<Self, PageError> {
        let slots = slots.clamp(1, MAX_SLOTS);
        let len = HEADER + slots as usize * SLOT;
        file.set_len(len as u64).map_err(|e| error(path, e))?;
        let page = Self::map(path, file, len, slots)?;
        page.header().slots.store(slots, Ordering::Relaxed);
        page.header().magic.store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// Opens a page made by another process.
    pub fn open(path: &Path) -> Result<Self, PageError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| error(path, e))?;
        let len = file.metadata().map_err(|e| error(path, e))?.len() as usize;
        if len < HEADER + SLOT || len > HEADER + MAX_SLOTS as usize * SLOT {
            return Err(error(path, format!("{len} bytes cannot be a progress page")));
        }
        let mut page = Self::map(path, file, len, 0)?;
        page.slots = page.header().slots.load(Ordering::Relaxed);
        if page.header().magic.load(Ordering::Acquire) != MAGIC || HEADER + page.slots as usize * SLOT != len
        {
            return Err(error(path, "not a progress page of this version of evenkeel"));
        }
        Ok(page)
    }

    fn map(path: &Path, file: File, len: usize, slots: u32) -> Result<Self, PageError> {
        // SAFETY: a fresh shared mapping of a file we hold open, at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { base, len, slots, file }),
            _ => Err(error(path, io::Error::last_os_error())),
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, at least HEADER bytes long and lives as long as self.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        if index >= self.slots {
            return None;
        }
        // SAFETY: index < slots was checked, so the slot lies within the mapping; HEADER and SLOT keep words
        // aligned to 8 bytes, and Slot is only ever reached through its atomics.
        unsafe { self.base.add(HEADER + index as usize * SLOT).cast::<Slot>().as_ptr().as_ref() }
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// What the thread of a slot last told; `None` for a slot that is not there.
    pub fn read(&self, index: u32) -> Option<Progress> {
        let slot = self.slot(index)?;
        loop {
            let before = slot.sequence.load(Ordering::Acquire);
            let progress = Progress {
                pid: slot.pid.load(Ordering::Relaxed),
                tid: slot.tid.load(Ordering::Relaxed),
                started_ns: slot.started_ns.load(Ordering::Relaxed),
                at_ns: slot.at_ns.load(Ordering::Relaxed),
                cpu_ns: slot.cpu_ns.load(Ordering::Relaxed),
                cycles: slot.cycles.load(Ordering::Relaxed),
                wanted_ns: slot.wanted_ns.load(Ordering::Relaxed),
                dropped_ns: slot.dropped_ns.load(Ordering::Relaxed),
                late_ns: slot.late_ns.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if before & 1 == 0 && slot.sequence.load(Ordering::Relaxed) == before {
                return Some(progress);
            }
            // The writer was preempted in between: let it run, whatever our own class is.
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Publishes a thread's progress; only the slot's own thread may. A slot that is not there is ignored.
    pub fn write(&self, index: u32, progress: &Progress) {
        let Some(slot) = self.slot(index) else { return };
        let sequence = slot.sequence.load(Ordering::Relaxed) | 1;
        slot.sequence.store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.pid.store(progress.pid, Ordering::Relaxed);
        slot.tid.store(progress.tid, Ordering::Relaxed);
        slot.started_ns.store(progress.started_ns, Ordering::Relaxed);
        slot.at_ns.store(progress.at_ns, Ordering::Relaxed);
        slot.cpu_ns.store(progress.cpu_ns, Ordering::Relaxed);
        slot.cycles.store(progress.cycles, Ordering::Relaxed);
        slot.wanted_ns.store(progress.wanted_ns, Ordering::Relaxed);
        slot.dropped_ns.store(progress.dropped_ns, Ordering::Relaxed);
        slot.late_ns.store(progress.late_ns, Ordering::Relaxed);
        slot.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Opens the gate: everyone waiting sleeps on until `start_ns` (`CLOCK_MONOTONIC`) and starts then.
    pub fn release(&self, start_ns: u64) {
        self.header().start_ns.store(start_ns, Ordering::Relaxed);
        self.header().gate.store(1, Ordering::Release);
        // SAFETY: wakes waiters on a word inside the mapping; no memory is written.
        unsafe {
            libc::syscall(libc::SYS_futex, self.header().gate.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
        }
    }

    /// Waits at the gate; `None` when `timeout` passed or a signal came, else the common start instant.
    pub fn wait_gate(&self, timeout: Duration) -> Option<u64> {
        if self.header().gate.load(Ordering::Acquire) == 0 {
            let timeout =
                libc::timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
            // SAFETY: waits on a word inside the mapping; the timeout outlives the call.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.header().gate.as_ptr(),
                    libc::FUTEX_WAIT,
                    0,
                    &raw const timeout,
                );
            }
        }
        (self.header().gate.load(Ordering::Acquire) != 0)
            .then(|| self.header().start_ns.load(Ordering::Relaxed))
    }

    /// Takes the owner's lock on the page's file, kept until this page is dropped or its process dies.
    pub fn lock_as_owner(&self) -> io::Result<()> {
        rustix::fs::flock(self.file.as_fd(), rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        Ok(())
    }

    /// Whether nobody holds the owner's lock any more. Meaningful only for a page whose owner took it.
    pub fn owner_is_gone(&self) -> bool {
        let lock = rustix::fs::flock(self.file.as_fd(), rustix::fs::FlockOperation::NonBlockingLockShared);
        if lock.is_ok() {
            let _ = rustix::fs::flock(self.file.as_fd(), rustix::fs::FlockOperation::Unlock);
        }
        lock.is_ok()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, with its length; no reference outlives self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn error(path: &Path, what: impl ToString) -> PageError {
    PageError { path: path.to_owned(), what: what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_one_mapping_is_read_in_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let page = Page::create(&path, 3).unwrap();
        let other = Page::open(&path).unwrap();
        let progress = Progress { pid: 7, tid: 8, cpu_ns: 9, cycles: 10, ..Progress::default() };
        other.write(2, &progress);
        assert_eq!(page.read(2), Some(progress));
        assert_eq!(page.read(1), Some(Progress::default()));
        assert_eq!(page.read(3), None);
        other.write(3, &progress);
    }

    #[test]
    fn readers_never_see_half_a_statement() {
        let page = Page::anonymous(1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=200_000u64 {
                    page.write(0, &Progress { cpu_ns: n, cycles: n, wanted_ns: n, ..Progress::default() });
                }
            });
            while page.read(0).unwrap().cycles < 200_000 {
                let p = page.read(0).unwrap();
                assert!(p.cpu_ns == p.cycles && p.cycles == p.wanted_ns, "{p:?}");
            }
        });
    }

    #[test]
    fn the_gate_opens_for_those_who_wait_and_those_who_come_later() {
        let page = Page::anonymous(1).unwrap();
        assert_eq!(page.wait_gate(Duration::from_millis(1)), None);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| page.wait_gate(Duration::from_secs(30)));
            std::thread::sleep(Duration::from_millis(20));
            page.release(42);
            assert_eq!(waiter.join().unwrap(), Some(42));
        });
        assert_eq!(page.wait_gate(Duration::ZERO), Some(42));
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [("empty", vec![]), ("zeros", vec![0; 64 + 128]), ("odd", vec![1; 300])] {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            let error = Page::open(&path).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(Page::open(&dir.path().join("none")).is_err());
    }

    #[test]
    fn the_owners_lock_tells_whether_it_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let owner = Page::create(&path, 1).unwrap();
        owner.lock_as_owner().unwrap();
        let load = Page::open(&path).unwrap();
        assert!(!load.owner_is_gone());
        drop(owner);
        assert!(load.owner_is_gone());
    }
}
