//! Why a host could not be observed.

use evenkeel_linux::ReadError;

/// What went wrong; a vanished task or cgroup never is.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// A kernel file is unreadable or malformed.
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("tasks cannot be sampled by BPF: {0}")]
    Bpf(String),
    #[error(
        "{dir} has no process in its proc directory: is /proc mounted (or is this a tree made by `evenkeel capture`)?"
    )]
    NoProc { dir: String },
    /// `/proc` hides other users' processes (`hidepid`), or another limit of the view; not fatal where it is returned.
    #[error("{0}")]
    Other(String),
}

impl From<evenkeel_bpf::BpfError> for ObserveError {
    /// The reason is part of the sentence, so it is no source: it would be printed twice.
    fn from(error: evenkeel_bpf::BpfError) -> Self {
        Self::Bpf(error.to_string())
    }
}
