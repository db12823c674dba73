//! Rules by the name of an instance type, as files write them: `instance = "t2.micro"`.

use evenkeel_model::credit::Rule;
use evenkeel_model::families;

/// The rule of an instance type (`crates/model/data/families.toml`).
///
/// # Errors
/// In words, with the known names nearest to one that is not.
pub fn rule_of(name: &str) -> Result<Rule, String> {
    families::named(name).map(|family| family.rule).map_err(|near| {
        format!(
            "no rule is known for instance type {name:?}; near: {}; a rule of your own is written as rule = {{ rule = \"credits\", \
             start = 30, per_hour = 6, cap = 144 }}",
            near.join(", ")
        )
    })
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
        assert_eq!(near.split(", ").count(), 4);
    }
}
