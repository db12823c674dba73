//! Objectives that services state of their own requests, read from the endpoints at which they count them.
//!
//! Each endpoint is asked by a thread of its own ([`scraper`]), also at the beginning and the end of each window on trial; the
//! loop never waits for an answer. What a page says is checked before it is believed ([`page`]); requests of a time are the
//! difference of the scrapes at its ends ([`log`]).

use std::time::{Duration, Instant};

use evenkeel_base::run::SloStatus;
use evenkeel_linux::sys::wall_ns;
use evenkeel_policy::requests::{RequestTail, RequestTarget, Requests, slow_share};

mod failed;
mod log;
mod page;
pub mod scraped;
mod scraper;
mod stated;

pub(crate) use log::Span;
use scraper::{STUCK, Scraper};
pub use stated::RequestSlo;

/// Time over which a service's requests are judged while settings are in force.
const LATELY: Duration = Duration::from_secs(60);
/// What a scrape without an answer weighs against one with: an endpoint is not trusted from two failures on that are close to
/// each other, and trusted again after as many answers as make up for them.
const FAILURE: u32 = 2;
const NOT_TRUSTED: u32 = 4;

/// Requests that are shown to be slow more often than they may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BrokenSlo {
    /// Share of slow requests.
    pub share: f64,
    /// The share that is allowed.
    pub limit: f64,
}

/// What is known of one service's requests.
#[derive(Debug)]
pub(crate) struct SloReader {
    slo: RequestSlo,
    scraper: Scraper,
    /// Scrapes looked at so far.
    seen: u64,
    failures: u32,
    /// Whether the service is judged by what the endpoint says; `None` before there was an answer or a failure that counts.
    trusted: Option<bool>,
    /// Why the last scrape that said nothing did not.
    why: String,
    /// Wall clock, nanoseconds since 1970.
    answered_ns: Option<u64>,
    edge_s: Option<f64>,
    /// Since when the settings in force are.
    since: Instant,
    /// Times since then under other settings.
    held_out: Vec<Span>,
    /// Windows under the baseline in the last trial, and the share of slow requests in them.
    default: Vec<Requests>,
    default_share: Option<f64>,
}

impl SloReader {
    pub fn start(slo: RequestSlo) -> Self {
        Self {
            scraper: Scraper::start(&slo),
            slo,
            seen: 0,
            failures: 0,
            trusted: None,
            why: "it was not asked yet".to_owned(),
            answered_ns: None,
            edge_s: None,
            since: Instant::now(),
            held_out: Vec::new(),
            default: Vec::new(),
            default_share: None,
        }
    }

    /// A window begins or ends.
    pub fn poke(&self) {
        self.scraper.poke();
    }

    /// Whether a decision is being made.
    pub fn hurry(&self, hurried: bool) {
        self.scraper.hurry(hurried);
    }

    /// Looks at new scrapes of a service of this name, and says what changed by them.
    pub fn update(&mut self, name: &str) -> Vec<String> {
        let (scrapes, count) = self.scraper.with(|log| log.after(self.seen));
        self.seen = count;
        let mut notes = Vec::new();
        for scrape in scrapes {
            match scrape.point {
                Ok(point) => {
                    self.failures = self.failures.saturating_sub(1);
                    let age_ns = u64::try_from(scrape.got.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    self.answered_ns = Some(wall_ns().saturating_sub(age_ns));
                    if self.edge_s.replace(point.edge_s) != Some(point.edge_s) {
                        notes.extend(self.edge_words().map(|words| format!("{name}: {words}")));
                    }
                }
                Err(why) => {
                    self.failures = (self.failures + FAILURE).min(NOT_TRUSTED);
                    self.why = why;
                }
            }
            notes.extend(self.trust(name));
        }
        if self.scraper.is_stuck() && self.trusted != Some(false) {
            self.failures = NOT_TRUSTED;
            self.why = format!("there is no answer after {STUCK:?}: is its name resolved?");
            notes.extend(self.trust(name));
        }
        notes
    }

    /// Whether it is judged by what the endpoint says, by the failures so far; says so where that changed.
    fn trust(&mut self, name: &str) -> Option<String> {
        let trusted = match self.failures {
            0 => Some(true),
            NOT_TRUSTED.. => Some(false),
            _ => self.trusted,
        };
        let before = std::mem::replace(&mut self.trusted, trusted);
        let Self { slo: RequestSlo { endpoint, .. }, why, .. } = self;
        match (before, trusted) {
            (Some(true) | None, Some(false)) => {
                Some(format!("{name} is judged by its waits: {endpoint} of its SLO says nothing: {why}"))
            }
            (Some(false), Some(true)) => {
                Some(format!("{name} is judged by its requests again: {endpoint} of its SLO answers"))
            }
            _ => None,
        }
    }

    /// Which bucket stands for the bound, where none ends at it.
    fn edge_words(&self) -> Option<String> {
        let (edge_s, target) = (self.edge_s?, self.slo.target());
        if page::is_bound(edge_s, target.bound_s) {
            return None;
        }
        let edge = RequestTarget { bound_s: edge_s, ..target }.bound_words();
        let (bound, histogram) = (target.bound_words(), &self.slo.histogram);
        Some(if edge_s < target.bound_s {
            format!(
                "no bucket of {histogram} ends at {bound}: requests beyond {edge} count as slow, so that none that is \
                 beyond {bound} passes for a quick one"
            )
        } else {
            format!(
                "no bucket of {histogram} ends at {bound} or below: of requests up to {edge} none counts as slow"
            )
        })
    }

    /// Requests of a window that ended; `None` until that is known.
    pub fn between(&self, span: Span) -> Option<Option<Requests>> {
        self.scraper.with(|log| log.between(span, Instant::now()))
    }

    /// A trial ended: these were the windows under the baseline, where there were any, and other settings are in force.
    pub fn decided(&mut self, default: Vec<Requests>) {
        if !default.is_empty() {
            self.default_share = slow_share(&default);
            self.default = default;
        }
        self.since = Instant::now();
        self.held_out.clear();
    }

    /// What happened in this time was under other settings than those in force.
    pub fn held_out(&mut self, span: Span) {
        let now = Instant::now();
        self.held_out.retain(|(_, to)| *to + LATELY > now);
        self.held_out.push(span);
    }

    /// Requests of the last minute under the settings in force, from scrape to scrape.
    fn lately(&self) -> Vec<Requests> {
        let since = Instant::now().checked_sub(LATELY).map_or(self.since, |then| then.max(self.since));
        self.scraper.with(|log| log.since(since, &self.held_out))
    }

    /// What it promises, as it is counted: the bucket's edge is the bound.
    pub fn target(&self) -> RequestTarget {
        let target = self.slo.target();
        RequestTarget { bound_s: self.edge_s.unwrap_or(target.bound_s), ..target }
    }

    /// Whether the settings in force are shown, by this evidence, to make more requests slow than the limit allows.
    pub fn shown_broken(&self, wait_factor: f64, evidence: f64) -> Option<BrokenSlo> {
        if self.trusted != Some(true) {
            return None;
        }
        let (lately, target) = (self.lately(), self.slo.target());
        let mut tail = RequestTail::default();
        self.default.iter().for_each(|requests| tail.add(Some(*requests), false));
        lately.iter().for_each(|requests| tail.add(Some(*requests), true));
        let limit = target.limit(self.default_share, wait_factor);
        let growth = if limit > target.slow_share { wait_factor } else { 1.0 };
        // Harm takes the square of the evidence that is asked for.
        let open = tail.doubt(target, growth, evidence.sqrt())?;
        (open.proved && open.after > limit).then_some(BrokenSlo { share: open.after, limit })
    }

    pub fn status(&self, wait_factor: f64) -> SloStatus {
        let (lately, target) = (self.lately(), self.slo.target());
        let all: f64 = lately.iter().map(|requests| requests.all).sum();
        let share = slow_share(&lately);
        let limit = target.limit(self.default_share, wait_factor);
        let why = match self.trusted {
            Some(true) if all >= target.least() => None,
            Some(true) => Some(format!(
                "{all:.0} requests in the last {:.0} s under the settings in force: it takes {:.0} to tell",
                LATELY.as_secs_f64(),
                target.least()
            )),
            Some(false) | None => Some(self.why.clone()),
        };
        let kept = share.filter(|_| why.is_none()).map(|share| share <= target.slow_share);
        let (mut counted, failed) = self.scraper.counted();
        let all_counted = counted.pop().map(|(_, all)| all);
        SloStatus {
            endpoint: self.slo.endpoint.clone(),
            histogram: self.slo.histogram.clone(),
            quantile: self.slo.quantile,
            bound_ms: 1000.0 * self.slo.bound_s,
            edge_ms: self.edge_s.map(|edge| 1000.0 * edge),
            slow_share: share,
            default_slow_share: self.default_share,
            limit_share: limit,
            requests: (!lately.is_empty()).then_some(all),
            answered_ns: self.answered_ns,
            kept,
            why: why.unwrap_or_else(|| self.edge_words().unwrap_or_default()),
            counted: all_counted,
            counted_within: counted,
            failed: failed.filter(|_| all_counted.is_some()),
        }
    }
}

/// Windows that ended and whose requests are not known yet, each with what it was.
#[derive(Debug)]
pub(crate) struct Pending<T>(Vec<(Span, T)>);

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Pending<T> {
    /// A window ended.
    pub fn add(&mut self, span: Span, what: T) {
        self.0.push((span, what));
    }

    /// Those that are known by now, with what `of` knows of each.
    pub fn known<R>(&mut self, of: impl Fn(Span) -> Option<R>) -> Vec<(T, R)> {
        let (mut known, mut left) = (Vec::new(), Vec::new());
        for (span, what) in self.0.drain(..) {
            match of(span) {
                Some(result) => known.push((what, result)),
                None => left.push((span, what)),
            }
        }
        self.0 = left;
        known
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::reader_of;
