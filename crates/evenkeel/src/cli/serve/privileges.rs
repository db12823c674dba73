//! What a watcher may do: no more than it needs.

use anyhow::Context;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// What is kept, where it was there: to load and read BPF programs (`CAP_BPF`, `CAP_PERFMON`), to read files of others
/// (`CAP_DAC_READ_SEARCH`), and what `/proc` says of their processes (`CAP_SYS_PTRACE`).
const KEPT: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
];

/// Gives up every capability but [`KEPT`], for this thread and those that it starts, and whatever a program that it
/// executes could gain. Says what is left.
///
/// # Errors
/// The kernel refuses.
pub fn drop_all_but_reading() -> anyhow::Result<String> {
    let have = capabilities(None).context("cannot read the capabilities of this process")?;
    let wanted = KEPT.iter().fold(CapabilitySet::empty(), |sum, (one, _)| sum | *one);
    let kept = have.permitted & wanted;
    // While CAP_SETPCAP is there; without it nothing can be gained from the bounding set by one that may not gain.
    if have.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..64 {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            // The kernel knows fewer than there are bits.
            if !kept.contains(one) && remove_capability_from_bounding_set(one).is_err() {
                break;
            }
        }
    }
    set_no_new_privs(true).context("cannot give up gaining privileges")?;
    clear_ambient_capability_set().context("cannot give up ambient capabilities")?;
    let left = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, left).context("cannot give up capabilities")?;
    let names: Vec<&str> =
        KEPT.iter().filter(|(one, _)| kept.contains(*one)).map(|(_, name)| *name).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}
