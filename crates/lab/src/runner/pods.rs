//! Tenants in pods of a CRI runtime, one each: the limits that act are those of a Kubernetes container.
//!
//! The containers' groups are made in the experiment's group, as those of plain tenants; where the runtime makes groups
//! through systemd, wherever that puts them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::RunError;
use super::groups::remove_empty;
use crate::cri::{
    Capability, ContainerConfig, ContainerMetadata, Cri, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    Setup,
};
use crate::launch::containers::{BINARY_INSIDE, LABEL, PATH};
use crate::launch::names::is_stale;
use crate::launch::{Container, Resources};

/// Kubernetes namespace the pods say they are in.
const NAMESPACE: &str = "evenkeel-lab";
/// How long a pod may take to become removable.
const REMOVE_WITHIN: Duration = Duration::from_secs(10);

/// Running pods; removed on drop.
#[derive(Debug)]
pub(super) struct Pods {
    cri: Cri,
    setup: Setup,
    image: String,
    name: String,
    /// By the tenant's number: the pod's id, and the first process of its container.
    running: HashMap<usize, (String, Option<Process>)>,
}

/// A process that may end at any time.
#[derive(Debug)]
struct Process {
    pid: u32,
    fd: OwnedFd,
}

fn refused(what: &str) -> impl Fn(String) -> RunError {
    move |error| RunError::Missing(format!("no pods for tenants: {what}{error}"))
}

/// Network and IPC of the host; processes of its own.
fn namespaces() -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: NamespaceMode::Container.into(),
        ipc: NamespaceMode::Node.into(),
    }
}

impl Pods {
    /// Connects, finds an image, and removes what dead starters left.
    pub fn prepare(name: &str) -> Result<Self, RunError> {
        let cri = Cri::connect().map_err(refused(""))?;
        let setup = cri.setup().map_err(refused(""))?;
        let image = cri.image(&setup).map_err(refused(""))?;
        for (id, starter) in cri.pods_with(LABEL).map_err(refused("cannot list pods: "))? {
            if is_stale(&starter) {
                remove(&cri, &id);
                remove_empty(&starter);
            }
        }
        Ok(Self { cri, setup, image, name: name.to_owned(), running: HashMap::new() })
    }

    /// Starts one; gives its first process.
    pub fn start(&mut self, number: usize, wanted: &Container<'_>) -> Result<u32, RunError> {
        let name = format!("{}-{number}", self.name);
        let labels = HashMap::from([(LABEL.to_owned(), self.name.clone())]);
        let pod = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                uid: name.clone(),
                name,
                namespace: NAMESPACE.into(),
                attempt: 0,
            }),
            labels: labels.clone(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: if self.setup.systemd { String::new() } else { format!("/{}", self.name) },
                security_context: Some(LinuxSandboxSecurityContext { namespace_options: Some(namespaces()) }),
            }),
        };
        let id = self.cri.run_pod(&pod).map_err(refused("cannot start a pod: "))?;
        // Known from here on, so that it is removed whatever happens next.
        self.running.insert(number, (id.clone(), None));
        let container = self.container(labels, wanted);
        let pid = self.cri.start(&id, &pod, container).map_err(refused("cannot start a container: "))?;
        let ended = || RunError::Missing(format!("the container of pod {id} ended at once"));
        let pid = pid.ok_or_else(ended)?;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(ended)?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).map_err(|_| ended())?;
        self.running.insert(number, (id, Some(Process { pid, fd })));
        Ok(pid)
    }

    fn container(&self, labels: HashMap<String, String>, wanted: &Container<'_>) -> ContainerConfig {
        let mount = |host: &Path, inside: &Path, readonly: bool| Mount {
            container_path: inside.display().to_string(),
            host_path: host.display().to_string(),
            readonly,
        };
        let (host, inside) = wanted.shared;
        let mut mounts =
            vec![mount(wanted.binary, Path::new(BINARY_INSIDE), true), mount(host, inside, false)];
        mounts.extend(wanted.system().map(|dir| mount(dir, dir, true)));
        let Resources { shares, quota, cpuset, memory } = wanted.resources.clone();
        let (cpu_quota, cpu_period) = quota.unwrap_or_default();
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: "tenant".into(), attempt: 0 }),
            image: Some(ImageSpec { image: self.image.clone() }),
            command: vec![BINARY_INSIDE.into()],
            args: wanted.arguments.clone(),
            envs: vec![KeyValue { key: "PATH".into(), value: PATH.into() }],
            mounts,
            labels,
            linux: Some(LinuxContainerConfig {
                // 0 is "not given".
                resources: Some(LinuxContainerResources {
                    cpu_shares: shares.unwrap_or_default(),
                    cpu_quota,
                    cpu_period,
                    cpuset_cpus: cpuset.unwrap_or_default(),
                    memory_limit_in_bytes: memory.unwrap_or_default(),
                }),
                security_context: Some(LinuxContainerSecurityContext {
                    capabilities: Some(Capability {
                        add_capabilities: wanted.may_nice.then(|| "SYS_NICE".into()).into_iter().collect(),
                        drop_capabilities: vec!["ALL".into()],
                    }),
                    namespace_options: Some(namespaces()),
                }),
            }),
        }
    }

    /// How a tenant ended, if it has.
    pub fn ended(&self, number: usize) -> Option<String> {
        let (id, process) = self.running.get(&number)?;
        let gone = !Path::new("/proc").join(process.as_ref()?.pid.to_string()).exists();
        gone.then(|| format!("the container of pod {} ended", id.chars().take(12).collect::<String>()))
    }

    /// Asks one to end (SIGTERM).
    pub fn ask_to_end(&self, number: usize) {
        if let Some((_, Some(process))) = self.running.get(&number) {
            // Gone already: then it has ended.
            let _ = pidfd_send_signal(&process.fd, Signal::TERM);
        }
    }
}

/// Ends and removes a pod. A container whose start was under way when its starter was killed may come up after all
/// between the two: then it is tried again.
fn remove(cri: &Cri, id: &str) {
    let until = Instant::now() + REMOVE_WITHIN;
    while let Err(error) = cri.remove_pod(id) {
        if Instant::now() >= until {
            tracing::warn!("cannot remove pod {id}: {error}");
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for (id, _) in self.running.values() {
            remove(&self.cri, id);
        }
        // In hierarchies the laboratory does not use the runtime made the experiment's group, too.
        remove_empty(&self.name);
    }
}
