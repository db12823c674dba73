//! What every task has used, and what tasks that are gone have used: `bpf/task.bpf.c`.

use std::io::Read;

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData};
use aya::programs::{BtfTracePoint, Iter};

use crate::BpfError;
use crate::load::{self, Types, object};

/// Bytes of a record in the kernel's form.
const RECORD: usize = 136;
/// The kernel hands over up to 32 KiB with each read (`PAGE_SIZE << 3`, kernel/bpf/bpf_iter.c), 64 KiB pages apart.
const CHUNK: usize = 128 << 10;

const HAS_SLICE: u32 = 1;
const HAS_CUSTOM_SLICE: u32 = 2;
const CUSTOM_SLICE: u32 = 4;
const RESET_ON_FORK: u32 = 8;
/// `PF_KTHREAD`, include/linux/sched.h.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// `PF_EXITING`, the same.
const EXITING: u32 = 4;
/// Odd numbers without a pattern, by which numbers of groups are mixed.
const MIX_V2: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_CPU: u64 = 0xc2b2_ae3d_27d4_eb4f;

/// What the kernel knows of one thread, read in one instant. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRecord {
    pub tgid: u32,
    pub tid: u32,
    /// Start since boot, suspended time included.
    pub start_ns: u64,
    /// Time on a CPU (`se.sum_exec_runtime`, the first number of `/proc/PID/schedstat`). Of a task that runs it is as
    /// old as the last tick, there as here.
    pub ran_ns: u64,
    /// Time runnable but not running, throttled time included (`sched_info.run_delay`), with the wait that goes on, which
    /// the kernel adds when it ends.
    pub waited_ns: u64,
    /// Times it was given a CPU (`sched_info.pcount`).
    pub timeslices: u64,
    pub voluntary: u64,
    pub involuntary: u64,
    /// Parent process; 0 for none.
    pub ppid: u32,
    /// CPU it ran on last; `None` where this kernel keeps that elsewhere than known here.
    pub cpu: Option<u32>,
    pub kernel_thread: bool,
    /// On its way out, or a zombie.
    pub exiting: bool,
    /// Scheduling policy, the kernel's number.
    pub policy: u32,
    /// Nice value, kept also while real-time.
    pub nice: i32,
    /// Real-time priority; 0 for other policies.
    pub rt_priority: u32,
    /// Children start with the default policy.
    pub reset_on_fork: bool,
    /// Slice in force; `None` where the kernel has none (before 6.6).
    pub slice_ns: Option<u64>,
    /// Whether the slice was asked for by the task; `None` where it cannot be (before 6.12).
    pub custom_slice: Option<bool>,
    /// Number of its group in the v2 hierarchy: its directory's inode. `None` when unknown.
    pub cgroup_v2: Option<u64>,
    /// The same for the group of the cpu controller that it competes in, v1 or v2.
    pub cgroup_cpu: Option<u64>,
    /// A number that tasks share as long as they are in the same groups of all hierarchies. Another kernel-wide
    /// combination of groups may get it once no task is in the first.
    pub memberships: u64,
    /// Name, any bytes, cut at the first NUL.
    comm: [u8; 16],
}

impl TaskRecord {
    /// Name (`comm`): any bytes but NUL, 15 at most.
    pub fn comm(&self) -> &[u8] {
        let end = self.comm.iter().position(|&byte| byte == 0).unwrap_or(self.comm.len());
        &self.comm[..end]
    }

    /// Name as the kernel has it, filled up with whatever.
    pub fn comm_bytes(&self) -> [u8; 16] {
        self.comm
    }

    /// From the kernel's form, see `struct task_record`.
    fn parse(bytes: &[u8; RECORD]) -> Self {
        let u64_at = |at: usize| u64::from_ne_bytes(word(bytes, at));
        let u32_at = |at: usize| u32::from_ne_bytes(word(bytes, at));
        let known = |id: u64| (id != 0).then_some(id);
        let flags = u32_at(80 + 8 * 4);
        let (v2, cpu, set) = (u64_at(56), u64_at(64), u64_at(72));
        Self {
            start_ns: u64_at(0),
            ran_ns: u64_at(8),
            waited_ns: u64_at(16),
            timeslices: u64_at(24),
            voluntary: u64_at(32),
            involuntary: u64_at(40),
            slice_ns: (flags & HAS_SLICE != 0).then(|| u64_at(48)),
            cgroup_v2: known(v2),
            cgroup_cpu: known(cpu),
            // The kernel may use the address of one combination of groups again for another.
            memberships: set ^ v2.wrapping_mul(MIX_V2) ^ cpu.wrapping_mul(MIX_CPU),
            tgid: u32_at(80),
            tid: u32_at(84),
            ppid: u32_at(88),
            cpu: Some(u32_at(92)).filter(|&cpu| cpu != u32::MAX),
            kernel_thread: u32_at(96) & KERNEL_THREAD != 0,
            exiting: u32_at(96) & EXITING != 0,
            policy: u32_at(100),
            // `DEFAULT_PRIO` is 120: static priorities 100..=139 are nice -20..=19.
            nice: u32_at(108) as i32 - 120,
            rt_priority: u32_at(116),
            reset_on_fork: flags & RESET_ON_FORK != 0,
            custom_slice: (flags & HAS_CUSTOM_SLICE != 0).then_some(flags & CUSTOM_SLICE != 0),
            comm: word(bytes, 120),
        }
    }
}

/// `N` bytes at a place that is inside by construction; zeros otherwise.
fn word<const N: usize>(bytes: &[u8; RECORD], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|word| word.try_into().ok()).unwrap_or([0; N])
}

/// Sums over the threads of a group that are gone, since the probe was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exited {
    /// Number of the group of the cpu controller; 0 when unknown.
    pub cgroup_cpu: u64,
    /// Time on a CPU over the threads' whole lives, nanoseconds.
    pub ran_ns: u64,
    /// Time runnable but not running, nanoseconds.
    pub waited_ns: u64,
    /// Times they were given a CPU.
    pub timeslices: u64,
    /// Threads gone for good.
    pub tasks: u64,
}

/// How much the kernel's tables of ended threads hold. They are allocated when the programs are loaded: 4 MiB by
/// default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Threads on their way out at one time; those beyond are counted a moment later.
    pub exiting: u32,
    /// Groups in which threads end; those beyond are lost, and counted as such ([`TaskProbe::lost`]).
    pub groups: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { exiting: 16384, groups: 16384 }
    }
}

/// The programs in the kernel.
pub struct TaskProbe {
    ebpf: Ebpf,
    buffer: Vec<u8>,
    counts_exits: bool,
}

impl std::fmt::Debug for TaskProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskProbe").field("counts_exits", &self.counts_exits).finish_non_exhaustive()
    }
}

impl TaskProbe {
    /// Loads the iterator, and with room for `exits` the programs that count threads that are gone.
    pub fn load(types: &Types, exits: Option<Room>) -> Result<Self, BpfError> {
        let room = exits.unwrap_or(Room { exiting: 1, groups: 1 });
        let sizes = [("exiting", room.exiting.max(1)), ("exited", room.groups.max(1))];
        let mut ebpf = load::open(object!("task"), types, &sizes, &[])?;
        iterator(&mut ebpf)?
            .load("task", types.btf())
            .map_err(|e| BpfError::refused("the task iterator", e))?;
        if exits.is_some() {
            for (name, event) in [("on_exit", "sched_process_exit"), ("on_free", "sched_process_free")] {
                let refused = |e| BpfError::refused("counting exits", e);
                let program: &mut BtfTracePoint =
                    ebpf.program_mut(name).ok_or(BpfError::NoProgram(name))?.try_into().map_err(refused)?;
                program.load(event, types.btf()).map_err(refused)?;
                program.attach().map_err(refused)?;
            }
        }
        Ok(Self { ebpf, buffer: vec![0; CHUNK], counts_exits: exits.is_some() })
    }

    /// One pass over all threads that have not been reaped, ascending by thread id on the kernels known; a thread
    /// that comes or goes meanwhile may be in it or not.
    pub fn read(&mut self, mut each: impl FnMut(TaskRecord)) -> Result<(), BpfError> {
        let refused = |e| BpfError::refused("the task iterator", e);
        let program = iterator(&mut self.ebpf)?;
        let link = program.attach().and_then(|id| program.take_link(id)).map_err(refused)?;
        let mut file = link.into_file().map_err(|e| BpfError::refused("the task iterator", e))?;
        let mut kept = 0;
        loop {
            let read = file.read(&mut self.buffer[kept..])?;
            let filled = kept + read;
            let (records, rest) = self.buffer[..filled].as_chunks::<RECORD>();
            for record in records {
                each(TaskRecord::parse(record));
            }
            if read == 0 {
                return Ok(());
            }
            // The kernel may cut a record in two between reads.
            kept = rest.len();
            self.buffer.copy_within(filled - kept..filled, 0);
        }
    }

    /// Sums of threads that are gone, as of the last pass, in no order.
    pub fn exited(&mut self) -> Result<Vec<Exited>, BpfError> {
        if !self.counts_exits {
            return Ok(Vec::new());
        }
        let refused = |e| BpfError::refused("the sums of exited tasks", e);
        let map = self.ebpf.map_mut("exited").ok_or(BpfError::NoProgram("exited"))?;
        let map: HashMap<&mut MapData, u64, [u64; 4]> = map.try_into().map_err(refused)?;
        let mut all = Vec::new();
        for entry in map.iter() {
            // An entry that goes while the map is walked ends the walk early on old kernels; they are only removed here.
            let (cgroup_cpu, [ran_ns, waited_ns, timeslices, tasks]) = entry.map_err(refused)?;
            all.push(Exited { cgroup_cpu, ran_ns, waited_ns, timeslices, tasks });
        }
        Ok(all)
    }

    /// Forgets the sums of a group, for one that no longer exists.
    pub fn forget(&mut self, cgroup_cpu: u64) {
        let Some(map) = self.ebpf.map_mut("exited") else { return };
        let map: Result<HashMap<&mut MapData, u64, [u64; 4]>, _> = map.try_into();
        if let Ok(mut map) = map {
            // Gone already is as good.
            let _ = map.remove(&cgroup_cpu);
        }
    }

    /// Threads whose sums found no room since the probe was loaded: what groups used is then "at least".
    pub fn lost(&self) -> u64 {
        let array = self.ebpf.map("lost").and_then(|map| Array::<&MapData, u64>::try_from(map).ok());
        array.and_then(|array| array.get(&0, 0).ok()).unwrap_or(0)
    }
}

fn iterator(ebpf: &mut Ebpf) -> Result<&mut Iter, BpfError> {
    let program = ebpf.program_mut("tasks").ok_or(BpfError::NoProgram("tasks"))?;
    program.try_into().map_err(|error| BpfError::refused("the task iterator", error))
}
