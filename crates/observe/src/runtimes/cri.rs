//! The Kubernetes Container Runtime Interface, v1, spoken by containerd and CRI-O.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use prost::Message;

use super::connect;
use super::facts::{Address, ContainerFacts, PodFacts, RuntimeFacts, sorted};

#[allow(clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/cri_client/runtime.v1.rs"));
}

use proto::runtime_service_client::RuntimeServiceClient;

/// Pods whose addresses are asked for, of one runtime.
const MOST_ADDRESSES: usize = 64;

/// Containers and pods of the runtime at a socket; with the addresses of the pods that have this annotation.
pub(super) async fn ask(
    socket: &Path,
    within: Duration,
    located: Option<(&str, &str)>,
) -> Result<RuntimeFacts, String> {
    let mut client = RuntimeServiceClient::new(connect::cri(socket, within).await?)
        .max_decoding_message_size(connect::MOST);
    let status = |status: tonic::Status| format!("{:?}: {}", status.code(), status.message());
    let version = client.version(proto::VersionRequest::default()).await.map_err(status)?.into_inner();
    let sandboxes = client.list_pod_sandbox(proto::ListPodSandboxRequest {}).await.map_err(status)?;
    let containers = client.list_containers(proto::ListContainersRequest {}).await.map_err(status)?;
    let sandboxes = sandboxes.into_inner();
    let mut asked: Vec<(String, String)> = located
        .map(|(key, value)| {
            let has = |pod: &&proto::PodSandbox| pod.annotations.get(key).is_some_and(|is| is == value);
            let ready = |pod: &&proto::PodSandbox| pod.state() == proto::PodSandboxState::SandboxReady;
            sandboxes.items.iter().filter(ready).filter(has).filter_map(uid_and_id).collect()
        })
        .unwrap_or_default();
    asked.sort();
    let mut facts = facts(&version.runtime_name, sandboxes, containers.into_inner());
    for (uid, pod_sandbox_id) in asked.into_iter().take(MOST_ADDRESSES) {
        // One that is gone meanwhile has no address.
        let Ok(answer) = client.pod_sandbox_status(proto::PodSandboxStatusRequest { pod_sandbox_id }).await
        else {
            continue;
        };
        if let Some(pod) = facts.pods.get_mut(&uid) {
            pod.address = address(answer.into_inner().status.unwrap_or_default());
        }
    }
    Ok(facts)
}

fn uid_and_id(sandbox: &proto::PodSandbox) -> Option<(String, String)> {
    let uid = &sandbox.metadata.as_ref()?.uid;
    Some((if uid.is_empty() { &sandbox.id } else { uid }.clone(), sandbox.id.clone()))
}

fn address(status: proto::PodSandboxStatus) -> Option<Address> {
    let namespaces = status.linux.and_then(|linux| linux.namespaces).and_then(|all| all.options);
    if namespaces.is_some_and(|options| options.network() == proto::NamespaceMode::Node) {
        return Some(Address::Host);
    }
    Address::own(&status.network?.ip)
}

/// What two answers say, as they come over the wire; `None` where they are none.
pub(super) fn decode(sandboxes: &[u8], containers: &[u8]) -> Option<RuntimeFacts> {
    Some(facts("", Message::decode(sandboxes).ok()?, Message::decode(containers).ok()?))
}

fn facts(
    runtime: &str,
    sandboxes: proto::ListPodSandboxResponse,
    containers: proto::ListContainersResponse,
) -> RuntimeFacts {
    let mut facts = RuntimeFacts::default();
    let mut uid_of: HashMap<String, String> = HashMap::new();
    let ready = proto::PodSandboxState::SandboxReady;
    for sandbox in sandboxes.items {
        if sandbox.state() != ready {
            continue;
        }
        let Some((uid, id)) = uid_and_id(&sandbox) else { continue };
        let Some(metadata) = sandbox.metadata else { continue };
        let pod = PodFacts {
            namespace: metadata.namespace,
            name: metadata.name,
            annotations: sorted(sandbox.annotations),
            address: None,
        };
        facts.pods.insert(uid.clone(), pod);
        // The sandbox is a container too (the pause process).
        let pause = ContainerFacts {
            name: "pause".into(),
            runtime: runtime.to_owned(),
            labels: sorted(sandbox.labels),
            pod: Some(uid.clone()),
            address: None,
        };
        facts.containers.insert(id.clone(), pause);
        uid_of.insert(id, uid);
    }
    for container in containers.containers {
        let name = container.metadata.map_or_else(|| container.id.clone(), |metadata| metadata.name);
        let pod = uid_of.get(&container.pod_sandbox_id).cloned();
        let runtime = runtime.to_owned();
        let facts_of = ContainerFacts { name, runtime, labels: sorted(container.labels), pod, address: None };
        facts.containers.insert(container.id, facts_of);
    }
    facts
}
