//! What is tried: kinds of tenants, how many, how set up. Pure.

use std::fmt;
use std::time::Duration;

use evenkeel_base::text::count;
use serde::{Deserialize, Serialize};

use crate::net::figures::split;
use crate::net::measure::Timing;
use crate::net::tools::Traffic;
use crate::net::wiring::Nic;
use crate::vm::machine::Accel;
use crate::vm::nic::VmNic;

/// A cell's wiring and processes, made and taken down, seconds; measured: 0.03.
const CELL_S: f64 = 0.1;
/// The same for each namespace or group more, seconds; measured: 0.01.
const TENANT_S: f64 = 0.02;
/// The same for each machine, emulated: it boots.
const MACHINE_S: f64 = 12.0;

evenkeel_base::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    TenantsNet = "tenants-net",
    TenantsCpu = "tenants-cpu",
}
}

impl Which {
    /// What it shows, one sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::TenantsNet => {
                "flows to 1, 2, 4 .. tenants (namespaces, machines): throughput, latency, load, bias"
            }
            Self::TenantsCpu => {
                "CPU-bound tenants (cgroups, containers, machines), equal and unequal weights"
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    pub which: Which,
    /// Numbers of tenants in namespaces (or cgroups).
    pub tenants: Vec<usize>,
    pub nics: Vec<Nic>,
    /// Numbers of virtual machines; empty for none.
    pub vms: Vec<usize>,
    /// How machines are connected (`tenants-net`).
    #[serde(default = "virtio_only")]
    pub vm_nics: Vec<VmNic>,
    /// Numbers of containers of a Docker Engine (`tenants-cpu`); empty for none.
    #[serde(default)]
    pub containers: Vec<usize>,
    /// What sends and answers (`tenants-net`).
    #[serde(default)]
    pub traffic: Traffic,
    /// vCPUs of a machine.
    pub vcpus: Vec<u32>,
    /// Receive packet steering off, on, or both.
    pub rps: Vec<bool>,
    /// Number of flows, over all tenants.
    pub flows: u32,
    pub timing: Timing,
    /// How often, everything started again.
    pub repetitions: u32,
    /// What runs guests' instructions; `None`: KVM where it boots one.
    pub accel: Option<Accel>,
    pub quick: bool,
}

fn virtio_only() -> Vec<VmNic> {
    vec![VmNic::Virtio]
}

evenkeel_base::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// No tenant: a server on the host.
    BareMetal = "bare metal",
    /// A namespace, by a veth pair.
    Veth = "veth",
    Macvlan = "macvlan",
    /// A cgroup (CPU only).
    Cgroup = "cgroup",
    /// A container of a Docker Engine (CPU only).
    Container = "container",
    /// A virtual machine, by virtio-net on a tap device (`tenants-net`), in a cgroup (`tenants-cpu`).
    Vm = "vm",
    /// A virtual machine, by virtio-net on a macvtap (`tenants-net`).
    VmMacvtap = "vm by macvtap",
    /// A virtual machine, by virtio-net on a virtual function of a network card (`tenants-net`).
    VmVf = "vm by VF",
}
}

impl Kind {
    /// How a machine is connected; `None` for what is none.
    pub fn vm_nic(self) -> Option<VmNic> {
        match self {
            Self::Vm => Some(VmNic::Virtio),
            Self::VmMacvtap => Some(VmNic::Macvtap),
            Self::VmVf => Some(VmNic::Vf),
            Self::BareMetal | Self::Veth | Self::Macvlan | Self::Cgroup | Self::Container => None,
        }
    }
}

/// One set-up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    pub kind: Kind,
    pub tenants: usize,
    /// vCPUs of each, for virtual machines; threads of each, for `tenants-cpu`.
    pub vcpus: Option<u32>,
    /// Receive packet steering is on (`tenants-net`).
    pub rps: bool,
    /// Weights, one each (`tenants-cpu`); empty otherwise.
    pub weights: Vec<u64>,
    /// Everything on one CPU (`tenants-cpu`): weights act exactly there, see the study.
    pub one_cpu: bool,
}

impl Point {
    /// The line of a chart it is on: everything but the number of tenants.
    pub fn series(&self) -> String {
        let mut name = self.kind.to_string();
        if let Some(vcpus) = self.vcpus {
            let what = if self.kind.vm_nic().is_some() { "vCPU" } else { "thread" };
            name += &format!(", {}", count(vcpus as usize, what));
        }
        if self.rps {
            name += ", RPS";
        }
        if !self.weights.is_empty() {
            let equal = self.weights.windows(2).all(|pair| pair[0] == pair[1]);
            name += if equal { ", equal weights" } else { ", weights " };
            if !equal {
                name += &ratio(&self.weights);
            }
            name += if self.one_cpu { ", one CPU" } else { ", all CPUs" };
        }
        name
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.tenants, self.series())
    }
}

/// `1:2` for 100 and 200.
fn ratio(weights: &[u64]) -> String {
    let least = weights.iter().copied().min().unwrap_or(1).max(1);
    let parts: Vec<String> = weights
        .iter()
        .map(|w| {
            if w % least == 0 { (w / least).to_string() } else { format!("{:.2}", *w as f64 / least as f64) }
        })
        .collect();
    parts.join(":")
}

impl Options {
    /// The source's sweep, scaled to this host. Virtual machines only where they may be expected to be done in time:
    /// not in the short form, for emulated ones take seconds to boot.
    pub fn defaults(which: Which, quick: bool, cpus: u32) -> Self {
        let window = |ms| Timing {
            warmup: Duration::from_millis(if quick { 200 } else { 500 }),
            window: Duration::from_millis(ms),
            windows: if quick { 2 } else { 4 },
        };
        let doubling =
            |most: usize| std::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |n| *n <= most);
        let most = (8 * cpus as usize).clamp(4, 64);
        Self {
            which,
            tenants: match which {
                Which::TenantsNet => doubling(most).collect(),
                Which::TenantsCpu => vec![2, 4],
            },
            nics: if quick { vec![Nic::None, Nic::Veth] } else { vec![Nic::None, Nic::Veth, Nic::Macvlan] },
            vms: if quick { Vec::new() } else { doubling(2 * cpus as usize).filter(|n| *n <= 16).collect() },
            vm_nics: if quick { virtio_only() } else { vec![VmNic::Virtio, VmNic::Macvtap] },
            containers: if quick || which == Which::TenantsNet { Vec::new() } else { vec![2, 4] },
            traffic: Traffic::Rr,
            vcpus: if quick { vec![1] } else { vec![1, cpus.max(2)] },
            rps: vec![false, true],
            flows: (2 * most) as u32,
            timing: window(400),
            repetitions: if quick { 2 } else { 3 },
            accel: None,
            quick,
        }
    }

    /// The points, in order.
    pub fn points(&self) -> Result<Vec<Point>, String> {
        if self.repetitions == 0 || self.timing.windows == 0 {
            return Err("at least one repetition and one window".into());
        }
        let name = self.traffic.name();
        if self.traffic != Traffic::Rr && self.which == Which::TenantsCpu {
            return Err(format!("tenants-cpu has no traffic: leave out {name}"));
        }
        if self.traffic != Traffic::Rr && !self.vms.is_empty() {
            return Err(format!(
                "{name} is not in the machines, which hold evenkeel alone: leave out machines, or use rr"
            ));
        }
        let points = match self.which {
            Which::TenantsNet => self.net_points()?,
            Which::TenantsCpu => self.cpu_points(),
        };
        if points.is_empty() {
            return Err("nothing is to be tried: no tenants and no virtual machines".into());
        }
        if let Some(point) = points.iter().find(|point| point.tenants == 0) {
            return Err(format!("{point}: at least one tenant"));
        }
        Ok(points)
    }

    /// How long all of it is expected to take, seconds, report included; `None` of what makes no sense.
    pub fn planned_s(&self) -> Option<f64> {
        let timing = &self.timing;
        let measured_s =
            timing.warmup.as_secs_f64() + timing.window.as_secs_f64() * f64::from(timing.windows);
        let cell = |point: &Point| {
            let each = if point.kind.vm_nic().is_some() { MACHINE_S } else { TENANT_S };
            Some(CELL_S + measured_s + each * point.tenants as f64)
        };
        crate::runner::all_s(self.points().ok()?.iter().map(cell), self.repetitions)
    }

    fn net_points(&self) -> Result<Vec<Point>, String> {
        let mut points = Vec::new();
        let base = Point {
            kind: Kind::BareMetal,
            tenants: 1,
            vcpus: None,
            rps: false,
            weights: Vec::new(),
            one_cpu: false,
        };
        for &rps in &self.rps {
            for nic in &self.nics {
                let kind = match nic {
                    Nic::None => Kind::BareMetal,
                    Nic::Veth => Kind::Veth,
                    Nic::Macvlan => Kind::Macvlan,
                };
                let counts: &[usize] = if kind == Kind::BareMetal { &[1] } else { &self.tenants };
                points.extend(counts.iter().map(|&tenants| Point { kind, tenants, rps, ..base.clone() }));
            }
            for nic in &self.vm_nics {
                let kind = match nic {
                    VmNic::Virtio => Kind::Vm,
                    VmNic::Macvtap => Kind::VmMacvtap,
                    VmNic::Vf => Kind::VmVf,
                };
                for &vcpus in &self.vcpus {
                    let vm =
                        |&tenants: &usize| Point { kind, tenants, vcpus: Some(vcpus), rps, ..base.clone() };
                    points.extend(self.vms.iter().map(vm));
                }
            }
        }
        for point in &points {
            split(self.flows, point.tenants)?;
        }
        Ok(points)
    }

    /// Equal weights for each number of tenants, and 1:2 for two. On one CPU with one thread each, and on all CPUs with
    /// as many threads each as there are CPUs: with fewer a weight above its fair share of CPUs could not be used.
    fn cpu_points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        let all = self.vcpus.iter().copied().max().unwrap_or(1);
        let kinds =
            [(Kind::Cgroup, &self.tenants), (Kind::Container, &self.containers), (Kind::Vm, &self.vms)];
        for (kind, counts) in kinds {
            for (one_cpu, vcpus) in [(true, 1), (false, all)] {
                let mut sets: Vec<Vec<u64>> =
                    counts.iter().filter(|n| **n > 1).map(|n| vec![100; *n]).collect();
                if counts.iter().any(|n| *n >= 2) {
                    sets.push(vec![100, 200]);
                }
                points.extend(sets.into_iter().map(|weights| Point {
                    kind,
                    tenants: weights.len(),
                    vcpus: Some(vcpus),
                    rps: false,
                    weights,
                    one_cpu,
                }));
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_sweep_is_the_sources_scaled_to_the_host() {
        let options = Options::defaults(Which::TenantsNet, false, 2);
        assert_eq!(
            (options.tenants.as_slice(), options.vms.as_slice()),
            (&[1, 2, 4, 8, 16][..], &[1, 2, 4][..])
        );
        assert_eq!(options.flows, 32);
        let points = options.points().unwrap();
        // RPS off and on: bare metal, 5 veth, 5 macvlan, 3 machines of 1 and of 2 vCPUs by tap and by macvtap.
        assert_eq!(points.len(), 2 * (1 + 5 + 5 + 12));
        assert_eq!(points[1].to_string(), "1 x veth");
        // The source's host: 12 threads, 64 tenants, 128 flows.
        let source = Options::defaults(Which::TenantsNet, false, 12);
        assert_eq!((source.tenants.last(), source.flows), (Some(&64), 128));
    }

    #[test]
    fn machines_take_their_time_to_boot_however_they_are_connected() {
        let of = |nic| {
            let options = Options::defaults(Which::TenantsNet, false, 2);
            Options { vm_nics: vec![nic], ..options }.planned_s().unwrap()
        };
        assert_eq!(of(VmNic::Macvtap), of(VmNic::Virtio));
    }

    #[test]
    fn equal_and_unequal_weights_are_tried_where_they_can_act() {
        let options =
            Options { vms: vec![2], containers: vec![2], ..Options::defaults(Which::TenantsCpu, true, 2) };
        let names: Vec<String> = options.points().unwrap().iter().map(ToString::to_string).collect();
        assert!(names.contains(&"2 x cgroup, 1 thread, weights 1:2, one CPU".to_owned()), "{names:?}");
        assert!(names.contains(&"2 x vm, 1 vCPU, weights 1:2, one CPU".to_owned()), "{names:?}");
        for weights in ["equal weights", "weights 1:2"] {
            let name = format!("2 x container, 1 thread, {weights}, all CPUs");
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        assert!(names.contains(&"4 x cgroup, 1 thread, equal weights, one CPU".to_owned()), "{names:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Options::defaults(Which::TenantsNet, true, 2);
        assert!(Options { flows: 7, ..good.clone() }.points().unwrap_err().contains("do not divide"));
        assert!(Options { repetitions: 0, ..good.clone() }.points().is_err());
        assert!(Options { tenants: vec![0], ..good.clone() }.points().is_err());
        let foreign = Options { traffic: Traffic::Netperf, ..good.clone() };
        assert!(foreign.points().is_ok());
        assert!(Options { vms: vec![2], ..foreign }.points().unwrap_err().contains("leave out machines"));
        let cpu = Options::defaults(Which::TenantsCpu, true, 2);
        assert!(Options { traffic: Traffic::Iperf3, ..cpu }.points().unwrap_err().contains("no traffic"));
        assert!(Options { nics: vec![], ..good }.points().unwrap_err().contains("nothing"));
    }
}
