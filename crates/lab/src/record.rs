//! The record of an experiment: all that was measured, and nothing that can be computed from it.
//!
//! `record.json` of a result folder is one [`Record`]. It is written anew (atomically) after every cell, so that an
//! interrupted experiment resumes with the cells not yet done. Statistics, verdicts and reports are made from it alone.
//!
//! ```text
//! record ─ cells (sweep point × repetition) ─ tenants ─ runs (back to back)
//! ```
//!
//! Times in a cell are seconds from its release, the instant at which all its tenants were let go; negative values do
//! not occur. `None` is "not known", never 0.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evenkeel_base::CpuSet;
use evenkeel_model::credit::Rule;
use evenkeel_model::laboratory::Experiment;
use serde::{Deserialize, Serialize};

/// Value of [`Record::schema`].
pub const SCHEMA: &str = "evenkeel.lab-record/v1";
/// Name of the file in a result folder.
pub const FILE: &str = "record.json";

/// An experiment with all its results so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// Name of the experiment.
    pub name: String,
    /// What it shows, one sentence.
    #[serde(default)]
    pub title: String,
    /// The built-in experiment it is, by name; `None` for a file of the user's.
    pub builtin: Option<String>,
    /// Whether it was run in its short form.
    #[serde(default)]
    pub quick: bool,
    /// Names of the source's tables ([`crate::sources`]) whose figures are shown beside.
    #[serde(default)]
    pub sources: Vec<String>,
    /// Version of evenkeel that made it.
    pub version: String,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it was finished, RFC 3339; `None` while cells are missing.
    pub finished: Option<String>,
    /// The host.
    pub host: Host,
    /// The experiment as run; `None` for imported logs.
    pub experiment: Option<Experiment>,
    /// What the experiment needs and whether it was there.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// Number of cells when finished.
    pub planned_cells: usize,
    /// Cells done, in the order in which they were run.
    pub cells: Vec<Cell>,
}

/// Facts of the host that decide how far results travel.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Host name.
    pub name: Option<String>,
    /// Model of the processor.
    pub cpu_model: Option<String>,
    /// Architecture, such as `x86_64`.
    pub arch: Option<String>,
    /// Online logical CPUs.
    pub cpus: Option<u32>,
    /// Physical cores.
    pub cores: Option<u32>,
    /// Sockets.
    pub sockets: Option<u32>,
    /// NUMA nodes.
    pub nodes: Option<u32>,
    /// Hardware threads of a core.
    pub threads_per_core: Option<u32>,
    /// Kernel release.
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
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Events a second of one undisturbed thread of `primes`, measured at the start of the experiment.
    pub primes_per_s: Option<f64>,
    /// The same with one thread on every CPU, all together.
    pub primes_per_s_all: Option<f64>,
}

/// Something the experiment needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Short name, such as `quiet-host`.
    pub name: String,
    /// Whether it was met; `None` where that could not be found out.
    pub met: Option<bool>,
    /// What was found.
    pub evidence: String,
    /// What that means for the results; empty when met.
    #[serde(default)]
    pub consequence: String,
}

/// One repetition at one point of the sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Where in the sweep.
    pub point: Point,
    /// Repetition, from 0.
    pub repetition: u32,
    /// When its tenants were released, RFC 3339 with nanoseconds; `None` when that was never reached.
    pub released_at: Option<String>,
    /// From the release to the end of the last tenant, seconds.
    pub seconds: f64,
    /// Order in which the tenants were started (indices into `tenants`).
    #[serde(default)]
    pub activation: Vec<usize>,
    /// Tenants, in the order of the experiment.
    pub tenants: Vec<TenantRecord>,
    /// What the host did from the release to the end.
    #[serde(default)]
    pub host: HostUse,
    /// What the enforcer did, where one played the hypervisor.
    #[serde(default)]
    pub enforcer: Option<EnforcerRecord>,
    /// What the model says each tenant would do (same order); `None` where it has no say.
    #[serde(default)]
    pub predicted: Option<Vec<Predicted>>,
    /// What was out of the ordinary.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A point of the sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    /// Number, from 0, in the order written.
    pub index: usize,
    /// For people, such as `64x20` or `window, 30 %`; empty without a sweep.
    pub label: String,
    /// What was set, by field; a field that was removed is `null`.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Why the host could not give this point; then there are no tenants.
    #[serde(default)]
    pub unavailable: Option<String>,
}

/// One tenant in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Name.
    pub name: String,
    /// Units, where they were given.
    pub units: Option<u64>,
    /// Where it lived: `process`, `cgroup`, `docker`.
    pub place: String,
    /// Limits in force, read back.
    #[serde(default)]
    pub limits: Limits,
    /// What it ran, as a command line.
    pub workload: String,
    /// Threads it was asked for.
    pub threads: u32,
    /// Runs it was asked for.
    pub runs_planned: u32,
    /// How exactly it was released.
    #[serde(default)]
    pub release: Release,
    /// How it ended.
    pub ended: Ended,
    /// The whole tenant from its release to its end, time between runs included.
    #[serde(default)]
    pub total: Account,
    /// Its runs, back to back.
    pub runs: Vec<RunRecord>,
}

/// Limits of a tenant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// cgroup v2 weight.
    pub weight: Option<u64>,
    /// cgroup v1 shares.
    pub shares: Option<u64>,
    /// Units times this are the weight or the shares.
    pub unit_factor: Option<f64>,
    /// Quota, percent of ONE CPU.
    pub quota_pct: Option<f64>,
    /// Quota period, microseconds.
    pub period_usec: Option<u64>,
    /// Burst, microseconds.
    pub burst_usec: Option<u64>,
    /// CPUs it is confined to.
    pub cpus: Option<CpuSet>,
    /// Nice value.
    pub nice: Option<i32>,
    /// Policy, where it is not `other`.
    pub policy: Option<String>,
    /// Own slice, milliseconds.
    pub slice_ms: Option<f64>,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
}

/// How exactly a tenant was released.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Release {
    /// From the instant asked for to its wake-up (it became runnable), microseconds: first instruction less the time
    /// it waited for a CPU by the kernel's account.
    pub woken_late_usec: Option<f64>,
    /// From the instant asked for to its first instruction, microseconds: what others' slices delay is in here.
    pub first_instruction_late_usec: Option<f64>,
}

/// How a tenant ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "how", content = "detail")]
pub enum Ended {
    /// All its runs were done.
    Done,
    /// It ended before that; how.
    Died(String),
    /// It was still there when the time limit of the cell had passed; the limit, as text.
    TimeLimit(String),
    /// The experiment was interrupted.
    Interrupted,
}

/// CPU time of a run or of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Wall-clock time, seconds.
    pub real_s: f64,
    /// CPU time in user mode, seconds.
    pub user_s: Option<f64>,
    /// CPU time in the kernel, seconds.
    pub sys_s: Option<f64>,
    /// Waited for a CPU (`run_delay`, throttled time included), all threads, seconds.
    pub waited_s: Option<f64>,
    /// Throttled by the quota of its cgroup (as the cgroup counts it: summed over CPUs), seconds.
    pub throttled_s: Option<f64>,
    /// Periods in which it was throttled.
    pub throttled_count: Option<u64>,
    /// Stolen by the hypervisor: the host's steal in that time, in proportion to CPU time used. Under an enforcer, what
    /// that kept from it (then it is the enforcer's measure: demanded less given).
    pub stolen_s: Option<f64>,
    /// Voluntary context switches.
    pub voluntary: Option<u64>,
    /// Involuntary context switches.
    pub involuntary: Option<u64>,
    /// Migrations between CPUs.
    pub migrations: Option<u64>,
}

impl Account {
    /// CPU time, seconds.
    pub fn cpu_s(&self) -> Option<f64> {
        Some(self.user_s? + self.sys_s?)
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// Number, from 0.
    pub number: u32,
    /// Begin, seconds from the release.
    pub start_s: f64,
    /// End, seconds from the release.
    pub end_s: f64,
    /// Events; `None` for commands that count none.
    pub events: Option<u64>,
    /// Events a second; as the command itself reports it where it does (`sysbench`, `openssl speed`).
    pub events_per_s: Option<f64>,
    /// Where the time went.
    #[serde(flatten)]
    pub account: Account,
    /// CPUs it was seen on.
    pub cpus: Option<CpuSet>,
    /// Exit status of a command (128 + n: killed by signal n).
    pub exit_status: Option<i32>,
}

/// What the host did meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostUse {
    /// CPU time used by all, seconds (user, nice, system, interrupts).
    pub busy_s: Option<f64>,
    /// Stolen from the host by its hypervisor, all CPUs, seconds.
    pub steal_s: Option<f64>,
    /// CPU time of this program itself, the enforcer's apart, seconds.
    pub harness_cpu_s: Option<f64>,
    /// The same, percent of ONE CPU.
    pub harness_cpu_pct: Option<f64>,
    /// CPU time of the enforcer, seconds.
    pub enforcer_cpu_s: Option<f64>,
}

impl HostUse {
    /// Books a part of this program's CPU time to the enforcer.
    pub(crate) fn without_enforcer(&mut self, cpu_s: f64) {
        self.enforcer_cpu_s = Some(cpu_s);
        if let (Some(own), Some(pct)) = (&mut self.harness_cpu_s, &mut self.harness_cpu_pct)
            && *own > 0.0
        {
            let left = (*own - cpu_s).max(0.0);
            *pct *= left / *own;
            *own = left;
        }
    }
}

/// What the enforcer did to a cell's tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnforcerRecord {
    /// The rule, in the source's time.
    pub rule: Rule,
    /// How much faster than the source's time it was played: 50 means that 2 s stand for 100 s.
    pub time_scale: f64,
    /// CPU time wanted from it: given and kept back, seconds.
    pub demanded_s: f64,
    /// CPU time given, seconds.
    pub given_s: f64,
    /// CPU time kept back, seconds.
    pub stolen_s: f64,
    /// Time during which it punished, seconds.
    pub punished_s: f64,
    /// Credits at start and end, for the rule of credits.
    pub credits: Option<(f64, f64)>,
    /// How it went, at most a few hundred points.
    pub trace: Vec<EnforcerPoint>,
}

/// One point of the enforcer's trace.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EnforcerPoint {
    /// Seconds from the release.
    pub at_s: f64,
    /// CPU wanted since the last point, percent of ONE CPU.
    pub demanded_pct: f64,
    /// CPU given since the last point, percent of ONE CPU.
    pub given_pct: f64,
    /// What the rule looks at: use over its window (percent), bucket (CPU seconds) or credits.
    pub level: f64,
    /// Whether it punishes.
    pub punishing: bool,
}

/// What the model expects of a tenant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Predicted {
    /// Which model: `simulator` or `credits`.
    pub by: String,
    /// Mean of its runs' events a second.
    pub events_per_s: Option<f64>,
    /// From the release to its end, seconds.
    pub elapsed_s: Option<f64>,
    /// Mean length of a run, seconds.
    pub run_s: Option<f64>,
    /// CPU time got, percent of ONE CPU, until its end.
    pub got_pct: Option<f64>,
    /// Waited for a CPU, all threads, seconds.
    pub waited_s: Option<f64>,
    /// Kept back by the hypervisor's rule, seconds.
    pub stolen_s: Option<f64>,
    /// Credits left at the end.
    pub credits: Option<f64>,
}

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Not a record of this version.
    #[error("{path}: {what}")]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        what: String,
    },
}

impl Record {
    /// Reads `record.json` of a result folder, or the file itself.
    pub fn load(path: &Path) -> Result<Self, RecordError> {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let text =
            fs::read_to_string(&path).map_err(|error| RecordError::Io { path: path.clone(), error })?;
        let record: Self = serde_json::from_str(&text)
            .map_err(|e| RecordError::Form { path: path.clone(), what: e.to_string() })?;
        if record.schema != SCHEMA {
            let what = format!("schema {:?}, expected {SCHEMA:?}", record.schema);
            return Err(RecordError::Form { path, what });
        }
        Ok(record)
    }

    /// Writes it into a folder, which must exist. What was there stays until the new one is whole on disk.
    pub fn save(&self, folder: &Path) -> Result<(), RecordError> {
        let path = folder.join(FILE);
        let fail = |error: io::Error| RecordError::Io { path: path.clone(), error };
        let temporary = folder.join(".record.json.new");
        let written = (|| {
            let mut file = File::create(&temporary)?;
            let mut text = serde_json::to_vec(self).map_err(io::Error::other)?;
            text.push(b'\n');
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(fail)
    }

    /// Whether a cell is there already.
    pub fn has(&self, point: usize, repetition: u32) -> bool {
        self.cells.iter().any(|cell| cell.point.index == point && cell.repetition == repetition)
    }

    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.cells.len() >= self.planned_cells
    }
}

#[cfg(test)]
mod tests {
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
        let cell = Cell {
            point: Point { label: "64x1".into(), ..Point::default() },
            repetition: 2,
            released_at: None,
            seconds: 1.5,
            activation: vec![0],
            tenants: vec![tenant],
            host: HostUse::default(),
            enforcer: None,
            predicted: None,
            notes: Vec::new(),
        };
        Record {
            schema: SCHEMA.into(),
            name: "x".into(),
            title: String::new(),
            builtin: None,
            quick: false,
            sources: Vec::new(),
            version: "0".into(),
            began: "2026-01-01T00:00:00Z".into(),
            finished: None,
            host: Host::default(),
            experiment: None,
            requirements: Vec::new(),
            planned_cells: 2,
            cells: vec![cell],
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
