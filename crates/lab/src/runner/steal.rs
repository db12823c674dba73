//! The steal emulator of a cell: a thread that takes from one tenant, and its trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use evenkeel_experiment::file::StealSpec;
use evenkeel_experiment::record::{StealPoint, StealRecord};
use evenkeel_model::credit::Meter;

use super::RunError;
use super::groups::TenantGroup;
use crate::steal::{StealEmulator, TICK, Tick};
use evenkeel_linux::group::Cgroup;
use evenkeel_workload::burn::{duration_ns, monotonic_ns, no_timer_slack, sleep_until, thread_cpu_ns};

/// Points kept of the trace.
const POINTS: usize = 400;

/// A running steal emulator; ended on drop.
#[derive(Debug)]
pub(super) struct StealThread {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<(StealRecord, f64)>>,
}

impl StealThread {
    /// Begins at an instant of `CLOCK_MONOTONIC`. `limit_pct` is the tenant's own quota.
    pub fn start(
        spec: &StealSpec,
        limit_pct: Option<f64>,
        group: Arc<TenantGroup>,
        vcpu: Cgroup,
        instant: u64,
    ) -> Result<Self, RunError> {
        let over = Arc::new(AtomicBool::new(false));
        let (spec, flag) = (spec.clone(), Arc::clone(&over));
        let limit = limit_pct.map(|pct| pct / 100.0);
        let thread = std::thread::Builder::new()
            .name("lab-steal".into())
            .spawn(move || steal(&spec, limit, &group, &vcpu, instant, &flag))
            .map_err(|e| RunError::system("cannot start a thread", e))?;
        Ok(Self { over, thread: Some(thread) })
    }

    /// Ends it: what it did, and the CPU time that took, seconds.
    pub fn finish(mut self) -> Option<(StealRecord, f64)> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for StealThread {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn steal(
    spec: &StealSpec,
    limit: Option<f64>,
    group: &TenantGroup,
    vcpu: &Cgroup,
    instant: u64,
    over: &AtomicBool,
) -> (StealRecord, f64) {
    no_timer_slack();
    let mut emulator = StealEmulator::new(spec.rule, spec.time_scale);
    let mut record = StealRecord {
        rule: spec.rule,
        time_scale: spec.time_scale,
        credits: emulator.meter().credits().map(|credits| (credits, credits)),
        ..StealRecord::default()
    };
    let mut trace = Trace::default();
    emulator.begin(vcpu, 0, limit);
    sleep_until(instant);
    let mut used = group.usage_ns().unwrap_or(0);
    emulator.begin(vcpu, used, limit);
    let mut at = instant;
    while !over.load(Ordering::Relaxed) {
        sleep_until(at + duration_ns(TICK));
        at = monotonic_ns();
        used = group.usage_ns().unwrap_or(used);
        let tick = emulator.tick(Some(vcpu), used, limit);
        record.demanded_s += tick.demanded_s;
        record.given_s += tick.given_s;
        record.stolen_s += tick.demanded_s - tick.given_s;
        record.punished_s += if tick.throttled { tick.seconds } else { 0.0 };
        trace.add((at - instant) as f64 / 1e9, &tick, emulator.meter());
    }
    if let (Some((_, last)), Some(credits)) = (&mut record.credits, emulator.meter().credits()) {
        *last = credits;
    }
    record.trace = trace.points;
    (record, thread_cpu_ns() as f64 / 1e9)
}

/// The trace, coarser the longer it gets.
#[derive(Debug, Default)]
struct Trace {
    points: Vec<StealPoint>,
    /// Ticks in a point; 0 is the beginning.
    every: u32,
    ticks: u32,
    seconds: f64,
    demanded_s: f64,
    given_s: f64,
}

impl Trace {
    fn add(&mut self, at_s: f64, tick: &Tick, meter: &Meter) {
        self.ticks += 1;
        self.seconds += tick.seconds;
        self.demanded_s += tick.demanded_s;
        self.given_s += tick.given_s;
        if self.ticks < self.every {
            return;
        }
        let pct = |s: f64| 100.0 * s / self.seconds.max(1e-9);
        self.points.push(StealPoint {
            at_s,
            demanded_pct: pct(self.demanded_s),
            given_pct: pct(self.given_s),
            level: meter.level(),
            punishing: meter.throttles(),
        });
        *self = Self { points: std::mem::take(&mut self.points), every: self.every, ..Self::default() };
        if self.points.len() >= POINTS {
            self.points = self.points.chunks(2).map(merged).collect();
            self.every = self.every.max(1) * 2;
        }
    }
}

fn merged(pair: &[StealPoint]) -> StealPoint {
    let n = pair.len() as f64;
    let last = pair[pair.len() - 1];
    StealPoint {
        demanded_pct: pair.iter().map(|p| p.demanded_pct).sum::<f64>() / n,
        given_pct: pair.iter().map(|p| p.given_pct).sum::<f64>() / n,
        ..last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::credit::Rule;

    #[test]
    fn a_long_trace_stays_short() {
        let meter = Meter::new(Rule::None);
        let mut trace = Trace::default();
        for n in 0..10_000 {
            let tick = Tick { seconds: 0.01, demanded_s: 0.01, given_s: 0.005, throttled: false };
            trace.add(f64::from(n) * 0.01, &tick, &meter);
        }
        assert!(trace.points.len() <= POINTS && trace.points.len() > POINTS / 4, "{}", trace.points.len());
        assert!(
            trace
                .points
                .iter()
                .all(|p| (p.demanded_pct - 100.0).abs() < 1e-6 && (p.given_pct - 50.0).abs() < 1e-6)
        );
        assert!(trace.points.windows(2).all(|w| w[0].at_s < w[1].at_s));
    }
}
