//! The program under test: how it is started, how it ended, and what it printed.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program without standard input, and without what the environment says about its output.
pub fn evenkeel(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(args).env_remove("EVENKEEL_LOG").env_remove("COLUMNS").stdin(Stdio::null());
    command
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Ended {
    command: String,
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end, which must not be a panic.
#[track_caller]
pub fn end(command: &mut Command) -> Ended {
    let output = command.output().unwrap();
    Ended::of(command, output)
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: status {:?}\n{}\n{}", self.command, self.status, self.stderr, self.stdout)
    }
}

impl Ended {
    #[track_caller]
    pub fn of(command: &Command, output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let ended = Self { command: format!("{command:?}"), status: output.status.code(), stdout, stderr };
        assert!(!ended.stderr.contains("panicked"), "{ended}");
        ended
    }

    /// Fails unless it ended with this status.
    #[track_caller]
    pub fn with(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "{self}");
        self
    }

    /// Fails unless it ended with this status, and these words are in what it said, or in what it printed: not why it did
    /// nothing, which is a message (2: it was used wrongly, 3: it cannot).
    #[track_caller]
    pub fn says(self, status: i32, words: &str) -> Self {
        let printed = !matches!(status, 2 | 3) && self.stdout.contains(words);
        assert!(printed || self.stderr.contains(words), "wanted {words:?} of {self}");
        self.with(status)
    }

    /// What it printed, when it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        self.with(0).stdout
    }

    /// The one document that it printed.
    #[track_caller]
    pub fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// The one document that it printed, when it succeeded.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, Some(0), "{self}");
        self.document()
    }

    /// Fails unless it refused with this status and this reason, and printed nothing else. Returns all that it said.
    #[track_caller]
    pub fn refused(self, status: i32, reason: &str) -> String {
        let ended = self.with(status);
        let said = !ended.stderr.trim().is_empty() && ended.stderr.contains(reason);
        assert!(said && ended.stdout.is_empty(), "wanted {reason:?} of {ended}");
        ended.stderr
    }
}

/// Runs the program in a directory, with its state below it.
#[track_caller]
pub fn end_in(dir: &Path, args: &[&str]) -> Ended {
    end(evenkeel(args).current_dir(dir).env("EVENKEEL_STATE_DIR", dir.join("state")))
}

/// A directory that holds one file, in a directory of its own.
pub fn folder(file: &str, text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    evenkeel_linux::testing::lay(dir.path(), &[(file, text)]);
    dir
}
