//! Evenkeel's own thread, raised while it has to follow others in time.
//!
//! What keeps promises ten times a second needs hardly any CPU, but needs it then: beside dozens of busy tasks, or cgroups
//! whose weights it made large itself, it would wait for longer than what it corrects. Nothing is written to the journal: a
//! thread's attributes end with it, so that `kill -9` leaves nothing behind. Programs and threads it starts do not inherit
//! (`SCHED_FLAG_RESET_ON_FORK`, sched(7)).

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use evenkeel_base::{Nice, SchedAttr, SchedPolicy};
use evenkeel_linux::sys::{self, RawSchedAttr};

use crate::kernel::KernelError;

/// A thread of this process that was raised; put back when dropped.
#[derive(Debug)]
pub struct Raised {
    tid: u32,
    before: RawSchedAttr,
    ours: RawSchedAttr,
}

thread_local! {
    /// What made this thread urgent, while it is.
    static URGENT: RefCell<Weak<Raised>> = const { RefCell::new(Weak::new()) };
}

impl Raised {
    /// Gives the calling thread this nice value and, where the kernel has slices of one's own, this slice
    /// (nanoseconds). `None` when it is as favoured already: its nice value is at least as low, or it is no fair task.
    ///
    /// # Errors
    /// [`KernelError::Denied`] without `CAP_SYS_NICE` (or a nice limit that allows it).
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
        if !found.policy.is_fair() || found.nice <= nice {
            return Ok(None);
        }
        let slice_ns = slice_ns.or(found.slice_ns);
        let attr = SchedAttr { nice, slice_ns, reset_on_fork: true, ..found };
        sys::sched_setattr(tid, &RawSchedAttr::encode(&attr)).map_err(denied)?;
        let ours = sys::sched_getattr(tid).map_err(denied)?;
        Ok(Some(Self { tid, before: RawSchedAttr::encode(&found), ours }))
    }

    /// Makes the calling thread as urgent as [`be_urgent`] does, until all that were given this for it have dropped it.
    ///
    /// # Errors
    /// [`KernelError::Denied`] when both are refused.
    pub fn urgent() -> Result<Arc<Self>, KernelError> {
        if let Some(raised) = URGENT.with_borrow(Weak::upgrade) {
            return Ok(raised);
        }
        let denied = |error| KernelError::Denied(format!("sched_getattr: {error}"));
        let tid = own_tid();
        // As it is, a default slice with its length: to tell it from one of its own takes a thread, which would wait for its turn.
        let before = sys::sched_getattr(tid).map_err(denied)?;
        be_urgent()?;
        let raised = Arc::new(Self { tid, before, ours: sys::sched_getattr(tid).map_err(denied)? });
        URGENT.set(Arc::downgrade(&raised));
        Ok(raised)
    }

    /// The nice value in force.
    pub fn nice(&self) -> Nice {
        Nice::new(self.ours.nice)
    }
}

/// Makes the calling thread get a CPU at once, and an idle one if there is any, for as long as it lives: lowest priority of
/// SCHED_FIFO; where that is refused, as urgent as an ordinary thread can be.
///
/// # Errors
/// [`KernelError::Denied`] when both are.
pub fn be_urgent() -> Result<(), KernelError> {
    let fifo =
        SchedAttr { policy: SchedPolicy::Fifo, rt_priority: 1, reset_on_fork: true, ..SchedAttr::DEFAULT };
    let ordinary = SchedAttr { nice: Nice::new(-20), reset_on_fork: true, ..SchedAttr::DEFAULT };
    let set = |attr| sys::sched_setattr(0, &RawSchedAttr::encode(attr));
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
            let _ = sys::sched_setattr(self.tid, &self.before);
        }
    }
}
