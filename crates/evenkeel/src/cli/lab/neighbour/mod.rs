//! `evenkeel lab run neighbour`: a service next to batch work.

use std::path::Path;

use anyhow::Context;
use evenkeel_lab::neighbour::plan::{Arm, Batch, Options, Service};
use evenkeel_lab::neighbour::record::NeighbourRecord;
use evenkeel_lab::neighbour::run::{Tools, run as run_experiment};
use evenkeel_lab::neighbour::study::study;
use evenkeel_linux::sys::usable_cpus;

use super::progress::measured;
use super::written::{Report, complete};
use crate::cli::global::root_only;
use crate::cli::{Failure, Format, Global, Outcome};

mod show;

/// What the experiment `neighbour` tries; what is not given is scaled to this host.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Of the experiment neighbour")]
pub struct Ladder {
    /// Services: the built-in wake-up probe, or a server that is installed.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "SERVICE,..")]
    service: Option<Vec<Service>>,
    /// Work next to them: busy loops, streams through memory, compilers.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "BATCH,..")]
    batch: Option<Vec<Batch>>,
    /// CPU that batch work asks for, percent of ONE CPU; 0 is measured anyway.
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,..", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    load: Option<Vec<u32>>,
    /// What keeps batch work from the service's way.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "ARM,..")]
    arm: Option<Vec<Arm>>,
    /// Measured time of a cell, seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Time from the start of evenkeel that is measured apart, its trial included, seconds.
    #[arg(long, value_name = "SECONDS")]
    decide_seconds: Option<f64>,
}

impl Ladder {
    /// The first option that is given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--service", self.service.is_some()),
            ("--batch", self.batch.is_some()),
            ("--load", self.load.is_some()),
            ("--arm", self.arm.is_some()),
            ("--seconds", self.seconds.is_some()),
            ("--decide-seconds", self.decide_seconds.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(name, _)| *name)
    }

    /// What is tried on this host.
    pub fn options(&self, quick: bool, repetitions: Option<u32>) -> Result<Options, Failure> {
        let default = Options::defaults(quick, u32::try_from(usable_cpus().len()).unwrap_or(u32::MAX));
        let mut loads_pct = self.load.clone().unwrap_or(default.loads_pct);
        loads_pct.retain(|load| *load > 0);
        loads_pct.sort_unstable();
        let options = Options {
            services: self.service.clone().unwrap_or(default.services),
            batches: self.batch.clone().unwrap_or(default.batches),
            loads_pct,
            arms: self.arm.clone().unwrap_or(default.arms),
            settle_s: default.settle_s,
            seconds: self.seconds.unwrap_or(default.seconds),
            decide_s: self.decide_seconds.unwrap_or(default.decide_s),
            repetitions: repetitions.unwrap_or(default.repetitions),
            quick,
        };
        options.points().map_err(|why| usage!(why))?;
        Ok(options)
    }
}

/// Runs the experiment, and reports on it.
pub fn run(global: &Global, options: &Options, again: bool, folder: &Path) -> Outcome {
    global.no_tree("lab run runs things on this host: --root does not go with it")?;
    root_only("a service and batch work get cgroups, which needs root: run as root")?;
    let binary = std::env::current_exe().context("own path")?;
    let record = measured(folder, again, options.planned_s(), |to| {
        let topology = evenkeel_observe::topology::read_topology(&evenkeel_linux::Root::host()).ok();
        run_experiment(options, Tools { binary: &binary, topology }, to)
    })?;
    report(global, &record, Some(folder))
}

/// Studies a record, prints the study, and writes the reports into a folder where one is given.
pub fn report(global: &Global, record: &NeighbourRecord, folder: Option<&Path>) -> Outcome {
    let study = study(record);
    if global.output == Format::Svg {
        let svg = show::picture(&study)
            .ok_or_else(|| refused!("there is nothing to draw: no point has a result"))?;
        outln!("{svg}")?;
        return complete(record).map(|()| 0);
    }
    let page = show::page(&study);
    let csv = show::table(&study).csv(&study.rows);
    let mut files = vec![("points.csv", csv), ("report.html", page.html()), ("report.md", page.markdown())];
    files.extend(show::picture(&study).map(|svg| ("picture.svg", svg)));
    Report::new(&study, show::text(&study), "points.csv", files)?.show(global.output, folder)?;
    complete(record)?;
    Ok(u8::from(study.rows.is_empty()))
}
