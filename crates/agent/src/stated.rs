//! What the user states: who is promised what, which labels count, whose waits must not grow.

use evenkeel_policy::guarantee::{CpuAmount, Reservation};
use evenkeel_policy::protect::LatencyTarget;

use crate::scope::Scope;
use crate::slo::RequestSlo;
use crate::trusted::Trusted;

/// Label of a container and annotation of a pod that promise a share, such as `40%`.
pub const CPU_LABEL: &str = "evenkeel.io/cpu-guarantee";
/// Label of a container and annotation of a pod that promise short waits, such as `2ms`.
pub const WAIT_LABEL: &str = "evenkeel.io/wait-p99";

evenkeel_base::named! {
/// Where a promise was stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Config = "config",
    Label = "label",
    Annotation = "annotation",
}
}

/// A promise and whom it is made to.
#[derive(Debug, Clone)]
pub struct Guarantee {
    /// The scope as stated: its name in messages.
    pub name: String,
    pub scope: Scope,
    pub promise: Reservation,
    /// Where it was stated.
    pub source: Source,
}

/// All promises of a run.
#[derive(Debug, Clone, Default)]
pub struct Guarantees {
    /// Stated in the configuration, in order: earlier ones are admitted first.
    pub stated: Vec<Guarantee>,
    /// CPU that is not promised to anybody.
    pub reserved: Option<CpuAmount>,
    /// Which labels of containers and annotations of pods count; none unless the host's owner says so.
    pub labels: Option<LabelRules>,
    /// Keep promises only: no trials of anything else.
    pub only: bool,
    /// Whether tasks can have a slice of their own here (Linux 6.12); found out by the agent.
    pub task_slice: bool,
    /// Whether the user allows real-time classes: they are offered, never set.
    pub realtime: bool,
}

/// Labels and annotations that count.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelRules {
    /// Whose count.
    pub trusted: Trusted,
    /// Most that one of them may promise.
    pub max: CpuAmount,
    /// Most that all of them may promise together.
    pub total: Option<CpuAmount>,
    /// Shortest wait that may be promised, nanoseconds; none may without it.
    pub wait_p99_ns: Option<u64>,
}

impl LabelRules {
    /// Whether so much may be promised, with what others were promised already; percent of one CPU.
    pub(crate) fn amount(&self, promise: &Reservation, cpus: u32, before_pct: f64) -> Result<f64, String> {
        let pct = promise.cpu.map_or(0.0, |amount| amount.pct(cpus));
        if pct > self.max.pct(cpus) {
            return Err(format!("[labels] allows {} at most", self.max));
        }
        if let Some(total) = self.total.filter(|total| before_pct + pct > total.pct(cpus)) {
            return Err(format!("[labels] allows {total} to all labels together"));
        }
        match (promise.wait_p99_ns, self.wait_p99_ns) {
            (Some(_), None) => Err("[labels] allows no promised waits".to_owned()),
            (Some(asked), Some(least)) if asked < least => {
                Err(format!("[labels] allows waits of {} ms at least", least as f64 / 1e6))
            }
            _ => Ok(pct),
        }
    }
}

/// Somebody whose waits must not grow while the others are evened out.
#[derive(Debug, Clone)]
pub struct Protected {
    /// Its tasks. They are never changed.
    pub scope: Scope,
    pub protection: LatencyTarget,
    /// Where it counts its requests; `None`: it is judged by its waits.
    pub slo: Option<RequestSlo>,
}
