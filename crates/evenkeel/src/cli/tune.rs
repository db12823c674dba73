//! `evenkeel tune`: searches a service's best settings.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use evenkeel_report::html::{self, SettingRow, TunePage};
use evenkeel_report::svg::Trial;
use evenkeel_report::{significant, table};
use evenkeel_tune::search::{Method, Reason};
use evenkeel_tune::{Candidate, Event, Options, Runner, TrialRecord, Tune, TuneError, TuneResult};

use super::{Failure, Format, Global, Outcome, stop};
use crate::cli::console;

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
    /// Begin anew: throw the trials on record away.
    #[arg(long)]
    fresh: bool,
    /// How points are chosen, instead of the file's method.
    #[arg(long, value_enum)]
    method: Option<MethodName>,
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

/// See [`Method`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodName {
    /// Every point of a grid.
    Exhaustive,
    /// Evenly drawn.
    Random,
    /// Downhill along one parameter at a time.
    Coordinate,
    /// Downhill along the gradient.
    Gradient,
    /// Where a Gaussian process expects the largest improvement.
    Bayesian,
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Self {
        match name {
            MethodName::Exhaustive => Self::Exhaustive,
            MethodName::Random => Self::Random,
            MethodName::Coordinate => Self::Coordinate,
            MethodName::Gradient => Self::Gradient,
            MethodName::Bayesian => Self::Bayesian,
        }
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if matches!(global.output, Format::Svg) {
        return Err(Failure::Usage(anyhow!(
            "tune draws its pictures into report.html; use -o text, json or csv"
        )));
    }
    let mut tune = evenkeel_tune::load(&args.file).map_err(|e| Failure::Usage(anyhow!(e)))?;
    let file = &mut tune.file;
    if let Some(method) = args.method {
        file.search.method = method.into();
    }
    if let Some(trials) = args.trials {
        file.budget.trials = Some(trials as usize);
    }
    if let Some(seed) = args.seed {
        file.search.seed = seed;
    }
    tune.time = args.time.or(tune.time);
    if args.check {
        out!("{}", checked(&tune))?;
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
    let options = Options { dir: dir.clone(), fresh: args.fresh };
    let mut progress =
        Progress { shown: std::io::stderr().is_terminal() || global.verbose > 0, unit: unit(&tune) };
    let (result, records) =
        evenkeel_tune::run(&tune, &runner, &options, stop, &mut |event| progress.tell(&event))
            .map_err(failure)?;
    write_files(&tune, &result, &records, &dir)?;
    let mut out = console::results();
    let text = match global.output {
        Format::Json => serde_json::to_string_pretty(&result).context("cannot write the result")? + "\n",
        Format::Csv => TuneResult::csv(&tune, &records),
        Format::Text | Format::Svg => text(&tune, &result, &dir),
    };
    out.write_all(text.as_bytes()).context("cannot write to stdout")?;
    if result.interrupted {
        say!("evenkeel: interrupted after {} trials; the same command goes on from there", result.trials);
        return Ok(1);
    }
    Ok(u8::from(result.best.is_none()))
}

fn failure(error: TuneError) -> Failure {
    match error {
        TuneError::Other { .. }
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

fn how(result: &TuneResult) -> String {
    format!(
        "{} search, {} trials of {} settings in {:.0} s; goal: {} {}{}",
        result.method,
        result.trials,
        result.points,
        result.seconds,
        result.goal,
        result.objective,
        if result.constraints.is_empty() {
            String::new()
        } else {
            format!("; {}", result.constraints.join(", "))
        }
    )
}

fn text(tune: &Tune, result: &TuneResult, dir: &std::path::Path) -> String {
    let width = usize::from(table::width(std::io::stdout().is_terminal()).unwrap_or(110));
    let mut out = format!("{}: {}\n\n", result.name, how(result));
    out += &table::wrap(&result.answer(), width);
    out.push('\n');
    let value = |c: &Option<Candidate>, name: &str| {
        c.as_ref().and_then(|c| c.settings.0.get(name).cloned()).unwrap_or_else(|| "-".into())
    };
    let number = |c: &Option<Candidate>, name: &str| {
        c.as_ref().and_then(|c| c.quantities.get(name)).map_or_else(|| "-".into(), |v| significant(*v))
    };
    let _ = writeln!(out, "{:24} {:>14} {:>14} {:>10}", "SETTING", "PRESENT", "BEST", "MATTERS");
    for (index, p) in tune.space.parameters().iter().enumerate() {
        let matters = result.importance.as_ref().and_then(|all| all.get(index));
        let matters = matters.map_or_else(|| "?".into(), |i| format!("{:.0} %", 100.0 * i.total));
        let short = |text: String| {
            text.parse::<f64>()
                .map_or(text.clone(), |v| if v.fract() == 0.0 { format!("{v}") } else { significant(v) })
        };
        let (present, best) = (short(value(&result.present, &p.name)), short(value(&result.best, &p.name)));
        let _ = writeln!(out, "{:24} {present:>14} {best:>14} {matters:>10}", p.name);
    }
    for reading in &tune.readings {
        let (present, best) = (number(&result.present, &reading.name), number(&result.best, &reading.name));
        let name = if reading.unit.is_empty() {
            reading.name.clone()
        } else {
            format!("{}, {}", reading.name, reading.unit)
        };
        let _ = writeln!(out, "{name:24} {present:>14} {best:>14}");
    }
    for note in &result.notes {
        out += &table::wrap(&format!("note: {note}"), width);
    }
    let _ = writeln!(out, "\nReport: {}", dir.join("report.html").display());
    out
}

fn write_files(
    tune: &Tune,
    result: &TuneResult,
    records: &[TrialRecord],
    dir: &std::path::Path,
) -> Result<(), Failure> {
    let value = |c: &Option<Candidate>, name: &str| c.as_ref().and_then(|c| c.settings.0.get(name).cloned());
    let number =
        |c: &Option<Candidate>, name: &str| c.as_ref()?.quantities.get(name).map(|v| significant(*v));
    let settings = tune.space.parameters().iter().enumerate().map(|(index, p)| SettingRow {
        name: p.name.clone(),
        present: value(&result.present, &p.name),
        best: value(&result.best, &p.name),
        importance: result.importance.as_ref().and_then(|all| all.get(index)).map(|i| (i.alone, i.total)),
    });
    let quantities = tune.readings.iter().map(|r| {
        (
            format!("{}{}", r.name, if r.unit.is_empty() { String::new() } else { format!(", {}", r.unit) }),
            number(&result.present, &r.name),
            number(&result.best, &r.name),
        )
    });
    let trials = records.iter().enumerate().map(|(index, r)| Trial {
        value: result.values.get(index).copied().flatten(),
        kept: result.kept.get(index).copied().unwrap_or(false),
        best: result.convergence.get(index).copied().flatten(),
        title: match &r.error {
            Some(error) => format!("{} ({error})", r.settings.words()),
            None => r.settings.words(),
        },
    });
    let page = TunePage {
        name: result.name.clone(),
        answer: result.answer(),
        how: how(result),
        axis: format!(
            "{}{}",
            result.objective,
            if result.unit.is_empty() { String::new() } else { format!(", {}", result.unit) }
        ),
        settings: settings.collect(),
        quantities: quantities.collect(),
        trials: trials.collect(),
        notes: result.notes.clone(),
    };
    let json = serde_json::to_string_pretty(result).context("cannot write the result")? + "\n";
    for (name, text) in [
        ("result.json", json),
        ("trials.csv", TuneResult::csv(tune, records)),
        ("report.html", html::tune(&page)),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
