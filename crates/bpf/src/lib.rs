//! Programs in the kernel: what every task has used, read in one pass ([`task`]), where a target's time goes ([`why`]),
//! work that waits next to an idle CPU ([`pull`]), what is used of a quota ([`quota_use`]), what the scheduler did lately
//! ([`flight`]), and the class of a packet ([`classify`]).
//!
//! The programs are C (`bpf/*.bpf.c`), compiled by the build script with clang and embedded here; the loader is aya.
//! They name only the members of kernel structures they use (`bpf/kernel.h`), whose places are found in the running
//! kernel's BTF (CO-RE), so that one object serves kernels 5.15 to current. Nothing stays pinned: programs, maps and links
//! belong to descriptors of this process and go with it, however it ends; [`classify`] alone belongs to `tc`'s filter and goes with
//! the discipline that has it.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod classify;
mod error;
pub mod flight;
pub mod load;
mod mapped;
pub mod pull;
pub mod quota_use;
pub mod task;
pub mod why;

pub use error::BpfError;

/// `CLOCK_MONOTONIC`, which is what programs see, ns.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
