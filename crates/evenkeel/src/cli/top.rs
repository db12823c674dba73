//! `evenkeel top`: the host on a terminal, live. The screens are in `evenkeel-terminal`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use evenkeel_terminal::{Grouping, Host, MIN_INTERVAL, Options, Running, Skin};

use super::{Failure, Global, Outcome, status, stop, why};

/// Show the host live: who uses the CPU and who waits, on which cores, why, what the loop does, and the history.
///
/// Screens: 1 the tree of pods, containers, virtual machines and services, 2 cores × tasks, 3 the cores, 4 the loop,
/// 5 the history with a time cursor. `?` shows all keys, w tells why the chosen one waits, q ends. Percent is of ONE CPU;
/// `?` in a column is unknown.
///
/// Example: evenkeel top --by container --interval 2s
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What a line of the tree is; b goes through all.
    #[arg(long, value_name = "WHAT", default_value = Grouping::default().name(), value_parser = grouping())]
    by: Grouping,
    /// Time between two samples.
    #[arg(long, default_value = "1s", value_parser = super::duration)]
    interval: Duration,
}

fn grouping() -> impl TypedValueParser<Value = Grouping> {
    let values = Grouping::ALL.map(|by| PossibleValue::new(by.name()).help(by.about()));
    PossibleValuesParser::new(values).map(|name| Grouping::named(&name).unwrap_or_default())
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if args.interval < MIN_INTERVAL {
        return Err(usage!("--interval {:?}: at least {MIN_INTERVAL:?}", args.interval));
    }
    global.no_tree("top shows this host as it runs; `evenkeel ps --root` shows a tree")?;
    let instead = "`evenkeel ps` prints one shot, also as JSON";
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(usage!("top needs a terminal; {instead}"));
    }
    let skin =
        Skin::from_environment(|name| std::env::var(name).ok()).map_err(|why| usage!("{why}; {instead}"))?;
    let options = Options {
        interval: args.interval,
        grouping: args.by,
        sampling: global.sampling.unwrap_or_default(),
        state_dir: global.state_dir.clone(),
        skin,
        stop: stop::on_signals()?,
    };
    let host = Arc::new(Program { state_dir: global.state_dir.clone() });
    evenkeel_terminal::run(options, host).map_err(|error| Failure::Cannot(error.into()))?;
    Ok(0)
}

/// What the screens ask other commands.
struct Program {
    state_dir: PathBuf,
}

impl Host for Program {
    fn why(&self, target: &str, duration: Duration, width: u16, stop: &AtomicBool) -> Result<String, String> {
        why::text(target, duration, width, stop).map_err(|failure| {
            let (Failure::No(error) | Failure::Usage(error) | Failure::Cannot(error)) = failure;
            super::in_words(&error)
        })
    }

    fn running(&self) -> Result<Running, String> {
        let (headline, record) = status::at_work(&self.state_dir).map_err(|error| super::in_words(&error))?;
        Ok(Running { headline, record: record.map(Box::new) })
    }
}
