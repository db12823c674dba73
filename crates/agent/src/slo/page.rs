//! What an endpoint's page says of a histogram, and what two pages say of the time between them: pure.

use evenkeel_fetch::prometheus::{Metrics, Selector};

use super::RequestSlo;
use super::failed::failed;

/// Relative difference up to which a bound is a bucket's edge: what is written in decimals is not exact.
const SAME: f64 = 1e-9;

/// What was counted until a scrape. Two of one epoch may be subtracted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// Counts go on from those before of the same epoch.
    pub epoch: u64,
    /// Requests answered.
    pub all: f64,
    /// Of these, those beyond the edge.
    pub slow: f64,
    /// The bucket's edge that stands for the bound, seconds.
    pub edge_s: f64,
}

/// Reads one page after the other.
#[derive(Debug)]
pub(crate) struct PageReader {
    slo: RequestSlo,
    /// The histogram's buckets, or why the name is none.
    buckets: Result<Selector, String>,
    name: String,
    before: Option<Vec<(f64, f64)>>,
    epoch: u64,
    counted: Vec<(f64, f64)>,
    /// Requests that failed by the page before, where it says so.
    failed_before: Option<f64>,
    failed: Option<f64>,
}

impl PageReader {
    pub fn new(slo: &RequestSlo) -> Self {
        let name = format!("{}_bucket", slo.histogram);
        let buckets = Selector::new(&name, &slo.labels);
        Self {
            slo: slo.clone(),
            buckets,
            name,
            before: None,
            epoch: 0,
            counted: Vec::new(),
            failed_before: None,
            failed: None,
        }
    }

    /// What this page says.
    ///
    /// # Errors
    /// In words: there is no such histogram, it is none, or its counts do not go on from those of the page before.
    pub fn take(&mut self, page: &str) -> Result<Point, String> {
        let read = self.read(page);
        let Ok(buckets) = read else {
            (self.before, self.failed_before) = (None, None);
            self.epoch += 1;
            return Err(read.err().unwrap_or_default());
        };
        let before = self.before.replace(buckets.clone());
        self.count(before.as_deref(), &buckets);
        let goes_on = before.as_deref().is_some_and(|before| breach(before, &buckets).is_none());
        self.count_failed(self.failed_on(page), goes_on);
        if let Some(why) = before.and_then(|before| breach(&before, &buckets)) {
            self.epoch += 1;
            return Err(why);
        }
        let bound = self.slo.bound_s / self.slo.unit_s;
        let edge = edge(&buckets, bound).ok_or_else(|| format!("{} has no bucket but +Inf", self.name))?;
        let all = buckets.last().map_or(0.0, |last| last.1);
        let within = buckets.iter().find(|bucket| bucket.0 == edge).map_or(all, |bucket| bucket.1);
        Ok(Point { epoch: self.epoch, all, slow: all - within, edge_s: edge * self.slo.unit_s })
    }

    /// Requests counted from page to page so far, up to each bound (seconds, the last one infinite); empty before there were two
    /// pages that go on from each other. What happened while the endpoint said nothing, or started again, is missing.
    pub fn counted(&self) -> &[(f64, f64)] {
        &self.counted
    }

    /// Buckets of the page before; 0 where it said nothing.
    pub fn buckets_before(&self) -> usize {
        self.before.as_ref().map_or(0, Vec::len)
    }

    fn count(&mut self, before: Option<&[(f64, f64)]>, buckets: &[(f64, f64)]) {
        let Some(before) = before.filter(|before| breach(before, buckets).is_none()) else { return };
        let unit_s = self.slo.unit_s;
        let is_same = self.counted.iter().map(|sum| sum.0).eq(buckets.iter().map(|bucket| bucket.0 * unit_s));
        if !is_same {
            self.counted = buckets.iter().map(|bucket| (bucket.0 * unit_s, 0.0)).collect();
        }
        for (sum, (new, old)) in self.counted.iter_mut().zip(buckets.iter().zip(before)) {
            sum.1 += new.1 - old.1;
        }
    }

    /// Of those counted, the ones that failed; `None` where the pages do not say it.
    pub fn failed(&self) -> Option<f64> {
        self.failed
    }

    /// By the histogram's `_count`, whose labels are those of its buckets.
    fn failed_on(&self, page: &str) -> Option<f64> {
        let name = format!("{}_count", self.slo.histogram);
        let selector = Selector::new(&name, &self.slo.labels).ok()?;
        failed(selector.series(&Metrics::beginning_with(page, &name)))
    }

    fn count_failed(&mut self, now: Option<f64>, goes_on: bool) {
        let before = std::mem::replace(&mut self.failed_before, now);
        let Some(now) = now else {
            self.failed = None;
            return;
        };
        // Fewer than before: those series began again, and what lies between is not known.
        if let Some(before) = before.filter(|before| goes_on && *before <= now) {
            *self.failed.get_or_insert(0.0) += now - before;
        }
    }

    fn read(&self, page: &str) -> Result<Vec<(f64, f64)>, String> {
        let buckets = self.buckets.as_ref().map_err(Clone::clone)?;
        let buckets = buckets.buckets(&Metrics::beginning_with(page, &self.name))?;
        if buckets.last().is_none_or(|last| last.0 != f64::INFINITY) {
            return Err(format!("{} has no bucket +Inf", self.name));
        }
        match buckets.windows(2).find(|two| two[1].1 < two[0].1) {
            Some(two) => Err(format!(
                "{} counts less up to {} than up to {}: {} and {}",
                self.name,
                le(two[1].0),
                le(two[0].0),
                two[1].1,
                two[0].1
            )),
            None => Ok(buckets),
        }
    }
}

/// The edge that stands for a bound: the last one up to it, so that no request beyond the bound passes for a quick one; where
/// all are beyond it, the first.
fn edge(buckets: &[(f64, f64)], bound: f64) -> Option<f64> {
    let finite = || buckets.iter().map(|bucket| bucket.0).filter(|edge| edge.is_finite());
    finite().rfind(|edge| *edge <= bound * (1.0 + SAME)).or_else(|| finite().next())
}

/// Whether an edge is the bound itself.
pub(crate) fn is_bound(edge_s: f64, bound_s: f64) -> bool {
    (edge_s - bound_s).abs() <= SAME * bound_s
}

/// Why counts do not go on from earlier ones, if they do not.
fn breach(before: &[(f64, f64)], after: &[(f64, f64)]) -> Option<String> {
    if before.len() != after.len() || before.iter().zip(after).any(|(old, new)| old.0 != new.0) {
        return Some("its buckets are others than before".to_owned());
    }
    let fell = before.iter().zip(after).find(|(old, new)| new.1 < old.1)?;
    Some(format!(
        "its counts went down, from {} to {} up to {}: the service was restarted, or several processes answer in turns",
        fell.0.1,
        fell.1.1,
        le(fell.0.0)
    ))
}

/// A bucket's bound as pages have it.
fn le(bound: f64) -> String {
    if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn slo(bound_s: f64, unit_s: f64) -> RequestSlo {
        RequestSlo {
            endpoint: "http://127.0.0.1:1/metrics".into(),
            histogram: "t".into(),
            labels: BTreeMap::new(),
            unit_s,
            quantile: 0.99,
            bound_s,
        }
    }

    fn page(counts: &[(&str, &str)]) -> String {
        counts.iter().map(|(le, count)| format!("t_bucket{{le=\"{le}\"}} {count}\n")).collect()
    }

    #[test]
    fn requests_beyond_the_bound_are_counted() {
        let mut reader = PageReader::new(&slo(0.05, 1.0));
        let point =
            reader.take(&page(&[("0.01", "3"), ("0.05", "7"), ("0.1", "9"), ("+Inf", "10")])).unwrap();
        assert_eq!(point, Point { epoch: 0, all: 10.0, slow: 3.0, edge_s: 0.05 });
        assert!(is_bound(point.edge_s, 0.05));
        let mut ms = PageReader::new(&slo(0.05, 0.001));
        let point = ms.take(&page(&[("10", "3"), ("50", "7"), ("+Inf", "10")])).unwrap();
        assert!(is_bound(point.edge_s, 0.05) && point.slow == 3.0, "{point:?}");
    }

    #[test]
    fn a_bound_that_is_no_edge_is_the_edge_below_and_the_first_where_there_is_none() {
        let edges = page(&[("0.01", "3"), ("0.1", "9"), ("+Inf", "10")]);
        let of = |bound_s| {
            PageReader::new(&slo(bound_s, 1.0)).take(&edges).map(|point| (point.edge_s, point.slow))
        };
        assert_eq!(of(0.05), Ok((0.01, 7.0)));
        assert_eq!(of(0.001), Ok((0.01, 7.0)));
        assert_eq!(of(5.0), Ok((0.1, 1.0)));
        assert!(
            PageReader::new(&slo(1.0, 1.0)).take(&page(&[("+Inf", "1")])).unwrap_err().contains("but +Inf")
        );
    }

    #[test]
    fn counts_that_go_down_are_no_negative_counts() {
        let mut reader = PageReader::new(&slo(0.05, 1.0));
        let counts = |quick: u32, all: u32| page(&[("0.05", &quick.to_string()), ("+Inf", &all.to_string())]);
        assert_eq!(reader.take(&counts(90, 100)).unwrap().epoch, 0);
        let why = reader.take(&counts(2, 3)).unwrap_err();
        assert!(why.contains("went down, from 90 to 2"), "{why}");
        // What comes next goes on from there, and not from before.
        assert_eq!(
            reader.take(&counts(5, 6)).unwrap(),
            Point { epoch: 1, all: 6.0, slow: 1.0, edge_s: 0.05 }
        );
        // All of them, though fewer are quick.
        assert!(reader.take(&counts(4, 60)).is_err());
        let other = page(&[("0.05", "90"), ("0.1", "90"), ("+Inf", "100")]);
        assert!(reader.take(&other).unwrap_err().contains("buckets are others"));
    }

    #[test]
    fn requests_are_summed_over_an_endpoint_that_begins_anew_and_one_that_is_silent() {
        let mut reader = PageReader::new(&slo(0.05, 0.001));
        let counts = |quick: u32, all: u32| page(&[("50", &quick.to_string()), ("+Inf", &all.to_string())]);
        reader.take(&counts(90, 100)).unwrap();
        assert!(reader.counted().is_empty(), "what was before is not ours");
        reader.take(&counts(95, 110)).unwrap();
        assert_eq!(reader.counted(), [(0.05, 5.0), (f64::INFINITY, 10.0)]);
        assert!(reader.take(&counts(2, 3)).is_err());
        reader.take(&counts(4, 6)).unwrap();
        assert_eq!(reader.counted(), [(0.05, 7.0), (f64::INFINITY, 13.0)]);
        assert!(reader.take("gone\n").is_err());
        reader.take(&counts(104, 106)).unwrap();
        assert_eq!(reader.counted()[1].1, 13.0, "unknown for so long");
        reader.take(&page(&[("10", "1"), ("+Inf", "200")])).unwrap_err();
        reader.take(&page(&[("10", "3"), ("+Inf", "202")])).unwrap();
        assert_eq!(reader.counted(), [(0.01, 2.0), (f64::INFINITY, 2.0)], "other buckets begin from 0");
    }

    #[test]
    fn requests_that_failed_are_summed_where_the_page_says_so() {
        let mut reader = PageReader::new(&slo(0.05, 1.0));
        let counts = |label: &str, ok: u32, bad: u32| {
            let of = |code: u32, n: u32| {
                format!(
                    "t_bucket{{{label}=\"{code}\",le=\"0.05\"}} {n}\nt_bucket{{{label}=\"{code}\",le=\"+Inf\"}} {n}\n\
                     t_count{{{label}=\"{code}\"}} {n}\n"
                )
            };
            of(200, ok) + &of(503, bad)
        };
        reader.take(&counts("code", 90, 10)).unwrap();
        assert_eq!(reader.failed(), None, "what was before is not ours");
        reader.take(&counts("code", 95, 12)).unwrap();
        assert_eq!((reader.failed(), reader.counted()[1].1), (Some(2.0), 7.0));
        // It began again; what was before that stays counted.
        assert!(reader.take(&counts("code", 3, 1)).is_err());
        assert_eq!(reader.failed(), Some(2.0));
        reader.take(&counts("code", 5, 4)).unwrap();
        assert_eq!(reader.failed(), Some(5.0));
        reader.take(&counts("path", 6, 4)).unwrap();
        assert_eq!(reader.failed(), None, "it does not say it any more");
    }

    #[test]
    fn lies_are_told_apart_from_counts() {
        let of = |text: &str| PageReader::new(&slo(0.05, 1.0)).take(text).unwrap_err();
        assert!(of(&page(&[("0.05", "9"), ("0.1", "8"), ("+Inf", "10")])).contains("counts less up to 0.1"));
        assert!(of(&page(&[("0.05", "NaN"), ("+Inf", "10")])).contains("NaN"));
        assert!(of(&page(&[("0.05", "-1"), ("+Inf", "10")])).contains("-1"));
        assert!(of(&page(&[("0.05", "1")])).contains("no bucket +Inf"));
        assert!(of("other 1\n").contains("no metric t_bucket"));
        assert!(of("<html>").contains("no metric t_bucket"));
    }

    proptest! {
        #[test]
        fn whatever_pages_say_counts_are_counts(
            pages in proptest::collection::vec(proptest::collection::vec((0usize..5, -3i64..200), 0..6), 1..8)
        ) {
            let mut reader = PageReader::new(&slo(0.05, 1.0));
            let mut before: Option<Point> = None;
            for counts in pages {
                let lines = counts.iter().map(|(le, count)| (["0.01", "0.05", "0.5", "+Inf", "x"][*le], count.to_string()));
                let text: String = lines.map(|(le, count)| format!("t_bucket{{le=\"{le}\"}} {count}\n")).collect();
                if let Ok(point) = reader.take(&text) {
                    prop_assert!(point.slow >= 0.0 && point.slow <= point.all);
                    if let Some(before) = before.filter(|before| before.epoch == point.epoch) {
                        prop_assert!(point.all >= before.all && point.slow - before.slow <= point.all - before.all);
                    }
                    before = Some(point);
                }
            }
        }
    }
}
