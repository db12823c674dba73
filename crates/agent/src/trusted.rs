//! Whose labels and annotations are heard.
//!
//! Whoever starts a container or writes a pod chooses them: a tenant, not the host's owner. So what is to others' cost counts
//! only where the host's owner named the namespace or the runtime.

use evenkeel_base::text::is_or_begins;
use evenkeel_base::{ContainerView, Observation, PodView};

/// Namespaces and runtimes that the host's owner named; nobody by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trusted {
    /// Namespaces whose pods are heard; a `*` at the end stands for anything.
    pub namespaces: Vec<String>,
    /// Runtimes whose containers are heard where they are in no pod: `docker`, `podman`, `containerd`, `cri-o`.
    pub runtimes: Vec<String>,
}

impl Trusted {
    /// Whether a pod's annotations are heard.
    pub fn hears_pod(&self, pod: &PodView) -> Result<(), String> {
        let Some(namespace) = &pod.namespace else {
            return Err("its namespace is not known".to_owned());
        };
        if self.namespaces.iter().any(|allowed| is_or_begins(namespace, allowed)) {
            return Ok(());
        }
        Err(format!("[labels] does not name the namespace {namespace}"))
    }

    /// Whether a container's labels are heard: where it is in a pod, whether the pod's are.
    pub fn hears_container(
        &self,
        container: &ContainerView,
        observation: &Observation,
    ) -> Result<(), String> {
        match container.pod.and_then(|pod| observation.pods.get(pod as usize)) {
            Some(pod) => self.hears_pod(pod),
            None if self.runtimes.contains(&container.runtime) => Ok(()),
            None => Err(format!("[labels] does not name the runtime {}", container.runtime)),
        }
    }
}
