//! What settings in force bring, measured against blocks under the baseline, as document and in words.

use evenkeel_base::run::{Effect, EffectNow, HourlyEffect};
use evenkeel_base::text::bracketed;
use serde::Serialize;

use crate::time;

/// The effect of the changes in force as part of a document.
#[derive(Debug, Serialize)]
pub(crate) struct EffectDocument {
    measured: &'static str,
    cpu_pct: Option<Measured>,
    wait_p99_ms: Option<Measured>,
    holdout_share: Option<Measured>,
    blocks: u64,
    at: Option<String>,
    by_hour: Vec<Hour>,
}

#[derive(Debug, Serialize)]
struct Hour {
    hour: u8,
    blocks: u64,
    cpu_pct: Measured,
}

#[derive(Debug, Serialize)]
struct Measured {
    value: f64,
    interval: [Option<f64>; 2],
    since: Option<String>,
}

impl From<Effect> for Measured {
    fn from(effect: Effect) -> Self {
        let (interval, since) = ([effect.low, effect.high], time::rfc3339(effect.since_ns));
        Self { value: effect.value, interval, since }
    }
}

impl EffectDocument {
    pub fn of(now: &EffectNow) -> Self {
        let hour = |at: &HourlyEffect| Hour { hour: at.hour, blocks: at.blocks, cpu_pct: at.cpu_pct.into() };
        Self {
            measured: if now.held_out { "holdout" } else { "decision" },
            cpu_pct: now.cpu_pct.map(Measured::from),
            wait_p99_ms: now.wait_p99_ms.map(Measured::from),
            holdout_share: now.holdout_share.map(Measured::from),
            blocks: now.blocks,
            at: time::rfc3339(now.at_ns),
            by_hour: now.by_hour.iter().map(hour).collect(),
        }
    }
}

/// The effect of the changes in force in a sentence.
pub fn effect_words(now: &EffectNow) -> String {
    let cpu = now.cpu_pct.as_ref().map_or_else(|| "?".to_owned(), with_interval);
    let since_ns = now.cpu_pct.or(now.wait_p99_ms).or(now.holdout_share).map(|effect| effect.since_ns);
    let since = since_ns.map_or_else(|| "?".to_owned(), time::instant);
    let age = since_ns.map_or(f64::NAN, |since| now.at_ns.saturating_sub(since) as f64 / 1e9);
    let source = if now.held_out {
        let share = now.holdout_share.map_or(0.0, |share| 100.0 * share.value);
        let blocks = if now.blocks == 1 { "block" } else { "blocks" };
        format!("{} {blocks} under the baseline, {share:.1} % of the time, since {since}", now.blocks)
    } else {
        format!("as measured at the decision, {} before ({since})", time::length(age))
    };
    let waits = now.wait_p99_ms.as_ref().map_or_else(String::new, |effect| {
        format!("; 99th percentile of waits {} ms", with_interval(effect))
    });
    format!("{cpu} % of one CPU{waits}: {source}")
}

fn with_interval(effect: &Effect) -> String {
    let end = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{value:+.1}"));
    format!("{:+.1} {}", effect.value, bracketed(end(effect.low), end(effect.high)))
}

/// The effect by hour of the clock in a sentence; `None` before the first block.
pub fn hours_words(now: &EffectNow) -> Option<String> {
    let hours = now.by_hour.iter().map(|at| {
        let blocks = if at.blocks == 1 { "block" } else { "blocks" };
        format!("{:02}h {} ({} {blocks})", at.hour, with_interval(&at.cpu_pct), at.blocks)
    });
    let hours: Vec<String> = hours.collect();
    (!hours.is_empty()).then(|| format!("{}: % of one CPU by hour of the clock, UTC", hours.join(", ")))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::run::RunRecord;
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::run::{Document, DocumentKind, summary};

    #[test]
    fn the_effect_now_has_interval_and_since_and_what_is_open_is_unknown() {
        let of = |value, low, high| Effect { value, low, high, since_ns: 1_763_759_045_000_000_000 };
        let now = EffectNow {
            held_out: true,
            cpu_pct: Some(of(12.3, Some(8.0), None)),
            wait_p99_ms: None,
            holdout_share: Some(of(0.05, Some(0.05), Some(0.05))),
            blocks: 37,
            by_hour: vec![
                HourlyEffect { hour: 9, blocks: 36, cpu_pct: of(12.0, Some(8.0), Some(16.0)) },
                HourlyEffect { hour: 10, blocks: 1, cpu_pct: of(3.0, None, None) },
            ],
            at_ns: 1_763_759_165_000_000_000,
        };
        assert_eq!(
            hours_words(&now).unwrap(),
            "09h +12.0 [+8.0, +16.0] (36 blocks), 10h +3.0 [?, ?] (1 block): % of one CPU by hour of the clock, UTC"
        );
        assert_eq!(hours_words(&EffectNow::default()), None);
        let old = effect_words(&EffectNow { held_out: false, ..now.clone() });
        assert!(
            old.ends_with("as measured at the decision, 2 min 0 s before (2025-11-21T21:04:05.000Z)"),
            "{old}"
        );
        let record = RunRecord { effect_now: Some(now), ..RunRecord::default() };
        let effect = &json!(Document::of(&record, DocumentKind::Status))["effect_now"];
        assert_eq!(effect["cpu_pct"]["value"], 12.3);
        assert_eq!(effect["cpu_pct"]["interval"], json!([8.0, null]));
        assert_eq!(effect["cpu_pct"]["since"], "2025-11-21T21:04:05.000Z");
        assert_eq!(effect["wait_p99_ms"], Json::Null);
        assert_eq!(effect["holdout_share"]["value"], 0.05);
        assert!(
            summary(&record).contains("effect      +12.3 [+8.0, ?] % of one CPU: 37 blocks"),
            "{}",
            summary(&record)
        );
        assert!(summary(&record).contains("\nby hour     09h +12.0 [+8.0, +16.0]"), "{}", summary(&record));
        assert_eq!(json!(Document::of(&RunRecord::default(), DocumentKind::Run))["effect_now"], Json::Null);
    }
}
