//! Counts the waits for a CPU of some scopes by length.
//!
//! Where programs in the kernel can be had, one set of them counts every wait of all the scopes' processes
//! (`evenkeel_bpf::why`), those included that go on; processes that come later are added at the next observation. Time that a
//! quota holds a task back is part of a wait: whoever asks a service for something does not care why it has no CPU. Elsewhere the
//! tasks' schedstat counters are read ten times a second: they give the mean wait for each switch, and the 99th percentile of
//! those means is an estimate from below; a wait that goes on counts as one. Which of the two it is, [`RunqLatProbe::problem`] tells.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use evenkeel_base::{Histogram, Observation, TaskId, TaskView};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Probe, ScopeNumber, Waited, Watch, WatchOptions, scope_of};

use crate::guarantee::counters::{Change, Counters};
use crate::runq_latency::LEAST_AGE;

/// Scopes that one probe tells apart.
pub const MOST: usize = 64;

/// What counts the waits of scopes, which are numbers below [`MOST`].
#[derive(Debug)]
pub(crate) enum RunqLatProbe {
    /// Every wait. Boxed, for it is large.
    Exact(Box<Exact>),
    /// Means, from counters; why it is not exact.
    Means { why: String, scopes: BTreeMap<usize, (Counters, Means)> },
}

/// Mean waits of one scope's tasks since the last look.
#[derive(Debug, Default)]
pub(crate) struct Means {
    waits: Histogram,
    /// What waits that go on have lasted since then, seconds: who gets no CPU at all would else seem never to wait.
    going: HashMap<TaskId, f64>,
}

impl Means {
    fn add(&mut self, changes: &HashMap<TaskId, Change>) {
        self.going.retain(|id, _| changes.contains_key(id));
        for (id, change) in changes {
            if change.timeslices > 0 {
                let waited_s = change.waited_s + self.going.remove(id).unwrap_or_default();
                let mean_ns = 1e9 * waited_s / change.timeslices as f64;
                self.waits.add_many(mean_ns as u64, change.timeslices);
            } else if change.waited_s > 0.0 {
                *self.going.entry(*id).or_default() += change.waited_s;
            }
        }
    }

    fn take(&mut self) -> Histogram {
        let mut waits = std::mem::take(&mut self.waits);
        self.going.drain().for_each(|(_, waited_s)| waits.add((1e9 * waited_s) as u64));
        waits
    }
}

#[derive(Debug)]
pub(crate) struct Exact {
    probe: Probe,
    members: Members,
    last: Waited,
    started: Instant,
}

/// The kernel's number of who is in no scope.
const NOBODY: ScopeNumber = 0;

/// A process: its id and start time.
type Process = (u32, u64);

/// Some of the scopes, one bit each.
type Scopes = u64;

/// Which processes belong to which scopes. The kernel knows one number for a process, so processes that belong to the same
/// scopes share a number.
#[derive(Debug, Default)]
struct Members {
    known: BTreeMap<Process, Scopes>,
    numbers: BTreeMap<Scopes, ScopeNumber>,
    /// Those to which children of their processes belong, too.
    with_children: Scopes,
}

/// There are no more numbers.
#[derive(Debug)]
struct Full;

impl Members {
    /// A scope's processes are these from now on. Returns what the kernel is to be told, in this order.
    fn follow(
        &mut self,
        scope: usize,
        processes: &BTreeSet<Process>,
    ) -> Result<Vec<(Process, ScopeNumber)>, Full> {
        let bit: Scopes = 1 << scope;
        let left = self.known.iter().filter(|(process, of)| **of & bit != 0 && !processes.contains(*process));
        let left: Vec<_> = left.map(|(process, of)| (*process, of & !bit)).collect();
        let of = |process: &Process| self.known.get(process).copied().unwrap_or_default();
        let news = processes.iter().filter(|process| of(process) & bit == 0);
        let news: Vec<_> = news.map(|process| (*process, of(process) | bit)).collect();
        let mut puts = Vec::new();
        for (process, of) in left.into_iter().chain(news) {
            match of {
                0 => self.known.remove(&process),
                of => self.known.insert(process, of),
            };
            // The kernel knows a process by its id alone: what becomes of one that ended is not to undo what it was told of the
            // next one with that id.
            let (id, start) = process;
            if self.known.range((id, start.saturating_add(1))..=(id, u64::MAX)).next().is_none() {
                puts.push((process, self.number(of)?));
            }
        }
        Ok(puts)
    }

    fn number(&mut self, of: Scopes) -> Result<ScopeNumber, Full> {
        if of == 0 {
            return Ok(NOBODY);
        }
        if let Some(number) = self.numbers.get(&of) {
            return Ok(*number);
        }
        let number = ScopeNumber::try_from(self.numbers.len() + 1).map_err(|_| Full)?;
        self.numbers.insert(of, number);
        Ok(number)
    }

    fn of(&self, number: ScopeNumber) -> Scopes {
        self.numbers.iter().find(|(_, known)| **known == number).map_or(0, |(of, _)| *of)
    }

    /// Whether children belong to all scopes that a number stands for.
    fn has_children(&self, number: ScopeNumber) -> bool {
        self.of(number) & !self.with_children == 0
    }

    /// The scopes that a number stands for.
    fn scopes(&self, number: ScopeNumber) -> impl Iterator<Item = usize> {
        let of = self.of(number);
        (0..MOST).filter(move |scope| of >> scope & 1 == 1)
    }

    /// Numbers are given out again. Returns what a kernel that knows nothing is to be told.
    fn renumber(&mut self) -> Result<Vec<(Process, ScopeNumber)>, Full> {
        self.numbers.clear();
        let known = self.known.clone();
        known.into_iter().map(|(process, of)| Ok((process, self.number(of)?))).collect()
    }
}

/// Every thread of the processes that these belong to.
pub(crate) fn of_processes<'a>(
    observation: &'a Observation,
    tasks: impl Iterator<Item = &'a TaskView>,
) -> Vec<&'a TaskView> {
    let processes: BTreeSet<u32> = tasks.map(|task| task.id.tgid).collect();
    observation.tasks.iter().filter(|task| processes.contains(&task.id.tgid)).collect()
}

impl Exact {
    fn start() -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let options = WatchOptions { waits_only: true, throttled_waits: true, ..WatchOptions::default() };
        let probe = Probe::start(&types, &Watch::Scopes, &options)?;
        Ok(Self { probe, members: Members::default(), last: Waited::default(), started: Instant::now() })
    }

    /// Waits since the last call. A wait belongs to the time in which it began; one that goes on counts with what it has
    /// lasted since then. `whole` makes the next ones whole: at each call one that goes on counts with all that it has lasted, and
    /// when it ends as long as it was. Where cgroups found no room, their waits are missing until everything starts again.
    fn take(&mut self, whole: bool) -> Result<BTreeMap<usize, Histogram>, BpfError> {
        let now = self.probe.waited()?;
        let open = self.probe.open_waits()?;
        self.probe.begin_window(whole)?;
        let mut sums: BTreeMap<usize, Histogram> = BTreeMap::new();
        let mut crowded = false;
        for (cell, waits) in now.since(&self.last).chain(open) {
            match scope_of(cell) {
                None => crowded = true,
                Some(number) => {
                    self.members
                        .scopes(number)
                        .for_each(|scope| sums.entry(scope).or_default().merge(&waits));
                }
            }
        }
        self.last = now;
        if crowded && self.started.elapsed() > LEAST_AGE {
            self.start_anew()?;
        }
        Ok(sums)
    }

    /// A scope's processes are these from now on. The kernel's lists have room for some thousands, the ended ones included: when they
    /// are full, everything starts again.
    fn follow(
        &mut self,
        scope: usize,
        processes: &BTreeSet<Process>,
        children: bool,
    ) -> Result<(), BpfError> {
        let bit: Scopes = 1 << scope;
        self.members.with_children &= !bit;
        self.members.with_children |= if children { bit } else { 0 };
        match self.members.follow(scope, processes) {
            Ok(puts) if self.put(&puts).is_ok() => Ok(()),
            _ => self.start_anew(),
        }
    }

    fn put(&mut self, puts: &[(Process, ScopeNumber)]) -> Result<(), BpfError> {
        puts.iter().try_for_each(|((tgid, start), number)| {
            let children = *number != NOBODY && self.members.has_children(*number);
            self.probe.put(*tgid, *start, *number, children)
        })
    }

    fn start_anew(&mut self) -> Result<(), BpfError> {
        let mut members = std::mem::take(&mut self.members);
        let Ok(puts) = members.renumber() else {
            let reason = "services share processes in too many ways".to_owned();
            return Err(BpfError::Refused { what: "counting waits", reason });
        };
        *self = Self { members, ..Self::start()? };
        self.put(&puts)
    }
}

impl RunqLatProbe {
    /// Exact where it can be had; no task is followed yet.
    pub fn start() -> Self {
        match Exact::start() {
            Ok(exact) => Self::Exact(Box::new(exact)),
            Err(error) => Self::means(error.to_string()),
        }
    }

    /// Means from counters, and why they must do.
    pub fn means(why: String) -> Self {
        Self::Means { why, scopes: BTreeMap::new() }
    }

    /// Why it is not exact; `None` if it is.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Exact(_) => None,
            Self::Means { why, .. } => Some(why),
        }
    }

    /// What is to be said of waits that are not exact; `None` if they are.
    pub fn caveat(&self) -> Option<String> {
        let why = self.problem()?;
        Some(format!("means for each switch from /proc, less than a 99th percentile: {why}"))
    }

    /// Waits since the last call by scope, those that had none left out; `None` where they could not be read. `whole`: the next
    /// ones count with all their length, however long ago they began. Settings that are compared are to blame for their time alone.
    pub fn take(&mut self, whole: bool) -> Option<BTreeMap<usize, Histogram>> {
        match self {
            Self::Exact(exact) => match exact.take(whole) {
                Ok(waits) => Some(waits),
                Err(error) => {
                    *self = Self::means(error.to_string());
                    None
                }
            },
            Self::Means { scopes, .. } => {
                Some(scopes.iter_mut().map(|(scope, (_, means))| (*scope, means.take())).collect())
            }
        }
    }

    /// A scope's tasks are these from now on; `children`: as are those that they start and that stay in their cgroup. Exact waits are
    /// counted by process: where some of a process's threads are meant, all of them are to be named.
    pub fn follow<'a>(&mut self, scope: usize, tasks: impl Iterator<Item = &'a TaskView>, children: bool) {
        let failed = match self {
            Self::Exact(exact) => {
                let main = tasks.filter(|task| task.id.tid == task.id.tgid);
                let processes = main.map(|task| (task.id.tgid, task.id.start_time)).collect();
                exact.follow(scope, &processes, children).err()
            }
            Self::Means { scopes, .. } => {
                let (counters, _) = scopes.entry(scope).or_default();
                counters.follow(&tasks.map(|task| task.id).collect::<BTreeSet<TaskId>>());
                None
            }
        };
        if let Some(error) = failed {
            *self = Self::means(error.to_string());
        }
    }

    /// Reads counters, where waits come from them; to be called several times a second.
    pub fn tick(&mut self, now: Instant) {
        let Self::Means { scopes, .. } = self else { return };
        for (counters, means) in scopes.values_mut() {
            if let Some((_, changes)) = counters.read(now) {
                means.add(&changes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_wait_that_goes_on_counts_in_each_look_with_its_part_of_it() {
        let id = |tid| TaskId { tgid: tid, tid, start_time: 1 };
        let change = |timeslices, waited_s| Change { timeslices, waited_s, ..Change::default() };
        let mut means = Means::default();
        let mut look = |ticks: &[&[(u32, Change)]]| {
            for tick in ticks {
                means.add(&tick.iter().map(|(tid, change)| (id(*tid), *change)).collect());
            }
            let waits = means.take();
            (waits.total(), waits.longest().map(|ns| (ns as f64 / 1e8).round() / 10.0))
        };
        let (starved, served) = ((7, change(0, 0.25)), (8, change(10, 0.01)));
        assert_eq!(look(&[&[served]]).0, 10);
        let (waits, longest) = look(&[&[starved, served], &[starved], &[starved], &[starved]]);
        assert!(waits == 11 && longest >= Some(1.0) && longest < Some(1.4), "{waits} {longest:?}");
        // Its end in the next look: half a second more.
        let (waits, longest) = look(&[&[starved], &[(7, change(1, 0.25))]]);
        assert!(waits == 1 && longest >= Some(0.5) && longest < Some(0.7), "{waits} {longest:?}");
        // Nothing goes on: of one that sleeps, or has ended.
        assert_eq!(look(&[&[(7, change(0, 0.0))]]), (0, None));
        assert_eq!(look(&[&[starved], &[]]), (0, None));
    }

    #[test]
    fn a_process_of_two_scopes_counts_for_both() {
        let mut members = Members::default();
        let mut follow = |scope, processes: &[Process]| {
            let puts = members.follow(scope, &processes.iter().copied().collect()).unwrap();
            let of = |number| members.scopes(number).collect::<Vec<_>>();
            puts.into_iter().map(|(process, number)| (process, of(number))).collect::<Vec<_>>()
        };
        assert_eq!(follow(0, &[(7, 1), (8, 1)]), [((7, 1), vec![0]), ((8, 1), vec![0])]);
        assert_eq!(follow(63, &[(7, 1), (9, 1)]), [((7, 1), vec![0, 63]), ((9, 1), vec![63])]);
        assert_eq!(follow(63, &[(7, 1), (9, 1)]), [], "nothing new");
        assert_eq!(follow(0, &[(8, 1)]), [((7, 1), vec![63])]);
        assert_eq!(follow(63, &[]), [((7, 1), vec![]), ((9, 1), vec![])]);
        // Whoever comes back does.
        assert_eq!(follow(63, &[(9, 1)]), [((9, 1), vec![63])]);
    }

    #[test]
    fn children_belong_to_scopes_that_all_have_them() {
        let mut members = Members { with_children: 0b101, ..Members::default() };
        let mut has = |of| {
            let number = members.number(of).unwrap();
            members.has_children(number)
        };
        assert_eq!([has(0b1), has(0b101), has(0b10), has(0b11)], [true, true, false, false]);
    }

    #[test]
    fn a_process_that_ended_takes_its_number_from_no_one() {
        let mut members = Members::default();
        let mut follow = |scope, processes: &[Process]| {
            members.follow(scope, &processes.iter().copied().collect()).unwrap()
        };
        assert_eq!(follow(0, &[(7, 1)]), [((7, 1), 1)]);
        assert_eq!(follow(1, &[(7, 2)]), [((7, 2), 2)], "the id is another scope's now");
        assert_eq!(follow(0, &[]), []);
        // In the same scope the one that ended comes first.
        assert_eq!(follow(1, &[(7, 3)]), [((7, 2), NOBODY), ((7, 3), 2)]);
        // It goes from one scope after the other.
        assert_eq!((follow(2, &[(9, 1)]).len(), follow(3, &[(9, 1)]).len()), (1, 1));
        assert_eq!(follow(4, &[(9, 1)]).len(), 1);
        assert_eq!(follow(2, &[(9, 2)]).last(), Some(&((9, 2), 3)));
        assert_eq!((follow(3, &[]), follow(4, &[])), (vec![], vec![]));
    }

    #[test]
    fn ways_to_belong_that_were_once_do_not_use_up_the_numbers() {
        let mut members = Members { known: BTreeMap::from([((7, 1), 1)]), ..Members::default() };
        let full = (1..).find(|ways| members.number(*ways).is_err());
        assert_eq!(full, Some(256));
        assert_eq!(members.renumber().unwrap(), [((7, 1), 1)]);
    }

    #[test]
    fn a_thread_stands_for_its_process_and_for_no_other() {
        let mut host = testing::observation(&[("/", None)]);
        let of = |tgid, tid| TaskView::of(TaskId { tgid, tid, start_time: 1 }, "t");
        host.tasks = vec![of(7, 7), of(7, 8), of(9, 9)];
        let tids = |at: usize| {
            of_processes(&host, host.tasks[at..=at].iter()).iter().map(|task| task.id.tid).collect::<Vec<_>>()
        };
        assert_eq!((tids(1), tids(0), tids(2)), (vec![7, 8], vec![7, 8], vec![9]));
    }
}
