//! The directory below which `/proc` and `/sys` are looked for.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::{ParseError, ReadError, optional};
use crate::input;

/// The living host (`/`) or a captured tree.
///
/// A tree made by `evenkeel capture DIR` has two samples, `DIR/0` and `DIR/1`; the second one is complete, the first
/// holds the counters only. Given `DIR`, [`Root::at`] means `DIR/1`; [`Root::earlier`] is the other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    dir: PathBuf,
}

impl Root {
    /// The host this program runs on.
    pub fn host() -> Self {
        Self { dir: "/".into() }
    }

    /// A captured tree, or any directory that holds `proc` and `sys`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        let second = dir.join("1");
        if !dir.join("proc").is_dir() && second.join("proc").is_dir() {
            Self { dir: second }
        } else {
            Self { dir }
        }
    }

    /// Whether this is the living host, where system calls tell more than files.
    pub fn is_live(&self) -> bool {
        self.dir == Path::new("/")
    }

    /// The first sample of a captured tree of two; `None` for the host and for a tree of one.
    pub fn earlier(&self) -> Option<Self> {
        let zero = self.dir.parent()?.join("0");
        (self.dir.file_name()? == "1" && zero.join("proc").is_dir()).then_some(Self { dir: zero })
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a file is, given without a leading slash: `root.path("proc/stat")`. A leading slash is ignored.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        let relative = relative.as_ref();
        self.dir.join(relative.strip_prefix("/").unwrap_or(relative))
    }

    /// The text of a file. Bytes that are not UTF-8 are replaced (names of tasks may hold any byte). In a tree, links are
    /// followed as if it were `/`, and what is no plain file is refused.
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, ReadError> {
        self.read_path(&self.path(relative))
    }

    /// The same for a path that [`Root::path`] gave.
    pub fn read_path(&self, path: &Path) -> Result<String, ReadError> {
        match self.below(path) {
            None => read_file(path),
            Some(below) => {
                let bytes =
                    input::read_below(&self.dir, below).map_err(|error| ReadError::io(path, error))?;
                Ok(text(bytes))
            }
        }
    }

    /// Opens a file, by a path that [`Root::path`] gave, with the precautions of [`Root::read`].
    pub fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.below(path) {
            None => Ok(std::fs::File::open(path)?.into()),
            Some(below) => input::open_below(&self.dir, below),
        }
    }

    /// A path of this tree, seen from its top; `None` on the host, whose files are the kernel's.
    fn below<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        if self.is_live() { None } else { Some(path.strip_prefix(&self.dir).unwrap_or(path)) }
    }

    fn list(&self, path: &Path) -> Result<fs::ReadDir, ReadError> {
        let entries = match self.below(path) {
            None => fs::read_dir(path),
            Some(below) => input::list_below(&self.dir, below),
        };
        entries.map_err(|error| ReadError::io(path, error))
    }

    /// The text of a file, `None` if there is none.
    pub fn read_optional(&self, relative: impl AsRef<Path>) -> Result<Option<String>, ReadError> {
        optional(self.read(relative))
    }

    /// Reads and parses a file, naming it in the error.
    pub fn parse<T>(
        &self,
        relative: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<T, ReadError> {
        let path = self.path(relative);
        let text = self.read_path(&path)?;
        parse(&text).map_err(|error| error.at(&path).into())
    }

    /// Like [`Root::parse`], `None` if the file does not exist.
    pub fn parse_optional<T>(
        &self,
        relative: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Result<Option<T>, ReadError> {
        optional(self.parse(relative, parse))
    }

    /// Names in a directory that are text, ascending.
    pub fn names(&self, relative: impl AsRef<Path>) -> Result<Vec<String>, ReadError> {
        let entries = self.list(&self.path(relative))?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Names in a directory that are numbers, ascending: processes, threads.
    pub fn numbers(&self, relative: impl AsRef<Path>) -> Result<Vec<u32>, ReadError> {
        self.numbered(relative, "")
    }

    /// Numbers that follow a prefix in the names of a directory, ascending: `cpu0`, `node3`, `index2`.
    pub fn numbered(&self, relative: impl AsRef<Path>, prefix: &str) -> Result<Vec<u32>, ReadError> {
        let entries = self.list(&self.path(relative))?;
        let mut numbers: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The text of a file, invalid UTF-8 replaced.
pub fn read_file(path: &Path) -> Result<String, ReadError> {
    fs::read(path).map(text).map_err(|error| ReadError::io(path, error))
}

fn text(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_of_two_samples_is_its_second() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("0/proc")).unwrap();
        fs::create_dir_all(dir.path().join("1/proc/17")).unwrap();
        fs::write(dir.path().join("1/proc/stat"), b"\xff").unwrap();
        let root = Root::at(dir.path());
        assert_eq!(root.dir(), dir.path().join("1"));
        assert_eq!(root.earlier().unwrap().dir(), dir.path().join("0"));
        assert_eq!(root.numbers("proc").unwrap(), [17]);
        assert_eq!(root.read("/proc/stat").unwrap(), "\u{fffd}");
        assert_eq!(root.read_optional("proc/nothing").unwrap(), None);
        assert!(!root.is_live() && Root::host().is_live() && Root::host().earlier().is_none());
    }
    #[test]
    fn a_tree_is_not_left_by_links_nor_by_lists_and_a_pipe_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        let files = [("outside/4242/x", ""), ("outside/secret", "secret"), ("tree/proc/real", "inside")];
        crate::testing::lay(dir.path(), &files);
        std::os::unix::fs::symlink("/proc/real", tree.join("proc/link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside/secret"), tree.join("proc/out")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), tree.join("proc/tasks")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("proc/pipe"), 0o600.into()).unwrap();
        let root = Root::at(&tree);
        assert_eq!(root.read("proc/link").unwrap(), "inside");
        assert_eq!(root.read_optional("proc/out").unwrap(), None);
        assert!(root.numbers("proc/tasks").is_err() && root.names("proc").unwrap().len() == 5);
        let error = root.read("proc/pipe").unwrap_err().to_string();
        assert!(error.contains("proc/pipe") && error.contains("not a plain file"), "{error}");
        assert!(root.open(&root.path("proc/pipe")).is_err() && root.open(&root.path("proc/real")).is_ok());
    }
}
