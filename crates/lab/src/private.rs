//! Directories for the files of a run. Only their owner can enter one, nobody can foresee its name or make it first, and
//! what is made in it follows nobody's links.
//!
//! The name carries the maker's pid: what the dead left behind is found, and removed if it is ours.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::launch::PREFIX;
use evenkeel_linux::process;

/// Memory, visible to bind mounts.
const SHARED_MEMORY: &str = "/dev/shm";

/// A directory of its maker alone; removed with everything in it when dropped.
#[derive(Debug)]
pub struct PrivateDir(tempfile::TempDir);

impl PrivateDir {
    /// Makes one where temporary files go.
    pub fn temporary() -> io::Result<Self> {
        Self::make(&std::env::temp_dir())
    }

    /// Makes one in memory; where temporary files go on a host without `/dev/shm`.
    pub fn in_memory() -> io::Result<Self> {
        Self::make(&memory())
    }

    fn make(base: &Path) -> io::Result<Self> {
        // mkdir(2) fails where anything has the name, a link that leads nowhere included.
        tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-x", std::process::id()))
            .rand_bytes(12)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(base)
            .map(Self)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

fn memory() -> PathBuf {
    let memory = Path::new(SHARED_MEMORY);
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Removes the directories of makers that are dead. Returns how many.
pub fn sweep_stale() -> usize {
    let (memory, temporary) = (memory(), std::env::temp_dir());
    let second = (memory != temporary).then_some(&temporary);
    [&memory].into_iter().chain(second).map(|base| sweep(base)).sum()
}

fn sweep(base: &Path) -> usize {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let stale = entries.filter(|entry| {
        let dead = entry.file_name().to_str().and_then(owner_of).is_some_and(|pid| !process::is_alive(pid));
        // Anybody may make something of such a name here, or link to what is ours.
        dead && fs::symlink_metadata(entry.path())
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
    });
    stale.filter(|entry| fs::remove_dir_all(entry.path()).is_ok()).count()
}

/// The pid of the maker, from a name made by this module.
fn owner_of(name: &str) -> Option<u32> {
    let (pid, random) = name.strip_prefix(PREFIX)?.split_once("-x")?;
    let made_here = !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    made_here.then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pid that the kernel gives to nobody.
    const DEAD: u32 = 4_194_305;

    #[test]
    fn only_its_maker_enters_and_nobody_foresees_the_name() {
        let base = tempfile::tempdir().unwrap();
        let (one, other) = (PrivateDir::make(base.path()).unwrap(), PrivateDir::make(base.path()).unwrap());
        let (first, second) = (one.path().to_owned(), other.path().to_owned());
        assert_ne!(first, second);
        for path in [&first, &second] {
            let meta = fs::symlink_metadata(path).unwrap();
            assert!(meta.is_dir() && meta.mode() & 0o777 == 0o700, "{:o}", meta.mode());
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(owner_of(name), Some(std::process::id()));
            let random = name.rsplit_once("-x").unwrap().1;
            assert!(random.len() >= 12 && random.parse::<u32>().is_err(), "{name}");
        }
        fs::write(first.join("file"), "x").unwrap();
        drop(one);
        assert!(!first.exists() && second.exists());
    }

    #[test]
    fn what_the_dead_left_goes_and_links_and_the_living_stay() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: String| base.path().join(name);
        let (dead, linked) = (at(format!("{PREFIX}{DEAD}-xabc0")), at(format!("{PREFIX}{DEAD}-xlink")));
        let (alive, foreign) = (at(format!("{PREFIX}{}-x1", std::process::id())), at("precious".to_owned()));
        for dir in [&dead, &alive, &foreign] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("file"), "x").unwrap();
        }
        std::os::unix::fs::symlink(&foreign, &linked).unwrap();
        assert_eq!(sweep(base.path()), 1);
        assert!(!dead.exists() && linked.exists());
        assert!(alive.join("file").exists() && foreign.join("file").exists());
    }

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner_of("evenkeel-lab-12-xq0"), Some(12));
        for other in ["evenkeel-lab-", "evenkeel-lab-x-x1", "evenkeel-lab-12-x", "evenkeel-lab-12-x/..", "d"]
        {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }
}
