//! Instance families whose rule about CPU use is known: `data/families.toml`.

use evenkeel_base::file_error::distance;
use evenkeel_base::text::glob;
use serde::Deserialize;

use crate::credit::Rule;

/// The file as it was when this was built.
const FILE: &str = include_str!("../data/families.toml");

/// Names given where one is not known.
const NEAR: usize = 4;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    pub name: String,
    /// Product names that are of it; `*` stands for anything.
    pub names: Vec<String>,
    /// Where the rule is from.
    pub from: String,
    pub rule: Rule,
    pub cpus: u32,
    /// Memory, GiB, if known.
    pub memory_gib: Option<f64>,
    /// Whether the rule is each CPU's own; otherwise it is the whole machine's.
    #[serde(default)]
    pub each: bool,
    /// Whether the provider can bill what is used beyond the credits instead of keeping it back ("unlimited" mode).
    #[serde(default)]
    pub unlimited: bool,
    /// What the rule leaves out.
    pub note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    family: Vec<Family>,
}

/// All families known.
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

/// The family of an instance type that somebody wrote.
///
/// # Errors
/// The known names nearest to one that is not, the nearest first.
pub fn named(name: &str) -> Result<Family, Vec<String>> {
    of(name).ok_or_else(|| {
        let asked = name.trim().to_lowercase();
        let names = known().into_iter().flat_map(|family| family.names);
        let mut near: Vec<(usize, String)> =
            names.map(|name| (distance(&asked, &name.to_lowercase()), name)).collect();
        near.sort();
        near.dedup();
        near.into_iter().take(NEAR).map(|(_, name)| name).collect()
    })
}

/// Whether a text fits a pattern in which `*` stands for anything. Case does not matter.
pub fn fits(pattern: &str, text: &str) -> bool {
    glob(&pattern.to_lowercase(), &text.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Providers' tables say the same thing three times: credits an hour, the baseline share of each CPU, and at most a day's.
    #[test]
    fn credits_baselines_and_caps_agree() {
        for family in parse(FILE).unwrap() {
            assert!(family.cpus >= 1 && !family.names.is_empty() && !family.from.is_empty(), "{family:?}");
            assert!(family.memory_gib.is_none_or(|gib| gib > 0.0), "{family:?}");
            let Rule::Credits { start, per_hour, cap } = family.rule else { continue };
            let share = per_hour / 60.0 / f64::from(if family.each { 1 } else { family.cpus });
            assert!((0.04..=1.0).contains(&share), "{}: {share} of a CPU", family.name);
            assert!(start >= 0.0 && cap >= 0.0, "{family:?}");
            // One provider's saved time is 500 s a CPU; the others' is a day's credits, to 3 % (its own table rounds).
            let day = cap / (24.0 * per_hour);
            assert!(
                cap == 0.0 || family.name.starts_with("shared-cpu") || (day - 1.0).abs() < 0.03,
                "{}: {day} days",
                family.name
            );
        }
    }

    #[test]
    fn no_name_is_in_two_families() {
        let known = parse(FILE).unwrap();
        for family in &known {
            for name in &family.names {
                assert_eq!(of(name).as_ref(), Some(family), "{name}");
            }
            assert_eq!(known.iter().filter(|other| other.name == family.name).count(), 1, "{}", family.name);
        }
    }

    #[test]
    fn the_built_in_file_is_read_and_names_are_found() {
        assert!(parse(FILE).unwrap().len() >= 55);
        assert_eq!(of("t1.micro").unwrap().rule, Rule::T1_MICRO_FITTED);
        assert_eq!(of("T2.Micro\n").unwrap().rule, Rule::t2_micro(30.0));
        assert_eq!(of("Standard PC (i440FX + PIIX, 1996)"), None);
        assert!(fits("a*c", "abc") && !fits("a*c", "ab") && !fits("ab*b", "ab"));
        assert!(fits("T*.mi*o", "t2.micro") && fits("*micro*", "t2.micro") && !fits("*nano*", "t2.micro"));
        assert!(parse("[[family]]\nnam = 'x'").is_err());
    }
}
