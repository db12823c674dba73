//! The cgroups of one command: where they may be, what is written to them, what they counted, how they go away.
//!
//! v1: a directory in each hierarchy that is needed, below the caller's own group there, so that what limits the
//! caller limits the command. v2: a group with members cannot hand controllers to children (unless it is the real
//! root), so the command gets a sibling of the caller's group, or the nearest ancestor's child that can have one.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, CpuSet};
use evenkeel_linux::group::{Cgroup, GroupError, REMOVE_WITHIN, within};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{Root, cgroup, cgroupfs};

use super::bounds::Bounds;
use super::sweep::Claimed;

/// How long processes that the command left behind have to end before the group is left to them: some were about to, such as the watcher
/// of BusyBox's `timeout`.
const END_WITHIN: Duration = Duration::from_millis(100);

/// Groups with a quota that hold the command back next to its own limit, each with the time that it has held somebody back.
#[derive(Debug, Default)]
pub(super) struct QuotasAbove(Vec<(Cgroup, Option<u64>)>);

impl QuotasAbove {
    /// Those above the command's own group; where it has none, the caller's and those above.
    pub fn find(group: Option<&ExecGroup>) -> Self {
        let own = || -> Option<Cgroup> {
            let home = OwnCgroup::find().ok()?;
            let cpu = home.hierarchies.cpu.as_ref()?;
            let dir = match cpu.v2 {
                true => PathBuf::from(cpu.dir(cpu.below(home.memberships.v2()?))),
                false => home.v1_dir(cpu, "cpu"),
            };
            Some(Cgroup::new(dir, cpu.v2))
        };
        let of_command = group.and_then(|group| group.cpu.as_ref());
        let above = of_command.and_then(|cpu| Some(Cgroup::new(cpu.dir().parent()?, cpu.is_v2())));
        let Some(first) = above.or_else(own) else { return Self::default() };
        let groups = first.dir().ancestors().map(|dir| Cgroup::new(dir, first.is_v2()));
        let limited = groups.filter(|group| group.quota().is_some_and(|quota| quota.pct().is_some()));
        Self(limited.map(|group| (group.clone(), throttled_ns(&group))).collect())
    }

    /// The group that has held somebody back since, with the time, nanoseconds; `None` where that is not told.
    pub fn held(&self) -> Option<(&Path, Option<u64>)> {
        let since = |(group, then): &(Cgroup, Option<u64>)| throttled_ns(group)?.checked_sub(*then.as_ref()?);
        self.0.iter().map(|one| (one.0.dir(), since(one))).find(|(_, ns)| *ns != Some(0))
    }
}

fn throttled_ns(group: &Cgroup) -> Option<u64> {
    cgroupfs::parse_cpu_stat(&group.text("cpu.stat")?).ok()?.throttled_ns
}

/// Why there is no group: which controller is missing or out of reach, and how to get it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoGroup(pub String);

impl From<GroupError> for NoGroup {
    fn from(failed: GroupError) -> Self {
        let hint = match failed.error.raw_os_error() {
            Some(libc::EINVAL) => "; a group above may allow less, or the value is out of range",
            _ if failed.error.kind() == io::ErrorKind::NotFound => "; this kernel does not offer it",
            _ => "",
        };
        Self(format!("{failed}{hint}"))
    }
}

/// Directories made for a command; removed on drop if no task is in them any more.
#[derive(Debug)]
pub(super) struct ExecGroup {
    /// In the order made.
    groups: Vec<Cgroup>,
    cpu: Option<Cgroup>,
    cpuset: Option<Cgroup>,
    cpuacct: Option<Cgroup>,
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
pub(super) struct OwnCgroup {
    hierarchies: Hierarchies,
    memberships: cgroup::Memberships,
}

impl OwnCgroup {
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
    /// enables them where it can. Gives what was enabled there.
    fn v2_dir(&self, unified: &Hierarchy, wanted: &[&str]) -> Result<(PathBuf, Vec<String>), NoGroup> {
        let own = self.memberships.v2().unwrap_or("/");
        let top = PathBuf::from(&unified.mount_point);
        let mut at = Some(unified.below(own));
        while let Some(path) = at {
            let group = Cgroup::new(unified.dir(path), true);
            if group.enables(wanted) {
                return Ok((group.dir().to_owned(), Vec::new()));
            }
            at = cgroupfs::parent(path);
        }
        let enabled = Cgroup::new(&top, true).enable(wanted).map_err(|failed| {
            NoGroup(format!(
                "{}: cannot enable {}: {}; as a user, start it with `systemd-run --user --scope -p Delegate=yes \
                 evenkeel exec ..`; in a container, run it on the host",
                failed.path.display(),
                wanted.join(" and "),
                failed.error
            ))
        })?;
        let enabled = enabled.into_iter().map(str::to_owned).collect();
        Ok((top, enabled))
    }
}

impl ExecGroup {
    /// Makes what the bounds need: nothing on v2 without bounds, `cpuacct` alone (which only counts) on v1.
    ///
    /// # Errors
    /// A controller that is missing or out of reach, or a value the kernel refuses. Nothing is left then.
    pub fn make(home: &OwnCgroup, bounds: &Bounds, claimed: Claimed) -> Result<Self, NoGroup> {
        let mut group = Self {
            groups: Vec::new(),
            cpu: None,
            cpuset: None,
            cpuacct: None,
            notes: Vec::new(),
            claimed,
            asked: Cell::new(None),
        };
        group.make_groups(home, bounds)?;
        if let Some(note) = group.claimed.problem() {
            group.notes.push(note);
        }
        if let (Some(cpuset), Some(cpus)) = (&group.cpuset, &bounds.cpus) {
            set_cpus(cpuset, cpus)?;
        }
        if let (Some(cpu), Some(claim)) = (&group.cpu, bounds.claim) {
            cpu.set_claim(claim)?;
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

    fn make_groups(&mut self, home: &OwnCgroup, bounds: &Bounds) -> Result<(), NoGroup> {
        let h = &home.hierarchies;
        let mut of_v2 = Vec::new();
        if bounds.needs_cpu() {
            match &h.cpu {
                Some(hierarchy) if hierarchy.v2 => of_v2.push("cpu"),
                Some(hierarchy) => {
                    self.cpu = Some(self.make_group(&home.v1_dir(hierarchy, "cpu"), false)?);
                }
                None => return Err(missing("cpu", h)),
            }
        }
        if bounds.cpus.is_some() {
            match &h.cpuset {
                Some(hierarchy) if hierarchy.v2 => of_v2.push("cpuset"),
                Some(hierarchy) => {
                    self.cpuset = Some(self.make_group(&home.v1_dir(hierarchy, "cpuset"), false)?);
                }
                None => return Err(missing("cpuset", h)),
            }
        }
        if let Some(hierarchy) = &h.cpuacct {
            // Mounted with cpu it is the same group, and a group there changes who competes with whom.
            let together = h.cpu.as_ref().is_some_and(|cpu| cpu.mount_point == hierarchy.mount_point);
            self.cpuacct = match (&self.cpu, together) {
                (Some(cpu), true) => Some(cpu.clone()),
                (None, true) => None,
                (_, false) => self.make_group(&home.v1_dir(hierarchy, "cpuacct"), false).ok(),
            };
        }
        if let (false, Some(unified)) = (of_v2.is_empty(), &h.unified) {
            let (parent, enabled) = home.v2_dir(unified, &of_v2)?;
            self.claimed.enabled(&parent, &enabled);
            if let Some(note) = escaped(home, unified, &parent) {
                self.notes.push(note);
            }
            let group = self.make_group(&parent, true)?;
            self.cpuset = of_v2.contains(&"cpuset").then(|| group.clone());
            self.cpu = of_v2.contains(&"cpu").then_some(group);
        }
        Ok(())
    }

    fn make_group(&mut self, parent: &Path, v2: bool) -> Result<Cgroup, NoGroup> {
        self.claimed.sweep_beside(parent);
        self.claimed.add(&parent.join(self.claimed.name()));
        let group = Cgroup::make(parent, &self.claimed.name(), v2).map_err(|failed| {
            NoGroup(format!(
                "cannot make the cgroup {failed}; it takes root, or a part of the tree delegated to this user"
            ))
        })?;
        self.groups.push(group.clone());
        Ok(group)
    }

    /// `cgroup.procs` of every directory, open for writing: the way in for a child before it becomes the command.
    pub fn entrances(&self) -> Result<Vec<File>, NoGroup> {
        self.groups.iter().map(|group| Ok(group.entrance()?)).collect()
    }

    /// Directory in the hierarchy of the cpu controller.
    pub fn cpu_dir(&self) -> Option<&Path> {
        self.cpu.as_ref().map(Cgroup::dir)
    }

    /// Whether the CPUs are held by a cpuset.
    pub fn has_cpuset(&self) -> bool {
        self.cpuset.is_some()
    }

    /// Every group, in the order made.
    pub fn groups(&self) -> &[Cgroup] {
        &self.groups
    }

    /// Sets or changes the quota, also while the command runs. v1 refuses a group more than those above it have
    /// ("max(child_quota) <= parent_quota", `tg_cfs_schedulable_down` in kernel/sched/core.c): it gets what they have,
    /// and more when they have more ([`Self::follow_quota`]).
    pub fn set_quota(&self, quota: &CpuQuota) -> Result<(), NoGroup> {
        self.asked.set(Some(*quota));
        // Between the look and the write those above may have changed; the next look is a tenth of a second away.
        self.write_quota(&self.allowed(quota).unwrap_or(*quota))
    }

    /// What groups above allow of a quota; `None` on v2, where they need not be asked.
    fn allowed(&self, quota: &CpuQuota) -> Option<CpuQuota> {
        let cpu = self.cpu.as_ref().filter(|cpu| !cpu.is_v2())?;
        let parts = cpu.dir().ancestors().skip(1).map_while(|dir| Cgroup::new(dir, false).quota());
        Some(within(quota, parts.filter_map(|quota| quota.pct()).fold(f64::INFINITY, f64::min)))
    }

    /// Writes the quota asked for last again, where groups above allow another part of it than is in force.
    pub fn follow_quota(&self) {
        let (Some(asked), Some(cpu)) = (self.asked.get(), &self.cpu) else { return };
        let due = self.allowed(&CpuQuota { burst_usec: 0, ..asked });
        let now = cpu.quota().map(|now| CpuQuota { burst_usec: 0, ..now });
        if due.is_some_and(|due| now.is_some_and(|now| now != due)) {
            // Refused, it is tried again at the next tick.
            let _ = self.set_quota(&asked);
        }
    }

    fn write_quota(&self, quota: &CpuQuota) -> Result<(), NoGroup> {
        match &self.cpu {
            Some(cpu) => Ok(cpu.set_quota(quota)?),
            None => Err(NoGroup("the command has no group of the cpu controller".into())),
        }
    }

    /// Reads what was counted so far; what a file does not say is unknown.
    pub fn counted(&self) -> Counted {
        let mut counted = Counted::default();
        if let Some(cpu) = &self.cpu {
            let text = cpu.text("cpu.stat").unwrap_or_default();
            if let Ok(stat) = cgroupfs::parse_cpu_stat(&text) {
                counted.nr_periods = stat.nr_periods;
                counted.nr_throttled = stat.nr_throttled;
                counted.throttled_ns = stat.throttled_ns;
            }
        }
        // Every v2 group counts its CPU time, whichever controller it has.
        if let Some(group) = self.cpu.as_ref().or(self.cpuset.as_ref()).filter(|group| group.is_v2()) {
            let text = group.text("cpu.stat").unwrap_or_default();
            counted.cpu_ns = keyed_usec(&text, "usage_usec");
            counted.user_ns = keyed_usec(&text, "user_usec");
            counted.sys_ns = keyed_usec(&text, "system_usec");
        }
        if let Some(group) = &self.cpuacct {
            counted.cpu_ns = counted.cpu_ns.or_else(|| group.number("cpuacct.usage"));
            counted.user_ns = counted.user_ns.or_else(|| group.number("cpuacct.usage_user"));
            counted.sys_ns = counted.sys_ns.or_else(|| group.number("cpuacct.usage_sys"));
            counted.per_cpu_ns = group
                .text("cpuacct.usage_percpu")
                .and_then(|text| text.split_ascii_whitespace().map(|word| word.parse().ok()).collect());
        }
        counted
    }

    /// Processes in it now, also those in groups that somebody made below it.
    pub fn processes(&self) -> Vec<u32> {
        self.groups.first().map(|group| cgroupfs::processes_below(group.dir())).unwrap_or_default()
    }

    /// Kills everything in it, children of children too, until no task is left or a second has passed.
    pub fn kill(&self) {
        if let Some(group) = self.groups.first() {
            group.kill_members();
        }
    }

    /// Removes it, waiting a moment for the last processes to be gone; `false` when somebody still runs there.
    pub fn remove(&mut self) -> bool {
        let began = Instant::now();
        while !self.claimed.remove() {
            let most = if self.processes().is_empty() { REMOVE_WITHIN } else { END_WITHIN };
            if began.elapsed() >= most {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.groups.clear();
        true
    }
}

impl Drop for ExecGroup {
    fn drop(&mut self) {
        if !self.groups.is_empty() || self.claimed.is_pending() {
            self.remove();
        }
    }
}

fn missing(controller: &str, h: &Hierarchies) -> NoGroup {
    NoGroup(format!(
        "no cgroup file system with the {controller} controller is mounted (cgroup layout: {}); mount cgroup2 on \
         /sys/fs/cgroup, or run outside this container",
        h.layout.name()
    ))
}

/// On v2 the caller's own group is left: a limit set there does not hold for the command.
fn escaped(home: &OwnCgroup, unified: &Hierarchy, parent: &Path) -> Option<String> {
    let own = PathBuf::from(unified.dir(unified.below(home.memberships.v2()?)));
    let text = fs::read_to_string(own.join("cpu.max")).ok()?;
    let limit = cgroupfs::parse_cpu_max(&text).ok()?.pct()?;
    (!parent.starts_with(&own)).then(|| {
        format!(
            "the limit of {limit:.0} % of {} does not hold for the command, which runs next to it",
            own.display()
        )
    })
}

/// CPUs (and memory nodes, which v1 wants first) of a new cpuset.
fn set_cpus(group: &Cgroup, cpus: &CpuSet) -> Result<(), NoGroup> {
    let (dir, v2) = (group.dir(), group.is_v2());
    let parent = dir.parent().unwrap_or(dir);
    let read = |name: &str| fs::read_to_string(parent.join(name)).ok().map(|text| text.trim().to_owned());
    let names = if v2 { ["cpuset.cpus.effective"] } else { ["cpuset.effective_cpus"] };
    let available: Option<CpuSet> = names.iter().find_map(|name| read(name)?.parse().ok());
    check_available(cpus, available.as_ref())?;
    if !v2 {
        let nodes = read("cpuset.effective_mems").or_else(|| read("cpuset.mems")).unwrap_or_default();
        group.write("cpuset.mems", &nodes)?;
    }
    Ok(group.write("cpuset.cpus", &cpus.to_string())?)
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
