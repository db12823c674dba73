//! The laboratory: what happens when one tries?
//!
//! * [`launch`]: how processes, containers and their cgroups are started and ended; [`private`]: directories for their files.
//! * [`tenant`]: sets of loads started together, each a process of its own, as plain processes, in cgroups or in
//!   containers; nothing of them is left behind, whatever happens to the starter.
//! * [`net`]: tenants' networks (namespaces, flows) and what is counted on them.
//! * [`steal`]: the steal emulator takes CPU from a cgroup as a hypervisor would.
//! * [`vm`]: virtual machines as tenants; [`fairness`]: the experiments on whether tenants are treated equally.
//! * [`neighbour`]: the experiment on a service next to batch work.
//! * [`runner`]: runs experiments, cell by cell; [`builtin`]: the built-in ones, one file each.
//! * [`mix`]: random mixes of loads, for validation; [`ceiling`]: the same loads under SCHED_FIFO for a while.
//!
//! CPU time wanted is known for these loads, which is what makes a verdict on scheduling possible:
//! *fulfilment* is CPU got / CPU wanted.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod builtin;
pub mod ceiling;
mod cost;
mod cri;
mod engine;
pub mod fairness;
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
pub mod mix;
pub mod mounts;
pub mod neighbour;
pub mod net;
pub mod private;
pub mod runner;
pub mod steal;
pub mod tenant;
pub mod vm;
