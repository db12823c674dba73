//! Why an experiment could not be run.

use evenkeel_experiment::record::RecordError;
use evenkeel_linux::group::GroupError;

use crate::mounts::NoCgroups;

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The experiment makes no sense; the message says what to do.
    #[error("{0}")]
    Usage(String),
    /// The host lacks something; the message says what, and how to get it.
    #[error("{0}")]
    Missing(String),
    /// No usable cgroup hierarchy.
    #[error(transparent)]
    NoCgroups(#[from] NoCgroups),
    /// A cgroup could not be made, or refused a value.
    #[error("cgroup: {0}")]
    Cgroup(#[from] GroupError),
    /// A file or system call failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried, with the path.
        what: String,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// The record could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl RunError {
    pub(crate) fn system(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), error: error.into() }
    }
}
