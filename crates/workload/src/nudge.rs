//! A signal now and then to the thread that asked for it, so that it does not stay in a blocking system call for ever.
//!
//! One timer of the kernel a thread (timer_create(2) with `SIGEV_THREAD_ID`), which costs nothing between two expirations.
//! The signal is SIGURG, which nobody sends unless asked for out-of-band data; its handler does nothing, without
//! `SA_RESTART`: a blocking call ends with EINTR. A signal that comes when nothing blocks is lost, the next one is not.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::time::Duration;

/// The timer; ends when dropped. Stays with its thread.
#[derive(Debug)]
pub(crate) struct Nudge {
    timer: libc::timer_t,
}

extern "C" fn nothing(_signal: libc::c_int) {}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: a zeroed sigaction is valid; the handler does nothing at all.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut());
        }
    });
}

impl Nudge {
    /// Begins to nudge the calling thread.
    ///
    /// # Errors
    /// The kernel has no timer left for this user (RLIMIT_SIGPENDING).
    pub fn every(period: Duration) -> io::Result<Self> {
        install_handler();
        // SAFETY: a struct of plain numbers and a pointer may be zero.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGURG;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: reads the event and writes one timer id.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let nudge = Self { timer };
        let time = libc::timespec { tv_sec: period.as_secs() as _, tv_nsec: period.subsec_nanos() as _ };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: a timer of ours, reads the times; the old ones are not wanted.
        if unsafe { libc::timer_settime(nudge.timer, 0, &raw const times, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(nudge)
    }
}

impl Drop for Nudge {
    fn drop(&mut self) {
        // SAFETY: a timer of ours, deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// Without the signal this would block for ever.
    #[test]
    fn a_read_of_a_silent_flow_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut flow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _other = listener.accept().unwrap();
        let _nudge = Nudge::every(Duration::from_millis(20)).unwrap();
        for _ in 0..3 {
            assert_eq!(flow.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::Interrupted);
        }
    }
}
