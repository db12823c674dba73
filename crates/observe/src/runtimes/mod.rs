//! Container runtimes: who is asked, and what they said.

pub mod facts;

pub use facts::{ContainerFacts, PodFacts, RuntimeFacts};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kernfs::Root;

/// Sockets of container runtimes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Sockets that speak the Docker Engine API (Docker, Podman), with the runtime's name.
    pub docker: Vec<(String, PathBuf)>,
    /// Sockets that speak CRI v1.
    pub cri: Vec<PathBuf>,
}

impl Endpoints {
    /// Nobody.
    pub fn none() -> Self {
        Self::default()
    }

    /// Where the runtimes listen by default.
    pub fn well_known() -> Self {
        Self {
            docker: vec![
                ("docker".into(), "/run/docker.sock".into()),
                ("podman".into(), "/run/podman/podman.sock".into()),
            ],
            cri: [
                "/run/containerd/containerd.sock",
                "/run/crio/crio.sock",
                "/run/k3s/containerd/containerd.sock",
            ]
            .map(PathBuf::from)
            .into(),
        }
    }
}

/// The runtimes asked in the background.
#[derive(Debug)]
pub(crate) struct Runtimes {
    facts: Arc<RuntimeFacts>,
}

impl Runtimes {
    pub(crate) fn start(_root: &Root, _endpoints: &Endpoints) -> Self {
        Self { facts: Arc::default() }
    }

    pub(crate) fn facts(&self) -> Arc<RuntimeFacts> {
        self.facts.clone()
    }

    pub(crate) fn want(&self, _unknown: bool) {}

    pub(crate) fn wait(&self, _at_most: Duration) {}
}
