//! What a search found, as its document has it.

use std::collections::BTreeMap;

use crate::search::importance::Importance;
use crate::search::{Arm, Point, Search};
use evenkeel_base::run::Estimate;
use evenkeel_base::stats;
use evenkeel_base::text::{bracketed, without_zeros};
use evenkeel_experiment::decide::{Claim, Figure, Mean, PAGE_ALPHA, decide};
use evenkeel_report::significant;
use serde::Serialize;

use super::expand::Settings;
use super::file::{Goal, Tune};
use super::journal::TrialRecord;

/// A point the simulator expects to be good.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warm {
    pub settings: Settings,
    /// What is predicted, in the model's terms.
    pub predicted: f64,
    #[serde(skip)]
    pub point: Point,
}

/// Settings with what they gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    pub settings: Settings,
    /// The objective with its 95 % interval, of the runs that decide; ends are `None` where a single run shows none.
    pub value: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub runs: usize,
    /// Means of all quantities over the runs that decide, by name.
    pub quantities: BTreeMap<String, f64>,
}

/// Gain of the best over the present settings; above 0 is better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gain {
    /// In the objective's unit.
    pub value: f64,
    /// Lower end of the 95 % interval.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// In percent of the present value; `None` where that is 0.
    pub pct: Option<f64>,
}

/// The document `evenkeel.tune/v1`.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TuneResult {
    pub schema: &'static str,
    pub name: String,
    pub method: String,
    pub objective: String,
    pub unit: String,
    /// `max` or `min`.
    pub goal: &'static str,
    pub constraints: Vec<String>,
    pub trials: usize,
    /// Settings tried.
    pub points: usize,
    pub failures: usize,
    /// Time of all runs, seconds.
    pub seconds: f64,
    pub interrupted: bool,
    /// The best settings; `None` where none works and keeps the constraints.
    pub best: Option<Candidate>,
    pub present: Option<Candidate>,
    /// Gain of the best over the present.
    pub gain: Option<Gain>,
    /// Whether the best is better than the present beyond the interval of the gain; `None`: not decided, or not compared.
    pub better: Option<bool>,
    /// Whether the present settings work and keep the constraints; `None` where they were not tried.
    pub present_keeps: Option<bool>,
    /// Whether the best settings come from the final comparison.
    pub compared: bool,
    /// The settings have prices: the objective is the reading less (or, for `min`, plus) those.
    pub priced: bool,
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

/// Four significant digits without trailing zeros.
fn shown(value: f64) -> String {
    without_zeros(&significant(value)).to_owned()
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
                // The runs that decide: a table with other means than the sentence above it would contradict it.
                let mine = || records.iter().filter(|r| r.settings == settings && r.values.is_some());
                let last = mine().any(|r| r.reason == "last-round");
                let values = mine().filter(|r| !last || r.reason == "last-round");
                let values: Vec<f64> = values.filter_map(|r| r.values.as_ref()?.get(q).copied()).collect();
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
        let priced = tune.file.objective.price.values().any(|price| *price != 0.0);
        // The best was picked, from the finalists or, without a final comparison, from all settings that keep the
        // constraints: its gain is held against 0 as one of so many.
        let compared = search.history().best().is_some_and(Arm::in_last_round);
        let picked_from = if compared {
            tune.file.search.finalists
        } else {
            search.history().arms().iter().filter(|arm| arm.feasible()).count()
        };
        let decided = search.history().best().zip(present_arm).and_then(|(best, present)| {
            let worth = |arm: &Arm| Mean::of(&arm.decisive().iter().map(|loss| -loss).collect::<Vec<_>>());
            let figure = Figure::Mean(worth(best)?.less(worth(present)?)?);
            let alpha = PAGE_ALPHA / picked_from.max(1) as f64;
            Some(decide(&figure, Claim::AtLeast(0.0), alpha)).filter(|_| best.point != present.point)
        });
        // What is exactly as good is not better.
        let better = decided.and_then(|d| Some(d.holds? && d.value.is_some_and(|gain| gain > 0.0)));
        let gain = decided.zip(present.as_ref()).and_then(|(d, present)| {
            let [low, high] = d.interval.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
            Some(Gain {
                value: d.value?,
                low: finite(low),
                high: finite(high),
                // A part of what is left after prices says nothing.
                pct: (present.value != 0.0 && !priced)
                    .then(|| 100.0 * d.value.unwrap_or(0.0) / present.value.abs()),
            })
        });
        let mut values = Vec::new();
        let mut kept = Vec::new();
        let mut convergence = Vec::new();
        let mut replay = crate::search::History::default();
        for record in records {
            let Some(point) = tune.point(&record.settings) else {
                // A place of its own all the same: these lists go by trials.
                values.push(None);
                kept.push(false);
                convergence.push(convergence.last().copied().flatten());
                continue;
            };
            let outcome = super::outcome(tune, &point, record);
            values.push(outcome.loss.map(|l| sign * l));
            kept.push(outcome.loss.is_some() && outcome.excess.iter().all(|e| *e <= 0.0));
            replay.push(&point, outcome);
            convergence.push(replay.best().and_then(|arm| stats::mean(&arm.decisive())).map(|l| sign * l));
        }
        let failures = records.iter().filter(|r| r.error.is_some()).count();
        let mut notes = Vec::new();
        if interrupted {
            notes.push(format!(
                "interrupted after {} trials: the same command goes on from there, and what is best may change",
                records.len()
            ));
        }
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
        if let Some(decision) = decided.filter(|d| d.holds.is_none()) {
            notes.push(format!(
                "whether the best settings are better than the present ones: {}",
                decision.undecided("")
            ));
        }
        if best.is_some() && !compared && search.history().arms().len() > 1 {
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
            better,
            present_keeps: present_arm.map(Arm::feasible),
            compared,
            priced,
            noise: search.history().noise().map(|(sd, _)| sd),
            importance: search.importance(),
            warm,
            convergence,
            values,
            kept,
            notes,
        }
    }

    /// What came of it, in a sentence or two: what is decided is reported, what is not is said to be open.
    pub fn answer(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        let Some(best) = &self.best else {
            return format!("No settings work and keep the constraints: {} trials.", self.trials);
        };
        let ends = |value: f64, low: Option<f64>, high: Option<f64>| match (low, high) {
            (Some(low), Some(high)) => {
                format!("{}{unit} {}", shown(value), bracketed(shown(low), shown(high)))
            }
            _ => format!("{}{unit} [no interval]", shown(value)),
        };
        let sign = if self.goal == "max" { "less" } else { "plus" };
        let what = if self.priced {
            format!("worth ({} {sign} the price of the settings)", self.objective)
        } else {
            self.objective.clone()
        };
        let mut out =
            format!("Best {what}: {} with {}.", ends(best.value, best.low, best.high), best.settings.words());
        let Some(present) = &self.present else { return out };
        if present.settings == best.settings {
            out += match self.compared {
                true => " These are the present settings: no others did better in the final comparison.",
                false => {
                    " These are the present settings: no others that work and keep the constraints did better on average."
                }
            };
            return out;
        }
        let reading = |c: &Candidate| c.quantities.get(&self.objective).copied();
        if let (true, Some(before), Some(now)) = (self.priced, reading(present), reading(best)) {
            let (from, to) = (shown(before), shown(now));
            out += &match (from == to, now < before) {
                (true, _) => format!(" {} itself stays at {to}{unit}.", self.objective),
                (_, true) => format!(" {} itself falls from {from}{unit} to {to}{unit}.", self.objective),
                (_, false) => format!(" {} itself rises from {from}{unit} to {to}{unit}.", self.objective),
            };
        }
        if self.present_keeps == Some(false) {
            out += match self.constraints.is_empty() {
                true => " The present settings fail in most trials.",
                false => " The present settings fail in most trials or miss the constraints.",
            };
        }
        let Some(gain) = &self.gain else { return out };
        let of = if self.priced { " in worth" } else { "" };
        let figures = ends(gain.value, gain.low, gain.high);
        out += &match self.better {
            Some(true) => {
                let pct = gain.pct.map_or_else(String::new, |p| format!(", {p:.1} %"));
                format!(" Gain over the present settings{of}: {figures}{pct}.")
            }
            Some(false) if gain.value == 0.0 => {
                format!(" It is as good as the present settings{of}: {figures}.")
            }
            Some(false) => format!(" It is worse than the present settings{of}: {figures}."),
            None => format!(" Whether it is better than the present settings{of} is undecided: {figures}."),
        };
        out
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

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(setting: &str, value: f64, reading: f64) -> Candidate {
        Candidate {
            settings: Settings([("workers".to_owned(), setting.to_owned())].into()),
            value,
            low: Some(value - 1.0),
            high: Some(value + 1.0),
            runs: 5,
            quantities: [("throughput".to_owned(), reading)].into(),
        }
    }

    fn result(priced: bool, better: Option<bool>) -> TuneResult {
        TuneResult {
            schema: "evenkeel.tune/v1",
            name: "x".into(),
            method: "bayes".into(),
            objective: "throughput".into(),
            unit: "requests/s".into(),
            goal: "max",
            trials: 20,
            points: 9,
            seconds: 9.0,
            best: Some(candidate("2", 65_000.0, 67_912.0)),
            present: Some(candidate("8", 19_700.0, 83_603.0)),
            gain: Some(Gain { value: 45_300.0, low: Some(-900.0), high: Some(91_500.0), pct: None }),
            better,
            present_keeps: Some(true),
            compared: true,
            priced,
            ..TuneResult::default()
        }
    }

    #[test]
    fn what_is_priced_is_no_throughput_and_what_is_within_the_noise_is_no_gain() {
        let text = result(true, None).answer();
        assert!(text.contains("Best worth (throughput less the price of the settings)"), "{text}");
        assert!(text.contains("throughput itself falls from 83603 requests/s to 67912 requests/s"), "{text}");
        assert!(text.contains("undecided") && !text.contains("Gain") && !text.contains(" %"), "{text}");
        let text = result(false, Some(true)).answer();
        assert!(
            text.starts_with("Best throughput: 65000 requests/s") && text.contains("Gain over"),
            "{text}"
        );
        assert!(result(false, Some(false)).answer().contains("worse than the present settings"));
    }
}
