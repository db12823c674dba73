//! What several targets ask of a number.

/// A number of which there is none below zero.
pub(super) fn amount(what: &str, value: f64) {
    assert!(value.is_finite() && value >= 0.0, "{what} is {value}");
}
