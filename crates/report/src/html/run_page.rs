//! The page of a real run.

use evenkeel_base::run::{ChangeRecord, KERNEL_DEFAULT, RunRecord, Stage};
use maud::{Markup, html};

use super::{figure, page};
use crate::demo::{Moment, Role};
use crate::effect::{effect_words, hours_words};
use crate::run::estimate;
use crate::svg::{self, Band, TaskBars, Timeline};
use crate::time;

/// What the page of a run shows. Pictures need samples; without them the page has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunPage {
    pub record: RunRecord,
    pub run: Option<i64>,
    /// Wall clock at the end, nanoseconds since 1970; `None` while running or killed.
    pub ended_ns: Option<u64>,
    pub outcome: Option<String>,
    /// All changes, with when they were taken back.
    pub changes: Vec<(ChangeRecord, Option<u64>)>,
    /// Utilisation, seconds since the run's start.
    pub timeline: Vec<Moment>,
    /// Numbers of the CPUs in the timeline.
    pub cpus: Vec<u32>,
    /// The busiest tasks: name, CPU percent over the first and the last stage.
    pub tasks: Vec<(String, [Option<f64>; 2])>,
    /// Remarks: gaps in the history, damaged blocks.
    pub notes: Vec<String>,
}

pub fn run(data: &RunPage) -> String {
    let record = &data.record;
    let title = data.run.map_or_else(|| "evenkeel run".to_owned(), |run| format!("evenkeel run {run}"));
    // An estimate of what was wanted is a label, never a verdict: it can flatter.
    let estimated = record.stages.iter().any(|stage| stage.fulfilment_estimated);
    let answer = match (record.baseline, record.now) {
        (Some(before), Some(now)) if estimated => format!(
            "Estimated fulfilment, got / (1 - waited), went from {} to {} with {}. What was kept was decided by CPU \
             got and by waits, see the stages.",
            estimate(Some(before), 3),
            estimate(Some(now), 3),
            record.settings
        ),
        (Some(before), Some(now)) if now.low > before.high => {
            format!(
                "Better: fulfilment went from {:.3} to {:.3} with {}.",
                before.value, now.value, record.settings
            )
        }
        (Some(before), Some(now)) if now.high < before.low => {
            format!(
                "Worse: fulfilment went from {:.3} to {:.3} with {}.",
                before.value, now.value, record.settings
            )
        }
        (Some(before), Some(now)) => format!(
            "No difference beyond the intervals: {} before, {} now, with {}.",
            estimate(Some(before), 3),
            estimate(Some(now), 3),
            record.settings
        ),
        _ => "Fulfilment is not known for this run.".to_owned(),
    };
    let body = html! {
        h1 { (title) ": " (record.scope.join(" ")) }
        p.sub {
            "started " (time::short(record.started_ns)) " UTC"
            @match data.ended_ns {
                Some(end) => { " · ended " (time::short(end)) " UTC, after " (time::length(end.saturating_sub(record.started_ns) as f64 / 1e9)) }
                None => { " · not ended (running, or killed)" }
            }
            @if let Some(outcome) = &data.outcome { " · " (outcome) }
        }
        p.answer id="answer" { (answer) }
        @for note in &data.notes { p.note { (note) } }
        dl {
            dt { "Settings" } dd { (record.settings) }
            dt { "Fulfilment before" } dd { (estimate(record.baseline, 3)) }
            dt { "Fulfilment now" } dd { (estimate(record.now, 3)) }
            @if let Some(effect) = &record.effect_now {
                dt { "Effect since it was kept" } dd { (effect_words(effect)) }
                @if let Some(hours) = hours_words(effect) { dt { "By hour" } dd { (hours) } }
            }
            dt { "evenkeel's own cost" } dd {
                (record.own_cost.cpu_pct.map_or_else(|| "?".to_owned(), |pct| format!("{pct:.2} % of one CPU"))) ", "
                (record.own_cost.rss_bytes.map_or_else(|| "?".to_owned(), time::bytes))
            }
        }
        @if !data.timeline.is_empty() {
            (figure("Utilisation from the stored samples. Above: all CPUs together. Below: each CPU. Bands are the stages; \
                     time is since the run's start.", &svg::timeline(&Timeline {
                moments: &data.timeline,
                bands: bands(record),
                wanted_pct: None,
                cpus: data.cpus.clone(),
            })))
        }
        @if !data.tasks.is_empty() {
            (figure("CPU got by the busiest tasks in the first and in the last stage.", &svg::task_bars(&TaskBars {
                stages: vec![("first stage".to_owned(), Role::Default), ("last stage".to_owned(), Role::Final)],
                tasks: data.tasks.iter().map(|(name, got)| (name.clone(), None, got.to_vec())).collect(),
            })))
        }
        (stages(record))
        (changes(data))
    };
    page(&title, &body)
}

/// The colour of a stage, by its settings and what came of them.
fn role(stage: &Stage) -> Role {
    match stage.kept {
        _ if stage.name.settings == KERNEL_DEFAULT => Role::Default,
        Some(true) => Role::Final,
        _ => Role::Trial,
    }
}

fn bands(record: &RunRecord) -> Vec<Band> {
    // Stages of one trial take turns: they begin together, and are one band.
    let of_trial = |stages: &[Stage]| {
        let [first, others @ ..] = stages else { return None };
        let settings = |stage: &Stage| stage.name.settings.clone();
        Some(Band {
            name: match others {
                [] => first.name.to_string(),
                _ => format!("trial of {}", stages.iter().map(settings).collect::<Vec<_>>().join(" | ")),
            },
            role: if others.is_empty() { role(first) } else { Role::Trial },
            start_s: first.started_ns.saturating_sub(record.started_ns) as f64 / 1e9,
            seconds: stages.iter().map(|stage| stage.seconds).sum(),
        })
    };
    record.stages.chunk_by(|a, b| a.started_ns == b.started_ns).filter_map(of_trial).collect()
}

fn stages(record: &RunRecord) -> Markup {
    html! {
        h2 { "Stages" }
        @if record.stages.is_empty() { p { "None recorded." } } @else { div.wide { table id="stages" {
            thead { tr {
                th { "Stage" } th { "Started (UTC)" } th.r { "Length" } th.r { "CPU got, %" } th.r { "Waited / ran" }
                th.r { "Fulfilment" } th { "Kept" } th { "Why" }
            } }
            tbody { @for stage in &record.stages { tr {
                td { span class={ "dot d-" (svg::role_class(role(stage))) } {} (stage.name) }
                td { (time::short(stage.started_ns)) }
                td.r { (time::length(stage.seconds)) }
                td.r { (estimate(stage.cpu_pct, 1)) }
                td.r { (estimate(stage.wait_per_ran, 3)) }
                td.r { (estimate(stage.fulfilment, 3)) @if stage.fulfilment_estimated { span.iv { "estimated" } } }
                td { (match stage.kept { Some(true) => "kept", Some(false) => "taken back", None => "" }) }
                td { (stage.reason()) }
            } } }
        } } }
    }
}

fn changes(data: &RunPage) -> Markup {
    html! {
        h2 { "Changes" }
        @if data.changes.is_empty() { p { "None were made." } } @else { div.wide { table id="changes" {
            thead { tr {
                th { "At (UTC)" } th { "Target" } th { "Property" } th { "From" } th { "To" } th { "Why" } th { "Measured effect" } th { "Taken back" }
            } }
            tbody { @for (change, undone) in &data.changes { tr {
                td { (time::short(change.at_ns)) } td { (change.target()) } td { (change.knob) } td { (change.from) }
                td { (change.to) } td { (change.why) } td { (change.effect.as_deref().unwrap_or("?")) }
                td { (undone.map_or_else(|| "not while it was recorded".to_owned(), time::short)) }
            } } }
        } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_take_turns_are_one_band() {
        let stage = |name: &str, started_ns, seconds| Stage {
            name: name.into(),
            started_ns,
            seconds,
            ..Stage::default()
        };
        let stages = vec![
            stage("trial kernel default", 2_000_000_000, 7.5),
            stage("trial batch", 2_000_000_000, 2.5),
            stage("batch", 12_000_000_000, 30.0),
        ];
        let record = RunRecord { started_ns: 1_000_000_000, stages, ..RunRecord::default() };
        let bands: Vec<_> =
            bands(&record).into_iter().map(|band| (band.name, band.start_s, band.seconds)).collect();
        let trial = "trial of kernel default | batch".to_owned();
        assert_eq!(bands, [(trial, 1.0, 10.0), ("batch".to_owned(), 11.0, 30.0)]);
    }
}
