//! Command line: global options, exit statuses, and the list of commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use evenkeel_observe::Sampling;

mod capture;
mod check;
mod completions;
mod demo;
mod exec;
mod history;
mod known;
mod lab;
mod listen;
mod load;
mod net;
mod plan;
mod promises;
mod prove;
mod ps;
mod replay;
mod restore;
mod run;
mod settings;
mod show;
mod sim;
mod status;
mod tenants;
mod top;
mod topology;
mod tune;
mod why;

/// Keeps CPU sharing on Linux hosts even: shows who gets the CPU, checks the set-up, evens out, proves each change
/// or takes it back.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, max_term_width = 110, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options every command takes.
#[derive(Debug, Clone, clap::Args)]
pub struct Global {
    /// Form of the result on stdout.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// Configuration file (TOML).
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read a tree made by `capture` instead of this host (reading commands only).
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Where the journal and the history are kept.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/var/lib/evenkeel",
        env = "EVENKEEL_STATE_DIR"
    )]
    pub state_dir: PathBuf,
    /// How tasks are sampled: by bpf (cheap, and short-lived tasks are counted), by proc, or auto: bpf where this kernel
    /// and the caller's privileges allow it, else proc, saying why.
    #[arg(long, global = true, value_name = "WAY", env = "EVENKEEL_SAMPLING", value_parser = sampling())]
    pub sampling: Option<Sampling>,
    /// More detail on stderr; repeat for more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
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
    /// For people.
    Text,
    /// One JSON document, see `"schema"`.
    Json,
    /// Comma-separated values with a header line.
    Csv,
    /// A picture (`topology` and `why`).
    Svg,
}

#[derive(Debug, Subcommand)]
enum Command {
    Topology(topology::Args),
    Check(check::Args),
    Ps(ps::Args),
    Top(top::Args),
    Why(why::Args),
    Plan(plan::Args),
    Prove(prove::Args),
    Run(run::Args),
    Status(status::Args),
    Restore(restore::Args),
    History(history::Args),
    Replay(replay::Args),
    Exec(exec::Args),
    Load(load::Args),
    Lab(lab::Args),
    Sim(sim::Args),
    Tenants(tenants::Args),
    Net(net::Args),
    /// First process of a virtual machine of the laboratory.
    #[command(hide = true)]
    Guest(evenkeel_lab::vm::guest::Guest),
    Tune(tune::Args),
    Capture(capture::Args),
    Demo(demo::Args),
    Completions(completions::Args),
    Man(completions::ManArgs),
}

/// Why a command failed, which decides the exit status.
#[derive(Debug)]
pub enum Failure {
    /// Status 1: the answer is no.
    No(anyhow::Error),
    /// Status 2: wrong usage or configuration.
    Usage(anyhow::Error),
    /// Status 3: the host cannot or may not.
    Cannot(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    /// What a library reports is about the host unless the command says otherwise.
    fn from(error: anyhow::Error) -> Self {
        Self::Cannot(error)
    }
}

/// Result of a command: the exit status of a finished one (0 done, 1 the answer is no) or a failure.
pub type Outcome = Result<u8, Failure>;

/// Runs inside a virtual machine; on a host it refuses.
fn guest_main(guest: &evenkeel_lab::vm::guest::Guest) -> Outcome {
    evenkeel_lab::vm::guest::main(guest).map(|()| 0).map_err(|error| Failure::Usage(error.into()))
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    // A closed pipe (`evenkeel ps | head`) ends the program quietly, as with other Unix tools.
    // SAFETY: restoring a default signal disposition before any thread exists.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let cli = Cli::parse();
    let level = match cli.global.verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("EVENKEEL_LOG").unwrap_or_else(|_| level.into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    let global = &cli.global;
    let outcome = match cli.command {
        Command::Topology(args) => topology::run(global, args),
        Command::Check(args) => check::run(global, args),
        Command::Ps(args) => ps::run(global, args),
        Command::Top(args) => top::run(global, args),
        Command::Why(args) => why::run(global, args),
        Command::Plan(args) => plan::run(global, args),
        Command::Prove(args) => prove::run(global, args),
        Command::Run(args) => run::run(global, args),
        Command::Status(args) => status::run(global, args),
        Command::Restore(args) => restore::run(global, args),
        Command::History(args) => history::run(global, args),
        Command::Replay(args) => replay::run(global, args),
        Command::Exec(args) => exec::run(global, args),
        Command::Load(args) => load::run(global, args),
        Command::Lab(args) => lab::run(global, args),
        Command::Sim(args) => sim::run(global, args),
        Command::Net(args) => net::run(global, args),
        Command::Tenants(args) => tenants::run(global, args),
        Command::Guest(guest) => guest_main(&guest),
        Command::Tune(args) => tune::run(global, args),
        Command::Capture(args) => capture::run(global, args),
        Command::Demo(args) => demo::run(global, args),
        Command::Completions(args) => completions::run(global, args),
        Command::Man(args) => completions::man(global, args),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            let (status, error) = match failure {
                Failure::No(error) => (1, error),
                Failure::Usage(error) => (2, error),
                Failure::Cannot(error) => (3, error),
            };
            eprintln!("evenkeel: {error:#}");
            ExitCode::from(status)
        }
    }
}
