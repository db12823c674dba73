//! On which kernels evenkeel changes anything.

use evenkeel_base::facts::release_version;
use evenkeel_linux::Root;
use evenkeel_linux::sysfs::read_release;

use crate::error::AgentError;

/// Oldest kernel on which evenkeel makes changes.
const OLDEST: (u32, u32) = (5, 15);

/// Asked before anything of this host is changed, by whichever command; what restores does not ask.
pub fn may_change_host() -> Result<(), AgentError> {
    may_change(read_release(&Root::host()).ok().as_deref())
}

/// Refuses a kernel that is too old. One that does not say its release counts as current: fixtures have none.
pub(crate) fn may_change(release: Option<&str>) -> Result<(), AgentError> {
    match release {
        Some(release) if release_version(release).is_some_and(|version| version < OLDEST) => {
            Err(AgentError::OldKernel(release.to_owned()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_before_5_15_are_left_alone() {
        for release in ["5.14.21", "5.10.0-32-cloud-amd64", "4.19.0"] {
            let said = may_change(Some(release)).unwrap_err().to_string();
            assert!(said.contains(release) && said.contains("5.15"), "{said}");
        }
        for release in [Some("5.15.0"), Some("6.1.0-50-cloud-amd64"), Some("7.0"), Some("strange"), None] {
            assert!(may_change(release).is_ok(), "{release:?}");
        }
    }
}
