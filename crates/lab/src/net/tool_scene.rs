//! Tenants in namespaces whose servers and clients are a program that is not ours, and what it measured.
//!
//! Servers run in the tenant's cgroup, whose CPU time is the tenant's. Clients run next to each other in the sender's
//! namespace and measure for themselves: they connect at the same time, but nobody starts them at one instant, and
//! netperf's warm-up is part of its figures. The window is at least a second, for neither takes fractions.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuSet, CpuTimes};
use evenkeel_linux::{Root, proc_stat};

use super::NetError;
use super::figures::split;
use super::measure::{FlowMeasured, Measured, TenantMeasured, Timing, charge, host_between, link_packets_in};
use super::scene::PORT;
use super::steering::steer;
use super::tools::{Said, Tool};
use super::wiring::{Nic, UPLINK, Wiring};
use crate::launch::group::LabGroup;
use crate::launch::names::fresh_name;
use crate::launch::{Launch, LaunchError, null, start};
use crate::mounts::CgroupMounts;
use evenkeel_linux::children::Children;
use evenkeel_workload::burn::monotonic_ns;

/// How long a server may take to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// How long clients may take beyond the time they measure.
const SLOW: Duration = Duration::from_secs(20);
/// What of a client's words is shown when it failed, characters.
const SHOWN: usize = 300;

/// Servers of a tool, in namespaces and cgroups. Gone when dropped, processes first.
#[derive(Debug)]
pub struct ToolScene {
    servers: Children,
    groups: Vec<LabGroup>,
    wiring: Wiring,
    tool: Tool,
    flows: u32,
    each: u32,
}

impl Drop for ToolScene {
    fn drop(&mut self) {
        // netserver has a child a flow, which our signals to it do not reach; the group holds no one else's.
        self.groups.iter().for_each(|group| group.cpu().kill_members());
    }
}

impl ToolScene {
    /// Wires `tenants` tenants and starts the tool's server in each; without tenants ([`Nic::None`]) one for all.
    ///
    /// # Errors
    /// The tool is not installed, flows do not divide, a server does not come up; nothing is left then.
    pub fn build(
        tool: Tool,
        nic: Nic,
        tenants: usize,
        flows: u32,
        steered: Option<&CpuSet>,
    ) -> Result<Self, NetError> {
        tool.find()?;
        let count = if nic == Nic::None { 1 } else { tenants };
        let each = split(flows, count).map_err(NetError::Parameters)?;
        if tool.flows_of_a_client(each) > tool.most_flows() {
            return Err(NetError::Parameters(format!(
                "{each} flows a tenant: iperf3 takes at most {}",
                tool.most_flows()
            )));
        }
        let wiring = Wiring::build(nic, tenants)?;
        if let Some(cpus) = steered {
            steer(&wiring.switch, UPLINK, cpus)?;
        }
        let mounts = CgroupMounts::find().map_err(LaunchError::from)?;
        let groups = (0..count)
            .map(|_| LabGroup::make(&mounts, &fresh_name()))
            .collect::<Result<Vec<_>, LaunchError>>()?;
        let orders = (0..count)
            .map(|tenant| {
                let at = SocketAddr::new(wiring.address(tenant).into(), PORT);
                let (program, words) = tool.server(at);
                Ok(Launch {
                    namespace: Some(Arc::new(wiring.namespace(tenant).handle()?)),
                    messages: Some(null()?),
                    ..Launch::new(program, words).inside(groups[tenant].entrances()?)
                })
            })
            .collect::<Result<Vec<_>, NetError>>()?;
        let servers = start(orders)?;
        let mut scene = Self { servers, groups, wiring, tool, flows, each };
        for tenant in 0..count {
            scene.wait_until_it_listens(tenant)?;
        }
        Ok(scene)
    }

    fn wait_until_it_listens(&mut self, tenant: usize) -> Result<(), NetError> {
        let until = Instant::now() + LISTENS_WITHIN;
        loop {
            let table = self.wiring.namespace(tenant).run(|| fs::read_to_string("/proc/thread-self/net/tcp"));
            if table.is_ok_and(|table| listens(&table, PORT)) {
                return Ok(());
            }
            let (program, _) = self.tool.server(SocketAddr::new(self.wiring.address(tenant).into(), PORT));
            let failed =
                |what: String| NetError::Parameters(format!("{program} for tenant {tenant}: {what}"));
            if let Some(status) = self.servers.ended(tenant) {
                return Err(failed(format!("it ended with {status} before it listened")));
            }
            if Instant::now() >= until {
                return Err(failed(format!("it does not listen after {LISTENS_WITHIN:?}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs the tool's clients once.
    ///
    /// # Errors
    /// A client failed or said what cannot be understood: what it said.
    pub fn measure(&self, timing: Timing) -> Result<Measured, NetError> {
        let seconds = timing.whole_s();
        let per_client = self.tool.flows_of_a_client(self.each);
        let clients = (self.flows / per_client.max(1)) as usize;
        let outputs = (0..clients).map(|_| Output::new()).collect::<Result<Vec<_>, _>>()?;
        let orders = (0..clients)
            .map(|client| {
                // As flows are: client c belongs to tenant c modulo the number of tenants.
                let to = SocketAddr::new(self.wiring.address(client % self.groups.len()).into(), PORT);
                let (program, words) = self.tool.client(to, per_client, seconds);
                Ok(Launch {
                    namespace: Some(Arc::new(self.wiring.sender.handle()?)),
                    output: Some(outputs[client].file()?),
                    messages: Some(outputs[client].file()?),
                    ..Launch::new(program, words)
                })
            })
            .collect::<Result<Vec<_>, NetError>>()?;
        let first = self.counters();
        let mut running = start(orders)?;
        let until = Instant::now() + Duration::from_secs(seconds.into()) + SLOW;
        while !running.finished() {
            if Instant::now() >= until {
                return Err(NetError::Parameters(format!(
                    "clients have not ended after {seconds} s and {SLOW:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let last = self.counters();
        let said = outputs
            .iter()
            .map(|output| {
                let text = output.text();
                self.tool.parse(&text).map_err(|why| {
                    let shown: String = text.chars().take(SHOWN).collect();
                    NetError::Parameters(format!("{why}; it said: {}", shown.trim()))
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(self.sum_up(f64::from(seconds), &[first, last], &said))
    }

    fn counters(&self) -> Counters {
        let links = |tenant: usize| {
            let there = self.wiring.nic != Nic::None;
            there.then(|| link_packets_in(self.wiring.namespace(tenant), "eth0")).flatten()
        };
        Counters {
            at_ns: monotonic_ns(),
            cpus: proc_stat::read(&Root::host()).ok().map(|stat| stat.cpus),
            tenants_ns: self.groups.iter().map(LabGroup::usage_ns).collect(),
            packets: (0..self.groups.len()).map(links).collect(),
        }
    }

    fn sum_up(&self, seconds: f64, [first, last]: &[Counters; 2], said: &[Said]) -> Measured {
        let count = self.groups.len();
        let wall_ns = last.at_ns.saturating_sub(first.at_ns).max(1) as f64;
        let host = host_between(first.cpus.as_deref(), last.cpus.as_deref(), wall_ns);
        let difference = |old: Option<u64>, new: Option<u64>| new?.checked_sub(old?);
        let packets: Vec<Option<u64>> =
            first.packets.iter().zip(&last.packets).map(|(old, new)| difference(*old, *new)).collect();
        let of = |tenant: usize| said.iter().skip(tenant).step_by(count);
        let all = |field: fn(&Said) -> Option<f64>, said: &mut dyn Iterator<Item = &Said>| {
            said.map(field).sum::<Option<f64>>()
        };
        let tenants = (0..count)
            .map(|tenant| TenantMeasured {
                name: if self.wiring.nic == Nic::None { "host".into() } else { format!("tenant-{tenant}") },
                flows: self.each,
                transactions_per_s: all(|s| s.transactions_per_s, &mut of(tenant)),
                mbit_per_s: all(|s| s.mbit_per_s, &mut of(tenant)),
                latency_mean_usec: mean_latency(of(tenant)),
                cpu_pct: difference(first.tenants_ns[tenant], last.tenants_ns[tenant])
                    .map(|ns| ns as f64 / wall_ns * 100.0),
                softirq_pct: charge(host.softirq_pct, &packets, tenant),
                packets: packets[tenant],
                ..TenantMeasured::default()
            })
            .collect();
        let flows = said
            .iter()
            .enumerate()
            .flat_map(|(client, said)| said.flows.iter().map(move |rate| (client % count, said, *rate)))
            .map(|(tenant, said, rate)| FlowMeasured {
                tenant,
                transactions: said.transactions_per_s.map(|_| (rate * seconds) as u64),
                mbit_per_s: said.mbit_per_s.map(|_| rate),
                latency: said.latency,
                broken: None,
            })
            .collect();
        Measured {
            seconds,
            transactions_per_s: all(|s| s.transactions_per_s, &mut said.iter()),
            mbit_per_s: all(|s| s.mbit_per_s, &mut said.iter()),
            latency_mean_usec: mean_latency(said.iter()),
            tenants,
            flows,
            host,
            ..Measured::default()
        }
    }
}

/// Mean latency over clients, weighted by their transactions; quantiles of several clients cannot be put together.
fn mean_latency<'a>(said: impl Iterator<Item = &'a Said>) -> Option<f64> {
    let pairs: Option<Vec<(f64, f64)>> =
        said.map(|said| Some((said.transactions_per_s?, said.latency?.mean_usec))).collect();
    let pairs = pairs?;
    let rates: f64 = pairs.iter().map(|(rate, _)| rate).sum();
    (rates > 0.0).then(|| pairs.iter().map(|(rate, mean)| rate * mean).sum::<f64>() / rates)
}

/// Counters at one instant.
struct Counters {
    at_ns: u64,
    cpus: Option<Vec<CpuTimes>>,
    tenants_ns: Vec<Option<u64>>,
    packets: Vec<Option<u64>>,
}

/// What a client says, in a file without a name.
struct Output(File);

impl Output {
    fn new() -> Result<Self, NetError> {
        tempfile::tempfile().map(Self).map_err(|e| NetError::system("a file for a client's output", e))
    }

    fn file(&self) -> Result<File, NetError> {
        self.0.try_clone().map_err(|e| NetError::system("a file for a client's output", e))
    }

    fn text(&self) -> String {
        // The client's descriptors share a position with this one, which reading must not move.
        let length = self.0.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}

/// Whether a socket listens on a port, from `/proc/net/tcp`: address:PORT in hexadecimal, .., state 0A.
fn listens(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found() {
        let table = "  sl  local_address rem_address   st\n   0: 0101A8C0:1CFC 00000000:0000 0A 0:0\n   \
                     1: 0101A8C0:1CFD 0201A8C0:0016 01 0:0\n";
        assert!(listens(table, 7420));
        assert!(!listens(table, 7421) && !listens(table, 22) && !listens("", 7420));
    }

    #[test]
    fn means_are_weighted_by_transactions() {
        let said = |rate, mean| Said {
            transactions_per_s: Some(rate),
            latency: Some(evenkeel_workload::flow::LatencySummary {
                mean_usec: mean,
                p50_usec: mean,
                p90_usec: mean,
                p99_usec: mean,
                p999_usec: None,
                max_usec: mean,
            }),
            ..Said::default()
        };
        // (300 * 10 + 100 * 30) / 400
        assert_eq!(mean_latency([said(300.0, 10.0), said(100.0, 30.0)].iter()), Some(15.0));
        assert_eq!(mean_latency([Said::default()].iter()), None);
    }
}
