//! Where a value of the configuration file stands.

use std::path::PathBuf;

use evenkeel_base::FileError;
use toml::Spanned;

/// The file as written, to name lines of it.
#[derive(Debug, Default)]
pub struct Source {
    pub path: PathBuf,
    pub text: String,
}

impl Source {
    /// What is wrong with a value, with file and line.
    pub fn fault<T>(&self, at: &Spanned<T>, what: impl ToString) -> anyhow::Error {
        FileError::at(&self.path, &self.text, at.span().start, what.to_string()).into()
    }
}
