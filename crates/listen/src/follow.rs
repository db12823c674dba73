//! Files that are read again when they change: whoever renews a certificate or a token does not restart the server for it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// How often it is asked whether the files changed.
const LOOK: Duration = Duration::from_secs(1);

/// What changes when a file is written or replaced: device, inode, size, and times of data and of inode.
type FileStamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

/// Files as they were at some time; links are followed, so that one that is turned elsewhere is noticed.
#[derive(Clone, PartialEq, Eq)]
pub struct Stamp(Vec<(PathBuf, FileStamp)>);

impl Stamp {
    /// As they are now.
    pub fn of(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let stamp = |path: &PathBuf| {
            let file = std::fs::metadata(path).ok()?;
            let (data, inode) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
            Some((file.dev(), file.ino(), file.size(), data, inode))
        };
        Self(paths.into_iter().map(|path| (path.clone(), stamp(&path))).collect())
    }
}

/// Calls `read` whenever the files changed since `seen`; does not end. What is no good is reported, and what was read before stays in
/// use.
pub async fn follow(seen: Stamp, what: &str, read: impl Fn() -> anyhow::Result<()>) {
    let first = seen.0.first().map(|(path, _)| path.display().to_string()).unwrap_or_default();
    let (mut used, mut last) = (seen.clone(), seen);
    loop {
        tokio::time::sleep(LOOK).await;
        let stamp = Stamp::of(last.0.iter().map(|(path, _)| path.clone()));
        // One of two files may be written a moment after the other.
        let is_settled = stamp == last;
        last = stamp;
        if last == used || !is_settled {
            continue;
        }
        used = last.clone();
        match read() {
            Ok(()) => evenkeel_console::say!("evenkeel: the new {what} of {first} is in use"),
            Err(error) => {
                evenkeel_console::say!(
                    "evenkeel: the new {what} is not used, the one before it stays: {error:#}"
                );
            }
        }
    }
}
