//! What gains are counted in.

/// Decrease of the logarithm of services' delays that is worth a change: a tenth.
const SERVICES_WORTH: f64 = 0.1;

/// What gains are counted in: it depends on what the decision weighed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// Scores are percent of one CPU, gains are ratios to the CPU got.
    #[default]
    CpuGot,
    /// Scores are minus the logarithm of services' delays, gains their differences: 0.7 halves the delays.
    LogDelay,
}

impl Unit {
    /// The gain of a score's difference, where the scope got so much CPU (percent of one). `None`: it got nothing to compare with.
    pub fn gain(self, difference: f64, got_pct: f64) -> Option<f64> {
        match self {
            Self::CpuGot => (got_pct > 0.0).then(|| difference / got_pct),
            Self::LogDelay => Some(difference),
        }
    }

    /// The least gain that is worth a change; `min_gain` is that of CPU.
    pub fn worth(self, min_gain: f64) -> f64 {
        match self {
            Self::CpuGot => min_gain,
            Self::LogDelay => SERVICES_WORTH,
        }
    }

    /// Spread of a block's gain before anything is known.
    pub(super) fn unknown_sd(self) -> f64 {
        match self {
            Self::CpuGot => 0.03,
            Self::LogDelay => 0.5,
        }
    }
}
