//! What is there and how busy is it? The machine ([`read_topology`]), raw samples ([`Sampler`]), and rates with
//! ownership between two samples ([`Observer`]).
//!
//! * [`sampler`] reads tasks' counters, by `/proc` or by BPF; `groups` and `network` those of cgroups and networks; `observer` makes
//!   rates of two samples.
//! * Whose a task is: [`ownership`] by its cgroup's path, [`runtimes`] by what container runtimes say, `vm` of virtual machines;
//!   `owners` brings them together.
//! * Besides: [`facts`] is what `check` needs, [`kernel`] what this kernel offers, [`capture`] writes a host as a tree, [`flight`] is a
//!   recording of what the scheduler did.
//!
//! Sampling costs about a microsecond a task: descriptors of `/proc/PID/task/TID/schedstat` stay open between
//! samples, and slow files are read only for new tasks and tasks asked for. A descriptor of a dead task answers
//! `ESRCH`, whoever has its number now, so counters of two tasks are never mixed.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod beside;
pub mod capture;
pub mod error;
mod exited;
pub mod facts;
pub mod flight;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
pub mod kernel;
mod network;
mod observer;
mod on_demand;
mod open_wait;
mod owners;
pub mod ownership;
mod place;
mod process;
pub mod runtimes;
pub mod sampler;
pub mod topology;
mod vm;

pub use error::ObserveError;
pub use kernel::{Features, KernelFacts, Scheduler, read_kernel};
pub use network::NetworkCounters;
pub use observer::{Detail, Observer, ObserverOptions};
pub use runtimes::{Endpoints, TIMEOUT as RUNTIMES_WAIT};
pub use sampler::{Sampler, Sampling, Select};
pub use topology::read_topology;
