//! Measured next to simulated.

use evenkeel_base::stats::median;
use serde::{Deserialize, Serialize};

use crate::file::{Experiment, TaskSpec, Wrong};

/// One measured run of a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub mix: String,
    /// Number of the run, from 0.
    pub repetition: u32,
    /// CPU each task got, percent of one CPU, in the order of the experiment.
    pub got_pct: Vec<f64>,
    /// CPU everything else on the host took meanwhile, percent of one CPU.
    pub others_pct: f64,
    /// Time the hypervisor took, percent of one CPU.
    pub steal_pct: f64,
}

/// One mix, measured and simulated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    pub mix: String,
    pub settings: String,
    pub runs: usize,
    /// Sum of what was got over the sum of what was wanted: least, median and most of the runs.
    pub measured: [f64; 3],
    /// The same, simulated: median of the seeds.
    pub simulated: f64,
    /// Per task: got as measured (median of the runs) and as simulated (median of the seeds), percent of one CPU.
    pub tasks: Vec<(f64, f64)>,
}

impl Line {
    /// Per task, how far the simulation is off, points of a CPU.
    pub fn errors(&self) -> impl Iterator<Item = f64> {
        self.tasks.iter().map(|(measured, simulated)| (simulated - measured).abs())
    }
}

/// Two levers of one family whose measured fulfilments differ for certain: their intervals do not overlap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// The mix that did better.
    pub better: String,
    /// The one that did worse.
    pub worse: String,
    /// Whether the simulation says so, too.
    pub right: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Mixes with at least `runs` runs.
    pub lines: Vec<Line>,
    pub pairs: Vec<Pair>,
}

impl Comparison {
    /// Errors of all tasks, ascending, points of a CPU.
    pub fn errors(&self) -> Vec<f64> {
        let mut errors: Vec<f64> = self.lines.iter().flat_map(Line::errors).collect();
        errors.sort_by(f64::total_cmp);
        errors
    }

    /// The error that a share (0..1) of all tasks does not exceed; `None` without tasks.
    pub fn error_quantile(&self, share: f64) -> Option<f64> {
        let errors = self.errors();
        let at = (share * errors.len() as f64).ceil() as usize;
        errors.get(at.clamp(1, errors.len().max(1)) - 1).copied()
    }

    /// Share of the pairs that the simulation ranks rightly; `None` without pairs.
    pub fn ranked_right(&self) -> Option<f64> {
        let right = self.pairs.iter().filter(|p| p.right).count();
        (!self.pairs.is_empty()).then(|| right as f64 / self.pairs.len() as f64)
    }
}

/// Simulates every mix that was measured at least `runs` times, with `seeds` seeds, and compares. Mixes whose name up to a colon
/// is the same are a family.
pub fn compare(
    mixes: &[Experiment],
    records: &[Record],
    runs: usize,
    seeds: u32,
) -> Result<Comparison, Wrong> {
    let mut lines = Vec::new();
    for mix in mixes {
        let measured: Vec<&Record> = records.iter().filter(|r| r.mix == mix.name).collect();
        if measured.len() >= runs.max(1) {
            lines.push(line(mix, &measured, seeds)?);
        }
    }
    let mut pairs = Vec::new();
    for (index, a) in lines.iter().enumerate() {
        for b in &lines[index + 1..] {
            let family = |l: &Line| l.mix.split_once(':').map(|(f, _)| f.to_owned());
            if family(a).is_none() || family(a) != family(b) {
                continue;
            }
            let (better, worse) = if a.measured[1] >= b.measured[1] { (a, b) } else { (b, a) };
            if better.measured[0] > worse.measured[2] {
                pairs.push(Pair {
                    better: better.mix.clone(),
                    worse: worse.mix.clone(),
                    right: better.simulated > worse.simulated,
                });
            }
        }
    }
    Ok(Comparison { lines, pairs })
}

fn line(mix: &Experiment, records: &[&Record], seeds: u32) -> Result<Line, Wrong> {
    let mut simulated: Vec<Vec<f64>> = Vec::new();
    let mut wanted = 0.0;
    for repetition in 0..seeds.max(1) {
        let report = mix.simulate(repetition)?;
        wanted = report.tasks.iter().filter_map(|t| t.wanted_pct).sum::<f64>();
        simulated.push(report.tasks.iter().map(|t| t.got_pct).collect());
    }
    let count = simulated.first().map_or(0, Vec::len);
    let of = |runs: &[&[f64]], task: usize| median(runs.iter().filter_map(|r| r.get(task).copied()));
    let sims: Vec<&[f64]> = simulated.iter().map(Vec::as_slice).collect();
    let reals: Vec<&[f64]> = records.iter().map(|r| r.got_pct.as_slice()).collect();
    let tasks = (0..count).filter_map(|t| Some((of(&reals, t)?, of(&sims, t)?))).collect();
    let fulfilment = |runs: &[&[f64]]| -> Vec<f64> {
        let mut all: Vec<f64> = runs.iter().map(|r| r.iter().sum::<f64>() / wanted.max(1e-9)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let real = fulfilment(&reals);
    let end = |at: usize| real.get(at).copied().unwrap_or(f64::NAN);
    Ok(Line {
        mix: mix.name.clone(),
        settings: settings(mix),
        runs: records.len(),
        measured: [
            end(0),
            median(real.iter().copied()).unwrap_or(f64::NAN),
            end(real.len().saturating_sub(1)),
        ],
        simulated: median(fulfilment(&sims)).unwrap_or(f64::NAN),
        tasks,
    })
}

/// In a few words what is set in a mix.
fn settings(mix: &Experiment) -> String {
    let any = |f: &dyn Fn(&TaskSpec) -> bool| mix.tasks.iter().any(f);
    let mut words = vec![format!("{} tasks", mix.tasks.len())];
    let mut kinds: Vec<String> =
        mix.tasks.iter().filter_map(|t| t.kind).map(|kind| kind.to_string()).collect();
    kinds.sort();
    kinds.dedup();
    words.push(kinds.join("+"));
    if mix.groups.len() > 1 {
        words.push(format!("{} groups", mix.groups.len()));
    }
    for (what, there) in [
        ("nested", mix.groups.iter().any(|g| g.parent.is_some())),
        ("quota", mix.groups.iter().any(|g| g.quota_pct.is_some())),
        ("nice", any(&|t| t.nice != 0)),
        ("slice", any(&|t| t.slice_ms.is_some())),
        ("batch", any(&|t| t.policy == evenkeel_base::SchedPolicy::Batch)),
        ("idle", any(&|t| t.policy == evenkeel_base::SchedPolicy::Idle)),
        ("real-time", any(&|t| t.policy.is_realtime())),
        ("pinned", any(&|t| t.cpus.is_some())),
    ] {
        if there {
            words.push(what.to_owned());
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::family;
    use super::*;

    fn record(mix: &Experiment, repetition: u32, factor: f64) -> Record {
        let report = mix.simulate(repetition).unwrap();
        Record {
            mix: mix.name.clone(),
            repetition,
            got_pct: report.tasks.iter().map(|t| t.got_pct * factor).collect(),
            others_pct: 0.0,
            steal_pct: 0.0,
        }
    }

    #[test]
    fn a_kernel_that_is_the_simulator_agrees_with_it() {
        let mixes = family(3, 2, "6.18");
        let records: Vec<Record> =
            mixes.iter().flat_map(|m| (0..5).map(move |r| record(m, r, 1.0))).collect();
        let c = compare(&mixes, &records, 5, 5).unwrap();
        assert_eq!((c.lines.len(), c.error_quantile(1.0)), (6, Some(0.0)));
        assert!(c.ranked_right().is_none_or(|share| share == 1.0));
    }

    #[test]
    fn errors_and_wrong_rankings_are_counted() {
        let mixes = family(3, 2, "6.18");
        // "nice" measured far better than everything else: no simulation says so.
        let records: Vec<Record> = mixes
            .iter()
            .flat_map(|m| (0..5).map(move |r| record(m, r, if m.name.ends_with("nice") { 1.5 } else { 0.5 })))
            .collect();
        let c = compare(&mixes, &records, 5, 5).unwrap();
        assert!(c.error_quantile(0.95).unwrap() > 5.0);
        let wrong = c.pairs.iter().filter(|p| p.better.ends_with(": nice") && !p.right).count();
        assert!(wrong >= 1, "{:?}", c.pairs);
        // Too few runs: not compared.
        assert!(compare(&mixes, &records[..4], 5, 5).unwrap().lines.is_empty());
        assert_eq!(Comparison { lines: vec![], pairs: vec![] }.error_quantile(0.5), None);
    }
}
