//! Panics on demand, for tests of what happens then. Builds with debug assertions only: nothing of it is in a release.
//!
//! `EVENKEEL_TEST_PANIC_AT=NAME` makes the first [`point`] of this name panic, `NAME:N` the N-th one; `any:N` counts
//! every point.

/// A place where a test may want a panic.
#[inline]
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    injected::hit(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod injected {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Order {
        name: String,
        at: u64,
        seen: AtomicU64,
    }

    fn read() -> Option<Order> {
        let text = std::env::var("EVENKEEL_TEST_PANIC_AT").ok()?;
        let (name, at) = match text.rsplit_once(':').and_then(|(name, at)| Some((name, at.parse().ok()?))) {
            Some((name, at)) => (name.to_owned(), at),
            None => (text, 1),
        };
        Some(Order { name, at, seen: AtomicU64::new(0) })
    }

    #[expect(clippy::panic, reason = "what it is for")]
    pub(super) fn hit(name: &str) {
        static ORDER: OnceLock<Option<Order>> = OnceLock::new();
        let Some(order) = ORDER.get_or_init(read) else { return };
        if (order.name == name || order.name == "any")
            && order.seen.fetch_add(1, Ordering::Relaxed) + 1 == order.at
        {
            panic!("injected at {name}");
        }
    }
}
