//! The file: opening, schema, damage.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::age::Age;
use crate::block::{BlockWriter, Infos};
use crate::bytes::Damaged;
use crate::pending::{TABLE, Tail};

/// Version of the tables; kept in the file's `user_version`.
pub const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL,
    started_ns INTEGER NOT NULL
);
CREATE TABLE block (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES session(id),
    tier INTEGER NOT NULL,           -- 0 full rate, 1 one in 10 s, 2 one in 60 s
    first_wall_ns INTEGER NOT NULL,
    last_wall_ns INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    data BLOB NOT NULL               -- zstd, see block.rs
);
CREATE INDEX block_time ON block(tier, last_wall_ns);
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL,
    started_ns INTEGER NOT NULL,
    ended_ns INTEGER,                -- NULL while running, or when it was killed
    outcome TEXT,
    doc TEXT NOT NULL                -- JSON: the run's record without stages and changes
);
CREATE TABLE stage (
    run INTEGER NOT NULL REFERENCES run(id),
    seq INTEGER NOT NULL,
    doc TEXT NOT NULL,               -- JSON
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE TABLE change (
    run INTEGER NOT NULL REFERENCES run(id),
    seq INTEGER NOT NULL,
    undone_ns INTEGER,               -- NULL while in force
    doc TEXT NOT NULL,               -- JSON
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE TABLE trial (
    run INTEGER NOT NULL REFERENCES run(id),
    seq INTEGER NOT NULL,
    doc TEXT NOT NULL,               -- JSON
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
";

/// A file up to this size is checked whole when it is opened; a larger one by its tables and newest blocks only
/// (a full check reads every page).
const FULL_CHECK_BYTES: u64 = 32 << 20;
/// Smallest bound accepted: below it the file could not hold its tables, its log and a block.
const MIN_BYTES: u64 = 1 << 20;

/// Why the history could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite refused, for a reason other than those below.
    #[error("history {path}: {error}")]
    Sqlite { path: PathBuf, error: rusqlite::Error },
    #[error(
        "history {path} is damaged ({reason}); the next `evenkeel run` moves it aside and starts a new one"
    )]
    Corrupt { path: PathBuf, reason: String },
    #[error("history {path} cannot be written: no space left on the device")]
    Full { path: PathBuf },
    #[error("history {path}: permission denied; run as root, or name another place with --state-dir")]
    Permission { path: PathBuf },
    #[error(
        "history {path} has schema version {found}, this program knows up to {known}: use the newer evenkeel, or \
         move the file away to start a new history"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("history {path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("history {path} has no run {run}; `evenkeel history` lists them")]
    NoRun { path: PathBuf, run: i64 },
}

impl StoreError {
    pub(crate) fn new(path: &Path, error: rusqlite::Error) -> Self {
        let path = path.to_path_buf();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { path, reason: error.to_string() }
            }
            Some(ErrorCode::DiskFull) => Self::Full { path },
            Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => Self::Permission { path },
            _ => Self::Sqlite { path, error },
        }
    }

    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        let path = path.to_path_buf();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            io::ErrorKind::StorageFull => Self::Full { path },
            _ => Self::Io { path, error },
        }
    }

    pub(crate) fn damaged(path: &Path, damage: Damaged) -> Self {
        Self::Corrupt { path: path.to_path_buf(), reason: damage.to_string() }
    }

    /// Whether the file's content is damaged (and opening it again for writing would move it aside).
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

evenkeel_base::defaults! {
/// How much is kept. Ages count back from now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bound on the files' size, bytes, log included. At least 1 MiB is used.
    pub max_bytes: u64 = 200 << 20,
    /// How long every sample is kept.
    pub full_rate: Duration = Duration::from_secs(600),
    /// How long one sample in 10 s is kept.
    pub ten_s: Duration = Duration::from_secs(24 * 3600),
    /// How long one sample in 60 s is kept; runs are forgotten at this age too, except the last.
    pub sixty_s: Duration = Duration::from_secs(30 * 24 * 3600),
    /// A block of samples is finished when they span this many seconds.
    pub block_seconds: u64 = 30,
    /// A block is finished when there are this many.
    pub block_samples: u32 = 60,
    /// Samples are committed within this many seconds, or as they come where they are further apart: what a crash may lose.
    pub tail_seconds: u64 = 4,
}
}

#[derive(Debug)]
pub struct Store {
    pub(crate) db: Connection,
    pub(crate) path: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) note: Option<String>,
    pub(crate) session: Option<i64>,
    pub(crate) boot_id: String,
    pub(crate) pending: BlockWriter,
    pub(crate) tail: Tail,
    pub(crate) infos: Infos,
    pub(crate) age: Age,
    pub(crate) read_only: bool,
}

impl Store {
    /// Opens the history for writing; makes the file and its directory when missing, moves a damaged file aside
    /// (see [`Self::note`]).
    ///
    /// # Errors
    /// A file of a newer version, no permission, no space. None of these should stop an agent: see
    /// [`crate::Recorder`].
    pub fn open(path: &Path, limits: Limits) -> Result<Self, StoreError> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(|error| StoreError::io(dir, error))?;
        }
        let mut note = None;
        let db = match open_checked(path) {
            Err(error) if error.is_corrupt() => {
                let aside = move_aside(path)?;
                note = Some(format!(
                    "{error}. It was moved to {} and a new history was started",
                    aside.display()
                ));
                open_checked(path)?
            }
            other => other?,
        };
        let mut store = Self {
            db,
            path: path.to_path_buf(),
            limits: Limits { max_bytes: limits.max_bytes.max(MIN_BYTES), ..limits },
            note,
            session: None,
            boot_id: boot_id(),
            pending: BlockWriter::default(),
            tail: Tail::default(),
            infos: Infos::new(),
            age: Age::default(),
            read_only: false,
        };
        store.read_age(now_ns())?;
        store.keep_bounds(now_ns(), None)?;
        Ok(store)
    }

    /// Opens the history for reading while an agent may be writing it; `None` when there is none.
    ///
    /// # Errors
    /// No permission, damage (the file is left as it is), a newer version.
    pub fn open_read_only(path: &Path) -> Result<Option<Self>, StoreError> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io(path, error)),
            Ok(meta) if meta.len() == 0 => return Ok(None),
            Ok(_) => (),
        }
        // SQLite's "unable to open" does not tell why.
        fs::File::open(path).map_err(|error| StoreError::io(path, error))?;
        let wrap = |error| StoreError::new(path, error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut db = Connection::open_with_flags(path, flags).map_err(wrap)?;
        db.busy_timeout(Duration::from_secs(5)).map_err(wrap)?;
        if let Err(error) = db.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())) {
            // A log that cannot be made next to the file (read-only directory): nobody writes, read the file alone.
            let wal = with_suffix(path, "-wal");
            if error.sqlite_error_code() != Some(ErrorCode::CannotOpen) || wal.exists() {
                return Err(match error.sqlite_error_code() {
                    Some(ErrorCode::CannotOpen) => StoreError::Permission { path: path.to_path_buf() },
                    _ => wrap(error),
                });
            }
            let uri = format!("file:{}?immutable=1", uri_path(path));
            db = Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).map_err(wrap)?;
        }
        if version(&db, path)? == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            db,
            path: path.to_path_buf(),
            limits: Limits::default(),
            note: None,
            session: None,
            boot_id: boot_id(),
            pending: BlockWriter::default(),
            tail: Tail::default(),
            infos: Infos::new(),
            age: Age::default(),
            read_only: true,
        }))
    }

    /// Something the user should be told about the opening: a damaged history was moved aside.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    pub(crate) fn wrap(&self) -> impl Fn(rusqlite::Error) -> StoreError + use<> {
        let path = self.path.clone();
        move |error| StoreError::new(&path, error)
    }
}

impl Drop for Store {
    /// Writes the samples still pending, as far as that is possible.
    fn drop(&mut self) {
        if !self.read_only {
            let _ = self.flush();
        }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A path in an SQLite URI: `%`, `?` and `#` have a meaning there.
fn uri_path(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

fn version(db: &Connection, path: &Path) -> Result<i64, StoreError> {
    let found: i64 = db
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|error| StoreError::new(path, error))?;
    if found > SCHEMA_VERSION {
        return Err(StoreError::Newer { path: path.to_path_buf(), found, known: SCHEMA_VERSION });
    }
    Ok(found)
}

fn open_checked(path: &Path) -> Result<Connection, StoreError> {
    let wrap = |error| StoreError::new(path, error);
    // Looked at before SQLite does: its "unable to open" does not tell why.
    let existed = fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| StoreError::io(path, error))?;
    if !existed {
        fs::set_permissions(path, fs::Permissions::from_mode(0o640))
            .map_err(|error| StoreError::io(path, error))?;
    }
    let db = Connection::open(path).map_err(wrap)?;
    db.busy_timeout(Duration::from_secs(2)).map_err(wrap)?;
    let version = version(&db, path)?;
    // Must come before the first table; later it has no effect.
    db.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(wrap)?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(wrap)?;
    db.pragma_update(None, "synchronous", "NORMAL").map_err(wrap)?;
    db.pragma_update(None, "wal_autocheckpoint", 64).map_err(wrap)?;
    db.pragma_update(None, "journal_size_limit", 512 << 10).map_err(wrap)?;
    db.pragma_update(None, "cache_size", -1024).map_err(wrap)?;
    if version == 0 {
        if existed && tables(&db).map_err(wrap)? > 0 {
            return Err(corrupt(path, "it has tables but no version"));
        }
        db.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"))
            .map_err(wrap)?;
    }
    db.execute_batch(TABLE).map_err(wrap)?;
    db.execute_batch(crate::age::TABLE).map_err(wrap)?;
    if version > 0 {
        check(&db, path)?;
    }
    Ok(db)
}

fn tables(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
}

fn corrupt(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Corrupt { path: path.to_path_buf(), reason: reason.into() }
}

fn check(db: &Connection, path: &Path) -> Result<(), StoreError> {
    let wrap = |error| StoreError::new(path, error);
    let size = fs::metadata(path).map(|meta| meta.len()).unwrap_or(0);
    if size <= FULL_CHECK_BYTES {
        let found: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(wrap)?;
        if found != "ok" {
            return Err(corrupt(path, found));
        }
    }
    for (table, columns) in [
        ("session", "id, boot_id, started_ns"),
        ("block", "id, session, tier, first_wall_ns, last_wall_ns, samples, data"),
        ("run", "id, boot_id, started_ns, ended_ns, outcome, doc"),
        ("stage", "run, seq, doc"),
        ("change", "run, seq, undone_ns, doc"),
        ("trial", "run, seq, doc"),
        ("tail", "id, session, part, first_wall_ns, last_wall_ns, samples, data"),
    ] {
        let sql = format!("SELECT {columns} FROM {table} ORDER BY 1 DESC LIMIT 1");
        let mut statement = db.prepare(&sql).map_err(|error| corrupt(path, error.to_string()))?;
        let mut rows = statement.query([]).map_err(wrap)?;
        rows.next().map_err(wrap)?;
    }
    Ok(())
}

/// Damaged files kept: a disk that damages one after the other is not to be filled with them.
const KEPT_ASIDE: u32 = 3;

/// Renames the file (and its log) to the first free `STEM.corrupt-N.EXT`, or in place of the last one.
fn move_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    let name = |n: u32| path.with_file_name(format!("{stem}.corrupt-{n}{extension}"));
    let aside = (1..KEPT_ASIDE).map(name).find(|aside| !aside.exists()).unwrap_or_else(|| name(KEPT_ASIDE));
    fs::rename(path, &aside).map_err(|error| StoreError::io(path, error))?;
    for suffix in ["-wal", "-shm"] {
        let aside = with_suffix(&aside, suffix);
        match fs::rename(with_suffix(path, suffix), &aside) {
            // There is none. One that is left of an earlier damaged file does not belong to this one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_file(aside)),
            moved => moved.map_err(|error| StoreError::io(path, error))?,
        }
    }
    Ok(aside)
}

/// Wall clock, nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
