//! `evenkeel record`: what the scheduler did lately, as a trace.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_linux::Root;
use evenkeel_observe::flight::{self, Recording};
use evenkeel_observe::{Detail, Observer, ObserverOptions};
use evenkeel_report::time;

use super::flight::{Flight, ask};
use super::{Failure, Global, Outcome, stop};

/// Write what the scheduler did lately as a trace for Perfetto (ui.perfetto.dev): every switch, wake-up and wait.
///
/// `serve --record 60s` and `run --listen ADDR:PORT --record 60s` keep the last minute in memory; this command writes it. --for
/// records without them, from now on. The trace has a track for each CPU and thread, and for each container and cgroup how
/// many CPUs it used and how many of its threads waited; of `run` also its promises and changes. `why TARGET --at TIME` answers questions about the same time.
///
/// Example: evenkeel record --last 60s > trace.pftrace
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How much of what the agent of this --state-dir kept.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = super::duration)]
    last: Duration,
    /// Record now, for so long, without an agent.
    #[arg(long = "for", value_name = "DURATION", value_parser = super::duration, conflicts_with = "last")]
    duration: Option<Duration>,
    /// Take a recording from a file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["last", "duration"])]
    recording: Option<PathBuf>,
    /// What is written: a trace for Perfetto, or the recording itself, which `why --recording` reads.
    #[arg(long, value_enum, default_value_t = Form::Perfetto)]
    form: Form,
    /// Write to this file rather than to standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// A trace for Perfetto.
    Perfetto,
    /// All that is known.
    Recording,
}

/// Longest time that is recorded at once.
const LONGEST: Duration = Duration::from_secs(600);
/// How soon a signal is seen.
const PATIENCE: Duration = Duration::from_millis(100);

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("a captured tree does not run; leave out --root")?;
    if args.to.is_none() && std::io::stdout().is_terminal() {
        return Err(usage!("a trace is not for a terminal: name a file with --to, or redirect"));
    }
    let recording = match (&args.recording, args.duration) {
        (Some(file), _) => read(file)?,
        (None, Some(time)) => record(time)?,
        (None, None) => ask(&global.state_dir, args.last)?,
    };
    let write = |to: &mut dyn Write| match args.form {
        Form::Perfetto => flight::trace(&recording, &mut { to }),
        Form::Recording => recording.write(&mut { to }),
    };
    let (from, to) = recording.interval_ns();
    match &args.to {
        Some(file) => File::create(file).and_then(|mut file| write(&mut file)),
        None => write(&mut evenkeel_console::results()),
    }
    .with_context(|| match &args.to {
        Some(file) => format!("cannot write {}", file.display()),
        None => "cannot write the trace".to_owned(),
    })?;
    let events: usize = (0..recording.cpus()).map(|cpu| recording.events(cpu).count()).sum();
    let length = time::length((to - from) as f64 / 1e9);
    say!("evenkeel: {length} from {}, {events} events", time::instant(recording.wall_ns(from)));
    Ok(0)
}

/// A recording in a file.
pub(super) fn read(file: &Path) -> Result<Recording, Failure> {
    let open = || -> anyhow::Result<Recording> { Ok(Recording::read(File::open(file)?)?) };
    open().with_context(|| file.display().to_string()).map_err(Failure::Usage)
}

fn record(time: Duration) -> Result<Recording, Failure> {
    if time > LONGEST {
        return Err(usage!("--for {time:?}: at most {LONGEST:?}"));
    }
    stop::on_signals()?;
    let mut observer =
        Observer::new(&Root::host(), ObserverOptions::default()).map_err(anyhow::Error::from)?;
    let flight = Flight::start(&observer, time)
        .map_err(|error| Failure::Cannot(anyhow::Error::from(error).context("BPF programs are needed")))?;
    let before = observer.sample().map_err(anyhow::Error::from)?;
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now())
        && !left.is_zero()
        && !stop::requested()
    {
        std::thread::sleep(left.min(PATIENCE));
    }
    let after = observer.sample().map_err(anyhow::Error::from)?;
    let observation = observer
        .observe_named(&before, &after, &Detail::None, time.min(PATIENCE))
        .map_err(anyhow::Error::from)?;
    Ok(flight.last(time, observation))
}
