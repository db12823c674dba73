//! Why a kernel file could not be used.

use std::io;
use std::path::{Path, PathBuf};

/// The text of a file is not what the kernel documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {reason}", path.display())]
pub struct ParseError {
    /// The file; a generic name (`/proc/PID/stat`) until [`ParseError::at`] names the real one.
    pub path: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// What was expected and what was there.
    pub reason: String,
}

impl ParseError {
    /// For a line (counted from 1) of a file.
    pub fn new(path: &str, line: usize, reason: impl Into<String>) -> Self {
        Self { path: path.into(), line, reason: reason.into() }
    }

    /// The same complaint about a file now known.
    #[must_use]
    pub fn at(self, path: &Path) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    /// "expected X, found Y", with a bounded quotation.
    pub(crate) fn expected(path: &str, line: usize, expected: &str, found: &str) -> Self {
        let shown: String = found.chars().take(60).collect();
        Self::new(path, line, format!("expected {expected}, found {shown:?}"))
    }
}

/// A file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// It was read and makes no sense.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

impl ReadError {
    /// Wraps an error about a file.
    pub fn io(path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::Io { path: path.into(), error }
    }

    /// Whether the file, or the task or cgroup it was about, does not exist (any more): `ENOENT`, `ESRCH`, `ENODEV`,
    /// `ENOTDIR`.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io { error, .. } if gone(error))
    }
}

/// Whether an error says that the file, task or cgroup is not there.
pub fn gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::ENOTDIR))
}

/// A missing file as `None`, every other failure as it is.
pub(crate) fn optional<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
