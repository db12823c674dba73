//! `evenkeel lab run`.

use std::path::{Path, PathBuf};

use evenkeel_experiment::file::{Experiment, ExperimentError, Place, Wrong};
use evenkeel_experiment::record::{CellRecord, FILE, Host, Record};
use evenkeel_experiment::shard::Shard;
use evenkeel_lab::builtin::{self, Plan};
use evenkeel_lab::fairness::plan::Which;
use evenkeel_lab::neighbour::plan as neighbour_plan;
use evenkeel_lab::runner::{self, About, Options, Run};
use evenkeel_linux::sys::usable_cpus;
use evenkeel_model::units::UnitList;

use super::neighbour::{self, Ladder};
use super::progress::measured;
use super::written::{Report, complete};
use crate::cli::global::root_only;
use crate::cli::tenants::{self, Sweep};
use crate::cli::{Failure, Format, Global, Outcome, stop};

/// Run an experiment: a built-in one by name, or a file (TOML).
///
/// Results go to a folder, each cell as soon as it is finished. Run again after an interruption, it goes on with what
/// is missing. Needs root, for cgroups.
///
/// In full a built-in experiment takes from some minutes to some hours; `lab list` shows how long each takes on this host.
///
/// Example: evenkeel lab run cpu-units-equal --quick --out results/equal
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a built-in experiment (see `lab list`), or an experiment file.
    experiment: String,
    /// Short form of a built-in experiment: at most a minute.
    #[arg(long)]
    quick: bool,
    /// Result folder; unless given, evenkeel-lab/NAME here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Start over although the folder holds results.
    #[arg(long)]
    again: bool,
    /// CPU units of the tenants, in place of the experiment's: 64, 256x4, 8x2x3, 4to64, or several of these.
    #[arg(long, value_name = "LIST")]
    units: Option<String>,
    /// Where the tenants live, in place of the experiment's: cgroup, process, docker or pod.
    #[arg(long, value_name = "PLACE", value_parser = parse_place)]
    place: Option<Place>,
    /// Runs of each tenant, back to back, in place of the experiment's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Length of a run of a built-in load, seconds, in place of the experiment's.
    #[arg(long, value_name = "SECONDS")]
    run_seconds: Option<f64>,
    /// Threads of each tenant's built-in load, in place of the experiment's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Repetitions of every point, in place of the experiment's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: Option<u32>,
    /// Release the first tenants at this instant: RFC 3339, or @seconds since 1970.
    #[arg(long, value_name = "INSTANT")]
    start_at: Option<String>,
    /// End a cell that takes longer, and mark it.
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<f64>,
    /// Run a part of the repetitions, such as 0/4 for the first of four; `lab merge` makes one record of all parts.
    #[arg(long, value_name = "INDEX/COUNT")]
    shard: Option<Shard>,
    /// What this host is called in the record, in place of its own name: in a pod, the node's.
    #[arg(long, value_name = "NAME")]
    host_name: Option<String>,
    /// Install the tenants' commands from Debian packages of the same name where they are missing.
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    ladder: Ladder,
    /// A command to run in place of the tenants' loads.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn parse_place(text: &str) -> Result<Place, String> {
    Place::named(text).ok_or_else(|| "cgroup, process, docker or pod".into())
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if global.output == Format::Csv {
        return Err(usage!("lab run gives -o text or json; reports are made from its folder"));
    }
    let suffix = if args.quick { "-quick" } else { "" };
    let folder_of = |name: &str| Path::new("evenkeel-lab").join(format!("{name}{suffix}"));
    if let Some(which) = Which::named(&args.experiment) {
        refuse_shard(&args)?;
        refuse_tenants(&args, &format!("{which} has options of its own as `evenkeel tenants`"))?;
        refuse_ladder(&args)?;
        let folder = args.out.unwrap_or_else(|| folder_of(which.name()));
        let mut sweep = Sweep::default();
        (sweep.quick, sweep.again, sweep.repetitions, sweep.dir) =
            (args.quick, args.again, args.repetitions, Some(folder));
        return tenants::experiment(global, which, &sweep);
    }
    if args.experiment == neighbour_plan::NAME {
        let instead =
            format!("{} has a service and batch work: see --service, --batch, --load", args.experiment);
        refuse_tenants(&args, &instead)?;
        let options = args.ladder.options(args.quick, args.repetitions)?;
        let folder = args.out.unwrap_or_else(|| folder_of(neighbour_plan::NAME));
        return neighbour::run(global, &options, args.again, &folder);
    }
    refuse_ladder(&args)?;
    if builtin::find(&args.experiment).is_some() {
        refuse_shard(&args)?;
    }
    let stop = stop::on_signals()?;
    let topology = evenkeel_observe::topology::read_topology(&evenkeel_linux::Root::host()).ok();
    let unmeasured = || Host { cpus: u32::try_from(usable_cpus().len()).ok(), ..Host::default() };
    // How fast the host is decides how much work a built-in experiment holds: one that is resumed keeps its own.
    let built_in = builtin::find(&args.experiment);
    let calibrated = built_in.map(|builtin| {
        let folder = args.out.clone().unwrap_or_else(|| folder_of(builtin.name));
        let record = Record::load(&folder).ok().filter(|_| !args.again);
        let same = record.filter(|r| r.builtin.as_deref() == Some(builtin.name) && r.quick == args.quick);
        same.map(|record| record.host).unwrap_or_else(|| {
            let mut host = unmeasured();
            runner::calibrate(&mut host, stop);
            host
        })
    });
    let (mut experiment, about) = match built_in.zip(calibrated.as_ref()) {
        Some((builtin, host)) => from_builtin(builtin, &args, topology.as_ref(), host),
        None => (from_file(&args)?, About { shard: args.shard, ..About::default() }),
    };
    change(&mut experiment, &args)?;
    if experiment.tenants.iter().any(|tenant| tenant.place == Place::Cgroup) {
        root_only(
            "tenants have cgroups of their own, which need root: run as root, or give --place process",
        )?;
    }
    if args.install {
        install(&experiment)?;
    }
    let folder = args.out.clone().unwrap_or_else(|| folder_of(&experiment.name));
    let binary = std::env::current_exe().map_err(|e| Failure::Cannot(e.into()))?;
    // How long work takes that was not sized for this host is a guess; it only starts the progress bar.
    let guess = Host { primes_per_s: Some(1000.0), ..unmeasured() };
    let planned_s = runner::planned_s(&experiment, calibrated.as_ref().unwrap_or(&guess));
    let host_name = args.host_name.clone();
    let options = Options { binary, topology, calibrated, host_name };
    let run = |to: &mut Run<'_>| runner::run(&experiment, &about, &options, to);
    let record = measured(&folder, args.again, planned_s, run)?;
    // Also of an interrupted experiment: what is there is studied.
    let report = Report::of(&record)?;
    report.write(&folder)?;
    match global.output {
        Format::Json => outln!("{:#}", summary(&record, &folder))?,
        _ => {
            print_text(&record, &folder)?;
            outln!()?;
            report.print(global.output)?;
            outln!("\n{}", folder.join("report.html").display())?;
        }
    }
    complete(&record).map(|()| 0)
}

/// What is for neighbours changes no other experiment.
fn refuse_ladder(args: &Args) -> Result<(), Failure> {
    let only = neighbour_plan::NAME;
    let refused = |option| Err(usage!("{option} is for the experiment {only} alone"));
    args.ladder.given().map_or(Ok(()), refused)
}

/// Experiments without a file's tenants: what changes those makes no sense there.
fn refuse_tenants(args: &Args, instead: &str) -> Result<(), Failure> {
    let given = [
        ("--units", args.units.is_some()),
        ("--place", args.place.is_some()),
        ("--runs", args.runs.is_some()),
        ("--run-seconds", args.run_seconds.is_some()),
        ("--threads", args.threads.is_some()),
        ("--start-at", args.start_at.is_some()),
        ("--time-limit", args.time_limit.is_some()),
        ("--shard", args.shard.is_some()),
        ("--host-name", args.host_name.is_some()),
        ("--install", args.install),
        ("a command", !args.command.is_empty()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((what, _)) => Err(usage!("{what} is for experiments with tenants; {instead}")),
        None => Ok(()),
    }
}

/// Hosts differ, and a built-in experiment with them: parts of several would not fit together.
fn refuse_shard(args: &Args) -> Result<(), Failure> {
    if args.shard.is_none() {
        return Ok(());
    }
    Err(usage!(
        "--shard is for experiment files: the built-in {} is sized for the host that runs it, so that parts from several \
         hosts are not of one experiment",
        args.experiment
    ))
}

fn from_builtin(
    builtin: &builtin::Builtin,
    args: &Args,
    topology: Option<&evenkeel_base::Topology>,
    host: &Host,
) -> (Experiment, About) {
    let plan = Plan {
        quick: args.quick,
        cpus: usable_cpus(),
        topology: topology.cloned(),
        primes_per_s: host.primes_per_s.unwrap_or(1000.0),
    };
    let about = About {
        builtin: Some(builtin.name.to_owned()),
        quick: args.quick,
        sources: builtin.sources.iter().map(|s| (*s).to_owned()).collect(),
        shard: None,
    };
    (builtin.experiment(&plan), about)
}

fn from_file(args: &Args) -> Result<Experiment, Failure> {
    let path = Path::new(&args.experiment);
    if !path.exists() && !args.experiment.contains(['/', '.']) {
        let builtins = builtin::BUILTINS.iter().map(|b| b.name);
        let names: Vec<&str> =
            builtins.chain(Which::ALL.map(Which::name)).chain([neighbour_plan::NAME]).collect();
        return Err(usage!(
            "no experiment {:?}: neither a file nor one of {}",
            args.experiment,
            names.join(", ")
        ));
    }
    let text = read(path)?;
    if args.quick {
        return Err(usage!("--quick is for built-in experiments; shorten runs in the file"));
    }
    // A machine is for the simulator; this host is what it is, also for what is predicted.
    Ok(Experiment { machine: None, ..with_tenants(path, &text)?.0 })
}

/// Text of an experiment file.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    evenkeel_linux::input::read_text(path).map_err(|e| usage!("cannot read {}: {e}", path.display()))
}

/// The experiment of a file, its tasks as tenants, and whether it has tenants of its own.
pub(super) fn with_tenants(path: &Path, text: &str) -> Result<(Experiment, bool), Failure> {
    let refuse = |error: ExperimentError| usage!("{}: {error}", path.display());
    let experiment = Experiment::parse(text).map_err(refuse)?;
    loads(&experiment).map_err(|wrong| refuse(wrong.in_text(text)))?;
    let own = experiment.is_of_tenants();
    Ok((experiment.tasks_as_tenants().map_err(|wrong| refuse(wrong.in_text(text)))?, own))
}

/// Refuses loads that there are not, by the line of their tenant.
pub(in crate::cli) fn loads(experiment: &Experiment) -> Result<(), Wrong> {
    for (index, load) in experiment.tenants.iter().map(|tenant| tenant.load.as_deref()).enumerate() {
        let Some(load) = load else { continue };
        runner::parse_load(load).map_err(|e| Wrong::of_tenant(index, format!("load {load:?}: {e}")))?;
    }
    Ok(())
}

/// What the command line changes.
fn change(experiment: &mut Experiment, args: &Args) -> Result<(), Failure> {
    let usage = |e: String| usage!(e);
    if let Some(text) = &args.units {
        let list: UnitList =
            text.parse().map_err(|e: evenkeel_model::units::UnitError| usage(e.to_string()))?;
        if let Some(available) = experiment.units_available {
            list.check(available).map_err(|e| usage(e.to_string()))?;
        }
        let Some(first) = experiment.tenants.iter_mut().find(|t| !t.background) else {
            return Err(usage("no tenant to give units to".into()));
        };
        first.units = Some(list);
        (first.count, first.weight, first.shares) = (1, None, None);
        let name = first.name.clone().unwrap_or_default();
        // What varied the units varies no longer.
        let units = format!("tenant.{name}.units");
        experiment.sweeps.retain(|sweep| sweep.field.as_deref() != Some(units.as_str()));
    }
    for tenant in &mut experiment.tenants {
        if let Some(place) = args.place {
            tenant.place = place;
        }
        if tenant.background {
            continue;
        }
        if !args.command.is_empty() {
            tenant.command = Some(args.command.clone());
            (tenant.load, tenant.run_s, tenant.events, tenant.threads) = (None, None, None, 1);
        }
        tenant.runs = args.runs.unwrap_or(tenant.runs);
        if tenant.load.is_some() {
            tenant.run_s = args.run_seconds.or(tenant.run_s);
            tenant.threads = args.threads.unwrap_or(tenant.threads);
        }
    }
    experiment.repetitions = args.repetitions.unwrap_or(experiment.repetitions);
    experiment.start_at = args.start_at.clone().or(experiment.start_at.take());
    experiment.time_limit_s = args.time_limit.or(experiment.time_limit_s);
    experiment.verify().map_err(|wrong| usage(wrong.to_string()))
}

/// Installs missing commands; what that prints goes to stderr.
fn install(experiment: &Experiment) -> Result<(), Failure> {
    let programs = experiment.tenants.iter().filter_map(|t| t.command.as_ref()?.first());
    for program in programs {
        if runner::is_program(program) {
            continue;
        }
        say!("installing {program}");
        let status = std::process::Command::new("apt-get")
            .args(["install", "-y", "--no-install-recommends", program])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(std::process::Stdio::null())
            .status()
            .map_err(|e| cannot!("cannot run apt-get: {e}; install {program} by hand"))?;
        if !status.success() {
            return Err(cannot!("apt-get install {program} failed; install it by hand"));
        }
    }
    Ok(())
}

fn summary(record: &Record, folder: &Path) -> serde_json::Value {
    serde_json::json!({
        "schema": "evenkeel.lab-run/v1",
        "name": record.name,
        "folder": folder,
        "record": folder.join(FILE),
        "complete": record.is_complete(),
        "cells": record.cells.len(),
        "planned_cells": record.planned_cells,
        "requirements": record.requirements,
        "worst_wake_up_usec": worst_wake_up(record),
        "harness_cpu_pct": harness(record),
        "notes": notes(record),
    })
}

/// The latest wake-up of any tenant of any cell, microseconds.
fn worst_wake_up(record: &Record) -> Option<f64> {
    let tenants = record.cells.iter().flat_map(|cell| &cell.tenants);
    tenants.filter_map(|t| t.release.woken_late_usec).max_by(f64::total_cmp)
}

/// CPU this program itself used while runs were on, percent of ONE CPU.
fn harness(record: &Record) -> Option<f64> {
    let (cpu, wall) = record
        .cells
        .iter()
        .filter_map(|cell| Some((cell.host.harness_cpu_s?, cell.seconds)))
        .fold((0.0, 0.0), |(c, w), (cpu, wall)| (c + cpu, w + wall));
    (wall > 0.0).then(|| 100.0 * cpu / wall)
}

fn notes(record: &Record) -> Vec<String> {
    let of = |cell: &evenkeel_experiment::record::Cell| {
        let label = cell.point.label.clone();
        cell.notes
            .iter()
            .map(move |note| if label.is_empty() { note.clone() } else { format!("{label}: {note}") })
            .collect::<Vec<_>>()
    };
    record.cells.iter().flat_map(of).collect()
}

fn print_text(record: &Record, folder: &Path) -> Result<(), Failure> {
    outln!(
        "{}: {} of {} cells, {}",
        record.name,
        record.cells.len(),
        record.planned_cells,
        folder.display()
    )?;
    for r in record.requirements.iter().filter(|r| r.met == Some(false)) {
        outln!("  not met: {} ({}): {}", r.name, r.evidence, r.consequence)?;
    }
    let known = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |v| format!("{v:.3}"));
    outln!(
        "  wake-up: the latest tenant {} ms after the instant",
        known(worst_wake_up(record).map(|us| us / 1e3))
    )?;
    outln!("  own use of CPU meanwhile: {} % of one CPU", known(harness(record)))?;
    for note in notes(record).iter().take(20) {
        outln!("  note: {note}")?;
    }
    Ok(())
}
