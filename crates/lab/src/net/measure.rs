//! One measurement: flows from a sender to tenants' servers, and what the host did meanwhile.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_base::CpuTimes;
use evenkeel_linux::sys::usable_cpus;
use evenkeel_linux::{Root, proc_stat, schedstat};
use serde::{Deserialize, Serialize};

use super::NetError;
use super::figures::{split, spread};
use super::flows::{FlowResult, OVER, RECORD, WARM, run_share};
use super::namespace::Namespace;
use evenkeel_workload::burn::{duration_ns, monotonic_ns, sleep_until};
use evenkeel_workload::flow::{Latencies, LatencySummary, connect};

/// Up to so many flows have a thread each, which blocks on it as netperf's processes do; beyond, a thread a CPU waits on
/// many.
const THREAD_EACH: usize = 512;
/// How long a server may take to answer the first connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A tenant's server, as the sender and the accountant see it.
#[derive(Debug)]
pub struct Served<'a> {
    pub name: String,
    pub address: SocketAddr,
    /// Processes whose CPU time is the tenant's.
    pub pids: Vec<u32>,
    /// A link whose packets are the tenant's, and the namespace it is in.
    pub link: Option<(&'a Namespace, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Traffic before anything is counted.
    #[serde(rename = "warmup_s", with = "evenkeel_workload::burn::seconds")]
    pub warmup: Duration,
    #[serde(rename = "window_s", with = "evenkeel_workload::burn::seconds")]
    pub window: Duration,
    pub windows: u32,
}

impl Timing {
    /// What a program measures that takes no fractions of a second: all windows, rounded up.
    pub fn whole_s(&self) -> u32 {
        (self.window.as_secs_f64() * f64::from(self.windows.max(1))).ceil().max(1.0) as u32
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Length of all windows, seconds.
    pub seconds: f64,
    /// Transactions a second, all tenants; `None` for a stream.
    pub transactions_per_s: Option<f64>,
    /// Payload received of a stream, Mbit/s, all tenants; `None` for transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit_per_s: Option<f64>,
    pub latency: Option<LatencySummary>,
    /// Mean latency where no more is known of all flows together, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_mean_usec: Option<f64>,
    /// Latencies' histogram over all flows: upper bound in microseconds, count.
    pub histogram: Vec<(f64, u64)>,
    pub tenants: Vec<TenantMeasured>,
    /// Each flow, in order; flow f belongs to tenant f modulo the number of tenants.
    pub flows: Vec<FlowMeasured>,
    pub host: HostMeasured,
}

impl Measured {
    /// Transactions a second, or Mbit/s of a stream.
    pub fn throughput(&self) -> Option<f64> {
        self.transactions_per_s.or(self.mbit_per_s)
    }

    /// Mean latency over all flows, microseconds.
    pub fn mean_usec(&self) -> Option<f64> {
        self.latency.map(|latency| latency.mean_usec).or(self.latency_mean_usec)
    }

    /// A quantity of each tenant; `None` where one does not know it.
    pub fn each(&self, of: impl Fn(&TenantMeasured) -> Option<f64>) -> Option<Vec<f64>> {
        self.tenants.iter().map(of).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TenantMeasured {
    pub name: String,
    pub flows: u32,
    /// Transactions a second; `None` for a stream.
    pub transactions_per_s: Option<f64>,
    /// Payload received of a stream, Mbit/s; `None` for transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit_per_s: Option<f64>,
    /// Transactions in each window; none where only the whole is told.
    pub windows: Vec<u64>,
    pub latency: Option<LatencySummary>,
    /// Mean latency where no more is known of its flows together, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_mean_usec: Option<f64>,
    /// CPU time of its processes, percent of ONE CPU.
    pub cpu_pct: Option<f64>,
    /// Time its threads were ready and waited for a CPU, percent of one thread's time (two that wait all the time: 200).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_pct: Option<f64>,
    /// Softirq time charged to it (see [`HostMeasured::softirq_method`]), percent of ONE CPU.
    pub softirq_pct: Option<f64>,
    pub packets: Option<u64>,
}

impl TenantMeasured {
    /// Transactions a second, or Mbit/s of a stream.
    pub fn throughput(&self) -> Option<f64> {
        self.transactions_per_s.or(self.mbit_per_s)
    }

    /// Mean latency over its flows, microseconds.
    pub fn mean_usec(&self) -> Option<f64> {
        self.latency.map(|latency| latency.mean_usec).or(self.latency_mean_usec)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FlowMeasured {
    /// Index of its tenant.
    pub tenant: usize,
    /// Transactions in all windows; `None` for a stream.
    pub transactions: Option<u64>,
    /// Payload received of a stream, Mbit/s; `None` for transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit_per_s: Option<f64>,
    pub latency: Option<LatencySummary>,
    /// Why it, or one that shares its thread, ended early; then it has no share in the tenant's figures from there on.
    pub broken: Option<String>,
}

/// The host meanwhile.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostMeasured {
    /// CPU time used by everybody, percent of ONE CPU (2 CPUs: up to 200).
    pub cpu_pct: Option<f64>,
    /// Load of each CPU, percent.
    pub per_cpu_pct: Vec<f64>,
    /// Over how many CPUs the load was spread.
    pub spread: Option<f64>,
    /// Hard and soft interrupts, percent of ONE CPU, as `/proc/stat` samples them at ticks.
    pub softirq_pct: Option<f64>,
    /// How softirq time was charged to tenants.
    pub softirq_method: String,
    /// Stolen by the hypervisor, percent of ONE CPU.
    pub steal_pct: Option<f64>,
    /// CPU time of the sender (this program), percent of ONE CPU.
    pub sender_cpu_pct: Option<f64>,
}

/// The only method so far: said with every figure made by it.
const SPLIT_BY_PACKETS: &str = "interrupt time of /proc/stat, split by packets over tenants' links; without \
    CONFIG_IRQ_TIME_ACCOUNTING it is also part of the CPU time of the task it interrupted (mostly the sender)";

/// Counters at one instant.
struct Instant {
    at_ns: u64,
    flows: Vec<u64>,
    cpus: Option<Vec<CpuTimes>>,
    tenants_cpu_ns: Vec<Option<u64>>,
    tenants_wait_ns: Vec<Option<u64>>,
    own_cpu_ns: Option<u64>,
    packets: Vec<Option<u64>>,
}

/// Measures `flows` flows from `sender`, divided exactly over the servers.
///
/// # Errors
/// Flows that do not divide, a server that cannot be reached. A flow that breaks later is reported in its place.
pub fn measure(
    sender: &Namespace,
    servers: &[Served<'_>],
    flows: u32,
    timing: Timing,
) -> Result<Measured, NetError> {
    let each = split(flows, servers.len()).map_err(NetError::Parameters)?;
    let sockets = connect_all(sender, servers, flows)?;
    let counts: Vec<AtomicU64> = (0..flows).map(|_| AtomicU64::new(0)).collect();
    let phase = AtomicU8::new(WARM);
    let cpus = usable_cpus().len();
    let threads = if sockets.len() <= THREAD_EACH { sockets.len() } else { cpus };
    let mut shares: Vec<Vec<(usize, TcpStream)>> = (0..threads).map(|_| Vec::new()).collect();
    for (flow, socket) in sockets.into_iter().enumerate() {
        shares[flow % threads].push((flow, socket));
    }
    let snapshot = || Instant {
        at_ns: monotonic_ns(),
        flows: counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
        cpus: proc_stat::read(&Root::host()).ok().map(|stat| stat.cpus),
        tenants_cpu_ns: servers
            .iter()
            .map(|server| sum(server.pids.iter().map(|pid| cpu_ns(*pid))))
            .collect(),
        tenants_wait_ns: servers
            .iter()
            .map(|server| sum(server.pids.iter().map(|pid| wait_ns(*pid))))
            .collect(),
        own_cpu_ns: cpu_ns(std::process::id()),
        packets: servers.iter().map(packets).collect(),
    };
    let (instants, windows, results) = std::thread::scope(|scope| {
        let handles: Vec<_> = shares
            .into_iter()
            .map(|share| {
                let (counts, phase) = (&counts, &phase);
                scope.spawn(move || run_share(share, counts, phase))
            })
            .collect();
        let start = monotonic_ns() + duration_ns(timing.warmup);
        until(start);
        let first = snapshot();
        phase.store(RECORD, Ordering::Relaxed);
        let mut windows = vec![first.flows.clone()];
        for window in 1..=timing.windows.max(1) {
            until(first.at_ns + duration_ns(timing.window) * u64::from(window));
            windows.push(counts.iter().map(|count| count.load(Ordering::Relaxed)).collect());
        }
        let last = snapshot();
        phase.store(OVER, Ordering::Relaxed);
        let results: Vec<_> =
            handles.into_iter().flat_map(|handle| handle.join().unwrap_or_default()).collect();
        ([first, last], windows, results)
    });
    Ok(sum_up(servers, each, &instants, &windows, results))
}

/// Waits for an instant of the monotonic clock.
pub(crate) fn until(at_ns: u64) {
    while monotonic_ns() < at_ns {
        sleep_until(at_ns);
    }
}

fn connect_all(sender: &Namespace, servers: &[Served<'_>], flows: u32) -> Result<Vec<TcpStream>, NetError> {
    let at = |flow: u32| servers[flow as usize % servers.len()].address;
    let mut failed = None;
    let connected = sender.run(|| {
        (0..flows)
            .map(|flow| connect(at(flow), CONNECT_WITHIN).inspect_err(|_| failed = Some(at(flow))))
            .collect::<io::Result<Vec<_>>>()
    });
    connected.map_err(|error| {
        let whom = failed.map_or_else(|| "the servers".to_owned(), |address| address.to_string());
        NetError::system(format!("cannot reach {whom} from the sender's namespace"), error)
    })
}

fn sum_up(
    servers: &[Served<'_>],
    each: u32,
    [first, last]: &[Instant; 2],
    windows: &[Vec<u64>],
    mut results: Vec<FlowResult>,
) -> Measured {
    let seconds = (last.at_ns.saturating_sub(first.at_ns)) as f64 / 1e9;
    let wall_ns = (last.at_ns.saturating_sub(first.at_ns)).max(1) as f64;
    let pct = |ns: u64| ns as f64 / wall_ns * 100.0;
    results.sort_by_key(|(flow, ..)| *flow);
    let done = |flow: usize| last.flows[flow].saturating_sub(first.flows[flow]);
    let of = |tenant: usize| (tenant..last.flows.len()).step_by(servers.len().max(1));
    let mut host = host_between(first.cpus.as_deref(), last.cpus.as_deref(), wall_ns);
    host.sender_cpu_pct = first.own_cpu_ns.zip(last.own_cpu_ns).and_then(|(a, b)| b.checked_sub(a)).map(pct);
    let packets: Vec<Option<u64>> =
        first.packets.iter().zip(&last.packets).map(|(a, b)| (*b)?.checked_sub((*a)?)).collect();
    let mut all = Latencies::default();
    let tenants = servers
        .iter()
        .enumerate()
        .map(|(tenant, server)| {
            let mut latencies = Latencies::default();
            of(tenant).filter_map(|flow| results.get(flow)).for_each(|(_, l, _)| latencies.add(l));
            all.add(&latencies);
            let cpu = first.tenants_cpu_ns[tenant].zip(last.tenants_cpu_ns[tenant]);
            let wait = first.tenants_wait_ns[tenant].zip(last.tenants_wait_ns[tenant]);
            TenantMeasured {
                name: server.name.clone(),
                flows: each,
                transactions_per_s: Some(of(tenant).map(done).sum::<u64>() as f64 / seconds),
                mbit_per_s: None,
                windows: windows
                    .windows(2)
                    .map(|w| of(tenant).map(|flow| w[1][flow].saturating_sub(w[0][flow])).sum())
                    .collect(),
                latency: latencies.summary(),
                latency_mean_usec: None,
                cpu_pct: cpu.and_then(|(a, b)| b.checked_sub(a)).map(pct),
                wait_pct: wait.and_then(|(a, b)| b.checked_sub(a)).map(pct),
                softirq_pct: charge(host.softirq_pct, &packets, tenant),
                packets: packets[tenant],
            }
        })
        .collect();
    let flows = results
        .iter()
        .map(|(flow, latencies, broken)| FlowMeasured {
            tenant: flow % servers.len().max(1),
            transactions: Some(done(*flow)),
            mbit_per_s: None,
            latency: latencies.summary(),
            broken: broken.clone(),
        })
        .collect();
    Measured {
        seconds,
        transactions_per_s: Some((0..last.flows.len()).map(done).sum::<u64>() as f64 / seconds),
        mbit_per_s: None,
        latency: all.summary(),
        latency_mean_usec: None,
        histogram: all.buckets(),
        tenants,
        flows,
        host,
    }
}

/// A tenant's part of the host's interrupt time, by packets over tenants' links.
pub(super) fn charge(softirq_pct: Option<f64>, packets: &[Option<u64>], tenant: usize) -> Option<f64> {
    let all = sum(packets.iter().copied()).filter(|n| *n > 0)?;
    Some(softirq_pct? * (*packets.get(tenant)?)? as f64 / all as f64)
}

/// What the host did between two readings of its CPUs.
pub(crate) fn host_between(
    before: Option<&[CpuTimes]>,
    after: Option<&[CpuTimes]>,
    wall_ns: f64,
) -> HostMeasured {
    let mut host = HostMeasured { softirq_method: SPLIT_BY_PACKETS.into(), ..HostMeasured::default() };
    let (Some(before), Some(after)) = (before, after) else { return host };
    // A CPU that came or went meanwhile, or a counter that ran backwards, is left out.
    let pairs: Vec<_> = after
        .iter()
        .filter_map(|b| before.iter().find(|a| a.cpu == b.cpu).map(|a| (a, b)))
        .filter(|(a, b)| b.busy_ns >= a.busy_ns && b.irq_ns >= a.irq_ns)
        .collect();
    let pct = |ns: u64| ns as f64 / wall_ns * 100.0;
    host.per_cpu_pct = pairs.iter().map(|(a, b)| pct(b.busy_ns - a.busy_ns)).collect();
    host.cpu_pct = (!pairs.is_empty()).then(|| host.per_cpu_pct.iter().sum());
    host.spread = spread(&host.per_cpu_pct);
    host.softirq_pct = (!pairs.is_empty()).then(|| pairs.iter().map(|(a, b)| pct(b.irq_ns - a.irq_ns)).sum());
    host.steal_pct = sum(pairs.iter().map(|(a, b)| b.steal_ns?.checked_sub(a.steal_ns?))).map(pct);
    host
}

/// The sum; `None` when any is unknown, or of none.
fn sum(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let mut any = false;
    let total = values.inspect(|_| any = true).try_fold(0u64, |sum, value| Some(sum + value?));
    total.filter(|_| any)
}

/// CPU time of a process and all its threads, those that ended included, nanoseconds; `None` when it is gone.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let mut clock = 0;
    // SAFETY: writes one clock id to the place given; fails for a process that does not exist.
    if unsafe { libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec to the place given.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Time a process's living threads have been ready and waited for a CPU, nanoseconds; `None` when it is gone or the kernel
/// keeps no account of it.
fn wait_ns(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    sum(threads.map(|thread| {
        Some(schedstat::parse_bytes(&fs::read(thread.path().join("schedstat")).ok()?)?.waited_ns)
    }))
}

/// Packets received and sent by a link, from `/proc/net/dev` of its namespace.
fn packets(server: &Served<'_>) -> Option<u64> {
    let (namespace, link) = server.link.as_ref()?;
    link_packets_in(namespace, link)
}

/// The same of a link by name.
pub(super) fn link_packets_in(namespace: &Namespace, link: &str) -> Option<u64> {
    let text = namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev")).ok()?;
    link_packets(&text, link)
}

/// Columns of `/proc/net/dev`: 8 of reception (bytes, packets, ..), 8 of transmission.
pub(crate) fn link_packets(text: &str, link: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(link)?.strip_prefix(':'))?;
    let columns: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    columns.get(1)?.checked_add(*columns.get(9)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_link() {
        let text = "Inter-|   Receive\n face |bytes packets\n  p1: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n p10:1 5 0 0 0 0 0 0 1 6 0 0 0 0 0 0\n";
        assert_eq!((link_packets(text, "p1"), link_packets(text, "p10")), (Some(6), Some(11)));
        let most = format!("p1: 1 {} 0 0 0 0 0 0 1 1", u64::MAX);
        assert_eq!(link_packets(&most, "p1"), None);
        assert_eq!((link_packets(text, "p"), link_packets("p1: 3", "p1")), (None, None));
    }

    #[test]
    fn a_process_has_a_cpu_clock() {
        let before = cpu_ns(std::process::id()).unwrap();
        evenkeel_workload::burn::burn(5_000_000);
        assert!(cpu_ns(std::process::id()).unwrap() > before && cpu_ns(0x7fff_fff0).is_none());
    }

    #[test]
    fn an_unknown_part_makes_the_sum_unknown() {
        assert_eq!(sum([Some(1), Some(2)].into_iter()), Some(3));
        assert_eq!((sum([Some(1), None].into_iter()), sum(std::iter::empty())), (None, None));
    }
}
