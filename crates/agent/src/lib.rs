//! The closed loop as a library: observe → decide → apply → verify → record, with recovery at the start. The binary, the
//! laboratory and tests drive it alike.
//!
//! * `watch` is the loop; `agent` holds the parts and the steps it is made of; [`config`], [`scope`] and `stated`: what the user asks for.
//! * A decision: `proposals` asks the levers, `trial` carries out their trial, `measure` makes windows of observations, [`predict`] asks
//!   the simulator first. `as_found` is the host without settings of ours.
//! * After it: `kept` says whether the change in force has to go, `holdout` measures its effect and takes it back.
//! * `controls` alone changes the host, within `bounds`; `puller` moves waiting work. `takeover` goes on where a killed run was.
//! * Next to the decision (`component`, `components`): promised shares ([`guarantee`]), stolen CPU ([`governor`]), limits that follow
//!   and lost turns (`components/`).
//! * Services: `services`, [`tiers`] and `units` say who is one, [`protect`] judges how long it waits, `slo` how slow its requests are.
//! * Waits by length: `runqlat_probe` counts those of scopes, `runq_latency` those of everybody who runs; [`budget`] bounds what that costs.
//! * `record` writes down what a run does, `events` tells whoever drives it.

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
