//! `evenkeel tenants`: are tenants of this host treated equally?

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use evenkeel_actuate::{Actuator, Linux};
use evenkeel_base::{Change, NetKnob, Plan, Setting, Target};
use evenkeel_lab::fairness::plan::{Options, Which};
use evenkeel_lab::fairness::record::TenantsRecord;
use evenkeel_lab::fairness::run::{Tools, run as run_experiment};
use evenkeel_lab::fairness::study::study;
use evenkeel_lab::net::tools::Traffic;
use evenkeel_lab::net::wiring::Nic;
use evenkeel_lab::vm::machine::Accel;
use evenkeel_lab::vm::nic::VmNic;
use evenkeel_linux::sys::usable_cpus;

use super::global::root_only;
use super::lab::progress::measured;
use super::lab::written::{Report, complete, load};
use super::{Failure, Format, Global, Outcome};

mod compare;
mod show;

/// Measure whether tenants get equal shares: of the network, or of the CPU.
///
/// Tenants are network namespaces (veth and bridge, macvlan), cgroups, containers and virtual machines, made for the measurement and
/// gone with it, also after `kill -9`: they live in namespaces of their own. The host's links, addresses and firewall rules are not
/// touched. Results go to a folder (record.json, study.json, report.html, report.md, points.csv); an interrupted run goes on
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
    pub dir: Option<PathBuf>,
    /// Result folder; tenants-net or tenants-cpu here, unless given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Start over although the folder holds results.
    #[arg(long)]
    pub again: bool,
    /// The short form, within a minute: no virtual machines, fewer kinds and repetitions.
    #[arg(long)]
    pub quick: bool,
    /// Numbers of tenants in namespaces (up to 4000) or cgroups (up to 4096); 0 for none.
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
    /// Repetitions; everything is started again for each.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
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

/// What is given, in place of the default.
fn set<T: Clone>(to: &mut T, given: &Option<T>) {
    if let Some(given) = given {
        to.clone_from(given);
    }
}

/// Numbers without 0, which stands for none.
fn some(numbers: &Option<Vec<usize>>) -> Option<Vec<usize>> {
    numbers.as_ref().map(|numbers| numbers.iter().copied().filter(|n| *n > 0).collect())
}

impl Sweep {
    fn options(&self, which: Which, cpus: u32) -> Result<Options, Failure> {
        let mut options = Options::defaults(which, self.quick, cpus);
        set(&mut options.tenants, &self.tenants);
        set(&mut options.traffic, &self.traffic);
        // Said apart from a number of machines that was asked for.
        if options.traffic != Traffic::Rr {
            options.vms.clear();
        }
        set(&mut options.vms, &some(&self.vms));
        set(&mut options.containers, &some(&self.containers));
        set(&mut options.vm_nics, &self.vm_nic);
        set(&mut options.nics, &self.nic);
        set(&mut options.vcpus, &self.vcpus);
        let rps = |choices: &Vec<OffOn>| choices.iter().map(|choice| *choice == OffOn::On).collect();
        set(&mut options.rps, &self.rps.as_ref().map(rps));
        set(&mut options.flows, &self.flows);
        set(&mut options.repetitions, &self.repetitions);
        options.accel = self.accel;
        if let Some(seconds) = self.seconds {
            if !(0.1..=86_400.0).contains(&seconds) {
                return Err(usage!("--seconds {seconds}: expected 0.1 to 86400"));
            }
            options.timing.window = Duration::from_secs_f64(seconds / f64::from(options.timing.windows));
        }
        options.points().map_err(|why| usage!(why))?;
        Ok(options)
    }
}

impl Args {
    /// Whether it measures; the others read results.
    pub fn changes(&self) -> bool {
        matches!(self.what, What::Net(_) | What::Cpu(_))
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("tenants runs things on this host: --root does not go with it")?;
    match args.what {
        What::Net(sweep) => experiment(global, Which::TenantsNet, &sweep),
        What::Cpu(sweep) => experiment(global, Which::TenantsCpu, &sweep),
        What::Compare { first, second } => compare_runs(global, &first, &second),
        What::Report { dir } => report(global, &load(&dir)?, Some(&dir)),
    }
}

/// Studies a record, prints the study, and writes the reports into a folder where one is given.
pub fn report(global: &Global, record: &TenantsRecord, folder: Option<&Path>) -> Outcome {
    let study = study(record);
    let page = show::page(record, &study);
    let csv = show::table(&study).csv(&study.rows);
    let files = vec![("points.csv", csv), ("report.html", page.html()), ("report.md", page.markdown())];
    Report::new(&study, show::text(&study), "points.csv", files)?.show(global.output, folder)?;
    complete(record)?;
    Ok(u8::from(study.rows.is_empty()))
}

fn compare_runs(global: &Global, first: &Path, second: &Path) -> Outcome {
    let (first, second): (TenantsRecord, TenantsRecord) = (load(first)?, load(second)?);
    if let Some(why) = compare::other_load(&first.options, &second.options) {
        return Err(usage!(why));
    }
    let compared = compare::compare(&study(&first), &study(&second));
    if compared.is_empty() {
        return Err(usage!("the two have no point in common"));
    }
    match global.output {
        Format::Json => {
            let document =
                serde_json::json!({ "schema": "evenkeel.tenants-compare/v1", "figures": compared });
            outln!("{document:#}")?;
        }
        Format::Csv => return Err(usage!("use -o text or json")),
        Format::Text | Format::Svg => out!("{}", compare::text(&compared))?,
    }
    Ok(u8::from(!compare::biases_agree(&compared)))
}

pub fn experiment(global: &Global, which: Which, sweep: &Sweep) -> Outcome {
    let options = sweep.options(which, u32::try_from(usable_cpus().len()).unwrap_or(u32::MAX))?;
    root_only("tenants are network namespaces and cgroups, which need root: run as root")?;
    let folder =
        sweep.out.clone().or_else(|| sweep.dir.clone()).unwrap_or_else(|| PathBuf::from(which.name()));
    let binary = std::env::current_exe().context("own path")?;
    let record = measured(&folder, sweep.again, options.planned_s(), |to| {
        let mut table = Table::open(&global.state_dir.join("lab"));
        let tools = Tools {
            binary: &binary,
            cache: &global.state_dir.join("vm"),
            topology: evenkeel_observe::topology::read_topology(&evenkeel_linux::Root::host()).ok(),
            flow_table: &mut |on| table.set(on),
        };
        run_experiment(&options, tools, to)
    })?;
    report(global, &record, Some(&folder))
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
                say!("of an earlier run: {}", super::show::back_sentence(&recovery.report));
            }
            actuator
        });
        Self { opened }
    }

    /// Makes it large enough, or puts it back.
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
