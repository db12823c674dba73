//! Who a task is, in a way that survives pid reuse.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A clock tick of the kernel's files, nanoseconds: `USER_HZ` (`_SC_CLK_TCK`) is 100 on every architecture supported.
pub const TICK_NS: u64 = 10_000_000;

/// Identity of one thread. Numbers are reused by the kernel; together with the start time they are not
/// (within one boot, see [`BootId`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct TaskId {
    /// Thread group: what users call the process id.
    pub tgid: u32,
    /// The thread; equals `tgid` for the main thread.
    pub tid: u32,
    /// Start time in clock ticks ([`TICK_NS`]) since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tid == self.tgid {
            write!(f, "{}", self.tgid)
        } else {
            write!(f, "{}/{}", self.tgid, self.tid)
        }
    }
}

/// `/proc/sys/kernel/random/boot_id`: a journal or a history of another boot says nothing about today's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(pub String);

/// Whether a cgroup of this name is that of a systemd unit.
pub fn is_unit_name(name: &str) -> bool {
    [".service", ".scope", ".slice"].iter().any(|kind| name.ends_with(kind))
}

/// A unit by its cgroup, and the manager that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitPath<'a> {
    pub unit: &'a str,
    /// Whose manager has it, the user's number as the path has it; `None` for the system's.
    pub user: Option<&'a str>,
}

/// Whose manager this unit is, the user's number as the name has it.
fn manager_of(unit: &str) -> Option<&str> {
    unit.strip_prefix("user@")?.strip_suffix(".service")
}

/// Whether a cgroup belongs to a user's manager: its own, or one below it.
pub fn is_of_user(path: &str) -> bool {
    path.split('/').any(|part| manager_of(part).is_some())
}

/// Whether a cgroup is another or below it; the root is `/` or the empty path.
pub fn is_at_or_below(path: &str, other: &str) -> bool {
    other == "/" || path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The unit whose cgroup this is, of a manager of this host. Slices hold units, and so does `user@UID.service`, which is a user's
/// manager; everything else is handed over to somebody: the systemd of a container has units of the same names below its own group,
/// and no manager out here knows them.
pub fn unit_of_path(path: &str) -> Option<UnitPath<'_>> {
    let (above, unit) = path.rsplit_once('/')?;
    let mut user = None;
    for part in above.split('/').filter(|part| !part.is_empty()) {
        match manager_of(part) {
            Some(uid) => user = Some(uid),
            None if part.ends_with(".slice") => {}
            None => return None,
        }
    }
    is_unit_name(unit).then_some(UnitPath { unit, user })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_containers_systemd_are_none_of_this_hosts() {
        fn found(path: &str) -> Option<(&str, Option<&str>)> {
            unit_of_path(path).map(|found| (found.unit, found.user))
        }
        assert_eq!(found("/system.slice/web.service"), Some(("web.service", None)));
        assert_eq!(found("/init.scope"), Some(("init.scope", None)));
        let user = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(found(user), Some(("user@1000.service", None)));
        assert_eq!(found(&format!("{user}/app.slice/web.service")), Some(("web.service", Some("1000"))));
        let id = "4f".repeat(32);
        for container in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            "/lxc.payload.web".to_owned(),
        ] {
            assert_eq!(found(&format!("{container}/system.slice/nginx.service")), None, "{container}");
            assert_eq!(found(&format!("{container}/init.scope")), None, "{container}");
        }
        assert_eq!((found("/docker/web"), found("/"), found("")), (None, None, None));
    }

    #[test]
    fn below_is_by_parts_of_the_path() {
        assert!(is_at_or_below("/a/b", "/a") && is_at_or_below("/a", "/a"));
        assert!(is_at_or_below("/a", "") && is_at_or_below("/a", "/") && is_at_or_below("/", "/"));
        assert!(!is_at_or_below("/ab", "/a") && !is_at_or_below("/a", "/a/b") && !is_at_or_below("/", "/a"));
    }
}
