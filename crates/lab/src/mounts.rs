//! Where the cgroups of tenants and experiments are made: at the top of the hierarchies that are mounted here.
//!
//! v1: a directory in the `cpu` hierarchy and in the others that are needed and mounted apart. v2: a directory below the
//! root of what is mounted here (a cgroup with members of its own cannot enable controllers for its children, except the
//! real root).

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_linux::group::{Cgroup, GroupError};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{Root, cgroup};

use crate::launch::PREFIX;

/// There is no cgroup hierarchy to make groups in; the message says what to do.
#[derive(Debug, thiserror::Error)]
#[error("no cgroups for tenants: {0}")]
pub struct NoCgroups(pub String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupMounts {
    cpu: Hierarchy,
    cpu_mount: PathBuf,
    /// Where cpuacct is, if apart (v1).
    cpuacct: Option<PathBuf>,
    /// Where cpuset is; on v2 the same.
    cpuset: Option<PathBuf>,
    /// Where memory is; on v2 the same.
    memory: Option<PathBuf>,
}

impl CgroupMounts {
    /// Finds them in this process's mount namespace.
    pub fn find() -> Result<Self, NoCgroups> {
        let found = Hierarchies::read(&Root::host()).map_err(|error| NoCgroups(error.to_string()))?;
        let Some(cpu) = found.cpu else {
            return Err(NoCgroups(
                "no cgroup file system with the cpu controller is mounted; mount cgroup2 on /sys/fs/cgroup, or run \
                 outside this container"
                    .into(),
            ));
        };
        let cpu_mount = PathBuf::from(&cpu.mount_point);
        let mount = |found: Option<Hierarchy>| {
            let mount =
                found.filter(|found| found.v2 == cpu.v2).map(|found| PathBuf::from(found.mount_point));
            mount.filter(|mount| cpu.v2 || *mount != cpu_mount)
        };
        let (cpuacct, cpuset, memory) = (mount(found.cpuacct), mount(found.cpuset), mount(found.memory));
        Ok(Self { cpuacct, cpuset, memory, cpu, cpu_mount })
    }

    /// Mount point of the hierarchy with the cpu controller.
    pub fn cpu_mount(&self) -> &Path {
        &self.cpu_mount
    }

    pub fn is_v2(&self) -> bool {
        self.cpu.v2
    }

    /// Where CPU time is limited and counted: the cpu hierarchy, and cpuacct where it is mounted apart.
    pub(crate) fn counting(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.cpu_mount.as_path()).chain(self.cpuacct.as_deref())
    }

    /// Where cpusets are.
    pub(crate) fn cpuset(&self) -> Option<&Path> {
        self.cpuset.as_deref()
    }

    /// Where memory is limited.
    pub(crate) fn memory(&self) -> Option<&Path> {
        self.memory.as_deref()
    }

    /// Path of a thread's group in the hierarchy with the cpu controller.
    pub fn path_of(&self, pid: u32, tid: u32) -> Option<String> {
        let member = Root::host().parse(format!("proc/{pid}/task/{tid}/cgroup"), cgroup::parse).ok()?;
        if self.is_v2() { member.v2() } else { member.v1("cpu") }.map(str::to_owned)
    }

    /// Directories of the groups that a process is in, one in each hierarchy; the one with the cpu controller first.
    pub(crate) fn dirs_of(&self, pid: u32) -> Vec<PathBuf> {
        let Ok(member) = Root::host().parse(format!("proc/{pid}/cgroup"), cgroup::parse) else {
            return Vec::new();
        };
        let below = |mount: &Path, path: &str| mount.join(path.trim_start_matches('/'));
        if self.is_v2() {
            return member.v2().map(|path| below(&self.cpu_mount, path)).into_iter().collect();
        }
        let of = |mount: Option<&Path>, name: &str| Some(below(mount?, member.v1(name)?));
        [
            of(Some(&self.cpu_mount), "cpu"),
            of(self.cpuacct.as_deref(), "cpuacct"),
            of(self.cpuset(), "cpuset"),
            of(self.memory(), "memory"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Enables controllers for the groups at the top, where that is v2. Returns those that were not enabled before.
    pub(crate) fn enable(&self, wanted: &[&'static str]) -> Result<Vec<&'static str>, NoCgroups> {
        if !self.is_v2() {
            return Ok(Vec::new());
        }
        self.top().enable(wanted).map_err(|failed| cannot_enable(&failed))
    }

    /// Takes back what [`Self::enable`] enabled.
    pub(crate) fn disable(&self, controllers: &[&str]) {
        self.top().disable(controllers);
    }

    fn top(&self) -> Cgroup {
        Cgroup::new(&self.cpu_mount, self.is_v2())
    }

    /// Groups at the top, in every hierarchy, that have a name of ours which `stale` accepts.
    pub(crate) fn stale(&self, stale: impl Fn(&str) -> bool) -> Vec<Cgroup> {
        let mut mounts: Vec<&Path> = self.counting().chain(self.cpuset()).chain(self.memory()).collect();
        mounts.sort();
        mounts.dedup();
        let entries = mounts.iter().flat_map(|mount| fs::read_dir(mount).into_iter().flatten().flatten());
        let ours = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(|n| n.starts_with(PREFIX) && stale(n)));
        ours.map(|entry| Cgroup::new(entry.path(), self.is_v2())).collect()
    }
}

/// As an error of the experiment: which controllers, and where.
pub(crate) fn cannot_enable(failed: &GroupError) -> NoCgroups {
    let controllers = failed.value.as_deref().unwrap_or("cpu").replace('+', "");
    NoCgroups(format!(
        "{}: cannot enable controllers ({controllers}): {}; inside a container, run on the host instead",
        failed.path.display(),
        failed.error
    ))
}
