//! Scheduling attributes of a task: class, nice, slice.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A nice value, -20 (most CPU) to 19 (least).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Nice(i8);

/// How many times as much a cgroup should weigh that sleeps much and loses its turn to others, where its tasks cannot have
/// slices of their own: what often, not always, ended the starvation of request and response servers (`docs/tenants.md`,
/// "Groups that lose their turn").
pub const STARVED_LIFT: u64 = 16;

/// Part of what the taker of a turn uses that it is limited to (the same page): reached at once, and hardly felt.
pub const TAKER_PART: f64 = 0.9;

/// Load weight of each nice value, -20 first: the kernel's `sched_prio_to_weight` (`kernel/sched/core.c`).
/// One step is a factor of about 1.25; nice 0 is 1024.
pub const NICE_TO_WEIGHT: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];

impl Nice {
    /// Clamped to -20..=19.
    pub fn new(value: i32) -> Self {
        Self(value.clamp(-20, 19) as i8)
    }

    pub fn get(self) -> i32 {
        i32::from(self.0)
    }

    /// The scheduler's load weight.
    pub fn weight(self) -> u32 {
        NICE_TO_WEIGHT[(self.0 + 20) as usize]
    }

    /// The nice value whose weight is nearest to `weight` by ratio.
    pub fn nearest(weight: f64) -> Self {
        // The table falls: the nearest is one of the two that `weight` lies between, by their geometric mean.
        let weight = weight.max(1e-9);
        let above = NICE_TO_WEIGHT.partition_point(|&w| f64::from(w) > weight);
        let best = match (above.checked_sub(1), NICE_TO_WEIGHT.get(above)) {
            (Some(heavier), Some(&lighter))
                if weight * weight < f64::from(NICE_TO_WEIGHT[heavier]) * f64::from(lighter) =>
            {
                above
            }
            (Some(heavier), _) => heavier,
            (None, _) => 0,
        };
        Self(best as i8 - 20)
    }
}

impl fmt::Display for Nice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The shortest and the longest slice the kernel grants a task, nanoseconds (`sched_setattr(2)`, `__setparam_fair`).
pub const MIN_SLICE_NS: u64 = 100_000;

pub const MAX_SLICE_NS: u64 = 100_000_000;

crate::named! {
/// Scheduling class and policy of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedPolicy {
    /// `SCHED_OTHER`, the default.
    Other = "other",
    Fifo = "fifo",
    Rr = "rr",
    /// `SCHED_BATCH`: like `SCHED_OTHER` but a waking task does not preempt.
    Batch = "batch",
    /// `SCHED_IDLE`: weight 3, preempted by every other fair task.
    Idle = "idle",
    Deadline = "deadline",
    /// `SCHED_EXT`: handled by a BPF scheduler while one is loaded.
    Ext = "ext",
}
}

impl SchedPolicy {
    /// From the kernel's number; `None` for one not known here.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Other,
            1 => Self::Fifo,
            2 => Self::Rr,
            3 => Self::Batch,
            5 => Self::Idle,
            6 => Self::Deadline,
            7 => Self::Ext,
            _ => return None,
        })
    }

    /// The kernel's number.
    pub fn raw(self) -> u32 {
        match self {
            Self::Other => 0,
            Self::Fifo => 1,
            Self::Rr => 2,
            Self::Batch => 3,
            Self::Idle => 5,
            Self::Deadline => 6,
            Self::Ext => 7,
        }
    }

    /// Real-time or deadline: never touched unless the user put them there through us.
    pub fn is_realtime(self) -> bool {
        matches!(self, Self::Fifo | Self::Rr | Self::Deadline)
    }

    /// Handled by the fair class, where nice, slices and weights act.
    pub fn is_fair(self) -> bool {
        matches!(self, Self::Other | Self::Batch | Self::Idle)
    }

    /// Of these, those whose weight is that of their nice value: SCHED_IDLE's is the least, whatever that is (`set_load_weight`,
    /// `kernel/sched/core.c`).
    pub fn has_nice(self) -> bool {
        self.is_fair() && self != Self::Idle
    }
}

/// What `sched_setattr(2)` sets in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SchedAttr {
    pub policy: SchedPolicy,
    /// Nice value (kept by the kernel even while real-time).
    pub nice: Nice,
    /// Real-time priority, 1..=99; 0 for other policies.
    pub rt_priority: u8,
    /// The task's own slice in nanoseconds, 0.1 to 100 ms (Linux 6.12 and later); `None` is the kernel's default. Under
    /// `SCHED_DEADLINE` the time that it may run in each period (the kernel has one field for both).
    pub slice_ns: Option<u64>,
    /// The period of `SCHED_DEADLINE` in nanoseconds, which is its relative deadline, too; `None` under other policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<u64>,
    pub reset_on_fork: bool,
}

impl SchedAttr {
    /// What an ordinary task has.
    pub const DEFAULT: Self = Self {
        policy: SchedPolicy::Other,
        nice: Nice(0),
        rt_priority: 0,
        slice_ns: None,
        period_ns: None,
        reset_on_fork: false,
    };
}

impl fmt::Display for SchedAttr {
    /// Short form: `batch nice 3 slice 100ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        if let (SchedPolicy::Deadline, Some(runtime), Some(period)) =
            (self.policy, self.slice_ns, self.period_ns)
        {
            return write!(f, " {} of each {} ms", runtime as f64 / 1e6, period as f64 / 1e6);
        }
        if self.policy.is_realtime() {
            write!(f, " priority {}", self.rt_priority)?;
        }
        write!(f, " nice {}", self.nice)?;
        match self.slice_ns {
            Some(ns) => write!(f, " slice {}ms", ns as f64 / 1e6),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nice_and_weight_agree_both_ways() {
        for value in -20..=19 {
            let nice = Nice::new(value);
            assert_eq!(Nice::nearest(f64::from(nice.weight())), nice);
        }
        assert_eq!(Nice::new(0).weight(), 1024);
        assert_eq!(Nice::nearest(0.0).get(), 19);
        assert_eq!(Nice::nearest(f64::INFINITY).get(), -20);
        assert_eq!(Nice::nearest(f64::NAN).get(), 19);
        // Between 1024 (nice 0) and 820 (nice 1) the middle by ratio is 916.3.
        assert_eq!((Nice::nearest(916.0).get(), Nice::nearest(917.0).get()), (1, 0));
        assert_eq!(Nice::new(500).get(), 19);
    }

    #[test]
    fn a_deadline_is_shown_with_what_it_may_run() {
        let attr = SchedAttr {
            policy: SchedPolicy::Deadline,
            slice_ns: Some(250_000),
            period_ns: Some(1_000_000),
            ..SchedAttr::DEFAULT
        };
        assert_eq!(attr.to_string(), "deadline 0.25 of each 1 ms");
        // Values that were written before there was a period are read as they were.
        let text = serde_json::to_string(&SchedAttr::DEFAULT).unwrap();
        assert!(!text.contains("period"), "{text}");
        assert_eq!(serde_json::from_str::<SchedAttr>(&text).unwrap(), SchedAttr::DEFAULT);
    }

    #[test]
    fn policies_survive_the_round_trip() {
        for raw in 0..10 {
            if let Some(policy) = SchedPolicy::from_raw(raw) {
                assert_eq!(policy.raw(), raw);
            }
        }
        assert_eq!(SchedPolicy::from_raw(4), None);
    }
}
