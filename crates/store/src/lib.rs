//! What happened? A bounded, crash-safe history in one SQLite file.
//!
//! * **Samples** are raw counters ([`evenkeel_base::Sample`]); rates are derived at reading ([`rates`]). They are kept
//!   in compressed blocks, complete in themselves: the first sample whole, then only tasks that changed ([`block`]).
//!   Full rate for minutes, then one sample in 10 s, then one in 60 s. Thinning keeps whole samples as they were read,
//!   so a rate between two kept instants is what it was; a task that lived and died between two kept instants is
//!   gone, its time is still in its cgroup's and CPU's counters.
//! * **Runs** of the loop: stages, trial windows, changes with reason and measured effect ([`runs`]).
//!
//! Crash safety: the write-ahead log keeps what was committed. Samples of the unfinished block are committed within
//! [`Limits::tail_seconds`] (4 s by default): a crash loses no more. Stages and changes are committed when they are
//! told. With `synchronous = NORMAL` a power failure may lose the last commits, never the file's consistency.
//! A damaged file is moved aside (`history.corrupt-N.db`) and a new one started: [`Store::note`] says so.
//!
//! Cost, measured by `examples/history_cost.rs` on a 2-CPU virtual machine: 2,000 tasks of which 50 change, sampled each second
//! for half an hour: 127 us of CPU a sample, of which the commits every 4 s take 37 (18 ms at worst, when a block is written and older
//! ones are thinned), and 0.99 bytes a task and sample kept, or 40 bytes for each one that changed.
//!
//! An agent should use [`Recorder`], which goes on without history when there is none to be had, and never waits for the disk.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod age;
pub mod block;
mod bytes;
mod db;
pub mod moments;
mod pending;
pub mod promises;
pub mod rates;
mod reading;
pub mod recorder;
mod rows;
pub mod runs;
mod samples;
pub mod series;
mod tail;
pub mod waits;

pub use block::{Infos, TaskInfo};
pub use bytes::Damaged;
pub use db::{Limits, SCHEMA_VERSION, Store, StoreError};
pub use promises::PromiseTime;
pub use rates::{CpuRate, GroupRate, Rates, TaskRate};
pub use reading::{Samples, StoredSample};
pub use recorder::Recorder;
pub use runs::{RunId, StoredChange, StoredRun, TrialWindow};
pub use samples::Usage;
pub use series::{Series, Step, who};

/// Name of the history's file in the state directory.
pub const FILE_NAME: &str = "history.db";
