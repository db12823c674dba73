//! Tenants' networks: a sender, a switch, and one namespace a tenant, wired by veth pairs and a bridge, or by macvlan.
//!
//! ```text
//!   sender                switch (plays the host)               tenant i
//!   eth0 10.77.0.1 ====== up0 ---- bridge sw0 ---- p<i> ====== eth0 10.77.1.<i>      veth
//!   eth0 10.77.0.1 ====== up0 ---- macvlan in bridge mode ---- eth0 10.77.1.<i>      macvlan
//!   eth0 10.77.0.1 ====== up0 10.77.0.2, the server runs here                        none ("bare metal")
//! ```
//!
//! `up0` stands for the host's network card: receive packet steering is set there. The switch is a namespace of its
//! own, so that neither the host's addresses nor its firewall rules matter. On the bridge netfilter is off.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::NetError;
use super::iproute::ip;
use super::namespace::Namespace;

/// Most tenants of one wiring: what fits into the addresses used.
pub const MAX_TENANTS: usize = 4000;

evenkeel_base::named! {
/// How tenants are connected.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Nic {
    /// A veth pair each, on a bridge.
    Veth = "veth",
    /// A macvlan each, in bridge mode, on the uplink itself.
    Macvlan = "macvlan",
    /// No tenant: servers run next to the uplink, the reference ("bare metal").
    None = "none",
}
}

/// A built network. Everything is gone when it is dropped and the processes inside have ended.
#[derive(Debug)]
pub struct Wiring {
    /// Where requests come from.
    pub sender: Namespace,
    /// What plays the host.
    pub switch: Namespace,
    /// One namespace a tenant, in order; empty for [`Nic::None`].
    pub tenants: Vec<Namespace>,
    /// How they are connected.
    pub nic: Nic,
}

pub const SENDER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The uplink's own address, which it has without tenants only.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The uplink in the switch's namespace.
pub const UPLINK: &str = "up0";

/// Address of a tenant, from 0.
pub fn tenant_address(tenant: usize) -> Ipv4Addr {
    let number = u16::try_from(tenant % MAX_TENANTS).unwrap_or(0) + 256 + 1;
    Ipv4Addr::new(10, 77, (number >> 8) as u8, number as u8)
}

impl Wiring {
    /// Makes namespaces and links.
    ///
    /// # Errors
    /// No right, no iproute2, a link type this kernel does not have; nothing is left then.
    pub fn build(nic: Nic, tenants: usize) -> Result<Self, NetError> {
        if tenants > MAX_TENANTS {
            return Err(NetError::Parameters(format!(
                "{tenants} tenants: at most {MAX_TENANTS} have addresses"
            )));
        }
        let sender = Namespace::make("sender")?;
        let switch = Namespace::make("switch")?;
        let count = if nic == Nic::None { 0 } else { tenants };
        let spaces =
            (0..count).map(|i| Namespace::make(format!("tenant {i}"))).collect::<Result<Vec<_>, _>>()?;
        let wiring = Self { sender, switch, tenants: spaces, nic };
        wiring.uplink()?;
        match nic {
            Nic::Veth => wiring.bridge()?,
            Nic::Macvlan => wiring.macvlans()?,
            Nic::None => {
                ip(&wiring.switch, &format!("address add {HOST}/16 dev {UPLINK}\n"))?;
            }
        }
        Ok(wiring)
    }

    /// A sender and a switch made of links of the host which are connected elsewhere (virtual functions of one card): the
    /// first becomes the sender's, the others the switch's, all switched on. When the namespaces end, the kernel gives
    /// the links back to the host, switched off as they were.
    ///
    /// # Errors
    /// As [`Wiring::build`]; a link that is not there.
    pub fn of_links(links: &[String]) -> Result<Self, NetError> {
        let [first, others @ ..] = links else {
            return Err(NetError::Parameters("no link was given".into()));
        };
        let (sender, switch) = (Namespace::make("sender")?, Namespace::make("switch")?);
        let wiring = Self { sender, switch, tenants: Vec::new(), nic: Nic::Macvlan };
        let mut lines = format!("link set dev {first} netns {}\n", in_proc(&wiring.sender));
        for link in others {
            lines += &format!("link set dev {link} netns {}\n", in_proc(&wiring.switch));
        }
        super::iproute::batch("ip", &[], None, &lines)?;
        ip(&wiring.sender, &format!("address add {SENDER}/16 dev {first}\nlink set dev {first} up\n"))?;
        let up: String = others.iter().map(|link| format!("link set dev {link} up\n")).collect();
        ip(&wiring.switch, &up)?;
        Ok(wiring)
    }

    /// Address at which a tenant's server listens; without tenants all listen on the uplink.
    pub fn address(&self, tenant: usize) -> Ipv4Addr {
        if self.nic == Nic::None { HOST } else { tenant_address(tenant) }
    }

    /// Namespace a tenant's server runs in.
    pub fn namespace(&self, tenant: usize) -> &Namespace {
        self.tenants.get(tenant).unwrap_or(&self.switch)
    }

    fn uplink(&self) -> Result<(), NetError> {
        let queues = evenkeel_linux::sys::usable_cpus().len().min(64);
        // Made here, its other end straight in the sender's namespace: a descriptor of ours is its address.
        let lines = format!(
            "link add name {UPLINK} numrxqueues {queues} numtxqueues {queues} type veth peer name eth0 netns {}\n\
             link set dev {UPLINK} up\n",
            in_proc(&self.sender)
        );
        ip(&self.switch, &lines)?;
        ip(&self.sender, &format!("address add {SENDER}/16 dev eth0\nlink set dev eth0 up\n")).map(drop)
    }

    fn bridge(&self) -> Result<(), NetError> {
        let mut lines = format!(
            "link add name sw0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0 nf_call_iptables 0 \
             nf_call_ip6tables 0 nf_call_arptables 0\nlink set dev sw0 up\nlink set dev {UPLINK} master sw0\n"
        );
        for (i, tenant) in self.tenants.iter().enumerate() {
            lines += &format!(
                "link add name p{i} type veth peer name eth0 netns {}\nlink set dev p{i} master sw0 up\n",
                in_proc(tenant)
            );
        }
        ip(&self.switch, &lines)?;
        self.addresses()
    }

    fn macvlans(&self) -> Result<(), NetError> {
        let lines: String = self
            .tenants
            .iter()
            .map(|tenant| {
                format!(
                    "link add link {UPLINK} name eth0 netns {} type macvlan mode bridge\n",
                    in_proc(tenant)
                )
            })
            .collect();
        ip(&self.switch, &lines)?;
        self.addresses()
    }

    fn addresses(&self) -> Result<(), NetError> {
        for (i, tenant) in self.tenants.iter().enumerate() {
            ip(tenant, &format!("address add {}/16 dev eth0\nlink set dev eth0 up\n", tenant_address(i)))?;
        }
        Ok(())
    }
}

/// A namespace as `ip` takes it: a path, through this process's descriptor.
fn in_proc(namespace: &Namespace) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/{}/fd/{}", std::process::id(), namespace.fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenant_has_an_address_of_its_own() {
        let all: std::collections::BTreeSet<_> = (0..MAX_TENANTS).map(tenant_address).collect();
        assert_eq!(all.len(), MAX_TENANTS);
        assert!(!all.contains(&SENDER) && !all.contains(&HOST));
        assert_eq!(tenant_address(0), Ipv4Addr::new(10, 77, 1, 1));
    }
}
