//! Placeholders: `{name}` in commands, environments and files stands for a parameter's value. Braces around anything
//! that is not a parameter are left as they are, for JSON, shells and configuration files have braces of their own.

use std::collections::BTreeMap;

use evenkeel_base::text::without_zeros;
use evenkeel_report::significant;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(pub BTreeMap<String, String>);

/// Names in braces, in order.
pub(super) fn placeholders(text: &str) -> Vec<String> {
    let inside = text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
    let name =
        |n: &&str| !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    inside.filter(name).map(str::to_owned).collect()
}

impl Settings {
    /// The text with its placeholders filled in.
    pub fn fill(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            out.push_str(before);
            match after.split_once('}').and_then(|(name, then)| Some((self.0.get(name)?, then))) {
                Some((value, then)) => {
                    out.push_str(value);
                    rest = then;
                }
                None => {
                    out.push('{');
                    rest = after;
                }
            }
        }
        out.push_str(rest);
        out
    }

    /// With the trial's own directory as `dir`, also inside values.
    #[must_use]
    pub fn in_dir(mut self, dir: &str) -> Self {
        for value in self.0.values_mut() {
            *value = value.replace("{dir}", dir);
        }
        self.with("dir", dir)
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// `threads=4 quota=80`.
    pub fn words(&self) -> String {
        self.0.iter().map(|(name, value)| format!("{name}={}", short(value))).collect::<Vec<_>>().join(" ")
    }
}

/// Longer numbers than this are a search's own, not a user's words (a version, a choice): these stay as they are.
const LONGEST_WORD: usize = 8;

/// A value for people: a search's own number with four significant digits, or its whole part.
pub(super) fn short(value: &str) -> String {
    let number = value.parse::<f64>().ok().filter(|number| number.fract() != 0.0);
    let Some(number) = number.filter(|_| value.len() > LONGEST_WORD) else { return value.to_owned() };
    without_zeros(&significant(number)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_known_names_are_filled() {
        let s = Settings::default().with("a", "1").with("b-c", "x{a}");
        assert_eq!(s.fill("{a}{b-c} { a } {\"a\": {a}} {d} {"), "1x{a} { a } {\"a\": 1} {d} {");
        assert_eq!(Settings::default().with("log", "{dir}/x").in_dir("/t").fill("{log}"), "/t/x");
        assert_eq!(placeholders("{a} { b } {c-d}{}{\"x\"}"), ["a", "c-d"]);
        assert_eq!(Settings::default().with("q", "81.23456789").with("n", "100").words(), "n=100 q=81.23");
        let words = ["3.10", "1.0", "007", "1e3", "infinity", "nan", "2024.04", "100.25", "0.125"];
        assert_eq!(words.map(short), words);
    }

    proptest! {
        #[test]
        fn text_without_known_names_stays(text in "[^a]*") {
            prop_assert_eq!(Settings::default().with("a", "1").fill(&text), text);
        }
    }
}
