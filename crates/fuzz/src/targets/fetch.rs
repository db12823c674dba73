//! Addresses, answers over HTTP, and metrics in Prometheus' text format.

use evenkeel_fetch::http;
use evenkeel_fetch::prometheus::{Metrics, Selector};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::bytes("http-answer", |bytes| {
        let _ = http::body_of(bytes);
    }),
    Target::text("url", |text| {
        if let Ok(http::Address { host, path, .. }) = http::parse(text) {
            // Nothing of it may begin another line of the request.
            assert!(!format!("{host}{path}").contains(char::is_control), "{host:?} {path:?}");
            assert!(path.starts_with('/') && !path.contains(' '));
        }
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
