//! What guarantees and services had, look by look: their record on pages, and their tracks in a trace.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_base::PromiseState;
use evenkeel_base::run::{GuaranteeStatus, ProtectedStatus};
use evenkeel_observe::flight::{Promise, Story};
use serde_json::{Value, json};

use super::board::MOMENTS;

/// Promises told apart.
const MOST: usize = 64;
/// States, by the number that moments have.
const STATES: [PromiseState; 6] = [
    PromiseState::Unknown,
    PromiseState::Kept,
    PromiseState::AtRisk,
    PromiseState::Broken,
    PromiseState::Waiting,
    PromiseState::Refused,
];

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// CPU: `got` is in percent of one CPU.
    Guarantee,
    /// A guarantee of short waits: `got` is the 99th percentile in ms.
    Waits,
    /// The same of a service that is protected, which may have the name of such a guarantee.
    Service,
}

#[derive(Debug, Clone, Default)]
struct Course {
    /// In the unit of what it got.
    bound: Option<f64>,
    /// ms since 1970, what it got, how it stood.
    moments: VecDeque<(u64, Option<f32>, PromiseState)>,
}

/// All of them, by kind and name.
#[derive(Debug, Clone, Default)]
pub struct Promises(BTreeMap<(Kind, String), Course>);

impl Promises {
    /// How each stands at a look.
    pub fn add(&mut self, at_ms: u64, guarantees: &[GuaranteeStatus], services: &[ProtectedStatus]) {
        for one in guarantees {
            let waits = one.promised_pct.is_none();
            let (bound, got) = match waits {
                true => (one.promised_wait_p99_ms, one.wait_p99_ms),
                false => (one.promised_pct, one.got_pct),
            };
            let kind = if waits { Kind::Waits } else { Kind::Guarantee };
            self.push((kind, &one.name), bound, (at_ms, got, one.state));
        }
        for one in services {
            // As it is judged.
            let bound = one.bound_ms.or(one.limit_ms);
            self.push((Kind::Service, &one.name), bound, (at_ms, one.p99_ms, one.state));
        }
        // Who is no longer spoken of goes when what is known of it is older than all that is kept.
        self.0.retain(|_, course| {
            course.moments.back().is_some_and(|last| last.0 + 1000 * MOMENTS as u64 >= at_ms)
        });
    }

    fn push(
        &mut self,
        (kind, name): (Kind, &str),
        bound: Option<f64>,
        (at_ms, got, state): (u64, Option<f64>, PromiseState),
    ) {
        let key = (kind, name.to_owned());
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            return;
        }
        let course = self.0.entry(key).or_default();
        course.bound = bound;
        // Of a clock that was set back since.
        course.moments.retain(|past| past.0 <= at_ms);
        if course.moments.len() >= MOMENTS {
            course.moments.pop_front();
        }
        course.moments.push_back((at_ms, got.map(|got| got as f32), state));
    }

    /// The document `evenkeel.promises/v1`.
    pub fn document(&self) -> Value {
        let of = |kinds: &[Kind]| -> Vec<Value> {
            let some = self.0.iter().filter(|((kind, _), _)| kinds.contains(kind));
            some.map(|((kind, name), course)| {
                let kind = if *kind == Kind::Service { "service" } else { "guarantee" };
                let moments = course.moments.iter().map(|(at, got, state)| {
                    let state = STATES.iter().position(|one| one == state);
                    json!([at, got.map(|got| (f64::from(got) * 100.0).round() / 100.0), state])
                });
                json!({
                    "kind": kind, "name": evenkeel_base::cut(name, 200), "bound": course.bound,
                    "moments": moments.collect::<Vec<_>>(),
                })
            })
            .collect()
        };
        json!({
            "schema": "evenkeel.promises/v1", "fields": ["at_ms", "got", "state"], "states": STATES,
            "guarantees": of(&[Kind::Guarantee]), "services": of(&[Kind::Waits, Kind::Service]),
        })
    }

    /// As a recording has them, with what else the loop did.
    pub fn story(&self, marks: impl Iterator<Item = (u64, String)>) -> Story {
        let promises = self.0.iter().map(|((kind, name), course)| {
            let (title, unit) = match kind {
                Kind::Guarantee => (format!("guarantee {name}"), "got, % of one CPU"),
                Kind::Waits => (format!("guarantee {name}"), "wait p99, ms"),
                Kind::Service => (format!("service {name}"), "wait p99, ms"),
            };
            let moments = course
                .moments
                .iter()
                .map(|(at, got, state)| (*at, got.map(f64::from), state.name().to_owned()));
            Promise { title, unit: unit.to_owned(), bound: course.bound, moments: moments.collect() }
        });
        Story { promises: promises.collect(), marks: marks.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarantee(name: &str, got_pct: Option<f64>, state: PromiseState) -> GuaranteeStatus {
        let promised_pct = Some(15.0);
        GuaranteeStatus { name: name.into(), promised_pct, got_pct, state, ..Default::default() }
    }

    #[test]
    fn each_look_is_kept_and_unknown_is_not_zero() {
        let mut promises = Promises::default();
        promises.add(1000, &[guarantee("a", Some(20.0), PromiseState::Kept)], &[]);
        promises.add(2000, &[guarantee("a", None, PromiseState::Unknown)], &[]);
        let document = promises.document();
        assert_eq!(document["guarantees"][0]["moments"], json!([[1000, 20.0, 1], [2000, null, 0]]));
        let story = promises.story(std::iter::once((1500, "kept idle groups".to_owned())));
        assert_eq!(story.promises[0].moments[0], (1000, Some(20.0), "kept".to_owned()));
        assert_eq!((story.promises[0].bound, story.marks.len()), (Some(15.0), 1));
        // The clock was set back.
        promises.add(1500, &[guarantee("a", Some(9.0), PromiseState::Kept)], &[]);
        assert_eq!(promises.document()["guarantees"][0]["moments"], json!([[1000, 20.0, 1], [1500, 9.0, 1]]));
    }

    #[test]
    fn a_guarantee_of_short_waits_and_a_service_of_its_name_are_two() {
        let mut promises = Promises::default();
        let waits = GuaranteeStatus {
            promised_pct: None,
            promised_wait_p99_ms: Some(5.0),
            wait_p99_ms: Some(1.0),
            ..guarantee("container:web", None, PromiseState::Kept)
        };
        let service = ProtectedStatus {
            name: "container:web".to_owned(),
            bound_ms: Some(2.0),
            p99_ms: Some(1.0),
            ..Default::default()
        };
        promises.add(1000, &[waits], &[service]);
        let document = promises.document();
        let services = document["services"].as_array().unwrap();
        let bounds: Vec<_> = services.iter().map(|one| one["bound"].as_f64()).collect();
        assert_eq!(bounds, [Some(5.0), Some(2.0)], "{document:#}");
        assert_eq!([&services[0]["kind"], &services[1]["kind"]], ["guarantee", "service"]);
        assert!(services.iter().all(|one| one["moments"].as_array().unwrap().len() == 1), "{document:#}");
        let story = promises.story(std::iter::empty());
        let titles: Vec<_> = story.promises.iter().map(|promise| promise.title.as_str()).collect();
        assert_eq!(titles, ["guarantee container:web", "service container:web"]);
    }

    #[test]
    fn there_are_bounds_and_who_is_gone_makes_room() {
        let mut promises = Promises::default();
        for at in 0..(MOMENTS as u64 + 10) {
            promises.add(1000 * at, &[guarantee("a", Some(1.0), PromiseState::Kept)], &[]);
        }
        assert_eq!(promises.document()["guarantees"][0]["moments"].as_array().unwrap().len(), MOMENTS);
        let many: Vec<_> =
            (0..100).map(|at| guarantee(&format!("b{at}"), None, PromiseState::Kept)).collect();
        promises.add(10_000_000, &many, &[]);
        let names = promises.document()["guarantees"].as_array().unwrap().len();
        assert!(names < MOST && names > 60, "{names}: the old one is gone, the rest is bounded");
    }
}
