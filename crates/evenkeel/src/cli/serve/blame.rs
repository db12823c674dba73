//! Every wait for a CPU and who ran meanwhile, counted in the kernel and read now and then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_base::{Histogram, Observation};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Culprit, Probe, Seen, Waited, Watch, WatchOptions};
use evenkeel_linux::Root;
use evenkeel_observe::Observer;

use crate::cli::listen::Server;
use crate::cli::why::Names;

/// Time between two readings: one costs some system calls a cgroup and CPU.
const EVERY: Duration = Duration::from_secs(5);
/// The programs know cgroups by an address that the kernel may use again: they are started anew this often.
const AGE: Duration = Duration::from_secs(600);

/// The programs at work.
#[derive(Debug)]
pub struct Blame {
    probe: Probe,
    started: Instant,
    read: Instant,
    waited: Waited,
    /// Waited, by cgroup.
    cells: BTreeMap<u64, u64>,
    /// By victim's cgroup and culprit.
    pairs: BTreeMap<(u64, Culprit), u64>,
}

impl Blame {
    /// Loads the programs; says why where they cannot be.
    pub fn start(server: &Server) -> Option<Self> {
        match Self::load() {
            Ok(blame) => {
                server.blames();
                Some(blame)
            }
            Err(error) => {
                super::tell(server, &format!("no lengths of waits and nobody to blame: {error}"));
                None
            }
        }
    }

    fn load() -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let probe = Probe::start(&types, &Watch::All, &WatchOptions::default())?;
        let now = Instant::now();
        Ok(Self {
            probe,
            started: now,
            read: now,
            waited: Waited::default(),
            cells: BTreeMap::new(),
            pairs: BTreeMap::new(),
        })
    }

    /// Reads, when it is time; false when that is over.
    pub fn look(&mut self, observer: &Observer, observation: &Observation, server: &Server) -> bool {
        if self.read.elapsed() < EVERY {
            return true;
        }
        let looked = self.read(observer, observation, server);
        let looked = looked.and_then(|()| {
            if self.started.elapsed() > AGE {
                *self = Self::load()?;
            }
            Ok(())
        });
        if let Err(error) = looked {
            super::tell(server, &format!("no more lengths of waits, and nobody to blame: {error}"));
            return false;
        }
        true
    }

    fn read(
        &mut self,
        observer: &Observer,
        observation: &Observation,
        server: &Server,
    ) -> Result<(), BpfError> {
        self.read = Instant::now();
        let waited = self.probe.waited()?;
        let seen = self.probe.look()?;
        let cpu = observer.hierarchies().and_then(|found| found.cpu.as_ref());
        let names = Names::read(&Root::host(), cpu, observation);
        let title = |id: u64| title(&names, id, observation);

        let mut waits: BTreeMap<String, (Histogram, f64)> = BTreeMap::new();
        for (id, histogram) in waited.since(&self.waited) {
            let Some(owner) = id.and_then(title) else { continue };
            waits.entry(owner).or_default().0.merge(&histogram);
        }
        for cell in &seen.cells {
            let Some(id) = cell.cgroup else { continue };
            let grown = cell.waited_ns.saturating_sub(self.cells.insert(id, cell.waited_ns).unwrap_or(0));
            if let Some(owner) = title(id).filter(|_| grown > 0) {
                waits.entry(owner).or_default().1 += grown as f64 / 1e9;
            }
        }
        let mut blame = Vec::new();
        let mut pairs = BTreeMap::new();
        for one in &seen.blame {
            let Some(victim) = seen.cells.get(one.cell).and_then(|cell| cell.cgroup) else { continue };
            let culprit = steady(&one.culprit, &seen);
            let sum: &mut u64 = pairs.entry((victim, culprit)).or_default();
            *sum += one.ns;
        }
        for ((victim, culprit), ns) in &pairs {
            let before = self.pairs.get(&(*victim, culprit.clone())).copied().unwrap_or(0);
            let grown = ns.saturating_sub(before) as f64 / 1e9;
            if let Some(owner) = title(*victim).filter(|_| grown > 0.0) {
                blame.push((owner, culprit_title(culprit, title), grown));
            }
        }
        // Time that a wait that goes on owes may be told again as less: what was told stays the mark.
        for (pair, ns) in pairs {
            let mark = self.pairs.entry(pair).or_default();
            *mark = ns.max(*mark);
        }
        self.waited = waited;
        let waits: Vec<_> =
            waits.into_iter().map(|(owner, (histogram, seconds))| (owner, histogram, seconds)).collect();
        server.add_waits(&waits, &blame);
        Ok(())
    }
}

/// A culprit that is the same in every reading: cells have other places then.
fn steady(culprit: &Culprit, seen: &Seen) -> Culprit {
    let group =
        |cgroup: u64| Culprit::Task { tid: 0, tgid: 0, comm: String::new(), cgroup, kernel_thread: false };
    match culprit {
        Culprit::Group(cell) => group(seen.cells.get(*cell).and_then(|cell| cell.cgroup).unwrap_or(0)),
        Culprit::Task { kernel_thread: false, cgroup, .. } => group(*cgroup),
        Culprit::Task { .. } => {
            Culprit::Task { tid: 0, tgid: 0, comm: String::new(), cgroup: 0, kernel_thread: true }
        }
        Culprit::Irq(..) => Culprit::Irq(0, String::new()),
        other => other.clone(),
    }
}

fn culprit_title(culprit: &Culprit, title: impl Fn(u64) -> Option<String>) -> String {
    match culprit {
        Culprit::Idle => "idle CPU waking up".to_owned(),
        Culprit::Task { kernel_thread: true, .. } => "kernel threads".to_owned(),
        Culprit::Task { cgroup, .. } => title(*cgroup).unwrap_or_else(|| "ended cgroups".to_owned()),
        Culprit::Irq(..) => "interrupts".to_owned(),
        Culprit::SoftIrq(name) => format!("softirq {name}"),
        Culprit::Group(_) => "ended cgroups".to_owned(),
    }
}

/// As [`crate::cli::listen`] names owners: a container's pod and name, else the cgroup's path.
fn title(names: &Names, id: u64, observation: &Observation) -> Option<String> {
    let path = names.path(id)?;
    let container = names.container(path).and_then(|at| observation.containers.get(at));
    Some(container.map_or_else(|| path.to_owned(), |container| observation.container_title(container)))
}
