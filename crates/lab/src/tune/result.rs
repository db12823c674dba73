//! What a search found, as its document has it.

use std::collections::BTreeMap;

use evenkeel_base::run::Estimate;
use evenkeel_base::stats;
use evenkeel_policy::search::importance::Importance;
use evenkeel_policy::search::{Arm, Point, Search};
use serde::Serialize;

use super::expand::Settings;
use super::file::{Goal, Tune};
use super::journal::TrialRecord;

/// A point the simulator expects to be good.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warm {
    /// The settings.
    pub settings: Settings,
    /// What is predicted, in the model's terms.
    pub predicted: f64,
    /// The point.
    #[serde(skip)]
    pub point: Point,
}

/// Settings with what they gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The settings.
    pub settings: Settings,
    /// The objective with its 95 % interval, of the runs that decide; ends are `None` where a single run shows none.
    pub value: f64,
    /// Lower end.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Runs in all.
    pub runs: usize,
    /// Means of all quantities, by name.
    pub quantities: BTreeMap<String, f64>,
}

/// Gain of the best over the present settings; above 0 is better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gain {
    /// In the objective's unit.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// In percent of the present value; `None` where that is 0.
    pub pct: Option<f64>,
}

/// The document `evenkeel.tune/v1`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TuneResult {
    /// `evenkeel.tune/v1`.
    pub schema: &'static str,
    /// Name of the search.
    pub name: String,
    /// How points were chosen.
    pub method: String,
    /// Name of the objective.
    pub objective: String,
    /// Its unit.
    pub unit: String,
    /// `max` or `min`.
    pub goal: &'static str,
    /// As written.
    pub constraints: Vec<String>,
    /// Runs made.
    pub trials: usize,
    /// Settings tried.
    pub points: usize,
    /// Runs that failed.
    pub failures: usize,
    /// Time of all runs, seconds.
    pub seconds: f64,
    /// Stopped before its end.
    pub interrupted: bool,
    /// The best settings; `None` where none works and keeps the constraints.
    pub best: Option<Candidate>,
    /// The present settings.
    pub present: Option<Candidate>,
    /// Gain of the best over the present.
    pub gain: Option<Gain>,
    /// Spread of a single run, standard deviation; `None` where nothing was run twice.
    pub noise: Option<f64>,
    /// How much each parameter matters; `None` where too little is known.
    pub importance: Option<Vec<Importance>>,
    /// Where the simulator expected the best.
    pub warm: Vec<Warm>,
    /// After each trial: the best value known so far.
    pub convergence: Vec<Option<f64>>,
    /// Every trial's objective; `None` where it failed.
    pub values: Vec<Option<f64>>,
    /// Whether each trial kept the constraints.
    pub kept: Vec<bool>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

impl TuneResult {
    pub(super) fn new(
        tune: &Tune,
        search: &Search,
        records: &[TrialRecord],
        warm: Vec<Warm>,
        interrupted: bool,
    ) -> Self {
        let sign = if tune.goal == Goal::Max { -1.0 } else { 1.0 };
        let candidate = |arm: &Arm, e: Estimate| {
            let (low, high) = if sign < 0.0 { (-e.high, -e.low) } else { (e.low, e.high) };
            let settings = tune.settings(&arm.point);
            let of = |q: usize| {
                let mine = records.iter().filter(|r| r.settings == settings);
                let values: Vec<f64> = mine.filter_map(|r| r.values.as_ref()?.get(q).copied()).collect();
                Some((tune.readings[q].name.clone(), stats::mean(&values)?))
            };
            Candidate {
                quantities: (0..tune.readings.len()).filter_map(of).collect(),
                settings,
                value: sign * e.value,
                low: finite(low),
                high: finite(high),
                runs: arm.runs.len(),
            }
        };
        let best = search.best().map(|(arm, e)| candidate(arm, e));
        let present_arm = tune.present.as_ref().and_then(|p| search.history().arm(p));
        let present = present_arm.and_then(|arm| Some(candidate(arm, stats::estimate(&arm.decisive())?)));
        let gain = search.gain().zip(present.as_ref()).map(|(g, present)| Gain {
            value: -g.value,
            low: finite(-g.high),
            high: finite(-g.low),
            pct: (present.value != 0.0).then(|| 100.0 * -g.value / present.value.abs()),
        });
        let mut values = Vec::new();
        let mut kept = Vec::new();
        let mut convergence = Vec::new();
        let mut replay = evenkeel_policy::search::History::default();
        for record in records {
            let Some(point) = tune.point(&record.settings) else { continue };
            let outcome = super::outcome(tune, &point, record);
            values.push(outcome.loss.map(|l| sign * l));
            kept.push(outcome.loss.is_some() && outcome.excess.iter().all(|e| *e <= 0.0));
            replay.push(&point, outcome);
            convergence.push(replay.best().and_then(|arm| stats::mean(&arm.decisive())).map(|l| sign * l));
        }
        let failures = records.iter().filter(|r| r.error.is_some()).count();
        let mut notes = Vec::new();
        if failures > 0 {
            let last = records.iter().rev().find_map(|r| r.error.as_deref()).unwrap_or_default();
            notes.push(format!("{failures} of {} trials failed; the last one: {last}", records.len()));
        }
        if best.is_none() && !records.is_empty() {
            match search.history().least_bad() {
                Some(arm) => notes.push(format!(
                    "no settings keep the constraints ({}); nearest: {}",
                    tune.file.constraints.join(", "),
                    tune.settings(&arm.point).words()
                )),
                None => notes.push("no settings work".into()),
            }
        }
        if let Some(gain) = &gain
            && gain.low.is_none_or(|low| low <= 0.0)
        {
            notes.push(
                "the gain over the present settings is within the noise: more repeats or trials would tell"
                    .into(),
            );
        }
        if best.is_some()
            && !records.iter().any(|r| r.reason == "last-round")
            && tune.file.search.finalists > 0
        {
            notes.push("without the final comparison the best value is likely somewhat too good".into());
        }
        Self {
            schema: "evenkeel.tune/v1",
            name: tune.name.clone(),
            method: tune.file.search.method.to_string(),
            objective: tune.readings[0].name.clone(),
            unit: tune.readings[0].unit.clone(),
            goal: if tune.goal == Goal::Max { "max" } else { "min" },
            constraints: tune.file.constraints.clone(),
            trials: records.len(),
            points: search.history().arms().len(),
            failures,
            seconds: records.iter().map(|r| r.seconds).sum(),
            interrupted,
            best,
            present,
            gain,
            noise: search.history().noise().map(|(sd, _)| sd),
            importance: search.importance(),
            warm,
            convergence,
            values,
            kept,
            notes,
        }
    }

    /// All trials, RFC 4180 with a header line.
    pub fn csv(tune: &Tune, records: &[TrialRecord]) -> String {
        let quote = |text: &str| {
            if text.contains([',', '"', '\n', '\r']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.to_owned()
            }
        };
        let names = tune.space.parameters().iter().map(|p| p.name.clone());
        let head: Vec<String> = ["trial".to_owned(), "reason".into()]
            .into_iter()
            .chain(names.clone())
            .chain(tune.readings.iter().map(|r| r.name.clone()))
            .chain(["worth", "kept", "seconds", "error"].map(str::to_owned))
            .collect();
        let mut out = head.iter().map(|h| quote(h)).collect::<Vec<_>>().join(",") + "\n";
        for r in records {
            let mut cells = vec![r.number.to_string(), r.reason.clone()];
            cells.extend(names.clone().map(|n| quote(r.settings.0.get(&n).map_or("", |v| v))));
            let value =
                |i: usize| r.values.as_ref().and_then(|v| v.get(i)).map_or_else(String::new, f64::to_string);
            cells.extend((0..tune.readings.len()).map(value));
            let outcome = tune.point(&r.settings).map(|p| (super::outcome(tune, &p, r), p));
            let worth = r
                .values
                .as_ref()
                .zip(outcome.as_ref())
                .and_then(|(v, (_, p))| Some(tune.worth(*v.first()?, p).0));
            cells.push(worth.map_or_else(String::new, |w| w.to_string()));
            let kept = outcome.map(|(o, _)| o.loss.is_some() && o.excess.iter().all(|e| *e <= 0.0));
            cells.push(kept.map_or_else(String::new, |k| k.to_string()));
            cells.push(format!("{:.3}", r.seconds));
            cells.push(quote(r.error.as_deref().unwrap_or_default()));
            out += &(cells.join(",") + "\n");
        }
        out
    }
}
