//! What the figures mean, in plain words. Each file drafts claims; [`crate::decide`] decides all of a page together.

use super::Study;
use super::reading::Reads;
use crate::decide::{Draft, Verdict, page};
use crate::record::Record;

pub mod advisor;
mod health;
mod limits;
mod reads;
mod steal;
mod units;
mod weights;

pub(super) use limits::{Held, held};
pub use steal::Stealing;

impl Verdict {
    /// Whether it answers a question, of which "no" is as good an answer as "yes"; others are checks, which fail.
    pub fn is_question(&self) -> bool {
        const QUESTIONS: [&str; 11] = [
            "published-recipe",
            "placement-alone",
            "long-slices",
            "slices-against-recipe",
            "quota-costs-cpu",
            "does-a-limit-help",
            "larger-units-wider-spread",
            "a-small-total-helps",
            "rule-of-thumb",
            "mean-over-all-runs-misleads",
            "how-many-fit",
        ];
        QUESTIONS.contains(&self.id.as_str())
            || self.id.starts_with("source-claims")
            || Reads::ALL.iter().any(|reads| self.id.starts_with(reads.id()))
    }
}

/// All verdicts the data allow, the most telling first.
pub(super) fn verdicts(record: &Record, study: &Study) -> Vec<Verdict> {
    let mut all: Vec<Draft<'_>> = Vec::new();
    steal::add(record, study, &mut all);
    limits::add(record, study, &mut all);
    reads::add(record, study, &mut all);
    units::add(record, study, &mut all);
    advisor::add(record, study, &mut all);
    weights::add(record, study, &mut all);
    all.extend(units::rule_of_thumb(record, study));
    health::add(study, &mut all);
    page(all)
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

/// The value of a decision with three digits; `?` where it is not known.
fn of(decision: &crate::decide::Decision) -> String {
    decision.value.map_or_else(|| "?".into(), three)
}

/// One of three wordings, by the answer.
fn by<'a>(holds: Option<bool>, yes: &'a str, no: &'a str, open: &'a str) -> &'a str {
    match holds {
        Some(true) => yes,
        Some(false) => no,
        None => open,
    }
}
