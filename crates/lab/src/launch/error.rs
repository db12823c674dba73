//! Why something could not be started.

use std::io;

use evenkeel_linux::group::GroupError;
use evenkeel_workload::page::PageError;

use crate::mounts::NoCgroups;

/// Why processes, containers or loads could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The parameters of a load make no sense.
    #[error("load {name}: {what}")]
    Parameters {
        /// The load.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The page shared with the loads.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A file or system call failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried, with the path.
        what: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// This host has no usable cgroup hierarchy with the cpu controller.
    #[error(transparent)]
    NoCgroups(#[from] NoCgroups),
    /// A cgroup could not be made, or refused a value.
    #[error("cgroup: {0}")]
    Cgroup(#[from] GroupError),
    /// No Docker Engine answers, or it refused.
    #[error("no containers for tenants: {0}")]
    NoContainers(String),
    /// A load ended or hung before it was released.
    #[error("load {name} did not come up: {what}")]
    NotUp {
        /// The load.
        name: String,
        /// What happened to it.
        what: String,
    },
}

impl LaunchError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), error: source.into() }
    }
}
