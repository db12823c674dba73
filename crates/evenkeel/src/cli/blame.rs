//! Every wait for a CPU and who ran meanwhile, counted in the kernel and read now and then.

mod called;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_base::{Histogram, Observation};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Cell, Culprit, Probe, Seen, Waited, Watch, WatchOptions};
use evenkeel_observe::Observer;

use crate::cli::listen::Server;
use called::Called;

/// Time between two readings: one costs some system calls a cgroup and CPU.
const EVERY: Duration = Duration::from_secs(5);
/// The programs have room for a number of cgroups, those that are gone included: they are started anew this often.
const AGE: Duration = Duration::from_secs(600);
/// Or when so many cgroups were seen, but not more often than this.
const CROWD: usize = 450;
const CROWDED_AGE: Duration = Duration::from_secs(120);

/// Who or what kept a victim from running.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Taker {
    /// Had its CPU.
    Culprit(Culprit),
    /// The quota of this cgroup was used up; 0 when it was not seen whose.
    Quota(u64),
    /// The hypervisor gave its CPU to others.
    Hypervisor,
}

/// The programs at work.
#[derive(Debug)]
pub struct Blame {
    probe: Probe,
    started: Instant,
    read: Instant,
    waited: Waited,
    /// What was counted of a cgroup so far.
    cells: BTreeMap<u64, Counted>,
    /// By victim's cgroup, ns.
    pairs: BTreeMap<(u64, Taker), u64>,
    called: Called,
}

/// Of one cgroup, ns.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    waited: u64,
    ran: u64,
}

impl Counted {
    fn of(cell: &Cell) -> Self {
        Self { waited: cell.waited_ns, ran: cell.ran_ns }
    }
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
            called: Called::default(),
        })
    }

    /// Reads, when it is time; false when that is over.
    pub fn look(&mut self, observer: &Observer, observation: &Observation, server: &Server) -> bool {
        // A cgroup may be gone when its time is read.
        if self.read.elapsed() < EVERY {
            self.called.learn_new(observer, observation);
            return true;
        }
        let looked = self.read(observer, observation, server);
        let looked = looked.and_then(|()| {
            let age = if self.cells.len() > CROWD { CROWDED_AGE } else { AGE };
            if self.started.elapsed() > age {
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
        self.called.learn_all(observer, observation);

        let mut waits: BTreeMap<String, (Histogram, f64)> = BTreeMap::new();
        for (id, histogram) in waited.since(&self.waited) {
            let Some(owner) = id.and_then(|id| self.called.title(id)) else { continue };
            waits.entry(owner.to_owned()).or_default().0.merge(&histogram);
        }
        let mut ran: BTreeMap<u64, u64> = BTreeMap::new();
        for cell in &seen.cells {
            let Some(id) = cell.cgroup else { continue };
            let now = Counted::of(cell);
            let before = self.cells.insert(id, now).unwrap_or_default();
            ran.insert(id, now.ran.saturating_sub(before.ran));
            let grown = now.waited.saturating_sub(before.waited);
            if let Some(owner) = self.called.title(id).filter(|_| grown > 0) {
                waits.entry(owner.to_owned()).or_default().1 += grown as f64 / 1e9;
            }
        }
        let mut blame = Vec::new();
        for (pair, ns) in taken(&seen) {
            // Time that a wait that goes on owes may be told again as less: what was told stays the mark.
            let mark = self.pairs.entry(pair.clone()).or_default();
            let grown = ns.saturating_sub(*mark) as f64 / 1e9;
            *mark = ns.max(*mark);
            let (victim, taker) = pair;
            if let Some(owner) = self.called.title(victim).filter(|_| grown > 0.0) {
                blame.push((owner.to_owned(), self.called.taker(&taker, victim, &ran), grown));
            }
        }
        self.waited = waited;
        let waits: Vec<_> =
            waits.into_iter().map(|(owner, (histogram, seconds))| (owner, histogram, seconds)).collect();
        server.add_waits(&waits, &blame);
        Ok(())
    }
}

/// Time that each victim's threads were runnable and did not run, by who or what was at fault, ns so far.
fn taken(seen: &Seen) -> BTreeMap<(u64, Taker), u64> {
    let mut pairs: BTreeMap<(u64, Taker), u64> = BTreeMap::new();
    let victim = |cell: usize| seen.cells.get(cell).and_then(|cell| cell.cgroup);
    let mut add = |victim: Option<u64>, taker: Taker, ns: u64| {
        if let Some(victim) = victim.filter(|_| ns > 0) {
            *pairs.entry((victim, taker)).or_default() += ns;
        }
    };
    for one in &seen.blame {
        add(victim(one.cell), Taker::Culprit(steady(&one.culprit, seen)), one.ns);
    }
    for one in &seen.held {
        add(victim(one.cell), Taker::Quota(one.by.unwrap_or(0)), one.ns);
    }
    for cell in &seen.cells {
        add(cell.cgroup, Taker::Hypervisor, cell.stolen_ns);
    }
    pairs
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
