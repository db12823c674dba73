//! A directory whose files only this user can have written.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::OpenError;

/// Makes a directory and those above it that are missing, for this user alone (mode 0700).
pub fn make_private(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Whether a directory is this user's alone to write to, so that what is in it, links too, comes from nobody else.
pub fn check_private(dir: &Path) -> Result<(), OpenError> {
    StateDir::open(dir).map(drop)
}

/// An open directory. Files are opened below it, never through a symbolic link.
#[derive(Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    fd: OwnedFd,
}

impl StateDir {
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            // The kernel says one or the other of a link, depending on what it looks at first.
            Err(Errno::LOOP | Errno::NOTDIR) if path.is_symlink() => {
                let why = "is a symbolic link: name the directory itself".to_owned();
                return Err(OpenError::NotOurs { path: path.into(), why });
            }
            Err(error) => return Err(OpenError::Io { path: path.into(), error: error.into() }),
        };
        check(&fd, path)?;
        Ok(Self { path: path.into(), fd })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file that is ours.
    pub fn file(&self, name: &str, flags: OFlags) -> Result<File, OpenError> {
        let path = self.path.join(name);
        // Not to wait for the other end of a pipe that somebody put there.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(Errno::LOOP) => {
                let why = "is a symbolic link: remove it".to_owned();
                return Err(OpenError::NotOurs { path, why });
            }
            Err(error) => return Err(OpenError::Io { path, error: error.into() }),
        };
        let found = check(&fd, &path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(OpenError::NotOurs { path, why: "is no regular file: remove it".to_owned() });
        }
        Ok(File::from(fd))
    }

    pub fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file; one that is not there is fine.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }
}

/// Whether something opened is this user's and no one else may write to it.
fn check(fd: &OwnedFd, path: &Path) -> Result<rustix::fs::Stat, OpenError> {
    let found =
        rustix::fs::fstat(fd).map_err(|error| OpenError::Io { path: path.into(), error: error.into() })?;
    let user = rustix::process::geteuid().as_raw();
    let why = if found.st_uid != user {
        format!(
            "belongs to {}, this is user {user}: run as its owner, or, if you know what is in it, make it yours (chown)",
            if found.st_uid == 0 { "root".to_owned() } else { format!("user {}", found.st_uid) }
        )
    } else if found.st_mode & 0o022 != 0 {
        format!(
            "may be written to by others (mode {:04o}): look at what is in it, then `chmod go-w` it",
            found.st_mode & 0o7777
        )
    } else {
        return Ok(found);
    };
    Err(OpenError::NotOurs { path: path.into(), why })
}
