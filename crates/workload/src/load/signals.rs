//! SIGTERM and SIGINT end a load cleanly: a flag, looked at between pieces of work. A second signal kills.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// Installs the handlers (for the `load` command) and gives the flag they set.
pub fn stop_flag_on_signals() -> &'static AtomicBool {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: a zeroed sigaction is valid; the handler only stores to an atomic. No SA_RESTART: sleeps end.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
    &STOP
}

/// Leaves SIGTERM and SIGINT to the main thread, whose sleep they interrupt.
pub(super) fn block_in_this_thread() {
    // SAFETY: a zeroed signal set is valid and only changed through the set functions.
    unsafe {
        let mut set: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}
