//! `--start-at`: an absolute instant of the wall clock.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An instant, nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StartAt(pub u64);

/// Why an instant was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an instant: {0:?}: expected RFC 3339, such as 2026-01-31T12:00:00.5Z, or @seconds since 1970, such as @1769860800.5"
)]
pub struct StartAtError(String);

impl FromStr for StartAt {
    type Err = StartAtError;

    fn from_str(text: &str) -> Result<Self, StartAtError> {
        let error = || StartAtError(text.chars().take(60).collect());
        if let Some(seconds) = text.strip_prefix('@') {
            let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
            let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
            if whole.is_empty() || !digits(whole) || !digits(fraction) {
                return Err(error());
            }
            let whole: u64 = whole.parse().map_err(|_| error())?;
            let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
            let ns: u64 = fraction.parse().map_err(|_| error())?;
            return whole
                .checked_mul(1_000_000_000)
                .and_then(|w| w.checked_add(ns))
                .map(Self)
                .ok_or_else(error);
        }
        let stamp: jiff::Timestamp = text.parse().map_err(|_| error())?;
        u64::try_from(stamp.as_nanosecond()).map(Self).map_err(|_| error())
    }
}

impl TryFrom<String> for StartAt {
    type Error = StartAtError;

    fn try_from(text: String) -> Result<Self, StartAtError> {
        text.parse()
    }
}

impl From<StartAt> for String {
    fn from(at: StartAt) -> Self {
        at.to_string()
    }
}

impl fmt::Display for StartAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_notations_name_the_same_instant() {
        let a: StartAt = "2026-01-31T12:00:00.5Z".parse().unwrap();
        let b: StartAt = "@1769860800.5".parse().unwrap();
        let c: StartAt = "2026-01-31T13:00:00.5+01:00".parse().unwrap();
        assert_eq!((a, b), (b, c));
        for bad in
            ["", "@", "@-1", "@1.2.3", "@1e9", "12:00", "tomorrow", "@99999999999999999999", "2026-01-31"]
        {
            let error = bad.parse::<StartAt>().unwrap_err().to_string();
            assert!(error.contains("RFC 3339"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn print_then_parse_is_identity(ns in any::<u64>()) {
            prop_assert_eq!(StartAt(ns).to_string().parse::<StartAt>().unwrap(), StartAt(ns));
        }
    }
}
