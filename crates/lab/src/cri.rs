//! A CRI runtime (containerd, CRI-O) as the tenants of experiments use it: the runtime of a Kubernetes node, without
//! the kubelet.
//!
//! Nothing is pulled. A pod needs the runtime's own sandbox image, which a node has, and that image serves the
//! tenant's container as well: what runs is bound in read-only from the host. Pods share the host's network, so that
//! no network plugin is needed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::time::Duration;

use evenkeel_observe::runtimes::connect;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

#[allow(clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
}

use proto::image_service_client::ImageServiceClient;
use proto::runtime_service_client::RuntimeServiceClient;
pub(crate) use proto::{
    Capability, ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};

/// How long the runtime may take for one answer; making a pod is one.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Names the image of tenants' containers and pods, where the runtime does not tell its sandbox image.
const IMAGE_VARIABLE: &str = "EVENKEEL_POD_IMAGE";

/// The runtime's API without async.
#[derive(Debug)]
pub(crate) struct Cri {
    channel: Channel,
    executor: Runtime,
    socket: PathBuf,
}

/// What the runtime says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    /// The image of sandboxes, where it tells.
    pub sandbox_image: Option<String>,
    /// Groups are made through systemd.
    pub systemd: bool,
}

fn in_words(status: tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

impl Cri {
    /// The runtime of this host; the message says what is missing.
    pub fn connect() -> Result<Self, String> {
        let named = std::env::var("CONTAINER_RUNTIME_ENDPOINT").ok();
        let named = named.as_deref().map(|value| value.strip_prefix("unix://").unwrap_or(value));
        let socket = match named {
            Some(path) => PathBuf::from(path),
            None => connect::CRI_SOCKETS.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| {
                "no CRI runtime listens on its usual socket; start containerd (with its CRI plugin), or set \
                 CONTAINER_RUNTIME_ENDPOINT to its unix:// socket"
                    .to_owned()
            })?,
        };
        Self::at(&socket)
    }

    /// The runtime behind a socket.
    pub fn at(socket: &Path) -> Result<Self, String> {
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| format!("cannot make an event loop: {e}"))?;
        let channel = std::thread::scope(|scope| {
            scope
                .spawn(|| executor.block_on(connect::cri(socket, TIMEOUT)))
                .join()
                .map_err(|_| "the connecting thread died".to_owned())
        })?
        .map_err(|error| format!("{}: {error}", socket.display()))?;
        Ok(Self { channel, executor, socket: socket.to_owned() })
    }

    fn ask<T: Send>(
        &self,
        answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send,
    ) -> Result<T, String> {
        let mut answered = None;
        self.wait(pin!(async { answered = Some(answer.await) }));
        let answered = answered.ok_or_else(|| "the asking thread died".to_owned())?;
        answered.map(tonic::Response::into_inner).map_err(in_words)
    }

    /// Waits on a thread of its own, so that it works from anywhere. Whatever is waited for, so that there is one event loop in the
    /// program and not one for each kind of answer.
    fn wait(&self, work: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        let _ = std::thread::scope(|scope| scope.spawn(|| self.executor.block_on(work)).join());
    }

    fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone())
    }

    /// What the runtime says of itself; fails where it does not speak CRI v1.
    pub fn setup(&self) -> Result<Setup, String> {
        let mut client = self.runtime();
        let status = self.ask(client.status(proto::StatusRequest { verbose: true })).map_err(|e| {
            format!("{} does not speak CRI v1 (its plugin may be switched off): {e}", self.socket.display())
        })?;
        let config = status.info.get("config").and_then(|text| serde_json::from_str(text).ok());
        Ok(setup_of(config.unwrap_or(serde_json::Value::Null)))
    }

    /// An image that is there, for pods and for the containers in them.
    pub fn image(&self, setup: &Setup) -> Result<String, String> {
        let named = std::env::var(IMAGE_VARIABLE).ok().filter(|name| !name.is_empty());
        let Some(image) = setup.sandbox_image.clone().or_else(|| named.clone()) else {
            return Err(format!(
                "the runtime does not tell its sandbox image; name any image it has with {IMAGE_VARIABLE}"
            ));
        };
        for image in named.iter().chain([&image]) {
            if self.has_image(image)? {
                return Ok(image.clone());
            }
        }
        Err(format!(
            "the sandbox image {image} is not there, without which no pod starts: pull it, or import one of that name \
             (ctr --namespace k8s.io images import FILE.tar)"
        ))
    }

    fn has_image(&self, image: &str) -> Result<bool, String> {
        let mut client = ImageServiceClient::new(self.channel.clone());
        let image = Some(ImageSpec { image: image.to_owned() });
        Ok(self.ask(client.image_status(proto::ImageStatusRequest { image }))?.image.is_some())
    }

    /// Starts a pod; gives its id.
    pub fn run_pod(&self, config: &PodSandboxConfig) -> Result<String, String> {
        let mut client = self.runtime();
        let request = proto::RunPodSandboxRequest { config: Some(config.clone()) };
        Ok(self.ask(client.run_pod_sandbox(request))?.pod_sandbox_id)
    }

    /// Makes and starts a container in a pod; gives its first process as the host numbers it.
    pub fn start(
        &self,
        pod: &str,
        pod_config: &PodSandboxConfig,
        config: ContainerConfig,
    ) -> Result<Option<u32>, String> {
        let mut client = self.runtime();
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(pod_config.clone()),
        };
        let container_id = self.ask(client.create_container(request))?.container_id;
        self.ask(
            client.start_container(proto::StartContainerRequest { container_id: container_id.clone() }),
        )?;
        let request = proto::ContainerStatusRequest { container_id, verbose: true };
        Ok(pid_of(&self.ask(client.container_status(request))?.info))
    }

    /// Ends and removes a pod with its containers.
    pub fn remove_pod(&self, id: &str) -> Result<(), String> {
        let mut client = self.runtime();
        let pod_sandbox_id = id.to_owned();
        self.ask(
            client.stop_pod_sandbox(proto::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() }),
        )?;
        self.ask(client.remove_pod_sandbox(proto::RemovePodSandboxRequest { pod_sandbox_id }))?;
        Ok(())
    }

    /// Pods that have a label: id and its value.
    pub fn pods_with(&self, label: &str) -> Result<Vec<(String, String)>, String> {
        let mut client = self.runtime();
        let all = self.ask(client.list_pod_sandbox(proto::ListPodSandboxRequest {}))?;
        Ok(all.items.into_iter().filter_map(|mut pod| Some((pod.id, pod.labels.remove(label)?))).collect())
    }
}

/// From the runtime's configuration, as containerd tells it.
pub(crate) fn setup_of(config: serde_json::Value) -> Setup {
    let text = |value: &serde_json::Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let containerd = &config["containerd"];
    // Pods that name no runtime get this one.
    let runtime = containerd["defaultRuntimeName"].as_str().unwrap_or("runc");
    let of_runtime = containerd["runtimes"][runtime]["options"]["SystemdCgroup"] == true;
    Setup {
        sandbox_image: text(&config["sandboxImage"]),
        systemd: config["systemdCgroup"] == true || of_runtime,
    }
}

/// From a container's verbose status.
pub(crate) fn pid_of(info: &HashMap<String, String>) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    u32::try_from(info["pid"].as_u64()?).ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_tells_is_understood() {
        let config = serde_json::json!({
            "sandboxImage": "local/pause:1", "systemdCgroup": false,
            "containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": true}}}},
        });
        assert_eq!(setup_of(config), Setup { sandbox_image: Some("local/pause:1".into()), systemd: true });
        let other = serde_json::json!({"containerd": {
            "defaultRuntimeName": "runc",
            "runtimes": {"runc": {"options": {"SystemdCgroup": false}}, "gpu": {"options": {"SystemdCgroup": true}}},
        }});
        assert!(!setup_of(other).systemd, "pods run by the default runtime");
        let nothing = Setup { sandbox_image: None, systemd: false };
        assert_eq!(setup_of(serde_json::Value::Null), nothing);
        assert_eq!(setup_of(serde_json::json!({"sandboxImage": ""})), nothing);
        let info = |text: &str| HashMap::from([("info".to_owned(), text.to_owned())]);
        assert_eq!(pid_of(&info(r#"{"pid": 42}"#)), Some(42));
        assert_eq!(
            (pid_of(&info(r#"{"pid": 0}"#)), pid_of(&info("x")), pid_of(&HashMap::new())),
            (None, None, None)
        );
    }

    #[test]
    fn without_a_runtime_it_is_said_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let error = Cri::at(&dir.path().join("none.sock")).unwrap_err();
        assert!(error.contains("none.sock"), "{error}");
    }
}
