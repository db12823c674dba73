//! Cgroups of an experiment: one for all its tenants, and in it one for each.
//!
//! ```text
//! evenkeel-lab-PID-xN           all tenants; weighs as much as they would side by side with everything else
//! └─ t0, t1, ..                 one tenant: weight, quota, CPUs, memory
//!    └─ vcpu                    only under a steal emulator: its quota
//! ```
//!
//! In v1 the same tree stands in every hierarchy that is needed (cpu, cpuacct, cpuset, memory). Nothing existing is
//! changed, except that a v2 root is told to hand out controllers to its children, which is taken back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, CpuSet, Limit};
use evenkeel_experiment::record::Limits;
use evenkeel_linux::mountinfo::{self, Hierarchies};
use evenkeel_linux::reserve::Reserve;
use evenkeel_linux::{Root, cgroup, cgroupfs};
use rustix::process::{Pid, Signal, kill_process};

use super::RunError;
use crate::steal::Vcpu;
use crate::tenant::PREFIX;
use evenkeel_exec::{quota_of_v1, within};

/// How long a group may take to become removable after its last process was reaped.
const REMOVE_WITHIN: Duration = Duration::from_secs(3);

/// What is asked of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wanted {
    /// v1 shares or v2 weight, whichever the host has.
    pub weight: Option<u64>,
    pub quota: Option<CpuQuota>,
    pub cpus: Option<CpuSet>,
    pub memory_bytes: Option<u64>,
}

/// Where the groups of tenants are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    pub v2: bool,
    cpu: PathBuf,
    cpuacct: Option<PathBuf>,
    cpuset: Option<PathBuf>,
    memory: Option<PathBuf>,
}

impl Places {
    /// Finds the hierarchies.
    pub fn find() -> Result<Self, RunError> {
        let root = Root::host();
        let unreadable = |e: evenkeel_linux::ReadError| RunError::NoCgroups(e.to_string());
        let found = Hierarchies::read(&root).map_err(unreadable)?;
        let mounts = root.parse("proc/self/mountinfo", mountinfo::parse).map_err(unreadable)?;
        let Some(cpu) = found.cpu else {
            return Err(RunError::NoCgroups(
                "no cgroup file system with the cpu controller is mounted; mount cgroup2 on /sys/fs/cgroup, or run \
                 outside this container"
                    .into(),
            ));
        };
        let dir = PathBuf::from(&cpu.mount_point);
        if cpu.v2 {
            let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
            let has =
                |name: &str| controllers.split_ascii_whitespace().any(|c| c == name).then(|| dir.clone());
            return Ok(Self {
                v2: true,
                cpuacct: None,
                cpuset: has("cpuset"),
                memory: has("memory"),
                cpu: dir,
            });
        }
        let v1 = |name: &str| {
            let mount = mounts
                .iter()
                .find(|m| m.fs_type == "cgroup" && m.super_options.iter().any(|option| option == name))?;
            Some(PathBuf::from(&mount.mount_point)).filter(|path| *path != dir)
        };
        Ok(Self { v2: false, cpuacct: v1("cpuacct"), cpuset: v1("cpuset"), memory: v1("memory"), cpu: dir })
    }

    fn all(&self) -> Vec<&PathBuf> {
        let mut all: Vec<&PathBuf> =
            [Some(&self.cpu), self.cpuacct.as_ref(), self.cpuset.as_ref(), self.memory.as_ref()]
                .into_iter()
                .flatten()
                .collect();
        all.dedup();
        all
    }

    /// Ends what experiments of dead starters left running, and removes their groups; how many.
    pub fn sweep(&self, stale: impl Fn(&str) -> bool) -> usize {
        let mut removed = 0;
        for mount in self.all() {
            for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if name.to_str().is_some_and(|n| n.starts_with(PREFIX) && stale(n)) {
                    removed += usize::from(clear(&entry.path()));
                }
            }
        }
        removed
    }
}

/// Removes the empty groups of an experiment from every hierarchy, also from those that are not used here but by a
/// container runtime. What is not empty stays.
pub(crate) fn remove_empty(name: &str) {
    let mounts = Root::host().parse("proc/self/mountinfo", mountinfo::parse).unwrap_or_default();
    for mount in mounts.iter().filter(|mount| mount.fs_type.starts_with("cgroup")) {
        // Not there, or somebody is in it: both are fine.
        let _ = fs::remove_dir(Path::new(&mount.mount_point).join(name));
    }
}

/// Kills the members of a group and of those below it, and removes them; whether it is gone.
pub(crate) fn clear(dir: &Path) -> bool {
    let until = Instant::now() + REMOVE_WITHIN;
    loop {
        kill_members(dir);
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                clear(&entry.path());
            }
        }
        match fs::remove_dir(dir) {
            Ok(()) => return true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return true,
            Err(e) if Instant::now() >= until => {
                tracing::warn!("cannot remove {}: {e}", dir.display());
                return false;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn kill_members(dir: &Path) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in text.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw) {
        // Read this instant from a group of our own, in which nobody else has business.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The group of all tenants of an experiment; removed on drop, with all below it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    places: Places,
    name: String,
    dirs: Vec<PathBuf>,
    /// Controllers a v2 root was told to hand out, to be taken back.
    handed_out: Vec<&'static str>,
    /// What clearing away opens: a directory and a file on each of three levels.
    reserve: Reserve,
}

impl Sandbox {
    /// Makes it, with the controllers that are needed.
    pub fn make(places: &Places, name: &str, cpuset: bool, memory: bool) -> Result<Self, RunError> {
        let mut sandbox = Self {
            places: places.clone(),
            name: name.to_owned(),
            dirs: Vec::new(),
            handed_out: Vec::new(),
            reserve: Reserve::take(6),
        };
        let missing = |controller: &str| {
            RunError::NoCgroups(format!(
                "this host's cgroups have no {controller} controller; add it (kernel, or cgroup.controllers of the \
                 container this runs in), or leave out what needs it"
            ))
        };
        let mut parents = vec![places.cpu.clone()];
        parents.extend(places.cpuacct.clone());
        if cpuset {
            parents.push(places.cpuset.clone().ok_or_else(|| missing("cpuset"))?);
        }
        if memory {
            parents.push(places.memory.clone().ok_or_else(|| missing("memory"))?);
        }
        if places.v2 {
            let mut wanted = vec!["cpu"];
            wanted.extend(cpuset.then_some("cpuset"));
            wanted.extend(memory.then_some("memory"));
            sandbox.handed_out = hand_out(&places.cpu, &wanted)?;
            parents.truncate(1);
        }
        for parent in parents {
            let dir = parent.join(name);
            fs::create_dir(&dir)
                .map_err(|e| RunError::system(format!("cannot make the cgroup {}", dir.display()), e))?;
            sandbox.dirs.push(dir);
        }
        if places.v2 {
            let mut wanted = vec!["cpu"];
            wanted.extend(cpuset.then_some("cpuset"));
            wanted.extend(memory.then_some("memory"));
            hand_out(&sandbox.dirs[0], &wanted)?;
        } else if cpuset {
            inherit_cpuset(&sandbox.cpuset_dir())?;
        }
        Ok(sandbox)
    }

    fn cpuset_dir(&self) -> PathBuf {
        self.places.cpuset.as_ref().unwrap_or(&self.places.cpu).join(&self.name)
    }

    /// Confines all tenants to these CPUs.
    pub fn set_cpus(&self, cpus: &CpuSet) -> Result<(), RunError> {
        put(&self.cpuset_dir(), "cpuset.cpus", &cpus.to_string())
    }

    /// Weighs as much as the tenants would without it: against the rest of the host nothing changes.
    pub fn weigh(&self, tenants: impl Iterator<Item = Option<u64>>) -> Result<(), RunError> {
        let (file, default, most) =
            if self.places.v2 { ("cpu.weight", 100, 10_000) } else { ("cpu.shares", 1024, 262_144) };
        let sum: u64 = tenants.map(|weight| weight.unwrap_or(default)).sum();
        put(&self.dirs[0], file, &sum.clamp(default, most).to_string())
    }

    /// Makes the group of a tenant.
    pub fn tenant(&self, number: usize, wanted: &Wanted, vcpu: bool) -> Result<TenantGroup, RunError> {
        let mut group = TenantGroup { v2: self.places.v2, dirs: Vec::new(), vcpu: None };
        for parent in &self.dirs {
            let dir = parent.join(format!("t{number}"));
            fs::create_dir(&dir)
                .map_err(|e| RunError::system(format!("cannot make the cgroup {}", dir.display()), e))?;
            group.dirs.push(dir);
        }
        let (weight, quota) = if self.places.v2 { ("cpu.weight", "cpu.max") } else { ("cpu.shares", "") };
        if let Some(value) = wanted.weight {
            put(&group.dirs[0], weight, &value.to_string())?;
        }
        if let Some(value) = &wanted.quota {
            set_quota(&group.dirs[0], !quota.is_empty(), value)?;
        }
        let in_cpuset = self.dirs.iter().position(|dir| *dir == self.cpuset_dir());
        if let Some(at) = in_cpuset
            && !self.places.v2
        {
            inherit_cpuset(&group.dirs[at])?;
        }
        if let Some(cpus) = &wanted.cpus {
            let at = in_cpuset.unwrap_or(0);
            put(&group.dirs[at], "cpuset.cpus", &cpus.to_string())?;
        }
        if let Some(bytes) = wanted.memory_bytes {
            let (at, file) = match &self.places.memory {
                Some(memory) if !self.places.v2 => {
                    let dir = memory.join(&self.name);
                    (self.dirs.iter().position(|d| *d == dir).unwrap_or(0), "memory.limit_in_bytes")
                }
                _ => (0, "memory.max"),
            };
            put(&group.dirs[at], file, &bytes.to_string())?;
        }
        if vcpu {
            if self.places.v2 {
                hand_out(&group.dirs[0], &["cpu"])?;
            }
            let made = Vcpu::inside(&group.dirs[0], self.places.v2);
            let failed =
                |e| RunError::system(format!("cannot make a cgroup in {}", group.dirs[0].display()), e);
            group.vcpu = Some(made.map_err(failed)?);
        }
        Ok(group)
    }

    /// Kills whatever still runs in it.
    pub fn kill(&mut self) {
        self.reserve.release();
        for dir in &self.dirs {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                kill_members(&entry.path());
                kill_members(&entry.path().join("vcpu"));
            }
            kill_members(dir);
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.reserve.release();
        for dir in &self.dirs {
            clear(dir);
        }
        for controller in &self.handed_out {
            // Refused while another group of the root uses the controller: then it is needed.
            let _ = fs::write(self.places.cpu.join("cgroup.subtree_control"), format!("-{controller}"));
        }
    }
}

/// The group of one tenant. Removed with its sandbox.
#[derive(Debug)]
pub(crate) struct TenantGroup {
    v2: bool,
    dirs: Vec<PathBuf>,
    vcpu: Option<Vcpu>,
}

impl TenantGroup {
    /// The groups somebody else has put a process into, to read what is in force there.
    pub fn of_process(places: &Places, pid: u32) -> Option<Self> {
        let member = Root::host().parse(format!("proc/{pid}/cgroup"), cgroup::parse).ok()?;
        let below = |mount: &Path, path: &str| mount.join(path.trim_start_matches('/'));
        let dirs: Vec<PathBuf> = if places.v2 {
            vec![below(&places.cpu, member.v2()?)]
        } else {
            let of = |mount: Option<&PathBuf>, name: &str| Some(below(mount?, member.v1(name)?));
            [
                of(Some(&places.cpu), "cpu"),
                of(places.cpuacct.as_ref(), "cpuacct"),
                of(places.cpuset.as_ref(), "cpuset"),
                of(places.memory.as_ref(), "memory"),
            ]
            .into_iter()
            .flatten()
            .collect()
        };
        (!dirs.is_empty()).then_some(Self { v2: places.v2, dirs, vcpu: None })
    }

    /// `cgroup.procs` in every hierarchy, open for writing: the way in.
    pub fn entrances(&self) -> Result<Vec<File>, RunError> {
        let open = |dir: &Path| {
            let path = dir.join("cgroup.procs");
            let file = OpenOptions::new().write(true).open(&path);
            file.map_err(|e| RunError::system(path.display().to_string(), e))
        };
        let vcpu = self.vcpu.as_ref().map(Vcpu::dir);
        self.dirs.iter().enumerate().map(|(at, dir)| open(vcpu.filter(|_| at == 0).unwrap_or(dir))).collect()
    }

    /// Its `cpu.stat`.
    pub fn cpu_stat(&self) -> PathBuf {
        self.dirs[0].join("cpu.stat")
    }

    /// CPU time used so far, nanoseconds.
    pub fn usage_ns(&self) -> Option<u64> {
        if self.v2 {
            let text = fs::read_to_string(self.dirs[0].join("cpu.stat")).ok()?;
            return cgroupfs::parse_cpu_stat(&text).ok()?.usage_ns;
        }
        let dirs = self.dirs.iter();
        let text =
            dirs.map(|dir| dir.join("cpuacct.usage")).find_map(|path| fs::read_to_string(path).ok())?;
        text.trim().parse().ok()
    }

    /// The group inside it, where a steal emulator takes CPU.
    pub fn vcpu(&self) -> Option<&Vcpu> {
        self.vcpu.as_ref()
    }

    /// Limits in force.
    pub fn limits(&self) -> Limits {
        let read = |name: &str| {
            self.dirs
                .iter()
                .find_map(|dir| fs::read_to_string(dir.join(name)).ok())
                .map(|t| t.trim().to_owned())
        };
        let number = |name: &str| read(name)?.parse::<u64>().ok();
        let quota = if self.v2 {
            read("cpu.max").and_then(|text| cgroupfs::parse_cpu_max(&text).ok())
        } else {
            let quota_usec = match read("cpu.cfs_quota_us").and_then(|t| t.parse::<i64>().ok()) {
                Some(usec) => u64::try_from(usec).map_or(Limit::Max, Limit::Value),
                None => Limit::Max,
            };
            number("cpu.cfs_period_us").map(|period_usec| CpuQuota { quota_usec, period_usec, burst_usec: 0 })
        };
        let quota = quota.filter(|q| q.pct().is_some());
        let burst = number(if self.v2 { "cpu.max.burst" } else { "cpu.cfs_burst_us" });
        Limits {
            weight: number("cpu.weight"),
            shares: number("cpu.shares"),
            quota_pct: quota.as_ref().and_then(CpuQuota::pct),
            period_usec: quota.as_ref().map(|q| q.period_usec),
            burst_usec: burst.filter(|_| quota.is_some()),
            cpus: read("cpuset.cpus.effective")
                .or_else(|| read("cpuset.effective_cpus"))
                .and_then(|text| text.parse().ok()),
            memory_bytes: number("memory.max")
                .or_else(|| number("memory.limit_in_bytes"))
                .filter(|b| *b < 1 << 62),
            ..Limits::default()
        }
    }
}

/// Tells a v2 group to hand controllers to its children; gives those it did not before.
fn hand_out(dir: &Path, wanted: &[&'static str]) -> Result<Vec<&'static str>, RunError> {
    let path = dir.join("cgroup.subtree_control");
    let now = fs::read_to_string(&path).map_err(|e| RunError::system(path.display().to_string(), e))?;
    let lacking: Vec<&'static str> =
        wanted.iter().copied().filter(|w| !now.split_ascii_whitespace().any(|c| c == *w)).collect();
    for controller in &lacking {
        fs::write(&path, format!("+{controller}")).map_err(|e| {
            RunError::NoCgroups(format!(
                "{}: cannot hand out the {controller} controller: {e}; inside a container, run on the host instead",
                path.display()
            ))
        })?;
    }
    Ok(lacking)
}

/// v1: a new cpuset is empty, and nobody can enter it before it has CPUs and memory nodes.
fn inherit_cpuset(dir: &Path) -> Result<(), RunError> {
    let parent = dir.parent().unwrap_or(dir);
    for (file, effective) in
        [("cpuset.mems", "cpuset.effective_mems"), ("cpuset.cpus", "cpuset.effective_cpus")]
    {
        let text =
            fs::read_to_string(parent.join(effective)).or_else(|_| fs::read_to_string(parent.join(file)));
        let text = text.map_err(|e| RunError::system(parent.join(file).display().to_string(), e))?;
        put(dir, file, text.trim())?;
    }
    Ok(())
}

/// v1 refuses a group less than those below it have. These are groups of `exec`, which takes back what it was allowed as
/// soon as it can ([`evenkeel_exec`]).
pub(crate) fn lower_below(dir: &Path, most_pct: f64) {
    for below in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if let Some(now) = quota_of_v1(&below) {
            let due = within(&now, most_pct);
            if due != now {
                lower_below(&below, most_pct);
                // Refused, the quota above is too, and comes again with the next tick.
                let _ = set_quota(&below, false, &due);
            }
        }
    }
}

/// The kernel checks each write by itself: a burst may not exceed the quota, and quota and period of v1 are two files.
pub(crate) fn set_quota(dir: &Path, v2: bool, quota: &CpuQuota) -> Result<(), RunError> {
    let burst = if v2 { "cpu.max.burst" } else { "cpu.cfs_burst_us" };
    if v2 {
        put(dir, "cpu.max", &format!("{} {}", quota.quota_usec, quota.period_usec))?;
    } else {
        let now = fs::read_to_string(dir.join("cpu.cfs_period_us")).unwrap_or_default();
        if now.trim() != quota.period_usec.to_string() {
            // Without a quota any period is fine.
            put(dir, "cpu.cfs_quota_us", "-1")?;
            put(dir, "cpu.cfs_period_us", &quota.period_usec.to_string())?;
        }
        let value = quota.quota_usec.value().map_or_else(|| "-1".to_owned(), |usec| usec.to_string());
        put(dir, "cpu.cfs_quota_us", &value)?;
    }
    if quota.burst_usec > 0 {
        put(dir, burst, &quota.burst_usec.to_string())?;
    }
    Ok(())
}

fn put(dir: &Path, file: &str, value: &str) -> Result<(), RunError> {
    let path = dir.join(file);
    let written = OpenOptions::new().write(true).open(&path).and_then(|mut f| f.write_all(value.as_bytes()));
    written.map_err(|e| RunError::system(format!("writing {value} to {}", path.display()), e))
}
