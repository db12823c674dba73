//! The Docker Engine API, spoken by Docker and Podman.

use std::path::Path;
use std::time::Duration;

use bollard::models::ContainerSummary;

use super::connect::{self, root_cause};
use super::facts::{Address, ContainerFacts, PodFacts, RuntimeFacts, sorted};

/// Labels the kubelet's Docker shim puts on its containers.
const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// The running containers of the daemon at a socket.
pub(super) async fn ask(runtime: &str, socket: &Path, timeout: Duration) -> Result<RuntimeFacts, String> {
    let docker = connect::docker(Some((socket, timeout))).await?;
    let list = docker.list_containers(None).await.map_err(|error| root_cause(&error))?;
    Ok(facts(runtime, list))
}

/// What an answer says, as it comes in the body; `None` where it is none.
pub(super) fn decode(body: &[u8]) -> Option<RuntimeFacts> {
    Some(facts("", serde_json::from_slice(body).ok()?))
}

fn facts(runtime: &str, list: Vec<ContainerSummary>) -> RuntimeFacts {
    let mut facts = RuntimeFacts::default();
    for container in list {
        let address = address(&container);
        let Some(id) = container.id else { continue };
        let labels = container.labels.unwrap_or_default();
        let pod = labels.get(POD_UID).cloned();
        if let (Some(uid), Some(name), Some(namespace)) =
            (&pod, labels.get(POD_NAME), labels.get(POD_NAMESPACE))
        {
            let (namespace, name) = (namespace.clone(), name.clone());
            let pod = PodFacts { namespace, name, annotations: Vec::new(), address: None };
            facts.pods.insert(uid.clone(), pod);
        }
        let name = container.names.unwrap_or_default().into_iter().next();
        let name = name.map_or_else(|| id.clone(), |name| name.trim_start_matches('/').to_owned());
        let labels = sorted(labels);
        let runtime = runtime.to_owned();
        facts.containers.insert(id, ContainerFacts { name, runtime, labels, pod, address });
    }
    facts
}

/// Of several networks the first by name, so that it stays the same.
fn address(container: &ContainerSummary) -> Option<Address> {
    let mode = container.host_config.as_ref().and_then(|config| config.network_mode.as_deref());
    if mode == Some("host") {
        return Some(Address::Host);
    }
    let mut networks: Vec<_> = container.network_settings.as_ref()?.networks.as_ref()?.iter().collect();
    networks.sort_by_key(|(name, _)| *name);
    networks.into_iter().find_map(|(_, network)| {
        let ips = [&network.ip_address, &network.global_ipv6_address];
        ips.into_iter().flatten().find_map(|ip| Address::own(ip))
    })
}
