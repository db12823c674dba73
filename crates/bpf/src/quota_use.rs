//! What tasks below a cgroup with a quota use of it, background work aside (`bpf/quota_use.bpf.c`).

use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::{Ebpf, Pod};

use crate::BpfError;
use crate::load::{Types, attach, object, open, take_map};

/// Windows that are remembered.
pub const WINDOWS: usize = 128;

const NOT_COUNTED: u32 = 1;
const COUNTED: u32 = 2;

/// Some 10 ms, or more where hardly any task runs; 5 ms after one in which less was used than is usual.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Its length, microseconds.
    pub took_us: u32,
    /// CPU used in it, microseconds.
    pub used_us: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Account {
    began: u64,
    used_ns: u64,
    ended: u64,
    _was_low: u64,
    windows: [Used; WINDOWS],
}

/// What is usual, in thousandths of one CPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usual {
    /// Less is unusual.
    pub least: u32,
    /// More is unusual.
    pub most: u32,
}

impl Usual {
    /// Nothing is unusual.
    pub const ALL: Self = Self { least: 0, most: u32::MAX };
}

// SAFETY: `repr(C)` without padding, any bits are a value.
unsafe impl Pod for Account {}
// SAFETY: as above.
unsafe impl Pod for Usual {}

pub struct QuotaUse {
    // Keeps the programs attached.
    _ebpf: Ebpf,
    account: Array<MapData, Account>,
    usual: Array<MapData, Usual>,
    words: RingBuf<MapData>,
}

impl std::fmt::Debug for QuotaUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuotaUse").finish_non_exhaustive()
    }
}

impl QuotaUse {
    /// Counts what is below the first cgroup, less what is below the others; each by the inode number of its directory.
    pub fn start(types: &Types, whole: u64, without: &[u64]) -> Result<Self, BpfError> {
        let named = u32::try_from(without.len()).unwrap_or(u32::MAX).saturating_add(1);
        let mut ebpf = open(object!("quota_use"), types, &[("groups", named)], &[])?;
        let refused = |error| BpfError::refused("naming the cgroups", error);
        let mut groups: HashMap<_, u64, u32> =
            HashMap::try_from(take_map(&mut ebpf, "groups")?).map_err(refused)?;
        groups.insert(whole, COUNTED, 0).map_err(refused)?;
        for id in without {
            groups.insert(id, NOT_COUNTED, 0).map_err(refused)?;
        }
        let mut usual = Array::try_from(take_map(&mut ebpf, "range")?).map_err(refused)?;
        usual.set(0, Usual::ALL, 0).map_err(refused)?;
        let account = Array::try_from(take_map(&mut ebpf, "account")?).map_err(refused)?;
        let words = RingBuf::try_from(take_map(&mut ebpf, "words")?).map_err(refused)?;
        attach(&mut ebpf, "on_runtime", "sched_stat_runtime", types)?;
        Ok(Self { _ebpf: ebpf, account, usual, words })
    }

    /// The number of windows so far, and the last ones, at most so many of them, oldest first.
    pub fn last(&self, most: usize) -> Result<(u64, Vec<Used>), BpfError> {
        let account =
            self.account.get(&0, 0).map_err(|error| BpfError::refused("reading what is used", error))?;
        // The oldest may be written at this moment.
        let count = account.ended.min(most.min(WINDOWS - 1) as u64);
        let numbers = account.ended - count..account.ended;
        Ok((account.ended, numbers.map(|number| account.windows[number as usize % WINDOWS]).collect()))
    }

    /// From now on there is word of windows outside of this range.
    pub fn set_usual(&mut self, usual: Usual) -> Result<(), BpfError> {
        self.usual.set(0, usual, 0).map_err(|error| BpfError::refused("saying what is usual", error))
    }

    /// Becomes readable with an unusual window.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the map's and lives as long as it.
        unsafe { BorrowedFd::borrow_raw(self.words.as_raw_fd()) }
    }

    /// Takes the word of unusual windows: whether there was any.
    pub fn take(&mut self) -> bool {
        let mut any = false;
        while self.words.next().is_some() {
            any = true;
        }
        any
    }
}
