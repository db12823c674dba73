//! `/proc/PID/schedstat` and `/proc/PID/task/TID/schedstat`: the cheapest exact counters of one thread.
//! The kernel fills it with `CONFIG_SCHED_INFO` (or delay accounting), also without `CONFIG_SCHEDSTATS`; the process
//! file is the main thread's alone.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::ParseError;

/// Counters of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU, nanoseconds (`se.sum_exec_runtime`; a running task's lags by at most a tick).
    pub ran_ns: u64,
    /// Time runnable but not running, nanoseconds (`sched_info.run_delay`); includes throttling.
    pub waited_ns: u64,
    /// Times it was given a CPU (`sched_info.pcount`).
    pub timeslices: u64,
}

/// Reads a file that stays open from one time to the next (about 1 us); `None` once the thread has ended.
pub fn read_open(file: &File) -> Option<SchedStat> {
    // Three numbers of at most 20 digits.
    let mut text = [0; 96];
    let length = file.read_at(&mut text, 0).ok()?;
    parse_bytes(text.get(..length)?)
}

/// Counters of the calling thread, whose run time lags; `None` where the kernel does not count.
pub fn of_this_thread() -> Option<SchedStat> {
    parse_bytes(&std::fs::read("/proc/thread-self/schedstat").ok()?)
}

/// Reads the three numbers; the hot path of sampling, so it takes bytes and allocates nothing.
pub fn parse_bytes(text: &[u8]) -> Option<SchedStat> {
    let mut numbers = [0u64; 3];
    let mut index = 0;
    let mut digits = false;
    for &byte in text {
        match byte {
            b'0'..=b'9' => {
                let slot = numbers.get_mut(index)?;
                *slot = slot.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                digits = true;
            }
            b' ' | b'\n' => {
                index += usize::from(digits);
                digits = false;
            }
            _ => return None,
        }
    }
    index += usize::from(digits);
    (index == 3).then_some(SchedStat { ran_ns: numbers[0], waited_ns: numbers[1], timeslices: numbers[2] })
}

/// Reads the three numbers.
pub fn parse(text: &str) -> Result<SchedStat, ParseError> {
    parse_bytes(text.as_bytes())
        .ok_or_else(|| ParseError::expected("/proc/PID/schedstat", 1, "three numbers", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn anything_but_three_numbers_is_refused() {
        for bad in ["", "1 2", "1 2 3 4", "1 2 x", "-1 2 3", "99999999999999999999999 1 1"] {
            assert!(parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(ran_ns: u64, waited_ns: u64, timeslices: u64) {
            let text = format!("{ran_ns} {waited_ns} {timeslices}\n");
            prop_assert_eq!(parse(&text).unwrap(), SchedStat { ran_ns, waited_ns, timeslices });
        }
    }
}
