//! `evenkeel ps`: who uses the CPU, one shot.

mod text;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use evenkeel_agent::Scope;
use evenkeel_base::{BesideCpu, ContainerView, NetworkRates, Observation, TaskView};
use evenkeel_linux::Root;
use evenkeel_observe::beside::{read_beside_cpu, read_host_network};
use evenkeel_observe::capture::replay;
use evenkeel_observe::{Detail, NetworkCounters, Observer, ObserverOptions, RUNTIMES_WAIT, Select};
use evenkeel_report::ps::{self, View, WaitsByContainer};

use super::{Failure, Format, Global, Outcome, show};

/// Show who uses the CPU and who waits for it, over an interval.
///
/// Percent is of ONE CPU. WAIT is the time runnable but not running, throttling included. `?` is unknown, `-` is none.
/// A pod's or container's view nests what is inside, with the core each process ran on last, and has the bytes per second that
/// its network received and sent where it is not the host's; `--by cpu` goes the other way: each core's tasks and whose they
/// are. A terminal of fewer than 100 columns shows no switches and no class.
///
/// Example: evenkeel ps --by pod --interval 5s
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What a line is.
    #[arg(long, value_enum, default_value_t = By::Process)]
    by: By,
    /// Time between the two samples.
    #[arg(long, default_value = "1s", value_parser = super::duration)]
    interval: Duration,
    /// Show what used no CPU and did not wait, too (text only; documents have everything).
    #[arg(long)]
    all: bool,
    /// Only these tasks, and what they belong to (with its own totals): pid:N, comm:REGEX, cgroup:/PATH, container:NAME,
    /// pod:NS/NAME, vm:NAME or all; ! in front excludes; repeatable. Never pid 1, kernel threads and evenkeel itself.
    #[arg(long, value_name = "SCOPE")]
    scope: Vec<String>,
    /// Lines at most (text only); unless given 40, with --all all.
    #[arg(long, short = 'n', value_name = "N")]
    lines: Option<usize>,
}

/// Grouping of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Threads.
    Task,
    /// Processes, their threads added up.
    Process,
    /// Containers and the processes in them.
    Container,
    /// Pods, their containers and processes.
    Pod,
    /// Virtual machines and their vCPU threads.
    Vm,
    /// CPUs and the tasks that ran there.
    Cpu,
}

/// Shortest interval that shows anything: `/proc/stat` counts in 10 ms.
pub const MIN_INTERVAL: Duration = Duration::from_millis(100);

pub fn run(global: &Global, args: Args) -> Outcome {
    if args.interval < MIN_INTERVAL {
        return Err(usage!("--interval {:?}: at least 100ms", args.interval));
    }
    let scope = Scope::parse(&args.scope).map_err(|error| Failure::Usage(error.into()))?;
    // Exclusions alone are taken from everybody, for `ps` shows everybody.
    let scope = match (args.scope.is_empty(), scope.is_default()) {
        (true, _) => None,
        (false, false) => Some(scope),
        (false, true) => {
            let texts: Vec<&str> = ["all"].into_iter().chain(args.scope.iter().map(String::as_str)).collect();
            Some(Scope::parse(&texts).map_err(|error| Failure::Usage(error.into()))?)
        }
    };
    // Only where it is shown: watching every switch costs more than two samples.
    let lengths = global.root.is_none()
        && (matches!(args.by, By::Container | By::Pod) || global.output == Format::Json);
    let (observation, observer, waits, networks) = observe(global, args.interval, lengths)?;
    let meant = scope.map(|scope| {
        let observation = &observation;
        move |task: &TaskView| scope.has(task, observation)
    });
    let meant = meant.as_ref().map(|meant| meant as &dyn Fn(&TaskView) -> bool);
    let mut view = View::new(&observation, |task| observer.unit(task).map(str::to_owned), meant);
    (view.waits, view.networks) = (waits, networks);
    if global.output != Format::Text {
        let root = show::root(global)?;
        view.beside = beside(&root, &observer, &observation);
        view.network = read_host_network(&root);
    }
    match global.output {
        Format::Json => outln!("{:#}", view.document())?,
        Format::Csv => out!("{}", csv(&view, args.by))?,
        Format::Text | Format::Svg => out!("{}", text::render(&view, &args))?,
    }
    Ok(0)
}

/// What containers use next to CPU, by index.
fn beside(root: &Root, observer: &Observer, observation: &Observation) -> BTreeMap<u32, BesideCpu> {
    let Some(hierarchies) = observer.hierarchies() else { return BTreeMap::new() };
    let path = |container: &ContainerView| Some(&observation.groups.get(container.group? as usize)?.path);
    let containers = (0..).zip(&observation.containers);
    let mut pids = BTreeMap::new();
    for task in &observation.tasks {
        if let Some(at) = task.container {
            pids.entry(at).or_insert(task.id.tgid);
        }
    }
    let read = |at: u32, path| read_beside_cpu(root, hierarchies, path, pids.get(&at).copied());
    containers.filter_map(|(at, one)| Some((at, read(at, path(one)?)))).collect()
}

fn csv(view: &View<'_>, by: By) -> String {
    match by {
        By::Task => ps::task_table().csv(&view.tasks),
        By::Process => ps::process_table().csv(&view.processes),
        By::Container => ps::container_table().csv(&view.containers()),
        By::Pod => ps::pod_table().csv(&view.pods()),
        By::Vm => ps::vm_table().csv(&view.vms()),
        By::Cpu => view.cpu_table().csv(&view.observation.host.per_cpu),
    }
}

/// Two samples an interval apart, of this host or from a tree.
fn observe(
    global: &Global,
    interval: Duration,
    lengths: bool,
) -> Result<(Observation, Observer, WaitsByContainer, NetworkRates), Failure> {
    let root = show::root(global)?;
    let observing = || -> Result<_, evenkeel_observe::ObserveError> {
        let (mut watching, mut networks) = (None, None);
        let (mut observer, before, after) = if root.is_live() {
            let sampling = global.sampling.unwrap_or_default();
            let options = ObserverOptions { sampling, switches: Select::All, ..ObserverOptions::default() };
            // Held while both load what they need: the kernel's types are read once.
            let types = lengths.then(evenkeel_bpf::load::kernel_types);
            let mut observer = Observer::new(&root, options)?;
            watching = lengths.then(waits::Watching::start);
            drop(types);
            let before = observer.sample()?;
            if lengths {
                // Whose networks there are is to be known before the time begins.
                let begin = observer.observe(&before, &before, &Detail::None)?;
                networks = Some(NetworkCounters::read(&root, &begin));
            }
            std::thread::sleep(interval);
            let after = observer.sample()?;
            watching = watching.map(waits::Watching::stop);
            observer.wait_for_runtimes(RUNTIMES_WAIT);
            if let Some(note) = observer.take_note() {
                tracing::warn!("{note}");
            }
            (observer, before, after)
        } else {
            replay(&root)?
        };
        let observation = observer.observe_named(&before, &after, &Detail::All, RUNTIMES_WAIT)?;
        let since = |before: NetworkCounters| NetworkCounters::read(&root, &observation).since(&before);
        let networks = networks.map(since).unwrap_or_default();
        let waits = watching.map(|watching| watching.by_container(&root, &observer, &observation));
        Ok((observation, observer, waits.flatten(), networks))
    };
    observing().map_err(|error| Failure::Cannot(error.into()))
}
