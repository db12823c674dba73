//! Tune files, and metrics in Prometheus' text format.

use std::path::Path;

use evenkeel_tune::prometheus::{Metrics, Selector};
use evenkeel_tune::{Tune, http, of_json};

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
    Target::bytes("http-answer", |bytes| {
        let _ = http::body_of(bytes);
    }),
    Target::text("url", |text| {
        if let Ok((host, path)) = http::parse(text) {
            // Nothing of it may begin another line of the request.
            assert!(!format!("{host}{path}").contains(char::is_control), "{host:?} {path:?}");
            assert!(path.starts_with('/') && !path.contains(' '));
        }
    }),
    Target::text("figure-in-json", |text| {
        let (pointer, text) = text.split_once('\n').unwrap_or(("/a/0", text));
        let _ = of_json(pointer, text);
    }),
    Target::text("prometheus", |text| {
        let (first, page) = text.split_once('\n').unwrap_or((text, ""));
        let metrics = Metrics::parse(page);
        if let Ok(selector) = Selector::parse(first) {
            let _ = selector.value(&metrics);
            let _ = selector.rate(Some(&metrics), &metrics, 1.0);
            let _ = selector.quantile(0.99, None, &metrics);
            for (bound, count) in selector.buckets(&metrics).unwrap_or_default() {
                assert!(!bound.is_nan() && count >= 0.0, "{bound} {count}");
            }
        }
    }),
];
