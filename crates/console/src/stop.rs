//! Why a command is to end before its time: a signal, or a panic in one of its threads. Either only asks: the command sees
//! the flag, restores what it changed, and ends by itself. A signal that comes again is the same request, since
//! `timeout` and terminals send one to the group and to the process; no signal that can be caught ends the
//! program while changes are in force.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};

use anyhow::Context;
use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGSYS, SIGTERM, SIGTRAP, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXCPU,
};

use crate::Failure;

/// Whatever ends a program by default and can be caught. Faults of the program itself (SIGSEGV and its like) cannot be
/// survived; SIGXFSZ and SIGPIPE are ignored, their writes fail instead.
const ENDING: [i32; 16] = [
    SIGHUP,
    SIGINT,
    SIGTERM,
    SIGQUIT,
    SIGABRT,
    SIGALRM,
    SIGIO,
    SIGPROF,
    SIGSYS,
    SIGTRAP,
    SIGUSR1,
    SIGUSR2,
    SIGVTALRM,
    SIGXCPU,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// What panicking threads said, not yet shown.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether the command should end.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// From now on signals set the flag that is returned. A SIGHUP that was ignored when the program was started (nohup)
/// stays ignored.
pub fn on_signals() -> Result<&'static AtomicBool, Failure> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| result = register());
    result.context("cannot listen to signals").map_err(Failure::Cannot)?;
    Ok(&STOP)
}

fn register() -> std::io::Result<()> {
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    for signal in ENDING.into_iter().chain(real_time) {
        if signal == SIGHUP && evenkeel_linux::signals::is_ignored(SIGHUP) {
            continue;
        }
        signal_hook::flag::register(signal, Arc::clone(&STOP))?;
    }
    Ok(())
}

/// Broken pipes and full files are errors of a write, not the program's end.
pub fn ignore_write_signals() {
    evenkeel_linux::signals::ignore(libc::SIGPIPE);
    evenkeel_linux::signals::ignore(libc::SIGXFSZ);
}

/// A panic is kept for [`panics`] instead of printed: a terminal that does not read would hold up what restores. The
/// thread that panicked unwinds; the others are asked to end, which restores.
pub fn on_panic() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let thread = std::thread::current();
        let text = format!(
            "internal error in thread {}: {info}\n{}",
            thread.name().unwrap_or("without a name"),
            Backtrace::capture()
        );
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        STOP.store(true, Ordering::Relaxed);
    }));
}

/// Whether a thread has panicked.
pub fn panicked() -> bool {
    !PANICS.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// What panicking threads said.
pub fn panics() -> Vec<String> {
    std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner))
}
