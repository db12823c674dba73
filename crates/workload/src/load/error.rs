//! Why a load could not run.

use crate::page::PageError;

/// Why a load could not run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The parameters make no sense; the message says what to do.
    #[error("{0}")]
    Parameters(String),
    /// The page shared with the starter.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The kernel refused something the load needs.
    #[error("{what}: {error}")]
    System { what: String, error: std::io::Error },
    /// The starter vanished before the load was released.
    #[error("the process that started this load is gone")]
    OwnerGone,
}

impl LoadError {
    /// An error of the operating system with what was tried.
    pub fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), error: source.into() }
    }
}
