//! Tune files, and figures in what a service prints.

use std::path::Path;

use evenkeel_tune::{Tune, of_json};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("tune", |text| match Tune::parse(Path::new("/tmp/tune.toml"), text) {
        Ok(tune) => {
            assert!(tune.constraints.iter().all(|constraint| constraint.bound.is_finite()));
            let middle = tune.space.parameters().iter().map(|parameter| parameter.domain.at(0.5)).collect();
            assert!(tune.point(&tune.settings(&middle)).is_some_and(|point| point.len() == middle.len()));
        }
        Err(error) => assert!(error.line <= text.lines().count() + 1, "{error}"),
    }),
    Target::text("figure-in-json", |text| {
        let (pointer, text) = text.split_once('\n').unwrap_or(("/a/0", text));
        let _ = of_json(pointer, text);
    }),
];
