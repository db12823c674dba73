//! The launcher: how the laboratory starts what it runs, as processes ([`Launch`]) or containers ([`Containers`]), in
//! cgroups of their own ([`group`]).
//!
//! Nothing of them outlives the starter. Dropped, processes are ended, and cgroups and containers are removed. When the
//! starter is killed (`kill -9`), the kernel ends its processes (`PR_SET_PDEATHSIG`), and the next start sweeps the rest:
//! everything that is visible on a host carries the starter's pid in its name ([`names`]).

pub mod containers;
mod error;
pub mod group;
pub(crate) mod names;
mod process;

use std::time::Duration;

pub(crate) use containers::{Container, Containers, Resources};
pub use error::LaunchError;
pub use names::{PREFIX, sweep_stale};
pub(crate) use process::{Launch, null, start};

/// How long loads may take to come up before their start is given up.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(30);
