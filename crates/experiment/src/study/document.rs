//! A studied experiment, as `study.json` has it.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::PointStudy;
use crate::decide::Verdict;
use crate::record::{Host, MEASURED};

pub const SCHEMA: &str = "evenkeel.lab-study/v1";

/// Name of the file in a result folder.
pub const FILE: &str = "study.json";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    pub schema: String,
    pub name: String,
    pub title: String,
    /// The built-in experiment it is.
    pub builtin: Option<String>,
    /// Whether it was run in its short form.
    pub quick: bool,
    /// Version of evenkeel that made the record.
    pub version: String,
    /// When it was begun, RFC 3339.
    pub began: String,
    /// When it was finished; `None` while cells are missing.
    pub finished: Option<String>,
    /// Cells done, and planned.
    pub cells: [usize; 2],
    pub host: Host,
    /// What the answer is, in plain words, each with its test.
    pub verdicts: Vec<Verdict>,
    /// What the host could not give, and what disturbed.
    pub missed: Vec<String>,
    /// What a run costs beyond the time asked for, as the source defines it; `None` where those alone did different work.
    pub overhead: Option<Overhead>,
    pub points: Vec<PointStudy>,
    /// The sources' figures next to ours.
    pub sources: Vec<SourceComparison>,
    /// Readers of files by share of the machine and kind of limit.
    #[serde(default)]
    pub readings: Vec<Reading>,
}

impl Study {
    /// How its figures were made: `measured`, or `simulated`.
    pub fn made(&self) -> &'static str {
        let simulated = |missed: &String| missed.split(':').next() == Some(MEASURED);
        if self.missed.iter().any(simulated) { "simulated" } else { "measured" }
    }
}

/// Overhead of a run as the source defines it: the mean run of a tenant that has the host to itself, less the time asked
/// for. What a run takes longer with others around is wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Length asked for, seconds; `None` for runs of so many events.
    pub asked_s: Option<f64>,
    /// Mean run alone, seconds.
    pub alone_s: Estimate,
    /// Their difference, seconds.
    pub overhead_s: Option<f64>,
    /// Runs it was taken from.
    pub runs: usize,
}

/// `label: ` or nothing.
pub(crate) fn prefix(label: &str) -> String {
    if label.is_empty() { String::new() } else { format!("{label}: ") }
}

/// One cell of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// `own` file each, the `same` file, `one descriptor` for all threads; `.. by pread` where no position is locked.
    pub file: String,
    /// `cpuset`, `shares` or `quota`.
    pub limit: String,
    /// Share of the machine it was promised, percent.
    pub share_pct: f64,
    /// Real time, seconds.
    pub real_s: Option<Estimate>,
    /// It was cut off by the time limit: `real_s` is a lower bound.
    #[serde(default)]
    pub cut_off: bool,
    /// CPU time in the kernel, seconds.
    pub sys_s: Option<Estimate>,
    /// CPU time in user mode, seconds.
    pub user_s: Option<Estimate>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceRow {
    pub label: String,
    pub source: Option<f64>,
    /// The model's figure for this host.
    pub predicted: Option<f64>,
    pub measured: Option<Estimate>,
}

/// A table: source, predicted, measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceComparison {
    pub name: String,
    /// What it shows and on what machine.
    pub title: String,
    /// What is compared, with its unit.
    pub quantity: String,
    pub rows: Vec<SourceRow>,
}
