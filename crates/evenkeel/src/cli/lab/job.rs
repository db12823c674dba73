//! `evenkeel lab job`: the manifest of an experiment that many nodes share.

use std::path::{Path, PathBuf};

use evenkeel_experiment::file::{Experiment, Place};
use evenkeel_experiment::manifest::{Manifest, Volume};
use evenkeel_experiment::shard::{MOST, Shard};

use super::run::{read, with_tenants};
use crate::cli::sim::MachineArgs;
use crate::cli::{Failure, Format, Global, Outcome, show};

/// Longest name of a Job: its pods have the same name, an index and five letters more, 63 in all.
const LONGEST_NAME: usize = 50;
/// Largest file: a ConfigMap holds 1 MiB, its names included.
const LARGEST: usize = 1_000_000;

/// Write a Kubernetes manifest that runs an experiment on many nodes: an indexed Job, and a ConfigMap with its file.
///
/// With --nodes each pod measures some of the repetitions on a node of its own. With --simulate the pods share out the cells of
/// a simulation, wherever there is room. Each leaves a result folder, which `lab merge` brings together. Nothing is changed here.
///
/// Example: evenkeel lab job half.toml --nodes 3 --claim results | kubectl apply -f -
///
/// Example: evenkeel lab job sweep.toml --simulate 16 --cpus 8 --kernel 6.12 --claim results
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Experiment file (TOML).
    #[arg(value_name = "FILE")]
    experiment: PathBuf,
    /// Measure on so many nodes, one pod on each.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)),
          required_unless_present = "simulate", conflicts_with = "simulate")]
    nodes: Option<u32>,
    /// Simulate instead, in so many pods.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    simulate: Option<u32>,
    /// Results go to a directory of each node.
    #[arg(long, value_name = "DIR", required_unless_present = "claim", conflicts_with = "claim")]
    host_path: Option<String>,
    /// Results go to the volume of this PersistentVolumeClaim; many nodes need one with ReadWriteMany.
    #[arg(long, value_name = "NAME")]
    claim: Option<String>,
    /// Image with evenkeel and the programs that tenants run.
    #[arg(long, value_name = "IMAGE", default_value = concat!("evenkeel:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Name of the Job; unless given, that of the experiment.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

pub fn run(global: &Global, args: &Args) -> Outcome {
    if global.output != Format::Text {
        return Err(show::no_such_output(global.output, "lab job"));
    }
    let usage = |what: String| usage!(what);
    let file = args.experiment.as_path();
    let text = read_file(file)?;
    let (experiment, has_tenants) = with_tenants(file, &text)?;
    let in_file = |what: String| usage(format!("{}: {what}", file.display()));
    let points = experiment.points().map_err(|wrong| in_file(wrong.to_string()))?;
    let (shards, simulation) = match (args.nodes, args.simulate) {
        (Some(nodes), _) => {
            if let Some(option) = args.machine.given() {
                return Err(usage(format!(
                    "{option} is for --simulate; with --nodes the nodes are measured"
                )));
            }
            Shard { index: 0, count: nodes }.check(experiment.repetitions as usize, "repetition").map_err(
                |why| in_file(format!("{why}; each node runs one or more of them (repetitions = ..)")),
            )?;
            refuse_places(&experiment).map_err(in_file)?;
            (nodes, None)
        }
        (None, count) => {
            let count = count.unwrap_or(1);
            // Tasks alone are not simulated cell by cell.
            if !has_tenants {
                return Err(in_file(
                    "has no tenants, whose cells pods could share; `evenkeel sim` simulates it".into(),
                ));
            }
            let cells = points.len() * experiment.repetitions as usize;
            Shard { index: 0, count }.check(cells, "cell").map_err(in_file)?;
            (count, Some(args.machine.pinned(file, &experiment)?))
        }
    };
    let name = name(args.name.as_deref(), &experiment.name).map_err(usage)?;
    // Only a nice value below 0 needs a privilege.
    let nice = points.iter().any(|point| point.experiment.tenants.iter().any(|tenant| tenant.nice < 0));
    let manifest = Manifest {
        name: &name,
        image: word("--image", &args.image).map_err(usage)?,
        experiment: &text,
        shards,
        simulation: simulation.as_deref(),
        volume: volume(args).map_err(usage)?,
        nice,
    };
    out!("{manifest}")?;
    Ok(0)
}

/// The file's text, as a manifest can hold it.
fn read_file(file: &Path) -> Result<String, Failure> {
    let named = file.to_str().filter(|name| !file.exists() && !name.contains(['/', '.']));
    if let Some(name) = named {
        return Err(usage!(
            "no file {name:?}; built-in experiments are sized for the host that runs them: write one as a file, as \
             docs/laboratory.md shows"
        ));
    }
    let text = read(file)?.replace("\r\n", "\n");
    let refuse = |why: String| Err(usage!("{}: {why}", file.display()));
    if text.len() > LARGEST {
        return refuse(format!("{} bytes; a ConfigMap holds {LARGEST}", text.len()));
    }
    // What YAML reads as the end of a line, or not at all.
    let odd = |c: char| {
        (c.is_control() && !"\n\t".contains(c))
            || ['\u{2028}', '\u{2029}', '\u{feff}', '\u{fffe}', '\u{ffff}'].contains(&c)
    };
    match text.lines().zip(1..).find(|(line, _)| line.contains(odd)) {
        Some((_, number)) => refuse(format!("line {number}: a character that a manifest cannot hold")),
        None => Ok(text),
    }
}

fn refuse_places(experiment: &Experiment) -> Result<(), String> {
    let inside = |place: &Place| matches!(place, Place::Docker | Place::Pod);
    match experiment.tenants.iter().map(|tenant| tenant.place).find(inside) {
        Some(place) => Err(format!(
            "place = {:?}: a pod has no container runtime to start tenants with; use cgroup or process",
            place.name()
        )),
        None => Ok(()),
    }
}

/// The Job's name: as given, or made of the experiment's.
fn name(given: Option<&str>, experiment: &str) -> Result<String, String> {
    if let Some(name) = given {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let ends = name.starts_with('-') || name.ends_with('-');
        if name.is_empty() || name.len() > LONGEST_NAME || ends || !name.chars().all(plain) {
            return Err(format!(
                "--name {name:?}: small letters, digits and - inside, at most {LONGEST_NAME}, as Kubernetes takes names"
            ));
        }
        return Ok(name.to_owned());
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let made: String = format!("lab-{experiment}").chars().map(plain).take(LONGEST_NAME).collect();
    Ok(made.trim_end_matches('-').to_owned())
}

fn volume(args: &Args) -> Result<Volume<'_>, String> {
    let Some(dir) = &args.host_path else {
        return Ok(Volume::Claim(word("--claim", args.claim.as_deref().unwrap_or_default())?));
    };
    let path = Path::new(word("--host-path", dir)?);
    let plain = path.components().skip(1).all(|part| matches!(part, std::path::Component::Normal(_)));
    if !path.is_absolute() || !plain || path.components().count() < 2 {
        return Err(format!("--host-path {dir:?}: a directory below / by its full path, without .."));
    }
    Ok(Volume::HostPath(dir))
}

/// A word without what would end it in a manifest.
fn word<'a>(option: &str, text: &'a str) -> Result<&'a str, String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "\"\\".contains(c) || !c.is_ascii();
    if text.is_empty() || text.contains(odd) {
        return Err(format!("{option} {text:?}: plain characters without spaces"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_kubernetes_takes_them() {
        assert_eq!(name(None, "Half_and.half").unwrap(), "lab-half-and-half");
        assert_eq!(name(None, "..").unwrap(), "lab");
        assert_eq!(name(None, &"x".repeat(99)).unwrap().len(), LONGEST_NAME);
        assert_eq!(name(Some("a-1"), "x").unwrap(), "a-1");
        for wrong in ["", "A", "-a", "a-", "a.b", "a b", &"x".repeat(51)] {
            assert!(name(Some(wrong), "x").is_err(), "{wrong:?}");
        }
    }
}
