//! Metrics in Prometheus' text format: values, growth of counters, quantiles of histograms.

use std::collections::BTreeMap;

/// A page of metrics: name with labels, and value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics(Vec<(Series, f64)>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Which metrics are meant: a name and labels they must have.
#[derive(Debug, Clone, PartialEq)]
pub struct Selector(Series);

/// `name{a="b",c="d"}` and what follows.
fn series(text: &str) -> Option<(Series, &str)> {
    let end = text.find(|c: char| c == '{' || c.is_whitespace()).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':') {
        return None;
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once('=')?;
            let mut value = String::new();
            let mut chars = after.trim_start().strip_prefix('"')?.char_indices();
            let text = after.trim_start().strip_prefix('"')?;
            let mut end = None;
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        end = Some(at + 1);
                        break;
                    }
                    '\\' => match chars.next()?.1 {
                        'n' => value.push('\n'),
                        other => value.push(other),
                    },
                    other => value.push(other),
                }
            }
            labels.insert(label.trim().to_owned(), value);
            rest = text.get(end?..)?.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
    }
    Some((Series { name: name.to_owned(), labels }, rest))
}

fn value(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        text => text.parse().ok(),
    }
}

/// Whether something may have been counted so often, and one more would be told apart.
fn is_count(value: f64) -> bool {
    const MOST: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    (0.0..=MOST).contains(&value)
}

/// One line of a page: name, labels and value; `None` for a comment and for what is no metric.
pub fn line(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (series, rest) = series(line)?;
    Some((series.name, series.labels, value(rest.split_whitespace().next()?)?))
}

impl Metrics {
    /// Lines that are not metrics are passed over.
    pub fn parse(text: &str) -> Self {
        Self::of_lines(text.lines())
    }

    /// Those whose names begin with this: the rest of a large page costs nothing but being passed over.
    pub fn beginning_with(text: &str, prefix: &str) -> Self {
        Self::of_lines(text.lines().filter(|line| line.trim_start().starts_with(prefix)))
    }

    fn of_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let one = |(name, labels, value)| (Series { name, labels }, value);
        Self(lines.filter_map(line).map(one).collect())
    }
}

impl Selector {
    /// From `name` or `name{label="value"}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match series(text.trim()) {
            Some((series, rest)) if rest.trim().is_empty() => Ok(Self(series)),
            _ => Err(format!("{text:?} is no metric such as requests_total{{code=\"200\"}}")),
        }
    }

    /// A metric of this name, and of these labels where there are others besides.
    pub fn new(name: &str, labels: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut selector = Self::parse(name)?;
        selector.0.labels.extend(labels.clone());
        Ok(selector)
    }

    /// A histogram's buckets now: upper bounds that all of its series have, ascending, each with the sum of their counts up to it. Selects
    /// its `.._bucket`.
    ///
    /// # Errors
    /// In words: there is none, a bucket has no bound, or a count that is no number from 0 on.
    pub fn buckets(&self, metrics: &Metrics) -> Result<Vec<(f64, f64)>, String> {
        let mut buckets: Vec<(f64, f64, u32)> = Vec::new();
        for (series, count) in self.chosen(metrics) {
            let bound = series.labels.get("le").and_then(|le| value(le)).filter(|le| !le.is_nan());
            let bound = bound.ok_or_else(|| format!("{} has a bucket without a bound (le)", self.0.name))?;
            if !is_count(*count) {
                return Err(format!("{}{{le=\"{bound}\"}} is {count:?}, which is no count", self.0.name));
            }
            buckets.push((bound, *count, 1));
        }
        if buckets.is_empty() {
            return Err(format!("there is no metric {} with these labels", self.0.name));
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        buckets.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0.0 };
            kept.2 += u32::from(same) * next.2;
            same
        });
        if let Some((bound, sum, _)) = buckets.iter().find(|(_, sum, _)| !is_count(*sum)) {
            return Err(format!("{}{{le=\"{bound}\"}} is {sum:?} in all, which is no count", self.0.name));
        }
        // Up to a bound that only some of the series have, nobody knows how many of the others' there were.
        let series = buckets.iter().map(|(_, _, series)| *series).max();
        buckets.retain(|(_, _, of)| Some(*of) == series);
        Ok(buckets.into_iter().map(|(bound, count, _)| (bound, count)).collect())
    }

    fn chosen<'a>(&'a self, metrics: &'a Metrics) -> impl Iterator<Item = &'a (Series, f64)> {
        let fits = |s: &Series| {
            s.name == self.0.name && self.0.labels.iter().all(|(k, v)| s.labels.get(k) == Some(v))
        };
        metrics.0.iter().filter(move |(s, _)| fits(s))
    }

    /// The series meant: their labels, and what they are now.
    pub fn series<'a>(
        &'a self,
        metrics: &'a Metrics,
    ) -> impl Iterator<Item = (&'a BTreeMap<String, String>, f64)> {
        self.chosen(metrics).map(|(series, value)| (&series.labels, *value))
    }

    pub fn value(&self, metrics: &Metrics) -> Result<f64, String> {
        let values: Vec<f64> = self.chosen(metrics).map(|(_, v)| *v).collect();
        if values.is_empty() { Err(format!("no metric {}", self.0.name)) } else { Ok(values.iter().sum()) }
    }

    /// Growth of counters a second. One that ran backwards started again.
    pub fn rate(&self, before: Option<&Metrics>, after: &Metrics, seconds: f64) -> Result<f64, String> {
        self.value(after)?;
        let growth = self.growth(before, after);
        Ok(growth.iter().map(|(_, v)| v).sum::<f64>() / seconds)
    }

    fn growth<'a>(&'a self, before: Option<&Metrics>, after: &'a Metrics) -> Vec<(&'a Series, f64)> {
        let earlier: BTreeMap<&Series, f64> =
            before.into_iter().flat_map(|m| m.0.iter()).map(|(s, v)| (s, *v)).collect();
        let grown = |(s, v): &'a (Series, f64)| {
            let was = earlier.get(s).copied().unwrap_or(0.0);
            (s, if *v < was { *v } else { *v - was })
        };
        self.chosen(after).map(grown).collect()
    }

    /// Quantile of what a histogram's buckets counted meanwhile, linear inside a bucket as Prometheus has it.
    pub fn quantile(&self, q: f64, before: Option<&Metrics>, after: &Metrics) -> Result<f64, String> {
        let mut buckets: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (series, count) in self.growth(before, after) {
            let Some(le) = series.labels.get("le").and_then(|le| value(le)) else {
                return Err(format!("{} has no label le: name the histogram's .._bucket", self.0.name));
            };
            // Order of positive floats is that of their bits.
            let bucket = buckets.entry(le.max(0.0).to_bits()).or_insert((le, 0.0));
            bucket.1 += count;
        }
        let all = buckets.values().last().map_or(0.0, |b| b.1);
        if all <= 0.0 {
            return Err(format!("{} counted nothing meanwhile", self.0.name));
        }
        let (mut low, mut below) = (0.0, 0.0);
        for (le, count) in buckets.values() {
            if *count >= q * all {
                if !le.is_finite() {
                    return Ok(low);
                }
                let part = if count > &below { (q * all - below) / (count - below) } else { 1.0 };
                return Ok(low + (le - low) * part);
            }
            (low, below) = (*le, *count);
        }
        Ok(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = "# HELP x\n# TYPE x counter\nx_total{code=\"200\",path=\"/a,\\\"b\"} 10 1700000000\n\
        x_total{code=\"500\"} 2\nup 1\nl_bucket{le=\"0.1\"} 5\nl_bucket{le=\"0.2\"} 10\nl_bucket{le=\"+Inf\"} 10\n";

    #[test]
    fn values_rates_and_quantiles() {
        let (page, none) = (Metrics::parse(PAGE), Metrics::default());
        let s = |text: &str| Selector::parse(text).unwrap();
        assert_eq!(s("x_total").value(&page), Ok(12.0));
        assert_eq!(s("x_total{code=\"200\"}").value(&page), Ok(10.0));
        assert_eq!(s("x_total").rate(Some(&none), &page, 4.0), Ok(3.0));
        assert_eq!(s("x_total").rate(Some(&page), &page, 4.0), Ok(0.0));
        assert!(s("y").value(&page).is_err());
        // 9 of 10 is four fifths into the bucket from 0.1 to 0.2
        assert!((s("l_bucket").quantile(0.9, None, &page).unwrap() - 0.18).abs() < 1e-12);
        assert!(s("l_bucket").quantile(0.9, Some(&page), &page).unwrap_err().contains("nothing"));
        assert!(s("up").quantile(0.9, None, &page).unwrap_err().contains("le"));
        assert!(Selector::parse("a b").is_err() && Selector::parse("{x}").is_err());
    }

    #[test]
    fn buckets_are_summed_over_series_and_what_is_no_count_is_an_error() {
        let page = "l_bucket{p=\"/\",m=\"a\",le=\"+Inf\"} 7\nl_bucket{p=\"/\",m=\"b\",le=\"+Inf\"} 2\n\
            l_bucket{p=\"/\",m=\"a\",le=\"0.1\"} 5\nl_bucket{p=\"/x\",le=\"0.1\"} 50\nother_bucket{le=\"1\"} 9\n";
        let of = |text: &str| {
            let labels = BTreeMap::from([("p".to_owned(), "/".to_owned())]);
            Selector::new("l_bucket", &labels).unwrap().buckets(&Metrics::beginning_with(text, "l_"))
        };
        let with_bounds = page.to_owned() + "l_bucket{p=\"/\",m=\"b\",le=\"0.1\"} 1\n";
        assert_eq!(of(&with_bounds), Ok(vec![(0.1, 6.0), (f64::INFINITY, 9.0)]));
        // Of the two of "b" nobody knows whether they took longer than that.
        assert_eq!(of(page), Ok(vec![(f64::INFINITY, 9.0)]));
        assert!(of("").unwrap_err().contains("no metric l_bucket"));
        assert!(of("l_bucket{p=\"/\"} 1").unwrap_err().contains("le"));
        let sum =
            ["a", "b"].map(|m| format!("l_bucket{{p=\"/\",m=\"{m}\",le=\"1\"}} 9007199254740992\n")).concat();
        assert!(of(&sum).unwrap_err().contains("in all, which is no count"), "one more could not be told");
        for lie in ["NaN", "-1", "+Inf", "1e308"] {
            assert!(
                of(&format!("l_bucket{{p=\"/\",le=\"1\"}} {lie}")).unwrap_err().contains("no count"),
                "{lie}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_page_is_survived(text in "[a-z{}=\",\\\\0-9 \n+.]*") {
            let page = Metrics::parse(&text);
            let _ = Selector::parse(&text).map(|s| (s.value(&page), s.quantile(0.5, None, &page), s.buckets(&page)));
        }
    }
}
