//! Cgroups of our own, directly below the mount of the hierarchy that has the cpu controller.
//!
//! v1: a directory in the `cpu` hierarchy and, where it is mounted apart, in `cpuacct`. v2: a directory below the
//! root of what is mounted here (a cgroup with members of its own cannot hand controllers to children, except the
//! real root).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuShares, CpuWeight, GroupRef};

use super::{PREFIX, TenantError};

/// How long a group may take to become removable after its last process was reaped.
const REMOVE_WITHIN: Duration = Duration::from_secs(3);

/// Where the cpu controller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    /// Mount points; the one with the cpu controller first.
    mounts: Vec<PathBuf>,
    v2: bool,
}

impl Hierarchies {
    /// Finds them in this process's mount namespace.
    pub fn find() -> Result<Self, TenantError> {
        let path = "/proc/self/mountinfo";
        let text = fs::read_to_string(path).map_err(|e| TenantError::system(path, e))?;
        let has_cpu = |mount: &Path| {
            fs::read_to_string(mount.join("cgroup.controllers"))
                .is_ok_and(|controllers| controllers.split_ascii_whitespace().any(|c| c == "cpu"))
        };
        Self::from_mountinfo(&text, has_cpu).ok_or_else(|| {
            TenantError::NoCgroups(
                "no cgroup file system with the cpu controller is mounted; mount cgroup2 on /sys/fs/cgroup, or run \
                 outside this container"
                    .into(),
            )
        })
    }

    /// From the text of `mountinfo` (proc(5)): fields, ` - `, type, source, super options.
    fn from_mountinfo(text: &str, has_cpu: impl Fn(&Path) -> bool) -> Option<Self> {
        let mut v1: Vec<(PathBuf, Vec<&str>)> = Vec::new();
        let mut v2 = None;
        for line in text.lines() {
            let Some((fields, kind)) = line.split_once(" - ") else { continue };
            let Some(mount) = fields.split(' ').nth(4).map(unescape) else { continue };
            let mut kind = kind.split(' ');
            match kind.next() {
                Some("cgroup") => {
                    let options = kind.nth(1).unwrap_or("").split(',').collect();
                    v1.push((mount, options));
                }
                Some("cgroup2") if v2.is_none() && has_cpu(&mount) => v2 = Some(mount),
                _ => {}
            }
        }
        let with =
            |controller: &str| v1.iter().find(|(_, o)| o.contains(&controller)).map(|(m, _)| m.clone());
        if let Some(cpu) = with("cpu") {
            let mut mounts = vec![cpu];
            mounts.extend(with("cpuacct").filter(|m| *m != mounts[0]));
            return Some(Self { mounts, v2: false });
        }
        v2.map(|mount| Self { mounts: vec![mount], v2: true })
    }

    /// Mount point of the hierarchy with the cpu controller.
    pub fn cpu_mount(&self) -> &Path {
        &self.mounts[0]
    }

    /// Whether it is v2.
    pub fn is_v2(&self) -> bool {
        self.v2
    }

    /// The path in this hierarchy, from the text of `/proc/PID/cgroup`.
    pub fn path_in(&self, text: &str) -> Option<String> {
        let mut lines = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        });
        let is_ours = |controllers: &str| match self.v2 {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|c| c == "cpu"),
        };
        lines.find(|(controllers, _)| is_ours(controllers)).map(|(_, path)| path.to_owned())
    }

    /// Removes groups whose name `stale` accepts and that have no members; returns how many.
    pub(super) fn sweep(&self, stale: impl Fn(&str) -> bool) -> usize {
        let mut removed = 0;
        for mount in &self.mounts {
            for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
                let name = entry.file_name();
                // rmdir refuses a group with members.
                if name.to_str().is_some_and(|n| n.starts_with(PREFIX) && stale(n))
                    && fs::remove_dir(entry.path()).is_ok()
                {
                    removed += 1;
                }
            }
        }
        removed
    }

    /// v2: children of the root have cpu files only when the root hands the controller out. Returns whether that had
    /// to be switched on.
    fn hand_out_cpu(&self) -> Result<bool, TenantError> {
        if !self.v2 {
            return Ok(false);
        }
        let path = self.cpu_mount().join("cgroup.subtree_control");
        let failed = |e: io::Error| {
            TenantError::NoCgroups(format!(
                "{}: cannot hand out the cpu controller: {e}; inside a container, run on the host instead",
                path.display()
            ))
        };
        let now = fs::read_to_string(&path).map_err(failed)?;
        if now.split_ascii_whitespace().any(|c| c == "cpu") {
            return Ok(false);
        }
        fs::write(&path, "+cpu").map_err(failed)?;
        Ok(true)
    }
}

/// Weight of a cgroup of this host, as cgroup v2 counts: shares on v1 by the same load weight, rounded. `None` when it is
/// gone.
pub fn weight_of(group: &GroupRef) -> Option<u64> {
    let hierarchies = Hierarchies::find().ok().filter(|found| found.v2 == group.v2)?;
    let dir = hierarchies.cpu_mount().join(group.path.trim_start_matches('/'));
    let read = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    if group.v2 { read("cpu.weight") } else { Some((read("cpu.shares")? * 100 + 512) / 1024) }
}

/// `\040` and the like in a path of `mountinfo`.
fn unescape(text: &str) -> PathBuf {
    let mut path = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        path.push_str(before);
        match after.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                path.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                path.push('\\');
                rest = after;
            }
        }
    }
    path.push_str(rest);
    path.into()
}

/// A cgroup made by us; removed on drop.
#[derive(Debug)]
pub struct LabGroup {
    name: String,
    dirs: Vec<PathBuf>,
    v2: bool,
    /// We switched the cpu controller on for the root's children.
    handed_out: Option<PathBuf>,
}

impl LabGroup {
    /// Makes it in every hierarchy; nothing is left when one fails.
    pub fn make(hierarchies: &Hierarchies, name: &str) -> Result<Self, TenantError> {
        let handed_out = hierarchies.hand_out_cpu()?;
        let mut group = Self {
            name: name.to_owned(),
            dirs: Vec::new(),
            v2: hierarchies.v2,
            handed_out: handed_out.then(|| hierarchies.cpu_mount().join("cgroup.subtree_control")),
        };
        for mount in &hierarchies.mounts {
            let dir = mount.join(name);
            fs::create_dir(&dir)
                .map_err(|e| TenantError::system(format!("cannot make {}", dir.display()), e))?;
            group.dirs.push(dir);
        }
        Ok(group)
    }

    /// Its name for readers and writers of its knobs.
    pub fn group_ref(&self) -> GroupRef {
        GroupRef { path: format!("/{}", self.name), v2: self.v2 }
    }

    /// Its directory in the hierarchy with the cpu controller.
    pub fn cpu_dir(&self) -> &Path {
        &self.dirs[0]
    }

    /// Its directories, one in each hierarchy; the one with the cpu controller first.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Gives it a weight, as cgroup v2 counts: 100 is the default, 1 to 10000. On v1 the shares of the same load weight.
    pub fn set_weight(&self, weight: u64) -> Result<(), TenantError> {
        let weight = CpuWeight::new(weight);
        let (file, value) = match self.v2 {
            true => ("cpu.weight", u64::from(weight.get())),
            false => ("cpu.shares", u64::from(CpuShares::new(weight.load_weight()).get())),
        };
        let path = self.cpu_dir().join(file);
        fs::write(&path, value.to_string()).map_err(|e| TenantError::system(path.display().to_string(), e))
    }

    /// Takes a process in, with all its threads.
    pub fn admit(&self, pid: u32) -> Result<(), TenantError> {
        for dir in &self.dirs {
            let path = dir.join("cgroup.procs");
            fs::write(&path, pid.to_string())
                .map_err(|e| TenantError::system(path.display().to_string(), e))?;
        }
        Ok(())
    }

    /// Kills its processes. Nobody else's are in a group of ours.
    pub(crate) fn end_members(&self) {
        // A process that forks just now is caught by the next turn.
        for _ in 0..20 {
            let members = fs::read_to_string(self.cpu_dir().join("cgroup.procs")).unwrap_or_default();
            let pids: Vec<i32> =
                members.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                // SAFETY: takes two numbers; one that is gone is refused.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// CPU time used in it so far, that of members that have ended included, nanoseconds; `None` where not counted.
    pub(crate) fn usage_ns(&self) -> Option<u64> {
        if self.v2 {
            let text = fs::read_to_string(self.cpu_dir().join("cpu.stat")).ok()?;
            let usec = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            return usec.trim().parse::<u64>().ok()?.checked_mul(1000);
        }
        let read = |dir: &PathBuf| fs::read_to_string(dir.join("cpuacct.usage")).ok();
        self.dirs.iter().find_map(read)?.trim().parse().ok()
    }

    /// `cgroup.procs` in every hierarchy, open for writing.
    pub(crate) fn entrances(&self) -> Result<Vec<File>, TenantError> {
        let open = |dir: &PathBuf| {
            let path = dir.join("cgroup.procs");
            OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|e| TenantError::system(path.display().to_string(), e))
        };
        self.dirs.iter().map(open).collect()
    }
}

impl Drop for LabGroup {
    fn drop(&mut self) {
        let until = Instant::now() + REMOVE_WITHIN;
        for dir in &self.dirs {
            loop {
                match fs::remove_dir(dir) {
                    Ok(()) => break,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                    Err(e) if Instant::now() >= until => {
                        tracing::warn!("cannot remove {}: {e}", dir.display());
                        break;
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        }
        if let Some(control) = &self.handed_out {
            // Refused while another group of the root uses the controller: then it is needed.
            let _ = fs::write(control, "-cpu");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn found(text: &str, v2_has_cpu: bool) -> Option<(Vec<String>, bool)> {
        let h = Hierarchies::from_mountinfo(text, |_| v2_has_cpu)?;
        Some((h.mounts.iter().map(|m| m.display().to_string()).collect(), h.v2))
    }

    #[test]
    fn the_cpu_controller_is_found_wherever_it_is_mounted() {
        let apart = vec!["/sys/fs/cgroup/cpu".to_owned(), "/sys/fs/cgroup/cpuacct".to_owned()];
        assert_eq!(found(V1, false), Some((apart, false)));
        let together = V1.replace("rw,cpu\n", "rw,cpu,cpuacct\n").replace("rw,cpuacct\n", "rw,freezer\n");
        assert_eq!(found(&together, false), Some((vec!["/sys/fs/cgroup/cpu".to_owned()], false)));
        let unified = "29 22 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(found(unified, true), Some((vec!["/sys/fs/cgroup".to_owned()], true)));
        assert_eq!(found(unified, false), None);
        assert_eq!(found("nonsense\n - \n1 - cgroup\n", true), None);
    }

    #[test]
    fn a_tasks_path_is_that_of_the_hierarchy() {
        let text = "3:cpuset:/\n2:cpu,cpuacct:/docker/a:b\n0::/user.slice\n";
        let v1 = Hierarchies { mounts: vec!["/c".into()], v2: false };
        assert_eq!(v1.path_in(text).as_deref(), Some("/docker/a:b"));
        let v2 = Hierarchies { mounts: vec!["/c".into()], v2: true };
        assert_eq!(v2.path_in(text).as_deref(), Some("/user.slice"));
        assert_eq!(v1.path_in("0::/\nnonsense"), None);
    }

    #[test]
    fn escapes_in_mount_points_are_undone() {
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(r"/a\9"), Path::new(r"/a\9"));
    }
}
