//! Names of what is visible on a host: they carry the pid of their maker, so that what the dead left is found.

use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_linux::process;

use crate::mounts::CgroupMounts;

/// Numbers the names that this process gives.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// Start of the name of everything the laboratory leaves visible on a host.
pub const PREFIX: &str = "evenkeel-lab-";

/// A name that nothing else has: `evenkeel-lab-PID-N`.
pub(crate) fn fresh_name() -> String {
    format!("{PREFIX}{}-{}", std::process::id(), GIVEN.fetch_add(1, Ordering::Relaxed))
}

/// The pid of the starter, from a name made by this module.
fn owner_of(name: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(PREFIX)?.split_once('-')?;
    n.starts_with(|c: char| c.is_ascii_digit()).then(|| pid.parse().ok())?
}

/// Whether a name was given by a starter that is dead.
pub(crate) fn is_stale(name: &str) -> bool {
    owner_of(name).is_some_and(|pid| !process::is_alive(pid))
}

/// Ends and removes what dead starters left: processes in their cgroups, the cgroups, pages, images and consoles of
/// machines. Returns how many cgroups and folders. (Containers are swept when containers are started.)
pub fn sweep_stale() -> usize {
    let groups = CgroupMounts::find().map(|mounts| mounts.stale(is_stale)).unwrap_or_default();
    groups.iter().filter(|group| group.clear()).count() + crate::private::sweep_stale()
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

    #[test]
    fn only_names_of_the_dead_are_stale() {
        assert!(!is_stale(&fresh_name()));
        // The kernel gives no process this number.
        assert!(is_stale(&format!("{PREFIX}4194305-0")));
        assert!(!is_stale("docker"));
    }
}
