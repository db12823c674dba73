//! Loads whose demand for CPU is known: the workloads of `evenkeel load KIND`. A new one is a file here and a line in
//! `kinds!` (`kind.rs`).
//!
//! * [`load`] runs one in this process and reports on it; [`burn`] is the computing, [`flow`] the asking and answering
//!   over TCP, with [`latency`].
//! * [`page`]: the shared memory page by which a set of loads is released at one instant and reports its progress.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod ask;
pub mod burn;
pub mod duty;
pub mod flops;
pub mod flow;
pub mod idle;
mod kind;
pub mod latency;
pub mod load;
mod nudge;
pub mod page;
pub mod primes;
pub mod rr;
pub mod sieve;
pub mod spin;
pub mod stream;
pub mod wakeup;
mod workload;

pub use kind::Kind;
pub use workload::Workload;
