//! `evenkeel price`: what a job takes and costs on instance types whose rule about CPU use is known.

pub(super) mod account;
mod rows;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_model::families;
use evenkeel_model::price::Ask;
use evenkeel_model::price::file::{self, Prices};
use evenkeel_report::time;
use serde_json::json;

use super::{Failure, Format, Global, Outcome, show};
use rows::Row;

/// Compute what a job takes and costs on instance types whose rule about CPU use is known.
///
/// Credits, shared cores, ceilings and throttled bursts decide how long a job takes on a small instance. From the job's CPU time
/// and its shape this gives the time on each known type, the CPU limit where one helps, and with --prices the money, least
/// first. It touches nothing and needs no privilege or network. Percent is of ONE CPU.
///
/// Example: evenkeel price --cpu-minutes 180 --threads 1
///
/// Example: evenkeel price --cpu-minutes 20.5 --busy 0.91 --prices prices.toml
///
/// Example: evenkeel price --cpu-minutes 5 --every 1h --type 't3.*' -o json
///
/// Example: evenkeel exec --account run.json -- make && evenkeel price --measure-from run.json
#[derive(Debug, clap::Args)]
pub struct Args {
    /// CPU time the job needs, minutes of one CPU: user and sys of `time` or `evenkeel exec`, divided by 60.
    #[arg(
        long,
        value_name = "MINUTES",
        allow_negative_numbers = true,
        required_unless_present = "measure_from"
    )]
    cpu_minutes: Option<f64>,
    /// Instead: take the job's CPU time, and its share unless --busy is given, from the account of a run
    /// (`evenkeel exec --account FILE`) that nothing held back.
    #[arg(long, value_name = "FILE", conflicts_with = "cpu_minutes")]
    measure_from: Option<PathBuf>,
    /// Threads that it keeps busy at the same time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Share of the time in which each thread wants a CPU, 0.001 to 1; the rest it waits for disks and the like. Unless given
    /// or measured, 1.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    busy: Option<f64>,
    /// Only types with at least so much memory, GiB (types whose memory is not known are shown).
    #[arg(long, value_name = "GIB", allow_negative_numbers = true)]
    memory: Option<f64>,
    /// The job starts again and again, so long after its last start, on a machine that stays on: such as 1h or 1day.
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    every: Option<Duration>,
    /// Only these types, such as t3.micro or 't3.*'; repeatable.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Prices (TOML): `currency = "USD"`, then for each type `[[price]]` with `name`, `hour` (money an hour), and if wanted
    /// `surplus_cpu_hour`; a type without a known rule needs `cpus`, too.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    let job = Job::of(&args).map_err(Failure::Usage)?;
    let ask = Ask::new(job.cpu_minutes, args.threads, job.busy, job.every_s)
        .map_err(|error| Failure::Usage(error.into()))?;
    if let Some(gib) = args.memory.filter(|gib| !(0.0..=1e6).contains(gib)) {
        return Err(usage!("--memory {gib}: GiB from 0 to 1000000"));
    }
    let prices = args.prices.as_deref().map(read).transpose().map_err(Failure::Usage)?;
    let mut rows = match &prices {
        Some(prices) => rows::priced(prices, &ask),
        None => families::known().iter().map(|family| rows::family(family, &ask)).collect(),
    };
    rows.retain(|row| row.has_memory(args.memory));
    rows.retain(|row| args.types.is_empty() || args.types.iter().any(|pattern| row.is(pattern)));
    if rows.is_empty() {
        return Err(Failure::No(none_left(&args)));
    }
    rows::sort(&mut rows);
    let currency = prices.as_ref().map(|prices| prices.currency.as_str());
    match global.output {
        Format::Text | Format::Svg => {
            outln!("{}\n", about(&args, &job))?;
            out!("{}", rows::text_table(currency).text(&rows, show::width()))?;
            notes(&rows, prices.is_some())?;
        }
        Format::Csv => out!("{}", rows::document_table().csv(&rows))?,
        Format::Json => outln!("{:#}", document(&args, &job, &rows, currency))?,
    }
    Ok(0)
}

/// Reads a file of prices.
fn read(path: &Path) -> anyhow::Result<Prices> {
    let text =
        evenkeel_linux::input::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(file::parse(path, &text)?)
}

/// The job as it is known.
struct Job {
    cpu_minutes: f64,
    busy: f64,
    every_s: Option<f64>,
}

impl Job {
    fn of(args: &Args) -> anyhow::Result<Self> {
        let every_s = args.every.map(|every| every.as_secs_f64());
        let (cpu_minutes, busy) = match &args.measure_from {
            Some(path) => {
                let account = account::Account::read(path)?;
                let cpu_minutes = account.cpu_minutes(args.threads)?;
                let busy = args.busy.map_or_else(|| account.busy(args.threads), Ok)?;
                if args.busy.is_none() && account.may_have_waited_more() {
                    say!(
                        "evenkeel: {}: waits of short-lived tasks are not in it: if the run waited for a CPU, its times here are too \
                         long; --busy says what share of the time it wants one",
                        path.display()
                    );
                }
                (cpu_minutes, busy)
            }
            None => (args.cpu_minutes.unwrap_or_default(), args.busy.unwrap_or(1.0)),
        };
        Ok(Self { cpu_minutes, busy, every_s })
    }
}

fn none_left(args: &Args) -> anyhow::Error {
    let from = match &args.prices {
        Some(path) => format!("of the types in {}", path.display()),
        None => "of the known types".to_owned(),
    };
    anyhow!("none {from} is named so and has the memory asked for; without --type and --memory all are shown")
}

/// The job, and what is assumed of the machine.
fn about(args: &Args, job: &Job) -> String {
    let threads = match args.threads {
        1 => "1 thread that wants".to_owned(),
        n => format!("{n} threads that each want"),
    };
    let machine = match job.every_s {
        Some(every_s) => format!("every {}, on a machine that stays on", time::length(every_s)),
        None => "once, on a machine just started".to_owned(),
    };
    // At most three decimals, none that say nothing.
    let minutes = (1000.0 * job.cpu_minutes).round() / 1000.0;
    format!("{minutes} CPU minutes by {threads} a CPU {:.0} % of the time; {machine}", 100.0 * job.busy)
}

/// What people want to know of the table.
fn notes(rows: &[Row], priced: bool) -> Result<(), Failure> {
    let mut notes: Vec<&str> = Vec::new();
    if !priced {
        notes.push(
            "No prices are known. To see money, write them to a file and name it by --prices FILE:\n  currency = \"USD\"\n  \
             [[price]]\n  name = \"t3.micro\"\n  hour = 0.01",
        );
    }
    if rows.iter().any(Row::may_be_unlimited) {
        notes.push(
            "Where credits are spent, an \"unlimited\" instance is billed instead; a price surplus_cpu_hour shows that.",
        );
    }
    if notes.is_empty() {
        return Ok(());
    }
    outln!("\n{}", notes.join("\n"))
}

fn document(args: &Args, job: &Job, rows: &[Row], currency: Option<&str>) -> serde_json::Value {
    json!({
        "schema": "evenkeel.price/v1",
        "job": {
            "cpu_minutes": job.cpu_minutes,
            "threads": args.threads,
            "busy": job.busy,
            "memory_gib": args.memory,
            "every_s": job.every_s,
        },
        "currency": currency,
        "types": rows::document_table().json(rows),
    })
}
