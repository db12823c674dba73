//! Recording that never stands in the way: an agent goes on without history when there is none to be had.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_base::run::{ChangeRecord, RunRecord, Stage};
use evenkeel_base::{Histogram, Observation, Sample};

use crate::db::{Limits, Store, StoreError};
use crate::promises::PromiseTime;
use crate::runs::{RunId, TrialWindow};

/// How long recording rests after a failed write (a full disk may be emptied).
const REST: Duration = Duration::from_secs(60);

/// Writes the history of one run and swallows failures, telling the first of each kind once.
#[derive(Debug)]
pub struct Recorder {
    store: Option<Store>,
    path: PathBuf,
    limits: Limits,
    run: Option<RunId>,
    notes: Vec<String>,
    last_problem: Option<String>,
    rest_until: Option<Instant>,
    /// Lengths of waits not yet written: the minute, and by container.
    waits: (u64, BTreeMap<String, Histogram>),
}

impl Recorder {
    /// Opens the history. Whatever goes wrong is a note; recording then does nothing.
    pub fn open(path: &Path, limits: Limits) -> Self {
        let mut recorder = Self {
            store: None,
            path: path.to_path_buf(),
            limits,
            run: None,
            notes: Vec::new(),
            last_problem: None,
            rest_until: None,
            waits: Default::default(),
        };
        recorder.reopen();
        recorder
    }

    /// A recorder that keeps nothing.
    pub fn off() -> Self {
        Self {
            store: None,
            path: PathBuf::new(),
            limits: Limits::default(),
            run: None,
            notes: Vec::new(),
            last_problem: None,
            rest_until: None,
            waits: Default::default(),
        }
    }

    fn reopen(&mut self) {
        match Store::open(&self.path, self.limits) {
            Ok(store) => {
                self.notes.extend(store.note().map(str::to_owned));
                self.store = Some(store);
            }
            Err(error) => self.tell(&error),
        }
    }

    fn tell(&mut self, error: &StoreError) {
        let text = format!("{error}; going on without history");
        if self.last_problem.as_deref() != Some(text.as_str()) {
            self.notes.push(text.clone());
            self.last_problem = Some(text);
        }
    }

    /// What the user should be told since the last call: each once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Whether the history is being written.
    pub fn is_recording(&self) -> bool {
        self.store.is_some() && self.rest_until.is_none()
    }

    /// The run begun, if it could be recorded.
    pub fn run_id(&self) -> Option<RunId> {
        self.run
    }

    /// The store, for queries.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    fn with<T>(&mut self, write: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Option<T> {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.rest_until = None;
        match write(self.store.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.tell(&error);
                if error.is_corrupt() {
                    // The damaged file is moved aside by opening it again; the run's number means nothing there.
                    self.store = None;
                    self.run = None;
                    self.reopen();
                } else {
                    self.rest_until = Some(Instant::now() + REST);
                }
                None
            }
        }
    }

    fn with_run<T>(&mut self, write: impl FnOnce(&mut Store, RunId) -> Result<T, StoreError>) -> Option<T> {
        let run = self.run?;
        self.with(|store| write(store, run))
    }

    /// See [`Store::begin_run`].
    pub fn begin_run(&mut self, record: &RunRecord) {
        self.run = self.with(|store| store.begin_run(record));
    }

    /// See [`Store::update_run`]. A run that could not be begun (or whose history was lost) is begun now.
    pub fn update_run(&mut self, record: &RunRecord) {
        match self.run {
            Some(_) => drop(self.with_run(|store, run| store.update_run(run, record))),
            None => self.begin_run(record),
        }
    }

    /// See [`Store::add_stage`].
    pub fn add_stage(&mut self, stage: &Stage) {
        self.with_run(|store, run| store.add_stage(run, stage));
    }

    /// See [`Store::add_trial`].
    pub fn add_trial(&mut self, window: &TrialWindow) {
        self.with_run(|store, run| store.add_trial(run, window));
    }

    /// See [`Store::set_changes`].
    pub fn set_changes(&mut self, changes: &[ChangeRecord]) {
        self.with_run(|store, run| store.set_changes(run, changes));
    }

    /// See [`Store::finish_run`].
    pub fn finish_run(&mut self, record: &RunRecord, outcome: &str) {
        self.with_run(|store, run| store.finish_run(run, record, outcome));
    }

    /// See [`Store::name_tasks`] and [`Store::add_sample`].
    pub fn add_sample(&mut self, sample: &Sample, observation: Option<&Observation>) {
        self.with(|store| {
            if let Some(observation) = observation {
                store.name_tasks(observation);
            }
            store.add_sample(sample)
        });
    }

    /// See [`Store::add_promise_time`].
    pub fn add_promise_time(&mut self, name: &str, minute: u64, time: PromiseTime) {
        self.with(|store| store.add_promise_time(name, minute, time));
    }

    /// Adds lengths of waits of containers; written minute by minute, see [`Store::add_waits`].
    pub fn add_waits<Name: AsRef<str> + Ord>(&mut self, minute: u64, waits: &BTreeMap<Name, Histogram>) {
        if self.waits.0 != minute {
            self.write_waits();
            self.waits.0 = minute;
        }
        for (container, waits) in waits {
            self.waits.1.entry(container.as_ref().to_owned()).or_default().merge(waits);
        }
    }

    fn write_waits(&mut self) {
        let (minute, waits) = std::mem::take(&mut self.waits);
        if !waits.is_empty() {
            self.with(|store| store.add_waits(minute, &waits));
        }
        self.waits.0 = minute;
    }

    /// See [`Store::flush`].
    pub fn flush(&mut self) {
        self.write_waits();
        self.with(Store::flush);
    }
}
