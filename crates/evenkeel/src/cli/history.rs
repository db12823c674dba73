//! `evenkeel history`.

mod course;
mod page;
mod parquet;
mod rates;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use evenkeel_report::html;
use evenkeel_report::run::{self, DocumentKind};
use evenkeel_report::{Field, Kind, Table, Value, table, time};
use evenkeel_store::{RunId, Store, StoreError, StoredChange, StoredRun, TrialWindow, Usage};
use serde::Serialize;
use serde_json::json;

use super::show::pretty;
use super::when::{self, When};
use super::{Failure, Format, Global, Outcome, status};
use jiff::Timestamp;
pub(super) use rates::{By, lines};

/// List past runs; show one run's stages and changes, who got the CPU over some past time, or one target minute by minute.
///
/// Example: evenkeel history --since 10m --by container
///
/// Example: evenkeel history --of container:web --from 14:00 --to 15:00
///
/// Example: evenkeel history --since 1d --by container --limit 0 --parquet containers.parquet
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show this run: its number, or `last`.
    #[arg(long, value_name = "N", value_parser = parse_run, conflicts_with = "time")]
    run: Option<RunChoice>,
    /// With --run and -o csv: the changes rather than the stages.
    #[arg(long, requires = "run")]
    changes: bool,
    /// Show rates from the stored samples of this long ago until now, such as 10m or 2h.
    #[arg(long, value_name = "DURATION", value_parser = super::duration, group = "time")]
    since: Option<Duration>,
    /// Show rates from this time on: 14:00 (the last one that has passed), "2026-11-22 14:00", 2026-11-22T14:00:00+01:00; UTC
    /// where it does not say.
    #[arg(long, value_name = "TIME", value_parser = when::parse, group = "time")]
    from: Option<When>,
    /// With --from: until this time, written alike; without it, until now.
    #[arg(long, value_name = "TIME", value_parser = when::parse, requires = "from")]
    to: Option<When>,
    /// With --since or --from: what to sum over.
    #[arg(long, value_enum, default_value_t = By::Process, requires = "time", conflicts_with = "of")]
    by: By,
    /// With --since or --from: the course of one scope, one line for each --every: pid:N, comm:REGEX, cgroup:/PATH, container:NAME or
    /// pod:NS/NAME; a * at the end of NS or NAME stands for anything.
    #[arg(long, value_name = "SCOPE", requires = "time")]
    of: Option<String>,
    /// With --of: time of a line, whole minutes.
    #[arg(long, value_name = "DURATION", value_parser = course::step, default_value = "1m", requires = "of")]
    every: Duration,
    /// With --since or --from: show at most this many lines, busiest first; 0 shows all.
    #[arg(long, value_name = "N", default_value_t = 40, requires = "time", conflicts_with = "of")]
    limit: usize,
    /// Write the page of a run (the last one, or --run) to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "time")]
    html: Option<PathBuf>,
    /// Write the table that -o csv prints to this file as Parquet: typed columns, times as timestamps, unknown as null.
    #[arg(long, value_name = "FILE", conflicts_with = "html")]
    parquet: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunChoice {
    Last,
    Number(i64),
}

pub(super) fn parse_run(text: &str) -> Result<RunChoice, String> {
    match text {
        "last" => Ok(RunChoice::Last),
        _ => text.parse().map(RunChoice::Number).map_err(|_| "a run's number, or `last`".to_owned()),
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("a captured tree has no history; name a --state-dir instead")?;
    let span = (args.since.is_some() || args.from.is_some())
        .then(|| when::span(Timestamp::now(), args.since, args.from, args.to))
        .transpose()
        .map_err(Failure::Usage)?;
    let who = args.of.as_deref().map(|text| {
        evenkeel_store::who(text).map(|who| (text, who)).map_err(|why| usage!("--of {text:?}: {why}"))
    });
    let who = who.transpose()?;
    let path = global.state_dir.join(evenkeel_store::FILE_NAME);
    let store = Store::open_read_only(&path).map_err(failure)?;
    let words = no_runs(&path, store.is_some());
    let Some(store) = store else { return nothing(global, &args, &path, &words) };
    let out = if let (Some(span), Some((text, who))) = (span, &who) {
        course::course(global, &args, &store, (text, who), span)?
    } else if let Some(span) = span {
        rates::rates(global, &args, &store, span)?
    } else if let Some(file) = &args.html {
        let Some(run) = choose(&store, args.run.unwrap_or(RunChoice::Last)).map_err(failure)? else {
            return nothing(global, &args, &path, &words);
        };
        let page = html::run(&page::page(&store, &run).map_err(failure)?);
        std::fs::write(file, page)
            .with_context(|| format!("cannot write {}", file.display()))
            .map_err(Failure::Cannot)?;
        format!("{}\n", file.display())
    } else if let Some(choice) = args.run {
        let Some(run) = choose(&store, choice).map_err(failure)? else {
            return nothing(global, &args, &path, &words);
        };
        one(global, &args, &store, &run)?
    } else {
        list(global, &args, &store)?
    };
    print(&out)
}

/// A run that is not there is the user's mistake, everything else the host's.
pub(super) fn failure(error: StoreError) -> Failure {
    match error {
        StoreError::NoRun { .. } => Failure::Usage(error.into()),
        _ => Failure::Cannot(error.into()),
    }
}

fn print(out: &str) -> Outcome {
    out!("{out}")?;
    Ok(0)
}

fn nothing(global: &Global, args: &Args, path: &Path, words: &str) -> Outcome {
    if let (RunChoice::Number(run), true) = (args.run.unwrap_or(RunChoice::Last), args.run.is_some()) {
        return Err(usage!("nothing recorded in {}: there is no run {run}", path.display()));
    }
    if args.parquet.is_some() {
        return Err(usage!("nothing recorded in {}: no file is written", path.display()));
    }
    match global.output {
        Format::Json => print(&pretty(
            &json!({ "schema": "evenkeel.history/v1", "runs": [], "store": null, "rates": null, "series": null }),
        )?),
        Format::Csv => print(&no_lines(args)),
        Format::Text | Format::Svg => print(words),
    }
}

/// The table that was asked for, without lines.
fn no_lines(args: &Args) -> String {
    match (args.run, &args.of) {
        (Some(_), _) if args.changes => run::change_table(true).csv(&[]),
        (Some(_), _) => run::stage_table().csv(&[]),
        (_, Some(_)) => course::step_table(false, true).csv(&[]),
        _ if args.since.is_some() || args.from.is_some() => rates::line_table(args.by, true, true).csv(&[]),
        _ => run_table().csv(&[]),
    }
}

/// What is said where no run was recorded, with a store or without one.
pub(super) fn no_runs(path: &Path, has_store: bool) -> String {
    let why = match has_store {
        true => "of any run in this file; `evenkeel history --since 1h` shows samples",
        false => "there: neither `evenkeel run` nor `serve` was at work with this --state-dir",
    };
    format!("{}: nothing recorded {why}.\n", path.display())
}

pub(super) fn choose(store: &Store, choice: RunChoice) -> Result<Option<StoredRun>, StoreError> {
    match choice {
        RunChoice::Last => store.last_run(),
        RunChoice::Number(run) => store.run(RunId(run)).map(Some),
    }
}

fn run_table() -> Table<StoredRun> {
    let low_high = |name, pick: fn(&StoredRun) -> Option<f64>| {
        Field::number(name, name, 3, move |run: &StoredRun| pick(run)).documents_only()
    };
    Table::new(vec![
        Field::integer("run", "RUN", |run: &StoredRun| Some(run.id.0)),
        Field::instant("started", "STARTED (UTC)", |run: &StoredRun| Some(run.record.started_ns)),
        Field::new("seconds", "SECONDS", |run: &StoredRun| {
            let seconds = run.ended_ns.map(|end| end.saturating_sub(run.record.started_ns) as f64 / 1e9);
            seconds.map_or(Value::Unknown, Value::Number)
        })
        .kind(Kind::Number)
        .right(),
        Field::new("scope", "SCOPE", |run: &StoredRun| Value::List(run.record.scope.clone()))
            .kind(Kind::List),
        Field::number("baseline", "BASELINE", 3, |run: &StoredRun| run.record.baseline.map(|e| e.value)),
        low_high("baseline_low", |run| run.record.baseline.map(|e| e.low)),
        low_high("baseline_high", |run| run.record.baseline.map(|e| e.high)),
        Field::number("now", "AT END", 3, |run: &StoredRun| run.record.now.map(|e| e.value)),
        low_high("now_low", |run| run.record.now.map(|e| e.low)),
        low_high("now_high", |run| run.record.now.map(|e| e.high)),
        Field::text("settings", "SETTINGS", |run: &StoredRun| run.record.settings.clone()),
        Field::text("outcome", "OUTCOME", |run: &StoredRun| run.outcome.clone()),
        Field::text("boot_id", "BOOT", |run: &StoredRun| run.boot_id.clone()).documents_only(),
    ])
}

/// One run as the history has it.
#[derive(Serialize)]
struct StoredRunDocument<'a> {
    #[serde(flatten)]
    of_run: run::Document<'a>,
    run: RunId,
    boot_id: &'a str,
    ended: Option<String>,
    outcome: Option<&'a str>,
    trials: Vec<TrialWindow>,
}

/// What the history takes and how far it reaches.
#[derive(Serialize)]
struct UsageDocument {
    disk_bytes: u64,
    sample_bytes: u64,
    samples: SamplesKept,
    oldest: Option<String>,
    newest: Option<String>,
}

#[derive(Serialize)]
struct SamplesKept {
    full_rate: u64,
    ten_s: u64,
    sixty_s: u64,
}

impl From<&Usage> for UsageDocument {
    fn from(usage: &Usage) -> Self {
        let [full_rate, ten_s, sixty_s] = usage.samples;
        Self {
            disk_bytes: usage.disk_bytes,
            sample_bytes: usage.sample_bytes,
            samples: SamplesKept { full_rate, ten_s, sixty_s },
            oldest: usage.span_ns.and_then(|span| time::rfc3339(span.0)),
            newest: usage.span_ns.and_then(|span| time::rfc3339(span.1)),
        }
    }
}

fn list(global: &Global, args: &Args, store: &Store) -> Result<String, Failure> {
    let runs = store.runs().map_err(failure)?;
    let table = run_table();
    if let Some(file) = &args.parquet {
        return parquet::write(file, &table, &runs, Vec::new());
    }
    let usage = store.usage().map_err(failure)?;
    match global.output {
        Format::Json => pretty(&json!({
            "schema": "evenkeel.history/v1",
            "runs": table.json(&runs),
            "store": UsageDocument::from(&usage),
        })),
        Format::Csv => Ok(table.csv(&runs)),
        Format::Text | Format::Svg => {
            let mut text = if runs.is_empty() {
                "No runs recorded.\n".to_owned()
            } else {
                table.text(&runs, table::width(std::io::stdout().is_terminal()))
            };
            let span = usage.span_ns.map_or_else(String::new, |(first, last)| {
                format!(" from {} to {} UTC", time::short(first), time::short(last))
            });
            let [full, ten, sixty] = usage.samples;
            text.push_str(&format!(
                "\nSamples{span}: {full} at full rate, {ten} one in 10 s, {sixty} one in 60 s; {} on disk.\n",
                time::bytes(usage.disk_bytes)
            ));
            Ok(text)
        }
    }
}

fn one(global: &Global, args: &Args, store: &Store, stored: &StoredRun) -> Result<String, Failure> {
    let changes = store.changes(stored.id).map_err(failure)?;
    let width = table::width(std::io::stdout().is_terminal());
    if let Some(file) = &args.parquet {
        let about = vec![("run", stored.id.0.to_string())];
        return match args.changes {
            true => parquet::write(file, &run::change_table(true), changes.iter().map(|c| &c.change), about),
            false => parquet::write(file, &run::stage_table(), &stored.record.stages, about),
        };
    }
    match global.output {
        Format::Json => {
            let mut of_run = run::Document::of(&stored.record, DocumentKind::Run);
            of_run.changes = stored_change_json(&changes);
            pretty(&json!(StoredRunDocument {
                of_run,
                run: stored.id,
                boot_id: &stored.boot_id,
                ended: stored.ended_ns.and_then(time::rfc3339),
                outcome: stored.outcome.as_deref(),
                trials: store.trials(stored.id).map_err(failure)?,
            }))
        }
        Format::Csv if args.changes => Ok(run::change_table(true).csv(changes.iter().map(|c| &c.change))),
        Format::Csv => Ok(run::stage_table().csv(&stored.record.stages)),
        Format::Text | Format::Svg => {
            let ended = match stored.ended_ns {
                Some(end) => format!(
                    "ended {} UTC ({})",
                    time::short(end),
                    stored.outcome.as_deref().unwrap_or("no outcome told")
                ),
                None => "not ended (running, or killed)".to_owned(),
            };
            let mut text = format!(
                "Run {}, started {} UTC, {ended}\n\n{}",
                stored.id.0,
                time::short(stored.record.started_ns),
                run::summary(&stored.record)
            );
            if !stored.record.stages.is_empty() {
                text.push('\n');
                text.push_str(&run::stage_table().text(&stored.record.stages, width));
            }
            // Who restored what a killed run left does not write into its record.
            let in_force = match stored.ended_ns.is_some() || status::is_running(&global.state_dir, stored) {
                true => "Changes in force",
                false => "Changes in force when it was seen last",
            };
            for (heading, undone) in [(in_force, false), ("Changes taken back", true)] {
                let some: Vec<_> =
                    changes.iter().filter(|c| c.undone_ns.is_some() == undone).map(|c| &c.change).collect();
                if !some.is_empty() {
                    text.push_str(&format!("\n{heading}:\n"));
                    text.push_str(&run::change_table(true).text(some, width));
                }
            }
            if changes.is_empty() {
                text.push_str(
                    "\nNo change was kept; what was tried is in the stages, and `replay` has its windows.\n",
                );
            }
            Ok(text)
        }
    }
}

fn stored_change_json(changes: &[StoredChange]) -> Vec<serde_json::Value> {
    let mut objects = run::change_table(true).json(changes.iter().map(|change| &change.change));
    for (object, change) in objects.iter_mut().zip(changes) {
        object["undone"] = json!(change.undone_ns.and_then(time::rfc3339));
    }
    objects
}
