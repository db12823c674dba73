//! Rules by the name of an instance type, as files write them: `instance = "t2.micro"`.

use evenkeel_base::file_error::distance;
use evenkeel_model::credit::Rule;
use evenkeel_model::families;

/// Names listed where one is not known.
const NEAR: usize = 4;

/// The rule of an instance type (`crates/model/data/families.toml`).
///
/// # Errors
/// In words, with the known names nearest to one that is not.
pub fn rule_of(name: &str) -> Result<Rule, String> {
    if let Some(family) = families::of(name) {
        return Ok(family.rule);
    }
    let asked = name.trim().to_lowercase();
    let mut known: Vec<(usize, String)> = families::known()
        .into_iter()
        .flat_map(|family| family.names)
        .map(|known| (distance(&asked, &known.to_lowercase()), known))
        .collect();
    known.sort();
    known.dedup();
    let near: Vec<String> = known.into_iter().take(NEAR).map(|(_, name)| name).collect();
    Err(format!(
        "no rule is known for instance type {name:?}; near: {}; a rule of your own is written as rule = {{ rule = \"credits\", \
         start = 30, per_hour = 6, cap = 144 }}",
        near.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_give_their_rule_and_unknown_ones_those_near() {
        assert_eq!(rule_of("t2.micro"), Ok(Rule::t2_micro(30.0)));
        assert_eq!(rule_of("T1.Micro"), Ok(Rule::T1_MICRO_FITTED));
        let error = rule_of("t2.mirco").unwrap_err();
        let near = error.split("near: ").nth(1).unwrap().split(';').next().unwrap();
        assert!(error.contains("\"t2.mirco\"") && near.starts_with("t2.micro, "), "{error}");
        assert_eq!(near.split(", ").count(), NEAR);
    }
}
