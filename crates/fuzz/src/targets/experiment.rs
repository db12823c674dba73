//! Experiment files, logs that are imported, and what is kept of experiments on disk.

use evenkeel_experiment::file::Experiment;
use evenkeel_experiment::import;
use evenkeel_experiment::record::Record;
use evenkeel_experiment::study::study;

use super::amount::amount;
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("experiment", |text| match Experiment::parse(text) {
        Ok(experiment) => {
            experiment.tenants();
            let _ = experiment.unit_factor(true);
        }
        Err(error) => assert!(error.line <= text.lines().count() + 1, "{error}"),
    }),
    Target::text("log", |text| match import::parse(text) {
        Ok(log) => {
            for run in &log.runs {
                [run.events_per_s, run.verify_per_s, run.total_s]
                    .into_iter()
                    .flatten()
                    .for_each(|figure| amount("a figure", figure));
            }
        }
        Err((line, _)) => assert!((1..=text.lines().count()).contains(&line)),
    }),
    Target::text("stamp", |text| {
        let _ = import::stamp(text);
    }),
    Target::text("record", |text| {
        if let Ok(record) = serde_json::from_str::<Record>(text) {
            // What a damaged record shows may be nothing, but it is shown.
            let _ = serde_json::to_string(&study(&record));
        }
    })
    .heavy(10),
];
