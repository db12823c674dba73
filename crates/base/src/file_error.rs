//! Errors of a TOML file: path, line, and for an unknown key the nearest known one.

use std::path::Path;

/// A file that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}:{line}: {what}")]
pub struct FileError {
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, and where possible what was meant.
    pub what: String,
}

impl FileError {
    /// An error at a byte offset of the text.
    pub fn at(path: &Path, text: &str, offset: usize, what: impl Into<String>) -> Self {
        Self { path: path.display().to_string(), line: line_at(text, offset), what: what.into() }
    }

    /// From what the TOML reader says.
    pub fn from_toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        Self::from_toml_of_tables(path, text, error, &[])
    }

    /// As [`Self::from_toml`]. A key outside of all tables may belong into one of these; with each goes what the reader says of a key
    /// that is unknown in it.
    pub fn from_toml_of_tables(
        path: &Path,
        text: &str,
        error: &toml::de::Error,
        tables: &[(&str, String)],
    ) -> Self {
        let offset = error.span().map_or(0, |span| span.start);
        Self::at(path, text, offset, with_nearest(error.message(), tables))
    }
}

/// Line of a byte offset, from 1.
fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&b| b == b'\n').count() + 1
}

/// What the TOML reader says about a text: the line, from 1, and the message with the nearest known key.
pub fn explain(text: &str, error: &toml::de::Error) -> (usize, String) {
    let offset = error.span().map_or(0, |span| span.start);
    (line_at(text, offset), with_nearest(error.message(), &[]))
}

/// Turns "unknown field `x`, expected one of `a`, `b`" into one that says what was probably meant; likewise of a variant.
fn with_nearest(message: &str, tables: &[(&str, String)]) -> String {
    let key = message.strip_prefix("unknown field `").map(|rest| ("key", rest));
    let Some((what, rest)) =
        key.or_else(|| message.strip_prefix("unknown variant `").map(|rest| ("value", rest)))
    else {
        return message.to_owned();
    };
    let unknown = rest.split('`').next().unwrap_or_default();
    let known = known_in(message);
    let Some(near) = nearest(unknown, known.iter().copied()) else {
        return format!("unknown {what} `{unknown}`: none is known here");
    };
    let (mut least, mut meant) = (distance(unknown, near), format!("`{near}`"));
    for (table, said) in tables.iter().filter(|(table, _)| known.contains(table)) {
        let key = nearest(unknown, known_in(said)).unwrap_or_default();
        if distance(unknown, key) < least {
            (least, meant) = (distance(unknown, key), format!("`{key}` in [{table}]"));
        }
    }
    format!("unknown {what} `{unknown}`, did you mean {meant}? (known here: {})", known.join(", "))
}

/// The known names in what the TOML reader says of an unknown one: after that come separators and known names in turn.
fn known_in(message: &str) -> Vec<&str> {
    message.split('`').skip(3).step_by(2).collect()
}

/// The known name with the smallest edit distance to `name`; the first of several.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().min_by_key(|candidate| distance(name, candidate))
}

/// Levenshtein distance, of characters.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(nearest("isolatd", ["numa", "isolated"]), Some("isolated"));
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn a_message_of_another_kind_is_passed_on() {
        assert_eq!(with_nearest("missing field `rule`", &[]), "missing field `rule`");
        assert_eq!(
            with_nearest("unknown variant `exat`, expected `exact` or `paced`", &[]),
            "unknown value `exat`, did you mean `exact`? (known here: exact, paced)"
        );
        assert!(with_nearest("unknown field `a`, there are no fields", &[]).contains("none is known"));
    }
}
