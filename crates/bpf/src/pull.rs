//! Work that waits for a CPU while another next to it has nothing to do (`bpf/pull.bpf.c`), as it happens.

use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::{Ebpf, Pod};

use evenkeel_base::{CpuSet, TaskId};

use crate::BpfError;
use crate::load::{Types, attach, object, open, possible_cpus, take_map};

/// CPUs of one domain that are looked at; what a word has bits for.
pub const DOMAIN_CPUS: usize = 64;
/// Tasks that can be followed at a time.
pub const TASKS: usize = 4096;

const REMEMBERED: usize = 8;
const NO_DOMAIN: u32 = u32::MAX;
const NO_CPU: u32 = u32::MAX;
const PROGRAMS: [(&str, &str); 3] =
    [("on_wakeup", "sched_wakeup"), ("on_wakeup_new", "sched_wakeup_new"), ("on_switch", "sched_switch")];

/// What a task that is followed means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is offered when it waits next to an idle CPU.
    MovedWhenWaiting,
    /// It is offered when one that is served wakes on the CPU it holds; at most once in 10 ms, and once in 1 ms for each CPU.
    Background,
    /// Background work makes way for it.
    Served,
}

/// A task that is to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Thread that waits, or holds a CPU that one served wants.
    pub tid: u32,
    /// CPU it waits for or holds.
    pub from: u32,
    /// CPU that is idle and shares a cache with that one; who makes way does so without one, too.
    pub to: Option<u32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Cpu {
    cleared: u64,
    running: u32,
    pad: u32,
    domain: u32,
    bit: u32,
    waiting: [u32; REMEMBERED],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Domain {
    idle: u64,
    count: u32,
    pad: u32,
    cpus: [u32; DOMAIN_CPUS],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Task {
    start: u64,
    since: u64,
    offered: u64,
    cpu: u32,
    ran: u32,
    role: u32,
    pad: u32,
}

// SAFETY: `repr(C)` without padding, any bits are a value.
unsafe impl Pod for Cpu {}
// SAFETY: as above.
unsafe impl Pod for Domain {}
// SAFETY: as above.
unsafe impl Pod for Task {}

pub struct Watch {
    // Keeps the programs attached.
    _ebpf: Ebpf,
    tasks: HashMap<MapData, u32, Task>,
    offers: RingBuf<MapData>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Loads and attaches the programs. `domains` are sets of CPUs that share a cache; of each the first
    /// [`DOMAIN_CPUS`] are looked at, and CPUs of none are left alone.
    pub fn start(types: &Types, domains: &[CpuSet]) -> Result<Self, BpfError> {
        let cpus = possible_cpus()?;
        let sizes = [("cpus", cpus), ("domains", (domains.len() as u32).max(1)), ("tasks", TASKS as u32)];
        let mut ebpf = open(object!("pull"), types, &sizes, &[])?;
        let refused = |error| BpfError::refused("describing the CPUs", error);
        let mut table: Array<_, Cpu> = Array::try_from(take_map(&mut ebpf, "cpus")?).map_err(refused)?;
        let mut all: Array<_, Domain> = Array::try_from(take_map(&mut ebpf, "domains")?).map_err(refused)?;
        let none =
            Cpu { cleared: 0, running: 0, pad: 0, domain: NO_DOMAIN, bit: 0, waiting: [0; REMEMBERED] };
        for cpu in 0..cpus {
            table.set(cpu, none, 0).map_err(refused)?;
        }
        for (number, members) in (0u32..).zip(domains) {
            let mut domain = Domain { idle: 0, count: 0, pad: 0, cpus: [0; DOMAIN_CPUS] };
            for (bit, cpu) in (0u32..).zip(members.iter().filter(|cpu| *cpu < cpus).take(DOMAIN_CPUS)) {
                domain.cpus[bit as usize] = cpu;
                domain.count = bit + 1;
                table.set(cpu, Cpu { domain: number, bit, ..none }, 0).map_err(refused)?;
            }
            all.set(number, domain, 0).map_err(refused)?;
        }
        for (name, tracepoint) in PROGRAMS {
            attach(&mut ebpf, name, tracepoint, types)?;
        }
        let tasks = HashMap::try_from(take_map(&mut ebpf, "tasks")?).map_err(refused)?;
        let offers = RingBuf::try_from(take_map(&mut ebpf, "offers")?).map_err(refused)?;
        Ok(Self { _ebpf: ebpf, tasks, offers })
    }

    /// From now on this thread counts.
    pub fn follow(&mut self, id: TaskId, role: Role) -> Result<(), BpfError> {
        let task = Task { start: id.start_time, role: role as u32, ..Task::default() };
        self.tasks.insert(id.tid, task, 0).map_err(|error| BpfError::refused("following a task", error))
    }

    pub fn forget(&mut self, tid: u32) {
        // One that is not there is as good as forgotten.
        let _ = self.tasks.remove(&tid);
    }

    /// Becomes readable when there is an offer.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the map's and lives as long as it.
        unsafe { BorrowedFd::borrow_raw(self.offers.as_raw_fd()) }
    }

    pub fn take(&mut self) -> Option<Offer> {
        let item = self.offers.next()?;
        let word = |at: usize| Some(u32::from_ne_bytes(item.get(at..at + 4)?.try_into().ok()?));
        let to = Some(word(8)?).filter(|to| *to != NO_CPU);
        Some(Offer { tid: word(0)?, from: word(4)?, to })
    }

    /// Whether the task still waits where it did; of background work, whether it ran there last.
    pub fn holds(&self, offer: &Offer) -> bool {
        self.tasks.get(&offer.tid, 0).is_ok_and(|task| {
            let holds = task.role == Role::Background as u32 && task.cpu == 0 && task.ran == offer.from + 1;
            task.cpu == offer.from + 1 || holds
        })
    }
}
