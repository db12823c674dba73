//! CPU lists and masks, texts for a terminal, lengths of waits.

use evenkeel_base::cpuset::MAX_CPU;
use evenkeel_base::{CpuSet, Histogram, nearest, printable};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("cpu-list", |text| {
        if let Ok(set) = text.parse::<CpuSet>() {
            assert!(set.iter().all(|cpu| cpu <= MAX_CPU));
            assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(&set));
        }
    }),
    Target::text("cpu-mask", |text| {
        if let Ok(set) = CpuSet::parse_mask(text) {
            assert!(set.iter().all(|cpu| cpu <= MAX_CPU));
            assert_eq!(CpuSet::parse_mask(&set.to_mask()).as_ref(), Ok(&set));
        }
    }),
    Target::text("printable", |text| {
        let shown = printable(text);
        assert_eq!(shown.chars().count(), text.chars().count());
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()));
    }),
    Target::text("nearest", |text| {
        let known = ["interval", "scope", "wait_p99", "least", "decide_within"];
        assert!(nearest(text, known).is_some_and(|near| known.contains(&near)));
    }),
    Target::text("histogram", |text| {
        if let Ok(histogram) = serde_json::from_str::<Histogram>(text) {
            let mut twice = histogram.clone();
            twice.merge(&histogram);
            let quantiles = [0.0, 0.5, 0.99, 1.0].map(|q| histogram.quantile(q));
            assert!(quantiles.is_sorted(), "{quantiles:?}");
        }
    }),
];
