//! What is wrong with an experiment, and where in its file.

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
    pub message: String,
}

impl Wrong {
    pub(super) fn new(part: &'static str, index: usize, message: impl Into<String>) -> Self {
        Self { part, index, message: message.into() }
    }

    /// Of the tenant that is written at this place.
    pub fn of_tenant(index: usize, message: impl Into<String>) -> Self {
        Self::new("[[tenant]]", index, message)
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
