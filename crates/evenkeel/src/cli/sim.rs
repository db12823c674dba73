//! `evenkeel sim`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use evenkeel_base::stats::median;
use evenkeel_base::text::{bracketed, count};
use evenkeel_experiment::file::{Experiment, ExperimentError};
use evenkeel_model::sim::{Report, Run, TaskReport};
use serde::Serialize;
use serde_json::json;

use super::{Failure, Format, Global, Outcome};

mod laboratory;

pub(super) use laboratory::MachineArgs;

/// Run an experiment on the simulated scheduler.
///
/// Touches nothing and needs no privilege. Takes what `lab run` takes, files with tenants and built-in experiments by name, and
/// prints the same tables: on a machine like this host unless told otherwise. Files with a [machine] and tasks say
/// themselves what is simulated.
///
/// Example: evenkeel sim tenants.toml
///
/// Example: evenkeel sim cpu-units-equal --cpus 8 --kernel 6.1
///
/// Example: evenkeel sim --fleet 10000
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Experiment file (TOML), or name of a built-in experiment (see `lab list`).
    #[arg(value_name = "FILE", required_unless_present = "fleet")]
    experiment: Option<String>,
    /// Instead of a file: so many hosts drawn at random, and how much CPU evenkeel gives back on them.
    #[arg(long, value_name = "HOSTS", value_parser = clap::value_parser!(u32).range(2..=1_000_000),
          conflicts_with_all = ["experiment", "cpus", "kernel", "events_per_s", "quick", "out", "shard"])]
    fleet: Option<u32>,
    /// Seed instead of the file's.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    tenants: laboratory::TenantArgs,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if let Some(hosts) = args.fleet {
        return fleet(global, hosts, args.seed.unwrap_or(1));
    }
    let name = args.experiment.unwrap_or_default();
    if laboratory::is_builtin(&name) {
        return laboratory::builtin(global, &name, args.seed, &args.tenants);
    }
    let file = PathBuf::from(&name);
    let text = evenkeel_linux::input::read_text(&file)
        .with_context(|| format!("cannot read {}, and no built-in experiment has this name", file.display()))
        .map_err(Failure::Usage)?;
    let refuse = |error: ExperimentError| usage!("{}: {error}", file.display());
    let mut experiment = Experiment::parse(&text).map_err(refuse)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    if experiment.is_of_tenants() {
        super::lab::run::loads(&experiment).map_err(|wrong| refuse(wrong.in_text(&text)))?;
        experiment = experiment.tasks_as_tenants().map_err(|wrong| refuse(wrong.in_text(&text)))?;
        return laboratory::file(global, &file, &experiment, &args.tenants);
    }
    args.tenants.refuse(&file, &experiment)?;
    let runs = (0..experiment.repetitions).map(|repetition| experiment.simulate(repetition));
    let runs: Vec<Report> = runs.collect::<Result<_, _>>().map_err(|wrong| refuse(wrong.in_text(&text)))?;
    let out = match global.output {
        Format::Text | Format::Svg => text_table(&experiment, &runs),
        Format::Csv => csv(&runs),
        Format::Json => json_document(&experiment, &runs),
    };
    out!("{out}")?;
    Ok(0)
}

/// Judges a fleet on all CPUs and prints its sums.
fn fleet(global: &Global, hosts: u32, seed: u64) -> Outcome {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let fleet = evenkeel_model::fleet::judge_all(hosts, seed, threads).map_err(|e| usage!("{e}"))?;
    match global.output {
        Format::Json => {
            let mut document = json!(fleet);
            document["schema"] = json!("evenkeel.fleet/v1");
            document["seed"] = json!(seed);
            outln!("{document:#}")?;
        }
        Format::Text | Format::Svg => {
            let [low, middle, high] = fleet.gained_cpus;
            outln!(
                "{} hosts of {:.0} CPUs, simulated: used {:.0} CPUs, wanted {:.0} more than they got\n\
                 given back: {middle:.1} CPUs {}, {:.2} % of what was used, {:.1} % of what was missing\n",
                fleet.hosts,
                fleet.cpus,
                fleet.got_cpus,
                fleet.missing_cpus,
                bracketed(format_args!("{low:.1}"), format_args!("{high:.1}")),
                100.0 * middle / fleet.got_cpus.max(1e-9),
                100.0 * middle / fleet.missing_cpus.max(1e-9),
            )?;
            outln!("{:34} {:>7} {:>9} {:>12}", "KERNEL", "HOSTS", "CPUS", "GIVEN BACK")?;
            for (kernel, (hosts, cpus, gained)) in &fleet.by_kernel {
                outln!("{kernel:34} {hosts:>7} {cpus:>9.0} {gained:>12.1}")?;
            }
            outln!("\n{:34} {:>7}", "KEPT", "HOSTS")?;
            for (lever, hosts) in &fleet.kept {
                outln!("{lever:34} {hosts:>7}")?;
            }
            outln!("\n{} hosts lost more than 1 % of what they got", fleet.worse)?;
        }
        Format::Csv => {
            return Err(usage!("--fleet has no table; use -o text or json"));
        }
    }
    Ok(0)
}

fn text_table(experiment: &Experiment, runs: &[Report]) -> String {
    let mut out = String::new();
    let (Some(first), Some(machine)) = (runs.first(), &experiment.machine) else { return out };
    let width = first.tasks.iter().map(|t| t.name.len()).max().unwrap_or(4).max(4);
    let _ = writeln!(
        out,
        "{}: simulated, {}, Linux {}, {} s, {} (medians)\n",
        experiment.name,
        count(first.cpu_pct.len(), "CPU"),
        machine.kernel,
        first.measured_s,
        count(runs.len(), "repetition")
    );
    let _ = writeln!(
        out,
        "{:width$} {:>8} {:>8} {:>8} {:>10} {:>10} {:>9} {:>9}",
        "TASK", "WANTED%", "GOT%", "WAIT%", "THROTTLED%", "p99 WAIT", "VOL/s", "INVOL/s"
    );
    for (index, task) in first.tasks.iter().enumerate() {
        let of = |f: &dyn Fn(&evenkeel_model::sim::TaskReport) -> f64| {
            median(runs.iter().map(|r| f(&r.tasks[index]))).unwrap_or(0.0)
        };
        let seconds = first.measured_s;
        let wanted = task.wanted_pct.map_or_else(|| "-".into(), |w| format!("{w:.1}"));
        // Whole powers of two: of an even number of repetitions the larger of the middle two.
        let mut p99: Vec<u64> =
            runs.iter().filter_map(|r| r.tasks[index].waits.quantile_usec(0.99)).collect();
        p99.sort_unstable();
        let p99 = p99.get(p99.len() / 2).map_or_else(|| "-".into(), |us| format!("<{us} us"));
        let _ = writeln!(
            out,
            "{:width$} {wanted:>8} {:>8.2} {:>8.2} {:>10.2} {p99:>10} {:>9.1} {:>9.1}",
            task.name,
            of(&|t| t.got_pct),
            of(&|t| 100.0 * t.waited_s / seconds),
            of(&|t| 100.0 * t.throttled_s / seconds),
            of(&|t| t.voluntary as f64 / seconds),
            of(&|t| t.involuntary as f64 / seconds),
        );
    }
    let cpus = (0..first.cpu_pct.len()).map(|cpu| median(runs.iter().map(|r| r.cpu_pct[cpu])).unwrap_or(0.0));
    let cpus: Vec<String> = cpus.map(|pct| format!("{pct:.1}")).collect();
    let _ = writeln!(out, "\nCPU use %: {}", cpus.join(" "));
    if let Some(f) = median(runs.iter().filter_map(Report::fulfilment)) {
        let _ = writeln!(out, "fulfilment: {f:.4}");
    }
    out
}

fn csv(runs: &[Report]) -> String {
    let mut out = String::from(
        "repetition,task,wanted_pct,got_pct,waited_s,throttled_s,voluntary,involuntary,migrations,runs,mean_events_per_s\n",
    );
    for (number, report) in runs.iter().enumerate() {
        for t in &report.tasks {
            let wanted = t.wanted_pct.map(|w| w.to_string()).unwrap_or_default();
            let eps = mean_eps(t).map(|e| format!("{e:.3}")).unwrap_or_default();
            let name = if t.name.contains([',', '"', '\n']) {
                format!("\"{}\"", t.name.replace('"', "\"\""))
            } else {
                t.name.clone()
            };
            let _ = writeln!(
                out,
                "{},{name},{wanted},{:.4},{:.6},{:.6},{},{},{},{},{eps}",
                number + 1,
                t.got_pct,
                t.waited_s,
                t.throttled_s,
                t.voluntary,
                t.involuntary,
                t.migrations,
                t.runs.len()
            );
        }
    }
    out
}

fn mean_eps(task: &TaskReport) -> Option<f64> {
    let count = task.runs.len();
    (count > 0).then(|| task.runs.iter().map(|r| r.events_per_s()).sum::<f64>() / count as f64)
}

/// `evenkeel.sim/v1`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    name: &'a str,
    experiment: &'a Experiment,
    runs: Vec<RunDocument<'a>>,
}

#[derive(Serialize)]
struct RunDocument<'a> {
    seed: u64,
    measured_s: f64,
    cpu_pct: &'a [f64],
    fulfilment: Option<f64>,
    events: u64,
    tasks: Vec<TaskDocument<'a>>,
}

#[derive(Serialize)]
struct TaskDocument<'a> {
    name: &'a str,
    wanted_pct: Option<f64>,
    got_pct: f64,
    got_s: f64,
    waited_s: f64,
    throttled_s: f64,
    wait_histogram_usec: &'a [u64],
    voluntary: u64,
    involuntary: u64,
    migrations: u64,
    runs: Vec<LimitedRun>,
}

/// One time-limited run of a task.
#[derive(Serialize)]
struct LimitedRun {
    start_s: f64,
    end_s: f64,
    events: u64,
    events_per_s: f64,
}

impl<'a> RunDocument<'a> {
    fn of(report: &'a Report, seed: u64) -> Self {
        Self {
            seed,
            measured_s: report.measured_s,
            cpu_pct: &report.cpu_pct,
            fulfilment: report.fulfilment(),
            events: report.events,
            tasks: report.tasks.iter().map(TaskDocument::of).collect(),
        }
    }
}

impl<'a> TaskDocument<'a> {
    fn of(task: &'a TaskReport) -> Self {
        let run = |run: &Run| LimitedRun {
            start_s: run.started_ns as f64 / 1e9,
            end_s: run.ended_ns as f64 / 1e9,
            events: run.events,
            events_per_s: run.events_per_s(),
        };
        Self {
            name: &task.name,
            wanted_pct: task.wanted_pct,
            got_pct: task.got_pct,
            got_s: task.got_s,
            waited_s: task.waited_s,
            throttled_s: task.throttled_s,
            wait_histogram_usec: &task.waits.counts,
            voluntary: task.voluntary,
            involuntary: task.involuntary,
            migrations: task.migrations,
            runs: task.runs.iter().map(run).collect(),
        }
    }
}

fn json_document(experiment: &Experiment, runs: &[Report]) -> String {
    let seeds = (0..).map(|repetition| experiment.seed.wrapping_add(repetition));
    let runs = runs.iter().zip(seeds).map(|(report, seed)| RunDocument::of(report, seed)).collect();
    let document = Document { schema: "evenkeel.sim/v1", name: &experiment.name, experiment, runs };
    // As a value, so that its keys stand in the order of the alphabet, as in every document.
    format!("{:#}\n", json!(document))
}
