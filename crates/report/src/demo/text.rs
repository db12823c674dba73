//! The table that ends a demonstration on the terminal.

use std::collections::BTreeMap;

use evenkeel_base::stats::median;

use super::{DemoReport, DemoRun, Scene};
use crate::table::wrap;

/// `0.939 ±.004`, or `?`; the half width is that of the 95 % interval's longer side.
fn measured(value: Option<f64>, interval: Option<[f64; 2]>) -> String {
    match (value, interval) {
        (None, _) => "?".to_owned(),
        (Some(value), None) => format!("{value:.3}"),
        (Some(value), Some([low, high])) => {
            let half = format!("{:.3}", (high - value).max(value - low).max(0.0));
            format!("{value:.3} ±{}", half.strip_prefix('0').unwrap_or(&half))
        }
    }
}

/// The before/after table for a terminal, at most 100 columns wide, with the answer below it.
pub fn text_table(report: &DemoReport) -> String {
    let mut text = format!(
        "{:<19}{:<7}{:>6}  {:>11}  {:>11}  {:>11}  {:>9} {:>9}{:>8}\n",
        "fulfilment (got/", "", "wanted", "kernel", "published", "", "real-time", "gap", ""
    );
    text.push_str(&format!(
        "{:<19}{:<7}{:>6}  {:>11}  {:>11}  {:>11}  {:>9} {:>9}{:>8}\n",
        "wanted), ±95 %", "loads", "% CPU", "default", "recipe", "evenkeel", "ceiling", "closed", "settled"
    ));
    for run in &report.runs {
        let scene = match run.scene {
            Scene::OneCgroupFixed => "one cgroup, fixed",
            Scene::OneCgroupJittered => "one cgroup, jitter",
            Scene::CgroupEach => "a cgroup each",
        };
        text.push_str(&format!(
            "{scene:<19}{:<7}{:>6.0}  {:>11}  {:>11}  {:>11}  {:>9} {:>9}{:>8}\n",
            run.kind.name(),
            run.wanted_pct,
            measured(run.default_fulfilment, run.default_interval),
            measured(run.published_recipe_fulfilment, run.published_recipe_interval),
            measured(run.final_fulfilment, run.final_interval),
            run.realtime_ceiling.map_or_else(|| "?".to_owned(), |value| format!("{value:.3}")),
            run.gap_closed_text(),
            run.seconds_to_settle.map_or_else(|| "?".to_owned(), |seconds| format!("{seconds:.0} s")),
        ));
    }
    text.push('\n');
    text.push_str(&wrap(&report.answer(), 98));
    for missed in &report.missed {
        text.push_str(&wrap(&format!("Note: {missed}"), 98));
    }
    for run in &report.runs {
        for missed in &run.missed {
            text.push_str(&wrap(&format!("Note on {}: {missed}", lower(&run.title())), 98));
        }
    }
    text.push_str(&wrap(&report.put_back.sentence(), 98));
    if let Some(path) = &report.report {
        // Not wrapped: a path is copied whole.
        text.push_str(&format!("Report: {path}\n"));
    }
    text
}

/// The first letter in lower case, for the middle of a sentence.
fn lower(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// Medians over repetitions, scene by scene; of how many runs where not all have a figure.
pub fn medians(report: &DemoReport) -> String {
    let mut groups: BTreeMap<String, Vec<&DemoRun>> = BTreeMap::new();
    for run in &report.runs {
        groups.entry(run.title()).or_default().push(run);
    }
    let mut out = String::from("\nMedians (lowest to highest):\n");
    for (title, runs) in groups {
        out.push_str(&format!("  {title}, {} runs\n", runs.len()));
        type Get = fn(&DemoRun) -> Option<f64>;
        let rows: [(&str, Get); 6] = [
            ("kernel default", |r| r.default_fulfilment),
            ("published recipe", |r| r.published_recipe_fulfilment),
            ("evenkeel", |r| r.final_fulfilment),
            ("real-time ceiling", |r| r.realtime_ceiling),
            ("gap closed", |r| r.gap_closed),
            ("seconds to settle", |r| r.seconds_to_settle),
        ];
        for (name, get) in rows {
            let values: Vec<f64> = runs.iter().filter_map(|r| get(r)).collect();
            let (low, high) =
                values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
            let Some(middle) = median(values.iter().copied()) else { continue };
            let of = match values.len() == runs.len() {
                true => String::new(),
                false => format!(", {} of {} runs", values.len(), runs.len()),
            };
            out.push_str(&format!("    {name:<18} {middle:.3} ({low:.3} to {high:.3}){of}\n"));
        }
    }
    out
}
