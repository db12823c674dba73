//! Programs in the kernel: what every task has used, read in one pass ([`task`]), and where a target's time goes
//! ([`why`]).
//!
//! The programs are C (`bpf/*.bpf.c`), compiled by the build script with clang and embedded here; the loader is aya.
//! They name only the members of kernel structures they use (`bpf/kernel.h`), whose places are found in the running
//! kernel's BTF (CO-RE), so that one object serves kernels 5.15 to current. Nothing is pinned: programs, maps and links
//! belong to descriptors of this process and go with it, however it ends.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod error;
pub mod load;
pub mod pull;
pub mod task;
pub mod why;

pub use error::BpfError;
