//! `sieve`: tests numbers taken from one counter shared by all threads; an event is one number tested.
//!
//! A number is divided by every i below half of it until one divides, which is what the published times imply.
//! With `--read` each division is preceded by one `read()` of a byte: of a file of the thread's own, or of the same
//! file, each thread with its own descriptor or all with one (`--shared-fd`). The kernel locks the position of an open
//! file for the whole of a `read()` (`f_pos_lock`, `fdget_pos` in `fs/file.c`): through one descriptor threads wait for
//! each other. With `--pread` each thread reads at a position of its own, for which the kernel takes no such lock.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
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
    /// With --read: pread() at a position of each thread's own, which takes no lock of the descriptor's position.
    #[arg(long)]
    #[serde(default)]
    pub pread: bool,
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
    /// Bytes read by the threads that have ended.
    bytes: Arc<AtomicU64>,
    /// The sum of their values: it tells which bytes of the file they were.
    sum: Arc<AtomicU64>,
}

/// One thread's way of reading.
#[derive(Debug)]
struct Reader {
    file: Arc<File>,
    /// The position of its own, for `pread()`.
    at: Option<u64>,
    bytes: u64,
    sum: u64,
}

impl Reader {
    /// Reads one byte; at the end of the file it goes back to the start and reads none.
    fn step(&mut self) -> Result<(), LoadError> {
        let mut file: &File = &self.file;
        let mut byte = [0];
        let read = match self.at {
            Some(at) => file.read_at(&mut byte, at),
            None => file.read(&mut byte),
        };
        match (read, &mut self.at) {
            (Ok(0), Some(at)) => *at = 0,
            (Ok(0), None) => {
                file.rewind().map_err(|e| LoadError::system("cannot rewind the file read", e))?;
            }
            (Ok(_), at) => {
                if let Some(at) = at {
                    *at += 1;
                }
                self.bytes += 1;
                self.sum += u64::from(byte[0]);
            }
            (Err(e), _) if e.kind() == std::io::ErrorKind::Interrupted => {}
            (Err(e), _) => return Err(LoadError::system("cannot read", e)),
        }
        Ok(())
    }
}

/// What is in the files: a byte tells where it stands.
fn content() -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at % 251) as u8).collect()
}

impl PartialEq for Sieve {
    fn eq(&self, other: &Self) -> bool {
        let key = |s: &Self| (s.from, s.to, s.read, s.shared_fd, s.pread, s.dir.clone());
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
    /// Whether all threads read at one position, one after the other.
    pub fn shares_position(&self) -> bool {
        self.read == ReadMode::Same && self.shared_fd && !self.pread
    }

    /// How a thread reads; `None` where nothing is read.
    fn reader(&self, thread: u32) -> Option<Reader> {
        let file = self.shared.files.get(thread as usize)?.clone();
        Some(Reader { file, at: self.pread.then_some(0), bytes: 0, sum: 0 })
    }

    /// Makes the files: unlinked at once, so that nothing is left whatever happens.
    fn make_files(&self, threads: u32) -> Result<Vec<Arc<File>>, LoadError> {
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let make = |n: u32| -> Result<(PathBuf, File), LoadError> {
            let path = dir.join(format!(".evenkeel-sieve-{}-{n}", std::process::id()));
            let made = || -> std::io::Result<File> {
                let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
                file.write_all(&content())?;
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
        if self.pread && self.read == ReadMode::None {
            return Err("--pread needs --read own or --read same".into());
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
            files: self.make_files(threads)?,
            ..Shared::default()
        };
        Ok(())
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let mut reader = self.reader(context.thread());
        while context.claim() {
            let n = self.shared.next.fetch_add(1, Ordering::Relaxed);
            if n > self.to {
                break;
            }
            let found = match &mut reader {
                None => is_prime(n, || Ok(()), || context.over())?,
                Some(reader) => is_prime(n, || reader.step(), || context.over())?,
            };
            let Some(prime) = found else { break };
            self.shared.primes.fetch_add(u64::from(prime), Ordering::Relaxed);
            context.done(1);
        }
        if let Some(reader) = reader {
            self.shared.bytes.fetch_add(reader.bytes, Ordering::Relaxed);
            self.shared.sum.fetch_add(reader.sum, Ordering::Relaxed);
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
        arguments.extend(self.pread.then(|| "--pread".into()));
        arguments.extend(self.dir.as_ref().map(|dir| format!("--dir={}", dir.display())));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::load::{LoadSpec, run};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn primes_are_told_from_other_numbers() {
        let primes: Vec<u64> =
            (0..30).filter(|n| is_prime(*n, || Ok(()), || false).unwrap().unwrap()).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert_eq!(is_prime(1_000_003, || Ok(()), || true).unwrap(), None);
    }

    /// Numbers 1 to 400, read so.
    fn sieve(read: ReadMode, shared_fd: bool, pread: bool, dir: &std::path::Path) -> Sieve {
        let dir = Some(dir.into());
        Sieve { from: 1, to: 400, read, shared_fd, pread, dir, shared: Shared::default() }
    }

    const WAYS: [(ReadMode, bool, bool); 7] = [
        (ReadMode::None, false, false),
        (ReadMode::Own, false, false),
        (ReadMode::Own, false, true),
        (ReadMode::Same, false, false),
        (ReadMode::Same, false, true),
        (ReadMode::Same, true, false),
        (ReadMode::Same, true, true),
    ];

    #[test]
    fn threads_share_the_numbers_and_each_is_tested_once() {
        for (read, shared_fd, pread) in WAYS {
            let dir = tempfile::tempdir().unwrap();
            let mut spec = LoadSpec::new(Kind::Sieve(sieve(read, shared_fd, pread, dir.path())));
            spec.common.threads = Some(3);
            let report = run(&spec, &AtomicBool::new(false)).unwrap();
            assert_eq!(report.events, 400);
            let Kind::Sieve(ran) = &report.load else { panic!() };
            assert_eq!(ran.shared.primes.load(Ordering::Relaxed), 78);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files left");
        }
    }

    #[test]
    fn through_one_descriptor_two_threads_read_what_one_reader_would() {
        const TO: u64 = 1000;
        let mut steps = 0usize;
        for n in 1..=TO {
            let step = || {
                steps += 1;
                Ok(())
            };
            is_prime(n, step, || false).unwrap();
        }
        // Nobody reaches the end of the file: every byte is read once.
        assert!((10_000..FILE_BYTES).contains(&steps), "{steps}");
        let one_reader: u64 = content()[..steps].iter().map(|byte| u64::from(*byte)).sum();
        for round in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let load = Sieve { to: TO, ..sieve(ReadMode::Same, true, false, dir.path()) };
            let mut spec = LoadSpec::new(Kind::Sieve(load));
            spec.common.threads = Some(2);
            let report = run(&spec, &AtomicBool::new(false)).unwrap();
            let Kind::Sieve(ran) = &report.load else { panic!() };
            assert_eq!(ran.shared.bytes.load(Ordering::Relaxed), steps as u64, "round {round}");
            assert_eq!(ran.shared.sum.load(Ordering::Relaxed), one_reader, "round {round}");
        }
    }

    #[test]
    fn one_descriptor_is_one_position_unless_read_by_pread() {
        for (read, shared_fd, pread) in WAYS.into_iter().skip(1) {
            let dir = tempfile::tempdir().unwrap();
            let mut load = sieve(read, shared_fd, pread, dir.path());
            load.prepare(2).unwrap();
            let mut readers = [load.reader(0).unwrap(), load.reader(1).unwrap()];
            // By turns, three bytes each.
            for _ in 0..3 {
                readers.iter_mut().for_each(|reader| reader.step().unwrap());
            }
            let sums = readers.map(|reader| reader.sum);
            let expected = if load.shares_position() { [2 + 4, 1 + 3 + 5] } else { [1 + 2; 2] };
            assert_eq!(sums, expected, "{read:?} {shared_fd} {pread}");
        }
    }

    #[test]
    fn the_end_of_the_file_is_followed_by_its_start() {
        for pread in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut load = sieve(ReadMode::Own, false, pread, dir.path());
            load.prepare(1).unwrap();
            let mut reader = load.reader(0).unwrap();
            // The step at the end reads nothing.
            for _ in 0..=FILE_BYTES + 2 {
                reader.step().unwrap();
            }
            let whole: u64 = content().iter().map(|byte| u64::from(*byte)).sum();
            assert_eq!((reader.bytes, reader.sum), (FILE_BYTES as u64 + 2, whole + 1), "pread {pread}");
        }
    }

    #[test]
    fn pread_without_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sieve(ReadMode::None, false, true, dir.path()).check().unwrap_err().contains("--pread"));
        assert!(sieve(ReadMode::Own, true, false, dir.path()).check().unwrap_err().contains("--shared-fd"));
        assert!(sieve(ReadMode::Same, true, true, dir.path()).check().is_ok());
    }
}
