//! What the user expects of a host (`check --policy`).

use std::path::Path;

use evenkeel_audit::{Expectations, Ignore};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("expectations", |text| {
        if let Err(error) = Expectations::parse(Path::new("policy.toml"), text) {
            assert!(error.line <= text.lines().count() + 1, "{error}");
        }
    })
    .heavy(10),
    Target::text("glob", |text| {
        let (pattern, subject) = text.split_once('\n').unwrap_or((text, ""));
        let ignore = Ignore { rule: "r".into(), subject: Some(pattern.into()), reason: String::new() };
        if !pattern.contains('*') {
            assert_eq!(ignore.matches("r", subject), pattern == subject);
        }
    }),
];
