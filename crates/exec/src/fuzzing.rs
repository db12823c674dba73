//! What the kernel sends about threads that ended, for `crates/fuzz`: no interface.

/// Takes what one receipt of the netlink socket brought.
pub fn taskstats(bytes: &[u8]) {
    let _ = crate::taskstats::exits_in(bytes).count();
}
