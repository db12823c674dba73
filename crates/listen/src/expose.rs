//! Families of samples, as `/metrics` shows them and OTLP pushes them: one model, and a file for each form that it is written in.

mod protobuf;
mod text;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longest value of a label, bytes; what is longer is cut and told apart by a number.
const LABEL_BYTES: usize = 256;

/// What a family's samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its name ends with `_total`.
    Counter,
    /// Counts by upper bound.
    Histogram,
}

/// Names with values, in an order that is the same each time.
pub type Labels = Vec<(&'static str, String)>;

/// How many there are up to each length, seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds, ascending; each count includes those before.
    pub upto: Vec<(f64, u64)>,
    pub all: u64,
    /// Their sum; `None` where it is not known.
    pub sum: Option<f64>,
    /// The same as buckets of a native histogram, where they are finer: number, ascending, and count; see
    /// [`NATIVE_SCHEMA`].
    pub native: Option<Vec<(i32, u64)>>,
}

/// Prometheus' schema of native buckets: bucket `i` goes from `2^((i-1)/4)` to `2^(i/4)`.
pub const NATIVE_SCHEMA: i32 = 2;

/// What a sample says.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Distribution(Distribution),
}

/// Samples of one name.
#[derive(Debug)]
pub struct Family {
    /// A counter's with `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    pub samples: Vec<(Labels, Value)>,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<Family>,
}

impl Page {
    /// A family of samples. One without any sample is left out.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Filling<'_> {
        self.families.push(Family { name, kind, help, samples: Vec::new() });
        let at = self.families.len() - 1;
        Filling { family: &mut self.families[at], labels: HashSet::new() }
    }

    /// A gauge without labels; what is not known is left out: it is not zero.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: Option<f64>) {
        self.family(name, Kind::Gauge, help).value(&[], value);
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: Option<f64>) {
        self.family(name, Kind::Counter, help).value(&[], value);
    }

    pub fn families(&self) -> impl Iterator<Item = &Family> {
        self.families.iter().filter(|family| !family.samples.is_empty())
    }

    /// Content type and content, in the form that the scraper's `Accept` likes best.
    pub fn written(&self, accept: &str) -> (&'static str, Vec<u8>) {
        match Form::of(accept) {
            Form::Classic => (text::CLASSIC, text::page(self, false).into_bytes()),
            Form::Open => (text::OPEN, text::page(self, true).into_bytes()),
            Form::Protobuf => (protobuf::TYPE, protobuf::page(self)),
        }
    }
}

/// Forms of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Classic,
    Open,
    Protobuf,
}

impl Form {
    /// The one that is liked best, the first of several; the classic one where none is known.
    fn of(accept: &str) -> Self {
        let mut best = (0.0, Self::Classic);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
            let has = |name: &str, value: &str| {
                parameters.iter().any(|(n, v)| (n.trim(), v.trim()) == (name, value))
            };
            let form = match kind {
                "application/openmetrics-text" => Self::Open,
                "application/vnd.google.protobuf"
                    if has("proto", "io.prometheus.client.MetricFamily") && has("encoding", "delimited") =>
                {
                    Self::Protobuf
                }
                "text/plain" | "text/*" | "*/*" => Self::Classic,
                _ => continue,
            };
            let quality = parameters.iter().find(|(name, _)| name.trim() == "q");
            let quality = quality.map_or(Some(1.0), |(_, q)| q.trim().parse::<f64>().ok()).unwrap_or(0.0);
            if quality > best.0 {
                best = (quality, form);
            }
        }
        best.1
    }
}

/// See [`Page::family`].
#[derive(Debug)]
pub struct Filling<'a> {
    family: &'a mut Family,
    labels: HashSet<Labels>,
}

impl Filling<'_> {
    /// A sample, if its value is known. One whose labels were there before is left out.
    pub fn value(&mut self, labels: &[(&'static str, &str)], value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.add(labels, Value::Number(value));
        }
    }

    /// A histogram. One whose labels were there before is left out.
    pub fn distribution(&mut self, labels: &[(&'static str, &str)], value: Distribution) {
        self.add(labels, Value::Distribution(value));
    }

    fn add(&mut self, labels: &[(&'static str, &str)], value: Value) {
        let labels: Labels = labels.iter().map(|(name, value)| (*name, clean(value))).collect();
        if self.labels.insert(labels.clone()) {
            self.family.samples.push((labels, value));
        }
    }
}

/// A label's value: not too long, and with no control characters but ends of lines. They are not forbidden, but nobody wants to
/// find them in a terminal.
fn clean(value: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    short(value).chars().map(shown).collect()
}

/// A value that is too long is cut; a number of the whole keeps two of them apart.
fn short(value: &str) -> String {
    if value.len() <= LABEL_BYTES {
        return value.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    let end = (0..=LABEL_BYTES).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…{:016x}", &value[..end], hasher.finish())
}

#[cfg(test)]
pub(super) fn example() -> Page {
    let mut page = Page::default();
    page.counter("a_total", "A \\ b", Some(1.5));
    page.gauge("unknown", "Not there", None);
    let mut family = page.family("c", Kind::Gauge, "C");
    family.value(&[("x", "q\"\n\u{1b}")], Some(1.0));
    family.value(&[("x", "q\"\n\u{1b}")], Some(2.0));
    let native = Some(vec![(-3, 1), (-1, 1), (2, 1)]);
    let value = Distribution { upto: vec![(0.5, 1), (1.0, 2)], all: 3, sum: Some(7.0), native };
    page.family("h", Kind::Histogram, "H").distribution(&[("x", "y")], value);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_and_stay_apart() {
        let (one, other) = (format!("{}ä1", "x".repeat(255)), format!("{}ä2", "x".repeat(255)));
        assert!(short(&one).len() < 300);
        assert_ne!(short(&one), short(&other));
        assert_eq!(short("short"), "short");
    }

    #[test]
    fn a_scraper_gets_what_it_likes_best() {
        let delimited =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for (accept, form) in [
            ("", Form::Classic),
            ("*/*", Form::Classic),
            ("application/json", Form::Classic),
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", Form::Open),
            ("text/plain;version=0.0.4, application/openmetrics-text; version=1.0.0; q=0.9", Form::Classic),
            // Prometheus 2.42 with native histograms.
            (
                &format!("{delimited},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"),
                Form::Protobuf,
            ),
            (
                &format!("{delimited};q=0.1,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1"),
                Form::Open,
            ),
            ("application/vnd.google.protobuf;encoding=text,text/plain;q=0.1", Form::Classic),
            (&format!("{delimited};q=0,*/*;q=0.1"), Form::Classic),
            ("application/openmetrics-text;q=NaN,;;=,q", Form::Classic),
        ] {
            assert_eq!(Form::of(accept), form, "{accept}");
        }
    }
}
