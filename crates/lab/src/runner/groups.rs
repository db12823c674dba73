//! Cgroups of an experiment: one for all its tenants, and in it one for each.
//!
//! ```text
//! evenkeel-lab-PID-N            all tenants; weighs as much as they would side by side with everything else
//! └─ t0, t1, ..                 one tenant: weight, quota, CPUs, memory
//!    └─ vcpu                    only under a steal emulator: its quota
//! ```
//!
//! In v1 the same tree stands in every hierarchy that is needed (cpu, cpuacct, cpuset, memory). Nothing existing is
//! changed, except that a v2 root enables controllers for its children, which is taken back.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use evenkeel_base::{CpuQuota, CpuSet};
use evenkeel_experiment::record::Limits;
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::reserve::Reserve;
use evenkeel_linux::{Root, mountinfo};

use super::RunError;
use crate::mounts::{CgroupMounts, NoCgroups, cannot_enable};
use crate::steal::vcpu_inside;

/// What is asked of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wanted {
    /// v1 shares or v2 weight, whichever the host has.
    pub weight: Option<u64>,
    pub quota: Option<CpuQuota>,
    pub cpus: Option<CpuSet>,
    pub memory_bytes: Option<u64>,
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

/// The group of all tenants of an experiment; removed on drop, with all below it.
#[derive(Debug)]
pub(crate) struct ExperimentCgroup {
    mounts: CgroupMounts,
    groups: ByController,
    /// Controllers that were enabled for it at the top, to be taken back.
    enabled: Vec<&'static str>,
    /// What clearing away opens: a directory and a file on each of three levels.
    reserve: Reserve,
}

/// One group in each hierarchy that is used; on v2 they are the same.
#[derive(Debug)]
struct ByController {
    cpu: Cgroup,
    cpuacct: Option<Cgroup>,
    cpuset: Option<Cgroup>,
    memory: Option<Cgroup>,
}

impl ByController {
    /// Every directory once; the one with the cpu controller first.
    fn all(&self) -> Vec<&Cgroup> {
        let mut all = vec![&self.cpu];
        for group in [&self.cpuacct, &self.cpuset, &self.memory].into_iter().flatten() {
            if !all.contains(&group) {
                all.push(group);
            }
        }
        all
    }
}

impl ExperimentCgroup {
    /// Makes it, with the controllers that are needed.
    pub fn make(mounts: &CgroupMounts, name: &str, cpuset: bool, memory: bool) -> Result<Self, RunError> {
        let there = |wanted: bool, mount: Option<&Path>, controller: &str| match (wanted, mount) {
            (false, _) => Ok(None),
            (true, Some(mount)) => Ok(Some(mount.to_owned())),
            (true, None) => Err(NoCgroups(format!(
                "this host's cgroups have no {controller} controller; add it (kernel, or cgroup.controllers of the \
                 container this runs in), or leave out what needs it"
            ))),
        };
        let cpuset = there(cpuset, mounts.cpuset(), "cpuset")?;
        let memory = there(memory, mounts.memory(), "memory")?;
        let mut wanted = vec!["cpu"];
        wanted.extend(cpuset.as_ref().map(|_| "cpuset"));
        wanted.extend(memory.as_ref().map(|_| "memory"));
        let v2 = mounts.is_v2();
        let enabled = mounts.enable(&wanted)?;
        let cpu = Cgroup::make(mounts.cpu_mount(), name, v2);
        let cpu = cpu.inspect_err(|_| mounts.disable(&enabled))?;
        let groups = ByController { cpu, cpuacct: None, cpuset: None, memory: None };
        // From here on dropping it removes what was made.
        let mut made = Self { mounts: mounts.clone(), groups, enabled, reserve: Reserve::take(6) };
        if v2 {
            made.groups.cpu.enable(&wanted).map_err(|failed| cannot_enable(&failed))?;
            made.groups.cpuset = cpuset.map(|_| made.groups.cpu.clone());
            made.groups.memory = memory.map(|_| made.groups.cpu.clone());
            return Ok(made);
        }
        for cpuacct in mounts.counting().skip(1) {
            made.groups.cpuacct = Some(Cgroup::make(cpuacct, name, v2)?);
        }
        if let Some(mount) = cpuset {
            made.groups.cpuset.insert(Cgroup::make(&mount, name, v2)?).inherit_cpuset()?;
        }
        if let Some(mount) = memory {
            made.groups.memory = Some(Cgroup::make(&mount, name, v2)?);
        }
        Ok(made)
    }

    /// Confines all tenants to these CPUs.
    pub fn set_cpus(&self, cpus: &CpuSet) -> Result<(), RunError> {
        Ok(self.groups.cpuset.as_ref().unwrap_or(&self.groups.cpu).write("cpuset.cpus", &cpus.to_string())?)
    }

    /// Weighs as much as the tenants would without it: against the rest of the host nothing changes.
    pub fn weigh(&self, tenants: impl Iterator<Item = Option<u64>>) -> Result<(), RunError> {
        let (default, most) = if self.mounts.is_v2() { (100, 10_000) } else { (1024, 262_144) };
        let sum: u64 = tenants.map(|weight| weight.unwrap_or(default)).sum();
        Ok(self.groups.cpu.set_raw_weight(sum.clamp(default, most))?)
    }

    /// Makes the group of a tenant.
    pub fn tenant(&self, number: usize, wanted: &Wanted, vcpu: bool) -> Result<TenantGroup, RunError> {
        let (name, v2) = (format!("t{number}"), self.mounts.is_v2());
        let all = self.groups.all();
        let groups =
            all.iter().map(|group| Cgroup::make(group.dir(), &name, v2)).collect::<Result<Vec<_>, _>>()?;
        // The tenant's group of a controller: below the experiment's.
        let of = |controller: &Option<Cgroup>| {
            let at = all.iter().position(|group| controller.as_ref() == Some(*group));
            groups.get(at.unwrap_or(0)).unwrap_or(&groups[0])
        };
        let cpu = &groups[0];
        if let Some(value) = wanted.weight {
            cpu.set_raw_weight(value)?;
        }
        if let Some(value) = &wanted.quota {
            cpu.set_quota(value)?;
        }
        if self.groups.cpuset.is_some() && !v2 {
            of(&self.groups.cpuset).inherit_cpuset()?;
        }
        if let Some(cpus) = &wanted.cpus {
            of(&self.groups.cpuset).write("cpuset.cpus", &cpus.to_string())?;
        }
        if let Some(bytes) = wanted.memory_bytes {
            let file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
            of(&self.groups.memory).write(file, &bytes.to_string())?;
        }
        let vcpu = match vcpu {
            true => {
                if v2 {
                    cpu.enable(&["cpu"]).map_err(|failed| cannot_enable(&failed))?;
                }
                Some(vcpu_inside(cpu)?)
            }
            false => None,
        };
        Ok(TenantGroup { groups, vcpu })
    }

    /// Kills whatever still runs in it.
    pub fn kill(&mut self) {
        self.reserve.release();
        self.groups.all().into_iter().for_each(Cgroup::kill_members);
    }
}

impl Drop for ExperimentCgroup {
    fn drop(&mut self) {
        self.reserve.release();
        for group in self.groups.all() {
            group.clear();
        }
        self.mounts.disable(&self.enabled);
    }
}

/// The group of one tenant. Removed with that of its experiment.
#[derive(Debug)]
pub(crate) struct TenantGroup {
    /// One in each hierarchy; the one with the cpu controller first.
    groups: Vec<Cgroup>,
    vcpu: Option<Cgroup>,
}

impl TenantGroup {
    /// The groups somebody else has put a process into, to read what is in force there.
    pub fn of_process(mounts: &CgroupMounts, pid: u32) -> Option<Self> {
        let dirs = mounts.dirs_of(pid).into_iter();
        let groups: Vec<_> = dirs.map(|dir| Cgroup::new(dir, mounts.is_v2())).collect();
        (!groups.is_empty()).then_some(Self { groups, vcpu: None })
    }

    /// `cgroup.procs` in every hierarchy, open for writing: the way in.
    pub fn entrances(&self) -> Result<Vec<File>, RunError> {
        let inner = self.vcpu.iter().chain(self.groups.iter().skip(usize::from(self.vcpu.is_some())));
        inner.map(|group| Ok(group.entrance()?)).collect()
    }

    pub fn cpu_stat(&self) -> PathBuf {
        self.groups[0].dir().join("cpu.stat")
    }

    /// CPU time used so far, nanoseconds.
    pub fn usage_ns(&self) -> Option<u64> {
        self.groups.iter().find_map(Cgroup::usage_ns)
    }

    /// The group inside it, where a steal emulator takes CPU.
    pub fn vcpu(&self) -> Option<&Cgroup> {
        self.vcpu.as_ref()
    }

    pub fn limits(&self) -> Limits {
        let read = |name: &str| self.groups.iter().find_map(|group| group.text(name));
        let number = |name: &str| read(name)?.parse::<u64>().ok();
        let quota = self.groups[0].quota();
        let quota = quota.filter(|q| q.pct().is_some());
        Limits {
            weight: number("cpu.weight"),
            shares: number("cpu.shares"),
            quota_pct: quota.as_ref().and_then(CpuQuota::pct),
            period_usec: quota.as_ref().map(|q| q.period_usec),
            burst_usec: quota.as_ref().map(|q| q.burst_usec),
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
