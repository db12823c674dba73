//! What can go wrong, each told in one line.

use std::error::Error;
use std::io;

/// Why a program is not in the kernel, or gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    #[error("the kernel has no BTF (no /sys/kernel/btf/vmlinux): it needs CONFIG_DEBUG_INFO_BTF")]
    NoBtf,
    #[error("not allowed to load BPF programs: {0}")]
    NotAllowed(&'static str),
    #[error("the kernel is locked down for confidentiality: programs may not read its memory")]
    LockedDown,
    #[error("this process is in a {0} namespace of its own, while programs see the host's numbers")]
    Namespace(&'static str),
    #[error("the BPF object has no {0:?}: build again")]
    NoProgram(&'static str),
    /// The kernel refused something else.
    #[error("{what}: {reason}")]
    Refused { what: &'static str, reason: String },
    /// The kernel says EPERM: not EACCES, with which its verifier refuses programs that are wrong.
    #[error("{what}: {reason}")]
    NotPermitted { what: &'static str, reason: String },
    #[error("reading from the program: {0}")]
    Read(#[from] io::Error),
}

impl BpfError {
    pub(crate) fn refused(what: &'static str, error: impl Error + 'static) -> Self {
        let mut reason = error.to_string();
        let mut not_permitted = false;
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            let inner_text = inner.to_string();
            if !reason.contains(&inner_text) {
                reason = format!("{reason}: {inner_text}");
            }
            let errno = inner.downcast_ref().and_then(io::Error::raw_os_error);
            not_permitted |= errno == Some(libc::EPERM);
            cause = inner.source();
        }
        tracing::debug!("{what}: {reason}");
        let reason = one_line(&reason);
        match not_permitted {
            true => Self::NotPermitted { what, reason },
            false => Self::Refused { what, reason },
        }
    }
}

/// The first line and, of a verifier's log, the line that says what it did not like: the last but its statistics.
fn one_line(reason: &str) -> String {
    let mut lines = reason.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let statistics =
        ["processed ", "verification time", "stack depth", "insns ", "mark_precise"].map(str::to_owned);
    let verdict = lines.rfind(|line| !statistics.iter().any(|start| line.starts_with(start)));
    match (first.split_once(" Verifier output:"), verdict) {
        (Some((first, _)), Some(verdict)) => format!("{first} The verifier: {verdict}"),
        (None, _) | (_, None) => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifiers_log_becomes_its_verdict() {
        let log = "the BPF_PROG_LOAD syscall returned EINVAL. Verifier output: 0: R1=ctx()\n1: (b7) r0 = 0\n\
                   R2 invalid mem access 'scalar'\nprocessed 3 insns (limit 1000000)\nstack depth 0\n";
        let line = one_line(log);
        assert_eq!(
            line,
            "the BPF_PROG_LOAD syscall returned EINVAL. The verifier: R2 invalid mem access 'scalar'"
        );
        assert_eq!(one_line("plain\nmore"), "plain");
        assert_eq!(one_line(""), "");
    }

    #[test]
    fn what_is_not_permitted_is_told_by_its_number_however_deep_it_is() {
        let loading = |errno| {
            aya::programs::ProgramError::SyscallError(aya::sys::SyscallError {
                call: "bpf_prog_load",
                io_error: io::Error::from_raw_os_error(errno),
            })
        };
        let refused = |errno| BpfError::refused("loading", aya::EbpfError::ProgramError(loading(errno)));
        let error = refused(libc::EPERM);
        assert!(matches!(error, BpfError::NotPermitted { .. }));
        assert!(error.to_string().contains("Operation not permitted"), "{error}");
        assert!(matches!(refused(libc::EACCES), BpfError::Refused { .. }), "the verifier's no");
        let words = BpfError::refused("loading", io::Error::other("Operation not permitted, it says"));
        assert!(matches!(words, BpfError::Refused { .. }));
    }
}
