//! Runs experiments cell by cell ([`bench`]); here those of experiment files: tenants that are released together.
//!
//! Nothing of a cell outlives it: processes die with this one (`PR_SET_PDEATHSIG`), cgroups, containers and files are
//! removed on drop, and the next start removes what a `kill -9` left.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use evenkeel_base::Topology;
use evenkeel_experiment::file::{Activation, Experiment, PlannedPoint};
use evenkeel_experiment::record::{Cell, Host, Record};
use evenkeel_linux::sys::usable_cpus;

mod about;
pub(crate) mod answers;
pub mod bench;
mod cell;
pub(crate) mod command;
mod contained;
mod error;
mod estimate;
pub mod grid;
pub(crate) mod groups;
pub(crate) mod host;
mod inside;
mod order;
mod pods;
mod predict;
mod running;
mod simulate;
mod steal;
mod work;

pub use about::About;
use about::{empty, label};
pub(crate) use bench::now;
pub use bench::{Bench, Passes, Progress, Run};
pub use error::RunError;
pub(crate) use estimate::all_s;
pub use estimate::planned_s;
pub use host::{calibrate, facts};
pub use inside::run as run_tenant;
pub use simulate::simulate;
pub use work::parse_load;

/// What an experiment runs with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What runs `lab tenant ORDER`: normally the running program.
    pub binary: PathBuf,
    /// The host's topology, for the record.
    pub topology: Option<Topology>,
    /// What the host does undisturbed, where that was measured before ([`calibrate`]); else it is measured now.
    pub calibrated: Option<Host>,
    /// What the host is called in the record; unless given, by its own name.
    pub host_name: Option<String>,
}

/// Runs what is missing of an experiment. The record is complete unless it was stopped.
pub fn run(
    experiment: &Experiment,
    about: &About,
    options: &Options,
    run: &mut Run<'_>,
) -> Result<Record, RunError> {
    let points = experiment.points().map_err(|e| RunError::Usage(e.to_string()))?;
    let repetitions = experiment.repetitions as usize;
    about.shard.map_or(Ok(()), |shard| shard.check(repetitions, "repetition")).map_err(RunError::Usage)?;
    check(&points)?;
    crate::launch::sweep_stale();
    let passes = Passes {
        labels: points.iter().map(|planned| label(experiment, planned).to_owned()).collect(),
        repetitions: experiment.repetitions,
        order: experiment.order,
        seed: experiment.seed,
        shard: about.shard,
    };
    let stop = run.stop;
    let mut bench = Laboratory { experiment, about, options, stop, points, planned: passes.cells().len() };
    run.cells(&passes, &mut bench)
}

/// The experiment of a file or of a built-in one.
struct Laboratory<'a> {
    experiment: &'a Experiment,
    about: &'a About,
    options: &'a Options,
    stop: &'a AtomicBool,
    points: Vec<PlannedPoint>,
    planned: usize,
}

impl Bench for Laboratory<'_> {
    type Record = Record;

    fn is_same(&self, record: &Record) -> bool {
        record.experiment.as_ref() == Some(self.experiment)
            && record.quick == self.about.quick
            && record.shard == self.about.shard
            // Its hosts did what they did; cells of this one are no shard that is missing.
            && (record.merged.is_empty() || record.is_complete())
    }

    fn host(&self) -> Host {
        facts(self.options.topology.as_ref())
    }

    fn begin(&mut self) -> Record {
        let (experiment, about) = (self.experiment, self.about);
        let mut host = self.host();
        host.name = self.options.host_name.clone().or(host.name);
        let requirements = host::requirements(experiment, &host);
        match &self.options.calibrated {
            Some(measured) => {
                host.primes_per_s = measured.primes_per_s;
                host.primes_per_s_all = measured.primes_per_s_all;
                host.divisions_per_s = measured.divisions_per_s;
            }
            None => calibrate(&mut host, self.stop),
        }
        empty(experiment, about, host, requirements, self.planned)
    }

    fn cell(
        &mut self,
        record: &mut Record,
        point: usize,
        repetition: u32,
        part: &mut dyn FnMut(f64),
    ) -> Result<Option<Cell>, RunError> {
        // The instant asked for is that of the first cell that is released, also where others go on later.
        let first = record.cells.iter().all(|cell| cell.tenants.is_empty());
        let planned = &self.points[point];
        let mut point = planned.point.clone();
        point.unavailable = point.unavailable.or_else(|| unavailable(&planned.experiment));
        if point.unavailable.is_some() {
            return Ok(Some(Cell { point, repetition, ..Cell::default() }));
        }
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
                binary: &self.options.binary,
                host: &record.host,
                stop: self.stop,
            },
            part,
        )
    }
}

/// Why the host cannot give a point: CPUs it does not have.
fn unavailable(experiment: &Experiment) -> Option<String> {
    let online = usable_cpus();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(is_program("sh") && is_program("/bin/sh"));
        assert!(!is_program("no-such-program-here") && !is_program("/bin"));
    }
}
