//! Command line: global options, exit statuses, and the list of commands.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use evenkeel_console as console;
pub use evenkeel_console::{Failure, Outcome, in_words, stop};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

mod blame;
mod capture;
mod check;
mod completions;
mod demo;
mod exec;
mod fleet;
mod flight;
#[doc(hidden)]
pub mod fuzzing;
mod global;
mod history;
mod known;
mod lab;
mod load;
mod mcp;
mod net;
mod plan;
mod price;
mod promises;
mod prove;
mod ps;
mod record;
mod replay;
mod restore;
mod run;
mod scrape;
mod serve;
mod settings;
mod show;
mod sim;
mod sink;
mod status;
mod tenants;
mod top;
mod topology;
mod tune;
mod when;
mod why;

pub use global::{Format, Global, LONGEST, duration, loop_failed};

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

#[derive(Debug, Subcommand)]
enum Command {
    Topology(topology::Args),
    Check(check::Args),
    Ps(ps::Args),
    Top(top::Args),
    Why(why::Args),
    Plan(plan::Args),
    Prove(prove::Args),
    Run(Box<run::Args>),
    Serve(serve::Args),
    Status(status::Args),
    Restore(restore::Args),
    History(history::Args),
    Replay(replay::Args),
    Record(record::Args),
    Exec(exec::Args),
    Fleet(fleet::Args),
    Mcp(mcp::Args),
    Load(load::Args),
    Lab(lab::Args),
    Sim(sim::Args),
    Price(price::Args),
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

impl Command {
    /// Whether it changes this host, limits that it sets for what it starts included. The loop of `run` asks by itself whether
    /// it may: without `--apply` it may come to only plan.
    fn changes(&self) -> bool {
        match self {
            Self::Prove(_) | Self::Demo(_) => true,
            Self::Exec(args) => args.changes(),
            Self::Lab(args) => args.changes(),
            Self::Net(args) => args.changes(),
            Self::Tenants(args) => args.changes(),
            Self::Tune(args) => args.changes(),
            Self::Run(_)
            // What is in force goes, on whichever kernel.
            | Self::Restore(_)
            | Self::Topology(_)
            | Self::Check(_)
            | Self::Ps(_)
            | Self::Top(_)
            | Self::Why(_)
            | Self::Plan(_)
            | Self::Serve(_)
            | Self::Status(_)
            | Self::History(_)
            | Self::Replay(_)
            | Self::Record(_)
            | Self::Fleet(_)
            | Self::Mcp(_)
            | Self::Load(_)
            | Self::Sim(_)
            | Self::Price(_)
            | Self::Guest(_)
            | Self::Capture(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }

    /// Whether it has `-o svg`.
    fn draws(&self) -> bool {
        match self {
            Self::Topology(_) | Self::Why(_) => true,
            Self::Lab(args) => args.draws(),
            _ => false,
        }
    }
}

/// Runs inside a virtual machine; on a host it refuses.
fn guest_main(guest: &evenkeel_lab::vm::guest::Guest) -> Outcome {
    evenkeel_lab::vm::guest::main(guest).map(|()| 0).map_err(|error| Failure::Usage(error.into()))
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    stop::ignore_write_signals();
    stop::on_panic();
    let (cli, name) = match parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error),
    };
    log(cli.global.verbose);
    let transparent = matches!(cli.command, Command::Exec(_));
    // Unwinding restores what the command changed; only then is anything said.
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        refuse_picture(&cli, &name)?;
        dispatch(cli)
    }));
    let panics = stop::panics();
    let fail = |text: &str| console::message_at(console::Level::Error, &format!("evenkeel: {text}\n"));
    panics.iter().for_each(|text| fail(text));
    let status = match outcome {
        _ if !panics.is_empty() => PANICKED,
        Err(_) => PANICKED,
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => {
            let (status, error) = match failure {
                Failure::No(error) => (1, error),
                Failure::Usage(error) => (2, error),
                Failure::Cannot(error) => (3, error),
            };
            fail(&in_words(&error));
            if transparent { exec::NOT_RUN } else { status }
        }
    };
    console::finish();
    ExitCode::from(status)
}

/// The command line, and the command's name: `lab list`.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<(Cli, String), clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(args)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    let (mut names, mut at) = (Vec::new(), matches.subcommand());
    while let Some((name, inner)) = at {
        names.push(name);
        at = inner.subcommand();
    }
    Ok((cli, names.join(" ")))
}

/// Few commands draw. The others are refused here, before they do anything.
fn refuse_picture(cli: &Cli, name: &str) -> Result<(), Failure> {
    let format = cli.global.output;
    let refused = format == Format::Svg && !cli.command.draws();
    if refused { Err(show::no_such_output(format, name)) } else { Ok(()) }
}

/// Exit status after an internal error, as Rust's own.
const PANICKED: u8 = 101;

/// What the parser has to say: help and versions are results, everything else is a message.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    let colours = |terminal: bool| terminal && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let status = if error.use_stderr() {
        if colours(std::io::stderr().is_terminal()) {
            console::message(&text.ansi().to_string());
        } else {
            console::message(&text.to_string());
        }
        // The command's own status is not to be mistaken for ours: `exec` has 125 for this.
        let known = Cli::command().ignore_errors(true).try_get_matches_from(std::env::args_os());
        let exec = known.is_ok_and(|matches| matches.subcommand_name() == Some("exec"));
        if exec { exec::NOT_RUN } else { 2 }
    } else {
        let printed = if colours(console::results().is_terminal()) {
            console::print(format_args!("{}", text.ansi()))
        } else {
            console::print(format_args!("{text}"))
        };
        match printed {
            Ok(()) => 0,
            Err(Failure::No(error) | Failure::Usage(error) | Failure::Cannot(error)) => {
                say!("evenkeel: {}", in_words(&error));
                3
            }
        }
    };
    console::finish();
    ExitCode::from(status)
}

/// Warnings and more go to stderr, in colour on a terminal only.
fn log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let asked = std::env::var("EVENKEEL_LOG").ok().and_then(|text| text.parse().ok());
    let filter: Targets = asked.unwrap_or_else(|| Targets::new().with_default(level));
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(console::MessageWriters)
        .with_ansi(colours)
        .log_internal_errors(false)
        .without_time();
    tracing_subscriber::registry().with(filter).with(lines).init();
}

fn dispatch(cli: Cli) -> Outcome {
    let global = &cli.global;
    // Also where the command asks nothing of it. Undoing is refused for no mistake elsewhere.
    if let Some(path) = global.config.as_deref().filter(|_| !matches!(cli.command, Command::Restore(_))) {
        settings::check(path)?;
    }
    if cli.command.changes() {
        evenkeel_agent::may_change_host().map_err(|error| Failure::Cannot(error.into()))?;
    }
    match cli.command {
        Command::Topology(args) => topology::run(global, args),
        Command::Check(args) => check::run(global, args),
        Command::Ps(args) => ps::run(global, args),
        Command::Top(args) => top::run(global, args),
        Command::Why(args) => why::run(global, args),
        Command::Plan(args) => plan::run(global, args),
        Command::Prove(args) => prove::run(global, args),
        Command::Run(args) => run::run(global, *args),
        Command::Serve(args) => serve::run(global, args),
        Command::Status(args) => status::run(global, args),
        Command::Restore(args) => restore::run(global, args),
        Command::History(args) => history::run(global, args),
        Command::Replay(args) => replay::run(global, args),
        Command::Record(args) => record::run(global, args),
        Command::Exec(args) => exec::run(global, args),
        Command::Fleet(args) => fleet::run(global, args),
        Command::Mcp(args) => mcp::run(global, args),
        Command::Load(args) => load::run(global, args),
        Command::Lab(args) => lab::run(global, args),
        Command::Sim(args) => sim::run(global, args),
        Command::Price(args) => price::run(global, args),
        Command::Net(args) => net::run(global, args),
        Command::Tenants(args) => tenants::run(global, args),
        Command::Guest(guest) => guest_main(&guest),
        Command::Tune(args) => tune::run(global, args),
        Command::Capture(args) => capture::run(global, args),
        Command::Demo(args) => demo::run(global, args),
        Command::Completions(args) => completions::run(global, args),
        Command::Man(args) => completions::man(global, args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let denied = || std::io::Error::from_raw_os_error(libc::EACCES);
        let error = anyhow::Error::from(evenkeel_agent::AgentError::Observe(
            evenkeel_linux::ReadError::io("/proc/x", denied()).into(),
        ));
        let said = in_words(&error.context("no loop"));
        assert_eq!(said, format!("no loop: cannot observe this host: /proc/x: {}", denied()));
        assert_eq!(
            in_words(&anyhow::Error::from(denied()).context("a").context("b")),
            format!("b: a: {}", denied())
        );
    }

    #[test]
    fn what_changes_the_host_is_told_from_what_reads() {
        let changes = |line: &str| {
            let words = std::iter::once("evenkeel").chain(line.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).command.changes()
        };
        for line in [
            "exec --nice 5 -- true",
            "exec --cpu-limit auto -- true",
            "exec --weight 50 -- true",
            "exec --shares 50 -- true",
            "exec --cpus 0 -- true",
            "exec --slice 3ms -- true",
            "lab run equal",
            "net set --irq 1=0",
            "net limit --link lo --group /a=1mbit",
            "tenants net",
            "tenants cpu --quick",
            "tune redis.toml",
            "prove",
            "demo --quick",
        ] {
            assert!(changes(line), "{line}");
        }
        for line in [
            "exec -- true",
            "lab list",
            "lab report x",
            "lab compare x y",
            "net show",
            "tenants report x",
            "tenants compare x y",
            "tune --check redis.toml",
            "restore",
            "plan",
            "check",
            "ps",
            "serve",
            "load spin --seconds 1",
        ] {
            assert!(!changes(line), "{line}");
        }
    }

    #[test]
    fn a_command_that_does_not_draw_refuses_a_picture_and_says_which_do() {
        let asked = |line: &str| {
            let words = format!("evenkeel -o svg {line}");
            let (cli, name) = parse(words.split(' ').map(OsString::from)).unwrap();
            refuse_picture(&cli, &name)
        };
        for (line, name) in [
            ("ps", "ps"),
            ("exec -- true", "exec"),
            ("run --scope all", "run"),
            ("plan", "plan"),
            ("net show", "net show"),
            ("lab list", "lab list"),
            ("lab run neighbour", "lab run"),
            ("tenants compare a b", "tenants compare"),
            ("completions bash", "completions"),
        ] {
            let Err(Failure::Usage(error)) = asked(line) else { panic!("{line} is not refused") };
            let expected =
                format!("{name} has no output svg; `topology`, `why` and `lab report` of neighbour draw");
            assert_eq!(error.to_string(), expected);
        }
        for line in ["topology", "why pid:1", "lab report folder"] {
            assert!(asked(line).is_ok(), "{line}");
        }
    }
}
