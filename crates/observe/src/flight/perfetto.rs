//! A recording as a trace that Perfetto opens (ui.perfetto.dev): who had which CPU, who woke whom when, and for each container
//! and cgroup how many CPUs it used, how many of its threads waited, and how many whose quota held back.
//!
//! Its time is `CLOCK_MONOTONIC`; the snapshot of clocks says what the wall clock was.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use evenkeel_base::{Observation, TaskView};
use prost::Message;

use super::account::{Does, tell};
use super::{Left, Recording, Threads, What};
use proto::clock_snapshot::Clock;
use proto::ftrace_event_bundle::CompactSched;
use proto::process_tree::{Process, Thread};
use proto::track_event::Type;
use proto::{
    BuiltinClock, ClockSnapshot, CounterDescriptor, FtraceEventBundle, ProcessTree, Trace, TracePacket,
    TrackDescriptor, TrackEvent,
};

#[allow(clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/perfetto.protos.rs"));
}

/// Packets without an order among them need no more than one sequence.
const SEQUENCE: u32 = 1;
/// Events of a packet: viewers read packets whole.
const EVENTS: usize = 8192;
/// Owners' counters are means over this, ...
const STEP_NS: u64 = 10_000_000;
/// ... or longer: as many are enough for a picture.
const STEPS: u64 = 20_000;

pub fn trace(recording: &Recording, to: &mut impl Write) -> io::Result<()> {
    let mut to = io::BufWriter::with_capacity(1 << 16, to);
    let (from, _) = recording.interval_ns();
    let threads = recording.threads();
    let clock = |id: BuiltinClock, timestamp| Clock { clock_id: id.into(), timestamp };
    // A trace's own clock is BOOTTIME; who never slept knows no difference.
    let clocks = vec![
        clock(BuiltinClock::Boottime, from),
        clock(BuiltinClock::Monotonic, from),
        clock(BuiltinClock::Realtime, recording.wall_ns(from)),
    ];
    put(&mut to, TracePacket { clock_snapshot: Some(ClockSnapshot { clocks }), ..TracePacket::default() })?;
    put(
        &mut to,
        TracePacket {
            process_tree: Some(process_tree(&threads)),
            timestamp: Some(from),
            ..TracePacket::default()
        },
    )?;
    for cpu in 0..recording.cpus() {
        events(recording, &threads, cpu, &mut to)?;
    }
    owners(recording, &threads, &mut to)?;
    super::story::tracks(recording, &mut to)?;
    to.flush()
}

/// A packet as the trace has it: an element of its list.
pub(super) fn put(to: &mut impl Write, packet: TracePacket) -> io::Result<()> {
    let packet = TracePacket { trusted_packet_sequence_id: SEQUENCE, ..packet };
    to.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
}

fn process_tree(threads: &Threads<'_>) -> ProcessTree {
    let mut tree = ProcessTree::default();
    for view in threads.all() {
        let (tid, tgid) = (view.id.tid as i32, view.id.tgid as i32);
        if tid == tgid {
            tree.processes.push(Process {
                pid: tid,
                ppid: view.ppid as i32,
                cmdline: vec![view.comm.clone()],
            });
        } else {
            tree.threads.push(Thread { tid, tgid, name: view.comm.clone() });
        }
    }
    tree
}

/// States as `sched_switch` has them (`TASK_REPORT`, include/linux/sched.h).
fn state(left: Left) -> i64 {
    match left {
        Left::Runnable { .. } => 0,
        Left::Asleep => 1,
        Left::Blocked => 2,
        Left::Stopped => 4,
        Left::Ended => 0x10,
    }
}

fn events(recording: &Recording, threads: &Threads<'_>, cpu: usize, to: &mut impl Write) -> io::Result<()> {
    let all: Vec<_> = recording.events(cpu).collect();
    for some in all.chunks(EVENTS) {
        let mut sched = CompactSched::default();
        let mut names: BTreeMap<String, u32> = BTreeMap::new();
        let mut name = |tid: u32, when: u64| {
            let comm = match tid {
                0 => "swapper",
                _ => threads
                    .at(tid, when)
                    .and_then(|at| threads.view(at))
                    .map_or("?", |view| view.comm.as_str()),
            };
            let next = names.len() as u32;
            *names.entry(comm.to_owned()).or_insert(next)
        };
        let (mut switched, mut woken) = (0, 0);
        for (when, what) in some {
            match *what {
                What::Switch { next, priority, left } => {
                    sched.switch_timestamp.push(when - switched);
                    switched = *when;
                    sched.switch_prev_state.push(state(left));
                    sched.switch_next_pid.push(next as i32);
                    sched.switch_next_prio.push(i32::from(priority));
                    sched.switch_next_comm_index.push(name(next, *when));
                }
                What::Wakeup { tid, cpu, .. } => {
                    sched.waking_timestamp.push(when - woken);
                    woken = *when;
                    sched.waking_pid.push(tid as i32);
                    sched.waking_target_cpu.push(cpu as i32);
                    sched.waking_prio.push(120);
                    sched.waking_comm_index.push(name(tid, *when));
                    sched.waking_common_flags.push(0);
                }
                // A viewer sees it by the CPU that runs the thread; stolen time has no place of its own there.
                What::Migrate { .. } | What::Stolen { .. } => {}
            }
        }
        let mut table: Vec<(u32, String)> = names.into_iter().map(|(comm, index)| (index, comm)).collect();
        table.sort_by_key(|(index, _)| *index);
        sched.intern_table = table.into_iter().map(|(_, comm)| comm).collect();
        let bundle = FtraceEventBundle { cpu: cpu as u32, compact_sched: Some(sched) };
        put(to, TracePacket { ftrace_events: Some(bundle), ..TracePacket::default() })?;
    }
    Ok(())
}

/// Whose a thread is: its container, or its cgroup.
fn owner(view: &TaskView, observation: &Observation) -> Option<String> {
    match view.container.and_then(|at| observation.containers.get(at as usize)) {
        Some(container) => Some(observation.container_title(container)),
        None => observation.group_of(view).map(|group| group.path.clone()),
    }
}

/// What owners' counters are called, by what their threads do.
const COUNTERS: [(Does, &str); 3] =
    [(Does::Runs, "CPUs used"), (Does::Waits, "threads waiting"), (Does::IsHeld, HELD)];
const HELD: &str = "threads throttled";

/// The groups above a thread whose quota can have held it back: those that did so lately, or else all that have one.
fn quotas_of(view: &TaskView, observation: &Observation) -> BTreeSet<String> {
    let above = view.group.into_iter().flat_map(|group| observation.path_to_root(group));
    let groups: Vec<_> = above.filter_map(|at| observation.groups.get(at as usize)).collect();
    let limited: Vec<_> =
        groups.iter().filter(|group| group.quota.is_some_and(|quota| quota.pct().is_some())).collect();
    let lately = limited.iter().filter(|group| group.throttled_pct.is_some_and(|pct| pct > 0.0));
    let found: BTreeSet<_> = lately.map(|group| group.path.clone()).collect();
    if found.is_empty() { limited.iter().map(|group| group.path.clone()).collect() } else { found }
}

/// What the counter of throttled threads is called.
fn held_name(quotas: Option<&BTreeSet<String>>) -> String {
    let quotas: Vec<&str> = quotas.into_iter().flatten().map(String::as_str).collect();
    if quotas.is_empty() {
        HELD.to_owned()
    } else {
        format!("{HELD} by the quota of {}", quotas.join(" or "))
    }
}

/// A packet that describes a track; with a unit it is a counter's.
pub(super) fn describe(uuid: u64, name: &str, parent_uuid: Option<u64>, unit: Option<&str>) -> TracePacket {
    let counter = unit.map(|unit| CounterDescriptor { unit_name: unit.to_owned() });
    let track = TrackDescriptor { uuid, name: name.to_owned(), parent_uuid, counter };
    TracePacket { track_descriptor: Some(track), ..TracePacket::default() }
}

fn event(timestamp: u64, event: TrackEvent) -> TracePacket {
    TracePacket { timestamp: Some(timestamp), track_event: Some(event), ..TracePacket::default() }
}

/// A counter's value from then on.
pub(super) fn counter(at_ns: u64, track_uuid: u64, value: f64) -> TracePacket {
    let double_counter_value = Some(value);
    event(at_ns, TrackEvent { r#type: Type::Counter.into(), track_uuid, name: None, double_counter_value })
}

/// Something that lasts from then until then.
pub(super) fn slice(from_ns: u64, to_ns: u64, track_uuid: u64, name: &str) -> [TracePacket; 2] {
    let one = |is: Type, name| TrackEvent { r#type: is.into(), track_uuid, name, double_counter_value: None };
    let begin = one(Type::SliceBegin, Some(name.to_owned()));
    [event(from_ns, begin), event(to_ns, one(Type::SliceEnd, None))]
}

/// Something that happened then.
pub(super) fn instant(at_ns: u64, track_uuid: u64, name: &str) -> TracePacket {
    let name = Some(name.to_owned());
    event(at_ns, TrackEvent { r#type: Type::Instant.into(), track_uuid, name, double_counter_value: None })
}

fn owners(recording: &Recording, threads: &Threads<'_>, to: &mut impl Write) -> io::Result<()> {
    let (from, end) = recording.interval_ns();
    let observation = recording.observation();
    let step_ns = STEP_NS.max((end - from).div_ceil(STEPS));
    let steps = (end - from).div_ceil(step_ns) as usize;
    let mut sums: BTreeMap<String, [Vec<u64>; 3]> = BTreeMap::new();
    let mut quotas: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    tell(recording, threads, &mut |place, does, (since, until)| {
        let Some(view) = threads.view(place) else { return };
        let Some(owner) = owner(view, observation) else { return };
        if does == Does::IsHeld && !quotas.contains_key(&owner) {
            quotas.insert(owner.clone(), quotas_of(view, observation));
        }
        let Some(at) = COUNTERS.iter().position(|(one, _)| *one == does) else { return };
        let series = &mut sums.entry(owner).or_insert_with(|| [(); 3].map(|()| vec![0; steps]))[at];
        let (mut since, until) = (since.max(from), until.min(end));
        while since < until {
            let step = (since - from) / step_ns;
            let next = until.min(from + (step + 1) * step_ns);
            if let Some(sum) = series.get_mut(step as usize) {
                *sum += next - since;
            }
            since = next;
        }
    });
    for (number, (owner, series)) in (1u64..).zip(&sums) {
        let parent = number * 8;
        put(to, describe(parent, owner, None, None))?;
        let held = held_name(quotas.get(owner));
        for (uuid, ((_, name), steps)) in (parent + 1..).zip(COUNTERS.iter().zip(series)) {
            if steps.iter().all(|ns| *ns == 0) {
                continue;
            }
            let name = if *name == HELD { held.as_str() } else { name };
            put(to, describe(uuid, name, Some(parent), Some("1")))?;
            let mut before = None;
            for (at, ns) in (0u64..).zip(steps) {
                if before == Some(ns) {
                    continue;
                }
                before = Some(ns);
                put(to, counter(from + at * step_ns, uuid, *ns as f64 / step_ns as f64))?;
            }
        }
    }
    Ok(())
}
