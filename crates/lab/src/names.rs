//! Names of what is visible on a host: they carry the pid of their maker, so that what the dead left is found.

use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers the sets of this process, for names.
static SETS: AtomicU32 = AtomicU32::new(0);

/// A name no other set of loads has: `evenkeel-lab-<pid>-<n>`.
pub(crate) fn fresh_name() -> String {
    format!("{PREFIX}{}-{}", std::process::id(), SETS.fetch_add(1, Ordering::Relaxed))
}

/// Start of the name of everything tenants leave visible on a host.
pub const PREFIX: &str = "evenkeel-lab-";

/// The pid of the starter, from a name made by this module.
fn owner_of(name: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(PREFIX)?.split_once('-')?;
    n.starts_with(|c: char| c.is_ascii_digit()).then(|| pid.parse().ok())?
}

/// Whether a name was given by a starter that is dead.
pub(crate) fn is_stale(name: &str) -> bool {
    owner_of(name).is_some_and(|pid| !evenkeel_linux::process::is_alive(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner_of(&fresh_name()), Some(std::process::id()));
        for other in ["evenkeel-lab-", "evenkeel-lab-x-1", "evenkeel-lab-12", "evenkeel-lab-12-x", "docker"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }
}
