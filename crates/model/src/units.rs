//! Lists of CPU units, and the factor by which units become weights.
//!
//! | item | means |
//! |---|---|
//! | `64` | one tenant of 64 units |
//! | `256x4` | four of 256 |
//! | `8x2x3` | two times three: six of 8 |
//! | `4to64` | 4, 8, 16, 32, 64 |
//!
//! Items are separated by spaces or commas.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most tenants a list may ask for.
const MOST: usize = 10_000;
/// Most units of a tenant.
const MOST_UNITS: u64 = 1 << 40;

/// A list of units, one number a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct UnitList {
    text: String,
    units: Vec<u64>,
}

/// As a file may say it: `units = 64` or `units = "64x4"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

/// Why a list is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("no units given: write a list such as 64, 256x4, 8x2x3 or 4to64")]
    Empty,
    #[error(
        "units {item:?}: {why}; items are such as 64, 256x4 (four of 256), 8x2x3 (six of 8), 4to64 (4 8 16 32 64)"
    )]
    Item { item: String, why: String },
    #[error("not enough cpu: asked {asked}, available {available}")]
    NotEnough { asked: u64, available: u64 },
    #[error(
        "units {least} to {most}: no factor brings both between the kernel's limits of {low} and {high} \
         (their ratio {} is above {}); choose units that lie closer together", most / (*least).max(1), high / low
    )]
    NoFactor { least: u64, most: u64, low: u64, high: u64 },
}

impl FromStr for UnitList {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let mut units = Vec::new();
        for item in text.split([' ', ',', '\t', '\n']).filter(|item| !item.is_empty()) {
            let bad = |why: String| UnitError::Item { item: item.chars().take(60).collect(), why };
            let more = parse_item(item, MOST - units.len()).map_err(bad)?;
            units.extend(more);
        }
        if units.is_empty() {
            return Err(UnitError::Empty);
        }
        Ok(Self { text: text.trim().to_owned(), units })
    }
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("{what} {text:?} is not a whole number"));
    }
    match text.parse() {
        Ok(0) => Err(format!("{what} is 0, but must be at least 1")),
        Ok(n) if n <= MOST_UNITS => Ok(n),
        _ => Err(format!("{what} {text} is too large")),
    }
}

fn parse_item(item: &str, room: usize) -> Result<Vec<u64>, String> {
    let too_many = || format!("more than {MOST} tenants");
    if let Some((from, to)) = item.split_once("to") {
        let (from, to) = (number(from, "the first number")?, number(to, "the last number")?);
        let mut units = vec![from];
        let mut last = from;
        while last < to {
            last *= 2;
            units.push(last);
        }
        if last != to {
            return Err(format!("doubling {from} does not lead to {to}"));
        }
        return if units.len() > room { Err(too_many()) } else { Ok(units) };
    }
    let mut parts = item.split('x');
    let units = number(parts.next().unwrap_or(""), "the number of units")?;
    let mut count = 1u64;
    for part in parts {
        count = count.saturating_mul(number(part, "the count")?);
    }
    if count > room as u64 { Err(too_many()) } else { Ok(vec![units; count as usize]) }
}

impl UnitList {
    /// The units, one number a tenant.
    pub fn units(&self) -> &[u64] {
        &self.units
    }

    /// Refuses units above what one tenant may ask for.
    pub fn check(&self, available: u64) -> Result<(), UnitError> {
        match self.units.iter().find(|&&asked| asked > available) {
            Some(&asked) => Err(UnitError::NotEnough { asked, available }),
            None => Ok(()),
        }
    }
}

impl TryFrom<Written> for UnitList {
    type Error = UnitError;

    fn try_from(written: Written) -> Result<Self, UnitError> {
        match written {
            Written::Number(n) => n.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<UnitList> for String {
    fn from(list: UnitList) -> Self {
        list.text
    }
}

impl fmt::Display for UnitList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The power of two by which units become weights so that no limit of the kernel is reached: v1 shares 2 to 262144,
/// v2 weights 1 to 10000. Among those that fit, the one that brings the middle (by ratio) of the units nearest to the
/// kernel's default (1024 or 100); never a fraction while a whole factor fits, since weights are whole numbers.
pub fn factor(units: &[u64], v2: bool) -> Result<f64, UnitError> {
    let (low, high, default) = if v2 { (1u64, 10_000u64, 100.0f64) } else { (2, 262_144, 1024.0) };
    let least = units.iter().copied().min().ok_or(UnitError::Empty)?.max(1);
    let most = units.iter().copied().max().ok_or(UnitError::Empty)?;
    let fits = |factor: f64| least as f64 * factor >= low as f64 && most as f64 * factor <= high as f64;
    let distance = |factor: f64| ((least as f64 * most as f64).sqrt() * factor / default).log2().abs();
    let best = |exponents: std::ops::RangeInclusive<i32>| {
        exponents
            .map(|e| 2f64.powi(e))
            .filter(|f| fits(*f))
            .min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
    };
    best(0..=18).or_else(|| best(-40..=-1)).ok_or(UnitError::NoFactor { least, most, low, high })
}

/// The weight of a number of units; rounded where the factor is a fraction.
pub fn weight(units: u64, factor: f64) -> u64 {
    (units as f64 * factor).round().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> Vec<u64> {
        text.parse::<UnitList>().unwrap().units().to_vec()
    }

    #[test]
    fn lists_are_read_as_written() {
        assert_eq!(list("64"), [64]);
        assert_eq!(list("256x4"), [256; 4]);
        assert_eq!(list("8x2x3"), [8; 6]);
        assert_eq!(list("4to64"), [4, 8, 16, 32, 64]);
        assert_eq!(list("5to5"), [5]);
        assert_eq!(list("16x2, 4to8 1155"), [16, 16, 4, 8, 1155]);
    }

    #[test]
    fn anything_else_is_refused_naming_the_item() {
        for (text, part) in [
            ("64 12y", "\"12y\""),
            ("-4", "\"-4\""),
            ("0", "at least 1"),
            ("64x0", "at least 1"),
            ("x4", "\"x4\""),
            ("4x", "\"4x\""),
            ("4to60", "does not lead to 60"),
            ("64to4", "does not lead to 4"),
            ("to64", "\"to64\""),
            ("1x100000", "10000 tenants"),
            ("1x6000 1x6000", "10000 tenants"),
            ("99999999999999999999", "too large"),
            ("1.5", "not a whole number"),
            ("", "no units"),
            (" , ", "no units"),
        ] {
            let error = text.parse::<UnitList>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = "64 1255".parse::<UnitList>().unwrap().check(1155).unwrap_err().to_string();
        assert_eq!(error, "not enough cpu: asked 1255, available 1155");
    }

    #[test]
    fn the_factor_keeps_clear_of_the_kernels_limits() {
        assert_eq!(factor(&[1, 1155], false), Ok(32.0)); // middle 34 -> 1088
        assert_eq!(factor(&[1, 1155], true), Ok(4.0)); // 34 -> 136, up to 4620
        assert_eq!(factor(&[1, 512], true), Ok(4.0));
        assert_eq!(factor(&[20_000], true), Ok(2f64.powi(-8)));
        assert!(factor(&[1, 20_000], true).unwrap_err().to_string().contains("ratio 20000 is above 10000"));
        assert!(factor(&[1, 20_000], false).is_ok());
        assert!(factor(&[], true).is_err());
    }

    proptest! {
        #[test]
        fn a_list_survives_its_text(items in proptest::collection::vec((1u64..2000, 1u64..9, 1u64..4), 1..6)) {
            let text: Vec<String> = items.iter().map(|(u, a, b)| format!("{u}x{a}x{b}")).collect();
            let list: UnitList = text.join(", ").parse().unwrap();
            let count: u64 = items.iter().map(|(_, a, b)| a * b).sum();
            prop_assert_eq!(list.units().len() as u64, count);
            let again: UnitList = list.to_string().parse().unwrap();
            prop_assert_eq!(again, list);
        }

        #[test]
        fn a_factor_found_reaches_no_limit_and_keeps_proportions(
            units in proptest::collection::vec(1u64..5000, 1..20), v2: bool,
        ) {
            let (low, high) = if v2 { (1, 10_000) } else { (2, 262_144) };
            let factor = factor(&units, v2).unwrap();
            for &u in &units {
                let weight = weight(u, factor);
                prop_assert!(weight >= low && weight <= high);
                prop_assert_eq!(weight as f64, u as f64 * factor);
            }
        }
    }
}
