//! Files of cgroups, v1 and v2, found through the mount table.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use evenkeel_base::{CpuQuota, CpuSet, GroupRef, Knob, Setting};
use evenkeel_linux::group::{Cgroup, GroupError};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{ReadError, Root};

use super::of_file;
use crate::kernel::KernelError;

/// Id of a hierarchy's root (fs/kernfs/dir.c, kernfs_create_root). In a cgroup namespace of its own, a mount begins with another one.
const ROOT_ID: u64 = 1;

/// Where the cgroup hierarchies are mounted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Groups {
    /// The v1 hierarchy of the cpu controller.
    cpu: Option<Hierarchy>,
    /// The v1 hierarchy of the cpuset controller.
    cpuset: Option<Hierarchy>,
    unified: Option<Hierarchy>,
}

impl Groups {
    /// Looks at this process's mount table.
    pub fn find() -> Result<Self, KernelError> {
        match Hierarchies::read(&Root::host()) {
            Ok(found) => Ok(Self::of(found)),
            Err(ReadError::Io { path, error }) => Err(of_file(&error, &path.display().to_string())),
            Err(ReadError::Parse(error)) => {
                Err(KernelError::Io { path: error.path.display().to_string(), error: error.to_string() })
            }
        }
    }

    fn of(found: Hierarchies) -> Self {
        let v1 = |hierarchy: Option<Hierarchy>| hierarchy.filter(|hierarchy| !hierarchy.v2);
        Self { cpu: v1(found.cpu), cpuset: v1(found.cpuset), unified: found.unified }
    }

    fn dir(&self, group: &GroupRef, knob: Knob) -> Result<PathBuf, KernelError> {
        self.dir_of(group.v2, &group.path, knob)
    }

    fn dir_of(&self, v2: bool, path: &str, knob: Knob) -> Result<PathBuf, KernelError> {
        let (hierarchy, name) = match (v2, knob) {
            (true, _) => (&self.unified, "cgroup2"),
            (false, Knob::Cpuset) => (&self.cpuset, "the cpuset controller"),
            (false, _) => (&self.cpu, "the cpu controller"),
        };
        match hierarchy {
            Some(hierarchy) => Ok(hierarchy.dir(path).into()),
            None => Err(KernelError::Unsupported(format!("{name} is not mounted"))),
        }
    }

    pub fn id(&self, group: &GroupRef, knob: Knob) -> Result<u64, KernelError> {
        let dir = self.dir(group, knob)?;
        match std::fs::metadata(&dir) {
            Ok(metadata) => Ok(metadata.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(KernelError::Gone),
            Err(error) => Err(of_file(&error, &dir.display().to_string())),
        }
    }

    /// Ids of all cgroups of the hierarchy; `None` where its root is not mounted here, or a directory cannot be read.
    pub fn every_id(&self, group: &GroupRef, knob: Knob) -> Option<HashSet<u64>> {
        let root = self.dir_of(group.v2, "/", knob).ok()?;
        if std::fs::metadata(&root).ok()?.ino() != ROOT_ID {
            return None;
        }
        let (mut ids, mut open) = (HashSet::new(), vec![root]);
        while let Some(dir) = open.pop() {
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => return None,
            };
            for entry in entries {
                let entry = entry.ok()?;
                if entry.file_type().ok()?.is_dir() {
                    ids.insert(entry.ino());
                    open.push(entry.path());
                }
            }
        }
        Some(ids)
    }

    /// Effective CPUs of a cpuset, by its path as `/proc/PID/cpuset` has it; `None` when that cannot be told.
    pub fn effective_cpus(&self, path: &str) -> Option<CpuSet> {
        let (hierarchy, file) = match (&self.cpuset, &self.unified) {
            (Some(v1), _) => (v1, "cpuset.effective_cpus"),
            (None, Some(v2)) => (v2, "cpuset.cpus.effective"),
            (None, None) => return None,
        };
        let dir = path.starts_with('/').then(|| hierarchy.dir(path))?;
        std::fs::read_to_string(Path::new(&dir).join(file)).ok()?.parse().ok()
    }

    /// Whether the cpuset controller is v2's.
    pub fn has_v2_cpusets(&self) -> bool {
        self.cpuset.is_none()
    }

    pub fn read(&self, group: &GroupRef, knob: Knob) -> Result<Setting, KernelError> {
        let dir = self.dir(group, knob)?;
        Ok(match (knob, group.v2) {
            (Knob::Weight, true) => Setting::Weight(number(&dir, "cpu.weight")?),
            (Knob::Weight, false) => Setting::Weight(number(&dir, "cpu.shares")?),
            (Knob::GroupIdle, _) => Setting::GroupIdle(number::<u8>(&dir, "cpu.idle")? != 0),
            (Knob::Quota, v2) => Setting::Quota(quota(&Cgroup::new(dir, v2))?),
            (Knob::Cpuset, _) => {
                let text = text(&dir, "cpuset.cpus")?;
                Setting::Cpuset(
                    text.parse().map_err(|error| malformed(&dir, "cpuset.cpus", &format!("{error}")))?,
                )
            }
            (Knob::RtRuntime, false) => Setting::RtRuntime(number(&dir, "cpu.rt_runtime_us")?),
            (Knob::RtRuntime, true) => {
                return Err(KernelError::Unsupported("cgroup v2 has no real-time budget".to_owned()));
            }
            (Knob::Affinity | Knob::Sched | Knob::Net | Knob::Scheduler, _) => {
                return Err(KernelError::Unsupported(format!("{} is no property of cgroups", knob.name())));
            }
        })
    }

    pub fn write(&self, group: &GroupRef, to: &Setting) -> Result<(), KernelError> {
        let dir = Cgroup::new(self.dir(group, to.knob())?, group.v2);
        let written = match (to, group.v2) {
            (Setting::Weight(raw), _) => dir.set_raw_weight(*raw),
            (Setting::GroupIdle(idle), _) => dir.write("cpu.idle", if *idle { "1" } else { "0" }),
            (Setting::Quota(to), _) => dir.set_quota(to),
            (Setting::Cpuset(cpus), _) => dir.write("cpuset.cpus", &cpus.to_string()),
            (Setting::RtRuntime(usec), false) => dir.write("cpu.rt_runtime_us", &usec.to_string()),
            (Setting::RtRuntime(_), true) => {
                return Err(KernelError::Unsupported("cgroup v2 has no real-time budget".to_owned()));
            }
            (Setting::Affinity(_) | Setting::Sched(_) | Setting::Net(_) | Setting::Scheduler(_), _) => {
                return Err(KernelError::Unsupported(format!(
                    "{} is no property of cgroups",
                    to.knob().name()
                )));
            }
        };
        written.map_err(refused)
    }
}

fn missing(dir: &Path, file: &str) -> KernelError {
    if dir.exists() {
        KernelError::Unsupported(format!("{} has no {file}", dir.display()))
    } else {
        KernelError::Gone
    }
}

fn malformed(dir: &Path, file: &str, error: &str) -> KernelError {
    KernelError::Io { path: dir.join(file).display().to_string(), error: error.to_owned() }
}

fn text(dir: &Path, file: &str) -> Result<String, KernelError> {
    let path = dir.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(dir, file)),
        Err(error) => Err(of_file(&error, &path.display().to_string())),
    }
}

fn number<T: std::str::FromStr>(dir: &Path, file: &str) -> Result<T, KernelError> {
    let text = text(dir, file)?;
    text.parse().map_err(|_| malformed(dir, file, &format!("expected a number, found {text:?}")))
}

fn refused(failed: GroupError) -> KernelError {
    let GroupError { path, value, error } = failed;
    if error.kind() == io::ErrorKind::NotFound {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return missing(path.parent().unwrap_or(&path), &file);
    }
    match of_file(&error, &path.display().to_string()) {
        KernelError::Invalid(why) => {
            KernelError::Invalid(format!("{why} (wrote {:?})", value.unwrap_or_default()))
        }
        other => other,
    }
}

fn quota(group: &Cgroup) -> Result<CpuQuota, KernelError> {
    group
        .quota()
        .ok_or_else(|| missing(group.dir(), if group.is_v2() { "cpu.max" } else { "cpu.cfs_quota_us" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_linux::mountinfo;

    #[test]
    fn a_group_is_found_in_the_hierarchy_of_its_version() {
        let table = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/my\\040cpuset rw - cgroup cgroup rw,cpuset
41 31 0:38 /box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";
        let groups = Groups::of(Hierarchies::find(&mountinfo::parse(table).unwrap(), Some("")));
        let dir = |path: &str, v2, knob| groups.dir(&GroupRef { path: path.into(), v2 }, knob).unwrap();
        assert_eq!(dir("/a", false, Knob::Weight), Path::new("/sys/fs/cgroup/cpu,cpuacct/a"));
        assert_eq!(dir("/a", false, Knob::Cpuset), Path::new("/sys/fs/cgroup/my cpuset/a"));
        assert_eq!(dir("/box/a", true, Knob::Weight), Path::new("/sys/fs/cgroup/unified/a"));

        let table = "1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let groups = Groups::of(Hierarchies::find(&mountinfo::parse(table).unwrap(), Some("cpu cpuset")));
        assert_eq!((groups.cpu.is_none(), groups.cpuset.is_none()), (true, true));
        assert!(groups.dir(&GroupRef { path: "/a".into(), v2: true }, Knob::Cpuset).is_ok());
        let v1 = GroupRef { path: "/a".into(), v2: false };
        assert!(matches!(groups.dir(&v1, Knob::Weight), Err(KernelError::Unsupported(_))));
    }

    /// A directory that looks like a v2 cgroup.
    fn v2(files: &[(&str, &str)]) -> (tempfile::TempDir, Groups, GroupRef) {
        let dir = tempfile::tempdir().unwrap();
        evenkeel_linux::testing::lay(&dir.path().join("a"), files);
        let mount_point = dir.path().to_str().unwrap().to_owned();
        let unified = Hierarchy { mount_point, root: "/".into(), v2: true };
        let groups = Groups { unified: Some(unified), ..Groups::default() };
        (dir, groups, GroupRef { path: "/a".into(), v2: true })
    }

    #[test]
    fn reads_v2_files() {
        let (_dir, groups, group) = v2(&[
            ("cpu.weight", "100\n"),
            ("cpu.max", "max 100000\n"),
            ("cpu.max.burst", "7\n"),
            ("cpuset.cpus", "\n"),
            ("cpu.idle", "x\n"),
        ]);
        assert_eq!(groups.read(&group, Knob::Weight), Ok(Setting::Weight(100)));
        let quota = CpuQuota { burst_usec: 7, ..CpuQuota::UNLIMITED };
        assert_eq!(groups.read(&group, Knob::Quota), Ok(Setting::Quota(quota)));
        assert_eq!(groups.read(&group, Knob::Cpuset), Ok(Setting::Cpuset(CpuSet::new())));
        assert!(matches!(groups.read(&group, Knob::GroupIdle), Err(KernelError::Io { .. })));
        assert!(matches!(groups.read(&group, Knob::RtRuntime), Err(KernelError::Unsupported(_))));
        let gone = GroupRef { path: "/b".into(), v2: true };
        assert_eq!(groups.read(&gone, Knob::Weight), Err(KernelError::Gone));
        assert_eq!(groups.id(&gone, Knob::Weight), Err(KernelError::Gone));
    }

    #[test]
    fn a_missing_file_is_said_and_not_made() {
        let (dir, groups, group) = v2(&[("cpu.max", "5000 100000\n")]);
        assert!(matches!(groups.write(&group, &Setting::Weight(5)), Err(KernelError::Unsupported(_))));
        assert!(!dir.path().join("a/cpu.weight").exists());
        groups
            .write(&group, &Setting::Quota(CpuQuota { period_usec: 50_000, ..CpuQuota::UNLIMITED }))
            .unwrap();
        assert!(std::fs::read_to_string(dir.path().join("a/cpu.max")).unwrap().starts_with("max 50000\n"));
    }
}
