//! Tenants' networks: namespaces and links made for an experiment, flows over them, and what is counted meanwhile.
//!
//! * [`namespace`], [`iproute`], [`wiring`]: a sender, a switch and tenants, each a namespace that lives as long as a
//!   descriptor of ours; nothing is left after a kill.
//! * [`measure`]: many flows to many tenants (`flows`: those of a thread), with what
//!   the host did meanwhile; [`scene`]: tenants in namespaces with a server each; [`steering`]: RPS on their links.
//! * [`tools`]: netperf and iperf3; [`tool_scene`]: tenants whose servers and clients they are.
//! * [`figures`]: bias, Jain's index, spread.

use std::io;

pub mod figures;
mod flows;
pub mod iproute;
pub mod measure;
pub mod namespace;
pub mod scene;
pub mod steering;
pub mod tool_scene;
pub mod tools;
pub mod wiring;

/// Why a tenants' network could not be made or measured.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The parameters make no sense; the message says what to do.
    #[error("{0}")]
    Parameters(String),
    #[error("{0}; run as root")]
    Denied(String),
    #[error("{0} is not installed: apt-get install iproute2")]
    Missing(&'static str),
    #[error("{command} (in {place}): {why}")]
    Refused { command: String, place: String, why: String },
    /// A system call or file failed.
    #[error("{what}: {error}")]
    System { what: String, error: io::Error },
    /// Tenants' processes.
    #[error(transparent)]
    Tenants(#[from] crate::launch::LaunchError),
}

impl NetError {
    /// An error of the operating system with what was tried.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), error: error.into() }
    }
}
