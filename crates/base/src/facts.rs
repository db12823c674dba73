//! What an audit of a host's set-up looks at beyond the topology and the rates: boot parameters, interrupts,
//! frequency governors, pressure, autogroups, memory by node, cpusets. Plain data; a fact that could not be read
//! says why.

use serde::{Deserialize, Serialize};

use crate::CpuSet;

/// A fact, or the reason why it is not known (a path and the system's error).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Known<T> {
    Value(T),
    /// Why nothing was read, such as `/proc/pressure/cpu: no such file (os error 2)`.
    Unknown(String),
}

/// Major and minor number of a kernel's release, such as `6.12.3-amd64`; `None` for text that does not start with them.
pub fn release_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The reason why a fact is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(pub String);

impl<T> Known<T> {
    /// The value, or the reason, for use with `?`.
    pub fn get(&self) -> Result<&T, Unknown> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Unknown(reason) => Err(Unknown(reason.clone())),
        }
    }

    /// The value, where the reason does not matter.
    pub fn ok(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self::Unknown("not read".to_owned())
    }
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Known<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

/// Facts of one host at one instant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostFacts {
    /// Kernel release, such as `6.12.9-amd64`.
    pub release: Known<String>,
    pub cmdline: Known<KernelParams>,
    /// Interrupts that have a number (`/proc/irq`); those of each CPU (timer, rescheduling) are not listed.
    pub irqs: Known<Vec<Irq>>,
    /// Frequency control of each CPU that has one; empty where the kernel controls none (usual in guests).
    pub governors: Known<Vec<Governor>>,
    /// Pressure stall information of the CPU.
    pub pressure: Known<Pressure>,
    /// `kernel.sched_autogroup_enabled`; `false` where the kernel is built without it.
    pub autogroup: Known<bool>,
    /// Autogroups of the tasks asked for.
    pub autogroups: Known<Vec<Autogroup>>,
    /// Memory by node of the processes asked for; empty on a host with one node.
    pub memory: Known<Vec<TaskMemory>>,
    /// `kernel.numa_balancing` is on.
    pub numa_balancing: Known<bool>,
    /// Groups of the cpuset controller, the root first.
    pub cpusets: Known<Vec<CpusetGroup>>,
    /// Where the controllers' files are, for the commands of a fix.
    pub mounts: Mounts,
    /// SMT is on and acts (`/sys/devices/system/cpu/smt/active`).
    pub smt_active: Known<bool>,
    /// BPF scheduler in charge (`/sys/kernel/sched_ext`): its name, `None` when none is loaded.
    pub sched_ext: Known<Option<String>>,
    /// How network load is spread over CPUs.
    #[serde(default)]
    pub network: Known<Network>,
    /// How the kernel preempts what runs (`/sys/kernel/debug/sched/preempt`): `none`, `voluntary`, `full` or `lazy`.
    #[serde(default)]
    pub preemption: Known<String>,
    /// `vm.nr_hugepages`.
    #[serde(default)]
    pub huge_pages: Known<u64>,
    /// `kernel.sched_rt_runtime_us`: microseconds of each second real-time tasks may use; `None` is no limit.
    pub rt_runtime_usec: Known<Option<u64>>,
    /// CPUs whose deadline server for ordinary tasks is switched off (`runtime` of
    /// `/sys/kernel/debug/sched/fair_server/cpuN` is 0).
    #[serde(default)]
    pub fair_server_off: Known<CpuSet>,
}

/// The kernel's command line.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KernelParams {
    pub text: String,
    /// `name=value` or `name`, in order; quotes removed.
    pub params: Vec<(String, Option<String>)>,
}

impl KernelParams {
    /// The values of all parameters of this name, in order; `""` of one without a value.
    pub fn values(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        let all = self.params.iter().filter(move |(key, _)| key == name);
        all.map(|(_, value)| value.as_deref().unwrap_or(""))
    }

    /// The value of the last parameter of this name, which is the one that counts for the kernel. `isolcpus` and `nohz_full`
    /// are exceptions: see [`Self::isolcpus`].
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name).next_back()
    }

    /// The values of `isolcpus=` that the kernel took, in order.
    pub fn isolcpus(&self, on: &BootedHost<'_>) -> Vec<&str> {
        self.isolations(on).into_iter().filter(|of| of.name == "isolcpus").map(|of| of.value).collect()
    }

    /// CPUs that the kernel keeps out of this, a flag of `isolcpus=`: `domain`, `managed_irq` or `nohz`.
    pub fn isolated_from(&self, flag: &str, on: &BootedHost<'_>) -> CpuSet {
        let all = self.isolations(on).into_iter().find(|of| of.flags.contains(&flag));
        all.map(|of| of.cpus).unwrap_or_default()
    }

    /// What the kernel took of `isolcpus=` and `nohz_full=`, in order. Each sets the CPUs of its flags, `domain` where it has none;
    /// one that names other CPUs for a flag than the first is refused as a whole. `nohz` is what `nohz_full=` sets, too
    /// (`housekeeping_setup` in the kernel's `kernel/sched/isolation.c`). Before Linux 5.18 there is one list for all flags: what
    /// comes after the first with other CPUs is refused there, also for other flags.
    fn isolations(&self, on: &BootedHost<'_>) -> Vec<Isolation<'_>> {
        let is_one_list = on.release.is_some_and(|release| release < (5, 18));
        const FLAGS: [&str; 3] = ["domain", "managed_irq", "nohz"];
        let mut taken = Vec::<Isolation<'_>>::new();
        for (name, value) in &self.params {
            let value = value.as_deref().unwrap_or("");
            let mut flags = match name.as_str() {
                "isolcpus" => Vec::new(),
                "nohz_full" => vec!["nohz"],
                _ => continue,
            };
            let (mut list, mut is_legal) = (value, true);
            while name == "isolcpus"
                && let Some((flag, rest)) = list.split_once(',')
                && flag.starts_with(|c: char| c.is_ascii_alphabetic())
            {
                is_legal &= flag.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
                flags.push(flag);
                list = rest;
            }
            flags.retain(|flag| FLAGS.contains(flag));
            if flags.is_empty() {
                flags.push("domain");
            }
            // Nor does it know `all` and `N` in the first place there: a word that begins with a letter is a flag.
            is_legal &= name != "isolcpus" || !list.starts_with(|c: char| c.is_ascii_alphabetic());
            let Some(cpus) = boot_list(list, on.possible).filter(|_| is_legal) else { continue };
            let refuses = |of: &Isolation<'_>| {
                of.cpus != cpus && (is_one_list || flags.iter().any(|flag| of.flags.contains(flag)))
            };
            if !taken.iter().any(refuses) {
                taken.push(Isolation { name, value, flags, cpus });
            }
        }
        taken
    }
}

/// What decides how a kernel reads the lists of CPUs of its command line.
#[derive(Debug, Clone, Copy)]
pub struct BootedHost<'a> {
    /// CPUs that it could ever bring up.
    pub possible: &'a CpuSet,
    /// Its release; it is taken for a new one where that is not known.
    pub release: Option<(u32, u32)>,
}

/// A parameter that the kernel took, by which it keeps CPUs free of something.
struct Isolation<'a> {
    name: &'a str,
    value: &'a str,
    flags: Vec<&'a str>,
    cpus: CpuSet,
}

/// CPUs of a list of the command line, where `N` is the last one that is possible and `all` is all; `None` where the kernel finds no
/// CPU in it, or one beyond the last: it refuses the whole list then (`bitmap_check_region` in its `lib/bitmap-str.c`).
pub fn boot_list(text: &str, possible: &CpuSet) -> Option<CpuSet> {
    let items = text.split(',').filter(|item| !item.is_empty());
    let items: Vec<_> =
        items.map(|item| if item.eq_ignore_ascii_case("all") { "0-N" } else { item }).collect();
    let last = possible.iter().last().unwrap_or(0);
    let cpus: CpuSet = items.join(",").replace('N', &last.to_string()).parse().ok()?;
    cpus.iter().last().filter(|&cpu| cpu <= last).map(|_| cpus)
}

/// A numbered interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Irq {
    pub irq: u32,
    /// Actions registered for it (`/proc/interrupts`), such as `nvme0q3`; empty when none is.
    pub name: String,
    /// CPUs it may be sent to (`smp_affinity_list`).
    pub affinity: Known<CpuSet>,
    /// CPU(s) the hardware sends it to now (`effective_affinity_list`).
    pub effective: Known<CpuSet>,
    /// Interrupts served since boot, by CPU; CPUs with none are left out.
    pub counts: Vec<(u32, u64)>,
}

impl Irq {
    /// Interrupts served on these CPUs since boot.
    pub fn served_on(&self, cpus: &CpuSet) -> u64 {
        self.counts
            .iter()
            .filter(|(cpu, _)| cpus.contains(*cpu))
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

/// How network load is spread over CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Receive interrupts' softer halves (`NET_RX` of `/proc/softirqs`) since boot, by CPU; those with none left out.
    pub received_by_cpu: Vec<(u32, u64)>,
    /// `net.core.rps_sock_flow_entries`: the host's table of sockets' flows, which RFS needs; 0 is off.
    pub sock_flow_entries: Known<u64>,
    /// Links of this network namespace.
    pub links: Vec<LinkQueues>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkQueues {
    pub name: String,
    /// A device is behind it (a network card, also a virtual machine's).
    pub physical: bool,
    pub receive: Vec<ReceiveQueue>,
    pub transmit: Vec<TransmitQueue>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveQueue {
    /// CPUs its packets are processed on; empty: the one that served the interrupt.
    pub rps_cpus: Known<CpuSet>,
    /// Entries of its flow table; 0: no RFS.
    pub rps_flow_cnt: Known<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransmitQueue {
    /// CPUs that send by it; empty: the kernel's choice. Unknown for links with one queue.
    pub xps_cpus: Known<CpuSet>,
}

/// Frequency control of one CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Governor {
    /// Logical CPU.
    pub cpu: u32,
    /// `scaling_governor`, such as `schedutil`.
    pub governor: String,
    /// `scaling_driver`, such as `intel_pstate`.
    pub driver: Option<String>,
    /// `energy_performance_preference`, where the driver has one.
    pub preference: Option<String>,
}

/// `/proc/pressure/cpu`: percent of wall time in which at least one task waited for a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// Over the last 10 seconds.
    pub some_avg10: f64,
    /// Over the last minute.
    pub some_avg60: f64,
    /// Over the last five minutes.
    pub some_avg300: f64,
    /// Since boot, microseconds.
    pub some_total_usec: u64,
}

/// Autogroup of one process (`/proc/PID/autogroup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autogroup {
    pub tgid: u32,
    /// Number of its autogroup; `None` when it is in none.
    pub group: Option<u64>,
    /// The autogroup's own nice value.
    pub nice: i32,
}

/// Where a process's memory is (`/proc/PID/numa_maps`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskMemory {
    pub tgid: u32,
    /// Bytes on each node, ascending by node, or why they could not be read.
    pub bytes_by_node: Known<Vec<(u32, u64)>>,
}

/// One group of the cpuset controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusetGroup {
    /// Path below the controller's mount point, `/` for the root.
    pub path: String,
    /// `cpuset.cpus` as configured; empty when it takes its parent's.
    pub cpus: CpuSet,
    /// CPUs its tasks may really use.
    pub effective: Option<CpuSet>,
    /// `cpuset.mems` as configured; empty when it takes its parent's.
    pub mems: CpuSet,
    /// Nodes its tasks may really take memory from.
    pub effective_mems: Option<CpuSet>,
    /// v1 `cpuset.memory_migrate`: memory follows when `mems` changes. v2 always does it.
    pub memory_migrate: Option<bool>,
    /// v2 `cpuset.cpus.partition`, such as `member`, `root`, `isolated`.
    pub partition: Option<String>,
}

/// Mount points of the hierarchies, on the host looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mounts {
    pub cpu: Option<Mount>,
    pub cpuset: Option<Mount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Directory, such as `/sys/fs/cgroup`.
    pub path: String,
    pub v2: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_a_version() {
        assert_eq!(release_version("6.12.3-amd64"), Some((6, 12)));
        assert_eq!(release_version("5.15"), Some((5, 15)));
        assert_eq!(release_version("next"), None);
    }
}
