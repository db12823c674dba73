//! The record of an experiment: all that was measured, and nothing that can be computed from it.
//!
//! `record.json` of a result folder is one [`Record`]. It is written again (atomically) after every cell, so that an
//! interrupted experiment resumes with the cells not yet done. Statistics, verdicts and reports are made from it alone.
//!
//! ```text
//! record ─ cells (sweep point × repetition) ─ tenants ─ runs (back to back)
//! ```
//!
//! Times in a cell are seconds from its release, the instant at which all its tenants were let go; negative values do
//! not occur. `None` is "not known", never 0.

use std::path::Path;

use evenkeel_base::CpuSet;

use crate::file::Experiment;
pub use crate::file::Point;
use crate::shard::Shard;
use serde::{Deserialize, Serialize};

mod disk;
mod outside;
mod tenant;

pub use disk::{CellRecord, RecordError};
pub use outside::{HostUse, Predicted, StealPoint, StealRecord};
pub use tenant::{Account, Ended, Limits, Release, RunRecord, TenantRecord};

pub const SCHEMA: &str = "evenkeel.lab-record/v1";
/// The [`Requirement`] that a simulated record does not meet.
pub const MEASURED: &str = "measured";
/// Name of the file in a result folder.
pub const FILE: &str = "record.json";

/// An experiment with all its results so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Record {
    pub schema: String,
    pub name: String,
    /// What it shows, one sentence.
    #[serde(default)]
    pub title: String,
    /// The built-in experiment it is, by name; `None` for a file of the user's.
    pub builtin: Option<String>,
    /// Whether it was run in its short form.
    #[serde(default)]
    pub quick: bool,
    /// Names of the source's tables ([`crate::sources`]) whose figures are shown alongside.
    #[serde(default)]
    pub sources: Vec<String>,
    pub version: String,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it was finished, RFC 3339; `None` while cells are missing.
    pub finished: Option<String>,
    pub host: Host,
    /// The experiment as run; `None` for imported logs.
    pub experiment: Option<Experiment>,
    /// What the experiment needs and whether it was there.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// The part of the experiment that it is, where that was split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// The parts that it was merged of, by number; none where it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedShard>,
    /// Number of cells when finished.
    pub planned_cells: usize,
    /// Cells done, in the order in which they were run.
    pub cells: Vec<Cell>,
}

/// A part of a merged record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MergedShard {
    pub shard: Shard,
    pub host: Host,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it was finished, RFC 3339; `None` where cells are missing.
    pub finished: Option<String>,
    /// Cells that it has, and should have.
    pub cells: [usize; 2],
}

/// Facts of the host that decide how far results travel.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub name: Option<String>,
    pub cpu_model: Option<String>,
    /// Architecture, such as `x86_64`.
    pub arch: Option<String>,
    /// Online logical CPUs.
    pub cpus: Option<u32>,
    pub cores: Option<u32>,
    pub sockets: Option<u32>,
    pub nodes: Option<u32>,
    pub threads_per_core: Option<u32>,
    pub kernel: Option<String>,
    /// `cfs`, `eevdf` or `scx`.
    pub scheduler: Option<String>,
    /// `v1`, `v2` or `hybrid`.
    pub cgroup: Option<String>,
    /// Whether the tenants' cgroups were of version 2.
    pub tenants_v2: Option<bool>,
    /// Whether it is a virtual machine (the processor says so).
    pub virtual_machine: Option<bool>,
    /// Frequency governor, where the kernel controls the frequency.
    pub governor: Option<String>,
    pub memory_bytes: Option<u64>,
    /// Events a second of one undisturbed thread of `primes`, measured at the start of the experiment.
    pub primes_per_s: Option<f64>,
    /// The same with one thread on every CPU, all together.
    pub primes_per_s_all: Option<f64>,
    /// Divisions a second of one undisturbed thread of `sieve`, measured likewise.
    pub divisions_per_s: Option<f64>,
}

/// Facts of hosts without which results are hardly comparable; others are names, sizes and rates.
pub const DECISIVE: [&str; 8] =
    ["cpu_model", "cpus", "threads_per_core", "kernel", "scheduler", "cgroup", "tenants_v2", "governor"];

impl Host {
    /// The first of [`DECISIVE`] that both know and that differs, with what it is in this one.
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        let [here, there] = [self, other].map(|host| serde_json::to_value(host).unwrap_or_default());
        let differs = |key: &&str| !here[key].is_null() && !there[key].is_null() && here[key] != there[key];
        let key = DECISIVE.into_iter().find(differs)?;
        Some(format!("{key} {} and not {}", here[key], there[key]))
    }

    /// Whether who is held to these CPUs may have less than the host. All of them hold back no task.
    pub fn is_confined_by(&self, cpus: Option<&CpuSet>) -> bool {
        cpus.is_some_and(|cpus| self.cpus.is_none_or(|all| cpus.len() < all as usize))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Short name, such as `quiet-host`.
    pub name: String,
    /// Whether it was met; `None` where that could not be found out.
    pub met: Option<bool>,
    pub evidence: String,
    /// What that means for the results; empty when met.
    #[serde(default)]
    pub consequence: String,
}

impl Requirement {
    /// With its consequence where it is not met.
    pub fn new(name: &str, met: Option<bool>, evidence: String, consequence: &str) -> Self {
        let consequence = if met == Some(true) { String::new() } else { consequence.to_owned() };
        Self { name: name.to_owned(), met, evidence, consequence }
    }

    /// What it means that it was not met, or that nobody knows; `None` where it was.
    pub fn missed(&self) -> Option<String> {
        let met = match self.met {
            Some(true) => return None,
            Some(false) => "not met",
            None => "not known",
        };
        let mut text = format!("{}: {met} ({})", self.name, self.evidence);
        if !self.consequence.is_empty() {
            text += &format!(": {}", self.consequence);
        }
        Some(text)
    }
}

/// One repetition at one point of the sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Cell {
    pub point: Point,
    /// Repetition, from 0.
    pub repetition: u32,
    /// When its tenants were released, RFC 3339 with nanoseconds; `None` when that was never reached.
    pub released_at: Option<String>,
    /// From the release to the end of the last tenant, seconds.
    pub seconds: f64,
    /// When runs began is not told, as logs without time stamps have it: who competed with whom is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unplaced: bool,
    /// Order in which the tenants were started (indices into `tenants`).
    #[serde(default)]
    pub activation: Vec<usize>,
    /// Tenants, in the order of the experiment.
    pub tenants: Vec<TenantRecord>,
    /// What the host did from the release to the end.
    #[serde(default)]
    pub host: HostUse,
    /// What the steal emulator did, where there was one.
    #[serde(default)]
    pub enforcer: Option<StealRecord>,
    /// What the model says each tenant would do (same order); `None` in logs of others.
    #[serde(default)]
    pub predicted: Option<Vec<Predicted>>,
    /// The host, by name, where the record is of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What was out of the ordinary.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Cell {
    /// Lengths of all tenants' runs that did their work, seconds.
    pub fn run_lengths_s(&self) -> impl Iterator<Item = f64> {
        self.tenants.iter().flat_map(|tenant| &tenant.runs).filter_map(RunRecord::length_s)
    }
}

impl CellRecord for Record {
    const SCHEMA: &'static str = SCHEMA;
    type Cell = Cell;

    fn host(&self) -> &Host {
        &self.host
    }

    fn cells(&self) -> &[Cell] {
        &self.cells
    }

    fn place(cell: &Cell) -> (usize, u32) {
        (cell.point.index, cell.repetition)
    }

    fn planned(&self) -> usize {
        self.planned_cells
    }

    fn add(&mut self, cell: Cell, finished: String) {
        self.cells.push(cell);
        self.finished = CellRecord::is_complete(self).then_some(finished);
    }
}

impl Record {
    /// [`CellRecord::is_complete`], for those who only read.
    pub fn is_complete(&self) -> bool {
        CellRecord::is_complete(self)
    }

    /// Whether it is the simulator's.
    pub fn is_simulated(&self) -> bool {
        self.requirements.iter().any(|one| one.name == MEASURED && one.met == Some(false))
    }

    /// What a folder holds that cannot be made again from logs or by simulating, in words.
    pub fn holds_more(folder: &Path) -> Option<&'static str> {
        let measured = |found: Self| found.experiment.is_some() && !found.is_simulated();
        match folder.join(FILE).exists().then(|| Self::load(folder).map(measured))? {
            Ok(false) => None,
            Ok(true) => Some("results that were measured"),
            Err(_) => Some("results that this evenkeel cannot read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use evenkeel_base::CpuSet;

    use super::*;

    fn record() -> Record {
        let tenant = TenantRecord {
            name: "c1".into(),
            units: Some(64),
            place: "cgroup".into(),
            limits: Limits { shares: Some(1024), cpus: Some(CpuSet::first_n(2)), ..Limits::default() },
            workload: "primes".into(),
            threads: 1,
            runs_planned: 1,
            release: Release::default(),
            ended: Ended::TimeLimit("60 s".into()),
            total: Account::default(),
            runs: vec![RunRecord { events: Some(7), end_s: 1.5, ..RunRecord::default() }],
        };
        let point = Point { label: "64x1".into(), ..Point::default() };
        let cell = Cell { point, repetition: 2, seconds: 1.5, tenants: vec![tenant], ..Cell::default() };
        Record {
            schema: SCHEMA.into(),
            name: "x".into(),
            planned_cells: 2,
            cells: vec![cell],
            ..Record::default()
        }
    }

    #[test]
    fn a_record_survives_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let record = record();
        record.save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record);
        assert!(record.has(0, 2) && !record.has(0, 1) && !record.is_complete());
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        // Unknown is null, and a run carries its account without a level of its own.
        assert!(
            text.contains("\"user_s\":null") && text.contains("{\"how\":\"time-limit\",\"detail\":\"60 s\"}"),
            "{text}"
        );
    }

    #[test]
    fn a_foreign_or_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for (text, part) in [("{", "line 1"), ("{}", "missing field")] {
            fs::write(&path, text).unwrap();
            let error = Record::load(dir.path()).unwrap_err().to_string();
            assert!(error.contains(FILE) && error.contains(part), "{error}");
        }
        let other = Record { schema: "other/v1".into(), ..record() };
        other.save(dir.path()).unwrap();
        assert!(Record::load(&path).unwrap_err().to_string().contains("other/v1"));
        assert!(record().save(&dir.path().join("none")).is_err());
    }
}
