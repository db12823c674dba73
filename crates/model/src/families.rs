//! Instance families whose rule about CPU use is known: `data/families.toml`.

use serde::Deserialize;

use crate::credit::Rule;

/// The file as it was when this was built.
const FILE: &str = include_str!("../data/families.toml");

/// A family.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Name, for people.
    pub name: String,
    /// Product names that are of it; `*` stands for anything.
    pub names: Vec<String>,
    /// Where the rule is from.
    pub from: String,
    /// The rule.
    pub rule: Rule,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    family: Vec<Family>,
}

/// All families known.
///
/// # Errors
/// In words; the built-in file has none (tested).
pub fn parse(text: &str) -> Result<Vec<Family>, String> {
    toml::from_str::<File>(text).map(|file| file.family).map_err(|error| error.to_string())
}

/// The built-in families.
pub fn known() -> Vec<Family> {
    parse(FILE).unwrap_or_default()
}

/// The family of a product name, such as DMI's.
pub fn of(product: &str) -> Option<Family> {
    let product = product.trim();
    known().into_iter().find(|family| family.names.iter().any(|name| fits(name, product)))
}

/// Whether a text fits a pattern in which `*` stands for anything. Case does not matter.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_lowercase(), text.to_lowercase());
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => {
            text.len() >= head.len() + tail.len() && text.starts_with(head) && text.ends_with(tail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_file_is_read_and_names_are_found() {
        assert!(parse(FILE).unwrap().len() >= 9);
        assert_eq!(of("t1.micro").unwrap().rule, Rule::T1_MICRO_FITTED);
        assert_eq!(of("T2.Micro\n").unwrap().rule, Rule::t2_micro(30.0));
        assert_eq!(of("Standard PC (i440FX + PIIX, 1996)"), None);
        assert!(fits("a*c", "abc") && !fits("a*c", "ab") && !fits("ab*b", "ab"));
        assert!(parse("[[family]]\nnam = 'x'").is_err());
    }
}
