//! Tenants in namespaces with a server each, ready to be measured.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_base::CpuSet;

use super::NetError;
use super::figures::split;
use super::measure::{Measured, Served, Timing, measure};
use super::steering::steer;
use super::wiring::{Nic, UPLINK, Wiring};
use crate::tenant::{Layout, Starter, Tenants};
use evenkeel_workload::Kind;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::rr::{Role, Rr};

/// Port of the tenants' servers: each has an address of its own.
pub const PORT: u16 = 7420;

/// Running servers in namespaces. Gone when dropped, processes first.
#[derive(Debug)]
pub struct NamespaceScene {
    tenants: Tenants,
    wiring: Wiring,
    flows: u32,
}

impl NamespaceScene {
    /// Wires `tenants` tenants and starts a server in each, in a cgroup of its own, with a thread for each of its
    /// flows. Without tenants ([`Nic::None`]) there is one server for all flows. `steered` are the CPUs packets that
    /// arrive on the uplink are spread over; `None` leaves them where they arrive.
    ///
    /// # Errors
    /// See [`NetError`]; nothing is left then.
    pub fn build(
        binary: &Path,
        nic: Nic,
        tenants: usize,
        flows: u32,
        steered: Option<&CpuSet>,
    ) -> Result<Self, NetError> {
        let servers = if nic == Nic::None { 1 } else { tenants };
        let each = split(flows, servers).map_err(NetError::Parameters)?;
        let wiring = Wiring::build(nic, tenants)?;
        if let Some(cpus) = steered {
            steer(&wiring.switch, UPLINK, cpus)?;
        }
        let specs: Vec<LoadSpec> = (0..servers)
            .map(|tenant| {
                let address = SocketAddr::new(wiring.address(tenant).into(), PORT);
                let kind = Kind::Rr(Rr::new(Role::Server, address, each));
                let mut spec = LoadSpec::new(kind).named(name(nic, tenant));
                spec.common.threads = Some(each.min(4096));
                spec
            })
            .collect();
        let handles = (0..servers).map(|t| wiring.namespace(t).handle()).collect::<Result<_, _>>()?;
        let layout = if nic == Nic::None { Layout::Process } else { Layout::CgroupEach };
        let tenants = Starter::new(binary, layout).in_namespaces(handles).hold(&specs)?;
        tenants.release();
        Ok(Self { tenants, wiring, flows })
    }

    /// Measures once; the flows are new each time.
    pub fn measure(&self, timing: Timing) -> Result<Measured, NetError> {
        measure(&self.wiring.sender, &self.served(), self.flows, timing)
    }

    fn served(&self) -> Vec<Served<'_>> {
        let nic = self.wiring.nic;
        let servers = if nic == Nic::None { 1 } else { self.wiring.tenants.len() };
        (0..servers)
            .map(|tenant| {
                let mut pids: Vec<u32> =
                    self.tenants.members.iter().filter(|m| m.spec == tenant).map(|m| m.pid).collect();
                pids.dedup();
                // Inside, a tenant's link is its eth0 whatever the kind.
                let link = (nic != Nic::None).then(|| (self.wiring.namespace(tenant), "eth0".to_owned()));
                let address = SocketAddr::new(self.wiring.address(tenant).into(), PORT);
                Served { name: name(nic, tenant), address, pids, link }
            })
            .collect()
    }
}

fn name(nic: Nic, tenant: usize) -> String {
    if nic == Nic::None { "host".into() } else { format!("tenant-{tenant}") }
}
