//! The window in which all tenants compete, and what each did in it.
//!
//! A mean over all runs misleads when some tenants finish first: the rest speed up. Only the time in which all of them
//! had work left counts: from the latest first start to the earliest last end.

use crate::record::{Cell, RunRecord, TenantRecord};

/// Seconds from the release.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    pub from_s: f64,
    pub to_s: f64,
}

impl Window {
    /// Its length, seconds.
    pub fn seconds(&self) -> f64 {
        self.to_s - self.from_s
    }
}

/// A tenant's first begin and last end.
pub fn span(tenant: &TenantRecord) -> Option<Window> {
    let from_s = tenant.runs.iter().map(|run| run.start_s).min_by(f64::total_cmp)?;
    let to_s = tenant.runs.iter().map(|run| run.end_s).max_by(f64::total_cmp)?;
    (to_s > from_s).then_some(Window { from_s, to_s })
}

/// The window in which all tenants of a cell that ran at all compete; `None` for fewer than two of them, when they never ran all
/// at once, and where that is not known.
pub fn competing(cell: &Cell) -> Option<Window> {
    if cell.unplaced {
        return None;
    }
    let spans: Vec<Window> = cell.tenants.iter().filter_map(span).collect();
    let from_s = spans.iter().map(|s| s.from_s).max_by(f64::total_cmp)?;
    let to_s = spans.iter().map(|s| s.to_s).min_by(f64::total_cmp)?;
    (spans.len() > 1 && to_s > from_s).then_some(Window { from_s, to_s })
}

/// Runs of a tenant that lie in a window whole.
pub fn inside(tenant: &TenantRecord, window: Window) -> impl Iterator<Item = &RunRecord> {
    let fits = move |run: &&RunRecord| run.start_s >= window.from_s - 1e-9 && run.end_s <= window.to_s + 1e-9;
    tenant.runs.iter().filter(fits)
}

/// Events of a run: those counted, or by its own rate.
pub fn work(run: &RunRecord) -> Option<f64> {
    run.events.map(|n| n as f64).or_else(|| Some(run.events_per_s? * (run.end_s - run.start_s)))
}

/// Work a second in a window. From the runs that lie in it whole where there are at least two (the time between runs
/// included), else in proportion to the part of each run that lies in it. `None` when nothing does.
pub fn rate(tenant: &TenantRecord, window: Window, of: impl Fn(&RunRecord) -> Option<f64>) -> Option<f64> {
    let inside: Vec<&RunRecord> = inside(tenant, window).collect();
    if let (true, Some(first), Some(last)) = (inside.len() >= 2, inside.first(), inside.last()) {
        let done = inside.iter().map(|run| of(run)).sum::<Option<f64>>()?;
        return Some(done / (last.end_s - first.start_s)).filter(|rate| rate.is_finite());
    }
    let mut done = None;
    for run in &tenant.runs {
        let overlap = run.end_s.min(window.to_s) - run.start_s.max(window.from_s);
        let length = run.end_s - run.start_s;
        if overlap > 0.0 && length > 0.0 {
            *done.get_or_insert(0.0) += of(run)? * overlap / length;
        }
    }
    done.map(|done: f64| done / window.seconds()).filter(|rate| rate.is_finite())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::study::testing::{cell, tenant};
    use proptest::prelude::*;

    #[test]
    fn only_the_time_in_which_all_compete_counts() {
        // b is done after 2 s; then a has the CPU alone and is twice as fast.
        let a = tenant("a", Some(1), &[(0.0, 1.0, 10.0), (1.0, 2.0, 10.0), (2.0, 3.0, 20.0)]);
        let b = tenant("b", Some(1), &[(0.1, 1.0, 10.0), (1.0, 2.0, 10.0)]);
        let cell = cell(vec![a.clone(), b]);
        let window = competing(&cell).unwrap();
        assert_eq!((window.from_s, window.to_s), (0.1, 2.0));
        // Only one whole run lies inside, so the parts count: 0.9 of the first and all of the second.
        assert!((rate(&a, window, work).unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(competing(&crate::study::testing::cell(vec![a])), None);
    }

    proptest! {
        #[test]
        fn a_steady_tenants_rate_is_found_in_any_window(rate_per_s in 1.0f64..1e4, runs in 2usize..20, length in 0.1f64..20.0, from in 0.0f64..0.6) {
            let runs: Vec<_> = (0..runs).map(|n| (n as f64 * length, (n + 1) as f64 * length, rate_per_s * length)).collect();
            let end = runs.last().unwrap().1;
            let t = tenant("a", None, &runs);
            let window = Window { from_s: from * end, to_s: end * 0.95 };
            // Events are whole numbers: each run's count is rounded.
            let found = rate(&t, window, work).unwrap();
            prop_assert!((found - rate_per_s).abs() <= 1.0 / length + 1e-6, "{found} for {rate_per_s}");
        }
    }
}
