//! The loop's own thread while promises are kept.
//!
//! Next to dozens of busy tasks, or cgroups whose weights it made large itself, the loop would come late by seconds. Its
//! thread gets a lower nice value and a short slice, and has back what it had when nothing is promised any more.

use evenkeel_actuate::Raised;
use evenkeel_base::Nice;

/// A slice well above what a correction takes, and short enough for an early deadline, nanoseconds.
const SLICE_NS: u64 = 1_000_000;

/// What was done about the loop's own thread.
#[derive(Debug, Default)]
pub(crate) struct OwnPriority {
    raised: Option<Raised>,
    /// It was tried: once is enough until nothing is promised.
    tried: bool,
}

impl OwnPriority {
    /// Raises the thread that calls while it is `needed`. What to tell people, once, when that cannot be done.
    pub fn follow(&mut self, needed: bool, nice: Nice) -> Option<String> {
        if !needed {
            *self = Self::default();
            return None;
        }
        if std::mem::replace(&mut self.tried, true) {
            return None;
        }
        match Raised::thread(nice, Some(SLICE_NS)) {
            Ok(raised) => {
                // Something else may have raised it for now.
                self.tried = raised.is_some();
                self.raised = raised;
                None
            }
            Err(error) => Some(format!(
                "promises may be kept late on a crowded host: {error}; own_nice = 0 in [run] leaves it alone"
            )),
        }
    }
}
