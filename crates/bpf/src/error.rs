//! What can go wrong, each told in one line.

use std::io;

/// Why a program is not in the kernel, or gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel was built without type information.
    #[error("the kernel has no BTF (no /sys/kernel/btf/vmlinux): it needs CONFIG_DEBUG_INFO_BTF")]
    NoBtf,
    /// The caller may not load programs.
    #[error("not allowed to load BPF programs: {0}")]
    NotAllowed(&'static str),
    /// Task numbers seen by a program would not be those of this process's `/proc`.
    #[error("this process is in a pid namespace of its own, programs see the host's numbers")]
    PidNamespace,
    /// The kernel refused something else.
    #[error("{what}: {reason}")]
    Refused {
        /// The step.
        what: &'static str,
        /// In the kernel's or the loader's words, first line.
        reason: String,
    },
    /// Reading failed.
    #[error("reading from the program: {0}")]
    Read(#[from] io::Error),
}

impl BpfError {
    pub(crate) fn refused(what: &'static str, error: impl std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let inner_text = inner.to_string();
            if !reason.contains(&inner_text) {
                reason = format!("{reason}: {inner_text}");
            }
            source = inner.source();
        }
        Self::Refused { what, reason: reason.lines().next().unwrap_or_default().to_owned() }
    }
}
