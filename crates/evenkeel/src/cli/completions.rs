//! `evenkeel completions` and `evenkeel man`: generated from the command line's own definition.

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;

use super::{Cli, Global, Outcome};

/// Print a shell's completion script.
///
/// Example: evenkeel completions bash > /etc/bash_completion.d/evenkeel
#[derive(Debug, clap::Args)]
pub struct Args {
    /// bash, elvish, fish, powershell or zsh.
    shell: clap_complete::Shell,
}

/// Write the manual pages into a directory.
///
/// Example: evenkeel man /usr/local/share/man/man1
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Directory to write to; must exist.
    dir: PathBuf,
}

pub fn run(_global: &Global, args: Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "evenkeel", &mut script);
    out!("{}", String::from_utf8_lossy(&script))?;
    Ok(0)
}

pub fn man(_global: &Global, args: ManArgs) -> Outcome {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .with_context(|| format!("cannot write manual pages to {}", args.dir.display()))?;
    Ok(0)
}
