//! Runs experiments: plans the cells, runs each, records each when it is done.
//!
//! ```text
//! experiment ─ points × repetitions ─ order ─> cells ─ cell.rs ─> record.json after each
//! ```
//!
//! Nothing of a cell outlives it: processes die with this one (`PR_SET_PDEATHSIG`), cgroups, containers and files are
//! removed on drop, and the next start removes what a `kill -9` left.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_base::Topology;
use evenkeel_experiment::file::{Activation, Experiment, Order, PlannedPoint};
use evenkeel_experiment::record::{Cell, Host, Record, RecordError, Requirement, SCHEMA};
use rand::SeedableRng;
use rand::seq::SliceRandom;

mod answers;
mod cell;
mod command;
mod docker;
mod estimate;
pub(crate) mod groups;
mod host;
mod inside;
mod order;
mod pods;
mod predict;
mod running;
mod scratch;
mod simulate;
mod spawn;
mod steal;
mod work;

pub use estimate::planned_s;
pub use host::{calibrate, facts, online};
pub use inside::run as run_tenant;
pub use scratch::sweep_stale;
pub use simulate::simulate;
pub use work::parse_load;

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The experiment makes no sense; the message says what to do.
    #[error("{0}")]
    Usage(String),
    /// The host lacks something; the message says what, and how to get it.
    #[error("{0}")]
    Missing(String),
    /// No usable cgroup hierarchy.
    #[error("no cgroups for tenants: {0}")]
    NoCgroups(String),
    /// A file or system call failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried, with the path.
        what: String,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// The record could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl RunError {
    pub(crate) fn system(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), error: error.into() }
    }
}

/// What is known about an experiment besides its file.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The built-in it is.
    pub builtin: Option<String>,
    /// Short form.
    pub quick: bool,
    /// Names of the source's tables.
    pub sources: Vec<String>,
}

/// How to run.
pub struct Options<'a> {
    /// What runs `lab tenant ORDER`: normally the running program.
    pub binary: PathBuf,
    /// The result folder; made when missing.
    pub folder: PathBuf,
    /// Begin anew although the folder holds results of this experiment.
    pub again: bool,
    /// The host's topology, for the record.
    pub topology: Option<Topology>,
    /// What the host does undisturbed, where that was measured before ([`calibrate`]); else it is measured now.
    pub calibrated: Option<Host>,
    /// Set to end the experiment after cleaning up.
    pub stop: &'a AtomicBool,
    /// Told about progress.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
}

/// Progress of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Cells done.
    pub done: usize,
    /// Cells in all.
    pub of: usize,
    /// The cell at hand.
    pub label: &'a str,
    /// Part of it that is done, 0..1.
    pub part: f64,
}

/// Runs what is missing of an experiment. The record is complete unless it was stopped.
pub fn run(experiment: &Experiment, about: &About, options: &mut Options<'_>) -> Result<Record, RunError> {
    let points = experiment.points().map_err(|e| RunError::Usage(e.to_string()))?;
    check(&points)?;
    sweep_stale();
    let mut record = begin(experiment, about, options, points.len())?;
    let cells = order(experiment, points.len());
    let of = cells.len();
    let mut first = true;
    for (index, repetition) in cells {
        if record.has(index, repetition) {
            continue;
        }
        if options.stop.load(Ordering::Relaxed) {
            return Ok(record);
        }
        let planned = &points[index];
        let label = label(experiment, planned).to_owned();
        let done = record.cells.len();
        let tell = &mut options.progress;
        let mut part = |part: f64| tell(Progress { done, of, label: &label, part });
        part(0.0);
        let Some(cell) = cell_of(planned, repetition, first, &record.host, options, &label, done, of)? else {
            return Ok(record);
        };
        first = false;
        record.cells.push(cell);
        if record.is_complete() {
            record.finished = Some(now());
        }
        record.save(&options.folder)?;
    }
    Ok(record)
}

#[allow(clippy::too_many_arguments)]
fn cell_of(
    planned: &PlannedPoint,
    repetition: u32,
    first: bool,
    host: &Host,
    options: &mut Options<'_>,
    label: &str,
    done: usize,
    of: usize,
) -> Result<Option<Cell>, RunError> {
    let mut point = planned.point.clone();
    point.unavailable = point.unavailable.or_else(|| unavailable(&planned.experiment));
    if point.unavailable.is_some() {
        return Ok(Some(Cell { point, repetition, ..Cell::default() }));
    }
    let progress = &mut options.progress;
    let mut part = |part: f64| progress(Progress { done, of, label, part });
    cell::run(
        &cell::Task {
            experiment: &planned.experiment,
            point,
            repetition,
            reversed: match planned.experiment.activation {
                Activation::Written => false,
                Activation::Reversed => true,
                Activation::Both => repetition % 2 == 1,
            },
            start_at: planned.experiment.start_at.as_deref().filter(|_| first),
            binary: &options.binary,
            host,
            stop: options.stop,
        },
        &mut part,
    )
}

/// Why the host cannot give a point: CPUs it does not have.
fn unavailable(experiment: &Experiment) -> Option<String> {
    let online = online();
    let asked = experiment.tenants.iter().filter_map(|t| t.cpus.as_ref()).chain(experiment.cpus.as_ref());
    let lacking = asked.map(|cpus| cpus.difference(&online)).find(|cpus| !cpus.is_empty())?;
    Some(format!("asks for CPU {lacking}, this host has {online}"))
}

/// Refuses what cannot work at any point, before anything is started.
fn check(points: &[PlannedPoint]) -> Result<(), RunError> {
    for point in points {
        let experiment = &point.experiment;
        for tenant in experiment.tenants() {
            let spec = &experiment.tenants[tenant.spec];
            let work = work::work(&tenant, spec, 0)?;
            if let order::Work::Command(words) = &work
                && let Some(program) = words.first()
                && !is_program(program)
            {
                return Err(RunError::Missing(format!(
                    "command not found: {program}; install it (on Debian, if the package has its name: apt-get \
                     install {program}), or correct the tenant's command"
                )));
            }
        }
        if experiment.enforcer.is_some() && experiment.tenants.iter().filter(|t| !t.background).count() != 1 {
            return Err(RunError::Usage(
                "the steal emulator ([enforcer]) takes CPU from one tenant: give exactly one".into(),
            ));
        }
    }
    match points.iter().find_map(|p| unavailable(&p.experiment)) {
        Some(what) if points.iter().all(|p| unavailable(&p.experiment).is_some()) => {
            Err(RunError::Missing(what))
        }
        _ => Ok(()),
    }
}

/// Whether a program can be found the way `execvp` finds it.
pub fn is_program(program: &str) -> bool {
    let is_file = |path: &Path| path.is_file();
    if program.contains('/') {
        return is_file(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path).any(|dir| is_file(&dir.join(program)))
}

/// What a point is called in progress.
fn label<'a>(experiment: &'a Experiment, planned: &'a PlannedPoint) -> &'a str {
    let label = &planned.point.label;
    if label.is_empty() { &experiment.name } else { label }
}

/// A record without cells.
fn empty(
    experiment: &Experiment,
    about: &About,
    host: Host,
    requirements: Vec<Requirement>,
    points: usize,
) -> Record {
    Record {
        schema: SCHEMA.into(),
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        builtin: about.builtin.clone(),
        quick: about.quick,
        sources: about.sources.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        began: now(),
        host,
        experiment: Some(experiment.clone()),
        requirements,
        planned_cells: points * experiment.repetitions as usize,
        ..Record::default()
    }
}

/// The record to go on with: the folder's, if it is of the same experiment, else a new one.
fn begin(
    experiment: &Experiment,
    about: &About,
    options: &mut Options<'_>,
    points: usize,
) -> Result<Record, RunError> {
    let folder = &options.folder;
    std::fs::create_dir_all(folder)
        .map_err(|e| RunError::system(format!("cannot make the result folder {}", folder.display()), e))?;
    if !options.again && folder.join(evenkeel_experiment::record::FILE).exists() {
        let record = Record::load(folder)?;
        if record.experiment.as_ref() == Some(experiment) && record.quick == about.quick {
            return Ok(record);
        }
        return Err(RunError::Usage(format!(
            "{} holds results of another experiment or of other settings; choose another folder (--out DIR), or begin \
             anew (--again)",
            folder.display()
        )));
    }
    let mut host = facts(options.topology.as_ref());
    let requirements = host::requirements(experiment, &host);
    match &options.calibrated {
        Some(measured) => {
            host.primes_per_s = measured.primes_per_s;
            host.primes_per_s_all = measured.primes_per_s_all;
            host.divisions_per_s = measured.divisions_per_s;
        }
        None => calibrate(&mut host, options.stop),
    }
    let record = empty(experiment, about, host, requirements, points);
    // A full disk or a folder that cannot be written is said before anything is run.
    record.save(folder)?;
    Ok(record)
}

/// The cells in the order in which they are run: each repetition is a pass over all points.
fn order(experiment: &Experiment, points: usize) -> Vec<(usize, u32)> {
    let mut cells = Vec::new();
    for repetition in 0..experiment.repetitions {
        let mut pass: Vec<usize> = (0..points).collect();
        if experiment.order == Order::Shuffled {
            let mut random =
                rand_pcg::Pcg64::seed_from_u64(experiment.seed.wrapping_add(u64::from(repetition)));
            pass.shuffle(&mut random);
        }
        cells.extend(pass.into_iter().map(|point| (point, repetition)));
    }
    cells
}

/// RFC 3339.
fn now() -> String {
    jiff::Timestamp::now().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_run_once_in_an_order_that_depends_on_the_seed_alone() {
        let experiment = Experiment { repetitions: 3, ..Experiment::new("x", "") };
        let (a, b) = (order(&experiment, 10), order(&experiment, 10));
        assert_eq!(a, b);
        let mut sorted = a.clone();
        sorted.sort_unstable_by_key(|(p, r)| (*r, *p));
        assert_eq!(sorted.len(), 30);
        assert_ne!(a, sorted);
        let written = Experiment { order: Order::Written, ..experiment };
        assert_eq!(order(&written, 10), sorted);
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(is_program("sh") && is_program("/bin/sh"));
        assert!(!is_program("no-such-program-here") && !is_program("/bin"));
    }
}
