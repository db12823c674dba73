//! Whose a cgroup is, and the removal of those whose owner was killed.
//!
//! The name says who made a group: `evenkeel-exec-PID-START`, start time in clock ticks since boot, which together
//! mean one process for as long as the host runs. A record in the state directory, written before the first
//! directory is made, says the same with the boot id, and lists the directories wherever they are. Groups do not
//! survive a boot; records of another boot are only deleted. A group is removed by `rmdir`, which the kernel refuses
//! while anybody is in it: a command that outlives its `evenkeel exec` keeps its limit until it ends, unless its record
//! says that it ends with its owner.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use evenkeel_base::BootId;
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::process::is_alive_since;
use serde::{Deserialize, Serialize};

/// Start of the name of every group made for a command.
pub const PREFIX: &str = "evenkeel-exec-";

/// The process that made a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub boot: BootId,
    pub pid: u32,
    /// Its start time, clock ticks since boot.
    pub start_time: u64,
}

impl Owner {
    /// This process.
    pub fn this() -> io::Result<Self> {
        let pid = std::process::id();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self {
            boot: BootId(boot.trim().to_owned()),
            pid,
            start_time: evenkeel_linux::process::start_time(pid, pid)?,
        })
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}-{}", self.pid, self.start_time)
    }

    fn is_alive(&self) -> bool {
        is_alive_since(self.pid, self.start_time)
    }
}

/// What a process made, as on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    schema: String,
    owner: Owner,
    dirs: Vec<PathBuf>,
    /// Whether who still is in it ends with the owner ([`super::Leftover::End`]).
    #[serde(default)]
    members_end: bool,
    /// v2: the group whose children were given controllers, and which (`+cpu`).
    handed_out: Vec<(PathBuf, Vec<String>)>,
}

impl Record {
    /// Removes what is listed; `true` when all of it is gone.
    fn remove(&mut self) -> bool {
        self.dirs.retain(|dir| !Cgroup::new(dir, false).remove_empty());
        if self.dirs.is_empty() {
            for (parent, controllers) in self.handed_out.drain(..) {
                let names: Vec<_> = controllers.iter().map(|one| one.trim_start_matches('+')).collect();
                Cgroup::new(parent, true).disable(&names);
            }
        }
        self.dirs.is_empty()
    }
}

/// What this process made, in memory and on disk.
#[derive(Debug)]
pub(super) struct Claimed {
    record: Record,
    file: PathBuf,
    problem: Option<String>,
}

impl Claimed {
    /// Nothing yet. `members_end`: whoever clears up after a killed owner kills its members, too.
    pub fn new(owner: &Owner, records: &Path, members_end: bool) -> Self {
        Self {
            file: records.join(format!("{}.json", owner.name())),
            record: Record {
                schema: "evenkeel.exec-group/v1".into(),
                owner: owner.clone(),
                dirs: Vec::new(),
                members_end,
                handed_out: Vec::new(),
            },
            problem: None,
        }
    }

    pub fn name(&self) -> String {
        self.record.owner.name()
    }

    /// Notes a directory before it is made.
    pub fn add(&mut self, dir: &Path) {
        self.record.dirs.push(dir.to_owned());
        self.save();
    }

    /// Notes controllers that were enabled for the children of a group.
    pub fn enabled(&mut self, parent: &Path, controllers: &[String]) {
        if !controllers.is_empty() {
            let signed = controllers.iter().map(|one| format!("+{one}")).collect();
            self.record.handed_out.push((parent.to_owned(), signed));
            self.save();
        }
    }

    fn save(&mut self) {
        let written = (|| {
            if let Some(dir) = self.file.parent() {
                // The state directory above it is no one else's business either.
                fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let temporary = self.file.with_extension("tmp");
            fs::write(&temporary, serde_json::to_vec(&self.record)?)?;
            fs::rename(&temporary, &self.file)
        })();
        if let Err(error) = written {
            self.problem = Some(format!(
                "{}: {error}; should this be killed, its cgroup is found only by the next start from here",
                self.file.display()
            ));
        }
    }

    /// Why the record could not be written.
    pub fn problem(&self) -> Option<String> {
        self.problem.clone()
    }

    /// Whether anything is left to remove.
    pub fn is_pending(&self) -> bool {
        !self.record.dirs.is_empty() || !self.record.handed_out.is_empty()
    }

    /// Removes everything; `true` when all of it is gone.
    pub fn remove(&mut self) -> bool {
        let done = self.record.remove();
        if done {
            let _ = fs::remove_file(&self.file);
        }
        done
    }

    /// Removes groups without a living owner or member next to the one about to be made.
    pub fn sweep_beside(&self, parent: &Path) {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| {
                let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
                Some((pid.parse().ok()?, start.parse().ok()?))
            });
            if owner.is_some_and(|(pid, start)| !is_alive_since(pid, start)) {
                Cgroup::new(entry.path(), false).remove_empty();
            }
        }
    }
}

/// Removes the groups of owners that are gone, by the records in `records`; gives the directories that could not be
/// removed because somebody still runs in them.
pub fn sweep(records: &Path) -> Vec<PathBuf> {
    let mut left = Vec::new();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    for entry in fs::read_dir(records).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(text) = fs::read(&path) else { continue };
        let Ok(mut record) = serde_json::from_slice::<Record>(&text) else { continue };
        // Only names of ours: a record is a file anybody could have edited.
        record.dirs.retain(|dir| {
            dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
        });
        if record.owner.boot.0 != boot.trim() {
            let _ = fs::remove_file(&path);
        } else if !record.owner.is_alive() {
            if record.members_end {
                record.dirs.iter().for_each(|dir| Cgroup::new(dir, false).kill_members());
            }
            if record.remove() {
                let _ = fs::remove_file(&path);
            }
            left.append(&mut record.dirs);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead() -> Owner {
        Owner { start_time: 1, ..Owner::this().unwrap() }
    }

    #[test]
    fn what_a_dead_owner_left_is_removed_and_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("records");
        for owner in [dead(), Owner::this().unwrap()] {
            let mut claimed = Claimed::new(&owner, &records, false);
            let group = dir.path().join(claimed.name());
            claimed.add(&group);
            fs::create_dir_all(group.join("sub")).unwrap();
        }
        assert_eq!(sweep(&records), Vec::<PathBuf>::new());
        assert!(!dir.path().join(dead().name()).exists());
        assert!(dir.path().join(Owner::this().unwrap().name()).exists());
        assert_eq!(fs::read_dir(&records).unwrap().count(), 1);
        // Without a record, the name is enough for the next start in the same place.
        fs::create_dir(dir.path().join(dead().name())).unwrap();
        Claimed::new(&dead(), &records, false).sweep_beside(dir.path());
        assert!(!dir.path().join(dead().name()).exists());
        assert!(dir.path().join(Owner::this().unwrap().name()).exists());
    }

    #[test]
    fn what_is_still_in_use_stays_on_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut claimed = Claimed::new(&dead(), dir.path(), false);
        let group = dir.path().join(claimed.name());
        claimed.add(&group);
        fs::create_dir(&group).unwrap();
        // rmdir refuses a directory with something in it, as the kernel does a group with members.
        fs::write(group.join("member"), "").unwrap();
        assert_eq!(sweep(dir.path()), std::slice::from_ref(&group));
        assert!(claimed.file.exists());
        fs::remove_file(group.join("member")).unwrap();
        assert!(sweep(dir.path()).is_empty() && !group.exists() && !claimed.file.exists());
    }

    #[test]
    fn controllers_on_record_are_disabled_with_the_groups() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("parent");
        fs::create_dir(&parent).unwrap();
        fs::write(parent.join("cgroup.subtree_control"), "cpuset cpu\n").unwrap();
        let mut claimed = Claimed::new(&dead(), dir.path(), false);
        claimed.enabled(&parent, &["cpu".to_owned()]);
        assert!(
            fs::read_to_string(&claimed.file).unwrap().contains("\"+cpu\""),
            "as records have always had it"
        );
        assert!(sweep(dir.path()).is_empty());
        assert!(fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap().starts_with("-cpu\n"));
    }

    #[test]
    fn members_are_killed_only_where_the_record_says_so() {
        for members_end in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut claimed = Claimed::new(&dead(), dir.path(), members_end);
            let group = dir.path().join(claimed.name());
            claimed.add(&group);
            fs::create_dir(&group).unwrap();
            let mut member = std::process::Command::new("sleep").arg("30").spawn().unwrap();
            fs::write(group.join("cgroup.procs"), member.id().to_string()).unwrap();
            sweep(dir.path());
            // A killed process is waited for; one that was spared is still there.
            let ended = member.try_wait().unwrap().is_some();
            member.kill().unwrap();
            member.wait().unwrap();
            assert_eq!(ended, members_end);
        }
    }

    #[test]
    fn records_of_another_boot_and_foreign_directories_are_not_acted_on() {
        let dir = tempfile::tempdir().unwrap();
        let other = Owner { boot: BootId("other".into()), ..dead() };
        let mut claimed = Claimed::new(&other, dir.path(), false);
        let group = dir.path().join(claimed.name());
        claimed.add(&group);
        fs::create_dir(&group).unwrap();
        sweep(dir.path());
        assert!(group.exists() && !claimed.file.exists());
        let mut claimed = Claimed::new(&dead(), dir.path(), false);
        let foreign = dir.path().join("system.slice");
        claimed.add(&foreign);
        fs::create_dir(&foreign).unwrap();
        sweep(dir.path());
        assert!(foreign.exists());
        fs::write(dir.path().join("x.json"), "nonsense").unwrap();
        assert!(sweep(dir.path()).is_empty());
    }
}
