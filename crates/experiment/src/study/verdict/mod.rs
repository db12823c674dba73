//! What the figures mean, in plain words. Each file drafts claims; [`crate::decide`] decides all of a page together.

use super::Study;
use crate::decide::{Draft, Verdict, page};
use crate::record::Record;

pub mod advisor;
mod health;
mod limits;
mod order;
mod reads;
mod steal;
mod units;
mod weights;
mod words;

pub(super) use limits::{Held, held};
pub use steal::Stealing;
pub use weights::{INFEASIBLE_PCT, MORE_CPUS_PCT, ONE_CPU_PCT};
pub(super) use words::three_digits;

/// All verdicts the data allow, the most telling first.
pub(super) fn verdicts(record: &Record, study: &Study) -> Vec<Verdict> {
    let mut all: Vec<Draft<'_>> = Vec::new();
    steal::add(record, study, &mut all);
    limits::add(record, study, &mut all);
    reads::add(record, study, &mut all);
    units::add(record, study, &mut all);
    advisor::add(record, study, &mut all);
    weights::add(record, study, &mut all);
    order::add(record, &mut all);
    all.extend(units::rule_of_thumb(record, study).map(Draft::question));
    health::add(study, &mut all);
    page(all)
}
