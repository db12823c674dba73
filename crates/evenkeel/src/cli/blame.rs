//! Every wait for a CPU and who ran meanwhile, counted in the kernel and read now and then, within a budget: where it costs
//! more, it is counted in turns, each of which stands for the time since the one before.

mod called;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_agent::budget::Budget;
use evenkeel_base::{Histogram, Observation};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::load::Types;
use evenkeel_bpf::why::{Cell, Culprit, Probe, Seen, Waited, Watch, WatchOptions};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_listen::Tally;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::Failure;
use super::settings::Blaming;
use called::Called;

/// Time between two readings: one costs some system calls a cgroup and CPU.
const EVERY: Duration = Duration::from_secs(5);
/// Shortest turn, and time between two looks at what it costs.
const LOOK: Duration = Duration::from_secs(1);
/// How soon a cgroup that is new is looked at: it may be gone when its time is read.
const GLANCE: Duration = Duration::from_millis(250);
/// The programs have room for a number of cgroups, those that are gone included: a turn ends after this time.
const AGE: Duration = Duration::from_secs(600);
/// Or when so many cgroups were seen, but not before this.
const CROWD: usize = 450;
const CROWDED_AGE: Duration = Duration::from_secs(120);
/// The share of the time that is counted is told of this time.
const RECENT_S: f64 = 60.0;

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

/// The programs at work, and what was told of this turn.
#[derive(Debug)]
struct Blame {
    tally: Tally,
    cpu: Option<Hierarchy>,
    probe: Probe,
    budget: Option<Budget>,
    luck: Pcg32,
    /// When the turn began.
    turn: Instant,
    /// Up to when everything is told, `CLOCK_MONOTONIC`, ns.
    told_ns: u64,
    /// What was told lately stands for so many seconds, of which so many were counted.
    lately: VecDeque<(f64, f64)>,
    /// What of this turn is paid for: its time, and by CPU what it cost, ns.
    paid: Duration,
    spent: Vec<u64>,
    waited: Waited,
    /// What was counted of a cgroup so far.
    cells: BTreeMap<u64, Counted>,
    /// By victim's cgroup, ns.
    pairs: BTreeMap<(u64, Taker), u64>,
    called: Called,
    named: Option<Arc<Observation>>,
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

/// Counts from now on, in a thread of its own, which ends with the process. Where the kernel cannot or may not, that is told.
pub fn start(tally: Tally, blaming: Blaming) -> Result<(), Failure> {
    let budget = match blaming {
        Blaming::Off => return Ok(()),
        Blaming::Always => None,
        Blaming::Within(share) => Some(Budget::new(share)),
    };
    // Here, where others of this process read them, too: one reading serves all.
    let types = evenkeel_bpf::load::kernel_types();
    let count = move || match types.and_then(|types| Blame::load(&types, tally.clone(), budget)) {
        Ok(mut blame) => {
            let Err(error) = blame.go_on();
            tally.observed(None);
            tally.tell(&format!(
                "no more histograms of waits and no more matrix of who took the CPU: {error}"
            ));
        }
        Err(error) => {
            tally.tell(&format!("no histograms of waits and no matrix of who took the CPU: {error}"))
        }
    };
    let thread = std::thread::Builder::new().name("blame".to_owned()).spawn(count);
    thread.map(drop).context("cannot count waits").map_err(Failure::Cannot)
}

impl Blame {
    fn load(types: &Types, tally: Tally, budget: Option<Budget>) -> Result<Self, BpfError> {
        let options = WatchOptions { in_turns: true, ..WatchOptions::default() };
        let probe = Probe::start(types, &Watch::All, &options)?;
        let told_ns = probe.start_ns();
        tally.blames();
        Ok(Self {
            cpu: Hierarchies::read(&Root::host()).ok().and_then(|found| found.cpu),
            tally,
            probe,
            budget,
            luck: Pcg32::seed_from_u64(told_ns ^ u64::from(std::process::id())),
            turn: Instant::now(),
            told_ns,
            lately: VecDeque::new(),
            paid: Duration::ZERO,
            spent: Vec::new(),
            waited: Waited::default(),
            cells: BTreeMap::new(),
            pairs: BTreeMap::new(),
            called: Called::default(),
            named: None,
        })
    }

    /// Turn after turn, until that is over.
    fn go_on(&mut self) -> Result<std::convert::Infallible, BpfError> {
        let mut read = Instant::now();
        loop {
            self.pass(LOOK);
            let rest = self.pay()?;
            let age = if self.cells.len() > CROWD { CROWDED_AGE } else { AGE };
            if rest.is_some() || self.turn.elapsed() > age {
                self.rest(rest)?;
                read = Instant::now();
            } else if read.elapsed() >= EVERY {
                read = Instant::now();
                let (waited, seen) = (self.probe.waited()?, self.probe.look()?);
                self.tell(waited, &seen);
            }
        }
    }

    /// Ends a turn, and begins another after a rest.
    fn rest(&mut self, rest: Option<Duration>) -> Result<(), BpfError> {
        let (seen, waited) = self.probe.rest()?;
        let rests = Instant::now();
        self.tell(waited, &seen);
        self.pass(rest.unwrap_or_default().saturating_sub(rests.elapsed()));
        if let Some(budget) = &mut self.budget {
            budget.rested(rests.elapsed().as_secs_f64());
        }
        (self.waited, self.paid, self.spent) = (Waited::default(), Duration::ZERO, Vec::new());
        self.cells.clear();
        self.pairs.clear();
        self.turn = Instant::now();
        self.probe.resume()
    }

    /// Lets time go by, and looks at cgroups that come meanwhile.
    fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let observation = self.tally.observation();
            let is_known = match (&observation, &self.named) {
                (Some(new), Some(old)) => Arc::ptr_eq(new, old),
                (new, _) => new.is_none(),
            };
            if !is_known {
                observation.iter().for_each(|new| self.called.learn_new(self.cpu.as_ref(), new));
                self.named = observation;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(GLANCE));
        }
    }

    /// Takes what the programs cost out of the budget; how long they are to rest for that.
    fn pay(&mut self) -> Result<Option<Duration>, BpfError> {
        let worked = self.turn.elapsed();
        let spent = self.probe.spent()?;
        self.spent.resize(spent.len(), 0);
        let new: Vec<f64> =
            spent.iter().zip(&self.spent).map(|(now, old)| now.saturating_sub(*old) as f64 / 1e9).collect();
        self.tally.spent(new.iter().sum());
        self.spent = spent;
        let Some(budget) = &mut self.budget else { return Ok(None) };
        budget.worked(worked.saturating_sub(self.paid).as_secs_f64(), &new);
        self.paid = worked;
        Ok(budget.rest(self.luck.random()).map(Duration::from_secs_f64))
    }

    /// Tells what happened since it was told last. Where that was not watched all the time, what was seen stands for all of it.
    fn tell(&mut self, waited: Waited, seen: &Seen) {
        let (began, end) = seen.interval_ns;
        let seconds = |from: u64| end.saturating_sub(from) as f64 / 1e9;
        let (all_s, seen_s) = (seconds(self.told_ns), seconds(began.max(self.told_ns)));
        if seen_s <= 0.0 {
            return;
        }
        let factor = all_s / seen_s;
        self.told_ns = end;
        if let Some(observation) = self.tally.observation() {
            self.called.learn_all(self.cpu.as_ref(), &observation);
        }

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
                waits.entry(owner.to_owned()).or_default().1 += factor * grown as f64 / 1e9;
            }
        }
        let mut blame = Vec::new();
        for (pair, ns) in taken(seen) {
            // Time that a wait that goes on owes may be told again as less: what was told stays the mark.
            let mark = self.pairs.entry(pair.clone()).or_default();
            let grown = factor * ns.saturating_sub(*mark) as f64 / 1e9;
            *mark = ns.max(*mark);
            let (victim, taker) = pair;
            if let Some(owner) = self.called.title(victim).filter(|_| grown > 0.0) {
                blame.push((owner.to_owned(), self.called.taker(&taker, victim, &ran), grown));
            }
        }
        self.waited = waited;
        let waits: Vec<_> = waits
            .into_iter()
            .map(|(owner, (histogram, seconds))| (owner, scaled(histogram, factor, &mut self.luck), seconds))
            .collect();
        self.tally.add_waits(&waits, &blame);
        self.lately.push_back((all_s, seen_s));
        while self.lately.iter().skip(1).map(|(all, _)| all).sum::<f64>() >= RECENT_S {
            self.lately.pop_front();
        }
        let sums = self.lately.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.tally.observed(Some(sums.1 / sums.0));
    }
}

/// As many times the counts. Rounded up or down at random, so that on average nothing is added or lost.
fn scaled(histogram: Histogram, factor: f64, luck: &mut impl Rng) -> Histogram {
    let counts: Vec<(u8, u64)> = histogram.into();
    let mut scale = |count: u64| (count as f64 * factor + luck.random::<f64>()).floor() as u64;
    counts.into_iter().map(|(bucket, count)| (bucket, scale(count))).collect::<Vec<_>>().into()
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
    let group = |cgroup: u64| Culprit::Task {
        tid: 0,
        start: 0,
        tgid: 0,
        comm: String::new(),
        cgroup,
        kernel_thread: false,
    };
    match culprit {
        Culprit::Group(cell) => group(seen.cells.get(*cell).and_then(|cell| cell.cgroup).unwrap_or(0)),
        Culprit::Task { kernel_thread: false, cgroup, .. } => group(*cgroup),
        Culprit::Task { .. } => {
            Culprit::Task { tid: 0, start: 0, tgid: 0, comm: String::new(), cgroup: 0, kernel_thread: true }
        }
        Culprit::Irq(..) => Culprit::Irq(0, String::new()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_scaled_without_a_bias() {
        let mut luck = Pcg32::seed_from_u64(7);
        let mut one = Histogram::default();
        one.add(5_000_000);
        let sum: u64 = (0..10_000).map(|_| scaled(one.clone(), 1.3, &mut luck).total()).sum();
        assert!((12_800..13_200).contains(&sum), "{sum}");
        assert_eq!(scaled(one.clone(), 1.0, &mut luck), one);
        let many = scaled(one, 11.0, &mut luck);
        assert_eq!((many.total(), many.longest().is_some_and(|ns| ns > 4_000_000)), (11, true));
    }
}
