//! Numbers and answers as verdicts say them.

/// A number with three significant digits, without decimals that say nothing.
pub(in crate::study) fn three_digits(value: f64) -> String {
    let text = three(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number with three significant digits.
pub(super) fn three(value: f64) -> String {
    let digits = if value.abs() < 1e-6 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = (2 - digits).clamp(0, 6) as usize;
    format!("{value:.decimals$}")
}

/// The value of a decision with three digits; `?` where it is not known.
pub(super) fn of(decision: &crate::decide::Decision) -> String {
    decision.value.map_or_else(|| "?".into(), three)
}

/// One of three wordings, by the answer.
pub(super) fn by<'a>(holds: Option<bool>, yes: &'a str, no: &'a str, open: &'a str) -> &'a str {
    match holds {
        Some(true) => yes,
        Some(false) => no,
        None => open,
    }
}
