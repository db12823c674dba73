//! What runtimes say about their containers and pods.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// Where a pod or a container is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Address {
    /// An address of its own.
    Own(IpAddr),
    /// It is on the host's network.
    Host,
}

impl Address {
    /// One of its own as a runtime writes it. `None` where it is none, or one that cannot be a pod's: nobody's, everybody's, the
    /// host's loopback, or of a link alone (where clouds have what only the host may ask).
    pub fn own(text: &str) -> Option<Self> {
        let ip: IpAddr = text.parse().ok()?;
        let ip = ip.to_canonical();
        let is_special = match ip {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        let is_one = !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_special);
        is_one.then_some(Self::Own(ip))
    }

    /// What to connect to.
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Own(ip) => ip,
            Self::Host => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

/// A container, as its runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerFacts {
    pub name: String,
    /// `docker`, `podman`, `containerd`, `cri-o`.
    pub runtime: String,
    /// Labels (CRI: labels of the container).
    pub labels: Vec<(String, String)>,
    /// uid of its pod.
    pub pod: Option<String>,
    /// Where it is reached, where the runtime's list says it (Docker, Podman).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
}

/// A pod, as its runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub annotations: Vec<(String, String)>,
    /// Where it is reached; of those that were asked for only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
}

/// Everything the runtimes said, together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeFacts {
    /// By full container id; a sandbox (pause) container is listed with its pod too.
    pub containers: HashMap<String, ContainerFacts>,
    /// By pod uid.
    pub pods: HashMap<String, PodFacts>,
}

impl RuntimeFacts {
    /// Adds what another runtime said. Where two describe the same container, the one that knows its pod counts:
    /// CRI is asked besides Docker.
    pub fn merge(&mut self, other: Self) {
        for (id, facts) in other.containers {
            match self.containers.get(&id) {
                Some(known) if known.pod.is_some() => {}
                _ => {
                    self.containers.insert(id, facts);
                }
            }
        }
        self.pods.extend(other.pods);
    }
}

/// Pairs in a fixed order.
pub(crate) fn sorted(pairs: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort();
    pairs
}
