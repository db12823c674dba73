//! How a cell is made and measured; the loop around the cells is [`crate::runner::bench`].

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_base::Topology;
use evenkeel_experiment::record::{Host, Requirement};
use evenkeel_linux::sys::usable_cpus;
use evenkeel_workload::burn::monotonic_ns;

use super::evenkeel::Evenkeel;
use super::plan::{Arm, NAME, Options, Point};
use super::record::{Arms, Cell, Measured, NeighbourRecord};
use super::scene::{Asking, Scene};
use crate::runner::host::undisturbed;
use crate::runner::{Bench, Passes, Run, RunError, facts, is_program};

/// How often a wait looks whether it was stopped.
const LOOK: Duration = Duration::from_millis(100);

/// What the experiment runs with.
#[derive(Debug, Clone)]
pub struct Tools<'a> {
    /// Runs `load ..` and `run ..`: normally the running program.
    pub binary: &'a Path,
    /// The host's topology, for the record.
    pub topology: Option<Topology>,
}

/// Runs what is missing of the experiment; the record is complete unless it was stopped. Services and batch work that are not
/// installed are left out, and a requirement says so.
///
/// # Errors
/// See [`RunError`]. A cell that fails is recorded with its reason, and the others go on.
pub fn run(options: &Options, tools: Tools<'_>, run: &mut Run<'_>) -> Result<NeighbourRecord, RunError> {
    let asked = options.points().map_err(RunError::Usage)?;
    let there = |point: &&Point| missing(point).is_none();
    let points: Vec<Point> = asked.iter().filter(there).copied().collect();
    if points.iter().all(|point| point.batch.is_none()) {
        let lacking: Vec<&str> = asked.iter().filter_map(missing).collect();
        return Err(RunError::Missing(format!(
            "nothing can be measured: {} is not installed (apt-get install {})",
            lacking.first().copied().unwrap_or("a program"),
            lacking.first().map_or("", |program| package(program))
        )));
    }
    crate::launch::sweep_stale();
    let passes = Passes::shuffled(&points, options.repetitions);
    let stop = run.stop;
    run.cells(&passes, &mut Neighbours { options, asked, points, tools, stop })
}

/// The program that a point needs and this host does not have.
fn missing(point: &Point) -> Option<&'static str> {
    let programs = [point.service.program(), point.batch.and_then(super::plan::Batch::program)];
    programs.into_iter().flatten().find(|program| !is_program(program))
}

/// The Debian package of a program.
fn package(program: &str) -> &str {
    if program == "cc" { "gcc" } else { program }
}

struct Neighbours<'a, 't> {
    options: &'a Options,
    /// All points, those that cannot be here included.
    asked: Vec<Point>,
    points: Vec<Point>,
    tools: Tools<'t>,
    stop: &'a AtomicBool,
}

impl Bench for Neighbours<'_, '_> {
    type Record = NeighbourRecord;

    fn is_same(&self, record: &NeighbourRecord) -> bool {
        record.options == *self.options && record.points == self.points
    }

    fn host(&self) -> Host {
        facts(self.tools.topology.as_ref())
    }

    fn begin(&mut self) -> NeighbourRecord {
        let mut requirements: Vec<Requirement> = Vec::new();
        for program in self.asked.iter().filter_map(missing) {
            if requirements.iter().all(|r| r.name != program) {
                let how = format!("{program} is not installed; apt-get install {}", package(program));
                let consequence = "what needs it is left out";
                requirements.push(Requirement::new(program, Some(false), how, consequence));
            }
        }
        requirements.extend(undisturbed("others delay the service, too, and take from the batch's CPU"));
        let host = self.host();
        NeighbourRecord::begin(NAME, host, self.options.clone(), requirements, self.points.clone())
    }

    fn cell(
        &mut self,
        _: &mut NeighbourRecord,
        index: usize,
        repetition: u32,
        part: &mut dyn FnMut(f64),
    ) -> Result<Option<Cell>, RunError> {
        let point = &self.points[index];
        Ok(Cell::measure(index, repetition, self.stop, |arms| self.measure(point, arms, part)))
    }
}

impl Neighbours<'_, '_> {
    fn measure(&self, point: &Point, arms: &mut Arms, part: &mut dyn FnMut(f64)) -> Result<(), String> {
        let said = |error: RunError| error.to_string();
        let Options { settle_s, seconds, decide_s, .. } = *self.options;
        let threads = u32::try_from(usable_cpus().len()).unwrap_or(1);
        let scene = Scene::build(self.tools.binary, point, threads).map_err(said)?;
        let whole_ns = ((settle_s + self.options.measured_s(point.arm)) * 1e9).max(1.0);
        let began = monotonic_ns();
        let mut wait = |until_ns: u64| self.until(until_ns, |now| part((now - began) as f64 / whole_ns));
        wait(began + (settle_s * 1e9) as u64)?;
        let is_evenkeel = point.arm == Arm::Evenkeel;
        let times: &[f64] = if is_evenkeel { &[decide_s, seconds] } else { &[seconds] };
        let asking = scene.ask(times).map_err(said)?;
        let evenkeel = is_evenkeel.then(|| scene.evenkeel()).transpose().map_err(said)?;
        let used = |asking: &Asking| -> Result<Measured, String> {
            wait(asking.begins_ns)?;
            let before = scene.counters();
            wait(asking.ends_ns)?;
            let mut measured = before.to(&scene.counters());
            if point.batch.is_none() {
                measured.batch_pct = None;
            }
            Ok(measured)
        };
        let mut measured = in_turn(asking, used, Asking::tell)?.into_iter();
        if is_evenkeel {
            arms.from_start = measured.next();
        }
        arms.in_force = Some(measured.next().ok_or("no client was started")?);
        arms.evenkeel = evenkeel.map(Evenkeel::end).transpose()?;
        Ok(())
    }

    /// Waits until an instant of `CLOCK_MONOTONIC`.
    fn until(&self, until_ns: u64, mut told: impl FnMut(u64)) -> Result<(), String> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err("it was stopped".into());
            }
            let now = monotonic_ns();
            told(now);
            match until_ns.checked_sub(now).filter(|left| *left > 0) {
                Some(left) => std::thread::sleep(LOOK.min(Duration::from_nanos(left))),
                None => return Ok(()),
            }
        }
    }
}

/// What was used over times that follow each other, and then what those who asked say of them: whoever waited for the last
/// answers of one time, up to a second, would read the counters of the next one that much too late.
fn in_turn<A>(
    asked: Vec<A>,
    used: impl FnMut(&A) -> Result<Measured, String>,
    tell: impl Fn(A, &mut Measured) -> Result<(), String>,
) -> Result<Vec<Measured>, String> {
    let mut measured = asked.iter().map(used).collect::<Result<Vec<_>, _>>()?;
    asked.into_iter().zip(&mut measured).try_for_each(|(asking, into)| tell(asking, into))?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn no_counters_are_read_late_for_the_last_answers_of_the_time_before() {
        let log = RefCell::new(Vec::new());
        let used = |n: &u32| {
            log.borrow_mut().push(format!("use {n}"));
            Ok(Measured { seconds: f64::from(*n), ..Measured::default() })
        };
        let tell = |n: u32, into: &mut Measured| {
            log.borrow_mut().push(format!("tell {n}"));
            into.answered = u64::from(n);
            Ok(())
        };
        let all = in_turn(vec![1, 2], used, tell).unwrap();
        assert_eq!(*log.borrow(), ["use 1", "use 2", "tell 1", "tell 2"]);
        assert!(all.iter().all(|m| m.seconds == m.answered as f64) && all.len() == 2);
    }
}
