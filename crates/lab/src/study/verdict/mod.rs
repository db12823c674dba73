//! What the figures mean, in plain words; each verdict is tied to a test that can come out either way.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::Study;
use crate::record::Record;

mod health;
mod limits;
mod steal;
mod units;
mod weights;

pub(super) use limits::{Held, held};
pub use steal::{Stealing, classify};

/// One statement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name, such as `weights-hold`; unique in a study together with `about`.
    pub id: String,
    /// What it is about: a point, a tenant; empty for the whole.
    pub about: String,
    /// In words.
    pub text: String,
    /// Whether the test is passed; `None` where the data do not decide.
    pub holds: Option<bool>,
    /// The test.
    pub test: Test,
}

impl Verdict {
    /// Whether it answers a question, of which "no" is as good an answer as "yes"; others are checks, which fail.
    pub fn is_question(&self) -> bool {
        const QUESTIONS: [&str; 7] = [
            "quota-costs-cpu",
            "does-a-limit-help",
            "larger-units-wider-spread",
            "a-small-total-helps",
            "rule-of-thumb",
            "mean-over-all-runs-misleads",
            "how-many-fit",
        ];
        QUESTIONS.contains(&self.id.as_str())
            || self.id.starts_with("own-file-")
            || self.id.starts_with("same-file-")
    }
}

/// What decides a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// The statistic, in words.
    pub statistic: String,
    /// Its value.
    pub value: Option<f64>,
    /// 95 % interval.
    pub interval: Option<[f64; 2]>,
    /// Its unit, such as `%`.
    pub unit: String,
    /// What it is held against, such as `<= 2`.
    pub bound: String,
}

impl Test {
    fn of(statistic: impl Into<String>, unit: &str, bound: impl Into<String>) -> Self {
        Self {
            statistic: statistic.into(),
            value: None,
            interval: None,
            unit: unit.into(),
            bound: bound.into(),
        }
    }

    fn value(mut self, value: f64) -> Self {
        self.value = Some(value).filter(|v| v.is_finite());
        self
    }

    fn interval(mut self, interval: Option<[f64; 2]>) -> Self {
        self.interval = interval.filter(|i| i.iter().all(|v| v.is_finite()));
        self
    }

    fn estimate(self, estimate: Estimate) -> Self {
        let interval = (estimate.low < estimate.high).then_some([estimate.low, estimate.high]);
        self.value(estimate.value).interval(interval)
    }
}

fn verdict(id: &str, about: &str, holds: Option<bool>, text: String, test: Test) -> Verdict {
    Verdict { id: id.into(), about: about.into(), text, holds, test }
}

/// All verdicts the data allow, the most telling first.
pub(super) fn verdicts(record: &Record, study: &Study) -> Vec<Verdict> {
    let mut all = Vec::new();
    steal::add(record, study, &mut all);
    limits::add(study, &mut all);
    units::add(study, &mut all);
    weights::add(record, study, &mut all);
    all.extend(units::rule_of_thumb(study));
    health::add(study, &mut all);
    all
}

/// `1.02 [0.98, 1.07]`.
fn with_interval(estimate: Estimate, decimals: usize) -> String {
    if estimate.low < estimate.high {
        format!("{:.decimals$} [{:.decimals$}, {:.decimals$}]", estimate.value, estimate.low, estimate.high)
    } else {
        format!("{:.decimals$}", estimate.value)
    }
}

/// A number with three significant digits, without decimals that say nothing.
pub(super) fn three_digits(value: f64) -> String {
    let text = three(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number with three significant digits.
fn three(value: f64) -> String {
    let digits = if value.abs() < 1e-6 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = (2 - digits).clamp(0, 6) as usize;
    format!("{value:.decimals$}")
}
