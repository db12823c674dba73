//! The cgroups of one command: where they may be, what is written to them, what they counted, how they go away.
//!
//! v1: a directory in each hierarchy that is needed, below the caller's own group there, so that what limits the
//! caller limits the command. v2: a group with members cannot hand controllers to children (unless it is the real
//! root), so the command gets a sibling of the caller's group, or the nearest ancestor's child that can have one.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, CpuSet, Limit};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{Root, cgroup, cgroupfs};

use super::bounds::Bounds;
use super::sweep::{Claimed, kill_members};

/// How long a group may take to become removable after its last process was reaped.
const REMOVE_WITHIN: Duration = Duration::from_secs(3);

/// Why there is no group: which controller is missing or out of reach, and how to get it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoGroup(pub String);

/// Directories made for a command; removed on drop if nobody is in them any more.
#[derive(Debug)]
pub(super) struct ExecGroup {
    /// In the order made.
    dirs: Vec<PathBuf>,
    cpu: Option<(PathBuf, bool)>,
    cpuset: Option<(PathBuf, bool)>,
    cpuacct: Option<PathBuf>,
    /// What was asked of the host and could only be had with a remark.
    pub notes: Vec<String>,
    claimed: Claimed,
    /// The quota asked for last: on v1 a group above may allow less of it for a time.
    asked: Cell<Option<CpuQuota>>,
}

/// What the groups counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counted {
    /// CPU time, exactly.
    pub cpu_ns: Option<u64>,
    /// The same by mode; on v1 by samples of the timer tick, good for the proportion only.
    pub user_ns: Option<u64>,
    pub sys_ns: Option<u64>,
    pub nr_periods: Option<u64>,
    pub nr_throttled: Option<u64>,
    pub throttled_ns: Option<u64>,
    /// CPU time on each CPU (v1 only).
    pub per_cpu_ns: Option<Vec<u64>>,
}

/// Where this process is, in every hierarchy.
pub(super) struct Home {
    hierarchies: Hierarchies,
    memberships: cgroup::Memberships,
}

impl Home {
    pub fn find() -> Result<Self, NoGroup> {
        let root = Root::host();
        let failed = |error: evenkeel_linux::ReadError| NoGroup(error.to_string());
        Ok(Self {
            hierarchies: Hierarchies::read(&root).map_err(failed)?,
            memberships: root.parse("proc/self/cgroup", cgroup::parse).map_err(failed)?,
        })
    }

    /// Directory of the caller's own group in a v1 hierarchy; the mount point where that cannot be seen.
    fn v1_dir(&self, hierarchy: &Hierarchy, controller: &str) -> PathBuf {
        let path = self.memberships.v1(controller).unwrap_or("/");
        let dir = PathBuf::from(hierarchy.dir(path));
        if dir.is_dir() { dir } else { PathBuf::from(&hierarchy.mount_point) }
    }

    /// The nearest v2 group above (or at) the caller's whose children have the controllers; the mount point's root
    /// is told to hand them out where it can. Gives what was switched on there.
    fn v2_dir(&self, unified: &Hierarchy, wanted: &[&str]) -> Result<(PathBuf, Vec<String>), NoGroup> {
        let own = self.memberships.v2().unwrap_or("/");
        let top = PathBuf::from(&unified.mount_point);
        let mut at = Some(unified.below(own));
        while let Some(path) = at {
            let dir = PathBuf::from(unified.dir(path));
            if hands_out(&dir, wanted) {
                return Ok((dir, Vec::new()));
            }
            at = cgroupfs::parent(path);
        }
        let lacking: Vec<String> =
            wanted.iter().filter(|c| !hands_out(&top, &[c])).map(|c| format!("+{c}")).collect();
        let control = top.join("cgroup.subtree_control");
        fs::write(&control, lacking.join(" ")).map_err(|error| {
            NoGroup(format!(
                "{}: cannot hand out {}: {error}; as a user, start it with `systemd-run --user --scope -p Delegate=yes \
                 evenkeel exec ..`; in a container, run it on the host",
                control.display(),
                wanted.join(" and ")
            ))
        })?;
        Ok((top, lacking))
    }
}

/// Whether children of a v2 group have these controllers.
fn hands_out(dir: &Path, wanted: &[&str]) -> bool {
    let text = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    wanted.iter().all(|wanted| text.split_ascii_whitespace().any(|c| c == *wanted))
}

impl ExecGroup {
    /// Makes what the bounds need: nothing on v2 without bounds, `cpuacct` alone (which only counts) on v1.
    ///
    /// # Errors
    /// A controller that is missing or out of reach, or a value the kernel refuses. Nothing is left then.
    pub fn make(home: &Home, bounds: &Bounds, claimed: Claimed) -> Result<Self, NoGroup> {
        let mut group = Self {
            dirs: Vec::new(),
            cpu: None,
            cpuset: None,
            cpuacct: None,
            notes: Vec::new(),
            claimed,
            asked: Cell::new(None),
        };
        group.make_dirs(home, bounds)?;
        if let Some(note) = group.claimed.problem() {
            group.notes.push(note);
        }
        if let (Some((dir, v2)), Some(cpus)) = (&group.cpuset, &bounds.cpus) {
            set_cpus(dir, *v2, cpus)?;
        }
        if let (Some((dir, v2)), Some(claim)) = (&group.cpu, bounds.claim) {
            if *v2 {
                put(dir, "cpu.weight", &claim.weight().to_string())?;
            } else {
                put(dir, "cpu.shares", &claim.shares().to_string())?;
            }
        }
        if let Some(quota) = &bounds.quota {
            group.set_quota(quota)?;
            if let Some(limit) = group.allowed(quota).filter(|allowed| allowed != quota).and_then(|q| q.pct())
            {
                let note = format!(
                    "a group above allows {limit:.1} % only, so that is the limit until it allows more"
                );
                group.notes.push(note);
            }
        }
        Ok(group)
    }

    fn make_dirs(&mut self, home: &Home, bounds: &Bounds) -> Result<(), NoGroup> {
        let h = &home.hierarchies;
        let mut of_v2 = Vec::new();
        if bounds.needs_cpu() {
            match &h.cpu {
                Some(hierarchy) if hierarchy.v2 => of_v2.push("cpu"),
                Some(hierarchy) => {
                    let dir = self.make_dir(&home.v1_dir(hierarchy, "cpu"))?;
                    self.cpu = Some((dir, false));
                }
                None => return Err(missing("cpu", h)),
            }
        }
        if bounds.cpus.is_some() {
            match &h.cpuset {
                Some(hierarchy) if hierarchy.v2 => of_v2.push("cpuset"),
                Some(hierarchy) => {
                    let dir = self.make_dir(&home.v1_dir(hierarchy, "cpuset"))?;
                    self.cpuset = Some((dir, false));
                }
                None => return Err(missing("cpuset", h)),
            }
        }
        if let Some(hierarchy) = &h.cpuacct {
            // Mounted with cpu it is the same group, and a group there changes who competes with whom.
            let together = h.cpu.as_ref().is_some_and(|cpu| cpu.mount_point == hierarchy.mount_point);
            self.cpuacct = match (&self.cpu, together) {
                (Some((dir, _)), true) => Some(dir.clone()),
                (None, true) => None,
                (_, false) => self.make_dir(&home.v1_dir(hierarchy, "cpuacct")).ok(),
            };
        }
        if let (false, Some(unified)) = (of_v2.is_empty(), &h.unified) {
            let (parent, handed_out) = home.v2_dir(unified, &of_v2)?;
            self.claimed.handed_out(&parent, &handed_out);
            if let Some(note) = escaped(home, unified, &parent) {
                self.notes.push(note);
            }
            let dir = self.make_dir(&parent)?;
            if of_v2.contains(&"cpu") {
                self.cpu = Some((dir.clone(), true));
            }
            if of_v2.contains(&"cpuset") {
                self.cpuset = Some((dir, true));
            }
        }
        Ok(())
    }

    fn make_dir(&mut self, parent: &Path) -> Result<PathBuf, NoGroup> {
        self.claimed.sweep_beside(parent);
        let dir = parent.join(self.claimed.name());
        self.claimed.add(&dir);
        fs::create_dir(&dir).map_err(|error| {
            NoGroup(format!(
                "cannot make the cgroup {}: {error}; it takes root, or a part of the tree delegated to this user",
                dir.display()
            ))
        })?;
        self.dirs.push(dir.clone());
        Ok(dir)
    }

    /// `cgroup.procs` of every directory, open for writing: the way in for a child before it becomes the command.
    pub fn entrances(&self) -> Result<Vec<File>, NoGroup> {
        let open = |dir: &PathBuf| {
            let path = dir.join("cgroup.procs");
            OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|error| NoGroup(format!("{}: {error}", path.display())))
        };
        self.dirs.iter().map(open).collect()
    }

    /// Directory in the hierarchy of the cpu controller.
    pub fn cpu_dir(&self) -> Option<&Path> {
        self.cpu.as_ref().map(|(dir, _)| dir.as_path())
    }

    /// Whether the CPUs are held by a cpuset.
    pub fn has_cpuset(&self) -> bool {
        self.cpuset.is_some()
    }

    /// Every directory.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Sets or changes the quota, also while the command runs. The kernel checks each write by itself: a burst may
    /// not exceed the quota, and quota and period of v1 are two files. v1 refuses a group more than those above it have
    /// ("max(child_quota) <= parent_quota", `tg_cfs_schedulable_down` in kernel/sched/core.c): it gets what they have,
    /// and more when they have more ([`Self::follow_quota`]).
    pub fn set_quota(&self, quota: &CpuQuota) -> Result<(), NoGroup> {
        self.asked.set(Some(*quota));
        // Between the look and the write those above may have changed; the next look is a tenth of a second away.
        self.write_quota(&self.allowed(quota).unwrap_or(*quota))
    }

    /// What groups above allow of a quota; `None` on v2, where they need not be asked.
    fn allowed(&self, quota: &CpuQuota) -> Option<CpuQuota> {
        let (dir, false) = self.cpu.as_ref()? else { return None };
        let parts = dir.ancestors().skip(1).map_while(quota_of_v1);
        Some(within(quota, parts.filter_map(|quota| quota.pct()).fold(f64::INFINITY, f64::min)))
    }

    /// Writes the quota asked for last again, where groups above allow another part of it than is in force.
    pub fn follow_quota(&self) {
        let (Some(asked), Some((dir, false))) = (self.asked.get(), &self.cpu) else { return };
        let due = self.allowed(&CpuQuota { burst_usec: 0, ..asked });
        if due.is_some_and(|due| quota_of_v1(dir).is_some_and(|now| now != due)) {
            // Refused, it is tried again at the next tick.
            let _ = self.set_quota(&asked);
        }
    }

    fn write_quota(&self, quota: &CpuQuota) -> Result<(), NoGroup> {
        let Some((dir, v2)) = &self.cpu else {
            return Err(NoGroup("the command has no group of the cpu controller".into()));
        };
        let burst = if *v2 { "cpu.max.burst" } else { "cpu.cfs_burst_us" };
        if dir.join(burst).exists() {
            put(dir, burst, "0")?;
        }
        if *v2 {
            put(dir, "cpu.max", &format!("{} {}", quota.quota_usec, quota.period_usec))?;
        } else {
            let now = fs::read_to_string(dir.join("cpu.cfs_period_us")).unwrap_or_default();
            if now.trim() != quota.period_usec.to_string() {
                // Without a quota any period is fine.
                put(dir, "cpu.cfs_quota_us", "-1")?;
                put(dir, "cpu.cfs_period_us", &quota.period_usec.to_string())?;
            }
            let value = match quota.quota_usec {
                Limit::Value(usec) => usec.to_string(),
                Limit::Max => "-1".to_owned(),
            };
            put(dir, "cpu.cfs_quota_us", &value)?;
        }
        if quota.burst_usec > 0 {
            put(dir, burst, &quota.burst_usec.to_string())?;
        }
        Ok(())
    }

    /// Reads what was counted so far; what a file does not say is unknown.
    pub fn counted(&self) -> Counted {
        let mut counted = Counted::default();
        if let Some((dir, _)) = &self.cpu {
            let text = fs::read_to_string(dir.join("cpu.stat")).unwrap_or_default();
            if let Ok(stat) = cgroupfs::parse_cpu_stat(&text) {
                counted.nr_periods = stat.nr_periods;
                counted.nr_throttled = stat.nr_throttled;
                counted.throttled_ns = stat.throttled_ns;
            }
        }
        // Every v2 group counts its CPU time, whichever controller it has.
        if let Some((dir, true)) = self.cpu.as_ref().or(self.cpuset.as_ref()) {
            let text = fs::read_to_string(dir.join("cpu.stat")).unwrap_or_default();
            counted.cpu_ns = keyed_usec(&text, "usage_usec");
            counted.user_ns = keyed_usec(&text, "user_usec");
            counted.sys_ns = keyed_usec(&text, "system_usec");
        }
        if let Some(dir) = &self.cpuacct {
            let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
            let number = |name: &str| read(name)?.trim().parse().ok();
            counted.cpu_ns = counted.cpu_ns.or_else(|| number("cpuacct.usage"));
            counted.user_ns = counted.user_ns.or_else(|| number("cpuacct.usage_user"));
            counted.sys_ns = counted.sys_ns.or_else(|| number("cpuacct.usage_sys"));
            counted.per_cpu_ns = read("cpuacct.usage_percpu")
                .and_then(|text| text.split_ascii_whitespace().map(|word| word.parse().ok()).collect());
        }
        counted
    }

    /// Processes in it now, also those in groups that somebody made below it.
    pub fn processes(&self) -> Vec<u32> {
        self.dirs.first().map(|dir| cgroupfs::processes_below(dir)).unwrap_or_default()
    }

    /// Kills everything in it, children of children too, until nobody is left or a second has passed.
    pub fn kill(&self) {
        if let Some(dir) = self.dirs.first() {
            kill_members(dir);
        }
    }

    /// Removes it, waiting a moment for the last processes to be gone; `false` when somebody still runs there.
    pub fn remove(&mut self) -> bool {
        let until = Instant::now() + REMOVE_WITHIN;
        while !self.claimed.remove() {
            if !self.processes().is_empty() || Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.dirs.clear();
        true
    }
}

impl Drop for ExecGroup {
    fn drop(&mut self) {
        if !self.dirs.is_empty() || self.claimed.is_pending() {
            self.remove();
        }
    }
}

/// Quota and period of a v1 group, without its burst; `None` where there are none (the root).
pub fn quota_of_v1(dir: &Path) -> Option<CpuQuota> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<i64>().ok();
    let quota_usec = u64::try_from(read("cpu.cfs_quota_us")?).map_or(Limit::Max, Limit::Value);
    let period_usec = u64::try_from(read("cpu.cfs_period_us")?).ok()?;
    Some(CpuQuota { quota_usec, period_usec, burst_usec: 0 })
}

/// A quota within what those above allow, percent of one CPU. Bound by it, the period is the longest: whoever is throttled
/// is so by the group above then, whose quota it is, and its own says nothing.
pub fn within(quota: &CpuQuota, most_pct: f64) -> CpuQuota {
    if quota.pct().is_none_or(|pct| pct <= most_pct) {
        return *quota;
    }
    let usec = (most_pct / 100.0 * LONGEST_USEC as f64).floor() as u64;
    let quota_usec = Limit::Value(usec.max(CpuQuota::LEAST_USEC));
    CpuQuota { quota_usec, period_usec: LONGEST_USEC, burst_usec: 0 }
}

/// Longest period the kernel takes, microseconds (`max_cfs_quota_period`, kernel/sched/core.c).
const LONGEST_USEC: u64 = 1_000_000;

fn missing(controller: &str, h: &Hierarchies) -> NoGroup {
    NoGroup(format!(
        "no cgroup file system with the {controller} controller is mounted (cgroup layout: {}); mount cgroup2 on \
         /sys/fs/cgroup, or run outside this container",
        h.layout.name()
    ))
}

/// On v2 the caller's own group is left: a limit set there does not hold for the command.
fn escaped(home: &Home, unified: &Hierarchy, parent: &Path) -> Option<String> {
    let own = PathBuf::from(unified.dir(unified.below(home.memberships.v2()?)));
    let text = fs::read_to_string(own.join("cpu.max")).ok()?;
    let limit = cgroupfs::parse_cpu_max(&text).ok()?.pct()?;
    (!parent.starts_with(&own)).then(|| {
        format!(
            "the limit of {limit:.0} % of {} does not hold for the command, which runs beside it",
            own.display()
        )
    })
}

/// CPUs (and memory nodes, which v1 wants first) of a new cpuset.
fn set_cpus(dir: &Path, v2: bool, cpus: &CpuSet) -> Result<(), NoGroup> {
    let parent = dir.parent().unwrap_or(dir);
    let read = |name: &str| fs::read_to_string(parent.join(name)).ok().map(|text| text.trim().to_owned());
    let names = if v2 { ["cpuset.cpus.effective"] } else { ["cpuset.effective_cpus"] };
    let available: Option<CpuSet> = names.iter().find_map(|name| read(name)?.parse().ok());
    check_available(cpus, available.as_ref())?;
    if !v2 {
        let nodes = read("cpuset.effective_mems").or_else(|| read("cpuset.mems")).unwrap_or_default();
        put(dir, "cpuset.mems", &nodes)?;
    }
    put(dir, "cpuset.cpus", &cpus.to_string())
}

/// Refuses CPUs that cannot be had.
pub(super) fn check_available(cpus: &CpuSet, available: Option<&CpuSet>) -> Result<(), NoGroup> {
    match available {
        Some(available) if !cpus.is_subset(available) => {
            Err(NoGroup(format!("CPU {} cannot be had here: {available} can", cpus.difference(available))))
        }
        _ => Ok(()),
    }
}

fn keyed_usec(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    Some(value.trim().parse::<u64>().ok()?.saturating_mul(1000))
}

fn put(dir: &Path, file: &str, value: &str) -> Result<(), NoGroup> {
    let path = dir.join(file);
    let written = OpenOptions::new().write(true).open(&path).and_then(|mut f| f.write_all(value.as_bytes()));
    written.map_err(|error| {
        let hint = match error.raw_os_error() {
            Some(libc::EINVAL) => "; a group above may allow less, or the value is out of range",
            _ if error.kind() == io::ErrorKind::NotFound => "; this kernel does not offer it",
            _ => "",
        };
        NoGroup(format!("{}: writing {value}: {error}{hint}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
