//! The maps' keys and values, as `bpf/why.bpf.c` has them.

use aya::Pod;

pub(super) const MAX_CELLS: u32 = 512;
pub(super) const NO_CELL: u32 = u32::MAX;
pub(super) const BUCKETS: usize = evenkeel_base::waits::BUCKETS;
const IRQ_DEPTH: usize = 4;

pub(super) const STATE_RUN: u32 = 1;
pub(super) const STATE_WAIT: u32 = 2;
pub(super) const STATE_SLEEP: u32 = 3;
pub(super) const STATE_DISK: u32 = 4;
pub(super) const STATE_STOPPED: u32 = 5;

/// Every so manieth call on a CPU is timed.
pub(super) const TIMED_EACH: u32 = 127;

/// Entries of the map that tells most strangers.
pub(super) const MEANT: u32 = 8192;
/// Scopes that are counted apart have their number in the top byte of a word.
pub(super) const SCOPE_SHIFT: u32 = 56;
/// Below it, of a process whose children belong to its scope, too.
pub(super) const WITH_CHILDREN: u64 = 1 << 55;

/// Low word of a culprit: a thread number, or one of these kinds and a number.
pub(super) const CULPRIT_KIND: u32 = 3 << 28;
pub(super) const CULPRIT_GROUP: u32 = 1 << 28;
pub(super) const CULPRIT_IRQ: u32 = 2 << 28;
pub(super) const CULPRIT_SOFTIRQ: u32 = 3 << 28;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Config {
    pub on: u32,
    pub cells: u32,
    pub used: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuState {
    pub active: [u64; MAX_CELLS as usize / 8],
    pub current: u64,
    pub irq: [u64; IRQ_DEPTH],
    pub irq_since: u64,
    pub lost: u64,
    pub irq_depth: u32,
    pub current_cell: u32,
    pub fresh: u32,
    pub switched: u32,
    pub tid: u32,
    pub held: u32,
    pub missed: u64,
    pub entered: u64,
    pub timed: u64,
    pub until_timed: u32,
    pub pad: u32,
}

impl CpuState {
    pub(super) const NEW: Self = Self {
        active: [0; MAX_CELLS as usize / 8],
        current: 0,
        irq: [0; IRQ_DEPTH],
        irq_since: 0,
        lost: 0,
        irq_depth: 0,
        current_cell: NO_CELL,
        fresh: 0,
        switched: 0,
        tid: 0,
        held: 0,
        missed: 0,
        entered: 0,
        timed: 0,
        until_timed: TIMED_EACH,
        pad: 0,
    };

    /// What its calls took, ns, by those that were timed.
    pub(super) fn spent(&self) -> u64 {
        self.timed * u64::from(TIMED_EACH)
    }

    pub(super) fn culprit(&self) -> u64 {
        match self.irq_depth as usize {
            depth @ 1..=IRQ_DEPTH => self.irq[depth - 1],
            _ => self.current,
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spot {
    pub word: u64,
    pub last: u64,
    pub throttled_since: u64,
    pub throttled_clock: u64,
    pub throttled_by: u64,
    pub group: u64,
    pub queue: u64,
    pub ran: u64,
    pub waited: u64,
    pub throttled: u64,
    pub slept: u64,
    pub disk: u64,
    pub stopped: u64,
    pub stolen: u64,
    pub interrupted: u64,
    pub max_wait: u64,
    pub waits: u64,
    pub preempted: u64,
    pub voluntary: u64,
    pub migrated: u64,
    pub is_throttled: u64,
}

impl Spot {
    /// Time its threads have waited since the CPU changed hands last, ns.
    pub(super) fn owed(&self, now: u64) -> u64 {
        const MASK: u64 = (1 << 48) - 1;
        let sum = (self.word & 0xffff).wrapping_mul(now).wrapping_sub(self.word >> 16);
        let grown = sum.wrapping_sub(self.last) & MASK;
        if grown > MASK / 2 { 0 } else { grown }
    }

    /// Time it has been throttled, ns.
    pub(super) fn throttled_clock(&self, now: u64) -> u64 {
        self.throttled_clock
            + if self.is_throttled != 0 { now.saturating_sub(self.throttled_since) } else { 0 }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    pub since: u64,
    pub start: u64,
    pub group: u64,
    pub waited: u64,
    pub began: u64,
    pub throttled_at: u64,
    pub steal_at: u64,
    pub state: u32,
    pub cell: u32,
    pub cpu: u32,
    pub tgid: u32,
    pub scope: u32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlameKey {
    pub culprit: u64,
    pub cell: u32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ThrottleKey {
    pub by: u64,
    pub cell: u32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Who {
    pub cgroup: u64,
    pub tgid: u32,
    pub kthread: u32,
    pub comm: [u8; 16],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts(pub [u32; BUCKETS]);

impl Counts {
    pub(super) const NONE: Self = Self([0; BUCKETS]);
}

macro_rules! pod {
    ($($name:ty),*) => {
        $(
            // SAFETY: repr(C) integers without padding bytes; every bit pattern is a value.
            unsafe impl Pod for $name {}
        )*
    };
}
pod!(Config, CpuState, Spot, Record, BlameKey, ThrottleKey, Who, Counts);
