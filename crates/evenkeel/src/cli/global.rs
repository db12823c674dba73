//! What every command takes: its global options, values that many options share, and how a failed loop ends a command.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use evenkeel_console::Failure;
use evenkeel_observe::Sampling;

/// Set apart in the help, or they stand between a command's own.
const EVERYWHERE: &str = "Options of every command";

/// Options every command takes.
#[derive(Debug, Clone, clap::Args)]
pub struct Global {
    /// Form of the result on stdout.
    #[arg(short, long, global = true, help_heading = EVERYWHERE, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// Configuration file (TOML); without it /etc/evenkeel/config.toml, where there is one.
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read a tree made by `capture` instead of this host (reading commands only).
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Where the journal and the history are kept.
    #[arg(
        long,
        global = true,
        help_heading = EVERYWHERE,
        value_name = "DIR",
        default_value = "/var/lib/evenkeel",
        env = "EVENKEEL_STATE_DIR"
    )]
    pub state_dir: PathBuf,
    /// How tasks are sampled: by bpf (cheap, and short-lived tasks are counted), by proc, or auto: bpf where this kernel
    /// and the caller's privileges allow it, else proc, saying why.
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "WAY", env = "EVENKEEL_SAMPLING", value_parser = sampling())]
    pub sampling: Option<Sampling>,
    /// More detail on stderr; repeat for more.
    #[arg(short, long, global = true, help_heading = EVERYWHERE, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Global {
    /// Refuses `--root` with this reason: the command is about the host as it runs.
    pub fn no_tree(&self, why: &'static str) -> Result<(), Failure> {
        match &self.root {
            Some(_) => Err(usage!(why)),
            None => Ok(()),
        }
    }
}

/// Refuses with this reason unless it is root who runs this.
pub fn root_only(why: &'static str) -> Result<(), Failure> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root { Ok(()) } else { Err(cannot!(why)) }
}

fn sampling() -> impl TypedValueParser<Value = Sampling> {
    PossibleValuesParser::new(["auto", "bpf", "proc"]).map(|way| match way.as_str() {
        "bpf" => Sampling::Bpf,
        "proc" => Sampling::Proc,
        _ => Sampling::Auto,
    })
}

/// Form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// One JSON document, see `"schema"`.
    Json,
    /// Comma-separated values with a header line.
    Csv,
    /// A picture (`topology`, `why`, `lab report` of neighbour).
    Svg,
}

/// Longest time an option takes: clocks hold more, but nobody means it.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A length of time, as options take it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time > LONGEST { Err("at most 100 years".to_owned()) } else { Ok(time) }
}

/// Why the loop failed, and which exit status that is.
pub fn loop_failed(error: evenkeel_agent::AgentError) -> Failure {
    if matches!(error, evenkeel_agent::AgentError::Overlap { .. }) {
        return Failure::Usage(error.into());
    }
    let error = anyhow::Error::from(error);
    if rustix::process::geteuid().is_root() {
        Failure::Cannot(error)
    } else {
        Failure::Cannot(error.context("the loop needs root (or CAP_SYS_NICE and a writable --state-dir)"))
    }
}
