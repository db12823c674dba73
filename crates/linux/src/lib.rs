//! What does this kernel file or system call say and do?
//!
//! One module per kind of file: `parse(&str)`, which no text makes panic, and a read under a [`Root`], so that a captured
//! tree is read by the same code as the living host. [`group::Cgroup`] makes, limits, reads and clears one cgroup. [`children`], [`signals`] and [`process`] start processes that end with us, give
//! them the signals they should have, and tell whether one is still the same.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod cgroup;
pub mod cgroupfs;
pub mod children;
pub mod cmdline;
pub mod error;
pub mod facts;
pub mod fault;
pub mod group;
pub mod input;
pub mod machine;
pub mod mountinfo;
pub mod net;
pub mod pid_stat;
pub mod pid_status;
pub mod pressure;
pub mod proc_stat;
pub mod process;
pub mod reserve;
pub mod root;
pub mod schedstat;
pub mod signals;
pub mod sys;
pub mod sysfs;
#[doc(hidden)]
pub mod testing;

pub use error::{ParseError, ReadError};
pub use root::Root;
