//! What a command run by [`super::run`] may have: limits as people write them, and as the kernel takes them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_base::text::without_zeros;
use evenkeel_base::{CpuClaim, CpuQuota, CpuSet, Limit};
use serde::Serialize;

/// A CPU limit as written: `25%`, `150 %`, `0.5` (CPUs). Percent is of ONE CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CpuLimit(f64);

impl CpuLimit {
    pub fn pct(self) -> f64 {
        self.0
    }

    /// A limit of this many percent of ONE CPU; `None` unless above 0 and finite.
    pub fn from_pct(pct: f64) -> Option<Self> {
        (pct > 0.0 && pct <= 1e8).then_some(Self(pct))
    }
}

impl FromStr for CpuLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no CPU limit: write 25% (of one CPU) or 0.25 (CPUs)");
        let text = text.trim();
        let pct = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map_err(|_| bad())?,
            None => 100.0 * text.parse::<f64>().map_err(|_| bad())?,
        };
        Self::from_pct(pct).ok_or_else(bad)
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", without_zeros(&format!("{:.2}", self.0)))
    }
}

/// Everything a command may be bounded by. The default is nothing at all: then the command runs where the caller
/// does and is only accounted for.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bounds {
    pub quota: Option<CpuQuota>,
    /// Claim against siblings.
    pub claim: Option<CpuClaim>,
    /// CPUs it may run on.
    pub cpus: Option<CpuSet>,
    pub nice: Option<i32>,
    /// Own slice, nanoseconds (Linux 6.12 and later).
    pub slice_ns: Option<u64>,
}

impl Bounds {
    /// Whether the cpu controller is needed.
    pub fn needs_cpu(&self) -> bool {
        self.quota.is_some() || self.claim.is_some()
    }

    /// In words, such as `25 % of one CPU, period 100 ms, weight 50, CPUs 0-1, nice 5`.
    pub fn words(&self) -> String {
        let mut words = Vec::new();
        if let Some(quota) = &self.quota {
            match quota.pct().and_then(CpuLimit::from_pct) {
                Some(limit) => words.push(format!("{limit} of one CPU")),
                // A quota without a value is there to be changed as the command runs.
                None => words.push("limit by auto".to_owned()),
            }
            words.push(format!("period {}", millis(quota.period_usec)));
            if quota.burst_usec > 0 {
                words.push(format!("burst {}", millis(quota.burst_usec)));
            }
        }
        words.extend(self.claim.map(|claim| claim.to_string()));
        words.extend(self.cpus.as_ref().map(|cpus| format!("CPUs {cpus}")));
        words.extend(self.nice.map(|nice| format!("nice {nice}")));
        words.extend(self.slice_ns.map(|ns| format!("slice {} ms", ns as f64 / 1e6)));
        words.join(", ")
    }
}

fn millis(usec: u64) -> String {
    format!("{} ms", usec as f64 / 1e3)
}

/// The quota of a limit: rounded to the microsecond, checked against what the kernel takes.
pub fn quota(limit: Option<CpuLimit>, period: Duration, burst: Duration) -> Result<CpuQuota, String> {
    let usec = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (period_usec, burst_usec) = (usec(period), usec(burst));
    if !(CpuQuota::LEAST_USEC..=CpuQuota::LONGEST_USEC).contains(&period_usec) {
        return Err(format!("a period of {} is not within 1 ms and 1 s", millis(period_usec)));
    }
    let quota_usec = match limit {
        None => Limit::Max,
        Some(limit) => {
            let quota = (limit.pct() / 100.0 * period_usec as f64).round() as u64;
            if quota < CpuQuota::LEAST_USEC {
                let longer = (100.0 * CpuQuota::LEAST_USEC as f64 / limit.pct()).ceil() as u64;
                let advice = if longer <= CpuQuota::LONGEST_USEC {
                    format!("take a period of at least {}", millis(longer))
                } else {
                    "the least limit is 0.1 %, with a period of 1 s".to_owned()
                };
                return Err(format!(
                    "{limit} of a period of {} is less than the 1 ms the kernel can give: {advice}",
                    millis(period_usec)
                ));
            }
            if burst_usec > quota {
                return Err(format!(
                    "a burst of {} is more than the quota of {} a period: it may be at most that",
                    millis(burst_usec),
                    millis(quota)
                ));
            }
            Limit::Value(quota)
        }
    };
    Ok(CpuQuota { quota_usec, period_usec, burst_usec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_millis(100);

    #[test]
    fn limits_as_people_write_them() {
        for (text, pct) in [("25%", 25.0), ("150 %", 150.0), ("0.5", 50.0), (" 2 ", 200.0), ("2.5%", 2.5)] {
            assert_eq!(text.parse::<CpuLimit>().unwrap().pct(), pct, "{text}");
        }
        for bad in ["", "%", "x", "0", "-1%", "nan", "inf%", "25%%", "1e99"] {
            assert!(bad.parse::<CpuLimit>().is_err(), "{bad:?} was accepted");
        }
        assert_eq!("12.50%".parse::<CpuLimit>().unwrap().to_string(), "12.5 %");
    }

    #[test]
    fn a_limit_that_is_chosen_as_the_command_runs_is_not_called_none() {
        let words = |limit| {
            let quota = Some(quota(limit, PERIOD, Duration::ZERO).unwrap());
            Bounds { quota, ..Bounds::default() }.words()
        };
        assert_eq!(words(None), "limit by auto, period 100 ms");
        assert_eq!(words(CpuLimit::from_pct(25.0)), "25 % of one CPU, period 100 ms");
    }

    #[test]
    fn quotas_the_kernel_would_refuse_are_refused_with_advice() {
        let limit = |pct| CpuLimit::from_pct(pct);
        assert_eq!(quota(limit(25.0), PERIOD, Duration::ZERO).unwrap().quota_usec, Limit::Value(25_000));
        let error = quota(limit(0.5), PERIOD, Duration::ZERO).unwrap_err();
        assert!(error.contains("at least 200 ms"), "{error}");
        let error = quota(limit(0.05), PERIOD, Duration::ZERO).unwrap_err();
        assert!(error.contains("the least limit is 0.1 %"), "{error}");
        let error = quota(limit(10.0), PERIOD, Duration::from_millis(20)).unwrap_err();
        assert!(error.contains("burst"), "{error}");
        assert!(quota(None, Duration::from_micros(10), Duration::ZERO).is_err());
        assert!(quota(None, Duration::from_secs(2), Duration::ZERO).is_err());
    }

    proptest! {
        #[test]
        fn a_quota_is_within_a_microsecond_of_its_percent(pct in 1.0f64..10_000.0, ms in 100u64..1000) {
            let period = Duration::from_millis(ms);
            let quota = quota(CpuLimit::from_pct(pct), period, Duration::ZERO).unwrap();
            let error = quota.pct().unwrap() - pct;
            prop_assert!(error.abs() <= 100.0 * 0.5 / period.as_micros() as f64 + 1e-9, "{error}");
        }
    }
}
