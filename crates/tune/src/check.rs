//! Whether a tune file makes sense: everything that can be refused before a trial is made, with its line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::search::{Domain, Parameter, Space, Value};
use evenkeel_base::{FileError, nearest};

use super::expand::placeholders;
use super::file::{Lever, ParameterKind, ParameterSpec, Tune, TuneFile};
use super::reading::{Constraint, Reading};

pub(super) struct Checker<'a> {
    pub path: &'a Path,
    pub text: &'a str,
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

    /// The search it describes, or what is wrong with it.
    pub fn check(self, file: TuneFile) -> Result<Tune, FileError> {
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
        let seconds = |value: f64, key: &str, may_be_0: bool| {
            if (0.0..1e6).contains(&value) && (may_be_0 || value > 0.0) {
                Ok(())
            } else {
                let meant = if may_be_0 { "from 0 on" } else { "above 0" };
                Err(self.at(key, 0, format!("{key} is {value}: seconds {meant} are meant")))
            }
        };
        seconds(file.measure.warmup_s, "warmup_s", true)?;
        // In no time nothing is measured, and no command ends.
        seconds(file.measure.seconds.unwrap_or(1.0), "seconds", false)?;
        seconds(file.measure.timeout_s.unwrap_or(1.0), "timeout_s", false)?;
        if let Some(service) = &file.service {
            seconds(service.ready_within_s, "ready_within_s", true)?;
            seconds(service.stop_within_s, "stop_within_s", true)?;
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
            ("[measure]\n", "[measure]\ntimeout_s = 0\n", 26, "above 0"),
            ("[measure]\n", "[measure]\nseconds = 0.0\n", 26, "above 0"),
            ("[measure]\n", "[measure]\nwarmup_s = -1\n", 26, "from 0 on"),
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
