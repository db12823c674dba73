//! `sieve`: tests numbers taken from one counter shared by all threads; an event is one number tested.
//!
//! A number is divided by every i below half of it until one divides, which is what the published times imply.
//! With `--read` each division is preceded by one `read()` of a byte: of a file of the thread's own, or of the same
//! file, each thread with its own descriptor or all with one (`--shared-fd`), whose position they then contend for.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::load::{Context, LoadError};

/// Divisions between two looks at the clock; fewer where each does a system call.
const STEPS: u64 = 1 << 14;
/// Size of the files read.
const FILE_BYTES: usize = 1 << 16;

/// What is read in each division step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadMode {
    /// Nothing.
    None,
    /// A file of the thread's own.
    Own,
    /// The same file as the other threads.
    Same,
}

/// Parameters.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Sieve {
    /// First number tested.
    #[arg(long, value_name = "N", default_value_t = 1_000_001)]
    pub from: u64,
    /// Last number tested.
    #[arg(long, value_name = "N", default_value_t = 1_010_000)]
    pub to: u64,
    /// One read() in each division step: none, of an own file, or of the same file.
    #[arg(long, value_enum, default_value_t = ReadMode::None)]
    pub read: ReadMode,
    /// With --read same: one descriptor for all threads.
    #[arg(long)]
    pub shared_fd: bool,
    /// Where the files to read are made (and removed at once).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[arg(skip)]
    #[serde(skip)]
    shared: Shared,
}

/// What the threads share.
#[derive(Debug, Clone, Default)]
struct Shared {
    next: Arc<AtomicU64>,
    primes: Arc<AtomicU64>,
    files: Vec<Arc<File>>,
}

impl PartialEq for Sieve {
    fn eq(&self, other: &Self) -> bool {
        let key = |s: &Self| (s.from, s.to, s.read, s.shared_fd, s.dir.clone());
        key(self) == key(other)
    }
}

/// Whether a number is prime, looking up from dividing now and then; `None` when told to stop.
fn is_prime(
    n: u64,
    mut step: impl FnMut() -> Result<(), LoadError>,
    mut stop: impl FnMut() -> bool,
) -> Result<Option<bool>, LoadError> {
    for divisor in 2..n / 2 {
        step()?;
        if black_box(n).is_multiple_of(divisor) {
            return Ok(Some(false));
        }
        if divisor % STEPS == 0 && stop() {
            return Ok(None);
        }
    }
    Ok(Some(n > 1 && n != 4))
}

/// Divisions a second of one undisturbed thread: the best of many short passes over one prime, some 20 ms in all.
pub fn divisions_per_s() -> Option<f64> {
    const PRIME: u64 = 1_000_003;
    let pass = || {
        let begun = Instant::now();
        let prime = is_prime(black_box(PRIME), || Ok(()), || false).ok()??;
        prime.then(|| begun.elapsed().as_secs_f64())
    };
    let best = (0..20).filter_map(|_| pass()).min_by(f64::total_cmp).filter(|s| *s > 0.0)?;
    // By every number from 2 to below its half.
    Some((PRIME / 2 - 2) as f64 / best)
}

impl Sieve {
    /// Makes the files: unlinked at once, so that nothing is left whatever happens.
    fn make_files(&self, threads: u32) -> Result<Vec<Arc<File>>, LoadError> {
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let make = |n: u32| -> Result<(PathBuf, File), LoadError> {
            let path = dir.join(format!(".evenkeel-sieve-{}-{n}", std::process::id()));
            let made = || -> std::io::Result<File> {
                let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
                file.write_all(&[b'x'; FILE_BYTES])?;
                file.rewind()?;
                Ok(file)
            };
            match made() {
                Ok(file) => Ok((path, file)),
                Err(error) => {
                    let _ = std::fs::remove_file(&path);
                    Err(LoadError::system(format!("cannot make {}", path.display()), error))
                }
            }
        };
        let gone = |path: PathBuf| {
            std::fs::remove_file(&path)
                .map_err(|e| LoadError::system(format!("cannot remove {}", path.display()), e))
        };
        match self.read {
            ReadMode::None => Ok(Vec::new()),
            ReadMode::Own => (0..threads)
                .map(|n| {
                    let (path, file) = make(n)?;
                    gone(path)?;
                    Ok(Arc::new(file))
                })
                .collect(),
            ReadMode::Same => {
                let (path, file) = make(0)?;
                let first = Arc::new(file);
                let mut files = vec![first.clone()];
                let mut failed = None;
                for _ in 1..threads {
                    if self.shared_fd {
                        files.push(first.clone());
                        continue;
                    }
                    match File::open(&path) {
                        Ok(file) => files.push(Arc::new(file)),
                        Err(e) => {
                            failed = Some(LoadError::system(format!("cannot open {}", path.display()), e))
                        }
                    }
                }
                gone(path)?;
                failed.map_or(Ok(files), Err)
            }
        }
    }
}

impl Workload for Sieve {
    fn check(&self) -> Result<(), String> {
        if self.from > self.to {
            return Err(format!("--from {} is above --to {}", self.from, self.to));
        }
        if self.to > 1 << 60 {
            return Err(format!("--to {}: at most 2^60", self.to));
        }
        if self.shared_fd && self.read != ReadMode::Same {
            return Err("--shared-fd needs --read same".into());
        }
        Ok(())
    }

    fn wanted_pct(&self) -> Option<f64> {
        // Disk reads may block; arithmetic does not.
        (self.read == ReadMode::None).then_some(100.0)
    }

    fn prepare(&mut self, threads: u32) -> Result<(), LoadError> {
        self.shared = Shared {
            next: Arc::new(AtomicU64::new(self.from)),
            primes: Arc::default(),
            files: self.make_files(threads)?,
        };
        Ok(())
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let file = self.shared.files.get(context.thread() as usize).cloned();
        let step = || match &file {
            None => Ok(()),
            Some(file) => read_a_byte(file),
        };
        while context.claim() {
            let n = self.shared.next.fetch_add(1, Ordering::Relaxed);
            if n > self.to {
                break;
            }
            match is_prime(n, step, || context.over())? {
                None => break,
                Some(prime) => {
                    self.shared.primes.fetch_add(u64::from(prime), Ordering::Relaxed);
                    context.done(1);
                }
            }
        }
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "sieve".into(),
            format!("--from={}", self.from),
            format!("--to={}", self.to),
            format!("--read={}", format!("{:?}", self.read).to_lowercase()),
        ];
        arguments.extend(self.shared_fd.then(|| "--shared-fd".into()));
        arguments.extend(self.dir.as_ref().map(|dir| format!("--dir={}", dir.display())));
        arguments
    }
}

/// One `read()`; from the start again at the end of the file.
fn read_a_byte(mut file: &File) -> Result<(), LoadError> {
    let mut byte = [0];
    match file.read(&mut byte) {
        Ok(0) => file.rewind().map_err(|e| LoadError::system("cannot rewind the file read", e)),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(()),
        Err(e) => Err(LoadError::system("cannot read", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{LoadSpec, run};
    use crate::workload::Kind;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn primes_are_told_from_other_numbers() {
        let primes: Vec<u64> =
            (0..30).filter(|n| is_prime(*n, || Ok(()), || false).unwrap().unwrap()).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert_eq!(is_prime(1_000_003, || Ok(()), || true).unwrap(), None);
    }

    #[test]
    fn threads_share_the_numbers_and_each_is_tested_once() {
        for (read, shared_fd) in
            [(ReadMode::None, false), (ReadMode::Own, false), (ReadMode::Same, false), (ReadMode::Same, true)]
        {
            let dir = tempfile::tempdir().unwrap();
            let sieve = Sieve {
                from: 1,
                to: 400,
                read,
                shared_fd,
                dir: Some(dir.path().into()),
                shared: Shared::default(),
            };
            let mut spec = LoadSpec::new(Kind::Sieve(sieve));
            spec.common.threads = Some(3);
            let report = run(&spec, &AtomicBool::new(false)).unwrap();
            assert_eq!(report.events, 400);
            let Kind::Sieve(ran) = &report.load else { panic!() };
            assert_eq!(ran.shared.primes.load(Ordering::Relaxed), 78);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files left");
        }
    }
}
