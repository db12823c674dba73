//! One cgroup, by its directory in the hierarchy at hand: make, limit, read, enter, empty, remove.
//!
//! What differs between cgroup v1 and v2 is known here only: names of files, two writes for one quota, which groups hand
//! controllers to their children.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuClaim, CpuQuota, CpuShares, Limit};
use rustix::process::{Pid, Signal, kill_process};

use crate::cgroupfs;

/// How long members may take to be gone after they were killed.
const GONE_WITHIN: Duration = Duration::from_secs(1);
/// How long a group may take to become removable after its last process was reaped.
pub const REMOVE_WITHIN: Duration = Duration::from_secs(3);
/// Time between two looks at what ends.
const LOOK: Duration = Duration::from_millis(5);

/// A file of a group could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {error}", .value.as_ref().map(|value| format!("writing {value} to ")).unwrap_or_default(), .path.display())]
pub struct GroupError {
    /// The file or directory.
    pub path: PathBuf,
    /// What was written, if it was a write.
    pub value: Option<String>,
    pub error: io::Error,
}

/// A cgroup's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    dir: PathBuf,
    v2: bool,
}

impl Cgroup {
    /// The group with this directory.
    pub fn new(dir: impl Into<PathBuf>, v2: bool) -> Self {
        Self { dir: dir.into(), v2 }
    }

    /// Makes one below another.
    pub fn make(parent: &Path, name: &str, v2: bool) -> Result<Self, GroupError> {
        let dir = parent.join(name);
        fs::create_dir(&dir).map_err(|error| GroupError { path: dir.clone(), value: None, error })?;
        Ok(Self { dir, v2 })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is of cgroup v2.
    pub fn is_v2(&self) -> bool {
        self.v2
    }

    /// The text of one of its files, without blanks around it; `None` where it cannot be read.
    pub fn text(&self, file: &str) -> Option<String> {
        Some(fs::read_to_string(self.dir.join(file)).ok()?.trim().to_owned())
    }

    /// The number in one of its files; `None` where there is none.
    pub fn number<T: std::str::FromStr>(&self, file: &str) -> Option<T> {
        self.text(file)?.parse().ok()
    }

    /// One write to one of its files, as the kernel wants it. The line end lets an empty value through.
    pub fn write(&self, file: &str, value: &str) -> Result<(), GroupError> {
        let path = self.dir.join(file);
        let written = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut handle| handle.write_all(format!("{value}\n").as_bytes()));
        written.map_err(|error| GroupError { path, value: Some(value.to_owned()), error })
    }

    /// Its weight as cgroup v2 counts: shares on v1 by the same load weight. `None` where there is none.
    pub fn weight(&self) -> Option<u64> {
        let raw = self.number(self.weight_file())?;
        Some(if self.v2 { raw } else { u64::from(CpuClaim::Shares(CpuShares::new(raw)).weight()) })
    }

    fn weight_file(&self) -> &'static str {
        if self.v2 { "cpu.weight" } else { "cpu.shares" }
    }

    /// Sets the weight, converted where the claim is in the words of the other version.
    pub fn set_claim(&self, to: CpuClaim) -> Result<(), GroupError> {
        self.set_raw_weight(u64::from(if self.v2 { to.weight() } else { to.shares() }))
    }

    /// Sets the weight in the number of this version: `cpu.weight` of v2, `cpu.shares` of v1.
    pub fn set_raw_weight(&self, to: u64) -> Result<(), GroupError> {
        self.write(self.weight_file(), &to.to_string())
    }

    /// Quota, period and burst; `None` where there are none (the root, or a kernel without quotas).
    pub fn quota(&self) -> Option<CpuQuota> {
        let quota = if self.v2 {
            cgroupfs::parse_cpu_max(&self.text("cpu.max")?).ok()?
        } else {
            // -1: no limit.
            let quota: i64 = self.number("cpu.cfs_quota_us")?;
            CpuQuota {
                quota_usec: u64::try_from(quota).map_or(Limit::Max, Limit::Value),
                period_usec: self.number("cpu.cfs_period_us")?,
                burst_usec: 0,
            }
        };
        // Linux 5.14 and later.
        Some(CpuQuota { burst_usec: self.number(self.burst_file()).unwrap_or(0), ..quota })
    }

    fn burst_file(&self) -> &'static str {
        if self.v2 { "cpu.max.burst" } else { "cpu.cfs_burst_us" }
    }

    /// Sets quota, period and burst.
    ///
    /// The kernel checks every single write: the burst may not exceed the quota, and in v1 a child's share of time may not
    /// exceed its parent's nor fall below its own children's. So the burst is lowered first and raised last; of quota and
    /// period in v1 that one goes first which does not make the share pass the larger of the old and the new one.
    ///
    /// # Errors
    /// The kernel refuses a value, or has no quotas here. What was there is there again then, unless that is refused, too.
    pub fn set_quota(&self, to: &CpuQuota) -> Result<(), GroupError> {
        let now = self.quota().unwrap_or(CpuQuota::UNLIMITED);
        let lowers_burst = to.burst_usec != now.burst_usec && now.burst_usec > 0;
        if lowers_burst {
            self.write(self.burst_file(), "0")?;
        }
        let written = if self.v2 {
            self.write("cpu.max", &format!("{} {}", to.quota_usec, to.period_usec))
        } else {
            self.set_v1_quota(&now, to)
        };
        if written.is_err() && lowers_burst {
            let _ = self.write(self.burst_file(), &now.burst_usec.to_string());
        }
        written?;
        if to.burst_usec != now.burst_usec && to.burst_usec > 0 {
            self.write(self.burst_file(), &to.burst_usec.to_string())?;
        }
        Ok(())
    }

    fn set_v1_quota(&self, now: &CpuQuota, to: &CpuQuota) -> Result<(), GroupError> {
        let quota = || self.write_v1_quota(to);
        let period = || self.write("cpu.cfs_period_us", &to.period_usec.to_string());
        if to.period_usec == now.period_usec {
            return quota();
        }
        let period_first = match (now.quota_usec, to.quota_usec) {
            (_, Limit::Max) => false,
            (Limit::Max, _) => true,
            _ => to.period_usec > now.period_usec,
        };
        let tried =
            if period_first { period().and_then(|()| quota()) } else { quota().and_then(|()| period()) };
        match tried {
            Err(error) if error.error.raw_os_error() == Some(libc::EINVAL) => {
                // Between parent and children there is room for neither order: lift the limit for a moment. The parent's
                // still holds.
                let lifted = self.lift_v1_quota_for(to);
                if lifted.is_err() {
                    // Not even then. Without a limit it does not stay.
                    let _ = self.lift_v1_quota_for(now);
                }
                lifted
            }
            other => other,
        }
    }

    fn lift_v1_quota_for(&self, to: &CpuQuota) -> Result<(), GroupError> {
        self.write("cpu.cfs_quota_us", "-1")?;
        self.write("cpu.cfs_period_us", &to.period_usec.to_string())?;
        self.write_v1_quota(to)
    }

    fn write_v1_quota(&self, to: &CpuQuota) -> Result<(), GroupError> {
        let value = to.quota_usec.value().map_or_else(|| "-1".to_owned(), |usec| usec.to_string());
        self.write("cpu.cfs_quota_us", &value)
    }

    /// v1 refuses a group less than those below it have: lowers the quotas below to at most `most_pct` percent of one CPU.
    /// For groups below which only our own are.
    pub fn lower_below(&self, most_pct: f64) {
        for below in fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let below = Self::new(below, self.v2);
            if let Some(now) = below.quota() {
                let due = within(&now, most_pct);
                if due != now {
                    below.lower_below(most_pct);
                    // Refused, the quota above is too, and comes again.
                    let _ = below.set_quota(&due);
                }
            }
        }
    }

    /// v1: a new cpuset is empty, and no task can enter it before it has CPUs and memory nodes. Gives it its parent's.
    pub fn inherit_cpuset(&self) -> Result<(), GroupError> {
        let parent = self.dir.parent().unwrap_or(&self.dir);
        for (file, effective) in
            [("cpuset.mems", "cpuset.effective_mems"), ("cpuset.cpus", "cpuset.effective_cpus")]
        {
            let text =
                fs::read_to_string(parent.join(effective)).or_else(|_| fs::read_to_string(parent.join(file)));
            let text = text.map_err(|error| GroupError { path: parent.join(file), value: None, error })?;
            self.write(file, text.trim())?;
        }
        Ok(())
    }

    /// CPU time used in it so far, that of members that have ended included, nanoseconds. v1 counts it in the hierarchy of
    /// cpuacct. `None` where it is not counted.
    pub fn usage_ns(&self) -> Option<u64> {
        if self.v2 {
            return cgroupfs::parse_cpu_stat(&self.text("cpu.stat")?).ok()?.usage_ns;
        }
        self.number("cpuacct.usage")
    }

    /// Its `cgroup.procs`, open for writing: the way in, also for a child between fork and exec.
    pub fn entrance(&self) -> Result<File, GroupError> {
        let path = self.dir.join("cgroup.procs");
        OpenOptions::new().write(true).open(&path).map_err(|error| GroupError { path, value: None, error })
    }

    /// Kills the members of it and of the groups below it, children of children too, until no task is left or a second has
    /// passed. Only for groups of our own, in which no one else has business.
    pub fn kill_members(&self) {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            let members = cgroupfs::processes_below(&self.dir);
            if members.is_empty() || Instant::now() >= until {
                return;
            }
            for pid in members {
                // Read this instant; the kernel offers nothing closer on v1.
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes it and the groups below it, where no task is in them; whether it is gone.
    pub fn remove_empty(&self) -> bool {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                Self::new(entry.path(), self.v2).remove_empty();
            }
        }
        match fs::remove_dir(&self.dir) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Removes it with the groups below it once its last processes are gone; whether it is gone after three seconds.
    pub fn remove(&self) -> bool {
        self.removed(|| {})
    }

    /// Kills its members and removes it with the groups below it; whether it is gone.
    pub fn clear(&self) -> bool {
        self.removed(|| self.kill_members())
    }

    fn removed(&self, each_time: impl Fn()) -> bool {
        let until = Instant::now() + REMOVE_WITHIN;
        loop {
            each_time();
            if self.remove_empty() {
                return true;
            }
            if Instant::now() >= until {
                tracing::warn!("cannot remove {}", self.dir.display());
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether its children have these controllers (v2).
    pub fn enables(&self, wanted: &[&str]) -> bool {
        let text = self.text("cgroup.subtree_control").unwrap_or_default();
        wanted.iter().all(|wanted| text.split_ascii_whitespace().any(|c| c == *wanted))
    }

    /// Enables controllers for its children (v2). Returns those that were not enabled before, for [`Self::disable`].
    ///
    /// # Errors
    /// The kernel refuses one: it is not enabled here, or tasks are in this group. Of one write it enables all or none.
    pub fn enable<'a>(&self, wanted: &[&'a str]) -> Result<Vec<&'a str>, GroupError> {
        let lacking: Vec<&str> = wanted.iter().copied().filter(|one| !self.enables(&[one])).collect();
        if !lacking.is_empty() {
            self.write("cgroup.subtree_control", &format!("+{}", lacking.join(" +")))?;
        }
        Ok(lacking)
    }

    /// Disables controllers for its children (v2). The kernel refuses while a child uses one: then it is needed.
    pub fn disable(&self, controllers: &[impl AsRef<str>]) {
        for controller in controllers {
            let _ = self.write("cgroup.subtree_control", &format!("-{}", controller.as_ref()));
        }
    }
}

/// A quota within what groups above allow, percent of one CPU. Bound by it, the period is the longest: whoever is throttled
/// is so by the group above then, whose quota it is, and its own says nothing.
pub fn within(quota: &CpuQuota, most_pct: f64) -> CpuQuota {
    if quota.pct().is_none_or(|pct| pct <= most_pct) {
        return *quota;
    }
    let usec = (most_pct / 100.0 * CpuQuota::LONGEST_USEC as f64).floor() as u64;
    let quota_usec = Limit::Value(usec.max(CpuQuota::LEAST_USEC));
    CpuQuota { quota_usec, period_usec: CpuQuota::LONGEST_USEC, burst_usec: 0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use evenkeel_base::CpuWeight;

    #[test]
    fn what_groups_above_allow_is_what_it_gets() {
        let quota =
            |usec, period_usec| CpuQuota { quota_usec: Limit::Value(usec), period_usec, burst_usec: 500 };
        let half = quota(50_000, 100_000);
        assert_eq!(within(&half, f64::INFINITY), half);
        assert_eq!(within(&half, 50.0), half);
        assert_eq!(within(&half, 3.2), CpuQuota { burst_usec: 0, ..quota(32_000, 1_000_000) });
        assert_eq!(within(&half, 0.01).quota_usec, Limit::Value(CpuQuota::LEAST_USEC));
        // Without a quota of its own, that of the group above acts anyway.
        assert_eq!(within(&CpuQuota::UNLIMITED, 3.2), CpuQuota::UNLIMITED);
    }

    /// A directory that looks like a cgroup: the kernel's files exist before they are written.
    fn looks_like(files: &[(&str, &str)], v2: bool) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        let group = Cgroup::make(dir.path(), "a", v2).unwrap();
        files.iter().for_each(|(name, text)| fs::write(group.dir().join(name), text).unwrap());
        (dir, group)
    }

    #[test]
    fn quotas_are_read_and_written_in_both_versions() {
        let quota = CpuQuota { quota_usec: Limit::Value(5_000), period_usec: 50_000, burst_usec: 0 };
        let v2 = [("cpu.max", "max 100000\n"), ("cpu.max.burst", "0\n")];
        let v1 =
            [("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n"), ("cpu.cfs_burst_us", "0\n")];
        for (is_v2, files) in [(true, &v2[..]), (false, &v1[..])] {
            let (_dir, group) = looks_like(files, is_v2);
            assert_eq!(group.quota(), Some(CpuQuota::UNLIMITED));
            // A real file is cut to the length written, as these are not: so much for the end of longer ones.
            files.iter().for_each(|(name, _)| fs::write(group.dir().join(name), "").unwrap());
            let written = group.set_quota(&quota);
            assert!(written.is_ok(), "{written:?}");
            assert_eq!(group.quota(), Some(quota), "v2: {is_v2}");
        }
        let (_dir, none) = looks_like(&[], true);
        assert_eq!(none.quota(), None, "unknown is not unlimited");
        assert_eq!(none.usage_ns(), None);
    }

    #[test]
    fn a_weight_is_written_in_the_words_of_the_version_at_hand() {
        let (shares, weight) = (CpuClaim::Shares(CpuShares::new(2)), CpuClaim::Weight(CpuWeight::new(50)));
        for (v2, file, least, half) in [(true, "cpu.weight", "1", "50"), (false, "cpu.shares", "2", "512")] {
            let (_dir, group) = looks_like(&[(file, "")], v2);
            assert_eq!(group.weight(), None, "unknown is no weight");
            group.set_raw_weight(7).unwrap();
            assert_eq!(group.text(file).as_deref(), Some("7"));
            group.set_claim(shares).unwrap();
            assert_eq!(group.text(file).as_deref(), Some(least));
            group.set_claim(weight).unwrap();
            assert_eq!((group.text(file).as_deref(), group.weight()), (Some(half), Some(50)));
        }
    }

    #[test]
    fn a_refused_write_names_the_file_and_the_value_and_makes_none() {
        let (_dir, group) = looks_like(&[], true);
        let failed = group.write("cpu.weight", "7").unwrap_err();
        assert!(failed.to_string().starts_with("writing 7 to /"), "{failed}");
        assert!(failed.to_string().contains("/a/cpu.weight: "), "{failed}");
        assert!(!group.dir().join("cpu.weight").exists());
    }

    #[test]
    fn controllers_that_are_enabled_already_are_not_ours_to_disable() {
        let (_dir, group) = looks_like(&[("cgroup.subtree_control", "cpuset io\n")], true);
        assert!(group.enables(&["io", "cpuset"]) && !group.enables(&["cpu"]));
        assert_eq!(group.enable(&["cpuset", "cpu", "memory"]).unwrap(), ["cpu", "memory"]);
        // At once, so that none stays enabled where the kernel refuses one.
        assert!(group.enables(&["+cpu", "+memory"]));
    }

    #[test]
    fn groups_below_are_removed_with_it_and_one_that_is_gone_is_no_fault() {
        let (dir, group) = looks_like(&[], true);
        let below = Cgroup::make(group.dir(), "b", true).unwrap();
        Cgroup::make(below.dir(), "c", true).unwrap();
        assert!(group.remove_empty() && !dir.path().join("a").exists());
        assert!(group.remove_empty());
    }
}
