//! Descriptors kept for the end: undoing and clearing away open files and start programs, which must not fail because
//! something else of this process has used all descriptors up.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

/// Somebody in this process has given a reserve up.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Descriptors that are held until they are needed.
#[derive(Debug, Default)]
pub struct Reserve(Vec<File>);

impl Reserve {
    /// Takes `count` of them; fewer where few are allowed (a quarter of `RLIMIT_NOFILE`).
    pub fn take(count: u64) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let count = limit.map_or(count, |limit| count.min(limit / 4));
        Self((0..count).map_while(|_| File::open("/dev/null").ok()).collect())
    }

    /// Gives them up for what comes now.
    pub fn release(&mut self) {
        GIVEN_UP.store(true, Ordering::Relaxed);
        self.0.clear();
    }

    /// Whether one was given up in this process: whoever takes descriptors for others leaves them to the end now.
    pub fn is_given_up() -> bool {
        GIVEN_UP.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_can_be_used_afterwards() {
        let mut reserve = Reserve::take(20);
        assert!(reserve.0.len() >= 16, "{}", reserve.0.len());
        assert!(!Reserve::is_given_up());
        reserve.release();
        assert!(reserve.0.is_empty() && Reserve::is_given_up());
    }
}
