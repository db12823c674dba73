//! `evenkeel tune`: searches a service's best settings.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use evenkeel_console as console;
use evenkeel_report::html::{self, TunePage};
use evenkeel_report::{significant, table};
use evenkeel_tune::search::{Method, Reason};
use evenkeel_tune::{Event, Options, Reading, Runner, TrialRecord, Tune, TuneError, TuneResult};
use serde_json::json;

use super::show::pretty;
use super::{Failure, Format, Global, Outcome, stop};

/// Search a service's best settings by measured trials: threads, quotas, its own options.
///
/// The file says what may be varied, how to start and load the service, and what is wanted (docs/tune.md). Every trial is
/// on record before the next begins: the same command goes on after Ctrl-C, a crash or kill -9. Nothing of a trial is left
/// running. The directory gets result.json, trials.csv and report.html.
///
/// Exit status: 0 done; 1 no settings work and keep the constraints, or interrupted; 2 the file or the directory is not
/// right; 3 the host cannot.
///
/// Example: evenkeel tune redis.toml --trials 40
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to tune (TOML).
    file: PathBuf,
    /// Directory of the record and the results [default: the file's name with .tune, in the working directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Start over: throw the trials on record away.
    #[arg(long)]
    fresh: bool,
    /// How points are chosen, instead of the file's method.
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Runs in all, instead of the file's budget.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trials: Option<u32>,
    /// Time in all, instead of the file's budget.
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    time: Option<Duration>,
    /// Seed, instead of the file's.
    #[arg(long)]
    seed: Option<u64>,
    /// Only check the file.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// Whether it runs trials.
    pub fn changes(&self) -> bool {
        !self.check
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    let mut tune = evenkeel_tune::load(&args.file).map_err(|e| usage!(e))?;
    let file = &mut tune.file;
    if let Some(method) = args.method {
        file.search.method = method;
    }
    if let Some(trials) = args.trials {
        file.budget.trials = Some(trials as usize);
    }
    if let Some(seed) = args.seed {
        file.search.seed = seed;
    }
    tune.time = args.time.or(tune.time);
    if args.check {
        match global.output {
            Format::Json => outln!("{:#}", checked_document(&tune))?,
            Format::Csv => return Err(usage!("--check has no table; use -o text or json")),
            Format::Text | Format::Svg => out!("{}", checked(&tune))?,
        }
        return Ok(0);
    }
    let dir = args.dir.unwrap_or_else(|| {
        let stem =
            args.file.file_stem().map_or_else(|| "evenkeel".into(), |s| s.to_string_lossy().into_owned());
        PathBuf::from(format!("{stem}.tune"))
    });
    let stop = stop::on_signals()?;
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let runner = Runner { binary, state_dir: global.state_dir.clone() };
    let topology = evenkeel_observe::topology::read_topology(&evenkeel_linux::Root::host()).ok();
    let host = evenkeel_lab::runner::facts(topology.as_ref());
    let options = Options { dir: dir.clone(), fresh: args.fresh, host };
    let mut progress =
        Progress { shown: std::io::stderr().is_terminal() || global.verbose > 0, unit: unit(&tune) };
    let (result, records) =
        evenkeel_tune::run(&tune, &runner, &options, stop, &mut |event| progress.tell(&event))
            .map_err(failure)?;
    let page = evenkeel_tune::page(&tune, &result, &records);
    write_files(&tune, &result, &records, &page, &dir)?;
    let text = match global.output {
        Format::Json => pretty(&result)?,
        Format::Csv => TuneResult::csv(&tune, &records),
        Format::Text | Format::Svg => text(&page, &dir),
    };
    out!("{text}")?;
    if result.interrupted {
        say!("evenkeel: interrupted after {} trials; the same command goes on from there", result.trials);
        return Ok(1);
    }
    Ok(u8::from(result.best.is_none()))
}

fn failure(error: TuneError) -> Failure {
    match error {
        TuneError::Other { .. }
        | TuneError::OtherHost { .. }
        | TuneError::Foreign(_)
        | TuneError::Damaged { .. }
        | TuneError::Simulation(_) => Failure::Usage(error.into()),
        TuneError::Hopeless { .. } if !rustix::process::geteuid().is_root() => Failure::Cannot(
            anyhow::Error::from(error)
                .context("limits, weights and CPUs are set through cgroups: run as root"),
        ),
        TuneError::Hopeless { .. } => Failure::No(error.into()),
        TuneError::Io { .. } | TuneError::Busy(_) | TuneError::Taken(_) => Failure::Cannot(error.into()),
    }
}

fn unit(tune: &Tune) -> String {
    let unit = tune.readings.first().map_or("", |r| r.unit.as_str());
    if unit.is_empty() { String::new() } else { format!(" {unit}") }
}

fn checked(tune: &Tune) -> String {
    let mut out = format!("{}: {} parameters", tune.name, tune.space.dim());
    let count = tune.space.count().map_or_else(|| "infinitely many".into(), |n| n.to_string());
    let _ = writeln!(out, ", {count} points; {} search", tune.file.search.method);
    for reading in &tune.readings {
        let _ = writeln!(out, "  reads {} {}", reading.name, reading.unit);
    }
    for constraint in &tune.constraints {
        let _ = writeln!(out, "  keeps {}", constraint.text);
    }
    out
}

fn checked_document(tune: &Tune) -> serde_json::Value {
    let reading = |r: &Reading| json!({"name": r.name, "unit": r.unit});
    json!({
        "schema": "evenkeel.tune-check/v1",
        "name": tune.name,
        "method": tune.file.search.method.to_string(),
        "parameters": tune.space.parameters().iter().map(|p| &p.name).collect::<Vec<_>>(),
        "points": tune.space.count(),
        "quantities": tune.readings.iter().map(reading).collect::<Vec<_>>(),
        "constraints": tune.file.constraints,
    })
}

/// Progress, on a terminal.
struct Progress {
    shown: bool,
    unit: String,
}

impl Progress {
    fn tell(&mut self, event: &Event<'_>) {
        if !self.shown {
            return;
        }
        match event {
            Event::Resumed(trials) => say!("going on after {trials} trials on record"),
            Event::Warm(warm) => {
                for w in *warm {
                    say!("the simulator expects {} with {}", significant(w.predicted), w.settings.words());
                }
            }
            Event::Begins { number, left, settings, reason } => {
                let of = left.map_or_else(String::new, |left| format!("/{}", number - 1 + left));
                let why = match reason {
                    Reason::New => "",
                    Reason::Confirm => " (again)",
                    Reason::LastRound => " (final comparison)",
                };
                console::message(&format!("{number}{of}  {}{why}: ", settings.words()));
            }
            Event::Ended(record) => match (&record.values, &record.error) {
                (Some(values), _) => {
                    say!("{}{}", values.first().map_or_else(String::new, |v| significant(*v)), self.unit);
                }
                (None, why) => say!("failed: {}", why.as_deref().unwrap_or("")),
            },
        }
    }
}

fn text(page: &TunePage, dir: &Path) -> String {
    let width = usize::from(table::width(std::io::stdout().is_terminal()).unwrap_or(110));
    format!("{}\nReport: {}\n", page.text(width), dir.join("report.html").display())
}

fn write_files(
    tune: &Tune,
    result: &TuneResult,
    records: &[TrialRecord],
    page: &TunePage,
    dir: &Path,
) -> Result<(), Failure> {
    for (name, text) in [
        ("result.json", pretty(result)?),
        ("trials.csv", TuneResult::csv(tune, records)),
        ("report.html", html::tune(page)),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
