//! Files that somebody else made: of a captured tree, or named on a command line. A named pipe would wait for ever and a
//! device may have no end, so only plain files are read, and not without a bound.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// Bytes of a file at most. `/proc` of a host with 100,000 tasks has no file a tenth as large.
pub const LIMIT: u64 = 64 << 20;

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The bytes of a plain file; links are followed.
///
/// # Errors
/// As the system says; the file is a directory, pipe, socket or device, or larger than [`LIMIT`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    plain(openat(CWD, path, FLAGS, Mode::empty())?, LIMIT)
}

/// The text of a plain file.
///
/// # Errors
/// As [`read`]; it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::other("is not text (UTF-8)"))
}

/// Opens a plain file below a directory that stands for `/`: links, absolute ones and `..` included, lead to places below
/// it.
///
/// # Errors
/// As [`read`]; a link that the kernel does not follow (`ELOOP`, `EXDEV`).
pub fn open_below(directory: &Path, relative: &Path) -> io::Result<OwnedFd> {
    let opened = resolve_below(directory, relative, FLAGS)?;
    check_plain(&File::from(opened.try_clone()?).metadata()?)?;
    Ok(opened)
}

/// The bytes of a plain file, found as by [`open_below`].
pub fn read_below(directory: &Path, relative: &Path) -> io::Result<Vec<u8>> {
    plain(resolve_below(directory, relative, FLAGS)?, LIMIT)
}

/// The entries of a directory, found as by [`open_below`].
pub fn list_below(directory: &Path, relative: &Path) -> io::Result<fs::ReadDir> {
    let opened = resolve_below(directory, relative, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
    fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

fn resolve_below(directory: &Path, relative: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let directory =
        openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(&directory, relative, flags, Mode::empty(), resolve)?)
}

fn check_plain(meta: &Metadata) -> io::Result<()> {
    if meta.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    if !meta.is_file() {
        return Err(io::Error::other("is not a plain file (a pipe, socket or device)"));
    }
    Ok(())
}

fn plain(opened: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::from(opened);
    let meta = file.metadata()?;
    check_plain(&meta)?;
    // The kernel's own files say 0 and may be of any length.
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(limit)).unwrap_or_default());
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("is larger than {} MiB", limit >> 20)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn pipes_devices_and_directories_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        for path in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains("not a plain file"), "{}: {error}", path.display());
        }
        assert_eq!(read(dir.path()).unwrap_err().raw_os_error(), Some(libc::EISDIR));
        // The kernel's files are plain ones.
        assert!(!read(Path::new("/proc/self/stat")).unwrap().is_empty());
    }

    #[test]
    fn what_is_larger_than_the_bound_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "12345678").unwrap();
        let open = || OwnedFd::from(File::open(&path).unwrap());
        assert_eq!(plain(open(), 8).unwrap(), b"12345678");
        assert!(plain(open(), 7).unwrap_err().to_string().contains("larger than"));
        // Sparse: no disk is used.
        File::create(&path).unwrap().set_len(LIMIT + 1).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn links_lead_to_places_below_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        crate::testing::lay(dir.path(), &[("secret", "outside"), ("tree/etc/inside", "inside")]);
        symlink("/etc/inside", tree.join("absolute")).unwrap();
        symlink("../../../etc/inside", tree.join("etc/upwards")).unwrap();
        symlink(dir.path().join("secret"), tree.join("out")).unwrap();
        symlink("../secret", tree.join("beside")).unwrap();
        for inside in ["absolute", "etc/upwards"] {
            assert_eq!(read_below(&tree, Path::new(inside)).unwrap(), b"inside");
        }
        for out in ["out", "beside", "../secret"] {
            let error = read_below(&tree, Path::new(out)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{out}: {error}");
        }
    }
}
