//! The file `evenkeel tune` reads: what may be varied, how to start and measure, what is wanted. See `docs/tune.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::search::{Domain, Method, Parameter, Point, Space, Value};
use evenkeel_base::FileError;
use serde::Deserialize;

use super::check::Checker;
use super::expand::Settings;
use super::reading::{Constraint, Reading};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneFile {
    /// Name in reports; the file's own by default.
    pub name: Option<String>,
    #[serde(rename = "parameter", default)]
    pub parameters: Vec<ParameterSpec>,
    /// The service measured; none where the measured command itself is what is tuned.
    pub service: Option<ServiceSpec>,
    /// What makes the load and is waited for.
    #[serde(default)]
    pub measure: MeasureSpec,
    pub objective: QuantitySpec,
    /// Further quantities, for constraints.
    #[serde(rename = "quantity", default)]
    pub quantities: Vec<QuantitySpec>,
    /// Such as `p99 < 20`.
    #[serde(default)]
    pub constraints: Vec<String>,
    #[serde(default)]
    pub budget: BudgetSpec,
    #[serde(default)]
    pub search: SearchSpec,
    /// A model of it, to begin where the simulator expects the best.
    pub simulate: Option<SimulateSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterSpec {
    /// Name, and the placeholder `{name}` in commands, environments and files.
    pub name: String,
    /// `integer`, `real` or `choice`.
    pub kind: ParameterKind,
    pub low: Option<f64>,
    pub high: Option<f64>,
    #[serde(default)]
    pub log: bool,
    /// What may be chosen.
    pub values: Option<Vec<toml::Value>>,
    /// The present value: measured first and compared with the best at the end.
    pub present: Option<toml::Value>,
    /// One of evenkeel's own settings that it is.
    pub sets: Option<Lever>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParameterKind {
    Integer,
    Real,
    Choice,
}

/// A setting of evenkeel's own, see `evenkeel exec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lever {
    /// CPU limit, percent of ONE CPU.
    Quota,
    /// Period of the limit, milliseconds.
    PeriodMs,
    /// cgroup weight, 1 to 10000.
    Weight,
    /// Number of CPUs: the first so many that may be used.
    Cpus,
    SliceMs,
    Nice,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// Program and arguments; must stay in the foreground or leave children behind that serve.
    pub command: Vec<String>,
    /// Added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the file's by default.
    pub dir: Option<PathBuf>,
    /// Files written before the start.
    #[serde(rename = "file", default)]
    pub files: Vec<FileSpec>,
    /// How to know that it is up: `tcp://HOST:PORT` or `http://..`; by default it is when it has run for half a second.
    pub ready: Option<String>,
    /// How long that may take, seconds.
    #[serde(default = "ten")]
    pub ready_within_s: f64,
    /// How long it may take to end after SIGTERM, seconds; then it is killed.
    #[serde(default = "five")]
    pub stop_within_s: f64,
}

/// A file with placeholders.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Template file, relative to the tune file.
    pub from: Option<PathBuf>,
    pub text: Option<String>,
    /// Where it is written; `{dir}` is the trial's own directory.
    pub to: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureSpec {
    /// Load generator, or the program to be tuned itself; none where the load is there anyway.
    pub command: Option<Vec<String>>,
    /// Added to its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Wait before, seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// Without a command: how long to measure, seconds (10 by default).
    pub seconds: Option<f64>,
    /// Given up after this, seconds (300 by default).
    pub timeout_s: Option<f64>,
}

/// Whether much or little is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The more the better.
    Max,
    /// The less the better.
    Min,
}

/// A measured quantity; exactly one of the sources.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantitySpec {
    pub name: String,
    #[serde(default)]
    pub unit: String,
    /// In the command's output: the first group of the last match.
    pub regex: Option<String>,
    /// In the command's output, or the answer of `url`, as JSON: a pointer (RFC 6901) such as `/latency/p99`.
    pub json: Option<String>,
    /// Address to ask after the measurement.
    pub url: Option<String>,
    /// Address of metrics in Prometheus' text format.
    pub prometheus: Option<String>,
    /// The metric, with labels: `requests_total{code="200"}`.
    pub metric: Option<String>,
    /// For counters: growth a second while measuring.
    #[serde(default)]
    pub rate: bool,
    /// For histograms (`.._bucket`): this quantile of what came while measuring, 0..1.
    pub quantile: Option<f64>,
    /// `real_s`: the measured command's duration; `cpu_s`: CPU time of what is tuned; `cpu_pct`: the same a second.
    pub account: Option<String>,
    /// Multiplied by this.
    #[serde(default = "one")]
    pub scale: f64,
    /// Of the objective: `max` or `min`.
    pub goal: Option<Goal>,
    /// Of the objective: what each unit of a parameter costs, in the objective's unit; taken off it (added when little is
    /// wanted).
    #[serde(default)]
    pub price: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetSpec {
    pub trials: Option<usize>,
    /// Time in all, such as `10m`.
    pub time: Option<String>,
}

evenkeel_base::defaults! {
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSpec {
    pub method: Method = Method::Bayesian,
    pub seed: u64 = 1,
    /// Runs a point must have had before it counts as the best.
    pub repeats: usize = 3,
    /// Points in the final comparison.
    pub finalists: usize = 3,
    /// Values of a number that the exhaustive method tries.
    pub levels: u64 = 5,
    /// Consecutive failures of new settings after which the search is given up.
    pub give_up_after: usize = 5,
}
}

/// A model in the simulator.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulateSpec {
    /// Experiment (as `evenkeel sim` reads it) with placeholders.
    pub experiment: String,
    /// Task looked at; all together by default.
    pub task: Option<String>,
    /// `got_pct`, `events_per_s` or `wait_p99_ms`.
    pub quantity: SimQuantity,
    #[serde(default = "sixty")]
    pub points: usize,
}

/// What a simulation tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimQuantity {
    /// CPU got, percent of ONE CPU.
    GotPct,
    EventsPerS,
    /// 99th percentile of waits, milliseconds.
    WaitP99Ms,
}

fn ten() -> f64 {
    10.0
}
fn five() -> f64 {
    5.0
}
fn one() -> f64 {
    1.0
}
fn sixty() -> usize {
    60
}

/// A file that was read and checked.
#[derive(Debug, Clone)]
pub struct Tune {
    pub file: TuneFile,
    pub name: String,
    /// Directory of the file: what relative paths mean.
    pub dir: PathBuf,
    /// Its text, to recognise it.
    pub text: String,
    pub space: Space,
    /// The present settings, when every parameter has one.
    pub present: Option<Point>,
    /// Whether much or little is wanted.
    pub goal: Goal,
    /// The objective and further quantities, the objective first.
    pub readings: Vec<Reading>,
    pub constraints: Vec<Constraint>,
    pub time: Option<Duration>,
    /// Names of choices as they stand in commands.
    pub choices: BTreeMap<String, Vec<String>>,
}

impl Tune {
    /// Reads and checks a file's text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let file: TuneFile = toml::from_str(text).map_err(|e| FileError::from_toml(path, text, &e))?;
        Checker { path, text }.check(file)
    }

    pub fn settings(&self, point: &Point) -> Settings {
        let names = self.space.parameters().iter().zip(point);
        let value = |p: &Parameter, v: &Value| match (v, &p.domain) {
            (Value::Choice(i), Domain::Choice { values }) => values.get(*i).cloned().unwrap_or_default(),
            (Value::Integer(v), _) => v.to_string(),
            (Value::Real(v), _) => shown(*v),
            (Value::Choice(i), _) => i.to_string(),
        };
        Settings(names.map(|(p, v)| (p.name.clone(), value(p, v))).collect())
    }

    /// A point from what [`Tune::settings`] gave.
    pub fn point(&self, settings: &Settings) -> Option<Point> {
        let one = |p: &Parameter| {
            let text = settings.0.get(&p.name)?;
            let value = match &p.domain {
                Domain::Integer { .. } => Value::Integer(text.parse().ok()?),
                Domain::Real { .. } => Value::Real(text.parse().ok()?),
                Domain::Choice { values } => Value::Choice(values.iter().position(|v| v == text)?),
            };
            p.domain.holds(value).then_some(value)
        };
        self.space.parameters().iter().map(one).collect()
    }

    /// What is optimised, from the objective's reading and the settings' prices, and as a loss.
    pub fn worth(&self, reading: f64, point: &Point) -> (f64, f64) {
        let mut price = 0.0;
        for (parameter, value) in self.space.parameters().iter().zip(point) {
            let each = self.file.objective.price.get(&parameter.name).copied().unwrap_or(0.0);
            price += each
                * match value {
                    Value::Integer(v) => *v as f64,
                    Value::Real(v) => *v,
                    Value::Choice(_) => 0.0,
                };
        }
        match self.goal {
            Goal::Max => (reading - price, price - reading),
            Goal::Min => (reading + price, reading + price),
        }
    }

    /// Value of one of evenkeel's own settings.
    pub fn lever(&self, lever: Lever, point: &Point) -> Option<f64> {
        let index = self.file.parameters.iter().position(|p| p.sets == Some(lever))?;
        let spec = self.file.parameters.get(index)?;
        match point.get(index)? {
            Value::Integer(v) => Some(*v as f64),
            Value::Real(v) => Some(*v),
            Value::Choice(v) => self.choices.get(&spec.name)?.get(*v)?.parse().ok(),
        }
    }
}

/// A real number short enough for a command line, and the same again when read.
fn shown(value: f64) -> String {
    let text = value.to_string();
    if text.contains('.') || text.len() > 15 { text } else { format!("{text}.0") }
}
