//! What was around a cell's tenants: the host, the steal emulator, the model's expectation.

use evenkeel_model::credit::Rule;
use serde::{Deserialize, Serialize};

/// What the host did meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostUse {
    /// CPU time used by all, seconds (user, nice, system, interrupts).
    pub busy_s: Option<f64>,
    /// Stolen from the host by its hypervisor, all CPUs, seconds.
    pub steal_s: Option<f64>,
    /// CPU time of this program itself, the steal emulator's apart, seconds.
    pub harness_cpu_s: Option<f64>,
    /// The same, percent of ONE CPU.
    pub harness_cpu_pct: Option<f64>,
    /// CPU time of the steal emulator, seconds.
    pub enforcer_cpu_s: Option<f64>,
}

impl HostUse {
    /// Books a part of this program's CPU time to the steal emulator.
    pub fn without_emulator(&mut self, cpu_s: f64) {
        self.enforcer_cpu_s = Some(cpu_s);
        if let (Some(own), Some(pct)) = (&mut self.harness_cpu_s, &mut self.harness_cpu_pct)
            && *own > 0.0
        {
            let left = (*own - cpu_s).max(0.0);
            *pct *= left / *own;
            *own = left;
        }
    }
}

/// What the steal emulator did to a cell's tenants.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StealRecord {
    /// The rule, in the source's time.
    pub rule: Rule,
    /// How much faster than the source's time it ran: 50 means that 2 s stand for 100 s.
    pub time_scale: f64,
    /// CPU time wanted from it: given and kept back, seconds.
    pub demanded_s: f64,
    /// CPU time given, seconds.
    pub given_s: f64,
    /// CPU time kept back, seconds.
    pub stolen_s: f64,
    /// Time during which it throttled, seconds.
    pub punished_s: f64,
    /// Credits at start and end, for the rule of credits.
    pub credits: Option<(f64, f64)>,
    /// How it went, at most a few hundred points.
    pub trace: Vec<StealPoint>,
}

/// One point of the steal emulator's trace.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StealPoint {
    /// Seconds from the release.
    pub at_s: f64,
    /// CPU wanted since the last point, percent of ONE CPU.
    pub demanded_pct: f64,
    /// CPU given since the last point, percent of ONE CPU.
    pub given_pct: f64,
    /// What the rule looks at: use over its window (percent), bucket (CPU seconds) or credits.
    pub level: f64,
    /// Whether it throttles.
    pub punishing: bool,
}

/// What the model expects of a tenant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Predicted {
    /// Which model: `simulator` or `credits`; empty where none has a say.
    pub by: String,
    /// Why the other fields are empty.
    pub unknown: Option<String>,
    /// Mean of its runs' events a second.
    pub events_per_s: Option<f64>,
    /// From the release to its end, seconds.
    pub elapsed_s: Option<f64>,
    /// Mean length of a run, seconds.
    pub run_s: Option<f64>,
    /// CPU time got, percent of ONE CPU, until its end.
    pub got_pct: Option<f64>,
    /// Waited for a CPU, all threads, seconds.
    pub waited_s: Option<f64>,
    /// Kept back by the hypervisor's rule, seconds.
    pub stolen_s: Option<f64>,
    /// Credits left at the end.
    pub credits: Option<f64>,
}
