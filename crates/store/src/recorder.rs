//! Recording that never stands in the way: an agent goes on without history when there is none to be had, and never waits for a disk.
//!
//! A thread of its own writes. Where disks are slow, or nobody has CPU to write to them, what waits for them takes seconds: as long as
//! that the loop would see nothing and restore nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_base::run::{ChangeRecord, RunRecord, Stage};
use evenkeel_base::{Histogram, Observation, Sample, TaskId};

use crate::block::{Infos, TaskInfo};
use crate::db::{Limits, Store, StoreError};
use crate::promises::PromiseTime;
use crate::runs::{RunId, TrialWindow};
use crate::samples::learn_names;

/// How long recording rests when the file cannot be opened or written (a full disk may be emptied).
const REST: Duration = Duration::from_secs(60);
/// Samples are left out while so many writes wait for the disk: half a minute's.
const MOST_WAITING: usize = 64;
/// Nothing is added to as many: a disk that stands still for hours costs history, not memory. What else there is comes some times a second
/// at most, so it is the more worth keeping.
const MOST_JOBS: usize = 1024;
/// How long [`Recorder::flush`] waits for the disk.
const PATIENCE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce(&mut Writer) + Send>;

/// What the thread that writes has to tell.
#[derive(Debug, Default)]
struct Told {
    notes: Vec<String>,
    run: Option<RunId>,
    recording: bool,
    /// By promise: the day that ends with the minute written last.
    days: BTreeMap<String, PromiseTime>,
    /// Another file was begun, to which names must be told again.
    begun_again: bool,
}

/// Writes the history of one run and swallows failures, telling the first of each kind once. What it is given is written in order,
/// later; [`Recorder::flush`] waits for it.
#[derive(Debug, Default)]
pub struct Recorder {
    jobs: Option<Sender<Job>>,
    waiting: Arc<AtomicUsize>,
    told: Arc<Mutex<Told>>,
    names: Infos,
    /// Samples were left out, and that was told.
    behind: bool,
    /// The disk stood still when it was waited for last: not a second time.
    stuck: bool,
}

impl Recorder {
    /// Opens the history. Whatever goes wrong is a note; recording then does nothing.
    pub fn open(path: &Path, limits: Limits) -> Self {
        let mut recorder = Self::off();
        let (jobs, todo) = channel::<Job>();
        let (path, told, waiting) =
            (path.to_path_buf(), Arc::clone(&recorder.told), Arc::clone(&recorder.waiting));
        let work = move || {
            let mut writer = Writer::open(&path, limits);
            writer.tell(&told);
            for job in todo {
                job(&mut writer);
                writer.tell(&told);
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
        };
        match std::thread::Builder::new().name("history".to_owned()).spawn(work) {
            Ok(_) => recorder.jobs = Some(jobs),
            Err(error) => recorder.told().notes.push(format!("no thread for the history: {error}")),
        }
        recorder
    }

    /// A recorder that keeps nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Whether it keeps nothing.
    pub fn is_off(&self) -> bool {
        self.jobs.is_none()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, job: impl FnOnce(&mut Writer) + Send + 'static) {
        if let Some(jobs) = self.jobs.as_ref().filter(|_| self.waiting.load(Ordering::Relaxed) < MOST_JOBS) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            // The thread ends before this only by a panic, which says so itself.
            let _ = jobs.send(Box::new(job));
        }
    }

    fn of_run(&self, write: impl FnOnce(&mut Store, RunId) -> Result<(), StoreError> + Send + 'static) {
        self.send(|writer| writer.with_run(write).unwrap_or(()));
    }

    /// What the user should be told since the last call: each once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told().notes)
    }

    /// Whether the history was being written when the last write ended.
    pub fn is_recording(&self) -> bool {
        self.told().recording
    }

    /// The run begun, if it could be recorded.
    pub fn run_id(&self) -> Option<RunId> {
        self.told().run
    }

    /// See [`Store::promise_day`]: of the minute written last.
    pub fn promise_day(&self, name: &str) -> Option<PromiseTime> {
        self.told().days.get(name).copied()
    }

    /// See [`Store::begin_run`].
    pub fn begin_run(&mut self, record: &RunRecord) {
        let record = record.clone();
        self.send(move |writer| writer.begin_run(&record));
    }

    /// See [`Store::update_run`]. A run that could not be begun (or whose history was lost) is begun now.
    pub fn update_run(&mut self, record: &RunRecord) {
        let record = record.clone();
        self.send(move |writer| match writer.run {
            Some(_) => writer.with_run(|store, run| store.update_run(run, &record)).unwrap_or(()),
            None => writer.begin_run(&record),
        });
    }

    /// See [`Store::add_stage`].
    pub fn add_stage(&mut self, stage: &Stage) {
        let stage = stage.clone();
        self.of_run(move |store, run| store.add_stage(run, &stage));
    }

    /// See [`Store::add_trial`].
    pub fn add_trial(&mut self, window: TrialWindow) {
        self.of_run(move |store, run| store.add_trial(run, &window));
    }

    /// See [`Store::set_changes`].
    pub fn set_changes(&mut self, changes: &[ChangeRecord]) {
        let changes = changes.to_vec();
        self.of_run(move |store, run| store.set_changes(run, &changes));
    }

    /// See [`Store::finish_run`].
    pub fn finish_run(&mut self, record: &RunRecord, outcome: &str) {
        let (record, outcome) = (record.clone(), outcome.to_owned());
        self.of_run(move |store, run| store.finish_run(run, &record, &outcome));
    }

    /// See [`Store::name_tasks`] and [`Store::add_sample`]. Left out while the disk does not keep up.
    pub fn add_sample(&mut self, sample: &Sample, observation: Option<&Observation>) {
        if self.is_off() {
            return;
        }
        let behind = self.waiting.load(Ordering::Relaxed) >= MOST_WAITING;
        if behind != std::mem::replace(&mut self.behind, behind) && behind {
            self.told().notes.push("the disk does not keep up: the history lacks samples".to_owned());
        }
        if behind {
            return;
        }
        if std::mem::take(&mut self.told().begun_again) || self.names.len() > 2 * sample.tasks.len() + 64 {
            self.names.clear();
        }
        let names = observation.map(|seen| learn_names(&mut self.names, seen)).unwrap_or_default();
        let sample = sample.clone();
        self.send(move |writer| writer.add_sample(names, &sample));
    }

    /// See [`Store::add_promise_time`].
    pub fn add_promise_time(&mut self, name: &str, minute: u64, time: PromiseTime) {
        let name = name.to_owned();
        self.send(move |writer| {
            let day = writer.with(|store| {
                store.add_promise_time(&name, minute, time)?;
                store.promise_day(&name, minute)
            });
            writer.days.extend(day.flatten().map(|day| (name, day)));
        });
    }

    /// Adds lengths of waits of containers; written minute by minute, see [`Store::add_waits`].
    pub fn add_waits<Name: AsRef<str> + Ord>(&mut self, minute: u64, waits: &BTreeMap<Name, Histogram>) {
        let waits: Vec<(String, Histogram)> =
            waits.iter().map(|(name, waits)| (name.as_ref().to_owned(), waits.clone())).collect();
        self.send(move |writer| writer.add_waits(minute, waits));
    }

    /// Has all that was given written, and waits for that, for ten seconds at most: a disk may stand still. What comes later is of another
    /// session, for somebody else may write meanwhile.
    pub fn flush(&mut self) {
        self.send(|writer| {
            writer.write_waits();
            writer.with(Store::flush);
            if let Some(store) = &mut writer.store {
                store.session = None;
            }
        });
        let (done, written) = channel();
        self.send(move |_| done.send(()).unwrap_or(()));
        let stuck = written.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        if stuck && !self.stuck {
            let note = "the disk does not keep up: the end of the history may be missing";
            self.told().notes.push(note.to_owned());
        }
        self.stuck = stuck;
    }
}

impl Drop for Recorder {
    /// Waits as [`Recorder::flush`] does, unless that was in vain; the file is closed then.
    fn drop(&mut self) {
        let (done, written) = channel::<()>();
        // Dropped with the last job, after the store.
        self.send(move |writer| {
            writer.store = None;
            drop(done);
        });
        if !self.stuck {
            let _ = written.recv_timeout(PATIENCE);
        }
    }
}

/// What the thread has.
#[derive(Default)]
struct Writer {
    store: Option<Store>,
    path: PathBuf,
    limits: Limits,
    run: Option<RunId>,
    notes: Vec<String>,
    last_problem: Option<String>,
    rest_until: Option<Instant>,
    /// Lengths of waits not yet written: the minute, and by container.
    waits: (u64, BTreeMap<String, Histogram>),
    days: BTreeMap<String, PromiseTime>,
    begun_again: bool,
}

impl Writer {
    fn open(path: &Path, limits: Limits) -> Self {
        let mut writer = Self { path: path.to_path_buf(), limits, ..Self::default() };
        writer.reopen();
        writer
    }

    /// Hands on what there is to tell.
    fn tell(&mut self, told: &Mutex<Told>) {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        told.notes.append(&mut self.notes);
        told.run = self.run;
        told.recording = self.store.is_some() && self.rest_until.is_none();
        told.days.append(&mut self.days);
        told.begun_again |= std::mem::take(&mut self.begun_again);
    }

    fn reopen(&mut self) {
        match Store::open(&self.path, self.limits) {
            Ok(store) => {
                self.notes.extend(store.note().map(str::to_owned));
                self.store = Some(store);
                self.begun_again = true;
            }
            Err(error) => {
                self.note(&error);
                self.rest_until = Some(Instant::now() + REST);
            }
        }
    }

    fn note(&mut self, error: &StoreError) {
        let text = format!("{error}; going on without history");
        if self.last_problem.as_deref() != Some(text.as_str()) {
            self.notes.push(text.clone());
            self.last_problem = Some(text);
        }
    }

    fn with<T>(&mut self, write: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Option<T> {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        self.rest_until = None;
        if self.store.is_none() {
            self.reopen();
        }
        match write(self.store.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.note(&error);
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

    fn begin_run(&mut self, record: &RunRecord) {
        self.run = self.with(|store| store.begin_run(record));
    }

    /// Names are told once: they are kept, too, while nothing is written.
    fn add_sample(&mut self, names: Vec<(TaskId, Arc<TaskInfo>)>, sample: &Sample) {
        if let Some(store) = &mut self.store {
            store.infos.extend(names);
        }
        self.with(|store| store.add_sample(sample));
    }

    fn add_waits(&mut self, minute: u64, waits: Vec<(String, Histogram)>) {
        if self.waits.0 != minute {
            self.write_waits();
            self.waits.0 = minute;
        }
        for (container, waits) in waits {
            self.waits.1.entry(container).or_default().merge(&waits);
        }
    }

    fn write_waits(&mut self) {
        let (minute, waits) = std::mem::take(&mut self.waits);
        if !waits.is_empty() {
            self.with(|store| store.add_waits(minute, &waits));
        }
        self.waits.0 = minute;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_disk_that_stands_still_costs_no_memory_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(&dir.path().join("history.db"), Limits::default());
        let (goes_on, stands) = channel::<()>();
        recorder.send(move |_| stands.recv().unwrap_or(()));
        let told = |recorder: &mut Recorder, minute| {
            recorder.add_waits(minute, &BTreeMap::from([("web", Histogram::default())]));
        };
        (0..5000).for_each(|_| told(&mut recorder, 7));
        assert!(recorder.waiting.load(Ordering::Relaxed) <= MOST_JOBS);
        goes_on.send(()).unwrap();
        // What comes later is written again.
        let until = Instant::now() + Duration::from_secs(60);
        while recorder.waiting.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < until, "{recorder:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        told(&mut recorder, 8);
        recorder.flush();
        assert!(!recorder.stuck && recorder.is_recording(), "{recorder:?}");
    }

    #[test]
    fn a_history_that_could_not_be_opened_is_begun_when_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::write(&state, "in the way").unwrap();
        let mut writer = Writer::open(&state.join("history.db"), Limits::default());
        assert!(writer.store.is_none() && writer.notes.len() == 1, "{:?}", writer.notes);
        std::fs::remove_file(&state).unwrap();
        writer.begin_run(&RunRecord::default());
        assert_eq!(writer.run, None, "it rests");
        writer.rest_until = Some(Instant::now());
        writer.begin_run(&RunRecord::default());
        assert!(writer.run.is_some(), "{:?}", writer.notes);
    }

    #[test]
    fn a_name_told_while_recording_rests_is_there_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(&dir.path().join("history.db"), Limits::default());
        writer.rest_until = Some(Instant::now() + REST);
        let id = TaskId { tgid: 7, tid: 7, start_time: 1 };
        let info = TaskInfo { comm: "redis".to_owned(), group: None, container: None, pod: None };
        writer.add_sample(vec![(id, Arc::new(info))], &Sample::default());
        assert!(writer.rest_until.is_some(), "nothing was written");
        assert!(writer.store.unwrap().infos.contains_key(&id));
    }

    #[test]
    fn names_of_who_is_gone_are_forgotten_also_while_nothing_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { block_samples: 1, ..Limits::default() };
        let mut writer = Writer::open(&dir.path().join("history.db"), limits);
        writer.store.as_ref().unwrap().db.execute_batch("DROP TABLE block").unwrap();
        for tid in 1..1000 {
            let id = TaskId { tgid: tid, tid, start_time: 1 };
            let tasks = vec![evenkeel_base::TaskSample { id, ..Default::default() }];
            writer.rest_until = None;
            writer.add_sample(vec![(id, Arc::default())], &Sample { tasks, ..Sample::default() });
            assert!(writer.rest_until.is_some(), "{tid} was written");
        }
        assert_eq!(writer.store.unwrap().infos.len(), 1);
    }
}
