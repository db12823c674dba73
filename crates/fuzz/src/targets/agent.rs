//! Scopes, and what labels of containers promise.

use evenkeel_agent::Scope;
use evenkeel_agent::guarantee::wait_ns;

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("scope", |text| {
        let texts: Vec<&str> = text.lines().collect();
        if let Ok(scope) = Scope::parse(&texts) {
            assert_eq!(scope.texts().len(), texts.len());
            // A path or a name that is left out must never widen what is meant.
            if scope.names_the_host() {
                let whole = |text: &&str| {
                    let text = text.trim();
                    text == "all"
                        || text.strip_prefix("cgroup:").is_some_and(|path| path.trim_matches('/').is_empty())
                };
                assert!(texts.iter().any(whole), "{texts:?}");
            }
        }
    })
    .heavy(10),
    Target::text("promised-wait", |text| {
        if let Ok(ns) = wait_ns(text) {
            assert!((100_000..=10_000_000_000).contains(&ns), "{ns}");
        }
    }),
];
