//! Whether the measurement itself can be trusted. These are the largest of all that was measured, no samples: they are
//! observed, not estimated.

use super::words::three;
use crate::decide::{Claim, Draft, Figure};
use crate::study::Study;

/// Wake-ups later than this after the release spoil a synchronised start, microseconds.
const WOKEN_LATE_USEC: f64 = 1000.0;
/// Most the harness may use, percent of one CPU.
const HARNESS_PCT: f64 = 0.5;
/// Steal worth mentioning, percent of the time measured.
const STEAL_PCT: f64 = 0.5;

pub(super) fn add(study: &Study, all: &mut Vec<Draft<'_>>) {
    let most = |of: &dyn Fn(&crate::study::Together) -> Option<f64>| {
        study.points.iter().filter_map(|point| of(&point.together)).max_by(f64::total_cmp)
    };
    if let Some(late) = most(&|t| t.woken_late_usec_max) {
        let first = most(&|t| t.first_late_usec_max);
        let then = first.map_or_else(String::new, |usec| {
            format!("; the last first instruction came after {} ms", three(usec / 1e3))
        });
        let draft = Draft::new(
            "released-together",
            "",
            ("latest wake-up after the release, of all", "us"),
            Figure::Observed(late),
            Claim::AtMost(WOKEN_LATE_USEC),
            move |_| format!("All tenants were awake within {} ms of the release{then}.", three(late / 1e3)),
        );
        all.push(draft.of_measuring());
    }
    if let Some(pct) = most(&|t| t.harness_cpu_pct) {
        let draft = Draft::new(
            "harness-cost",
            "",
            ("CPU of the harness, largest of all cells", "% of one CPU"),
            Figure::Observed(pct),
            Claim::AtMost(HARNESS_PCT),
            move |_| format!("Watching cost at most {} % of one CPU while runs were on.", three(pct)),
        );
        all.push(draft.of_measuring());
    }
    let steal: Vec<f64> = study.points.iter().filter_map(|p| p.together.steal_s).collect();
    // Where it is not known, no time was watched.
    let watched = || study.points.iter().filter(|p| p.together.steal_s.is_some());
    let measured: f64 =
        watched().filter_map(|p| Some(p.together.seconds?.value * p.repetitions as f64)).sum();
    if let Some(cpus) = study.host.cpus.filter(|cpus| *cpus > 0 && !steal.is_empty() && measured > 0.0) {
        let pct = 100.0 * steal.iter().sum::<f64>() / measured / f64::from(cpus);
        if pct > STEAL_PCT {
            all.push(Draft::new(
                "host-stolen",
                "",
                ("steal of the host's CPUs while measuring, of all the time", "% of CPU time"),
                Figure::Observed(pct),
                Claim::AtMost(STEAL_PCT),
                move |_| format!("The host itself lost {} % of its CPU time to its hypervisor: rates are too low by about that.", three(pct)),
            ));
        }
    }
}
