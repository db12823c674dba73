//! The same metrics as `/metrics`, pushed to an OpenTelemetry collector by OTLP over HTTP (`http/protobuf`).
//!
//! A thread of its own draws the page and hands it over; nothing else waits for it. Values are cumulative: a push that is lost
//! costs resolution, and the next one says it all. So what cannot be handed over within its interval is given up.

mod message;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as End, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_linux::sys::wall_ns;

use super::expose::{Labels, Page, Value};
use super::handover::{Counts, Handover, LAST, LOOK, Losses, Receiver, Rules};
use evenkeel_console::{Failure, say};

/// Where collectors take metrics.
pub const PATH: &str = "/v1/metrics";

/// As the specification has it: <https://opentelemetry.io/docs/specs/otlp/#otlphttp-response>.
const RULES: Rules = Rules {
    within: Duration::from_secs(5),
    pauses: &[Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)],
    // An answer that takes everything is empty, one that takes a part has a number and some words.
    most: 16 << 10,
    again: |status| matches!(status, 429 | 502 | 503 | 504),
};

/// A receiver and how often it is handed what there is.
#[derive(Debug, Clone)]
pub struct Target {
    pub receiver: Receiver,
    /// Time between two.
    pub interval: Duration,
}

/// What became of pushes.
#[derive(Debug, Default)]
pub struct Pushed {
    /// What became of what was handed over.
    pub counts: Counts,
    /// Data points that the receiver refused of pushes that it took.
    pub rejected: AtomicU64,
}

/// The thread that pushes.
#[derive(Debug)]
pub struct Otlp {
    pushed: Arc<Pushed>,
    ending: Arc<AtomicBool>,
    end: SyncSender<()>,
    ended: Arc<AtomicBool>,
}

impl Otlp {
    /// Pushes from now on what `draw` draws, if it does; `instance` tells this process from others of this host.
    pub fn start(
        target: Target,
        instance: String,
        draw: impl Fn() -> Option<Page> + Send + 'static,
    ) -> Result<Self, Failure> {
        Self::with(target, RULES, instance, (draw, |text: &str| say!("evenkeel: {text}")))
    }

    fn with(
        Target { receiver, interval }: Target,
        rules: Rules,
        instance: String,
        (draw, say): (impl Fn() -> Option<Page> + Send + 'static, impl Fn(&str) + Send + 'static),
    ) -> Result<Self, Failure> {
        let (pushed, ending, ended) = <(Arc<Pushed>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let handover = Handover { receiver, kind: "application/x-protobuf", rules, ending: ending.clone() };
        let (end, wait) = sync_channel(1);
        let (counted, over) = (pushed.clone(), ended.clone());
        let pusher = Pusher { handover, interval, instance, pushed: counted };
        std::thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || {
                pusher.run(&wait, draw, say);
                over.store(true, Ordering::Relaxed);
            })
            .context("cannot start the thread that pushes metrics")
            .map_err(Failure::Cannot)?;
        Ok(Self { pushed, ending, end, ended })
    }

    /// What became of pushes so far.
    pub fn pushed(&self) -> Arc<Pushed> {
        self.pushed.clone()
    }

    /// Pushes once more, for two seconds at most; at the end.
    pub fn finish(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let _ = self.end.try_send(());
        let until = Instant::now() + LAST;
        while !self.ended.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

struct Pusher {
    handover: Handover,
    interval: Duration,
    instance: String,
    pushed: Arc<Pushed>,
}

impl Pusher {
    fn run(&self, end: &End<()>, draw: impl Fn() -> Option<Page>, say: impl Fn(&str)) {
        let mut starts = Starts::new(wall_ns());
        let mut losses = Losses::new(format!("otlp {}", self.handover.receiver.name()), "pushes of metrics");
        let (mut not_before, mut rejects) = (None::<(Instant, String)>, false);
        let mut next = Instant::now() + self.interval;
        loop {
            let ended = end.recv_timeout(next.saturating_duration_since(Instant::now()));
            let last = !matches!(ended, Err(RecvTimeoutError::Timeout));
            // A host that slept, or a receiver that was slow, is not made up for.
            next = (next + self.interval).max(Instant::now());
            if let Some(page) = draw() {
                not_before = not_before.filter(|(until, _)| *until > Instant::now());
                let answer = match &not_before {
                    Some((_, why)) => Err(why.clone()),
                    None => {
                        let body = message::of_page(&page, &self.instance, &mut starts, wall_ns());
                        self.handover.hand_over(&body, Some(next)).map_err(|refusal| {
                            not_before = refusal.not_before.map(|until| (until, refusal.why.clone()));
                            refusal.why
                        })
                    }
                };
                let counts = &self.pushed.counts;
                let count = if answer.is_ok() { &counts.delivered } else { &counts.dropped };
                count.fetch_add(1, Ordering::Relaxed);
                let dropped = counts.dropped.load(Ordering::Relaxed);
                let why = answer.as_ref().err().map(String::as_str);
                losses.say(dropped, why).iter().for_each(|text| say(text));
                let rejected = answer.map_or(0, |answer| message::rejected(&answer.body));
                self.pushed.rejected.fetch_add(rejected, Ordering::Relaxed);
                if rejected > 0 && !std::mem::replace(&mut rejects, true) {
                    say(&format!(
                        "{}: it refuses data points: {rejected} of a push; further ones are counted only",
                        losses.who
                    ));
                }
            }
            if last {
                return;
            }
        }
    }
}

/// Since when each series counts: from 0 at its start.
///
/// Counters begin with the server, but for those of who came later, or went and came back: these begin after the push before.
#[derive(Debug)]
struct Starts {
    began: u64,
    /// When the last push was drawn.
    before: u64,
    series: HashMap<(&'static str, Labels), (u64, f64)>,
    now: HashMap<(&'static str, Labels), (u64, f64)>,
}

impl Starts {
    fn new(began: u64) -> Self {
        Self { began, before: began, series: HashMap::new(), now: HashMap::new() }
    }

    /// When this series began to count, ns since 1970; it is at this value now.
    fn of(&mut self, name: &'static str, labels: &Labels, value: &Value) -> u64 {
        let value = match value {
            Value::Number(value) => *value,
            Value::Distribution(counts) => counts.all as f64,
        };
        let key = (name, labels.clone());
        let known = self.series.get(&key).filter(|(_, before)| *before <= value);
        let start = known.map_or(self.before, |(start, _)| *start);
        self.now.insert(key, (start, value));
        start
    }

    /// A push of this time is drawn.
    fn drawn(&mut self, at: u64) {
        self.before = at.max(self.began);
        self.series = std::mem::take(&mut self.now);
    }
}

#[cfg(test)]
#[path = "otlp/tests.rs"]
mod tests;
