//! Where in a file something stands, for messages about it.

use super::ExperimentError;

/// Line (from 1) of the so-manieth header such as `[[task]]`; 1 when there is none, as in an empty text.
pub(crate) fn line_of(text: &str, header: &str, index: usize) -> usize {
    let found = text.lines().enumerate().filter(|(_, l)| l.trim() == header).nth(index);
    found.map_or(1, |(line, _)| line + 1)
}

/// Line (from 1) of a key that stands before all tables; 1 when it is not written.
pub(crate) fn line_of_key(text: &str, key: &str) -> usize {
    let mut top = text.lines().enumerate().take_while(|(_, l)| !l.trim_start().starts_with('['));
    let is = |line: &str| {
        line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    top.find(|(_, line)| is(line)).map_or(1, |(line, _)| line + 1)
}

/// What TOML says about a text, with the line and the nearest known key.
pub(crate) fn parse_error(text: &str, error: &toml::de::Error) -> ExperimentError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
    let message = error.message().to_owned();
    let hint = nearest_key(&message);
    ExperimentError::Parse { line, message, hint }
}

/// The key among those an error message lists that is nearest to the unknown one it names.
fn nearest_key(message: &str) -> Option<String> {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown") {
        return None;
    }
    let wrong = quoted.next()?;
    quoted.min_by_key(|known| distance(wrong, known)).map(str::to_owned)
}

/// Edits (insert, delete, replace) from one word to another.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = cost;
        }
    }
    row[b.len()]
}
