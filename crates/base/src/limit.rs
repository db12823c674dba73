//! Limits and weights of cgroups.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A limit that may be absent. The kernel writes "no limit" as `max`, `-1` or a huge number; here it is
/// [`Limit::Max`], which also orders above every value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit<T> {
    Value(T),
    Max,
}

impl<T> Limit<T> {
    /// The value, if there is a limit.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Max => None,
        }
    }
}

impl<T: fmt::Display> fmt::Display for Limit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Max => f.write_str("max"),
        }
    }
}

/// CPU bandwidth of a cgroup: `cpu.max` and `cpu.max.burst` (v2), `cpu.cfs_*_us` (v1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpuQuota {
    /// CPU time allowed in each period, microseconds.
    pub quota_usec: Limit<u64>,
    /// Length of the period, microseconds (kernel default 100,000).
    pub period_usec: u64,
    /// Unused quota that may be saved up, microseconds.
    pub burst_usec: u64,
}

impl CpuQuota {
    /// Shortest quota and period the kernel takes, microseconds (`min_cfs_quota_period`, `kernel/sched/core.c`).
    pub const LEAST_USEC: u64 = 1_000;
    /// Longest period the kernel takes, microseconds (`max_cfs_quota_period`, the same file).
    pub const LONGEST_USEC: u64 = 1_000_000;
    /// No limit, default period.
    pub const UNLIMITED: Self = Self { quota_usec: Limit::Max, period_usec: 100_000, burst_usec: 0 };

    /// The quota as percent of one CPU; `None` without a limit.
    pub fn pct(&self) -> Option<f64> {
        self.quota_usec.value().map(|quota| 100.0 * quota as f64 / self.period_usec.max(1) as f64)
    }
}

/// cgroup v2 `cpu.weight`, 1..=10000, default 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CpuWeight(u32);

/// cgroup v1 `cpu.shares`, 2..=262144, default 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CpuShares(u32);

impl CpuWeight {
    /// What a new group has.
    pub const DEFAULT: Self = Self(100);

    /// Clamped to what the kernel takes.
    pub fn new(weight: u64) -> Self {
        Self(weight.clamp(1, 10_000) as u32)
    }

    /// The number in `cpu.weight`.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The scheduler's load weight: `DIV_ROUND_CLOSEST(weight * 1024, 100)`, see `cpu_weight_write_u64` in the
    /// kernel's `kernel/sched/core.c`.
    pub fn load_weight(self) -> u64 {
        (u64::from(self.0) * 1024 + 50) / 100
    }
}

impl CpuShares {
    /// What a new group has.
    pub const DEFAULT: Self = Self(1024);

    /// Clamped to what the kernel takes.
    pub fn new(shares: u64) -> Self {
        Self(shares.clamp(2, 262_144) as u32)
    }

    /// The number in `cpu.shares`.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The older conversion, linear from 2..262144 to 1..10000: `1 + (shares - 2) * 9999 / 262142`
    /// (runc before 1.3, crun, Kubernetes' documentation). 1024 shares become 39, well below v2's default of 100.
    pub fn to_weight_linear(self) -> CpuWeight {
        CpuWeight::new(1 + (u64::from(self.0) - 2) * 9999 / 262_142)
    }

    /// The newer conversion of runc 1.3 and later (`opencontainers/cgroups`), through (2,1), (1024,100),
    /// (262144,10000): `ceil(10^((l*l + 125 l) / 612 - 7/34))` with `l = log2(shares)`.
    pub fn to_weight_curve(self) -> CpuWeight {
        match self.0 {
            0..=2 => CpuWeight::new(1),
            262_144.. => CpuWeight::new(10_000),
            shares => {
                let l = f64::from(shares).log2();
                let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
                CpuWeight::new(10f64.powf(exponent).ceil() as u64)
            }
        }
    }
}

/// The scheduler's load weight of a cgroup that is idle as a whole (`cpu.idle`), and of a SCHED_IDLE task: `WEIGHT_IDLEPRIO` in the
/// kernel's `kernel/sched/sched.h`.
pub const IDLE_LOAD_WEIGHT: u64 = 3;

/// The scheduler's load weight that a number of a cgroup's file means: of `cpu.weight` on v2, of `cpu.shares` on v1.
pub fn load_weight(raw: u64, v2: bool) -> u64 {
    if v2 { CpuWeight::new(raw).load_weight() } else { CpuShares::new(raw).get().into() }
}

/// A claim against others, in the words of either cgroup version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuClaim {
    /// `cpu.weight` of v2: 1 to 10000, 100 for everybody.
    Weight(CpuWeight),
    /// `cpu.shares` of v1: 2 to 262144, 1024 for everybody.
    Shares(CpuShares),
}

impl CpuClaim {
    /// The number for `cpu.weight`. Shares are converted so that the scheduler's load weight stays the same
    /// (1024 shares and weight 100 are both a load weight of 1024); container runtimes use curves of their own.
    pub fn weight(self) -> u32 {
        match self {
            Self::Weight(weight) => weight.get(),
            Self::Shares(shares) => CpuWeight::new((u64::from(shares.get()) * 100 + 512) / 1024).get(),
        }
    }

    /// The number for `cpu.shares`, by the same load weight.
    pub fn shares(self) -> u32 {
        match self {
            Self::Weight(weight) => CpuShares::new(weight.load_weight()).get(),
            Self::Shares(shares) => shares.get(),
        }
    }
}

impl fmt::Display for CpuClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "weight {}", weight.get()),
            Self::Shares(shares) => write!(f, "{} shares", shares.get()),
        }
    }
}

impl Serialize for CpuClaim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_conversions_give_the_published_values() {
        let shares = CpuShares::new(1024);
        assert_eq!(shares.to_weight_linear().get(), 39);
        assert_eq!(shares.to_weight_curve().get(), 100);
        assert_eq!(CpuShares::new(0).to_weight_curve().get(), 1);
        assert_eq!(CpuShares::new(u64::MAX).to_weight_curve().get(), 10_000);
        assert_eq!(CpuShares::new(2).to_weight_linear().get(), 1);
        assert_eq!(CpuShares::new(262_144).to_weight_linear().get(), 10_000);
    }

    #[test]
    fn claims_keep_their_load_weight_in_the_other_version() {
        for (weight, shares) in [(100, 1024), (50, 512), (1, 10), (10_000, 102_400)] {
            assert_eq!(CpuClaim::Weight(CpuWeight::new(weight)).shares(), shares);
        }
        for (shares, weight) in [(1024, 100), (512, 50), (2, 1), (262_144, 10_000)] {
            assert_eq!(CpuClaim::Shares(CpuShares::new(shares)).weight(), weight);
        }
    }

    #[test]
    fn default_weight_is_nice_zero() {
        assert_eq!(CpuWeight::DEFAULT.load_weight(), 1024);
    }

    #[test]
    fn no_limit_is_above_every_limit() {
        assert!(Limit::Max > Limit::Value(u64::MAX));
        assert_eq!(CpuQuota::UNLIMITED.pct(), None);
    }
}
