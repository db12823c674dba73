//! What the commands that show the host share.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use evenkeel_linux::Root;

use super::{Failure, Format, Global};

/// The host, or the tree named by `--root`.
pub fn root(global: &Global) -> Result<Root, Failure> {
    match &global.root {
        None => Ok(Root::host()),
        Some(dir) => {
            let root = Root::at(dir);
            let there = |name: &str| Path::is_dir(&root.path(name));
            if there("proc") || there("sys") {
                Ok(root)
            } else {
                let why = "holds neither proc nor sys; name a directory written by `evenkeel capture`";
                Err(usage!("--root {}: {why}", dir.display()))
            }
        }
    }
}

/// What went back, in a sentence.
pub fn back_sentence(back: &evenkeel_actuate::RestoreReport) -> String {
    if back.is_empty() {
        return "Nothing was left to restore.".to_owned();
    }
    let mut text = format!("Restored: {} values", back.put_back.len() + back.already.len());
    for (count, what) in [
        (back.gone.len(), "of what is gone"),
        (back.conflicts.len(), "changed by somebody else, whose part was left alone"),
        (back.failed.len(), "could NOT be restored"),
        (back.unseen.len(), "could NOT be looked at"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text.push('.');
    text
}

/// Complains about a form of output a command does not have.
pub fn no_such_output(format: Format, command: &str) -> Failure {
    let name = clap::ValueEnum::to_possible_value(&format).map(|value| value.get_name().to_owned());
    let drawn =
        if format == Format::Svg { "; `topology`, `why` and `lab report` of neighbour draw" } else { "" };
    usage!("{command} has no output {}{drawn}", name.unwrap_or_default())
}

/// A document as `-o json` prints it.
pub fn pretty(document: &impl serde::Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(document).context("cannot write JSON")? + "\n")
}

/// Columns of the terminal, at most 100 elsewhere.
pub fn width() -> Option<u16> {
    let terminal = std::io::stdout().is_terminal();
    if terminal { evenkeel_report::table::width(true) } else { Some(100) }
}
