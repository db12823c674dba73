//! Prometheus' two text formats: the classic one (0.0.4), and OpenMetrics for whoever asks for it.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longest value of a label, bytes; what is longer is cut and told apart by a number.
const LABEL_BYTES: usize = 256;

/// Content type of the classic format, and of OpenMetrics.
const TYPES: [&str; 2] = [
    "text/plain; version=0.0.4; charset=utf-8",
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
];

/// What a family's samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    LoadSampler,
    /// Only grows; its name ends with `_total`.
    Counter,
    /// Counts by upper bound.
    Histogram,
}

/// A page of metrics.
#[derive(Debug)]
pub struct Page {
    text: String,
    open: bool,
}

impl Page {
    /// An empty page in the format that the scraper's `Accept` asks for.
    pub fn new(accept: &str) -> Self {
        Self { text: String::new(), open: accept.contains("application/openmetrics-text") }
    }

    /// A family of samples. One without any sample is left out.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &'a str) -> Family<'a> {
        Family { page: self, name, kind, help, begun: false, labels: HashSet::new() }
    }

    /// A gauge without labels; what is not known is left out: it is not zero.
    pub fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.family(name, Kind::LoadSampler, help).value(&[], value);
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.family(name, Kind::Counter, help).value(&[], value);
    }

    /// Content type and text.
    pub fn finish(mut self) -> (&'static str, String) {
        if self.open {
            self.text.push_str("# EOF\n");
        }
        (TYPES[usize::from(self.open)], self.text)
    }
}

/// See [`Page::family`].
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut Page,
    name: &'a str,
    kind: Kind,
    help: &'a str,
    begun: bool,
    labels: HashSet<String>,
}

impl Family<'_> {
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let kind = match self.kind {
            Kind::LoadSampler => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        // OpenMetrics names a counter's family without the suffix of its samples.
        let name = match (self.page.open, self.kind) {
            (true, Kind::Counter) => self.name.strip_suffix("_total").unwrap_or(self.name),
            _ => self.name,
        };
        let text = &mut self.page.text;
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", escaped(self.help, false));
    }

    fn line(&mut self, suffix: &str, labels: &str, value: f64) {
        let text = &mut self.page.text;
        let _ = write!(text, "{}{suffix}", self.name);
        if !labels.is_empty() {
            let _ = write!(text, "{{{labels}}}");
        }
        let _ = writeln!(text, " {value}");
    }

    /// A sample, if its value is known. One whose labels were there before is left out.
    pub fn value(&mut self, labels: &[(&str, &str)], value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let labels = rendered(labels);
        if self.labels.insert(labels.clone()) {
            self.begin();
            self.line("", &labels, value);
        }
    }

    /// A histogram's samples: how many up to each bound (ascending, each including those before), how many in all, their
    /// sum.
    pub fn histogram(&mut self, labels: &[(&str, &str)], counts: &[(f64, u64)], all: u64, sum: f64) {
        let labels = rendered(labels);
        if !self.labels.insert(labels.clone()) {
            return;
        }
        self.begin();
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in counts {
            self.line("_bucket", &format!("{labels}{comma}le=\"{bound}\""), *count as f64);
        }
        self.line("_bucket", &format!("{labels}{comma}le=\"+Inf\""), all as f64);
        self.line("_sum", &labels, sum);
        self.line("_count", &labels, all as f64);
    }
}

fn rendered(labels: &[(&str, &str)]) -> String {
    let parts: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(&short(value), true))).collect();
    parts.join(",")
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

fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            // Not forbidden, but nobody wants to find them in a terminal.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(accept: &str) -> String {
        let mut page = Page::new(accept);
        page.counter("a_total", "A \\ b", Some(1.5));
        page.gauge("unknown", "Not there", None);
        let mut family = page.family("c", Kind::LoadSampler, "C");
        family.value(&[("x", "q\"\n\u{1b}")], Some(1.0));
        family.value(&[("x", "q\"\n\u{1b}")], Some(2.0));
        page.family("h", Kind::Histogram, "H").histogram(&[("x", "y")], &[(0.5, 1)], 3, 7.0);
        page.finish().1
    }

    #[test]
    fn the_classic_format_names_counters_in_full() {
        assert_eq!(
            page("*/*"),
            "# HELP a_total A \\\\ b\n# TYPE a_total counter\na_total 1.5\n\
             # HELP c C\n# TYPE c gauge\nc{x=\"q\\\"\\n\u{fffd}\"} 1\n\
             # HELP h H\n# TYPE h histogram\nh_bucket{x=\"y\",le=\"0.5\"} 1\nh_bucket{x=\"y\",le=\"+Inf\"} 3\n\
             h_sum{x=\"y\"} 7\nh_count{x=\"y\"} 3\n"
        );
    }

    #[test]
    fn open_metrics_names_the_family_without_its_suffix_and_says_where_it_ends() {
        let text = page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
        assert!(text.starts_with("# HELP a A \\\\ b\n# TYPE a counter\na_total 1.5\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn long_values_are_cut_and_stay_apart() {
        let (one, other) = (format!("{}ä1", "x".repeat(255)), format!("{}ä2", "x".repeat(255)));
        assert!(short(&one).len() < 300);
        assert_ne!(short(&one), short(&other));
        assert_eq!(short("short"), "short");
    }
}
