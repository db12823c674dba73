//! What is wrong with an experiment, and where in its file.

use super::Experiment;

/// What is wrong with an experiment, and which part of its file that is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Wrong {
    /// Header of a table, such as `[[task]]`, or a key that stands before all tables.
    part: &'static str,
    /// Number of the table among those with this header, from 0.
    index: usize,
    message: String,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ExperimentError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl Wrong {
    pub(super) fn new(part: &'static str, index: usize, message: impl Into<String>) -> Self {
        Self { part, index, message: message.into() }
    }

    /// The same with its line in the experiment's file: 1 for what is not written there.
    pub fn in_text(self, text: &str) -> ExperimentError {
        let is = |line: &str| match line.strip_prefix(self.part) {
            Some(rest) if self.part.starts_with('[') => rest.is_empty(),
            Some(rest) => rest.trim_start().starts_with('='),
            None => false,
        };
        let found = text.lines().enumerate().filter(|(_, line)| is(line.trim())).nth(self.index);
        ExperimentError { line: found.map_or(1, |(line, _)| line + 1), message: self.message }
    }
}

impl Experiment {
    /// Reads an experiment and checks it at every point of its sweep.
    ///
    /// # Errors
    /// The line, what is wrong with it, and the nearest known key where one is misspelt.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        let experiment: Self = toml::from_str(text).map_err(|error| parse_error(text, &error))?;
        experiment.verify().map_err(|wrong| wrong.in_text(text))?;
        Ok(experiment)
    }
}

/// What TOML says about a text, with the line and the nearest known key.
fn parse_error(text: &str, error: &toml::de::Error) -> ExperimentError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
    let mut message = error.message().to_owned();
    if let Some(hint) = nearest_key(&message) {
        message = format!("{message}; did you mean {hint:?}");
    }
    ExperimentError { line, message }
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
