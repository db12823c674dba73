//! The policy file's text: only here are the names of rules known.

use std::path::Path;

use evenkeel_base::{FileError, nearest};

use crate::expect::Expectations;
use crate::rules::RULES;

impl Expectations {
    /// Reads the text of a policy file; `path` is for messages only.
    ///
    /// # Errors
    /// Not TOML, an unknown key, a value of the wrong kind, an `[[ignore]]` of a rule that does not exist: the
    /// line, and the nearest known name.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let parsed: Self = toml::from_str(text).map_err(|error| FileError::from_toml(path, text, &error))?;
        // Only now are the rules' names checked, so the line is looked for again.
        for ignore in &parsed.ignore {
            if RULES.iter().any(|rule| rule.name == ignore.rule) {
                continue;
            }
            let near = nearest(&ignore.rule, RULES.iter().map(|rule| rule.name)).unwrap_or_default();
            let offset = text.find(&format!("\"{}\"", ignore.rule)).unwrap_or(0);
            let what = format!("unknown rule `{}`, did you mean `{near}`?", ignore.rule);
            return Err(FileError::at(path, text, offset, what));
        }
        Ok(parsed)
    }
}
