//! Numbers as verdicts say them.

use evenkeel_base::text::{significant, without_zeros};

/// A number with three significant digits, without decimals that say nothing.
pub(in crate::study) fn three_digits(value: f64) -> String {
    without_zeros(&three(value)).to_owned()
}

/// A number with three significant digits.
pub(super) fn three(value: f64) -> String {
    significant(if value.abs() < 1e-6 { 0.0 } else { value }, 3, 6)
}

/// The value of a decision with three digits; `?` where it is not known.
pub(super) fn of(decision: &crate::decide::Decision) -> String {
    decision.value.map_or_else(|| "?".into(), three)
}
