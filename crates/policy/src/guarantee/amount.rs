//! What is promised.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount of CPU as a user writes it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum CpuAmount {
    /// `40%`: percent of one CPU.
    OfCpu(f64),
    /// `5% of host`: percent of all online CPUs.
    OfHost(f64),
    /// `2.5 cpus`, or Kubernetes' `2500m`.
    Cpus(f64),
}

/// What is wrong with an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no amount of CPU: {reason}; expected \"40%\" (of one CPU), \"5% of host\", \"2.5 cpus\" or \"500m\""
)]
pub struct CpuAmountError {
    text: String,
    reason: String,
}

impl CpuAmount {
    /// Percent of ONE CPU on a host with this many CPUs online.
    pub fn pct(self, cpus: u32) -> f64 {
        match self {
            Self::OfCpu(pct) => pct,
            Self::OfHost(pct) => pct * f64::from(cpus),
            Self::Cpus(cpus) => cpus * 100.0,
        }
    }

    /// Reads an amount that may be zero.
    pub fn parse_or_zero(text: &str) -> Result<Self, CpuAmountError> {
        let error = |reason: &str| CpuAmountError { text: text.to_owned(), reason: reason.to_owned() };
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ").to_ascii_lowercase();
        let (number, make): (&str, fn(f64) -> Self) = if let Some(rest) =
            text.strip_suffix("of host").or_else(|| text.strip_suffix("of the host"))
        {
            let number = rest.trim_end().strip_suffix('%').ok_or_else(|| error("no % before \"of host\""))?;
            (number, Self::OfHost)
        } else if let Some(number) = text.strip_suffix('%') {
            (number, Self::OfCpu)
        } else if let Some(number) = text.strip_suffix("cpus").or_else(|| text.strip_suffix("cpu")) {
            (number, Self::Cpus)
        } else if let Some(number) = text.strip_suffix('m') {
            (number, |milli| Self::Cpus(milli / 1000.0))
        } else {
            return Err(error("no unit"));
        };
        let value: f64 = number.trim().parse().map_err(|_| error("no number"))?;
        if !value.is_finite() || value < 0.0 {
            return Err(error("it must not be negative"));
        }
        let amount = make(value);
        let too_much = match amount {
            Self::OfHost(pct) => pct > 100.0,
            Self::OfCpu(pct) => pct > 819_200.0,
            Self::Cpus(cpus) => cpus > 8192.0,
        };
        if too_much { Err(error("no host has that much")) } else { Ok(amount) }
    }
}

impl FromStr for CpuAmount {
    type Err = CpuAmountError;

    fn from_str(text: &str) -> Result<Self, CpuAmountError> {
        let amount = Self::parse_or_zero(text)?;
        if amount.pct(1) < 0.1 {
            return Err(CpuAmountError {
                text: text.to_owned(),
                reason: "a promise is at least a thousandth of a CPU".to_owned(),
            });
        }
        Ok(amount)
    }
}

impl fmt::Display for CpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfCpu(pct) => write!(f, "{pct}%"),
            Self::OfHost(pct) => write!(f, "{pct}% of host"),
            Self::Cpus(cpus) => write!(f, "{cpus} cpus"),
        }
    }
}

evenkeel_base::named! {
/// What a promise of CPU means, and so when it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mean {
    /// So much of the time in which it is runnable.
    #[default]
    Supply = "supply",
    /// So much of all time, if it wants that much.
    Rate = "rate",
}
}

/// What one scope is promised.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Reservation {
    /// CPU whenever it is wanted.
    pub cpu: Option<CpuAmount>,
    /// What that means.
    pub mean: Mean,
    /// 99 of 100 waits for a CPU are at most this long, nanoseconds.
    pub wait_p99_ns: Option<u64>,
    /// Where not all promises fit, higher ones come first.
    pub priority: i32,
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cpu) = self.cpu {
            write!(f, "{cpu}{}", if self.mean == Mean::Rate { " as rate" } else { "" })?;
        }
        if let Some(ns) = self.wait_p99_ns {
            let comma = if self.cpu.is_some() { ", " } else { "" };
            write!(f, "{comma}wait p99 <= {} ms", ns as f64 / 1e6)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_unit_means_what_it_says() {
        for (text, pct_of_one_of_four) in [
            ("40%", 40.0),
            (" 40 % ", 40.0),
            ("5% of host", 20.0),
            ("5 % of the host", 20.0),
            ("2.5 cpus", 250.0),
            ("1 CPU", 100.0),
            ("500m", 50.0),
            ("120%", 120.0),
        ] {
            assert_eq!(text.parse::<CpuAmount>().unwrap().pct(4), pct_of_one_of_four, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for (text, reason) in [
            ("40", "no unit"),
            ("", "no unit"),
            ("%", "no number"),
            ("forty%", "no number"),
            ("-3%", "negative"),
            ("NaN%", "negative"),
            ("inf%", "negative"),
            ("0%", "thousandth"),
            ("101% of host", "no host"),
            ("1e9 cpus", "no host"),
            ("40 of host", "no %"),
        ] {
            let error = text.parse::<CpuAmount>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert_eq!(CpuAmount::parse_or_zero("0%").unwrap().pct(4), 0.0);
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(value in 0.2f64..100.0, kind in 0usize..3) {
            let amount = [CpuAmount::OfCpu(value), CpuAmount::OfHost(value), CpuAmount::Cpus(value)][kind];
            prop_assert_eq!(amount.to_string().parse::<CpuAmount>().unwrap(), amount);
        }
    }
}
