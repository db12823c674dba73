//! Where to begin: what the simulator says of the settings it knows.

use crate::search::Point;
use evenkeel_base::stats::mean;
use evenkeel_experiment::file::Experiment;
use evenkeel_model::sim::{Report, Run, TaskReport};
use rand::SeedableRng;

use super::error::TuneError;
use super::expand::Settings;
use super::file::{SimQuantity, SimulateSpec, Tune};
use super::result::Warm;

/// How many of the best simulated points are tried first.
const KEPT: usize = 3;

/// The best points by the simulator, best first; none without a model.
pub(super) fn points(tune: &Tune) -> Result<Vec<Warm>, TuneError> {
    let Some(spec) = &tune.file.simulate else { return Ok(Vec::new()) };
    let mut candidates: Vec<Point> = Vec::new();
    if tune.space.count().is_some_and(|n| n <= spec.points as u64) {
        candidates.extend(tune.space.grid(u64::MAX));
    } else {
        let mut rng = rand_pcg::Pcg32::seed_from_u64(tune.file.search.seed);
        candidates.extend(tune.present.clone());
        candidates.extend((0..spec.points).map(|_| tune.space.draw(&mut rng)));
    }
    let mut out = Vec::new();
    for point in candidates {
        let settings = tune.settings(&point);
        let reading = predicted(spec, &settings)?;
        let (worth, loss) = tune.worth(reading, &point);
        out.push((loss, Warm { settings, predicted: worth, point }));
    }
    out.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Settings the model does not tell apart would waste the few places.
    let mut kept: Vec<Warm> = Vec::new();
    for (_, warm) in out {
        if kept.iter().all(|k| (k.predicted - warm.predicted).abs() > 1e-6 * warm.predicted.abs()) {
            kept.push(warm);
        }
        if kept.len() == KEPT {
            break;
        }
    }
    Ok(kept)
}

fn predicted(spec: &SimulateSpec, settings: &Settings) -> Result<f64, TuneError> {
    let text = settings.fill(&spec.experiment);
    let failed = |what: String| TuneError::Simulation(format!("with {}: {what}", settings.words()));
    let experiment = Experiment::parse(&text).map_err(|e| failed(e.to_string()))?;
    let report = experiment.simulate(0).map_err(|e| failed(e.in_text(&text).to_string()))?;
    quantity(spec, &report).map_err(failed)
}

fn quantity(spec: &SimulateSpec, report: &Report) -> Result<f64, String> {
    let mine = |name: &str| {
        spec.task
            .as_deref()
            .is_none_or(|t| name == t || name.strip_prefix(t).is_some_and(|r| r.starts_with('.')))
    };
    let tasks: Vec<_> = report.tasks.iter().filter(|t| mine(&t.name)).collect();
    if tasks.is_empty() {
        return Err(format!("the experiment has no task {:?}", spec.task.as_deref().unwrap_or_default()));
    }
    Ok(match spec.quantity {
        SimQuantity::GotPct => tasks.iter().map(|t| t.got_pct).sum(),
        SimQuantity::EventsPerS => {
            // One run follows another: a task's rate is their mean.
            let rate =
                |task: &&TaskReport| mean(&task.runs.iter().map(Run::events_per_s).collect::<Vec<_>>());
            let rates: Vec<f64> = tasks.iter().filter_map(rate).collect();
            if rates.is_empty() {
                return Err("no run of a task of kind runs ends in the time that is simulated".to_owned());
            }
            rates.iter().sum()
        }
        SimQuantity::WaitP99Ms => {
            let worst = tasks.iter().filter_map(|t| t.waits.quantile_usec(0.99)).max();
            worst.unwrap_or(0) as f64 / 1000.0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_does_no_more_for_having_more_runs() {
        let of = |runs: u32, duration_s: f64| {
            let experiment = format!(
                "name = 'x'\nduration_s = {duration_s}\n[machine]\ncpus = 2\n[[task]]\nkind = 'runs'\ncount = 2\nrun_s = 1.0\n\
                 runs = {runs}\nevents_per_s = 1000.0\n"
            );
            let (task, quantity) = (None, SimQuantity::EventsPerS);
            predicted(&SimulateSpec { experiment, task, quantity, points: 1 }, &Settings::default())
        };
        let (once, often) = (of(1, 9.0).unwrap(), of(5, 9.0).unwrap());
        assert!((1900.0..2010.0).contains(&once) && (often / once - 1.0).abs() < 0.02, "{once} {often}");
        assert!(of(1, 0.5).unwrap_err().to_string().contains("no run"), "none has ended");
    }
}
