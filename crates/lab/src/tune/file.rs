//! The file `evenkeel tune` reads: what may be varied, how to start and measure, what is wanted. See `docs/tune.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_policy::audit::{FileError, nearest};
use evenkeel_policy::search::{Domain, Method, Parameter, Point, Space, Value};
use serde::Deserialize;

use super::expand::{Settings, placeholders};
use super::reading::{Constraint, Reading};

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneFile {
    /// Name in reports; the file's own by default.
    pub name: Option<String>,
    /// What is varied.
    #[serde(rename = "parameter", default)]
    pub parameters: Vec<ParameterSpec>,
    /// The service measured; none where the measured command itself is what is tuned.
    pub service: Option<ServiceSpec>,
    /// What makes the load and is waited for.
    #[serde(default)]
    pub measure: MeasureSpec,
    /// What is wanted.
    pub objective: QuantitySpec,
    /// Further quantities, for constraints.
    #[serde(rename = "quantity", default)]
    pub quantities: Vec<QuantitySpec>,
    /// Such as `p99 < 20`.
    #[serde(default)]
    pub constraints: Vec<String>,
    /// When to end.
    #[serde(default)]
    pub budget: BudgetSpec,
    /// How to search.
    #[serde(default)]
    pub search: SearchSpec,
    /// A model of it, to begin where the simulator expects the best.
    pub simulate: Option<SimulateSpec>,
}

/// A parameter.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterSpec {
    /// Name, and the placeholder `{name}` in commands, environments and files.
    pub name: String,
    /// `integer`, `real` or `choice`.
    pub kind: ParameterKind,
    /// Smallest value.
    pub low: Option<f64>,
    /// Largest value.
    pub high: Option<f64>,
    /// Steps are ratios.
    #[serde(default)]
    pub log: bool,
    /// What may be chosen.
    pub values: Option<Vec<toml::Value>>,
    /// The present value: measured first and compared with the best at the end.
    pub present: Option<toml::Value>,
    /// One of evenkeel's own settings that it is.
    pub sets: Option<Lever>,
}

/// See [`ParameterSpec::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParameterKind {
    /// Whole numbers.
    Integer,
    /// Numbers.
    Real,
    /// One of several.
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
    /// Own slice, milliseconds.
    SliceMs,
    /// Nice value.
    Nice,
}

/// The service.
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
    /// The template itself.
    pub text: Option<String>,
    /// Where it is written; `{dir}` is the trial's own directory.
    pub to: String,
}

/// What is measured.
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
    /// Name.
    pub name: String,
    /// Unit, for people.
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

/// When to end.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetSpec {
    /// Runs in all.
    pub trials: Option<usize>,
    /// Time in all, such as `10m`.
    pub time: Option<String>,
}

/// How to search.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSpec {
    /// See [`Method`].
    pub method: Method,
    /// Of everything drawn.
    pub seed: u64,
    /// Runs a point must have had before it counts as the best.
    pub repeats: usize,
    /// Points in the final comparison.
    pub finalists: usize,
    /// Values of a number that the exhaustive method tries.
    pub levels: u64,
    /// Consecutive failures of new settings after which the search is given up.
    pub give_up_after: usize,
}

impl Default for SearchSpec {
    fn default() -> Self {
        Self { method: Method::Bayesian, seed: 1, repeats: 3, finalists: 3, levels: 5, give_up_after: 5 }
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
    /// Points looked at.
    #[serde(default = "sixty")]
    pub points: usize,
}

/// What a simulation tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimQuantity {
    /// CPU got, percent of ONE CPU.
    GotPct,
    /// Events a second.
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
    /// As written.
    pub file: TuneFile,
    /// Name in reports.
    pub name: String,
    /// Directory of the file: what relative paths mean.
    pub dir: PathBuf,
    /// Its text, to recognise it.
    pub text: String,
    /// What is searched.
    pub space: Space,
    /// The present settings, when every parameter has one.
    pub present: Option<Point>,
    /// Whether much or little is wanted.
    pub goal: Goal,
    /// The objective and further quantities, the objective first.
    pub readings: Vec<Reading>,
    /// The constraints.
    pub constraints: Vec<Constraint>,
    /// Time in all.
    pub time: Option<Duration>,
    /// Names of choices as they stand in commands.
    pub choices: BTreeMap<String, Vec<String>>,
}

impl Tune {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// With path and line: not the TOML expected, or values that make no sense.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let file: TuneFile = toml::from_str(text).map_err(|e| FileError::from_toml(path, text, &e))?;
        Checker { path, text }.check(file)
    }

    /// Values for placeholders.
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

struct Checker<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Checker<'_> {
    /// An error at the `nth` occurrence (from 0) of a line that starts with `header`.
    fn at(&self, header: &str, nth: usize, what: impl Into<String>) -> FileError {
        let mut offset = 0;
        let mut seen = 0;
        for line in self.text.split_inclusive('\n') {
            if line.trim_start().starts_with(header) {
                if seen == nth {
                    return FileError::at(self.path, self.text, offset, what);
                }
                seen += 1;
            }
            offset += line.len();
        }
        FileError::at(self.path, self.text, 0, what)
    }

    fn check(self, file: TuneFile) -> Result<Tune, FileError> {
        let mut parameters = Vec::new();
        let mut choices = BTreeMap::new();
        let mut present = Vec::new();
        for (index, spec) in file.parameters.iter().enumerate() {
            let refuse = |what: String| self.at("[[parameter]]", index, what);
            let (domain, words) = domain(spec).map_err(&refuse)?;
            if !spec.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
                || spec.name.is_empty()
            {
                return Err(refuse(format!("{:?} is no name: letters, digits, _ and - only", spec.name)));
            }
            if spec.name == "dir" {
                return Err(refuse("\"dir\" is taken: it stands for the trial's own directory".into()));
            }
            let parameter = Parameter { name: spec.name.clone(), domain };
            if let Err(error) = Space::new(vec![parameter.clone()]) {
                return Err(refuse(error.to_string()));
            }
            if file.parameters[..index].iter().any(|p| p.name == spec.name) {
                return Err(refuse(format!("parameter {:?} is there twice", spec.name)));
            }
            if let Some(lever) = spec.sets {
                if file.parameters[..index].iter().any(|p| p.sets == Some(lever)) {
                    return Err(refuse(format!("{lever:?} is set by two parameters")));
                }
                lever_range(lever, &parameter, &words).map_err(&refuse)?;
            }
            if let Some(value) = &spec.present {
                present.push(value_of(&parameter, value).ok_or_else(|| {
                    refuse(format!("present value {value} of {:?} is not one of its values", spec.name))
                })?);
            }
            if !words.is_empty() {
                choices.insert(spec.name.clone(), words);
            }
            parameters.push(parameter);
        }
        if !present.is_empty() && present.len() < parameters.len() {
            let index = file.parameters.iter().position(|p| p.present.is_none()).unwrap_or(0);
            return Err(self.at(
                "[[parameter]]",
                index,
                "present is given for other parameters, but not for this one",
            ));
        }
        let space = Space::new(parameters).map_err(|e| self.at("[[parameter]]", 0, e.to_string()))?;
        self.placeholders(&file)?;
        let mut readings =
            vec![Reading::new(&file.objective, &file).map_err(|what| self.at("[objective]", 0, what))?];
        for (index, spec) in file.quantities.iter().enumerate() {
            let refuse = |what: String| self.at("[[quantity]]", index, what);
            if readings.iter().any(|r| r.name == spec.name) {
                return Err(refuse(format!("quantity {:?} is there twice", spec.name)));
            }
            readings.push(Reading::new(spec, &file).map_err(refuse)?);
        }
        let Some(goal) = file.objective.goal else {
            return Err(self.at("[objective]", 0, "the objective needs goal = \"max\" or goal = \"min\""));
        };
        if let Some(index) = file.quantities.iter().position(|q| q.goal.is_some() || !q.price.is_empty()) {
            return Err(self.at("[[quantity]]", index, "goal and price belong to the [objective]"));
        }
        let mut constraints = Vec::new();
        for text in &file.constraints {
            let constraint =
                Constraint::parse(text, &readings).map_err(|what| self.at("constraints", 0, what))?;
            constraints.push(constraint);
        }
        for name in file.objective.price.keys() {
            match space.parameters().iter().find(|p| p.name == *name) {
                None => {
                    let near =
                        nearest(name, space.parameters().iter().map(|p| p.name.as_str())).unwrap_or_default();
                    let what = format!("price of {name:?}, which is no parameter, did you mean {near:?}?");
                    return Err(self.at("[objective]", 0, what));
                }
                Some(p) if matches!(p.domain, Domain::Choice { .. }) => {
                    return Err(self.at(
                        "[objective]",
                        0,
                        format!("{name:?} is a choice and has no price a unit"),
                    ));
                }
                Some(_) => {}
            }
        }
        let time = match &file.budget.time {
            None => None,
            Some(text) => Some(humantime::parse_duration(text).map_err(|error| {
                self.at("time =", 0, format!("budget time {text:?} is no duration such as \"10m\": {error}"))
            })?),
        };
        if file.budget.trials == Some(0) {
            return Err(self.at("trials =", 0, "a budget of 0 trials measures nothing"));
        }
        let positive = |value: f64, header: &str, what: &str| {
            if value.is_finite() && (0.0..1e6).contains(&value) {
                Ok(())
            } else {
                Err(self.at(header, 0, format!("{what} is {value}: seconds from 0 on are meant")))
            }
        };
        positive(file.measure.warmup_s, "warmup_s", "warmup_s")?;
        positive(file.measure.seconds.unwrap_or(1.0), "seconds", "seconds")?;
        positive(file.measure.timeout_s.unwrap_or(1.0), "timeout_s", "timeout_s")?;
        if let Some(service) = &file.service {
            positive(service.ready_within_s, "ready_within_s", "ready_within_s")?;
            positive(service.stop_within_s, "stop_within_s", "stop_within_s")?;
            if service.command.is_empty() {
                return Err(self.at("[service]", 0, "its command is empty"));
            }
            for (index, f) in service.files.iter().enumerate() {
                if f.from.is_some() == f.text.is_some() {
                    return Err(self.at("[[service.file]]", index, "a file needs either from or text"));
                }
            }
            if let Some(ready) = &service.ready
                && !ready.starts_with("tcp://")
                && !ready.starts_with("http://")
            {
                return Err(self.at(
                    "ready =",
                    0,
                    format!("ready {ready:?}: tcp://HOST:PORT or http://.. is meant"),
                ));
            }
        }
        if file.measure.command.as_ref().is_some_and(Vec::is_empty) {
            return Err(self.at("[measure]", 0, "its command is empty"));
        }
        if file.measure.command.is_none() && file.service.is_none() {
            return Err(self.at(
                "[objective]",
                0,
                "there is neither a [service] nor a [measure] command to tune",
            ));
        }
        let stem = self.path.file_stem().map_or_else(|| "tune".into(), |s| s.to_string_lossy().into_owned());
        let present = (!present.is_empty()).then_some(present);
        Ok(Tune {
            name: file.name.clone().unwrap_or(stem),
            dir: self.path.parent().map_or_else(PathBuf::new, Path::to_path_buf),
            text: self.text.to_owned(),
            space,
            present,
            goal,
            readings,
            constraints,
            time,
            choices,
            file,
        })
    }

    /// Every parameter is used by something, and nothing that looks like a misspelt one is left.
    fn placeholders(&self, file: &TuneFile) -> Result<(), FileError> {
        let mut texts: Vec<(&str, &str)> = Vec::new();
        if let Some(service) = &file.service {
            texts.extend(
                service.command.iter().chain(service.env.values()).map(|t| ("[service]", t.as_str())),
            );
            for f in &service.files {
                texts.push(("[[service.file]]", f.to.as_str()));
                texts.extend(f.text.as_deref().map(|t| ("[[service.file]]", t)));
            }
        }
        texts.extend(
            file.measure
                .command
                .iter()
                .flatten()
                .chain(file.measure.env.values())
                .map(|t| ("[measure]", t.as_str())),
        );
        texts.extend(file.simulate.as_ref().map(|s| ("[simulate]", s.experiment.as_str())));
        let known: Vec<&str> = file.parameters.iter().map(|p| p.name.as_str()).collect();
        let mut used: Vec<String> = Vec::new();
        for (header, text) in texts {
            for name in placeholders(text) {
                if name != "dir" && !known.contains(&name.as_str())
                    // Braces of another language (JSON, nginx) are left alone; a near miss is a mistake.
                    && let Some(near) = nearest(&name, known.iter().copied())
                    && strsim(&name, near)
                {
                    let what = format!("{{{name}}} is no parameter, did you mean {{{near}}}?");
                    return Err(self.at(header, 0, what));
                }
                used.push(name);
            }
        }
        let from_file = file.service.iter().flat_map(|s| &s.files).any(|f| f.from.is_some());
        for (index, p) in file.parameters.iter().enumerate() {
            if p.sets.is_none() && !used.contains(&p.name) && !from_file {
                let what = format!(
                    "{:?} is used by nothing: write {{{}}} where its value belongs, or sets = \"quota\" or the like",
                    p.name, p.name
                );
                return Err(self.at("[[parameter]]", index, what));
            }
        }
        Ok(())
    }
}

/// Whether one may be a slip for the other: at most two of their letters differ by place, and most are the same.
fn strsim(a: &str, b: &str) -> bool {
    let common = a.chars().filter(|c| b.contains(*c)).count();
    a.len().abs_diff(b.len()) <= 2 && a.len() >= 3 && common + 1 >= a.len().max(b.len())
}

type Words = Vec<String>;

fn domain(spec: &ParameterSpec) -> Result<(Domain, Words), String> {
    let name = &spec.name;
    let range = || match (spec.low, spec.high) {
        (Some(low), Some(high)) => Ok((low, high)),
        _ => Err(format!("parameter {name:?} needs low and high")),
    };
    let no_values = || match spec.values {
        Some(_) => Err(format!("parameter {name:?}: values are for kind = \"choice\"")),
        None => Ok(()),
    };
    match spec.kind {
        ParameterKind::Integer => {
            no_values()?;
            let (low, high) = range()?;
            let whole = |v: f64| {
                (v.fract() == 0.0 && v.abs() < 9e15)
                    .then_some(v as i64)
                    .ok_or_else(|| format!("parameter {name:?}: {v} is no whole number"))
            };
            Ok((Domain::Integer { low: whole(low)?, high: whole(high)?, log: spec.log }, Vec::new()))
        }
        ParameterKind::Real => {
            no_values()?;
            let (low, high) = range()?;
            Ok((Domain::Real { low, high, log: spec.log }, Vec::new()))
        }
        ParameterKind::Choice => {
            if spec.low.is_some() || spec.high.is_some() || spec.log {
                return Err(format!("parameter {name:?}: a choice has values, not low, high or log"));
            }
            let values = spec.values.as_ref().ok_or_else(|| format!("parameter {name:?} needs values"))?;
            let words: Words = values.iter().map(word).collect();
            Ok((Domain::Choice { values: words.clone() }, words))
        }
    }
}

/// A TOML value as it stands in a command.
fn word(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn value_of(parameter: &Parameter, value: &toml::Value) -> Option<Value> {
    let out = match (&parameter.domain, value) {
        (Domain::Integer { .. }, toml::Value::Integer(v)) => Value::Integer(*v),
        (Domain::Real { .. }, toml::Value::Float(v)) => Value::Real(*v),
        (Domain::Real { .. }, toml::Value::Integer(v)) => Value::Real(*v as f64),
        (Domain::Choice { values }, v) => Value::Choice(values.iter().position(|w| *w == word(v))?),
        _ => return None,
    };
    parameter.domain.holds(out).then_some(out)
}

/// What a setting of evenkeel's own may be.
fn lever_range(lever: Lever, parameter: &Parameter, words: &[String]) -> Result<(), String> {
    let (low, high, whole) = match lever {
        Lever::Quota => (1.0, 1e6, false),
        Lever::PeriodMs => (1.0, 1000.0, false),
        Lever::Weight => (1.0, 10_000.0, true),
        Lever::Cpus => (1.0, 4096.0, true),
        Lever::SliceMs => (0.1, 100.0, false),
        Lever::Nice => (-20.0, 19.0, true),
    };
    let inside = |v: f64| (low..=high).contains(&v) && (!whole || v.fract() == 0.0);
    let fine = match &parameter.domain {
        Domain::Integer { low, high, .. } => inside(*low as f64) && inside(*high as f64),
        Domain::Real { low, high, .. } => !whole && inside(*low) && inside(*high),
        Domain::Choice { .. } => words.iter().all(|w| w.parse().is_ok_and(inside)),
    };
    if fine {
        return Ok(());
    }
    let kind = if whole { "whole numbers" } else { "numbers" };
    Err(format!("parameter {:?} sets {lever:?}, which takes {kind} from {low} to {high}", parameter.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
constraints = ["p99 < 20 ms"]
[[parameter]]
name = "threads"
kind = "integer"
low = 1
high = 8
present = 1
[[parameter]]
name = "quota"
kind = "real"
low = 10
high = 200
log = true
sets = "quota"
present = 100
[[parameter]]
name = "mode"
kind = "choice"
values = ["a", "b", 3]
present = "b"
[service]
command = ["server", "--threads", "{threads}", "--mode={mode}"]
ready = "tcp://127.0.0.1:7000"
[measure]
command = ["load"]
[objective]
name = "throughput"
goal = "max"
unit = "1/s"
regex = '([0-9.]+) requests'
price = { quota = 2.5 }
[[quantity]]
name = "p99"
unit = "ms"
json = "/p99"
[budget]
trials = 30
time = "10m"
"#;

    fn parse(text: &str) -> Result<Tune, String> {
        Tune::parse(Path::new("t.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_becomes_a_search_and_points_become_settings_and_back() {
        let tune = parse(GOOD).unwrap();
        assert_eq!((tune.space.dim(), tune.readings.len(), tune.constraints.len()), (3, 2, 1));
        let point = tune.present.clone().unwrap();
        let settings = tune.settings(&point);
        assert_eq!(settings.fill("--mode={mode} {threads} {quota} {other}"), "--mode=b 1 100.0 {other}");
        assert_eq!(tune.point(&settings), Some(point.clone()));
        assert_eq!(tune.lever(Lever::Quota, &point), Some(100.0));
        assert_eq!(tune.lever(Lever::Weight, &point), None);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (from, to, line, part) in [
            ("low = 1\n", "lo = 1\n", 6, "did you mean `low`"),
            ("high = 8", "high = 0", 3, "reversed"),
            ("low = 10\n", "low = 300\n", 9, "reversed"),
            ("low = 10\n", "low = 0\n", 9, "log scale"),
            ("high = 8", "high = 8.5", 3, "no whole number"),
            ("present = 1\n", "present = 9\n", 3, "not one of its values"),
            ("present = \"b\"\n", "", 17, "not for this one"),
            ("{mode}", "{moed}", 22, "{mode}"),
            ("--mode={mode}", "--mode=x", 17, "used by nothing"),
            ("sets = \"quota\"", "sets = \"weight\"", 9, "whole numbers from 1 to 10000"),
            ("goal = \"max\"", "goal = \"maximal\"", 29, "max"),
            ("'([0-9.]+) requests'", "'([0-9.+ requests'", 27, "regex"),
            ("'([0-9.]+) requests'", "'[0-9.]+ requests'", 27, "group"),
            ("json = \"/p99\"", "json = \"p99\"", 33, "pointer"),
            ("p99 < 20 ms", "p98 < 20 ms", 2, "p99"),
            ("p99 < 20 ms", "p99 = 20 ms", 2, "<"),
            ("p99 < 20 ms", "p99 < 20 s", 2, "ms"),
            ("quota = 2.5", "quoat = 2.5", 27, "quota"),
            ("trials = 30", "trials = 0", 38, "0 trials"),
            ("time = \"10m\"", "time = \"soon\"", 39, "duration"),
            ("tcp://127.0.0.1:7000", "7000", 24, "tcp://"),
            ("[budget]", "[budgte]", 37, "budget"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(&format!("t.toml:{line}:")) && error.contains(part), "{to}: {error}");
        }
    }
}
