//! Carries changes of scheduling state out, checks them, and takes them back.
//!
//! The interface is declarative: [`Actuator::set`] makes the host what was found plus what a plan says. Everything
//! ever touched and not in the plan goes back to its original value, newest change first, so that
//! `set(&Plan::default(), ..)` undoes everything. Originals are in the journal before the first write; after `kill -9` at any
//! instant, the next [`Actuator::open`] or [`restore`] puts every surviving task and cgroup back.
//!
//! * [`actuator`] sets and takes back; `guard` says what is never touched, `adopt` what children of a changed task carry on.
//! * [`journal`] is the record on disk, `ledger` how the actuator uses it, [`medium`] where it is kept.
//! * `undo` restores one property; `recover` and `takeover` deal with what a killed predecessor left.
//! * [`kernel`] is what is needed of a kernel: [`linux`] is the real one, with [`host`] for its network and [`owner`] for cgroups that
//!   systemd, Docker or libvirt manage; [`fake`] is one for tests.
//!
//! What is promised, how, and what is not: `docs/safety.md`, `docs/undo.md`.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod actuator;
mod adopt;
mod error;
pub mod fake;
mod guard;
pub mod host;
pub mod journal;
pub mod kernel;
mod ledger;
pub mod libvirt;
pub mod linux;
pub mod medium;
mod namespaces;
pub mod old;
mod options;
pub mod outcome;
mod own;
pub mod owner;
mod recover;
mod takeover;
mod undo;
mod value;

pub use actuator::{Actuator, Moved, TemporaryPin, restore, restore_on};
pub use error::ActuateError;
pub use kernel::{Born, Kernel, KernelError, Namespaces, TaskFacts};
pub use linux::Linux;
pub use medium::{
    FileMedium, Holder, Lock, LockHolder, Medium, OpenError, Survives, check_private, lock_file, lock_holder,
    make_private,
};
pub use options::Options;
pub use outcome::{Applied, ChangeOutcome, Item, Recovery, RestoreReport, SetReport, Verdict};
pub use own::{Raised, TurnGuard, be_urgent};
pub use recover::Originals;
pub use takeover::Left;
pub use value::{all_cpus, is_all_cpus};
