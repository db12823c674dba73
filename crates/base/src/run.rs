//! What a run of the loop did: stages, changes, effects. Written by the agent, kept by the store, shown by reports.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::bracketed;
use crate::{PromiseState, TaskId};

/// Name of the settings when nothing of ours is in force.
pub const KERNEL_DEFAULT: &str = "kernel default";

/// A measured value with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// Whether its interval has two ends; that of a single value has none.
    pub fn is_bounded(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// `812 [640, 1030]`; the value alone where a single one shows no interval.
    pub fn in_words(&self, decimals: usize) -> String {
        let number = |value: f64| format!("{value:.decimals$}");
        match self.is_bounded() {
            true => format!("{} {}", number(self.value), bracketed(number(self.low), number(self.high))),
            false => number(self.value),
        }
    }
}

/// An effect of the changes in force, with an interval that holds at every time it is looked at (95 %).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    pub value: f64,
    /// Lower end of the interval; `None` until there is one.
    pub low: Option<f64>,
    /// Upper end of the interval; `None` until there is one.
    pub high: Option<f64>,
    /// Since when it is measured, wall clock, nanoseconds since 1970.
    pub since_ns: u64,
}

/// The effect in one hour of the day.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HourlyEffect {
    /// Hour of the clock, UTC, 0 to 23.
    pub hour: u8,
    /// Blocks under the baseline.
    pub blocks: u64,
    /// CPU got by the scope more than under the baseline, percent of one CPU.
    pub cpu_pct: Effect,
}

/// What the changes in force do, measured against random blocks under the baseline.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EffectNow {
    /// Whether blocks under the baseline say it; otherwise it is as measured at the decision.
    pub held_out: bool,
    /// CPU got by the scope more than under the baseline, percent of one CPU.
    pub cpu_pct: Option<Effect>,
    /// 99th percentile of the waits counted one by one, longer than under the baseline, ms; `None` where none are.
    pub wait_p99_ms: Option<Effect>,
    /// Share of the time that was under the baseline, 0 to 1.
    pub holdout_share: Option<Effect>,
    /// Blocks under the baseline so far.
    pub blocks: u64,
    /// By hour of the clock, those with a block.
    pub by_hour: Vec<HourlyEffect>,
    /// As of when, wall clock, nanoseconds since 1970: what is not held out grows old.
    #[serde(default)]
    pub at_ns: u64,
}

/// What the simulator said beforehand that settings would bring, see `evenkeel_model::predict`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// CPU the scope would get, percent of one CPU.
    pub cpu_pct: f64,
    /// Change of it against the baseline, percent.
    pub cpu_change_pct: Option<f64>,
    /// Time waited per second of CPU.
    pub wait_per_ran: Option<f64>,
}

/// What a stage does with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Tries them.
    Trial,
    /// Watches them in force, until they are taken back.
    Watch,
    /// Takes them over from the run before.
    TakeOver,
}

impl Act {
    /// How names of stages begin, each with its act.
    const WORDS: [(&'static str, Self); 3] =
        [("trial ", Self::Trial), ("watch ", Self::Watch), ("take over ", Self::TakeOver)];
}

/// What a stage is called. Documents and the history have it as text, such as `trial batch+slice`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct StageName {
    /// What is done; `None` where only settings are named.
    pub act: Option<Act>,
    /// Name of the settings.
    pub settings: String,
}

impl From<&str> for StageName {
    fn from(text: &str) -> Self {
        let named = Act::WORDS.into_iter().find_map(|(word, act)| Some((act, text.strip_prefix(word)?)));
        let (act, settings) = named.map_or((None, text), |(act, settings)| (Some(act), settings));
        Self { act, settings: settings.to_owned() }
    }
}

impl From<String> for StageName {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<StageName> for String {
    fn from(name: StageName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Act::WORDS.into_iter().find(|(_, act)| Some(*act) == self.act);
        write!(f, "{}{}", word.map_or("", |(word, _)| word), self.settings)
    }
}

/// One stage of a run: a time during which one set of settings was in force, or a trial of several.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Stage {
    /// What is done, and with which settings.
    pub name: StageName,
    /// Wall clock at the start, nanoseconds since 1970.
    pub started_ns: u64,
    /// How long it was in force and measured, seconds.
    pub seconds: f64,
    /// CPU got by the scope, percent of one CPU.
    pub cpu_pct: Option<Estimate>,
    /// Time the scope's tasks waited per second of CPU they got (`run_delay` / ran).
    pub wait_per_ran: Option<Estimate>,
    /// CPU got / CPU wanted: exact for built-in loads, else the estimate got / (1 - waited fraction).
    pub fulfilment: Option<Estimate>,
    /// Whether `fulfilment` is only the estimate.
    pub fulfilment_estimated: bool,
    /// Whether the settings were kept afterwards; `None` for a stage that decided nothing.
    pub kept: Option<bool>,
    pub why: String,
    /// What was predicted for it; `None` where nothing was.
    // Left out of the history where there is none: runs have thousands of stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

impl Stage {
    /// The decision in words, without the decision itself: [`Stage::kept`] says that.
    pub fn reason(&self) -> &str {
        let reason = self.why.strip_prefix("kept: ").or_else(|| self.why.strip_prefix("taken back: "));
        reason.unwrap_or(&self.why)
    }
}

/// One change made, with what it was before and what came of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// The thread changed; `None` for a cgroup.
    pub task: Option<TaskId>,
    pub comm: Option<String>,
    /// The cgroup changed; `None` for a thread.
    pub group: Option<String>,
    /// Which property, see [`crate::Knob::name`].
    pub knob: String,
    /// Value before, as people read it.
    pub from: String,
    /// Value now.
    pub to: String,
    pub why: String,
    /// Measured effect in words; `None` until measured.
    pub effect: Option<String>,
    /// Wall clock, nanoseconds since 1970.
    pub at_ns: u64,
}

impl ChangeRecord {
    /// Task, cgroup or the host, in words.
    pub fn target(&self) -> String {
        match (&self.task, &self.comm, &self.group) {
            (Some(task), Some(comm), _) => format!("{task} {comm}"),
            (Some(task), None, _) => task.to_string(),
            (None, _, Some(group)) => group.clone(),
            (None, _, None) => "the host".to_owned(),
        }
    }
}

/// A promised share and how it stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GuaranteeStatus {
    /// What it is called: the scope it was stated for, such as `pod:prod/api`.
    pub name: String,
    /// Where it was stated: `config`, `label` (of a container) or `annotation` (of a pod).
    pub source: String,
    /// What is promised, as stated.
    pub promise: String,
    /// CPU promised, percent of one CPU; `None` where only waits are.
    pub promised_pct: Option<f64>,
    /// Longest wait promised for 99 of 100 waits, milliseconds.
    pub promised_wait_p99_ms: Option<f64>,
    /// Whether the CPU promised is meant as `supply` or as `rate`.
    #[serde(default)]
    pub mean: String,
    pub state: PromiseState,
    /// How the last window stands as supply, whatever was meant; `None` until it is judged.
    #[serde(default)]
    pub as_supply: Option<PromiseState>,
    /// How it stands as rate.
    #[serde(default)]
    pub as_rate: Option<PromiseState>,
    /// Points missing of the rate, percent of one CPU; `None` while it is not short.
    #[serde(default)]
    pub rate_short_pct: Option<f64>,
    /// What would raise the rate, while only that is short.
    #[serde(default)]
    pub offers: Vec<String>,
    /// CPU got in the last window, percent of one CPU.
    pub got_pct: Option<f64>,
    /// CPU got, percent of the time in which it was runnable.
    pub while_runnable_pct: Option<f64>,
    /// Time its tasks waited for a CPU, percent of the window.
    pub waited_pct: Option<f64>,
    /// 99th percentile of its waits, milliseconds; `None` where not known.
    pub wait_p99_ms: Option<f64>,
    /// Whether that is an estimate.
    pub wait_p99_estimated: bool,
    /// Where not all promises fit, higher ones come first.
    #[serde(default)]
    pub priority: i32,
    /// Minutes in which it was broken, over the last day.
    pub broken_min_day: Option<f64>,
    /// Tasks that match its scope.
    pub tasks: u32,
    /// By what it is kept, such as `weight of /docker/ab12`.
    pub lever: String,
    pub why: String,
}

/// A protected scope, whose waits must not grow while the others are evened out, and how it stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ProtectedStatus {
    /// What it is called: its scope, such as `container:web`.
    pub name: String,
    /// Bound on the 99th percentile of its waits as stated, milliseconds; `None`: what the baseline has, times the
    /// guard's factor.
    pub bound_ms: Option<f64>,
    /// From where settings are called into question, milliseconds; `None` until known.
    pub limit_ms: Option<f64>,
    /// 99th percentile in the baseline, in the last trial, milliseconds.
    pub default_p99_ms: Option<f64>,
    /// 99th percentile in the last windows under the settings in force, milliseconds; `None` where no task waited.
    pub p99_ms: Option<f64>,
    /// Waits in these windows.
    pub waits: u64,
    /// Whether percentiles are of means for each switch, which are less, rather than of single waits.
    pub estimated: bool,
    /// Tasks that match its scope.
    pub tasks: u32,
    /// How it stands by the bound, or by the limit where none is stated; at risk, not kept, where its waits are means. It is never
    /// refused.
    pub state: PromiseState,
    /// What it promises of its own requests; `None` where it promises nothing of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<SloStatus>,
}

/// A service's promise of its own requests, and how it stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SloStatus {
    /// Where the requests are counted.
    pub endpoint: String,
    /// Name of the histogram.
    pub histogram: String,
    /// Share of the requests that is to be answered within the bound, 0 to 1.
    pub quantile: f64,
    /// The bound, milliseconds.
    pub bound_ms: f64,
    /// The bucket's edge that stands for it, milliseconds; `None` until known.
    pub edge_ms: Option<f64>,
    /// Share of the requests of the last minute, under the settings in force, that took longer, 0 to 1; `None` without any.
    pub slow_share: Option<f64>,
    /// The same in the baseline, in the last trial.
    pub default_slow_share: Option<f64>,
    /// Share from which on settings are called into question, 0 to 1.
    pub limit_share: f64,
    /// Requests of the last minute under the settings in force; `None` where they could not be counted.
    pub requests: Option<f64>,
    /// Time of the last answer that could be read, wall clock, nanoseconds since 1970; `None` before there was one.
    pub answered_ns: Option<u64>,
    /// Whether the promise is kept by the requests counted; `None` where they do not tell.
    pub kept: Option<bool>,
    /// Why the requests do not tell, so that the service is judged by its waits; or which edge stands for the bound.
    pub why: String,
    /// Requests that the endpoint counted since the run began to ask; `None` before the second answer.
    #[serde(default)]
    pub counted: Option<f64>,
    /// Of these, those within each of its bounds but the infinite one, seconds.
    #[serde(default)]
    pub counted_within: Vec<(f64, f64)>,
    /// Of these, those that the server failed to answer; `None` where the histogram does not say how requests ended.
    #[serde(default)]
    pub failed: Option<f64>,
}

/// The limit that was found for the scope under which least CPU is stolen from it, and what was seen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GovernorStatus {
    /// The scope's cgroup; `None` where nothing is governed.
    pub group: Option<String>,
    /// The limit in force, percent of one CPU; `None`: the one that was found, if any.
    pub limit_pct: Option<f64>,
    /// The limit found, percent of one CPU; `None`: there was none.
    pub found_pct: Option<f64>,
    /// Times throttling began.
    pub onsets: u64,
    /// CPU used since, seconds.
    pub used_s: f64,
    /// CPU stolen since of what was wanted within the limits set, seconds.
    pub stolen_s: f64,
    /// What was found, in words.
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SelfCost {
    /// Percent of one CPU over the run; `None` when it could not be read.
    pub cpu_pct: Option<f64>,
    /// Resident memory, bytes.
    pub rss_bytes: Option<u64>,
}

/// Settings that a run took over from the one before it, which was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TakenOver {
    /// How many values.
    pub settings: u64,
    /// Process of the run that proved them.
    pub pid: u32,
    /// When they were proved, wall clock, nanoseconds since 1970.
    pub proved_ns: u64,
    /// When they were taken over, wall clock, nanoseconds since 1970.
    pub at_ns: u64,
}

/// Everything a run did so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunRecord {
    /// Scope as the user gave it.
    pub scope: Vec<String>,
    pub pid: u32,
    /// Wall clock at the start, nanoseconds since 1970.
    pub started_ns: u64,
    /// The scope's fulfilment under the kernel's default.
    pub baseline: Option<Estimate>,
    /// The scope's fulfilment now.
    pub now: Option<Estimate>,
    /// Name of the settings in force; `kernel default` when nothing was changed.
    pub settings: String,
    /// What was done, in order.
    pub stages: Vec<Stage>,
    /// Changes in force.
    pub changes: Vec<ChangeRecord>,
    pub own_cost: SelfCost,
    /// Promised shares and how they stand.
    #[serde(default)]
    pub guarantees: Vec<GuaranteeStatus>,
    /// Protected scopes and how they stand.
    #[serde(default)]
    pub protected: Vec<ProtectedStatus>,
    /// What the changes in force do; `None` while there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect_now: Option<EffectNow>,
    /// The limit against stolen CPU, where one is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorStatus>,
    /// What of the changes in force the run before had proved; `None` once nothing of it is in force any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<TakenOver>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_told_by_its_name_and_written_as_it_was_read() {
        for (text, act, settings) in [
            ("kernel default", None, "kernel default"),
            ("trial batch+slice", Some(Act::Trial), "batch+slice"),
            ("watch batch, refined", Some(Act::Watch), "batch, refined"),
            ("take over batch", Some(Act::TakeOver), "batch"),
            ("trials", None, "trials"),
        ] {
            let name = StageName::from(text);
            assert_eq!((name.act, name.settings.as_str()), (act, settings));
            assert_eq!(name.to_string(), text);
        }
    }
}
