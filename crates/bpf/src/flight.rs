//! A flight recorder (`bpf/flight.bpf.c`): the scheduler's last events on each CPU, kept in the kernel, copied when asked for.

use std::sync::atomic::{Ordering, fence};

use aya::{Ebpf, Pod};

use crate::BpfError;
use crate::load::{Types, attach, missing, object, open};
use crate::mapped::Mapped;

/// Bytes of all CPUs' rings for each second that is to be kept: 20,000 switches and as many wake-ups a second fill 64 MiB in a
/// minute.
const BYTES_PER_S: f64 = (64 << 20) as f64 / 60.0;
/// Threads that ended are remembered by name up to this number.
const ENDED: u32 = 1 << 16;
/// A page's worth: smaller rings save nothing.
const LEAST_EVENTS: u32 = 256;

const PROGRAMS: [(&str, &str); 5] = [
    ("on_switch", "sched_switch"),
    ("on_wakeup", "sched_wakeup"),
    ("on_wakeup_new", "sched_wakeup_new"),
    ("on_migrate", "sched_migrate_task"),
    ("on_exit", "sched_process_exit"),
];

/// Values of the programs' constants, which the loader wants for as long as it lives.
static POWERS: [u32; 31] = {
    let mut powers = [0; 31];
    let mut at = 0;
    while at < powers.len() {
        powers[at] = 1 << at;
        at += 1;
    }
    powers
};

/// What becomes of whoever leaves a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It wants on.
    Runnable {
        /// Its cgroup's quota, or that of one above, is used up.
        held: bool,
    },
    /// Asleep, and a signal would wake it.
    Asleep,
    /// Asleep, and a signal would not: disk, locks.
    Blocked,
    /// Stopped by a signal or a tracer.
    Stopped,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A CPU changes hands. Who leaves it is whom the switch before brought.
    Switch {
        /// Thread that comes; 0 is no task: the CPU idles.
        next: u32,
        /// Its priority in the kernel's numbers, 120 for nice 0.
        priority: u8,
        /// What becomes of who leaves.
        left: Left,
    },
    Wakeup {
        tid: u32,
        /// CPU whose queue it joins, modulo 65,536.
        cpu: u32,
        /// The quota of its cgroup, or of one above, is used up there.
        held: bool,
        /// For the first time: it was not there before.
        born: bool,
    },
    Migrate {
        tid: u32,
        /// New CPU, modulo 65,536.
        cpu: u32,
    },
    /// The hypervisor had given this CPU to others.
    Stolen {
        /// Since the switch before, ns.
        ns: u32,
    },
}

/// An event as the kernel keeps it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub when_ns: u64,
    tid: u32,
    what: u32,
}

const HELD: u32 = 1 << 31;

impl Event {
    /// Bytes of an event.
    pub const BYTES: usize = size_of::<Self>();

    /// An event as a CPU writes it.
    pub fn new(when_ns: u64, what: What) -> Self {
        let flag = |held| if held { HELD } else { 0 };
        let (tid, what) = match what {
            What::Switch { next, priority, left } => {
                let left = match left {
                    Left::Runnable { held } => flag(held),
                    Left::Asleep => 1 << 8,
                    Left::Blocked => 2 << 8,
                    Left::Stopped => 3 << 8,
                    Left::Ended => 4 << 8,
                };
                (next, 1 | left | u32::from(priority) << 16)
            }
            What::Wakeup { tid, cpu, held, born } => {
                (tid, if born { 5 } else { 2 } | (cpu & 0xffff) << 8 | flag(held))
            }
            What::Migrate { tid, cpu } => (tid, 3 | (cpu & 0xffff) << 8),
            What::Stolen { ns } => (ns, 4),
        };
        Self { when_ns, tid, what }
    }

    /// What it says; `None` for what no version of the programs writes.
    pub fn what(&self) -> Option<What> {
        let held = self.what & HELD != 0;
        let cpu = self.what >> 8 & 0xffff;
        Some(match self.what & 0xff {
            1 => {
                let left = match self.what >> 8 & 0xff {
                    0 => Left::Runnable { held },
                    1 => Left::Asleep,
                    2 => Left::Blocked,
                    3 => Left::Stopped,
                    4 => Left::Ended,
                    _ => return None,
                };
                What::Switch { next: self.tid, priority: (self.what >> 16) as u8, left }
            }
            kind @ (2 | 5) => What::Wakeup { tid: self.tid, cpu, held, born: kind == 5 },
            3 => What::Migrate { tid: self.tid, cpu },
            4 => What::Stolen { ns: self.tid },
            _ => return None,
        })
    }

    /// As bytes, little-endian.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.when_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tid.to_le_bytes());
        bytes[12..].copy_from_slice(&self.what.to_le_bytes());
        bytes
    }

    /// From bytes, little-endian.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, t0, t1, t2, t3, w0, w1, w2, w3] = bytes;
        Self {
            when_ns: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            tid: u32::from_le_bytes([t0, t1, t2, t3]),
            what: u32::from_le_bytes([w0, w1, w2, w3]),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `CLOCK_MONOTONIC`, ns.
    pub when_ns: u64,
    pub tid: u32,
    pub tgid: u32,
    /// Name at the end.
    pub comm: String,
    /// Inode number of its cgroup's directory.
    pub cgroup: u64,
}

/// A copy of what is kept.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Everything since then is in it, `CLOCK_MONOTONIC`, ns: rings may have been too small for all that was asked for.
    pub from_ns: u64,
    /// When it was made, as above.
    pub to_ns: u64,
    /// By CPU, each in order of time.
    pub cpus: Vec<Vec<Event>>,
    pub ended: Vec<Ended>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    written: u64,
    stolen: u64,
    pad: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawEnded {
    when: u64,
    cgroup: u64,
    tid: u32,
    tgid: u32,
    comm: [u8; 16],
}

// SAFETY: `repr(C)` without padding, any bits are a value.
unsafe impl Pod for Event {}
// SAFETY: as above.
unsafe impl Pod for Head {}
// SAFETY: as above.
unsafe impl Pod for RawEnded {}

/// The programs at work. They go with it, however the process ends.
pub struct Recorder {
    // Keeps the programs attached.
    _ebpf: Ebpf,
    events: Mapped<Event>,
    heads: Mapped<Head>,
    ended: Mapped<RawEnded>,
    cpus: u32,
    ring: u32,
    start_ns: u64,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("cpus", &self.cpus).field("ring", &self.ring).finish_non_exhaustive()
    }
}

/// Events of each CPU's ring, as a power of two's exponent: so many CPUs share what there is.
fn ring_exponent(seconds: f64, cpus: u32) -> usize {
    let events = seconds * BYTES_PER_S / Event::BYTES as f64 / f64::from(cpus.max(1));
    // 2^25 events are 512 MiB a CPU.
    let events = (events as u32).clamp(LEAST_EVENTS, 1 << 25);
    events.ilog2() as usize
}

impl Recorder {
    /// Loads and attaches the programs: CPUs below `cpus` are recorded. Their rings take about 1 MiB for each of `seconds`, and hold
    /// that much of 20,000 switches a second, more of fewer.
    pub fn start(types: &Types, cpus: u32, seconds: f64) -> Result<Self, BpfError> {
        let exponent = ring_exponent(seconds, cpus);
        let ring = POWERS[exponent];
        let entries = cpus.checked_mul(ring).filter(|entries| *entries < 1 << 30);
        let entries = entries.ok_or_else(|| BpfError::Refused {
            what: "making the rings",
            reason: format!("{cpus} CPUs are too many for {seconds} s"),
        })?;
        let sizes = [("events", entries), ("heads", cpus + 1), ("all_ended", ENDED)];
        let ended_size = &POWERS[ENDED.ilog2() as usize];
        let constants = [("ring_size", &POWERS[exponent]), ("ended_size", ended_size)];
        let mut ebpf = open(object!("flight"), types, &sizes, &constants)?;
        let map = |name| ebpf.map(name).ok_or_else(|| missing(name));
        let events = Mapped::new(map("events")?, entries)?;
        let heads = Mapped::new(map("heads")?, cpus + 1)?;
        let ended = Mapped::new(map("all_ended")?, ENDED)?;
        for (name, tracepoint) in PROGRAMS {
            attach(&mut ebpf, name, tracepoint, types)?;
        }
        Ok(Self { _ebpf: ebpf, events, heads, ended, cpus, ring, start_ns: crate::monotonic_ns() })
    }

    /// Bytes of memory that the rings take.
    pub fn bytes(&self) -> u64 {
        u64::from(self.cpus) * u64::from(self.ring) * Event::BYTES as u64
    }

    /// A copy of what happened from then on (`CLOCK_MONOTONIC`, ns), as far as it is kept.
    pub fn since(&self, from_ns: u64) -> Snapshot {
        let to_ns = crate::monotonic_ns();
        let mut from_ns = from_ns.max(self.start_ns);
        let mut cpus = Vec::new();
        for cpu in 0..self.cpus {
            let (events, whole) = self.ring_of(cpu, from_ns);
            if let (false, Some(first)) = (whole, events.first()) {
                from_ns = from_ns.max(first.when_ns);
            }
            cpus.push(events);
        }
        Snapshot { from_ns, to_ns, cpus, ended: self.ended_since(from_ns) }
    }

    /// Events of a CPU from then on, after the switch that tells who has it then; and whether that is all of them.
    fn ring_of(&self, cpu: u32, from_ns: u64) -> (Vec<Event>, bool) {
        let ring = u64::from(self.ring);
        let written = || self.heads.read(cpu as usize + 1).written;
        let place = |number: u64| cpu as usize * self.ring as usize + (number % ring) as usize;
        let end = written();
        fence(Ordering::Acquire);
        // Newest first, until what is too old.
        let (mut events, mut before) = (Vec::new(), None);
        let mut number = end;
        let mut whole = end < ring;
        while number > end.saturating_sub(ring) {
            number -= 1;
            let event = self.events.read(place(number));
            if event.when_ns >= from_ns {
                events.push(event);
                continue;
            }
            whole = true;
            if matches!(event.what(), Some(What::Switch { .. })) {
                before = Some((number, event));
                break;
            }
        }
        fence(Ordering::Acquire);
        // What was written over meanwhile is not what it was. One more may be under way.
        let gone = (written() + 1).saturating_sub(ring);
        let left = usize::try_from(end.saturating_sub(gone)).unwrap_or(usize::MAX);
        whole &= left >= events.len();
        events.truncate(left);
        events.extend(before.filter(|(number, _)| *number >= gone).map(|(_, event)| event));
        events.reverse();
        (events, whole)
    }

    fn ended_since(&self, from_ns: u64) -> Vec<Ended> {
        let all = (0..ENDED as usize).map(|index| self.ended.read(index));
        let mut ended: Vec<Ended> = all
            .filter(|one| one.when >= from_ns.max(1))
            .map(|one| Ended {
                when_ns: one.when,
                tid: one.tid,
                tgid: one.tgid,
                comm: text(&one.comm),
                cgroup: one.cgroup,
            })
            .collect();
        ended.sort_by_key(|one| one.when_ns);
        ended
    }
}

fn text(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_was_written() {
        let left = [
            Left::Runnable { held: false },
            Left::Runnable { held: true },
            Left::Asleep,
            Left::Blocked,
            Left::Stopped,
            Left::Ended,
        ];
        let switches = left.map(|left| What::Switch { next: u32::MAX, priority: 139, left });
        let others = [
            What::Wakeup { tid: 1, cpu: 65_535, held: true, born: false },
            What::Wakeup { tid: 1, cpu: 0, held: false, born: true },
            What::Migrate { tid: 7, cpu: 300 },
            What::Stolen { ns: 12 },
        ];
        for what in switches.into_iter().chain(others) {
            let event = Event::new(5, what);
            assert_eq!(event.what(), Some(what));
            assert_eq!(Event::from_bytes(event.to_bytes()), event);
        }
        assert_eq!(Event::default().what(), None);
        assert_eq!(Event { what: 1 | 9 << 8, ..Event::default() }.what(), None);
    }

    #[test]
    fn a_minute_takes_64_mib_at_most() {
        for cpus in [1, 2, 3, 5, 96, 1024] {
            let bytes = (1u64 << ring_exponent(60.0, cpus)) * Event::BYTES as u64 * u64::from(cpus);
            assert!(bytes <= 64 << 20, "{cpus} CPUs: {bytes}");
            assert!(cpus > 4 || bytes >= 32 << 20, "{cpus} CPUs: {bytes}");
        }
        assert_eq!(1 << ring_exponent(60.0, 2), 2_097_152);
        assert_eq!(1 << ring_exponent(0.0, 2), LEAST_EVENTS);
    }
}
