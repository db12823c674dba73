//! Why an experiment could not be run.

use evenkeel_experiment::record::RecordError;
use evenkeel_linux::group::GroupError;

use crate::launch::LaunchError;
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
    /// A process, container or cgroup could not be made, or a file or system call failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The record could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl RunError {
    pub(crate) fn system(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        LaunchError::system(what, error).into()
    }
}

impl From<NoCgroups> for RunError {
    fn from(error: NoCgroups) -> Self {
        LaunchError::from(error).into()
    }
}

impl From<GroupError> for RunError {
    fn from(error: GroupError) -> Self {
        LaunchError::from(error).into()
    }
}
