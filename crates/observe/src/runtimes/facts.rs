//! What runtimes say about their containers and pods.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// A container, as its runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerFacts {
    /// Name.
    pub name: String,
    /// `docker`, `podman`, `containerd`, `cri-o`.
    pub runtime: String,
    /// Labels (CRI: labels of the container).
    pub labels: Vec<(String, String)>,
    /// uid of its pod.
    pub pod: Option<String>,
}

/// A pod, as its runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
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
