//! `evenkeel sim`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use evenkeel_base::stats::median;
use evenkeel_experiment::file::{Experiment, ExperimentError};
use evenkeel_model::sim::Report;
use serde_json::json;

use super::{Failure, Format, Global, Outcome};

mod laboratory;

/// Run an experiment on the simulated scheduler.
///
/// Touches nothing and needs no privilege. Takes what `lab run` takes, files with tenants and built-in experiments by name, and
/// prints the same tables: on a machine like this host unless told otherwise. Files with a [machine] and tasks say
/// themselves what is simulated.
///
/// Example: evenkeel sim tenants.toml
/// Example: evenkeel sim cpu-units-equal --cpus 8 --kernel 6.1
/// Example: evenkeel sim --fleet 10000
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Experiment file (TOML), or name of a built-in experiment (see `lab list`).
    #[arg(value_name = "FILE", required_unless_present = "fleet")]
    experiment: Option<String>,
    /// Instead of a file: so many hosts drawn at random, and how much CPU the advisor gives back on them.
    #[arg(long, value_name = "HOSTS", conflicts_with = "experiment", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
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
    let refuse = |error: ExperimentError| Failure::Usage(anyhow!("{}: {error}", file.display()));
    let mut experiment = Experiment::parse(&text).map_err(refuse)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    if experiment.is_of_tenants() {
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
    let fleet =
        evenkeel_model::fleet::judge_all(hosts, seed, threads).map_err(|e| Failure::Usage(anyhow!("{e}")))?;
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
                 given back: {middle:.1} CPUs [{low:.1}, {high:.1}], {:.2} % of what was used, {:.1} % of what was missing\n",
                fleet.hosts,
                fleet.cpus,
                fleet.got_cpus,
                fleet.missing_cpus,
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
            return Err(Failure::Usage(anyhow!("--fleet has no table; use -o text or json")));
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
        "{}: simulated, {} CPUs, Linux {}, {} s, {} repetition{} (medians)\n",
        experiment.name,
        first.cpu_pct.len(),
        machine.kernel,
        first.measured_s,
        runs.len(),
        if runs.len() == 1 { "" } else { "s" }
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
        let p99 = task.waits.quantile_usec(0.99).map_or_else(|| "-".into(), |us| format!("<{us} us"));
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
    let cpus: Vec<String> = first.cpu_pct.iter().map(|p| format!("{p:.1}")).collect();
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

fn mean_eps(task: &evenkeel_model::sim::TaskReport) -> Option<f64> {
    let count = task.runs.len();
    (count > 0).then(|| task.runs.iter().map(|r| r.events_per_s()).sum::<f64>() / count as f64)
}

fn json_document(experiment: &Experiment, runs: &[Report]) -> String {
    let runs: Vec<_> = (0..)
        .zip(runs)
        .map(|(repetition, report)| {
            let tasks: Vec<_> = report
                .tasks
                .iter()
                .map(|t| {
                    json!({
                        "name": t.name, "wanted_pct": t.wanted_pct, "got_pct": t.got_pct, "got_s": t.got_s,
                        "waited_s": t.waited_s, "throttled_s": t.throttled_s, "wait_histogram_usec": t.waits.counts,
                        "voluntary": t.voluntary, "involuntary": t.involuntary, "migrations": t.migrations,
                        "runs": t.runs.iter().map(|r| json!({
                            "start_s": r.started_ns as f64 / 1e9, "end_s": r.ended_ns as f64 / 1e9,
                            "events": r.events, "events_per_s": r.events_per_s(),
                        })).collect::<Vec<_>>(),
                    })
                })
                .collect();
            json!({
                "seed": experiment.seed.wrapping_add(repetition), "measured_s": report.measured_s, "cpu_pct": report.cpu_pct,
                "fulfilment": report.fulfilment(), "events": report.events, "tasks": tasks,
            })
        })
        .collect();
    let document = json!({
        "schema": "evenkeel.sim/v1", "name": experiment.name, "experiment": experiment, "runs": runs,
    });
    format!("{document:#}\n")
}
