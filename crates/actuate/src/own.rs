//! Evenkeel's own threads, raised while they have to follow others in time.
//!
//! What keeps promises ten times a second needs hardly any CPU, but needs it then: next to dozens of busy tasks, or cgroups
//! whose weights it made large itself, it would wait for longer than what it corrects. Nothing is written to the journal: a
//! thread's attributes end with it, so that `kill -9` leaves nothing behind. Programs and threads it starts do not inherit
//! (`SCHED_FLAG_RESET_ON_FORK`, sched(7)).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_base::{Nice, SchedAttr, SchedPolicy};
use evenkeel_linux::sys::{self, RawSchedAttr};
use evenkeel_linux::{pid_stat, schedstat};

use crate::kernel::KernelError;

/// A thread of this process that was raised; put back when dropped.
#[derive(Debug)]
pub struct Raised {
    tid: u32,
    before: RawSchedAttr,
    ours: RawSchedAttr,
}

impl Raised {
    /// Gives the calling thread this nice value and, where the kernel has slices of one's own, this slice
    /// (nanoseconds). `None` when it is as favoured already: its nice value is at least as low, or it is no fair task. Under SCHED_IDLE
    /// the nice value does not act: such a thread leaves that class for a negative one.
    pub fn thread(nice: Nice, slice_ns: Option<u64>) -> Result<Option<Self>, KernelError> {
        let denied = |error: std::io::Error| {
            let what = format!("own nice value {}: {error}; needs CAP_SYS_NICE", nice.get());
            if error.raw_os_error() == Some(libc::EPERM) || error.raw_os_error() == Some(libc::EACCES) {
                KernelError::Denied(what)
            } else {
                KernelError::Unsupported(what)
            }
        };
        let tid = own_tid();
        let before = sys::sched_getattr(tid).map_err(denied)?;
        let Some(found) = before.decode(sys::default_slice_ns()) else { return Ok(None) };
        let acts = found.policy.has_nice();
        // 0 asks for nothing.
        let is_asked = if acts { nice < found.nice } else { nice.get() < 0 };
        if !found.policy.is_fair() || !is_asked {
            return Ok(None);
        }
        let slice_ns = slice_ns.or(found.slice_ns);
        let policy = if acts { found.policy } else { SchedPolicy::Other };
        let attr = SchedAttr { policy, nice, slice_ns, reset_on_fork: true, ..found };
        sys::sched_setattr(tid, &RawSchedAttr::encode(&attr)).map_err(denied)?;
        let ours = sys::sched_getattr(tid).map_err(denied)?;
        Ok(Some(Self { tid, before: RawSchedAttr::encode(&found), ours }))
    }

    /// Makes a thread of this process as urgent as [`be_urgent`] does.
    fn urgent(tid: u32) -> Result<Self, KernelError> {
        let denied = |error| KernelError::Denied(format!("sched_getattr: {error}"));
        // As it is, a default slice with its length: to tell it from one of its own takes a thread, which would wait for its turn.
        let before = sys::sched_getattr(tid).map_err(denied)?;
        make_urgent(tid)?;
        Ok(Self { tid, before, ours: sys::sched_getattr(tid).map_err(denied)? })
    }
}

/// Makes the calling thread get a CPU at once, and an idle one if there is any, for as long as it lives: lowest priority of
/// SCHED_FIFO; where that is refused, as urgent as an ordinary thread can be.
pub fn be_urgent() -> Result<(), KernelError> {
    make_urgent(0)
}

fn make_urgent(tid: u32) -> Result<(), KernelError> {
    let fifo =
        SchedAttr { policy: SchedPolicy::Fifo, rt_priority: 1, reset_on_fork: true, ..SchedAttr::DEFAULT };
    let ordinary = SchedAttr { nice: Nice::new(-20), reset_on_fork: true, ..SchedAttr::DEFAULT };
    let set = |attr| sys::sched_setattr(tid, &RawSchedAttr::encode(attr));
    set(&fifo)
        .or_else(|_| set(&ordinary))
        .map_err(|error| KernelError::Denied(format!("sched_setattr: {error}")))
}

fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

impl Drop for Raised {
    fn drop(&mut self) {
        // Somebody else changed it meanwhile: theirs to keep. The thread has ended: nothing to put back.
        if sys::sched_getattr(self.tid).is_ok_and(|now| now == self.ours) {
            if self.before.policy == SchedPolicy::Idle.raw() {
                // The kernel takes neither nice value nor slice together with SCHED_IDLE, and keeps what there is of both.
                let first = RawSchedAttr { policy: SchedPolicy::Other.raw(), ..self.before };
                let _ = sys::sched_setattr(self.tid, &first);
            }
            let _ = sys::sched_setattr(self.tid, &self.before);
        }
    }
}

/// How often it is looked whether the thread runs.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that lost its turn stays urgent for so long: while it is, nobody can tell whether it would lose it again.
const URGENT: Duration = Duration::from_secs(60);

/// Sees to it that one thread of this process has its turn: who cannot come to its turn cannot give others theirs.
///
/// A thread of its own looks ten times a second. It makes the other one urgent ([`be_urgent`]) for a minute when that was ready
/// and did not run from one look to the next. To make it urgent at all times would be simpler, and would cost others their
/// turn: loading BPF programs alone takes a CPU for a tenth of a second.
#[derive(Debug)]
pub struct TurnGuard {
    /// Closed when this is dropped.
    stop: Option<Sender<()>>,
    looks: Option<JoinHandle<()>>,
}

impl TurnGuard {
    /// Guards the calling thread until dropped.
    pub fn of_this_thread() -> Result<Self, KernelError> {
        let tid = own_tid();
        let (stop, stopped) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let looks = move || {
            let urgent = be_urgent();
            let works = urgent.is_ok();
            if tell.send(urgent).is_ok() && works {
                guard(tid, &stopped);
            }
        };
        let denied =
            |why: String| KernelError::Denied(format!("no thread to look after its own turn: {why}"));
        let looks = std::thread::Builder::new()
            .name("turn-guard".to_owned())
            .spawn(looks)
            .map_err(|error| denied(error.to_string()))?;
        told.recv().map_err(|error| denied(error.to_string()))??;
        Ok(Self { stop: Some(stop), looks: Some(looks) })
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.looks.take().map(JoinHandle::join);
    }
}

/// Until told to stop, or until the thread has ended.
fn guard(tid: u32, stopped: &Receiver<()>) {
    let Some(counters) = Counters::of(tid) else { return };
    let mut seen = LastSeen::default();
    let mut raised: Option<(Instant, Raised)> = None;
    while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let Some((ready, ran_ns)) = counters.read() else { return };
        let starved = seen.starved(ready, ran_ns);
        raised.take_if(|(until, _)| Instant::now() >= *until);
        if starved && raised.is_none() {
            raised = Raised::urgent(tid).ok().map(|raised| (Instant::now() + URGENT, raised));
        }
    }
}

/// Files of a thread of this process. They stay open: to open them ten times a second costs more than to read them.
struct Counters {
    stat: File,
    schedstat: File,
}

impl Counters {
    fn of(tid: u32) -> Option<Self> {
        let open = |file: &str| File::open(format!("/proc/self/task/{tid}/{file}")).ok();
        Some(Self { stat: open("stat")?, schedstat: open("schedstat")? })
    }

    /// Whether the thread is ready or runs, and how long it has run, nanoseconds; `None` once it has ended.
    fn read(&self) -> Option<(bool, u64)> {
        // Longer than it is: some 50 numbers.
        let mut text = [0; 2048];
        let length = self.stat.read_at(&mut text, 0).ok()?;
        let ready = pid_stat::state(text.get(..length)?)? == 'R';
        Some((ready, schedstat::read_open(&self.schedstat)?.ran_ns))
    }
}

/// A thread at the look before.
#[derive(Debug, Default)]
struct LastSeen {
    ready: bool,
    ran_ns: u64,
}

impl LastSeen {
    /// Whether it was ready both times and did not run between.
    fn starved(&mut self, ready: bool, ran_ns: u64) -> bool {
        let starved = self.ready && ready && self.ran_ns == ran_ns;
        *self = Self { ready, ran_ns };
        starved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_followed_until_it_ends() {
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(own_tid()).unwrap();
            let _ = stopped.recv();
        });
        let counters = Counters::of(told.recv().unwrap()).unwrap();
        let (_, ran_ns) = counters.read().unwrap();
        assert!(ran_ns > 0 && counters.read().unwrap().1 >= ran_ns);
        drop(stop);
        thread.join().unwrap();
        // The kernel takes the thread away a little after the join.
        evenkeel_linux::testing::until("it is gone", || counters.read().is_none());
    }

    #[test]
    fn a_thread_lost_its_turn_when_it_was_ready_all_along_and_did_not_run() {
        let mut seen = LastSeen::default();
        let looks = [(true, 0), (true, 5), (true, 5), (false, 5), (true, 5), (true, 5), (true, 6)];
        let starved: Vec<bool> = looks.iter().map(|&(ready, ran)| seen.starved(ready, ran)).collect();
        assert_eq!(starved, [false, false, true, false, false, true, false]);
    }
}
