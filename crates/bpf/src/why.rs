//! Where a target's time goes, and who ran on the CPU while it was runnable there: all of it added up in the kernel
//! (`bpf/why.bpf.c`), read once at the end.

mod collect;
mod counts;
mod raw;
mod turns;

use std::collections::BTreeMap;
use std::io::Read;

use aya::Ebpf;
use aya::maps::{Array, HashMap};
use aya::programs::Iter;
use aya::programs::tp_btf::BtfTracePointLink;

use crate::BpfError;
use crate::load::{Types, attach_loaded, load, missing, object, open, possible_cpus, program};
use raw::{Config, CpuState, MAX_CELLS, MEANT, SCOPE_SHIFT, TIMED_EACH, WITH_CHILDREN};

pub use collect::{Blame, Cell, Culprit, Held, Seen, may_have_started};
pub use counts::Waited;
pub use evenkeel_base::Histogram;

/// Whose time is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watch {
    /// Every thread but the kernel's, told apart by cgroup.
    All,
    /// Processes with all their threads: id, and start time in clock ticks as `/proc/PID/stat` has it (a later process
    /// with the same number is not meant).
    Processes(Vec<(u32, u64)>),
    /// cgroups of the cpu controller with everything below, by their directories' inode numbers.
    Groups(Vec<u64>),
    /// Processes that are named later, in scopes whose waits are counted apart ([`Probe::put`], [`scope_of`]).
    Scopes,
}

/// A scope of a [`Watch::Scopes`]. 0 is nobody's: what is counted for it is of no interest.
pub type ScopeNumber = u8;

/// The scope of what [`Waited::since`] and [`Probe::open_waits`] tell apart; `None` of what found no room.
pub fn scope_of(cell: Option<u64>) -> Option<ScopeNumber> {
    cell.map(|id| (id >> SCOPE_SHIFT) as ScopeNumber)
}

#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    /// Threads there may be; 0 for a guess.
    pub threads: u32,
    /// How long waits are is all that is asked for, not who is to blame: interrupts are not watched then. Loading a program keeps
    /// a CPU in the kernel for some milliseconds, and each interrupt costs two calls.
    pub waits_only: bool,
    /// Time that a quota holds a thread back is part of its wait's length ([`Probe::waited`], [`Probe::open_waits`]).
    pub throttled_waits: bool,
    /// It may rest and go on ([`Probe::rest`]). The length of a wait that goes on when a turn begins is the whole one, so that
    /// each wait whose end is seen counts as long as it was; sums of time are those within the turns.
    pub in_turns: bool,
}

const THREADS: u32 = 16_384;
const GROUPS: u32 = 16_384;

/// Values of the programs' constants; the loader wants them for as long as it lives.
static MODE_ALL: u32 = 0;
static MODE_PROCESSES: u32 = 1;
static MODE_GROUPS: u32 = 2;
static NO: u32 = 0;
static YES: u32 = 1;

const TRACEPOINTS: [(&str, &str); 5] = [
    ("on_switch", "sched_switch"),
    ("on_wakeup", "sched_wakeup"),
    ("on_wakeup_new", "sched_wakeup_new"),
    ("on_migrate", "sched_migrate_task"),
    ("on_timer", "hrtimer_expire_exit"),
];
/// Interrupts, which take time from who runs and from who waits behind it.
const INTERRUPTS: [(&str, &str); 4] = [
    ("on_irq_entry", "irq_handler_entry"),
    ("on_irq_exit", "irq_handler_exit"),
    ("on_softirq_entry", "softirq_entry"),
    ("on_softirq_exit", "softirq_exit"),
];
/// The end of a function call from another CPU, by which quota is given out there: since 6.3, x86, arm64.
const CALLS: [&str; 3] = ["csd_function_exit", "call_function_single_exit", "ipi_exit"];

/// The programs at work. They go with it, however the process ends.
#[derive(Debug)]
pub struct Probe {
    ebpf: Ebpf,
    config: Config,
    /// Programs that are attached while time is counted.
    names: Vec<&'static str>,
    links: Vec<BtfTracePointLink>,
    throttled_waits: bool,
    cpus: u32,
    start_ns: u64,
    window_ns: u64,
}

impl Probe {
    /// Loads and attaches the programs; from its return on, time is counted.
    pub fn start(types: &Types, watch: &Watch, options: &WatchOptions) -> Result<Self, BpfError> {
        let cpus = possible_cpus()?;
        let cells = MAX_CELLS;
        let mode = match watch {
            Watch::All => &MODE_ALL,
            Watch::Scopes | Watch::Processes(_) => &MODE_PROCESSES,
            Watch::Groups(_) => &MODE_GROUPS,
        };
        let config = Config { cells, ..Config::default() };
        let sizes = [
            ("cpus", cpus),
            ("spots", cpus * cells),
            ("histograms", cells),
            ("records", options.threads.max(THREADS)),
            // Another object has a map of this name.
            ("groups", GROUPS),
        ];
        let blames = if options.waits_only { &NO } else { &YES };
        let throttled = if options.throttled_waits { &YES } else { &NO };
        let earlier = if options.in_turns { &YES } else { &NO };
        let children = if *watch == Watch::Scopes { &YES } else { &NO };
        let constants = [
            ("watch_mode", mode),
            ("watch_blames", blames),
            ("watch_throttled", throttled),
            ("watch_earlier", earlier),
            ("watch_children", children),
        ];
        let ebpf = open(object!("why"), types, &sizes, &constants)?;

        let throttled_waits = options.throttled_waits;
        let (names, links) = (Vec::new(), Vec::new());
        let mut probe = Self { ebpf, config, names, links, throttled_waits, cpus, start_ns: 0, window_ns: 0 };
        probe.renew_cpus()?;
        // The kernel is told whom to watch before anything is attached, and to begin when all is.
        probe.set_config()?;
        match watch {
            Watch::All | Watch::Scopes => {}
            Watch::Processes(processes) => {
                processes.iter().try_for_each(|(tgid, start)| probe.add_process(*tgid, *start))?;
            }
            Watch::Groups(groups) => groups.iter().try_for_each(|id| probe.name(*id, 1))?,
        }
        let interrupts = if options.waits_only { &[][..] } else { &INTERRUPTS };
        for (name, tracepoint) in TRACEPOINTS.iter().chain(interrupts) {
            load(&mut probe.ebpf, name, tracepoint, types)?;
            probe.names.push(name);
        }
        if CALLS.iter().any(|call| load(&mut probe.ebpf, "on_call", call, types).is_ok()) {
            probe.names.push("on_call");
        } else {
            tracing::info!("new quota is seen a moment late: no tracepoint of calls between CPUs");
        }
        let iterators = if options.in_turns { &["seed", "forget"][..] } else { &["seed"] };
        for name in iterators {
            let iterator: &mut Iter = program(&mut probe.ebpf, name)?;
            iterator.load("task", types.btf()).map_err(|error| BpfError::refused("task iterator", error))?;
        }
        probe.begin()?;
        Ok(probe)
    }

    /// One more process to watch (of a [`Watch::Processes`]).
    ///
    /// # Errors
    /// As the kernel says: there may be some thousands, those that ended included.
    pub fn add_process(&mut self, tgid: u32, start_ticks: u64) -> Result<(), BpfError> {
        self.put(tgid, start_ticks, 0, false)
    }

    /// A process belongs to this scope from now on (of a [`Watch::Scopes`]), whatever it belonged to before. `children`: so do those
    /// that it starts, from their first instant to their end, until they go to another cgroup or are put anywhere themselves.
    pub fn put(
        &mut self,
        tgid: u32,
        start_ticks: u64,
        scope: ScopeNumber,
        children: bool,
    ) -> Result<(), BpfError> {
        let mark = if children { WITH_CHILDREN } else { 0 };
        self.name(u64::from(tgid), u64::from(scope) << SCOPE_SHIFT | mark | start_ticks)?;
        let mut meant: Array<_, u8> = map_mut(&mut self.ebpf, "meant")?;
        meant.set(tgid % MEANT, 1, 0).map_err(naming)
    }

    /// Tells the kernel of a target.
    fn name(&mut self, id: u64, value: u64) -> Result<(), BpfError> {
        let mut wanted: HashMap<_, u64, u64> = map_mut(&mut self.ebpf, "targets")?;
        wanted.insert(id, value, 0).map_err(naming)
    }

    /// Waits that have ended so far, throttled time left out but for [`WatchOptions::throttled_waits`]. Two of these tell what happened between them.
    pub fn waited(&self) -> Result<Waited, BpfError> {
        counts::read(&self.ebpf, self.config.cells)
    }

    /// Lengths at this instant of the waits that go on, as [`Self::waited`] counts them; of one that began before the window
    /// ([`Self::begin_window`]) its part of it. Without them a thread that starves would seem not to wait. By cgroup, as
    /// [`Waited::since`] has them.
    pub fn open_waits(&self) -> Result<BTreeMap<Option<u64>, Histogram>, BpfError> {
        let window = (self.window_ns, crate::monotonic_ns());
        collect::open_waits(&self.ebpf, &self.config, window, self.throttled_waits)
    }

    /// A window begins. What [`Self::waited`] grows by from now on are waits that began in it; `whole`: all that end, and those that
    /// go on count with all their length, too.
    pub fn begin_window(&mut self, whole: bool) -> Result<(), BpfError> {
        self.window_ns = if whole { 0 } else { crate::monotonic_ns() };
        let mut window: Array<_, u64> = map_mut(&mut self.ebpf, "window")?;
        window.set(0, self.window_ns, 0).map_err(|error| BpfError::refused("beginning a window", error))
    }

    /// When the watch began, `CLOCK_MONOTONIC`, ns.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Instructions the kernel's verifier walked for each program; the kernel tells since 5.16. A start costs CPU in
    /// proportion.
    pub fn verified_instructions(&self) -> Result<Vec<(String, u32)>, BpfError> {
        let mut walked = Vec::new();
        for (name, program) in self.ebpf.programs() {
            // One whose tracepoint this kernel lacks is not loaded.
            if program.fd().is_err() {
                continue;
            }
            let info =
                program.info().map_err(|error| BpfError::refused("asking about the programs", error))?;
            walked.extend(info.verified_instruction_count().map(|count| (name.to_owned(), count)));
        }
        Ok(walked)
    }

    /// What was seen so far; the watch goes on. Sums of a later look are not less, but for waits that go on.
    pub fn look(&self) -> Result<Seen, BpfError> {
        collect::collect(&self.ebpf, &self.config, self.cpus, (self.start_ns, crate::monotonic_ns()))
    }

    /// Ends the watch and returns what was seen.
    pub fn finish(mut self) -> Result<Seen, BpfError> {
        self.end()?;
        let end_ns = crate::monotonic_ns();
        collect::collect(&self.ebpf, &self.config, self.cpus, (self.start_ns, end_ns))
    }

    /// Counts nothing from now on.
    fn end(&mut self) -> Result<(), BpfError> {
        // What the kernel keeps in the configuration must survive.
        let configs: Array<_, Config> = map_mut(&mut self.ebpf, "config")?;
        self.config = configs.get(&0, 0).map_err(|error| BpfError::refused("reading", error))?;
        self.config.on = 0;
        self.set_config()
    }

    fn set_config(&mut self) -> Result<(), BpfError> {
        let config = self.config;
        let mut configs: Array<_, Config> = map_mut(&mut self.ebpf, "config")?;
        configs.set(0, config, 0).map_err(|error| BpfError::refused("configuring", error))
    }

    fn begin(&mut self) -> Result<(), BpfError> {
        for name in &self.names {
            self.links.push(attach_loaded(&mut self.ebpf, name)?);
        }
        self.config.on = 1;
        self.set_config()?;
        self.start_ns = crate::monotonic_ns();
        self.run("seed")
    }

    /// Runs a program for each task there is, once.
    fn run(&mut self, iterator: &'static str) -> Result<(), BpfError> {
        let program: &mut Iter = program(&mut self.ebpf, iterator)?;
        let id = program.attach().map_err(|error| BpfError::refused("task iterator", error))?;
        let link = program.take_link(id).map_err(|error| BpfError::refused("task iterator", error))?;
        let mut file = link.into_file().map_err(|error| BpfError::refused("task iterator", error))?;
        file.read_to_end(&mut Vec::new())?;
        Ok(())
    }

    /// Nobody was seen on any CPU.
    fn renew_cpus(&mut self) -> Result<(), BpfError> {
        let mut states: Array<_, CpuState> = map_mut(&mut self.ebpf, "cpus")?;
        // Which call is timed first is left to chance: also a few calls cost what they cost, on average.
        let chance = crate::monotonic_ns();
        (0..self.cpus).try_for_each(|cpu| {
            let first = (chance + u64::from(cpu)) % u64::from(TIMED_EACH);
            let state = CpuState { until_timed: 1 + first as u32, ..CpuState::NEW };
            states.set(cpu, state, 0).map_err(|error| BpfError::refused("clearing", error))
        })
    }
}

fn naming(error: aya::maps::MapError) -> BpfError {
    BpfError::refused("naming the targets", error)
}

fn map_mut<'a, M>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<M, BpfError>
where
    M: TryFrom<&'a mut aya::maps::Map, Error = aya::maps::MapError>,
{
    let map = ebpf.map_mut(name).ok_or_else(|| missing(name))?;
    M::try_from(map).map_err(|error| BpfError::refused(name, error))
}
