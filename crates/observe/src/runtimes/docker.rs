//! The Docker Engine API, spoken by Docker and Podman.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::engine::Engine;
use super::facts::{Address, ContainerFacts, PodFacts, RuntimeFacts, sorted};

/// Labels the kubelet's Docker shim puts on its containers.
const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// What the engine says of a container, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    id: Option<String>,
    names: Option<Vec<String>>,
    labels: Option<HashMap<String, String>>,
    host_config: Option<HostConfig>,
    network_settings: Option<NetworkSettings>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    network_mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NetworkSettings {
    networks: Option<HashMap<String, Network>>,
}

#[derive(Deserialize)]
struct Network {
    #[serde(rename = "IPAddress")]
    ip_address: Option<String>,
    #[serde(rename = "GlobalIPv6Address")]
    global_ipv6_address: Option<String>,
}

/// The running containers of the daemon at a socket.
pub(super) fn ask(runtime: &str, socket: &Path, within: Duration) -> Result<RuntimeFacts, String> {
    let until = Instant::now() + within;
    let engine = Engine::connect(socket, within)?;
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let body = engine.ask("GET", "/containers/json", None, left)?;
    Ok(facts(runtime, serde_json::from_slice(&body).map_err(|error| error.to_string())?))
}

/// What an answer says, as it comes in the body; `None` where it is none.
pub(super) fn decode(body: &[u8]) -> Option<RuntimeFacts> {
    Some(facts("", serde_json::from_slice(body).ok()?))
}

fn facts(runtime: &str, list: Vec<Container>) -> RuntimeFacts {
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
        let name = own_name(&container.names.unwrap_or_default()).unwrap_or_else(|| id.clone());
        let labels = sorted(labels);
        let runtime = runtime.to_owned();
        facts.containers.insert(id, ContainerFacts { name, runtime, labels, pod, address });
    }
    facts
}

/// Of a container that others are linked to, what they call it is among its names, too, and may come first: `/app/db`.
fn own_name(names: &[String]) -> Option<String> {
    let names = || names.iter().map(|name| name.trim_start_matches('/'));
    names().find(|name| !name.contains('/')).or_else(|| names().next()).map(str::to_owned)
}

/// Of several networks the first by name, so that it stays the same.
fn address(container: &Container) -> Option<Address> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linked_containers_call_it_is_not_its_name() {
        let name = |names: &str| {
            let told = decode(format!("[{{\"Id\":\"4f\",\"Names\":{names}}}]").as_bytes()).unwrap();
            told.containers["4f"].name.clone()
        };
        assert_eq!(name("[\"/app/db\",\"/shop-db-1\"]"), "shop-db-1");
        assert_eq!((name("[\"/web\"]"), name("[\"web\"]")), ("web".to_owned(), "web".to_owned()));
        assert_eq!(name("[\"/app/db\"]"), "app/db");
        assert_eq!((name("[]"), name("null")), ("4f".to_owned(), "4f".to_owned()));
    }
}
