//! Prometheus' two text formats: the classic one (0.0.4), and OpenMetrics for whoever asks for it.

use std::fmt::Write as _;

use super::{Family, Kind, Labels, Page, Value};

pub(super) const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
pub(super) const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn page(page: &Page, open: bool) -> String {
    let mut text = String::new();
    page.families().for_each(|each| family(&mut text, each, open));
    if open {
        text.push_str("# EOF\n");
    }
    text
}

fn family(text: &mut String, family: &Family, open: bool) {
    let kind = match family.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
    };
    // OpenMetrics names a counter's family without the suffix of its samples.
    let name = match (open, family.kind) {
        (true, Kind::Counter) => family.name.strip_suffix("_total").unwrap_or(family.name),
        _ => family.name,
    };
    let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", escaped(family.help, false));
    let mut line = |suffix: &str, labels: &str, value: f64| {
        let _ = write!(text, "{}{suffix}", family.name);
        if !labels.is_empty() {
            let _ = write!(text, "{{{labels}}}");
        }
        let _ = writeln!(text, " {value}");
    };
    for (labels, value) in &family.samples {
        let labels = rendered(labels);
        match value {
            Value::Number(value) => line("", &labels, *value),
            Value::Distribution(counts) => {
                let comma = if labels.is_empty() { "" } else { "," };
                for (bound, count) in &counts.upto {
                    line("_bucket", &format!("{labels}{comma}le=\"{bound}\""), *count as f64);
                }
                line("_bucket", &format!("{labels}{comma}le=\"+Inf\""), counts.all as f64);
                counts.sum.iter().for_each(|sum| line("_sum", &labels, *sum));
                line("_count", &labels, counts.all as f64);
            }
        }
    }
}

fn rendered(labels: &Labels) -> String {
    let parts: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true))).collect();
    parts.join(",")
}

fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn the_classic_format_names_counters_in_full() {
        assert_eq!(
            page(&example(), false),
            "# HELP a_total A \\\\ b\n# TYPE a_total counter\na_total 1.5\n\
             # HELP c C\n# TYPE c gauge\nc{x=\"q\\\"\\n\u{fffd}\"} 1\n\
             # HELP h H\n# TYPE h histogram\nh_bucket{x=\"y\",le=\"0.5\"} 1\nh_bucket{x=\"y\",le=\"1\"} 2\n\
             h_bucket{x=\"y\",le=\"+Inf\"} 3\nh_sum{x=\"y\"} 7\nh_count{x=\"y\"} 3\n"
        );
    }

    #[test]
    fn open_metrics_names_the_family_without_its_suffix_and_says_where_it_ends() {
        let text = page(&example(), true);
        assert!(text.starts_with("# HELP a A \\\\ b\n# TYPE a counter\na_total 1.5\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
