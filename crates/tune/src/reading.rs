//! Where a quantity is read, and what is demanded of it.

use std::time::Duration;

use evenkeel_base::{excerpt, regex_fault};
use evenkeel_fetch::{http, prometheus};
use regex::Regex;

use super::file::{QuantitySpec, TuneFile};

/// How long an address may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A quantity and where it is read.
#[derive(Debug, Clone)]
pub struct Reading {
    pub name: String,
    pub unit: String,
    source: Source,
    scale: f64,
}

#[derive(Debug, Clone)]
enum Source {
    Regex(Regex),
    Json(String),
    Url { url: String, json: Option<String>, regex: Option<Regex> },
    Metric { url: String, metric: prometheus::Selector, rate: bool, quantile: Option<f64> },
    Account(Account),
}

#[derive(Debug, Clone, Copy)]
enum Account {
    Real,
    Cpu,
    CpuPct,
}

/// What is known after a measurement.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// What the command wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr: looked at where stdout does not have it.
    pub stderr: String,
    /// How long it was measured, seconds.
    pub real_s: f64,
    /// CPU time of what is tuned in that time, seconds.
    pub cpu_s: Option<f64>,
    /// Metrics before, by address.
    pub before: Vec<(String, prometheus::Metrics)>,
}

impl Reading {
    /// Checks where it is read.
    pub(super) fn new(spec: &QuantitySpec, file: &TuneFile) -> Result<Self, String> {
        let name = &spec.name;
        let regex = match &spec.regex {
            None => None,
            Some(text) => {
                let regex = Regex::new(text)
                    .map_err(|e| format!("{name:?}: the regex cannot be read: {}", regex_fault(&e)))?;
                if regex.captures_len() < 2 {
                    return Err(format!("{name:?}: the regex needs a group, (..), around the number"));
                }
                Some(regex)
            }
        };
        if let Some(pointer) = &spec.json
            && !pointer.starts_with('/')
            && !pointer.is_empty()
        {
            return Err(format!("{name:?}: {pointer:?} is no JSON pointer: write \"/{pointer}\""));
        }
        let only_metric = spec.metric.is_some() || spec.rate || spec.quantile.is_some();
        if spec.prometheus.is_none() && only_metric {
            return Err(format!("{name:?}: metric, rate and quantile go with prometheus = \"http://..\""));
        }
        for url in spec.url.iter().chain(&spec.prometheus) {
            let hint = "a [measure] command such as curl can ask others";
            http::parse(url).map_err(|what| format!("{name:?}: {what}; {hint}"))?;
        }
        let command = file.measure.command.is_some();
        let source = match (regex, &spec.json, &spec.url, &spec.prometheus, &spec.account) {
            (regex, json, Some(url), None, None) if json.is_none() || regex.is_none() => {
                Source::Url { url: url.clone(), json: json.clone(), regex }
            }
            (None, None, None, Some(url), None) => {
                let Some(metric) = &spec.metric else {
                    return Err(format!("{name:?}: prometheus needs metric = \"NAME\""));
                };
                if let Some(q) = spec.quantile
                    && (!(0.0..=1.0).contains(&q) || spec.rate)
                {
                    return Err(format!("{name:?}: a quantile is from 0 to 1 and has no rate"));
                }
                let metric =
                    prometheus::Selector::parse(metric).map_err(|what| format!("{name:?}: {what}"))?;
                Source::Metric { url: url.clone(), metric, rate: spec.rate, quantile: spec.quantile }
            }
            (Some(regex), None, None, None, None) if command => Source::Regex(regex),
            (None, Some(pointer), None, None, None) if command => Source::Json(pointer.clone()),
            (None, None, None, None, Some(account)) => Source::Account(match account.as_str() {
                "real_s" if command => Account::Real,
                "real_s" => return Err(format!("{name:?}: real_s needs a [measure] command")),
                "cpu_s" => Account::Cpu,
                "cpu_pct" => Account::CpuPct,
                other => {
                    return Err(format!("{name:?}: account {other:?}: real_s, cpu_s or cpu_pct is meant"));
                }
            }),
            (Some(_), ..) | (_, Some(_), ..) if !command => {
                return Err(format!("{name:?}: there is no [measure] command whose output could be read"));
            }
            _ => {
                return Err(format!(
                    "{name:?} needs one source: regex or json (of the command's output), url (with json or regex), \
                     prometheus with metric, or account"
                ));
            }
        };
        if !spec.scale.is_finite() || spec.scale == 0.0 {
            return Err(format!("{name:?}: scale {} makes every value the same", spec.scale));
        }
        Ok(Self { name: name.clone(), unit: spec.unit.clone(), source, scale: spec.scale })
    }

    /// Address of metrics to be read before the measurement, too.
    pub(super) fn before(&self) -> Option<&str> {
        match &self.source {
            Source::Metric { url, rate, quantile, .. } if *rate || quantile.is_some() => Some(url),
            _ => None,
        }
    }

    /// The value.
    pub(super) fn read(&self, measured: &Measured) -> Result<f64, String> {
        let value = match &self.source {
            Source::Regex(regex) => match of_regex(regex, &measured.stdout) {
                Ok(value) => value,
                Err(what) => of_regex(regex, &measured.stderr).map_err(|_| said(what, &measured.stderr))?,
            },
            Source::Json(pointer) => {
                of_json(pointer, &measured.stdout).map_err(|what| said(what, &measured.stderr))?
            }
            Source::Url { url, json, regex } => {
                let body = http::get(url, ANSWER_WITHIN).map_err(|e| format!("{url}: {e}"))?;
                match (json, regex) {
                    (Some(pointer), _) => of_json(pointer, &body)?,
                    (None, Some(regex)) => of_regex(regex, &body)?,
                    (None, None) => number(body.trim())?,
                }
            }
            Source::Metric { url, metric, rate, quantile } => {
                let body = http::get(url, ANSWER_WITHIN).map_err(|e| format!("{url}: {e}"))?;
                let after = prometheus::Metrics::parse(&body);
                let before = measured.before.iter().find(|(u, _)| u == url).map(|(_, m)| m);
                match (quantile, rate) {
                    (Some(q), _) => metric.quantile(*q, before, &after),
                    (None, true) => metric.rate(before, &after, measured.real_s),
                    (None, false) => metric.value(&after),
                }
                .map_err(|what| format!("{url}: {what}"))?
            }
            Source::Account(Account::Real) => measured.real_s,
            Source::Account(Account::Cpu) => {
                measured.cpu_s.ok_or("its CPU time is not known here (no cgroup that counts it)")?
            }
            Source::Account(Account::CpuPct) => {
                let cpu =
                    measured.cpu_s.ok_or("its CPU time is not known here (no cgroup that counts it)")?;
                100.0 * cpu / measured.real_s
            }
        };
        let value = value * self.scale;
        if value.is_finite() { Ok(value) } else { Err(format!("{value} is no number to compare")) }
    }
}

/// With what the program complained about, if it did.
fn said(what: String, stderr: &str) -> String {
    if stderr.trim().is_empty() { what } else { format!("{what}; it complained: {:?}", excerpt(stderr)) }
}

fn number(text: &str) -> Result<f64, String> {
    // One at the end parts words.
    let plain = without_commas(text.trim().trim_end_matches(','));
    let number = plain.and_then(|plain| plain.replace('_', "").parse().ok());
    number.ok_or_else(|| format!("{:?} is no number", excerpt(text)))
}

/// Without the commas that part thousands, as in `12,345.6`; `None` where a comma is another one, such as a decimal one.
fn without_commas(text: &str) -> Option<String> {
    let (whole, fraction) = text.find('.').map_or((text, ""), |point| text.split_at(point));
    let mut groups = whole.split(',');
    let first = groups.next()?.trim_start_matches(['+', '-']);
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let thousands = matches!(first.len(), 1..=3) && digits(first) && !first.starts_with('0');
    let parted = groups.all(|group| thousands && group.len() == 3 && digits(group));
    (parted && !fraction.contains(',')).then(|| text.replace(',', ""))
}

/// The number in the first group of the last match.
pub fn of_regex(regex: &Regex, text: &str) -> Result<f64, String> {
    let found = regex.captures_iter(text).last().and_then(|c| c.get(1));
    match found {
        Some(group) => number(group.as_str()),
        None => Err(format!("/{regex}/ is not in the output, which is {}", described(text))),
    }
}

/// The number at a JSON pointer of the last document in a text.
pub fn of_json(pointer: &str, text: &str) -> Result<f64, String> {
    // A program may write lines before its document; the last document counts.
    let document = serde_json::from_str::<serde_json::Value>(text.trim()).ok().or_else(|| {
        let lines = text.lines().rev().filter(|l| l.trim_start().starts_with(['{', '[']));
        lines.filter_map(|l| serde_json::from_str(l.trim()).ok()).next()
    });
    let Some(document) = document else {
        return Err(format!("no JSON in the output, which is {}", described(text)));
    };
    match document.pointer(pointer) {
        Some(serde_json::Value::Number(n)) => n.as_f64().ok_or_else(|| format!("{n} is too large")),
        Some(serde_json::Value::String(text)) => number(text),
        Some(other) => Err(format!("{pointer} is {}, not a number", excerpt(&other.to_string()))),
        None => Err(format!("{pointer} is not in the JSON {}", excerpt(&document.to_string()))),
    }
}

fn described(text: &str) -> String {
    match text.trim() {
        "" => "empty".into(),
        text => format!("{:?}", excerpt(text)),
    }
}

/// `p99 < 20 ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    pub text: String,
    /// Index of the quantity.
    pub quantity: usize,
    pub bound: f64,
    /// Whether the quantity must stay below it (or above it).
    pub below: bool,
}

impl Constraint {
    pub(super) fn parse(text: &str, readings: &[Reading]) -> Result<Self, String> {
        let meant = || format!("{text:?} is no constraint such as \"p99 < 20 ms\"");
        let at = text.find(['<', '>']).ok_or_else(meant)?;
        let (name, rest) = text.split_at(at);
        let below = rest.starts_with('<');
        let rest = rest[1..].trim_start_matches('=').trim();
        let end = rest.find(|c: char| !(c.is_ascii_digit() || ".-+eE_".contains(c))).unwrap_or(rest.len());
        let (value, unit) = rest.split_at(end);
        let bound: f64 = value.replace('_', "").parse().map_err(|_| meant())?;
        let name = name.trim();
        let Some(quantity) = readings.iter().position(|r| r.name == name) else {
            let known = readings.iter().map(|r| r.name.as_str());
            let near = evenkeel_base::nearest(name, known).unwrap_or_default();
            return Err(format!("{text:?}: no quantity {name:?}, did you mean {near:?}?"));
        };
        let (unit, known) = (unit.trim(), readings[quantity].unit.as_str());
        if !unit.is_empty() && unit != known {
            return Err(format!("{text:?}: {name:?} is in {known:?}, not in {unit:?}"));
        }
        Ok(Self { text: text.to_owned(), quantity, bound, below })
    }

    /// How far a value misses it: above 0 is broken.
    pub fn excess(&self, value: f64) -> f64 {
        if self.below { value - self.bound } else { self.bound - value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_found_in_what_programs_print() {
        let regex = Regex::new(r"([0-9.,]+) requests").unwrap();
        assert_eq!(of_regex(&regex, "1 requests\n12,345.5 requests per second"), Ok(12345.5));
        assert_eq!(of_regex(&regex, "1,234,567 requests"), Ok(1_234_567.0));
        assert_eq!(of_regex(&Regex::new("rate ([0-9.,]+)").unwrap(), "rate 12.5, errors 0"), Ok(12.5));
        // A decimal comma is not taken for one of thousands: 12,5 is not 125.
        for decimal in ["12,5", "0,125", "1234,567", "12.345,678", "1,23,456", ",5"] {
            let read = of_regex(&regex, &format!("{decimal} requests"));
            assert!(read.unwrap_err().contains("no number"), "{decimal}");
        }
        assert!(of_regex(&regex, "").unwrap_err().contains("empty"));
        assert!(of_regex(&Regex::new("x(.*)y").unwrap(), "x many y").unwrap_err().contains("no number"));
        assert_eq!(of_json("/a/0", "{\"a\": [\"7\"]}"), Ok(7.0));
        assert_eq!(of_json("/a", "starting\n{\"a\": 1}\n{\"a\": 2.5}\n"), Ok(2.5));
        assert!(of_json("/b", "{\"a\": 1}").unwrap_err().contains("not in the JSON"));
        assert!(of_json("/b", "Segmentation fault").unwrap_err().contains("Segmentation"));
    }

    #[test]
    fn excess_is_positive_where_a_bound_is_missed() {
        let c = |text: &str| {
            let reading = Reading {
                name: "p99".into(),
                unit: "ms".into(),
                source: Source::Account(Account::Real),
                scale: 1.0,
            };
            Constraint::parse(text, &[reading])
        };
        assert_eq!(c("p99 < 20 ms").unwrap().excess(25.0), 5.0);
        assert_eq!(c("p99>=1e3").unwrap().excess(25.0), 975.0);
        assert!(c("p99").is_err() && c("< 3").is_err() && c("p99 < ms").is_err());
    }

    proptest! {
        #[test]
        fn any_output_is_survived(text in ".*", pointer in "(/[a-z0-9]*)*") {
            let _ = of_json(&pointer, &text);
            let _ = of_regex(&Regex::new("(.+)").unwrap(), &text);
            let _ = Constraint::parse(&text, &[]);
        }
    }
}
