//! Files of a cgroup that say what CPU it may have and had: `cpu.stat`, `cpu.max`, `cpu.weight`, `cpu.shares`,
//! `cpu.cfs_*_us`, `cpuacct.usage`, `cpuset.*`.

use std::fs;
use std::path::Path;

use evenkeel_base::{CpuQuota, CpuSet, IDLE_LOAD_WEIGHT, Limit, load_weight};

use crate::error::optional;
use crate::mountinfo::Hierarchy;
use crate::{ParseError, ReadError, Root};

/// `cpu.stat`, in v2's or v1's words; what a kernel or layout does not count is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuStat {
    /// CPU time of the group and below, nanoseconds (v2 only).
    pub usage_ns: Option<u64>,
    /// Periods in which the group had work.
    pub nr_periods: Option<u64>,
    /// Periods in which it was throttled.
    pub nr_throttled: Option<u64>,
    /// Time throttled, summed over CPUs, nanoseconds.
    pub throttled_ns: Option<u64>,
}

/// Reads lines `key number`; v1 counts `throttled_time` in nanoseconds, v2 `throttled_usec`.
pub fn parse_cpu_stat(text: &str) -> Result<CpuStat, ParseError> {
    let mut stat = CpuStat::default();
    for (index, line) in text.lines().enumerate() {
        let bad = || ParseError::expected("cpu.stat", index + 1, "`name number`", line);
        let (key, value) = line.split_once(' ').ok_or_else(bad)?;
        let value: u64 = value.trim().parse().map_err(|_| bad())?;
        match key {
            "usage_usec" => stat.usage_ns = Some(value.saturating_mul(1000)),
            "nr_periods" => stat.nr_periods = Some(value),
            "nr_throttled" => stat.nr_throttled = Some(value),
            "throttled_usec" => stat.throttled_ns = Some(value.saturating_mul(1000)),
            "throttled_time" => stat.throttled_ns = Some(value),
            _ => {}
        }
    }
    Ok(stat)
}

/// Anonymous memory of a group and what is below, bytes, of `memory.stat`: `anon` of v2, `total_rss` of v1. `None` where it is
/// not told.
pub fn parse_rss(text: &str) -> Option<u64> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value("anon").or_else(|| value("total_rss"))?.trim().parse().ok()
}

/// Reads `cpu.max`: `max 100000` or `50000 100000` (the period may be left out when writing, never when reading).
pub fn parse_cpu_max(text: &str) -> Result<CpuQuota, ParseError> {
    let bad = || ParseError::expected("cpu.max", 1, "`max PERIOD` or `QUOTA PERIOD`", text.trim_end());
    let (quota, period) = text.trim().split_once(' ').ok_or_else(bad)?;
    let quota_usec = match quota {
        "max" => Limit::Max,
        number => Limit::Value(number.parse().map_err(|_| bad())?),
    };
    Ok(CpuQuota { quota_usec, period_usec: period.trim().parse().map_err(|_| bad())?, burst_usec: 0 })
}

/// Reads a file of one unsigned number.
pub fn parse_number(text: &str) -> Result<u64, ParseError> {
    text.trim().parse().map_err(|_| ParseError::expected("a cgroup file", 1, "one number", text.trim_end()))
}

/// Reads a file of one signed number, such as `cpu.cfs_quota_us` (-1: no limit).
pub fn parse_signed(text: &str) -> Result<i64, ParseError> {
    text.trim().parse().map_err(|_| ParseError::expected("a cgroup file", 1, "one number", text.trim_end()))
}

/// Reads a list of CPUs or nodes.
pub fn parse_list(text: &str) -> Result<CpuSet, ParseError> {
    text.parse().map_err(|_| ParseError::expected("a list", 1, "a list such as 0-3,8", text.trim_end()))
}

/// What a group of the cpu controller may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuLimits {
    /// `cpu.weight` (v2) or `cpu.shares` (v1) as written.
    pub raw_weight: Option<u64>,
    /// The scheduler's load weight: shares as they are, `weight * 1024 / 100`, [`IDLE_LOAD_WEIGHT`] for `cpu.idle` groups.
    pub load_weight: Option<u64>,
    /// `cpu.idle`.
    pub idle: bool,
    pub quota: Option<CpuQuota>,
}

/// Processes of a cgroup's directory, none if it is gone.
pub fn processes(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// As [`processes`], with those of the cgroups below it.
pub fn processes_below(dir: &Path) -> Vec<u32> {
    let mut found = processes(dir);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(processes_below(&entry.path()));
        }
    }
    found
}

/// Reads a group's weight and bandwidth. The root group has neither on v2; everything missing is `None`.
pub fn read_cpu_limits(root: &Root, cpu: &Hierarchy, path: &str) -> Result<CpuLimits, ReadError> {
    let dir = cpu.dir(path);
    let number = |name: &str| root.parse_optional(format!("{dir}/{name}"), parse_number);
    let idle = number("cpu.idle")? == Some(1);
    let (raw_weight, quota) = if cpu.v2 {
        let quota = root.parse_optional(format!("{dir}/cpu.max"), parse_cpu_max)?;
        let burst = if quota.is_some() { number("cpu.max.burst")?.unwrap_or(0) } else { 0 };
        (number("cpu.weight")?, quota.map(|quota| CpuQuota { burst_usec: burst, ..quota }))
    } else {
        let quota = root.parse_optional(format!("{dir}/cpu.cfs_quota_us"), parse_signed)?;
        let period = number("cpu.cfs_period_us")?;
        let burst_usec = if quota.is_some() { number("cpu.cfs_burst_us")?.unwrap_or(0) } else { 0 };
        let quota = quota.zip(period).map(|(quota, period_usec)| CpuQuota {
            quota_usec: u64::try_from(quota).map_or(Limit::Max, Limit::Value),
            period_usec,
            burst_usec,
        });
        (number("cpu.shares")?, quota)
    };
    let load_weight = match raw_weight {
        _ if idle => Some(IDLE_LOAD_WEIGHT),
        raw => raw.map(|raw| load_weight(raw, cpu.v2)),
    };
    Ok(CpuLimits { raw_weight, load_weight, idle, quota })
}

/// Effective CPUs of a group: its own file or, where the controller is not enabled, the nearest ancestor's.
pub fn read_effective_cpus(root: &Root, cpuset: &Hierarchy, path: &str) -> Result<Option<CpuSet>, ReadError> {
    let name = if cpuset.v2 { "cpuset.cpus.effective" } else { "cpuset.effective_cpus" };
    read_upwards(path, |at| optional(root.parse(format!("{}/{name}", cpuset.dir(at)), parse_list)))
}

/// Calls `read` for a path and its ancestors until one has an answer.
pub fn read_upwards<T>(
    path: &str,
    mut read: impl FnMut(&str) -> Result<Option<T>, ReadError>,
) -> Result<Option<T>, ReadError> {
    let mut at = Some(path);
    while let Some(path) = at {
        if let Some(value) = read(path)? {
            return Ok(Some(value));
        }
        at = parent(path);
    }
    Ok(None)
}

/// The path one level up; `None` for the root.
pub fn parent(path: &str) -> Option<&str> {
    let path = path.trim_end_matches('/');
    match path.rfind('/')? {
        0 => Some("/"),
        end => Some(&path[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_versions_of_cpu_stat() {
        let v1 = parse_cpu_stat("nr_periods 40\nnr_throttled 38\nthrottled_time 2719000000\nnr_bursts 0\n")
            .unwrap();
        assert_eq!((v1.usage_ns, v1.nr_periods, v1.throttled_ns), (None, Some(40), Some(2_719_000_000)));
        let v2 = parse_cpu_stat("usage_usec 5\nuser_usec 3\nnr_throttled 1\nthrottled_usec 7\n").unwrap();
        assert_eq!((v2.usage_ns, v2.throttled_ns, v2.nr_periods), (Some(5000), Some(7000), None));
        assert_eq!(parse_cpu_stat("usage_usec 5\nx\n").unwrap_err().line, 2);
    }

    #[test]
    fn quotas() {
        assert_eq!(parse_cpu_max("max 100000\n").unwrap(), CpuQuota::UNLIMITED);
        assert_eq!(parse_cpu_max("25000 50000\n").unwrap().pct(), Some(50.0));
        for bad in ["", "max", "-1 100000", "5 x"] {
            assert!(parse_cpu_max(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(parse_signed("-1\n").unwrap(), -1);
        assert!(parse_number("-1").is_err());
    }

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        crate::testing::lay(dir.path(), files);
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn limits_of_v1_and_v2_groups() {
        let (_dir, root) = tree(&[
            ("cpu/a/cpu.shares", "512\n"),
            ("cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("cpu/a/cpu.cfs_period_us", "100000\n"),
            ("cpu/idle/cpu.shares", "3\n"),
            ("cpu/idle/cpu.idle", "1\n"),
            ("cpu/3m/cpu.shares", "3\n"),
            ("cpu/3m/cpu.idle", "0\n"),
            ("two/a/cpu.weight", "50\n"),
            ("two/a/cpu.max", "20000 100000\n"),
            ("two/a/cpu.max.burst", "7\n"),
            ("two/idle/cpu.weight", "0\n"),
            ("two/idle/cpu.idle", "1\n"),
            ("two/bad/cpu.max", "much\n"),
            ("two/cpuset.cpus.effective", "0-1\n"),
        ]);
        let v1 = Hierarchy { mount_point: "/cpu".into(), root: "/".into(), v2: false };
        let v2 = Hierarchy { mount_point: "/two".into(), root: "/".into(), v2: true };
        let a = read_cpu_limits(&root, &v1, "/a").unwrap();
        assert_eq!((a.raw_weight, a.load_weight, a.quota), (Some(512), Some(512), Some(CpuQuota::UNLIMITED)));
        let a = read_cpu_limits(&root, &v2, "/a").unwrap();
        assert_eq!((a.raw_weight, a.load_weight), (Some(50), Some(512)));
        assert_eq!(a.quota.map(|q| (q.pct(), q.burst_usec)), Some((Some(20.0), 7)));
        for (hierarchy, path, idle) in [(&v2, "/idle", true), (&v1, "/idle", true), (&v1, "/3m", false)] {
            let limits = read_cpu_limits(&root, hierarchy, path).unwrap();
            assert_eq!((limits.load_weight, limits.idle), (Some(3), idle), "{path}");
        }
        assert_eq!(read_cpu_limits(&root, &v2, "/gone").unwrap(), CpuLimits::default());
        let error = read_cpu_limits(&root, &v2, "/bad").unwrap_err().to_string();
        assert!(error.contains("two/bad/cpu.max:1: expected"), "{error}");
        assert_eq!(read_effective_cpus(&root, &v2, "/a/b/c").unwrap().unwrap().to_string(), "0-1");
        assert_eq!(read_effective_cpus(&root, &v1, "/a").unwrap(), None);
    }

    #[test]
    fn parents() {
        assert_eq!(
            (parent("/a/b"), parent("/a"), parent("/"), parent("")),
            (Some("/a"), Some("/"), None, None)
        );
    }

    proptest! {
        #[test]
        fn a_quota_round_trips(quota: u64, period: u64) {
            let parsed = parse_cpu_max(&format!("{quota} {period}\n")).unwrap();
            prop_assert_eq!((parsed.quota_usec, parsed.period_usec), (Limit::Value(quota), period));
        }
    }
}
