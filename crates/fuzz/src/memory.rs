//! Memory that one run holds at most, counted by the allocator of every program that links this crate.
//!
//! libFuzzer has such a bound only where an address sanitizer is built in, which takes an unstable compiler.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes this thread holds beyond what it held when the count began; `None` while nothing is counted.
    static HELD: Cell<Option<isize>> = const { Cell::new(None) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// A run that holds so many bytes gets no more; the program then ends as it does where there is no memory.
const REFUSED: isize = 1 << 30;

struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

impl Counted {
    /// Counts a change; whether it may be had.
    fn count(change: isize) -> bool {
        let changed = HELD.try_with(|held| {
            let Some(now) = held.get() else { return true };
            let after = now.saturating_add(change);
            if change > 0 && after > REFUSED {
                return false;
            }
            held.set(Some(after));
            MOST.set(MOST.get().max(after));
            true
        });
        changed.unwrap_or(true)
    }
}

/// A size as it is counted; the allocator refuses what is larger.
fn signed(size: usize) -> isize {
    isize::try_from(size).unwrap_or(isize::MAX)
}

// SAFETY: every call is passed on unchanged, or refused by a null pointer, which the contract permits.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::count(signed(layout.size())) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !Self::count(signed(size).saturating_sub(signed(layout.size()))) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs something and returns the most bytes it held at a time.
pub fn most_held<T>(run: impl FnOnce() -> T) -> (T, usize) {
    MOST.set(0);
    HELD.set(Some(0));
    let result = run();
    HELD.set(None);
    (result, usize::try_from(MOST.get()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_a_time_is_counted() {
        let (_, most) = most_held(|| {
            for _ in 0..100 {
                drop(std::hint::black_box(vec![0_u8; 1000]));
            }
            std::hint::black_box(vec![0_u8; 5000])
        });
        assert!((5000..10_000).contains(&most), "{most}");
    }
}
