//! What a search found, for people: the one place that fills the page and the text on a terminal.

use evenkeel_report::html::{SettingRow, TunePage};
use evenkeel_report::significant;
use evenkeel_report::svg::Trial;

use crate::expand::short;
use crate::{Candidate, TrialRecord, Tune, TuneResult};

fn how(result: &TuneResult) -> String {
    let constraints = result.constraints.iter().map(|c| format!("; {c}"));
    format!(
        "{} search, {} trials of {} settings in {:.0} s; goal: {} {}{}",
        result.method,
        result.trials,
        result.points,
        result.seconds,
        result.goal,
        result.objective,
        constraints.collect::<String>(),
    )
}

fn setting(candidate: Option<&Candidate>, name: &str) -> Option<String> {
    candidate?.settings.0.get(name).map(|value| short(value))
}

fn named(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") }
}

/// The page of a search, or the text on a terminal.
pub fn page(tune: &Tune, result: &TuneResult, records: &[TrialRecord]) -> TunePage {
    let (present, best) = (result.present.as_ref(), result.best.as_ref());
    let number = |of: Option<&Candidate>, name: &str| of?.quantities.get(name).map(|v| significant(*v));
    let settings = tune.space.parameters().iter().enumerate().map(|(index, p)| SettingRow {
        name: p.name.clone(),
        present: setting(present, &p.name),
        best: setting(best, &p.name),
        importance: result.importance.as_ref().and_then(|all| all.get(index)).map(|i| (i.alone, i.total)),
    });
    let quantities = tune
        .readings
        .iter()
        .map(|r| (named(&r.name, &r.unit), number(present, &r.name), number(best, &r.name)));
    let trials = records.iter().enumerate().map(|(index, r)| Trial {
        value: result.values.get(index).copied().flatten(),
        kept: result.kept.get(index).copied().unwrap_or(false),
        best: result.convergence.get(index).copied().flatten(),
        title: match &r.error {
            Some(error) => format!("{} ({error})", r.settings.words()),
            None => r.settings.words(),
        },
    });
    let worth = if result.priced { "worth" } else { &result.objective };
    TunePage {
        name: result.name.clone(),
        answer: result.answer(),
        how: how(result),
        axis: named(worth, &result.unit),
        settings: settings.collect(),
        quantities: quantities.collect(),
        trials: trials.collect(),
        notes: result.notes.clone(),
    }
}
