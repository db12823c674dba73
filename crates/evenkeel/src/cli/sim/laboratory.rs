//! Experiments with tenants, which `lab run` takes, on the simulated scheduler.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use evenkeel_base::{CpuSet, Topology};
use evenkeel_experiment::file::{Experiment, MachineSpec};
use evenkeel_experiment::record::Host;
use evenkeel_experiment::shard::Shard;
use evenkeel_lab::builtin::{self, Plan};
use evenkeel_lab::fairness::plan::Which;
use evenkeel_lab::runner::{self, About};
use evenkeel_linux::sys::usable_cpus;
use evenkeel_model::sim::{Generation, Kernel};

use crate::cli::lab::progress::failure;
use crate::cli::lab::written::{Report, keep, replaceable};
use crate::cli::{Failure, Global, Outcome};

/// The machine that is simulated, for experiments whose file does not describe it.
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Experiments with tenants: CPUs of the machine, each a core of its own; unless given, this host's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus: Option<u32>,
    /// Experiments with tenants: kernel release of the machine, such as 6.1; unless given, this host's.
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Experiments with tenants: events of `load primes` a second that one thread does; unless given, measured here (a second).
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    events_per_s: Option<f64>,
}

/// What is simulated, and what for.
#[derive(Debug, clap::Args)]
pub struct TenantArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Short form of a built-in experiment.
    #[arg(long)]
    quick: bool,
    /// Experiments with tenants: write the record and all reports there, as `lab run` does.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Experiments with tenants: simulate a part of the cells, such as 0/4 for the first of four; `lab merge` makes one record
    /// of all parts.
    #[arg(long, value_name = "INDEX/COUNT")]
    shard: Option<Shard>,
}

impl TenantArgs {
    /// Refuses what has no meaning for a file.
    pub fn refuse(&self, file: &Path, experiment: &Experiment) -> Result<(), Failure> {
        if self.quick {
            return Err(usage!("--quick is for built-in experiments; shorten runs in the file"));
        }
        let tasks = experiment.tenants.is_empty();
        self.machine.refuse(file, experiment)?;
        let given = [("--out", tasks && self.out.is_some()), ("--shard", tasks && self.shard.is_some())];
        does_not_go(&given, file, tasks)
    }

    /// What is known besides the file. The machine of a shard must be that of all.
    fn about(&self, builtin: Option<&builtin::Builtin>) -> Result<About, Failure> {
        if self.shard.is_some() && self.machine.events_per_s.is_none() {
            return Err(usage!(
                "--shard needs --events-per-s: without, every shard measures the host that it is on, and they are not of \
                 one machine"
            ));
        }
        let sources = builtin.map_or(&[][..], |builtin| builtin.sources);
        Ok(About {
            builtin: builtin.map(|builtin| builtin.name.to_owned()),
            quick: self.quick,
            sources: sources.iter().map(|s| (*s).to_owned()).collect(),
            shard: self.shard,
        })
    }
}

/// Refuses the first option that is given.
fn does_not_go(given: &[(&str, bool)], file: &Path, tasks: bool) -> Result<(), Failure> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(usage!(
            "{option} does not go with {}, which describes its machine itself{}",
            file.display(),
            if tasks { " and has no tenants" } else { "" }
        )),
        None => Ok(()),
    }
}

impl MachineArgs {
    /// Options for the command line of a simulation elsewhere; all that this host would have added is among them.
    pub fn pinned(&self, file: &Path, experiment: &Experiment) -> Result<Vec<String>, Failure> {
        self.refuse(file, experiment)?;
        if experiment.machine.is_none() && (self.cpus.is_none() || self.kernel.is_none()) {
            return Err(usage!(
                "{} has no [machine]: give --cpus and --kernel, else every node simulates one like itself",
                file.display()
            ));
        }
        let host = self.machine(topology().as_ref(), experiment.machine.as_ref())?;
        let Some(rate) = host.primes_per_s else {
            return Err(usage!("this host's speed could not be measured: give --events-per-s"));
        };
        let cpus = self.cpus.map(|cpus| format!("--cpus={cpus}"));
        let kernel = self.kernel.as_ref().map(|kernel| format!("--kernel={kernel}"));
        Ok([cpus, kernel, Some(format!("--events-per-s={rate}"))].into_iter().flatten().collect())
    }

    /// The first option that is given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            ("--cpus", self.cpus.is_some()),
            ("--kernel", self.kernel.is_some()),
            ("--events-per-s", self.events_per_s.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(option, _)| *option)
    }

    /// Refuses what a file says itself.
    fn refuse(&self, file: &Path, experiment: &Experiment) -> Result<(), Failure> {
        let (tasks, machine) = (experiment.tenants.is_empty(), experiment.machine.is_some());
        let given = [
            ("--cpus", machine && self.cpus.is_some()),
            ("--kernel", machine && self.kernel.is_some()),
            ("--events-per-s", tasks && self.events_per_s.is_some()),
        ];
        does_not_go(&given, file, tasks)
    }

    /// The machine simulated: the file's, else one like this host but for what the options say.
    fn machine(&self, topology: Option<&Topology>, file: Option<&MachineSpec>) -> Result<Host, Failure> {
        let usage = |message: String| usage!(message);
        let here = runner::facts(topology);
        let kernel = file.map(|machine| machine.kernel.clone()).or(self.kernel.clone()).or(here.kernel);
        let known = kernel.as_deref().and_then(Kernel::of);
        if let (Some(text), None) = (&self.kernel, &known) {
            return Err(usage(format!("--kernel {text:?} is not a release such as 6.1")));
        }
        if let Some(rate) = self.events_per_s
            && !(0.1..=1e6).contains(&rate)
        {
            return Err(usage(format!("--events-per-s {rate} is not 0.1 to 1000000")));
        }
        let mut host = Host {
            name: Some("simulated".into()),
            cpus: here.cpus,
            cores: here.cores,
            sockets: here.sockets,
            nodes: here.nodes,
            threads_per_core: here.threads_per_core,
            scheduler: known
                .map(|k| if k.generation == Generation::Cfs { "cfs" } else { "eevdf" }.to_owned()),
            kernel,
            cgroup: here.cgroup,
            tenants_v2: here.tenants_v2,
            ..Host::default()
        };
        match self.events_per_s {
            Some(rate) => host.primes_per_s = Some(rate),
            None => runner::calibrate(&mut host, &AtomicBool::new(false)),
        }
        let shape = file.map(|machine| (machine.cpus, machine.threads_per_core, machine.nodes));
        if let Some((cores, threads, nodes)) = shape.or(self.cpus.map(|cpus| (cpus, 1, 1))) {
            let cpus = cores * threads;
            // What others do to a CPU here is kept.
            let each = host.primes_per_s_all.zip(here.cpus).map(|(all, cpus)| all / f64::from(cpus));
            host.primes_per_s_all = each.map(|each| each * f64::from(cpus));
            (host.cpus, host.cores, host.sockets) = (Some(cpus), Some(cores), Some(1));
            (host.nodes, host.threads_per_core) = (Some(nodes), Some(threads));
        }
        Ok(host)
    }
}

/// Whether an experiment of the laboratory has this name.
pub fn is_builtin(name: &str) -> bool {
    builtin::find(name).is_some() || Which::named(name).is_some()
}

/// A built-in experiment.
pub fn builtin(global: &Global, name: &str, seed: Option<u64>, args: &TenantArgs) -> Outcome {
    let Some(builtin) = builtin::find(name) else {
        return Err(cannot!(
            "{name} is about networks and machines of tenants, which are not simulated; run it: evenkeel lab run {name}"
        ));
    };
    let topology = topology();
    let about = args.about(Some(builtin))?;
    let host = args.machine.machine(topology.as_ref(), None)?;
    let plan = Plan {
        quick: args.quick,
        cpus: match args.machine.cpus {
            Some(cpus) => CpuSet::first_n(cpus),
            None => usable_cpus(),
        },
        topology: match args.machine.cpus {
            Some(cpus) => Some(Topology::synthetic(1, 1, cpus, 1)),
            None => topology,
        },
        primes_per_s: host.primes_per_s.unwrap_or(1000.0),
    };
    let mut experiment = builtin.experiment(&plan);
    experiment.seed = seed.unwrap_or(experiment.seed);
    show(global, &experiment, &about, &host, args)
}

/// An experiment file with tenants.
pub fn file(global: &Global, file: &Path, experiment: &Experiment, args: &TenantArgs) -> Outcome {
    args.refuse(file, experiment)?;
    let about = args.about(None)?;
    let host = args.machine.machine(topology().as_ref(), experiment.machine.as_ref())?;
    show(global, experiment, &about, &host, args)
}

fn topology() -> Option<Topology> {
    evenkeel_observe::topology::read_topology(&evenkeel_linux::Root::host()).ok()
}

fn show(global: &Global, experiment: &Experiment, about: &About, host: &Host, args: &TenantArgs) -> Outcome {
    // Asked before the simulation, too: it takes a while.
    args.out.as_deref().map(replaceable).transpose()?;
    let record = runner::simulate(experiment, about, host, &mut |_| {}).map_err(failure)?;
    args.out.as_deref().map(|folder| keep(&record, folder)).transpose()?;
    Report::of(&record)?.show(global.output, args.out.as_deref()).map(|()| 0)
}
