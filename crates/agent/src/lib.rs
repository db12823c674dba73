//! The closed loop as a library: observe → decide → apply → verify → record, with recovery at the start. The binary, the
//! laboratory and tests drive it alike.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent;
mod as_found;
mod bounds;
pub mod budget;
mod component;
mod components;
pub mod config;
mod controls;
pub mod cost;
mod error;
mod events;
pub mod governor;
pub mod guarantee;
mod holdout;
mod kept;
mod measure;
pub mod notify;
mod oldest_kernel;
pub mod predict;
mod proposals;
pub mod protect;
mod puller;
mod record;
mod runq_latency;
mod runqlat_probe;
mod scheduler;
pub mod scope;
mod services;
mod slo;
mod stated;
mod takeover;
#[cfg(test)]
mod testing;
pub mod tiers;
mod trial;
pub mod trusted;
mod units;
mod watch;

pub use agent::{Agent, Measured};
pub use as_found::as_found;
pub use config::{AutoLimit, Config};
pub use error::AgentError;
pub use events::{Event, Quiet, Watcher};
pub use oldest_kernel::may_change_host;
pub use proposals::default_plan;
pub use scope::{Scope, ScopeError};
pub use slo::{RequestSlo, scraped};
pub use stated::{Guarantee, Guarantees, Protected};
pub use takeover::restore_left;
pub use trial::NoTrial;
pub use trusted::Trusted;
