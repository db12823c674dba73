//! `evenkeel lab list`.

use std::time::Duration;

use evenkeel_lab::builtin::{BUILTINS, Plan};
use evenkeel_lab::fairness::plan::{Options, Which};
use evenkeel_lab::neighbour::plan as neighbour;
use evenkeel_linux::sys::usable_cpus;
use serde_json::json;

use crate::cli::{Format, Global, Outcome};

/// List the built-in experiments, and how long each takes here with --quick and in full.
///
/// Example: evenkeel lab list
#[derive(Debug, clap::Args)]
pub struct Args {}

struct Row {
    name: &'static str,
    about: &'static str,
    sources: &'static [&'static str],
    /// Expected on this host, seconds: in short, and in full.
    seconds: [Option<f64>; 2],
}

fn rows() -> Vec<Row> {
    let cpus = usable_cpus();
    let topology = evenkeel_observe::topology::read_topology(&evenkeel_linux::Root::host()).ok();
    let count = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    // How fast the host is decides how much work an experiment holds, hardly how long it takes.
    let plan = |quick| Plan { quick, cpus: cpus.clone(), topology: topology.clone(), primes_per_s: 1000.0 };
    let builtins = BUILTINS.iter().map(|b| Row {
        name: b.name,
        about: b.about,
        sources: b.sources,
        seconds: [true, false].map(|quick| b.planned_s(&plan(quick))),
    });
    let tenants = Which::ALL.into_iter().map(|which| Row {
        name: which.name(),
        about: which.about(),
        sources: &[],
        seconds: [true, false].map(|quick| Options::defaults(which, quick, count).planned_s()),
    });
    let neighbour = Row {
        name: neighbour::NAME,
        about: neighbour::ABOUT,
        sources: &[],
        seconds: [true, false].map(|quick| neighbour::Options::defaults(quick, count).planned_s()),
    };
    builtins.chain(tenants).chain([neighbour]).collect()
}

/// `35 s`, `12 min`, `3.5 h`.
fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "?".into(),
        Some(s) if s < 99.5 => format!("{s:.0} s"),
        Some(s) if s < 99.5 * 60.0 => format!("{:.0} min", s / 60.0),
        Some(s) => format!("{:.1} h", s / 3600.0),
    }
}

pub fn run(global: &Global, _args: Args) -> Outcome {
    let rows = rows();
    match global.output {
        Format::Text | Format::Svg => {
            let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
            outln!("{:width$}    QUICK   IN FULL  WHAT IT SHOWS", "EXPERIMENT")?;
            for row in &rows {
                let [quick, full] = row.seconds.map(duration);
                outln!("{:width$}  {quick:>7}  {full:>8}  {}", row.name, row.about)?;
            }
            let quick: f64 = rows.iter().filter_map(|row| row.seconds[0]).sum();
            let all = humantime::format_duration(Duration::from_secs(quick as u64));
            outln!("\nexpected on this host, at most; all with --quick: {all}")?;
        }
        Format::Json => {
            let experiments: Vec<_> = rows
                .iter()
                .map(|row| {
                    json!({"name": row.name, "about": row.about, "sources": row.sources,
                        "quick_s": row.seconds[0], "full_s": row.seconds[1]})
                })
                .collect();
            outln!("{:#}", json!({"schema": "evenkeel.lab-list/v1", "experiments": experiments}))?;
        }
        Format::Csv => {
            outln!("name,quick_s,full_s,about")?;
            for row in &rows {
                let [quick, full] = row.seconds.map(|s| s.map_or_else(String::new, |s| format!("{s:.1}")));
                outln!("{},{quick},{full},\"{}\"", row.name, row.about.replace('"', "\"\""))?;
            }
        }
    }
    Ok(0)
}
