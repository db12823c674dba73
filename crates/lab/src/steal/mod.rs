//! The steal emulator: takes from a cgroup what a hypervisor would steal by a rule ([`evenkeel_model::credit`]), by a quota.
//!
//! Seen from inside it is the same as stolen CPU without a steal counter: tasks are runnable, neither their own limit nor
//! other programs keep them from running, and they do not run.
//!
//! * *Wanted*: what was used; and while the quota holds tasks back, all they may want: a CPU, or their own limit. A guest's
//!   limit counts stolen time as used, so under a limit of 30 % a throttled guest wants 30 %, not 100 %.
//! * *Time* runs faster by `time_scale`: the rule's 100 s are 2 s at a scale of 50.

use std::time::Duration;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_linux::cgroupfs;
use evenkeel_linux::group::{Cgroup, GroupError};
use evenkeel_model::credit::{Meter, Rule};

use evenkeel_workload::burn::monotonic_ns;

mod victim;

pub use victim::{Victim, VictimCommand};

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(10);

/// Makes the group whose quota takes the CPU, inside one that keeps a limit of its own. On v2 the outer one must enable the
/// cpu controller.
pub fn vcpu_inside(outer: &Cgroup) -> Result<Cgroup, GroupError> {
    Cgroup::make(outer.dir(), "vcpu", outer.is_v2())
}

/// The limit of a group, CPUs; `None` without one.
pub fn limit_of(group: &Cgroup) -> Option<f64> {
    Some(group.quota()?.pct()? / 100.0)
}

/// Times the quota was used up so far.
fn throttled(vcpu: &Cgroup) -> Option<u64> {
    cgroupfs::parse_cpu_stat(&vcpu.text("cpu.stat")?).ok()?.nr_throttled
}

/// What happened between two ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Its length, seconds.
    pub seconds: f64,
    /// CPU time wanted: given and kept back, seconds.
    pub demanded_s: f64,
    /// CPU time given, seconds.
    pub given_s: f64,
    /// Whether the rule kept CPU back.
    pub throttled: bool,
}

/// A rule in force on a cgroup. [`StealEmulator::tick`] is to be called about every [`TICK`].
#[derive(Debug)]
pub struct StealEmulator {
    meter: Meter,
    time_scale: f64,
    quota: CpuQuota,
    /// A write failed and nobody was told since the last that did not.
    failing: bool,
    at_ns: u64,
    used_ns: u64,
    throttled: u64,
    held_until_ns: u64,
}

impl StealEmulator {
    /// The rule with nothing used yet; its time runs `time_scale` times as fast as the clock.
    pub fn new(rule: Rule, time_scale: f64) -> Self {
        Self {
            meter: Meter::new(rule),
            time_scale,
            quota: CpuQuota::UNLIMITED,
            failing: false,
            at_ns: monotonic_ns(),
            used_ns: 0,
            throttled: 0,
            held_until_ns: 0,
        }
    }

    /// Begins now: what was used before (nanoseconds) does not count. `limit` is the group's own, CPUs.
    pub fn begin(&mut self, vcpu: &Cgroup, used_ns: u64, limit: Option<f64>) {
        self.at_ns = monotonic_ns();
        self.used_ns = used_ns;
        self.throttled = throttled(vcpu).unwrap_or(0);
        self.apply(vcpu, cap(limit));
    }

    /// Sees what was used since the last tick (`used_ns`: in all, nanoseconds), and gives what the rule gives from now on.
    /// `vcpu` is `None` while there is no group to set a quota on.
    pub fn tick(&mut self, vcpu: Option<&Cgroup>, used_ns: u64, limit: Option<f64>) -> Tick {
        let (now, cap) = (monotonic_ns(), cap(limit));
        let throttled = vcpu.and_then(throttled).unwrap_or(self.throttled);
        let dt = now.saturating_sub(self.at_ns).max(1) as f64 / 1e9;
        let given_s = used_ns.saturating_sub(self.used_ns) as f64 / 1e9;
        if throttled > self.throttled {
            // Counted at the end of a period: it holds for that one and the next.
            self.held_until_ns = now + 2 * self.quota.period_usec * 1000;
        }
        let held = self.meter.throttles() && now < self.held_until_ns;
        // Beyond one CPU there is no more to want: the instance has one.
        let demanded_s = if held { (cap * dt).max(given_s) } else { given_s }.min(dt);
        let given_s = given_s.min(demanded_s);
        let tick = Tick { seconds: dt, demanded_s, given_s, throttled: self.meter.throttles() };
        self.meter.pass(demanded_s / dt, given_s / dt, dt * self.time_scale);
        (self.at_ns, self.used_ns, self.throttled) = (now, used_ns, throttled);
        if let Some(vcpu) = vcpu {
            self.apply(vcpu, cap);
        }
        tick
    }

    /// The rule's state.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Lifts the quota in force.
    pub fn release(&mut self, vcpu: &Cgroup) {
        self.set(vcpu, CpuQuota::UNLIMITED);
    }

    fn apply(&mut self, vcpu: &Cgroup, cap: f64) {
        let share = self.meter.given(cap);
        let keeps = self.meter.throttles() && share < cap;
        self.set(vcpu, if keeps { quota_of(share) } else { CpuQuota::UNLIMITED });
    }

    fn set(&mut self, vcpu: &Cgroup, quota: CpuQuota) {
        if quota == self.quota {
            return;
        }
        // On v1 the groups below are those of `exec`, which takes back what it was allowed as soon as it can.
        if let (false, Some(pct)) = (vcpu.is_v2(), quota.pct()) {
            vcpu.lower_below(pct);
        }
        match vcpu.set_quota(&quota) {
            Ok(()) => (self.quota, self.failing) = (quota, false),
            // Tried again at the next tick: v1 refuses a group more than its parent has at the moment.
            Err(error) if !self.failing => {
                tracing::warn!("steal emulator: {error}");
                self.failing = true;
            }
            Err(_) => {}
        }
    }
}

/// The most that can be wanted.
fn cap(limit: Option<f64>) -> f64 {
    limit.unwrap_or(1.0).min(1.0)
}

/// A share as quota and period: the kernel takes no quota below 1 ms and no period above 1 s.
fn quota_of(share: f64) -> CpuQuota {
    let period = (1_000.0 / share.max(1e-9)).clamp(10_000.0, 1_000_000.0).round();
    let quota = (share * period).round().max(1_000.0);
    CpuQuota { quota_usec: Limit::Value(quota as u64), period_usec: period as u64, burst_usec: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
