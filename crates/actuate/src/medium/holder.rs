//! Which process holds the lock of a state directory, by the kernel's word and not by what the lock file says.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::dir::StateDir;
use super::{FileMedium, LOCK, OpenError};

/// A process that holds the lock. The handle is of that very process, whoever gets its number later.
#[derive(Debug)]
pub struct LockHolder {
    pub pid: u32,
    handle: OwnedFd,
}

impl LockHolder {
    /// Asks it to end (SIGTERM). That it has ended meanwhile is no error.
    pub fn terminate(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for LockHolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The process that holds the lock of a state directory: `None` when nobody does, `Some(None)` when somebody does whom
/// this process cannot see. It holds it who has the lock file open with the lock on it (`/proc/PID/fdinfo`); the number
/// noted in the file only says where to look first.
///
/// # Errors
/// The directory is not ours, or cannot be looked at.
pub fn lock_holder(dir: &Path) -> Result<Option<Option<LockHolder>>, OpenError> {
    let path = dir.join(LOCK);
    let noted = match StateDir::open(dir) {
        Ok(_) => match FileMedium::holder(dir)? {
            None => return Ok(None),
            Some(noted) => noted,
        },
        Err(OpenError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let lock = fs::symlink_metadata(&path).map_err(|error| OpenError::Io { path, error })?;
    let holds = |pid: u32| {
        // Opened before the look: what is found then is of this very process.
        let handle = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        has_lock(pid, (lock.dev(), lock.ino())).then_some(LockHolder { pid, handle })
    };
    Ok(Some(noted.map(|noted| noted.pid).into_iter().chain(evenkeel_linux::process::all()).find_map(holds)))
}

/// Whether a process has this file open with an exclusive lock on it.
fn has_lock(pid: u32, file: (u64, u64)) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| {
        let is_it = fs::metadata(entry.path()).is_ok_and(|found| (found.dev(), found.ino()) == file);
        is_it && {
            let name = entry.file_name();
            let info =
                fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(name)).unwrap_or_default();
            info.lines()
                .any(|line| line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_whom_the_kernel_names_whatever_the_file_says() {
        let dir = tempfile::tempdir().unwrap();
        assert!(lock_holder(&dir.path().join("none")).unwrap().is_none());
        let medium = FileMedium::open(dir.path()).unwrap();
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let note = format!("{{\"pid\":{},\"since\":0}}", stranger.id());
        std::fs::write(dir.path().join(LOCK), note).unwrap();
        let found = lock_holder(dir.path()).unwrap().unwrap().unwrap().pid;
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert_eq!(found, std::process::id());
        drop(medium);
        assert!(lock_holder(dir.path()).unwrap().is_none());
    }
}
