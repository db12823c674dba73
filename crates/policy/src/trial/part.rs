//! The parts of a trial.

use std::fmt;

/// What a trial is about at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The present state, before anything is changed.
    Baseline,
    /// Which challengers look best?
    Screening,
    /// Does it hold on fresh pairs of windows?
    Confirmation,
    /// Does the gain last?
    Hold,
    /// Nothing is to come.
    Over,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "baseline",
            Self::Screening => "screening",
            Self::Confirmation => "confirmation",
            Self::Hold => "hold",
            Self::Over => "over",
        })
    }
}
