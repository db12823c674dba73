//! The judge: reads what any scraper reads, and nothing else.
//!
//! Named is who took most of the victim's time, in a span of at most ten seconds, and at least 0.1 s of it:
//! `topk(1, increase(evenkeel_cpu_blame_seconds_total{victim="..."}[10s])) > 0.1`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::agent::Serve;
use super::inject::now_s;

/// Least that is worth a name, seconds.
const WORTH_S: f64 = 0.1;

/// Seconds by culprit.
pub type Taken = BTreeMap<String, f64>;

/// What `/metrics` said of the victim, once a second.
#[derive(Default)]
pub struct Readings(Vec<(f64, Taken)>);

impl Readings {
    pub fn take(&mut self, serve: &Serve, victim: &str) {
        let taken = of_victim(&serve.metrics(), victim);
        self.0.push((now_s(), taken));
    }

    /// What each culprit's counter grew by between two times.
    pub fn grown(&self, from_s: f64, to_s: f64) -> Taken {
        let at = |time: f64| self.0.iter().rev().find(|(at, _)| *at <= time).map(|(_, taken)| taken.clone());
        let (before, mut after) = (at(from_s).unwrap_or_default(), at(to_s).unwrap_or_default());
        for (culprit, seconds) in &mut after {
            let then = before.get(culprit).copied().unwrap_or(0.0);
            // A counter that began again.
            *seconds -= if then > *seconds { 0.0 } else { then };
        }
        after
    }

    /// Times of reading between two times.
    pub fn times(&self, from_s: f64, to_s: f64) -> Vec<f64> {
        self.0.iter().map(|(at, _)| *at).filter(|at| (from_s..=to_s).contains(at)).collect()
    }
}

/// Who is named, among those who count.
pub fn named(grown: &Taken, counts: impl Fn(&str) -> bool) -> Option<&str> {
    let top = grown.iter().filter(|(culprit, _)| counts(culprit)).max_by(|a, b| a.1.total_cmp(b.1));
    top.filter(|(_, seconds)| **seconds >= WORTH_S).map(|(culprit, _)| culprit.as_str())
}

fn of_victim(page: &str, victim: &str) -> Taken {
    let begin = format!("evenkeel_cpu_blame_seconds_total{{victim=\"{victim}\",culprit=\"");
    let ours = page.lines().filter_map(|line| line.strip_prefix(&begin)?.rsplit_once("\"} "));
    ours.filter_map(|(culprit, seconds)| Some((culprit.to_owned(), seconds.parse().ok()?))).collect()
}

/// Reads once a second next to what else happens.
pub fn reading<T>(
    serve: &Serve,
    victim: &str,
    readings: &Arc<Mutex<Readings>>,
    what: impl FnOnce() -> T,
) -> T {
    let over = std::sync::atomic::AtomicBool::new(false);
    let ends = &over;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                readings.lock().unwrap().take(serve, victim);
                std::thread::sleep(Duration::from_millis(900));
            }
        });
        // Also when it panics: or the scope would wait for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
