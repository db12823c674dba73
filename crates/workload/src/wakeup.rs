//! `wakeup`: is woken by a timer at instants set beforehand, and measures how late it runs: the wake-up figures of
//! schbench, the kernel developers' benchmark of the scheduler. An event is one wake-up with its work (a request).
//!
//! ```text
//! due      |     |    |      |       instants of an open loop, drawn beforehand
//! woken    |~##  |~~~~##|~## |~##    ~ latency, from the instant that was due; # work, a share of the period
//! ```
//!
//! What comes while it still works is late by that: nothing is left out because the load was kept waiting (Tene's
//! "coordinated omission"). What was due and not begun a second after the end counts with the time it has waited.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::burn::{duration_ns, monotonic_ns};
use crate::duty::{Machine, Periods, parse_percent};
use crate::load::{Context, Counted, FlowCounts, FlowReport, LoadError};

/// Shortest period: a wake-up costs a few microseconds.
pub(crate) const SHORTEST: Duration = Duration::from_micros(20);

/// Most work, percent of the period: beyond 100 the load falls behind more and more, which is for trying that out.
const MOST_PCT: f64 = 10_000.0;

/// How long after the end what was due before it is still done, nanoseconds.
pub(crate) const LINGER_NS: u64 = 1_000_000_000;

/// Parameters.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Wakeup {
    /// Mean time between two wake-ups of a thread.
    #[serde(rename = "period_s", with = "crate::burn::seconds")]
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = humantime::parse_duration)]
    pub period: Duration,
    /// CPU time of the work at each wake-up, percent of the period; beyond 100 it falls behind.
    #[arg(long, value_name = "P", default_value_t = 10.0, value_parser = parse_percent)]
    pub percent: f64,
    /// How far each period is drawn from the given one, percent of it, 0 to 100.
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0, value_parser = parse_percent)]
    pub jitter: f64,
    /// Seed of the periods' random numbers; the same seed gives the same periods.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What its threads measured.
    #[arg(skip)]
    #[serde(skip)]
    counted: Counted,
}

impl Wakeup {
    /// With work of `percent` of the period.
    pub fn new(period: Duration, percent: f64) -> Self {
        Self { period, percent, jitter: 50.0, seed: 1, counted: Counted::default() }
    }
}

/// Whether a schedule can be kept: what `check` says of it.
pub(crate) fn check_schedule(period: Duration, jitter: f64) -> Result<(), String> {
    if period < SHORTEST {
        return Err(format!("--period {period:?}: at least {SHORTEST:?}"));
    }
    if !(0.0..=100.0).contains(&jitter) {
        return Err(format!("--jitter {jitter}: from 0 to 100 percent"));
    }
    Ok(())
}

/// Whether what was due at an instant is still done, although the load is over: its time is up, and not for long.
pub(crate) fn still_done(context: &Context<'_>, due_ns: u64) -> bool {
    let lingers = |end: u64| due_ns < end && monotonic_ns() < end.saturating_add(LINGER_NS);
    !context.stopped() && context.deadline_ns().is_some_and(lingers)
}

/// Until when what is due counts: the end of the load, or now where it was stopped before.
pub(crate) fn counted_until(context: &Context<'_>, now_ns: u64) -> u64 {
    context.deadline_ns().unwrap_or(now_ns).min(now_ns)
}

impl Workload for Wakeup {
    fn check(&self) -> Result<(), String> {
        if !(0.0..=MOST_PCT).contains(&self.percent) {
            return Err(format!("--percent {}: from 0 to {MOST_PCT} percent of the period", self.percent));
        }
        check_schedule(self.period, self.jitter)
    }

    fn wanted_pct(&self) -> Option<f64> {
        Some(self.percent)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let (thread, threads) = (context.thread(), context.threads().max(1));
        let mut periods = Periods::new(self.period, self.jitter, self.percent, (self.seed, thread));
        let mut counts = FlowCounts::default();
        // Threads are not due at one instant, where they would be in each other's way.
        let apart = duration_ns(self.period) / u64::from(threads) * u64::from(thread);
        let mut due = monotonic_ns() + apart;
        let mut all_claimed = false;
        for period in periods.by_ref() {
            if context.bounded() && !context.claim() {
                all_claimed = true;
                break;
            }
            context.sleep(due);
            if context.over() && !still_done(context, due) {
                break;
            }
            counts.done(monotonic_ns().saturating_sub(due));
            Machine::burn(context, period.work_ns);
            context.done(1);
            due += period.length_ns.max(1);
        }
        let now = monotonic_ns();
        while !all_claimed && due < counted_until(context, now) {
            counts.unanswered(now - due);
            due += periods.next().map_or(u64::MAX, |period| period.length_ns.max(1));
        }
        self.counted.add(thread, counts);
        Ok(())
    }

    fn flows(&self) -> Option<FlowReport> {
        Some(self.counted.report())
    }

    fn arguments(&self) -> Vec<String> {
        vec![
            "wakeup".into(),
            format!("--period={}", humantime::format_duration(self.period)),
            format!("--percent={}", self.percent),
            format!("--jitter={}", self.jitter),
            format!("--seed={}", self.seed),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::load::{LoadSpec, run};
    use std::sync::atomic::AtomicBool;

    fn measured(wakeup: Wakeup, threads: u32, seconds: f64) -> crate::load::LoadReport {
        let mut spec = LoadSpec::new(Kind::Wakeup(wakeup)).lasting(Duration::from_secs_f64(seconds));
        spec.common.threads = Some(threads);
        run(&spec, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn every_instant_that_was_due_is_counted_once() {
        let report = measured(Wakeup { jitter: 0.0, ..Wakeup::new(Duration::from_millis(2), 1.0) }, 2, 0.2);
        let flows = report.flows.unwrap();
        assert_eq!(flows.flows.len(), 2);
        let done: u64 = flows.flows.iter().map(|flow| flow.transactions).sum();
        assert_eq!(done, report.events);
        // 100 of the first thread; the second begins half a period later. A late start takes some away.
        let due = done + flows.unanswered();
        assert!((1..=201).contains(&due), "{due}");
        let all = flows.latency.unwrap();
        assert!(all.p50_usec <= all.p99_usec && Some(all.p99_usec) <= all.p999_usec, "{all:?}");
    }

    /// One that only asked when it was awake would show two latencies near 0 here, and hide the wait.
    #[test]
    fn what_came_while_it_was_kept_busy_counts_from_when_it_was_due() {
        // Work of 100 periods at each wake-up: from the second on each is later than the one before, and most are never done.
        let wakeup = Wakeup { jitter: 0.0, ..Wakeup::new(Duration::from_millis(2), 10_000.0) };
        let flows = measured(wakeup, 1, 0.2).flows.unwrap();
        let (done, unanswered) = (flows.flows[0].transactions, flows.unanswered());
        assert!(unanswered > 3 * done, "{done} and {unanswered}");
        // All but the first wait for at least one such work, most for several.
        assert!(flows.latency.unwrap().p50_usec >= 190_000.0, "{:?}", flows.latency);
    }

    #[test]
    fn a_number_of_events_is_kept_to_and_more_were_not_asked_for() {
        // It falls behind: when all are claimed, the next would be due.
        let mut spec = LoadSpec::new(Kind::Wakeup(Wakeup::new(Duration::from_millis(1), 300.0)));
        spec.common.events = Some(20);
        spec.common.threads = Some(3);
        let report = run(&spec, &AtomicBool::new(false)).unwrap();
        assert_eq!((report.events, report.flows.unwrap().unanswered()), (20, 0));
    }

    #[test]
    fn what_was_due_in_time_is_done_after_it() {
        // Twice as much as fits: the second half is done after the end.
        let wakeup = Wakeup { jitter: 0.0, ..Wakeup::new(Duration::from_millis(2), 200.0) };
        let report = measured(wakeup, 1, 0.1);
        assert_eq!(report.wanted_pct, Some(200.0), "not what fits");
        let flows = report.flows.unwrap();
        assert!(report.real_s > 0.1 && flows.flows[0].transactions > flows.unanswered(), "{flows:?}");
    }

    #[test]
    fn a_schedule_that_cannot_be_kept_is_refused() {
        let with = |period_us, percent, jitter| {
            Wakeup { jitter, ..Wakeup::new(Duration::from_micros(period_us), percent) }.check()
        };
        assert_eq!(with(100, 10.0, 50.0), Ok(()));
        for (wrong, part) in [
            (with(1, 10.0, 50.0), "--period"),
            (with(100, -1.0, 50.0), "--percent"),
            (with(100, 1.0, -1.0), "--jitter"),
        ] {
            assert!(wrong.as_ref().is_err_and(|why| why.contains(part)), "{wrong:?}");
        }
    }
}
