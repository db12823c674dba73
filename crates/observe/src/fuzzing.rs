//! Small things that processes say of themselves, for `crates/fuzz`: no interface.

use evenkeel_linux::cmdline;

use crate::{on_demand, vm};

/// A captured task's scheduling attributes.
pub fn sched(text: &str) {
    if let Some(raw) = on_demand::parse_sched(text) {
        let _ = raw.decode(Some(2_800_000));
        assert_eq!(on_demand::parse_sched(&on_demand::format_sched(&raw)), Some(raw));
    }
}

/// An emulator's command line, and names and owners of its threads.
pub fn machine(text: &str) {
    let args = cmdline::parse(text);
    if vm::is_emulator(&args) {
        assert!(vm::guest_name(&args).is_none_or(|name| !name.is_empty()));
    }
    let _ = vm::may_be_emulator(text);
    let _ = vm::vcpu_number(text);
    let _ = vm::vhost_owner(text);
    let _ = vm::uids(text);
}
