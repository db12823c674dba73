//! Signals while a command runs: what somebody sends to us is passed on; what the terminal sends to its foreground
//! reaches the command by itself.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Passed on to the command: whatever would end this program. What stops and continues jobs is left to the kernel's
/// defaults.
const FORWARDED: [libc::c_int; 13] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// Signals as a descriptor.
#[derive(Debug)]
pub(super) struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals for this thread (call it while there is only one) and listens.
    pub fn listen() -> io::Result<Self> {
        // SAFETY: zeroed signal sets are valid and only changed through the set functions; the descriptor returned is
        // owned from here on.
        unsafe {
            let mut set: libc::sigset_t = MaybeUninit::zeroed().assume_init();
            libc::sigemptyset(&raw mut set);
            let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
            for signal in FORWARDED.into_iter().chain(real_time).chain([libc::SIGCHLD]) {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { fd: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Takes what has arrived; gives the signals to pass on.
    pub fn take(&self) -> Vec<libc::c_int> {
        let mut forward = Vec::new();
        loop {
            // SAFETY: plain old data, filled by the kernel up to its size.
            let mut info: libc::signalfd_siginfo = unsafe { MaybeUninit::zeroed().assume_init() };
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: the kernel writes at most `size` bytes, which is what `info` has.
            let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
            if n != size as isize {
                return forward;
            }
            let signal = info.ssi_signo as libc::c_int;
            // Sent by a process: code 0 or below. The terminal's come from the kernel, to the whole foreground; but a terminal
            // that goes away tells its session's leader alone (tty_signal_session_leader in drivers/tty/tty_jobctrl.c).
            let hung_up = signal == libc::SIGHUP && leads_session();
            if signal != libc::SIGCHLD && (info.ssi_code <= 0 || hung_up) {
                forward.push(signal);
            }
        }
    }
}

/// Whether this process is its session's leader, as under `ssh -t` or a terminal's `-e`.
fn leads_session() -> bool {
    rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid())
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
