//! Samples: what a target is tried with first, and what changes are made to.

use std::io;
use std::path::{Path, PathBuf};

use crate::{LONGEST, Target};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where a target's own samples are, and where what fails is kept.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// All samples of a target with their files: its folder, and what it shares with other tests. Those longer than an input may be are
/// cut.
pub fn samples(target: &Target) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    let own = folder(target);
    if own.is_dir() {
        files.extend(list(&own, "")?);
    }
    for named in target.samples {
        let (folder, ending) = match named.rsplit_once("/*") {
            Some((folder, ending)) => (repository().join(folder), ending),
            None => {
                files.push(repository().join(named));
                continue;
            }
        };
        let found = list(&folder, ending)?;
        if found.is_empty() {
            return Err(io::Error::other(format!("{named}: there is no such file")));
        }
        files.extend(found);
    }
    let read = |path: PathBuf| {
        let mut bytes = std::fs::read(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        bytes.truncate(LONGEST);
        Ok((path, bytes))
    };
    files.into_iter().map(read).collect()
}

/// Files in a folder and those below whose path ends so.
fn list(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(list(&path, ending)?);
        } else if path.to_string_lossy().ends_with(ending) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Keeps an input that failed, so that every later run tries it; the file.
pub fn keep(target: &Target, input: &[u8]) -> io::Result<PathBuf> {
    let folder = folder(target);
    std::fs::create_dir_all(&folder)?;
    // FNV-1a: a name that depends on the content alone.
    let sum = input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let path = folder.join(format!("found-{sum:016x}"));
    std::fs::write(&path, input)?;
    Ok(path)
}
