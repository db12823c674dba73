//! Signal dispositions: what a process we start gets. An ignored signal is inherited through fork and exec
//! (signal(7)), and so is the mask; a command that we start must not inherit ours.

use std::mem::MaybeUninit;

pub fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a zeroed sigaction is valid; the call only fills it. Async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Ignores a signal from now on.
pub fn ignore(signal: libc::c_int) {
    // SAFETY: takes numbers only.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// For the child, between fork and exec: default dispositions and an empty mask. Ignored signals of `keep` stay ignored.
/// Only async-signal-safe system calls.
pub fn reset_but(keep: &[libc::c_int]) {
    for signal in 1..=libc::SIGRTMAX() {
        if !keep.contains(&signal) && is_ignored(signal) {
            // SAFETY: takes numbers only.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    // SAFETY: a zeroed signal set is valid and only changed through the set functions.
    unsafe {
        let mut none: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// As [`reset_but`], for what we start on our own account. A SIGHUP that nohup had us ignore stays ignored.
pub fn reset() {
    reset_but(&[libc::SIGHUP]);
}
