//! One run of a target, and what is wrong with it.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use evenkeel_linux::sys::thread_cpu_ns;

use crate::{Target, memory};

/// CPU time that any input may take, and what each of its bytes may add. A parser that looks at every byte a few hundred times
/// stays below; one that looks at every pair of bytes of a long input does not.
const TIME: Duration = Duration::from_millis(60);
const TIME_A_BYTE: Duration = Duration::from_micros(6);
/// Bytes that any input may take, and what each of its bytes may add. Compiling a pattern may take 10 MB.
const BYTES: usize = 48 << 20;
const BYTES_A_BYTE: usize = 400;
/// A run that took too long is repeated so often: the first one also loads code and fills caches.
const REPEATED: usize = 3;

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on a panic prints nothing; [`Fault::Panic`] has its place.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|panic| {
        PLACE.set(panic.location().map(|place| format!("{}:{}", place.file(), place.line())));
    }));
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    Panic(String),
    /// It took longer than so long an input may.
    Slow {
        /// CPU time of the shortest of some runs.
        took: Duration,
        /// What it may take.
        may: Duration,
    },
    /// It held more bytes than so long an input may.
    Large {
        /// Most bytes at a time.
        held: usize,
        /// What it may hold.
        may: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(message) => write!(f, "panics: {message}"),
            Self::Slow { took, may } => write!(f, "takes {took:?} of CPU time, {may:?} is the most"),
            Self::Large { held, may } => write!(f, "holds {held} bytes, {may} is the most"),
        }
    }
}

/// Runs a target once.
pub fn check(target: &Target, input: &[u8]) -> Result<(), Fault> {
    // Unoptimised code is some ten times slower.
    let slower = if cfg!(feature = "libfuzzer") { 1 } else { 10 };
    let may = slower * target.heavy * (TIME + TIME_A_BYTE * u32::try_from(input.len()).unwrap_or(u32::MAX));
    let mut took = Duration::MAX;
    for _ in 0..REPEATED {
        // Other work on the machine does not lengthen it.
        let before = thread_cpu_ns();
        let (result, held) = memory::most_held(|| catch_unwind(AssertUnwindSafe(|| target.call(input))));
        took = took.min(Duration::from_nanos(thread_cpu_ns().saturating_sub(before)));
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let place = PLACE.take().map_or_else(String::new, |place| format!("{place}: "));
            return Err(Fault::Panic(place + text.unwrap_or("without words")));
        }
        let most = BYTES + BYTES_A_BYTE * input.len();
        if held > most {
            return Err(Fault::Large { held, may: most });
        }
        if took <= may {
            return Ok(());
        }
    }
    Err(Fault::Slow { took, may })
}

/// The smallest part of an input, of those tried, that has a fault of the same kind.
pub fn smallest(target: &Target, input: &[u8]) -> Vec<u8> {
    let Err(kind) = check(target, input) else { return input.to_vec() };
    let same = |part: &[u8]| {
        check(target, part)
            .is_err_and(|fault| std::mem::discriminant(&fault) == std::mem::discriminant(&kind))
    };
    let mut best = input.to_vec();
    let mut piece = best.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < best.len() {
            let mut shorter = best[..at].to_vec();
            shorter.extend_from_slice(&best[(at + piece).min(best.len())..]);
            if same(&shorter) {
                best = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_fault_is_seen_and_a_sound_run_is_none() {
        let panics = Target::text("panics", |text| assert!(!text.contains("no"), "it said no"));
        assert_eq!(check(&panics, b"yes"), Ok(()));
        assert_eq!(check(&panics, b"oh no!"), Err(Fault::Panic("it said no".into())));
        assert_eq!(smallest(&panics, b"when it says no, it is"), b"no");
        let large = Target::bytes("large", |_| drop(std::hint::black_box(vec![1_u8; 100 << 20])));
        assert!(matches!(check(&large, b""), Err(Fault::Large { .. })));
        // What may take no time at all takes too much.
        let slow = Target::bytes("slow", |input| drop(std::hint::black_box(input.to_vec()))).heavy(0);
        assert!(matches!(check(&slow, b"a"), Err(Fault::Slow { .. })));
    }
}
