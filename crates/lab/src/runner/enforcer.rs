//! Plays the hypervisor of one tenant from outside: measures what it wants, and keeps back what a rule steals, by the
//! quota of a cgroup inside the tenant's own.
//!
//! * *Wanted*: what it used; and while a quota holds it back, all it may want: a CPU, or its own limit. A guest's limit
//!   counts stolen time as used, so under a limit of 30 % a punished guest wants 30 %, not 100 %.
//! * *Time* runs faster by `time_scale`: the rule's 100 s are 2 s at a scale of 50. A tick is 10 ms of the host's time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_model::credit::Meter;
use evenkeel_model::laboratory::Enforcer;

use super::RunError;
use super::groups::TenantGroup;
use crate::burn::{monotonic_ns, no_timer_slack, sleep_until, thread_cpu_ns};
use crate::record::{EnforcerPoint, EnforcerRecord};

/// Length of a tick.
const TICK_NS: u64 = 10_000_000;
/// Points kept of the trace.
const POINTS: usize = 400;

/// A running enforcer; ended on drop.
#[derive(Debug)]
pub(super) struct Enforcement {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<(EnforcerRecord, f64)>>,
}

impl Enforcement {
    /// Begins at an instant of `CLOCK_MONOTONIC`; before it nothing is kept back. `limit_pct` is the tenant's own
    /// quota.
    pub fn start(
        enforcer: &Enforcer,
        limit_pct: Option<f64>,
        group: Arc<TenantGroup>,
        instant: u64,
    ) -> Result<Self, RunError> {
        let over = Arc::new(AtomicBool::new(false));
        let (enforcer, flag) = (enforcer.clone(), Arc::clone(&over));
        let thread = std::thread::Builder::new()
            .name("lab-enforcer".into())
            .spawn(move || enforce(&enforcer, limit_pct, &group, instant, &flag))
            .map_err(|e| RunError::system("cannot start a thread", e))?;
        Ok(Self { over, thread: Some(thread) })
    }

    /// Ends it: what it did, and the CPU time that took, seconds.
    pub fn finish(mut self) -> Option<(EnforcerRecord, f64)> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn enforce(
    enforcer: &Enforcer,
    limit_pct: Option<f64>,
    group: &TenantGroup,
    instant: u64,
    over: &AtomicBool,
) -> (EnforcerRecord, f64) {
    no_timer_slack();
    let cap = limit_pct.map_or(1.0, |pct| (pct / 100.0).min(1.0));
    let mut meter = Meter::new(enforcer.rule);
    let mut record = EnforcerRecord {
        rule: enforcer.rule,
        time_scale: enforcer.time_scale,
        demanded_s: 0.0,
        given_s: 0.0,
        stolen_s: 0.0,
        punished_s: 0.0,
        credits: meter.credits().map(|credits| (credits, credits)),
        trace: Vec::new(),
    };
    let mut trace = Trace::default();
    let mut quota = Quota::default();
    quota.set(group, &meter, cap);
    sleep_until(instant);
    let (mut at, mut usage, mut throttled) =
        (instant, group.usage_ns().unwrap_or(0), group.vcpu_throttled().unwrap_or(0));
    let mut held_until = 0;
    while !over.load(Ordering::Relaxed) {
        sleep_until(at + TICK_NS);
        let now = monotonic_ns();
        let (usage_now, throttled_now) =
            (group.usage_ns().unwrap_or(usage), group.vcpu_throttled().unwrap_or(throttled));
        let dt = now.saturating_sub(at).max(1) as f64 / 1e9;
        let given_s = usage_now.saturating_sub(usage) as f64 / 1e9;
        if throttled_now > throttled {
            // Counted at the end of a period: it holds for that one and the next.
            held_until = now + 2 * quota.period_usec * 1000;
        }
        let held = meter.throttles() && now < held_until;
        // Beyond one CPU there is no more to want: the instance has one.
        let demanded_s = if held { (cap * dt).max(given_s) } else { given_s }.min(dt);
        let given_s = given_s.min(demanded_s);
        record.demanded_s += demanded_s;
        record.given_s += given_s;
        record.stolen_s += demanded_s - given_s;
        record.punished_s += if meter.throttles() { dt } else { 0.0 };
        meter.pass(demanded_s / dt, given_s / dt, dt * enforcer.time_scale);
        trace.add((now - instant) as f64 / 1e9, dt, demanded_s, given_s, &meter);
        quota.set(group, &meter, cap);
        (at, usage, throttled) = (now, usage_now, throttled_now);
    }
    if let (Some((_, last)), Some(credits)) = (&mut record.credits, meter.credits()) {
        *last = credits;
    }
    record.trace = trace.points;
    (record, thread_cpu_ns() as f64 / 1e9)
}

/// The quota in force, so that only changes are written.
#[derive(Debug, Default)]
struct Quota {
    usec: Option<u64>,
    period_usec: u64,
}

impl Quota {
    fn set(&mut self, group: &TenantGroup, meter: &Meter, cap: f64) {
        let share = meter.given(cap);
        let quota = if meter.throttles() && share < cap { quota_of(share) } else { CpuQuota::UNLIMITED };
        if (quota.quota_usec.value(), quota.period_usec) == (self.usec, self.period_usec) {
            return;
        }
        match group.set_vcpu_quota(&quota) {
            Ok(()) => (self.usec, self.period_usec) = (quota.quota_usec.value(), quota.period_usec),
            Err(error) => tracing::warn!("enforcer: {error}"),
        }
    }
}

/// A share as quota and period: the kernel takes no quota below 1 ms and no period above 1 s.
pub(crate) fn quota_of(share: f64) -> CpuQuota {
    let period = (1_000.0 / share.max(1e-9)).clamp(10_000.0, 1_000_000.0).round();
    let quota = (share * period).round().max(1_000.0);
    CpuQuota { quota_usec: Limit::Value(quota as u64), period_usec: period as u64, burst_usec: 0 }
}

/// The trace, coarser the longer it gets.
#[derive(Debug, Default)]
struct Trace {
    points: Vec<EnforcerPoint>,
    /// Ticks in a point; 0 is the beginning.
    every: u32,
    ticks: u32,
    seconds: f64,
    demanded_s: f64,
    given_s: f64,
}

impl Trace {
    fn add(&mut self, at_s: f64, dt: f64, demanded_s: f64, given_s: f64, meter: &Meter) {
        self.ticks += 1;
        self.seconds += dt;
        self.demanded_s += demanded_s;
        self.given_s += given_s;
        if self.ticks < self.every {
            return;
        }
        let pct = |s: f64| 100.0 * s / self.seconds.max(1e-9);
        self.points.push(EnforcerPoint {
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

fn merged(pair: &[EnforcerPoint]) -> EnforcerPoint {
    let n = pair.len() as f64;
    let last = pair[pair.len() - 1];
    EnforcerPoint {
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
    fn shares_become_quotas_the_kernel_takes() {
        for share in [0.0005, 0.009, 0.03, 0.1, 0.55, 1.0] {
            let quota = quota_of(share);
            let usec = quota.quota_usec.value().unwrap();
            assert!(usec >= 1000 && (10_000..=1_000_000).contains(&quota.period_usec), "{quota:?}");
            if share >= 0.001 {
                assert!((quota.pct().unwrap() / 100.0 / share - 1.0).abs() < 0.02, "{share}: {quota:?}");
            }
        }
    }

    #[test]
    fn a_long_trace_stays_short() {
        let meter = Meter::new(Rule::None);
        let mut trace = Trace::default();
        for n in 0..10_000 {
            trace.add(f64::from(n) * 0.01, 0.01, 0.01, 0.005, &meter);
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
