//! Settings of the host's network: receive and transmit packet steering, interrupts' CPUs, a link's queueing
//! discipline. [`crate::Linux`] reads and writes them here; journal and undo are those of everything else.

mod files;
mod knob;
pub mod shape;

pub use files::{Files, Queues};
pub use knob::OUR_HANDLES;
pub(crate) use knob::{cannot_be_put_back, normal};

use crate::kernel::KernelError;

/// Why a setting was not made or not put back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("{0}: there is none")]
    Gone(String),
    #[error("{0}: not permitted; run as root")]
    Denied(String),
    /// The kernel has it not.
    #[error("{0}")]
    Unsupported(String),
    /// It is not ours to change.
    #[error("{0}")]
    Refused(String),
    /// The kernel refused the value, or a file failed.
    #[error("{path}: {error}")]
    Io { path: String, error: String },
}

impl From<HostError> for KernelError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Gone(_) => Self::Gone,
            HostError::Denied(what) => Self::Denied(format!("{what}: run as root")),
            HostError::Unsupported(why) => Self::Unsupported(why),
            HostError::Refused(why) => Self::Invalid(why),
            HostError::Io { path, error } => Self::Io { path, error },
        }
    }
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;
