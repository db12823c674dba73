//! The Kubernetes Container Runtime Interface, v1, spoken by containerd and CRI-O.

use std::collections::HashMap;
use std::path::Path;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::facts::{ContainerFacts, PodFacts, RuntimeFacts, sorted};

#[allow(missing_docs, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/cri_client/runtime.v1.rs"));
}

use proto::runtime_service_client::RuntimeServiceClient;

async fn connect(socket: &Path) -> Result<RuntimeServiceClient<Channel>, String> {
    let socket = socket.to_owned();
    // The address is not used: the connector opens the socket.
    let channel = Endpoint::from_static("http://cri.invalid")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await;
    Ok(RuntimeServiceClient::new(channel.map_err(|error| error.to_string())?))
}

/// Containers and pods of the runtime at a socket.
pub(super) async fn ask(socket: &Path) -> Result<RuntimeFacts, String> {
    let mut client = connect(socket).await?;
    let status = |status: tonic::Status| format!("{:?}: {}", status.code(), status.message());
    let version = client.version(proto::VersionRequest::default()).await.map_err(status)?.into_inner();
    let sandboxes = client.list_pod_sandbox(proto::ListPodSandboxRequest {}).await.map_err(status)?;
    let containers = client.list_containers(proto::ListContainersRequest {}).await.map_err(status)?;
    Ok(facts(&version.runtime_name, sandboxes.into_inner(), containers.into_inner()))
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
        let Some(metadata) = sandbox.metadata.clone() else { continue };
        let pod = PodFacts {
            namespace: metadata.namespace,
            name: metadata.name,
            annotations: sorted(sandbox.annotations),
        };
        let uid = if metadata.uid.is_empty() { sandbox.id.clone() } else { metadata.uid };
        facts.pods.insert(uid.clone(), pod);
        // The sandbox is a container too (the pause process).
        let pause = ContainerFacts {
            name: "pause".into(),
            runtime: runtime.to_owned(),
            labels: sorted(sandbox.labels),
            pod: Some(uid.clone()),
        };
        facts.containers.insert(sandbox.id.clone(), pause);
        uid_of.insert(sandbox.id, uid);
    }
    for container in containers.containers {
        let name = container.metadata.map_or_else(|| container.id.clone(), |metadata| metadata.name);
        let pod = uid_of.get(&container.pod_sandbox_id).cloned();
        let runtime = runtime.to_owned();
        let facts_of = ContainerFacts { name, runtime, labels: sorted(container.labels), pod };
        facts.containers.insert(container.id, facts_of);
    }
    facts
}
