//! Which settings are best? Trials of a service with other settings, chosen by [`crate::search`].
//!
//! * [`Tune`]: the file, read and checked; [`Runner`]: how processes are started.
//! * [`run`]: the trials, one after the other, each on record before the next begins.
//! * [`TuneResult`]: what came of it.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::search::{Ask, Method, Outcome, Point, Reason, Rules, Search};

mod check;
mod error;
mod expand;
mod file;
mod journal;
mod page;
mod process;
mod reading;
mod result;
pub mod search;
mod trial;
mod warm;

pub use error::TuneError;
pub use expand::Settings;
pub use file::{Goal, Lever, Tune, TuneFile};
pub use journal::{Options, TrialRecord};
pub use page::page;
pub use process::Runner;
pub use reading::{Constraint, Reading, of_json, of_regex};
pub use result::{Candidate, Gain, TuneResult, Warm};
pub use trial::TrialEnd;

use journal::Journal;

/// Trials where neither a number nor a time is given.
pub const DEFAULT_TRIALS: usize = 40;

/// What is told while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    Resumed(usize),
    /// Where the simulator expects the best.
    Warm(&'a [Warm]),
    Begins {
        /// Number, from 1.
        number: usize,
        /// Trials left with it, as far as is known.
        left: Option<usize>,
        settings: &'a Settings,
        reason: Reason,
    },
    Ended(&'a TrialRecord),
}

fn name(reason: Reason) -> &'static str {
    match reason {
        Reason::New => "new",
        Reason::Confirm => "confirm",
        Reason::LastRound => "last-round",
    }
}

/// What a record tells the search.
fn outcome(tune: &Tune, point: &Point, record: &TrialRecord) -> Outcome {
    let last_round = record.reason == name(Reason::LastRound);
    match &record.values {
        Some(values) if values.len() == tune.readings.len() => Outcome {
            loss: values.first().map(|v| tune.worth(*v, point).1),
            excess: tune.constraints.iter().map(|c| c.excess(values[c.quantity])).collect(),
            last_round,
        },
        _ => Outcome { last_round, ..Outcome::failed() },
    }
}

/// Runs trials until the budget is spent, every point is known, or `stop` is set.
pub fn run(
    tune: &Tune,
    runner: &Runner,
    options: &Options,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(TuneResult, Vec<TrialRecord>), TuneError> {
    let (mut journal, mut records) = Journal::open(options, tune)?;
    let warm = warm::points(tune)?;
    if !warm.is_empty() {
        tell(Event::Warm(&warm));
    }
    let spec = &tune.file.search;
    let mut search = recalled(tune, &warm, &records);
    if !records.is_empty() {
        tell(Event::Resumed(records.len()));
    }
    trial::address_is_free(tune)?;
    let trials = match (tune.file.budget.trials, tune.time, spec.method) {
        (Some(trials), ..) => Some(trials),
        (None, None, method) if method != Method::Exhaustive => Some(DEFAULT_TRIALS),
        _ => None,
    };
    let mut interrupted = false;
    loop {
        let left = left(trials, tune.time, &records);
        let Some(ask) = search.ask(left) else { break };
        // What is complete is only shown.
        if let Some(differs) = &journal.differs {
            return Err(TuneError::OtherHost { dir: options.dir.clone(), differs: differs.clone() });
        }
        if stop.load(Ordering::Relaxed) {
            interrupted = true;
            break;
        }
        let settings = tune.settings(&ask.point);
        tell(Event::Begins { number: records.len() + 1, left, settings: &settings, reason: ask.reason });
        let Some(record) = one(tune, runner, options, &ask, settings, records.len() + 1, stop) else {
            interrupted = true;
            break;
        };
        journal.append(&record)?;
        search.tell(&ask, outcome(tune, &ask.point, &record));
        tell(Event::Ended(&record));
        records.push(record);
        hopeless(tune, &records)?;
    }
    let _ = std::fs::remove_dir_all(trial::trial_dir(&options.dir));
    Ok((TuneResult::new(tune, &search, &records, warm, interrupted), records))
}

/// The search as these trials left it.
fn recalled(tune: &Tune, warm: &[Warm], records: &[TrialRecord]) -> Search {
    let spec = &tune.file.search;
    let rules = Rules {
        seed: spec.seed,
        repeats: spec.repeats,
        finalists: spec.finalists,
        levels: spec.levels,
        present: tune.present.clone(),
        warm: warm.iter().map(|w| w.point.clone()).collect(),
    };
    let mut search = Search::new(tune.space.clone(), spec.method, rules);
    for record in records {
        // A value that is no longer in the range is of another search; the fingerprint keeps those out.
        if let Some(point) = tune.point(&record.settings) {
            search.recall(&point, outcome(tune, &point, record));
        }
    }
    search
}

/// What trials on record say; nothing is run.
pub fn result_of(tune: &Tune, records: &[TrialRecord]) -> TuneResult {
    TuneResult::new(tune, &recalled(tune, &[], records), records, Vec::new(), false)
}

/// Trials that fit into the budget; `None` without one.
fn left(trials: Option<usize>, time: Option<Duration>, records: &[TrialRecord]) -> Option<usize> {
    let by_number = trials.map(|n| n.saturating_sub(records.len()));
    let spent: f64 = records.iter().map(|r| r.seconds).sum();
    let by_time = time.map(|time| {
        let each = if records.is_empty() { 1.0 } else { spent / records.len() as f64 };
        ((time.as_secs_f64() - spent) / each.max(1e-3)).max(0.0) as usize
    });
    match (by_number, by_time) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// One trial; `None` when stopped.
fn one(
    tune: &Tune,
    runner: &Runner,
    options: &Options,
    ask: &Ask,
    settings: Settings,
    number: usize,
    stop: &AtomicBool,
) -> Option<TrialRecord> {
    let started_ns = evenkeel_linux::sys::wall_ns();
    let clock = Instant::now();
    let dir = std::path::absolute(trial::trial_dir(&options.dir))
        .unwrap_or_else(|_| trial::trial_dir(&options.dir));
    let (values, error) = match trial::run(tune, runner, &dir, &ask.point, stop) {
        TrialEnd::Measured(values) => (Some(values), None),
        TrialEnd::Failed(why) => (None, Some(why)),
        TrialEnd::Stopped => return None,
    };
    let seconds = clock.elapsed().as_secs_f64();
    Some(TrialRecord {
        number,
        settings,
        reason: name(ask.reason).into(),
        values,
        error,
        started_ns,
        seconds,
    })
}

/// The present settings do not work, or the first few all fail: it is not the settings that are wrong.
fn hopeless(tune: &Tune, records: &[TrialRecord]) -> Result<(), TuneError> {
    let Some(last) = records.last() else { return Ok(()) };
    let Some(why) = &last.error else { return Ok(()) };
    if tune.present.is_some() && records.len() == 1 {
        return Err(TuneError::Hopeless {
            what: "the trial with the present settings".into(),
            why: why.clone(),
        });
    }
    let most = tune.file.search.give_up_after.max(1);
    if records.len() == most && records.iter().all(|r| r.error.is_some()) {
        return Err(TuneError::Hopeless {
            what: format!("every one of the first {most} trials"),
            why: why.clone(),
        });
    }
    Ok(())
}

/// The file's text, read and checked.
pub fn load(path: &Path) -> Result<Tune, String> {
    let text = evenkeel_linux::input::read_text(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Tune::parse(path, &text).map_err(|e| e.to_string())
}
