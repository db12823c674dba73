//! Where the journal is kept: a directory on disk, with a lock that lets one process at a time change the host.

mod dir;
mod holder;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};

use dir::StateDir;
pub use dir::{check_private, make_private};
pub use holder::{LockHolder, lock_holder};

/// What written bytes survive.
///
/// Scheduling state ends with the kernel, so that a journal of an earlier boot has nothing to say, but for values that an owner
/// (Docker) remembers. Waiting for the disk is left to these: where disks are slow, or nobody has CPU to write, it takes seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// `kill -9` at any instant.
    Kill,
    /// A power failure, too.
    Boot,
}

/// What the journal is written to. [`FileMedium`] is the real one; tests use one that fails and tears on demand.
pub trait Medium {
    /// All bytes of the journal; `None` when there is none.
    fn load(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the journal by these bytes, at once: after a crash either the old or the new one is there.
    fn replace(&mut self, bytes: &[u8], survives: Survives) -> io::Result<()>;

    /// Appends. A failed append leaves the journal as it was.
    ///
    /// # Errors
    /// When the bytes are not safely written (the change they announce must not be made).
    fn append(&mut self, bytes: &[u8], survives: Survives) -> io::Result<()>;

    /// Keeps the present journal under another name, and puts these bytes, or nothing, in its place: after a crash, and after a
    /// failure, either the old or the new one is there.
    fn set_aside(&mut self, rest: Option<&[u8]>) -> io::Result<PathBuf>;

    /// Removes the journal, and before it what was remembered.
    fn remove(&mut self) -> io::Result<()>;

    /// What was remembered of a decision, see [`crate::Actuator::remember`]; `None` when nothing was.
    fn load_decision(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Remembers these bytes in place of what was remembered before; after a crash either is there. They survive what the
    /// journal survives: a kill.
    fn replace_decision(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Forgets what was remembered.
    fn remove_decision(&mut self) -> io::Result<()>;

    /// Name of the journal, for messages.
    fn name(&self) -> PathBuf;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Wall clock when it took the lock, seconds since 1970.
    pub since: u64,
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another evenkeel is at work{}; end it first (`evenkeel restore --stop`)", holder(.0))]
    Busy(Option<Holder>),
    /// The directory or a file in it is somebody else's, or others may write to it: what it says was not written by us.
    #[error("{path} {why}; nothing is read from it and nothing written to it")]
    NotOurs { path: PathBuf, why: String },
    /// The directory or a file in it cannot be used.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

fn holder(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) => format!(": pid {} (since {})", holder.pid, utc(holder.since)),
        None => String::new(),
    }
}

/// Seconds since 1970 as `2026-01-31T12:34:56Z` (days to civil date after Howard Hinnant's public algorithm).
pub(crate) fn utc(seconds: u64) -> String {
    let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Seconds since 1970.
pub(crate) fn wall_seconds() -> u64 {
    evenkeel_linux::sys::wall_ns() / 1_000_000_000
}

/// A state directory: `journal` and `lock`. The lock is held as long as this lives and ends with the process, however
/// it ends. Directory and files must be this user's and writable by no one else.
#[derive(Debug)]
pub struct FileMedium {
    dir: StateDir,
    journal: Option<File>,
    _lock: Lock,
}

/// A locked file. The lock ends with it, also while a child that was forked meanwhile still has the file open, as it does
/// until it executes its program.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

const LOCK: &str = "lock";
const JOURNAL: &str = "journal";
const FRESH: &str = "journal.new";
const DECISION: &str = "decision";
const FRESH_DECISION: &str = "decision.new";
/// Most bytes of a decision that are read: one has some hundred bytes for each task it changes.
const MOST_DECISION: u64 = 64 << 20;

fn holder_in(lock: &mut File) -> Option<Holder> {
    let mut text = String::new();
    lock.take(1000).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Takes the lock of an open file, asking so often again.
fn take(mut lock: File, path: &Path, again: u32) -> Result<Lock, OpenError> {
    for patience in (0..=again).rev() {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) if patience > 0 => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::Busy(holder_in(&mut lock))),
            Err(error) => return Err(OpenError::Io { path: path.into(), error: error.into() }),
        }
    }
    Ok(Lock(lock))
}

/// Writes into a lock's file who has it. A full disk does not matter: the lock is held, only its note is missing.
fn note_holder(Lock(lock): &Lock, path: &Path) {
    let mut lock = lock;
    let holder = Holder { pid: std::process::id(), since: wall_seconds() };
    let text = serde_json::to_vec(&holder).unwrap_or_default();
    let noted = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(&text));
    if let Err(error) = noted {
        tracing::warn!(path = %path.display(), %error, "cannot note the pid in the lock file");
    }
}

/// Takes another lock of a state directory, by the name of its file; it is held until it is dropped.
pub fn lock_file(dir: &Path, name: &str) -> Result<Lock, OpenError> {
    let path = dir.join(name);
    let lock = take(StateDir::open(dir)?.file(name, OFlags::RDWR | OFlags::CREATE)?, &path, 0)?;
    note_holder(&lock, &path);
    Ok(lock)
}

/// All bytes of a file, or so many; `None` when it is not there.
fn read(dir: &StateDir, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match dir.file(name, OFlags::RDONLY) {
        Ok(file) => file.take(most).read_to_end(&mut bytes).map(|_| Some(bytes)),
        Err(OpenError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(into_io(error)),
    }
}

impl FileMedium {
    /// Takes the lock of a state directory, creating the directory (mode 0700) if needed.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        make_private(dir).map_err(|error| OpenError::Io { path: dir.into(), error })?;
        Self::open_existing(dir)
    }

    /// Takes the lock of a state directory that is there already; works on a read-only one that has a lock file.
    ///
    /// # Errors
    /// [`OpenError::Busy`] when another process has it, [`OpenError::NotOurs`] when others may have written there.
    pub fn open_existing(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(LOCK);
        let dir = StateDir::open(dir)?;
        let fail = |error: io::Error| OpenError::Io { path: path.clone(), error };
        let (lock, writable) = match dir.file(LOCK, OFlags::RDWR | OFlags::CREATE) {
            Ok(file) => (file, true),
            Err(OpenError::Io { error, .. }) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                (dir.file(LOCK, OFlags::RDONLY).map_err(|_| fail(error))?, false)
            }
            Err(error) => return Err(error),
        };
        // Somebody only asking who holds it (`holder`) has it for an instant.
        let lock = take(lock, &path, 4)?;
        if writable {
            note_holder(&lock, &path);
        }
        Ok(Self { dir, journal: None, _lock: lock })
    }

    /// Who holds the lock of a state directory, as the lock file says, if anybody does. For messages: see
    /// [`lock_holder`] for whom to send a signal.
    ///
    /// # Errors
    /// When the lock file is there and cannot be looked at.
    pub fn holder(dir: &Path) -> Result<Option<Option<Holder>>, OpenError> {
        let path = dir.join(LOCK);
        let fail = |error: rustix::io::Errno| OpenError::Io { path: path.clone(), error: error.into() };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut lock = match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
            Ok(lock) => File::from(lock),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(fail(error)),
        };
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                drop(Lock(lock));
                Ok(None)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Some(holder_in(&mut lock))),
            Err(error) => Err(fail(error)),
        }
    }

    /// Where the journal of a state directory is, while there is one.
    pub fn journal(dir: &Path) -> PathBuf {
        dir.join(JOURNAL)
    }

    /// The journal of a state directory, whoever has its lock; `None` where there is none. Its end may be half written.
    pub(crate) fn load_unlocked(dir: &Path) -> Result<Option<Vec<u8>>, OpenError> {
        let fail = |error| OpenError::Io { path: Self::journal(dir), error };
        match StateDir::open(dir) {
            Err(OpenError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => read(&opened?, JOURNAL, u64::MAX).map_err(fail),
        }
    }

    /// Writes a file of the first name and gives it the second one.
    fn put(&self, (fresh, name): (&str, &str), bytes: &[u8], survives: Survives) -> io::Result<File> {
        let written = (|| {
            // A file of ours each time: what is there may be anything.
            self.dir.remove(fresh)?;
            let mut file =
                self.dir.file(fresh, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).map_err(into_io)?;
            file.write_all(bytes)?;
            if survives == Survives::Boot {
                file.sync_all()?;
            }
            self.dir.rename(fresh, name)?;
            Ok(file)
        })();
        match &written {
            Ok(file) if survives == Survives::Kill => {
                let later = file.try_clone();
                // After a power failure an empty file would look damaged. Nobody waits for it.
                let later = move || later.and_then(|file| file.sync_all());
                drop(std::thread::Builder::new().name("journal".to_owned()).spawn(later));
            }
            Ok(_) => {}
            Err(_) => drop(self.dir.remove(fresh)),
        }
        written
    }

    fn file(&mut self) -> io::Result<&mut File> {
        match &mut self.journal {
            Some(file) => Ok(file),
            none => {
                let mut file = self.dir.file(JOURNAL, OFlags::RDWR).map_err(into_io)?;
                file.seek(SeekFrom::End(0))?;
                Ok(none.insert(file))
            }
        }
    }
}

/// The journal is read and written through [`Medium`], which knows errors of input and output only.
fn into_io(error: OpenError) -> io::Error {
    match error {
        OpenError::Io { error, .. } => error,
        other => io::Error::new(io::ErrorKind::PermissionDenied, other.to_string()),
    }
}

impl Medium for FileMedium {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        read(&self.dir, JOURNAL, u64::MAX)
    }

    fn replace(&mut self, bytes: &[u8], survives: Survives) -> io::Result<()> {
        self.journal = Some(self.put((FRESH, JOURNAL), bytes, survives)?);
        if survives == Survives::Boot { self.dir.sync() } else { Ok(()) }
    }

    fn append(&mut self, bytes: &[u8], survives: Survives) -> io::Result<()> {
        let file = self.file()?;
        let end = file.stream_position()?;
        let mut written = file.write_all(bytes);
        if survives == Survives::Boot {
            // What was there before, and its name, may not have been waited for.
            written = written.and_then(|()| file.sync_all()).and_then(|()| self.dir.sync());
        }
        let file = self.file()?;
        if written.is_err() {
            // A half record followed by others would look like damage.
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
        }
        written
    }

    fn set_aside(&mut self, rest: Option<&[u8]>) -> io::Result<PathBuf> {
        let mut stamp = wall_seconds();
        while self.dir.has(&format!("journal.corrupt-{stamp}")) {
            stamp += 1;
        }
        let aside = format!("journal.corrupt-{stamp}");
        match rest {
            // A copy: the name of the journal is never without one.
            Some(rest) => {
                let damaged = self.load()?.unwrap_or_default();
                self.put((FRESH, &aside), &damaged, Survives::Boot)?;
                if let Err(error) = self.replace(rest, Survives::Boot) {
                    // The new one may be in place, and only not yet safe.
                    if self.load().is_ok_and(|now| now.as_deref() == Some(&damaged)) {
                        self.dir.remove(&aside)?;
                    }
                    return Err(error);
                }
            }
            None => {
                self.journal = None;
                self.dir.rename(JOURNAL, &aside)?;
                self.dir.sync()?;
            }
        }
        Ok(self.dir.path().join(aside))
    }

    fn remove(&mut self) -> io::Result<()> {
        self.remove_decision()?;
        self.journal = None;
        self.dir.remove(JOURNAL)
    }

    fn load_decision(&mut self) -> io::Result<Option<Vec<u8>>> {
        read(&self.dir, DECISION, MOST_DECISION)
    }

    fn replace_decision(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put((FRESH_DECISION, DECISION), bytes, Survives::Kill).map(drop)
    }

    fn remove_decision(&mut self) -> io::Result<()> {
        self.dir.remove(DECISION)
    }

    fn name(&self) -> PathBuf {
        self.dir.path().join(JOURNAL)
    }
}

#[cfg(test)]
mod tests;
