//! The loop of every experiment: each repetition is a pass over all points, each point of it a cell, and the record is on
//! disk after every cell, so that an interrupted experiment goes on with what is missing.
//!
//! ```text
//! folder ─ open ─> record ─ order ─> cells not yet done ─ Bench::cell ─> record.json after each
//! ```
//!
//! What is measured in a cell, and what its record holds, is the [`Bench`]'s: the laboratory's own (tenants that compete in
//! groups) and those of tenants' networks and weights ([`crate::fairness`]).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_experiment::file::Order;
use evenkeel_experiment::record::{CellRecord, FILE, Host, RecordError};
use evenkeel_experiment::shard::Shard;
use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::RunError;

/// The cells of an experiment: each repetition is a pass over all points.
#[derive(Debug, Clone, PartialEq)]
pub struct Passes {
    /// The points by name, in the order written.
    pub labels: Vec<String>,
    /// How often each is measured.
    pub repetitions: u32,
    /// Their order in a pass.
    pub order: Order,
    /// What the order is drawn with.
    pub seed: u64,
    /// The part that is run; `None` for all of it.
    pub shard: Option<Shard>,
}

/// What an experiment measures, cell by cell.
pub trait Bench {
    type Record: CellRecord;

    /// Whether a record found in the folder is of this experiment, with the same settings.
    fn is_same(&self, record: &Self::Record) -> bool;

    fn host(&self) -> Host;

    /// A record without cells: the host, and what was looked at beforehand.
    fn begin(&mut self) -> Self::Record;

    /// Measures a point once; `None` when it was stopped before its end. `part` is told how much is done, 0..1.
    fn cell(
        &mut self,
        record: &mut Self::Record,
        point: usize,
        repetition: u32,
        part: &mut dyn FnMut(f64),
    ) -> Result<Option<<Self::Record as CellRecord>::Cell>, RunError>;
}

/// Where results go, and what is told meanwhile.
pub struct Run<'a> {
    /// The result folder; made when missing.
    pub folder: &'a Path,
    /// Start over although the folder holds results.
    pub again: bool,
    /// Set to end the experiment.
    pub stop: &'a AtomicBool,
    pub progress: &'a mut dyn FnMut(Progress<'_>),
}

/// Progress of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    pub done: usize,
    pub of: usize,
    /// The cell at hand, or the one that was done last.
    pub label: &'a str,
    /// Part of it that is done, 0..1.
    pub part: f64,
}

impl Run<'_> {
    /// Runs what is missing. The record is complete unless it was stopped.
    ///
    /// # Errors
    /// The folder cannot be used or holds results of something else, or a cell could not go on.
    pub fn cells<B: Bench>(&mut self, passes: &Passes, bench: &mut B) -> Result<B::Record, RunError> {
        let mut record = self.open(bench)?;
        let cells = passes.cells();
        let of = cells.len();
        for (point, repetition) in cells {
            if record.has(point, repetition) {
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let (done, label) = (record.cells().len(), passes.labels[point].as_str());
            let mut part = |part| (self.progress)(Progress { done, of, label, part });
            part(0.0);
            let Some(cell) = bench.cell(&mut record, point, repetition, &mut part)? else { break };
            record.add(cell, now());
            record.save(self.folder)?;
            (self.progress)(Progress { done: done + 1, of, label, part: 0.0 });
        }
        Ok(record)
    }

    /// The record to go on with: the folder's, if it is of the same experiment, else a new one.
    fn open<B: Bench>(&self, bench: &mut B) -> Result<B::Record, RunError> {
        let folder = self.folder;
        std::fs::create_dir_all(folder).map_err(|e| {
            RunError::system(format!("cannot make the result folder {}", folder.display()), e)
        })?;
        if !self.again && folder.join(FILE).exists() {
            let found = match B::Record::load(folder) {
                Ok(record) if bench.is_same(&record) => {
                    // What is complete is only shown.
                    let differs = bench.host().differs_from(record.host()).filter(|_| !record.is_complete());
                    let Some(differs) = differs else { return Ok(record) };
                    format!("of another host, or of this one before it was changed ({differs})")
                }
                Ok(_) => "of another experiment, of other settings, or merged of shards".to_owned(),
                Err(RecordError::Form { what, .. }) => format!("of another kind ({what})"),
                Err(error) => return Err(error.into()),
            };
            return Err(RunError::Usage(format!(
                "{} holds results {found}; choose another folder (--out DIR), or start over (--again)",
                folder.display()
            )));
        }
        let record = bench.begin();
        // A full disk or a folder that cannot be written is reported before anything is run.
        record.save(folder)?;
        Ok(record)
    }
}

impl Passes {
    /// All of these points, in orders that are the same in each run.
    pub fn shuffled<P: ToString>(points: &[P], repetitions: u32) -> Self {
        let labels = points.iter().map(P::to_string).collect();
        Self { labels, repetitions, order: Order::Shuffled, seed: 1, shard: None }
    }

    /// The cells, point and repetition, in the order in which they are run. A shard has some of the passes, each as it is
    /// without shards.
    pub fn cells(&self) -> Vec<(usize, u32)> {
        let mut cells = Vec::new();
        let has = |repetition: &u32| {
            self.shard.is_none_or(|shard| shard.has_repetition(self.repetitions, *repetition))
        };
        for repetition in (0..self.repetitions).filter(has) {
            let mut pass: Vec<usize> = (0..self.labels.len()).collect();
            if self.order == Order::Shuffled {
                let mut random =
                    rand_pcg::Pcg64::seed_from_u64(self.seed.wrapping_add(u64::from(repetition)));
                pass.shuffle(&mut random);
            }
            cells.extend(pass.into_iter().map(|point| (point, repetition)));
        }
        cells
    }
}

/// RFC 3339.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().to_string()
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::record::{Cell, Point, Record, SCHEMA};

    use super::*;

    fn passes(points: usize, repetitions: u32) -> Passes {
        Passes::shuffled(&vec![""; points], repetitions)
    }

    #[test]
    fn every_cell_is_run_once_in_an_order_that_depends_on_the_seed_alone() {
        let drawn = passes(10, 3).cells();
        assert_eq!(drawn, passes(10, 3).cells());
        let mut sorted = drawn.clone();
        sorted.sort_unstable_by_key(|(p, r)| (*r, *p));
        assert_eq!(sorted.len(), 30);
        assert_ne!(drawn, sorted);
        assert_eq!(Passes { order: Order::Written, ..passes(10, 3) }.cells(), sorted);
        let pass = |n: usize| drawn[10 * n..10 * (n + 1)].iter().map(|(p, _)| *p).collect::<Vec<_>>();
        assert_ne!(pass(0), pass(1));
        let shard = |index| Passes { shard: Some(Shard { index, count: 2 }), ..passes(10, 3) }.cells();
        assert_eq!([shard(0), shard(1)].concat(), drawn, "shards run the same passes");
    }

    /// Stops in the midst of the cell of this number; on a host of this kernel.
    struct Counter<'a>(&'a str, usize, &'a AtomicBool, &'a str);

    impl Bench for Counter<'_> {
        type Record = Record;

        fn is_same(&self, record: &Record) -> bool {
            record.name == self.0
        }

        fn host(&self) -> Host {
            Host { kernel: Some(self.3.into()), ..Host::default() }
        }

        fn begin(&mut self) -> Record {
            let host = self.host();
            Record { schema: SCHEMA.into(), name: self.0.into(), host, planned_cells: 6, ..Record::default() }
        }

        fn cell(
            &mut self,
            record: &mut Record,
            index: usize,
            repetition: u32,
            part: &mut dyn FnMut(f64),
        ) -> Result<Option<Cell>, RunError> {
            part(0.5);
            if record.cells.len() == self.1 {
                self.2.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            let point = Point { index, ..Point::default() };
            Ok(Some(Cell { point, repetition, ..Cell::default() }))
        }
    }

    fn run(folder: &Path, name: &str, until: usize, again: bool) -> Result<(Record, usize), RunError> {
        run_on("6.12", folder, name, until, again)
    }

    fn run_on(
        kernel: &str,
        folder: &Path,
        name: &str,
        until: usize,
        again: bool,
    ) -> Result<(Record, usize), RunError> {
        let stop = AtomicBool::new(false);
        let mut told = 0;
        let mut progress = |p: Progress<'_>| told += usize::from(p.part > 0.0 && p.of == 6);
        let mut run = Run { folder, again, stop: &stop, progress: &mut progress };
        let record = run.cells(&passes(3, 2), &mut Counter(name, until, &stop, kernel))?;
        Ok((record, told))
    }

    #[test]
    fn what_was_interrupted_goes_on_and_what_is_done_is_not_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new");
        let (part, told) = run(&folder, "x", 4, false).unwrap();
        assert_eq!((part.cells.len(), told, &part.finished), (4, 5, &None));
        assert_eq!(Record::load(&folder).unwrap(), part);
        let (whole, told) = run(&folder, "x", 9, false).unwrap();
        assert_eq!((whole.cells.len(), told, whole.cells[..4].to_vec()), (6, 2, part.cells));
        assert!(whole.finished.is_some());
        // Complete: nothing is run, and the end stays when it was.
        assert_eq!(run(&folder, "x", 9, false).unwrap(), (whole, 0));
    }

    #[test]
    fn results_of_something_else_are_not_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), "x", 9, false).unwrap();
        let refused = |name| run(dir.path(), name, 9, false).unwrap_err();
        let error = refused("y");
        assert!(matches!(error, RunError::Usage(_)), "{error}");
        assert!(error.to_string().contains("other settings") && error.to_string().contains("--again"));
        assert_eq!(run(dir.path(), "y", 9, true).unwrap().0.name, "y");
        std::fs::write(dir.path().join(FILE), "{\"schema\":\"other\"}").unwrap();
        assert!(refused("y").to_string().contains("another kind"), "{}", refused("y"));
    }

    #[test]
    fn what_was_begun_under_another_kernel_is_shown_and_not_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), "x", 4, false).unwrap();
        let error = run_on("7.1", dir.path(), "x", 9, false).unwrap_err().to_string();
        assert!(error.contains("kernel \"7.1\" and not \"6.12\"") && error.contains("--again"), "{error}");
        assert_eq!(Record::load(dir.path()).unwrap().cells.len(), 4);
        let (whole, _) = run(dir.path(), "x", 9, false).unwrap();
        assert_eq!(run_on("7.1", dir.path(), "x", 9, false).unwrap(), (whole, 0));
    }
}
