//! From the maps to plain sums, at the end of a watch.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuHashMap};
use evenkeel_base::{Histogram, TICK_NS};

use super::missing;
use super::raw::{
    BlameKey, CULPRIT_GROUP, CULPRIT_IRQ, CULPRIT_KIND, CULPRIT_SOFTIRQ, Config, Counts, CpuState, Record,
    STATE_DISK, STATE_RUN, STATE_SLEEP, STATE_STOPPED, STATE_WAIT, Spot, ThrottleKey, Who,
};
use crate::BpfError;

/// Everything a watch has seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// From when to when, `CLOCK_MONOTONIC`, ns.
    pub interval_ns: (u64, u64),
    /// The target's cgroups.
    pub cells: Vec<Cell>,
    /// Who ran on the CPU while a cell's threads were runnable there and not throttled.
    pub blame: Vec<Blame>,
    /// Whose quota held a cell's threads back.
    pub held: Vec<Held>,
    /// Threads of the target at the end.
    pub threads: usize,
    /// Switches that were not seen and had to be inferred.
    pub missed: u64,
    /// Additions to full maps: where not 0, times are at least what is said.
    pub lost: u64,
}

/// The target's threads in one cgroup. Times are ns, summed over threads; together they are the threads' lives within
/// the interval.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// Inode number of the cgroup's directory; `None` for what found no room.
    pub cgroup: Option<u64>,
    /// On a CPU, less [`Cell::stolen_ns`].
    pub ran_ns: u64,
    /// Runnable, not running, not throttled.
    pub waited_ns: u64,
    /// Runnable, but the quota of the cgroup or of an ancestor was used up.
    pub throttled_ns: u64,
    /// On a CPU that the hypervisor had given to others, as the scheduler has taken note of it.
    pub stolen_ns: u64,
    /// Asleep and interruptible.
    pub slept_ns: u64,
    /// Asleep and not interruptible: disk, locks.
    pub disk_ns: u64,
    /// Stopped by a signal or a tracer.
    pub stopped_ns: u64,
    /// Part of [`Cell::ran_ns`] in which interrupts were served.
    pub interrupted_ns: u64,
    /// Waits by length, throttled time left out; those not over yet count with what they have lasted.
    pub waits: Histogram,
    /// The longest of them, ns.
    pub max_wait_ns: u64,
    /// Times a thread had to leave a CPU though it wanted on, throttling left out.
    pub preempted: u64,
    /// Times a thread left by itself.
    pub voluntary: u64,
    /// Times a thread was moved to another CPU.
    pub migrated: u64,
}

/// Who had the CPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Culprit {
    /// Nobody: the CPU was on its way out of idling.
    Idle,
    /// A thread; in a watch of all only the kernel's.
    Task {
        tid: u32,
        /// When it started, see [`may_have_started`].
        start: u32,
        /// Its process; 0 when not known.
        tgid: u32,
        /// Name; empty when not known.
        comm: String,
        /// Inode number of its cgroup's directory; 0 when not known.
        cgroup: u64,
        kernel_thread: bool,
    },
    /// In a watch of all: the threads of a cell, by index.
    Group(usize),
    Irq(u32, String),
    SoftIrq(&'static str),
}

/// Whether a thread that started at this clock tick (`/proc/PID/stat`) may be a culprit, whose start is in 2^20 ns since boot, modulo
/// 2^32. Who got its number later is not.
pub fn may_have_started(start: u32, ticks: u64) -> bool {
    let first = ticks.saturating_mul(TICK_NS) >> 20;
    let last = ticks.saturating_add(1).saturating_mul(TICK_NS) >> 20;
    u64::from(start.wrapping_sub(first as u32)) <= last - first
}

/// A culprit's part in a cell's waits.
#[derive(Debug, Clone)]
pub struct Blame {
    /// Index into [`Seen::cells`].
    pub cell: usize,
    pub culprit: Culprit,
    /// For how long, ns, summed over waiting threads.
    pub ns: u64,
}

/// A quota's part in a cell's throttled time.
#[derive(Debug, Clone)]
pub struct Held {
    /// Index into [`Seen::cells`].
    pub cell: usize,
    /// Inode number of the directory of the cgroup whose quota it is; `None` when not seen.
    pub by: Option<u64>,
    /// For how long, ns, summed over threads.
    pub ns: u64,
}

/// Names of softirqs in the kernel's order (`include/linux/interrupt.h`).
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

pub(super) fn reading(error: MapError) -> BpfError {
    BpfError::refused("reading", error)
}

pub(super) fn map<'a, M: TryFrom<&'a Map, Error = MapError>>(
    ebpf: &'a Ebpf,
    name: &'static str,
) -> Result<M, BpfError> {
    M::try_from(ebpf.map(name).ok_or_else(|| missing(name))?).map_err(reading)
}

/// The records of the target's threads. One that goes meanwhile is left out, and the kernel may begin the walk again for it.
pub(super) fn records(ebpf: &Ebpf) -> Result<impl Iterator<Item = (u32, Record)>, BpfError> {
    let records: HashMap<&MapData, u32, Record> = map(ebpf, "records")?;
    let found: BTreeMap<_, _> = records.iter().filter_map(Result::ok).collect();
    Ok(found.into_iter())
}

/// Waits that go on at the window's end, by what they have lasted within it; by cgroup as [`super::Waited::since`] has them.
pub(super) fn open_waits(
    ebpf: &Ebpf,
    config: &Config,
    window: (u64, u64),
    throttled_waits: bool,
) -> Result<BTreeMap<Option<u64>, Histogram>, BpfError> {
    let spots: Array<&MapData, Spot> = map(ebpf, "spots")?;
    let slots: HashMap<&MapData, u32, u64> = map(ebpf, "slots")?;
    let ids: BTreeMap<u32, u64> = slots.iter().filter_map(Result::ok).collect();
    let mut waits: BTreeMap<Option<u64>, Histogram> = BTreeMap::new();
    for (_, record) in records(ebpf)?.filter(|(_, record)| record.state == STATE_WAIT) {
        let spot = spots.get(&(record.cpu * config.cells + record.cell), 0).map_err(reading)?;
        let (wait, throttled) = open_wait(&record, &spot, window.1);
        let length = wait + if throttled_waits { throttled } else { 0 };
        let lasted = length.min(window.1.saturating_sub(window.0));
        waits.entry(ids.get(&record.cell).copied()).or_default().add(lasted);
    }
    Ok(waits)
}

pub(super) fn collect(
    ebpf: &Ebpf,
    config: &Config,
    cpus: u32,
    interval_ns: (u64, u64),
) -> Result<Seen, BpfError> {
    let end = interval_ns.1;
    let slots: HashMap<&MapData, u32, u64> = map(ebpf, "slots")?;
    let ids: BTreeMap<u32, u64> = slots.iter().filter_map(Result::ok).collect();
    let last = config.cells.saturating_sub(1);
    let mut numbers: Vec<u32> = ids.keys().copied().collect();
    numbers.push(last);
    let index: BTreeMap<u32, usize> = numbers.iter().zip(0..).map(|(number, at)| (*number, at)).collect();
    let mut seen = Seen { interval_ns, ..Seen::default() };
    seen.cells = numbers.iter().map(|n| Cell { cgroup: ids.get(n).copied(), ..Cell::default() }).collect();

    let spots_map: Array<&MapData, Spot> = map(ebpf, "spots")?;
    let states: Array<&MapData, CpuState> = map(ebpf, "cpus")?;
    let mut blame: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    let mut held: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    let mut spots: BTreeMap<(u32, u32), Spot> = BTreeMap::new();
    for cpu in 0..cpus {
        let state = states.get(&cpu, 0).map_err(reading)?;
        seen.lost += state.lost;
        seen.missed += state.missed;
        for (number, cell) in numbers.iter().zip(&mut seen.cells) {
            let spot = spots_map.get(&(cpu * config.cells + number), 0).map_err(reading)?;
            add_spot(cell, &spot);
            let owed = spot.owed(end);
            if owed > 0 && spot.is_throttled != 0 {
                *held.entry((spot.throttled_by, *number)).or_default() += owed;
            } else if owed > 0 {
                *blame.entry((state.culprit(), *number)).or_default() += owed;
            }
            spots.insert((cpu, *number), spot);
        }
    }
    let histograms: PerCpuArray<&MapData, Counts> = map(ebpf, "histograms")?;
    for (number, cell) in numbers.iter().zip(&mut seen.cells) {
        for counts in histograms.get(number, 0).map_err(reading)?.iter() {
            cell.waits.add_counts(&counts.0);
        }
    }
    for (_, record) in records(ebpf)? {
        seen.threads += 1;
        let Some(cell) = index.get(&record.cell).and_then(|at| seen.cells.get_mut(*at)) else { continue };
        let spot = spots.get(&(record.cpu, record.cell)).copied().unwrap_or_default();
        add_open_piece(cell, &record, &spot, end);
    }

    let throttles: HashMap<&MapData, ThrottleKey, u64> = map(ebpf, "throttles")?;
    for (key, ns) in throttles.iter().filter_map(Result::ok) {
        *held.entry((key.by, key.cell)).or_default() += ns;
    }
    for ((by, number), ns) in held {
        let Some(&cell) = index.get(&number) else { continue };
        seen.held.push(Held { cell, by: (by != 0).then_some(by), ns });
    }
    let blamed: PerCpuHashMap<&MapData, BlameKey, u64> = map(ebpf, "blame")?;
    for (key, parts) in blamed.iter().filter_map(Result::ok) {
        *blame.entry((key.culprit, key.cell)).or_default() += parts.iter().sum::<u64>();
    }
    let names: HashMap<&MapData, u64, Who> = map(ebpf, "culprits")?;
    for ((culprit, number), ns) in blame {
        let Some(&cell) = index.get(&number) else { continue };
        let culprit = name(culprit, names.get(&culprit, 0).ok(), &index);
        seen.blame.push(Blame { cell, culprit, ns });
    }
    Ok(seen)
}

fn add_spot(cell: &mut Cell, spot: &Spot) {
    cell.ran_ns += spot.ran;
    cell.waited_ns += spot.waited;
    cell.throttled_ns += spot.throttled;
    cell.stolen_ns += spot.stolen;
    cell.slept_ns += spot.slept;
    cell.disk_ns += spot.disk;
    cell.stopped_ns += spot.stopped;
    cell.interrupted_ns += spot.interrupted;
    cell.max_wait_ns = cell.max_wait_ns.max(spot.max_wait);
    cell.preempted += spot.preempted;
    cell.voluntary += spot.voluntary;
    cell.migrated += spot.migrated;
}

/// What a wait that goes on has lasted, ns, and the throttled part of it since its thread was moved last, left out.
fn open_wait(record: &Record, spot: &Spot, end: u64) -> (u64, u64) {
    let piece = end.saturating_sub(record.since);
    let throttled = spot.throttled_clock(end).saturating_sub(record.throttled_at).min(piece);
    (record.waited + piece - throttled, throttled)
}

/// What a thread has been doing since its last event.
fn add_open_piece(cell: &mut Cell, record: &Record, spot: &Spot, end: u64) {
    let piece = end.saturating_sub(record.since);
    match record.state {
        STATE_RUN => cell.ran_ns += piece,
        STATE_WAIT => {
            let (wait, throttled) = open_wait(record, spot, end);
            cell.throttled_ns += throttled;
            cell.waited_ns += piece - throttled;
            cell.waits.add(wait);
            cell.max_wait_ns = cell.max_wait_ns.max(wait);
        }
        STATE_SLEEP => cell.slept_ns += piece,
        STATE_DISK => cell.disk_ns += piece,
        STATE_STOPPED => cell.stopped_ns += piece,
        _ => {}
    }
}

fn name(culprit: u64, who: Option<Who>, index: &BTreeMap<u32, usize>) -> Culprit {
    let low = culprit as u32;
    let number = low & !CULPRIT_KIND;
    let comm = |who: &Who| {
        let end = who.comm.iter().position(|byte| *byte == 0).unwrap_or(who.comm.len());
        String::from_utf8_lossy(&who.comm[..end]).into_owned()
    };
    match low & CULPRIT_KIND {
        CULPRIT_IRQ => Culprit::Irq(number, who.as_ref().map(comm).unwrap_or_default()),
        CULPRIT_SOFTIRQ => Culprit::SoftIrq(SOFTIRQS.get(number as usize).copied().unwrap_or("?")),
        CULPRIT_GROUP if index.contains_key(&number) => Culprit::Group(index[&number]),
        _ if culprit == 0 => Culprit::Idle,
        _ => Culprit::Task {
            tid: number,
            start: (culprit >> 32) as u32,
            tgid: who.as_ref().map_or(0, |who| who.tgid),
            comm: who.as_ref().map(comm).unwrap_or_default(),
            cgroup: who.as_ref().map_or(0, |who| who.cgroup),
            kernel_thread: who.as_ref().is_some_and(|who| who.kthread != 0),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_never_moved_counts_by_its_state() {
        let mut cell = Cell::default();
        let spot = Spot { is_throttled: 1, throttled_since: 600, throttled_clock: 50, ..Spot::default() };
        let record = |state| Record { since: 500, throttled_at: 50, waited: 7, state, ..Record::default() };
        for state in [STATE_RUN, STATE_WAIT, STATE_SLEEP, STATE_DISK, STATE_STOPPED, 0] {
            add_open_piece(&mut cell, &record(state), &spot, 1000);
        }
        // Waited from 500 to 600, throttled from 600 on; the wait has lasted 7 before on another CPU.
        assert_eq!((cell.ran_ns, cell.waited_ns, cell.throttled_ns), (500, 100, 400));
        assert_eq!((cell.slept_ns, cell.disk_ns, cell.stopped_ns), (500, 500, 500));
        assert_eq!((cell.waits.total(), cell.max_wait_ns), (1, 107));
    }

    #[test]
    fn words_of_waiters_tell_what_is_owed() {
        // Two waiters since 100 and 300; at 500 they have waited 400 + 200, of which 150 were told before.
        let word = (((100 + 300) << 16) | 2) as u64;
        let spot = Spot { word, last: 150, ..Spot::default() };
        assert_eq!(spot.owed(500), 450);
        // Of a waiter whose clock is ahead nothing is owed.
        assert_eq!(Spot { word: (700 << 16) | 1, ..Spot::default() }.owed(500), 0);
    }

    #[test]
    fn who_got_a_number_later_is_another() {
        // Started 90 days, 1.2345 s after boot: the mark has gone round once.
        let ns = 90 * 86_400 * 1_000_000_000u64 + 1_234_500_000;
        let (start, ticks) = ((ns >> 20) as u32, ns / TICK_NS);
        assert!(ns >> 20 > u64::from(u32::MAX) && may_have_started(start, ticks));
        for other in [0, ticks - 2, ticks + 2, ticks + 100] {
            assert!(!may_have_started(start, other), "{other}");
        }
        let culprit = ns >> 20 << 32 | 6;
        assert!(
            matches!(name(culprit, None, &BTreeMap::new()), Culprit::Task { tid: 6, start: s, .. } if s == start)
        );
    }

    #[test]
    fn culprits_have_names() {
        let index = BTreeMap::from([(3, 0)]);
        assert_eq!(name(0, None, &index), Culprit::Idle);
        assert_eq!(name(u64::from(CULPRIT_GROUP | 3), None, &index), Culprit::Group(0));
        assert_eq!(name(u64::from(CULPRIT_SOFTIRQ | 3), None, &index), Culprit::SoftIrq("NET_RX"));
        let mut who = Who { tgid: 5, kthread: 1, ..Who::default() };
        who.comm[..4].copy_from_slice(b"a\xffb\0");
        let Culprit::Task { tid, tgid, comm, kernel_thread, .. } = name(7 << 32 | 6, Some(who), &index)
        else {
            panic!("a task");
        };
        assert_eq!((tid, tgid, comm.as_str(), kernel_thread), (6, 5, "a\u{fffd}b", true));
    }
}
