//! What is known of an experiment before it is run: what its record begins with.

use evenkeel_experiment::file::{Experiment, PlannedPoint};
use evenkeel_experiment::record::{Host, Record, Requirement, SCHEMA};
use evenkeel_experiment::shard::Shard;

use super::bench::now;

/// What is known about an experiment besides its file.
#[derive(Debug, Clone, Default)]
pub struct About {
    pub builtin: Option<String>,
    pub quick: bool,
    /// Names of the source's tables.
    pub sources: Vec<String>,
    /// The part that is run; `None` for all of it.
    pub shard: Option<Shard>,
}

/// What a point is called in progress.
pub(super) fn label<'a>(experiment: &'a Experiment, planned: &'a PlannedPoint) -> &'a str {
    let label = &planned.point.label;
    if label.is_empty() { &experiment.name } else { label }
}

/// A record without cells.
pub(super) fn empty(
    experiment: &Experiment,
    about: &About,
    host: Host,
    requirements: Vec<Requirement>,
    planned_cells: usize,
) -> Record {
    Record {
        schema: SCHEMA.into(),
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        builtin: about.builtin.clone(),
        quick: about.quick,
        sources: about.sources.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        began: now(),
        host,
        experiment: Some(experiment.clone()),
        requirements,
        shard: about.shard,
        planned_cells,
        ..Record::default()
    }
}
