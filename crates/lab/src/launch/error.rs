//! Why something could not be started.

use std::io;

use evenkeel_linux::group::GroupError;
use evenkeel_workload::page::PageError;

use crate::mounts::NoCgroups;

/// Why processes, containers or loads could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("load {name}: {what}")]
    Parameters { name: String, what: String },
    /// The page shared with the loads.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A file or system call failed.
    #[error("{what}: {error}")]
    System { what: String, error: io::Error },
    /// This host has no usable cgroup hierarchy with the cpu controller.
    #[error(transparent)]
    NoCgroups(#[from] NoCgroups),
    #[error(transparent)]
    Cgroup(#[from] GroupError),
    #[error("no containers for tenants: {0}")]
    NoContainers(String),
    #[error("load {name} did not come up: {what}")]
    NotUp { name: String, what: String },
}

impl LaunchError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), error: source.into() }
    }
}
