//! `evenkeel tenants`: are tenants of this host treated equally?

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_actuate::{Actuator, Linux};
use evenkeel_base::{Change, CpuSet, NetKnob, Plan, Setting, Target};
use evenkeel_experiment::record::Host;
use evenkeel_kernfs::{Root, sysfs};
use evenkeel_lab::fairness::plan::{Options, Which};
use evenkeel_lab::fairness::record::TenantsRecord;
use evenkeel_lab::fairness::run::{Bench, FlowTable, RunError, run as run_experiment};
use evenkeel_lab::fairness::study::study;
use evenkeel_lab::net::tools::Traffic;
use evenkeel_lab::net::wiring::Nic;
use evenkeel_lab::vm::machine::Accel;
use evenkeel_lab::vm::nic::VmNic;
use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, Format, Global, Outcome, console, stop};

mod compare;
mod show;

/// Measure whether tenants get equal shares: of the network, or of the CPU.
///
/// Tenants are network namespaces (veth and bridge, macvlan), cgroups, containers and virtual machines, made for the measurement and
/// gone with it, also after `kill -9`: they live in namespaces of their own, and nothing of the host's network is touched.
/// Results go to a folder (record.json, study.json, report.html, report.md, points.csv); an interrupted run goes on
/// where it stopped when the same command is given again. Exit status 1: it was interrupted, or no point has a result.
///
/// Example: evenkeel tenants net --quick
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Requests and responses of one byte on many flows, to 1, 2, 4 .. tenants: throughput, latency, load, bias.
    Net(Sweep),
    /// Tenants that want all the CPU they can get, with equal and unequal weights.
    Cpu(Sweep),
    /// Whether two runs of the same experiment agree, each bias within its interval; status 1 if not.
    Compare {
        /// Folder of the first.
        first: PathBuf,
        /// Folder of the second.
        second: PathBuf,
    },
    /// Study and report again, from a result folder.
    Report {
        /// The folder.
        dir: PathBuf,
    },
}

/// What is tried; what is not given is the source's sweep scaled to this host.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Sweep {
    /// Result folder, as --out.
    #[arg(conflicts_with = "out")]
    dir: Option<PathBuf>,
    /// Result folder; tenants-net or tenants-cpu here, unless given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The short form, within a minute: no virtual machines, fewer kinds and repetitions.
    #[arg(long)]
    quick: bool,
    /// Numbers of tenants in namespaces or cgroups, up to 4096; 0 for none.
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = count())]
    tenants: Option<Vec<usize>>,
    /// How namespaces are connected; `none` is bare metal, the reference.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "KIND,..")]
    nic: Option<Vec<Nic>>,
    /// Numbers of virtual machines; 0 for none.
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = count())]
    vms: Option<Vec<usize>>,
    /// How machines are connected: a tap device and a bridge (virtio), macvtap, or virtual functions (SR-IOV).
    #[arg(long, value_delimiter = ',', value_enum, value_name = "KIND,..")]
    vm_nic: Option<Vec<VmNic>>,
    /// Numbers of containers (a Docker Engine's), for `cpu`; 0 for none.
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = count())]
    containers: Option<Vec<usize>>,
    /// What sends and answers, for `net`: the built-in rr, netperf's TCP_RR, or iperf3; the latter two in namespaces only.
    #[arg(long, value_enum)]
    traffic: Option<Traffic>,
    /// vCPUs of a machine.
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=256))]
    vcpus: Option<Vec<u32>>,
    /// Receive packet steering: off, on, or both.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "off,on")]
    rps: Option<Vec<OffOn>>,
    /// Flows over all tenants; must divide evenly over every number of tenants.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    flows: Option<u32>,
    /// Measured time of a repetition, seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Repetitions, everything started anew each time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// What runs guests: KVM, or software emulation; KVM where it boots a guest, unless given.
    #[arg(long, value_enum)]
    accel: Option<Accel>,
}

/// Most tenants of a point: each is a process, a cgroup and perhaps a namespace of its own.
const MOST_TENANTS: u64 = 4096;

fn count() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(0..=MOST_TENANTS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OffOn {
    Off,
    On,
}

impl Sweep {
    fn options(&self, which: Which, cpus: u32) -> Result<Options, Failure> {
        let mut options = Options::defaults(which, self.quick, cpus);
        let set = |to: &mut Vec<usize>, from: &Option<Vec<usize>>| {
            if let Some(from) = from {
                to.clone_from(from);
            }
        };
        set(&mut options.tenants, &self.tenants);
        if let Some(vms) = &self.vms {
            options.vms = vms.iter().copied().filter(|n| *n > 0).collect();
        }
        if let Some(traffic) = self.traffic {
            options.traffic = traffic;
            // Said apart from a number of machines that was asked for.
            if traffic != Traffic::Rr && self.vms.is_none() {
                options.vms.clear();
            }
        }
        if let Some(containers) = &self.containers {
            options.containers = containers.iter().copied().filter(|n| *n > 0).collect();
        }
        if let Some(nics) = &self.vm_nic {
            options.vm_nics.clone_from(nics);
        }
        if let Some(nics) = &self.nic {
            options.nics.clone_from(nics);
        }
        if let Some(vcpus) = &self.vcpus {
            options.vcpus.clone_from(vcpus);
        }
        if let Some(rps) = &self.rps {
            options.rps = rps.iter().map(|choice| *choice == OffOn::On).collect();
        }
        options.flows = self.flows.unwrap_or(options.flows);
        options.repetitions = self.repetitions.unwrap_or(options.repetitions);
        options.accel = self.accel;
        if let Some(seconds) = self.seconds {
            if !(0.1..=86_400.0).contains(&seconds) {
                return Err(Failure::Usage(anyhow!("--seconds {seconds}: expected 0.1 to 86400")));
            }
            options.timing.window = Duration::from_secs_f64(seconds / f64::from(options.timing.windows));
        }
        options.points().map_err(|why| Failure::Usage(anyhow!(why)))?;
        Ok(options)
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    if global.root.is_some() {
        return Err(Failure::Usage(anyhow!("tenants runs things on this host: --root does not go with it")));
    }
    if global.output == Format::Svg {
        return Err(Failure::Usage(anyhow!("the pictures are in report.html: use -o text, json or csv")));
    }
    match args.what {
        What::Net(sweep) => experiment(global, Which::TenantsNet, &sweep),
        What::Cpu(sweep) => experiment(global, Which::TenantsCpu, &sweep),
        What::Compare { first, second } => compare_runs(global, &first, &second),
        What::Report { dir } => {
            let record = TenantsRecord::load(&dir).map_err(|e| Failure::Usage(e.into()))?;
            finish(global, &dir, &record)
        }
    }
}

/// Runs one of the two with its defaults: for `lab run`.
pub fn run_builtin(global: &Global, which: Which, quick: bool, dir: PathBuf) -> Outcome {
    if matches!(global.output, Format::Svg) {
        return Err(Failure::Usage(anyhow!("the pictures are in report.html: use -o text, json or csv")));
    }
    experiment(global, which, &Sweep { quick, dir: Some(dir), ..Sweep::default() })
}

/// Studies and reports a folder again: for `lab report`.
pub fn report_again(global: &Global, dir: &Path) -> Outcome {
    let record = TenantsRecord::load(dir).map_err(|e| Failure::Usage(e.into()))?;
    finish(global, dir, &record)
}

fn compare_runs(global: &Global, first: &Path, second: &Path) -> Outcome {
    let load = |dir: &Path| TenantsRecord::load(dir).map_err(|e| Failure::Usage(e.into()));
    let (first, second) = (study(&load(first)?), study(&load(second)?));
    let compared = compare::compare(&first, &second);
    if compared.is_empty() {
        return Err(Failure::Usage(anyhow!("the two have no point in common")));
    }
    match global.output {
        Format::Json => {
            let document =
                serde_json::json!({ "schema": "evenkeel.tenants-compare/v1", "figures": compared });
            outln!("{document:#}")?;
        }
        Format::Csv => return Err(Failure::Usage(anyhow!("use -o text or json"))),
        Format::Text | Format::Svg => out!("{}", compare::text(&compared))?,
    }
    Ok(u8::from(!compare::biases_agree(&compared)))
}

fn experiment(global: &Global, which: Which, sweep: &Sweep) -> Outcome {
    let root = Root::host();
    let cpus = online(&root)?;
    let options = sweep.options(which, cpus.len() as u32)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Cannot(anyhow!(
            "tenants are network namespaces and cgroups, which need root: run as root"
        )));
    }
    let folder =
        sweep.out.clone().or_else(|| sweep.dir.clone()).unwrap_or_else(|| PathBuf::from(which.name()));
    let binary = std::env::current_exe().context("own path")?;
    let stop = stop::on_signals()?;
    let bar = bar();
    let mut table = Table::open(&global.state_dir.join("lab"));
    let mut progress = |done: usize, all: usize, point: &evenkeel_lab::fairness::plan::Point| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(point.to_string());
    };
    let mut bench = Bench {
        binary: &binary,
        cache: &global.state_dir.join("vm"),
        host: host(&root, &cpus),
        cpus,
        stop,
        table: &mut table,
        progress: &mut progress,
    };
    let record = run_experiment(&options, &folder, &mut bench).map_err(|error| match error {
        RunError::Options(_) | RunError::Other { .. } => Failure::Usage(error.into()),
        RunError::Record(_) | RunError::Missing(_) => Failure::Cannot(error.into()),
    });
    drop(table);
    bar.finish_and_clear();
    finish(global, &folder, &record?)
}

fn finish(global: &Global, folder: &Path, record: &TenantsRecord) -> Outcome {
    let study = study(record);
    show::write(folder, record, &study)
        .with_context(|| format!("cannot write the report to {}", folder.display()))?;
    match global.output {
        Format::Json => {
            let json = serde_json::to_string_pretty(&study).map_err(|e| Failure::Cannot(e.into()))?;
            outln!("{json}")?;
        }
        Format::Csv => out!("{}", show::csv(&study))?,
        Format::Text | Format::Svg => out!("{}", show::text(&study))?,
    }
    say!("report: {}", folder.join("report.html").display());
    if !record.is_complete() {
        return Err(Failure::No(anyhow!(
            "interrupted after {} cells; give the same command again to go on",
            record.cells.len()
        )));
    }
    Ok(u8::from(study.rows.is_empty()))
}

fn online(root: &Root) -> Result<CpuSet, Failure> {
    let cpus = sysfs::read_list(root, &format!("{}/online", sysfs::CPU_DIR))
        .map_err(|e| Failure::Cannot(e.into()))?;
    Ok(cpus.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| CpuSet::first_n(1)))
}

/// What can be said of the host without looking long.
fn host(root: &Root, cpus: &CpuSet) -> Host {
    let cpuinfo = root.read("proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':').map(|v| v.trim().to_owned()))
    };
    let memory = root.read("proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:").map(str::to_owned))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    });
    Host {
        name: root.read("proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned()),
        cpu_model: field("model name"),
        arch: Some(std::env::consts::ARCH.to_owned()),
        cpus: Some(cpus.len() as u32),
        kernel: sysfs::read_release(root).ok(),
        virtual_machine: field("flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        memory_bytes: memory,
        ..Host::default()
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), console::progress_target());
    let style = ProgressStyle::with_template("{pos}/{len} [{bar:30}] {msg} (about {eta} left)");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// The host's table of sockets' flows, set through the journal.
struct Table {
    opened: Result<Actuator<Linux>, String>,
}

impl Table {
    /// Puts back what a killed predecessor left.
    fn open(dir: &Path) -> Self {
        let opened = Linux::new().map_err(|error| error.to_string()).and_then(|kernel| {
            Actuator::open(kernel, dir, evenkeel_actuate::Options::default())
                .map_err(|error| error.to_string())
        });
        let opened = opened.map(|(actuator, recovery)| {
            if recovery.left_behind {
                say!("of an earlier run: {}", super::run::back_sentence(&recovery.report));
            }
            actuator
        });
        Self { opened }
    }
}

/// However the experiment ends, by a panic too.
impl Drop for Table {
    fn drop(&mut self) {
        if let Ok(actuator) = std::mem::replace(&mut self.opened, Err("closed".to_owned())) {
            for line in super::net::problems(&actuator.close()) {
                say!("evenkeel: {line}");
            }
        }
    }
}

impl FlowTable for Table {
    fn set(&mut self, on: bool) -> Result<(), String> {
        let actuator = self.opened.as_mut().map_err(|error| error.clone())?;
        let entries = evenkeel_lab::net::steering::SOCK_FLOW_ENTRIES.to_string();
        let change = Change {
            target: Target::Net(NetKnob::SockFlowEntries),
            to: Setting::Net(entries),
            why: "flow steering (RFS) of an experiment".to_owned(),
        };
        let changes = if on { vec![change] } else { Vec::new() };
        let report = actuator.set(&Plan { changes, ..Plan::default() }, &|_| true);
        let refused = report.problems().next().map(|(_, why)| why);
        refused.or_else(|| super::net::problems(&report.back).into_iter().next()).map_or(Ok(()), Err)
    }
}
