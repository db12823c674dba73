//! Loads in real containers of a Docker Engine.
//!
//! No registry is needed: the image is empty (an empty tar, imported on the spot), the program and the libraries it
//! may need are bind-mounted read-only from the host. Without network and without capabilities. Progress and the gate
//! go through a page in `/dev/shm`, whose owner's lock tells the loads whether the starter still lives.

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};

use bollard::errors::Error as EngineError;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
    StartContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use evenkeel_base::CpuSet;
use futures_util::TryStreamExt;
use tokio::runtime::Runtime;

use super::{TenantError, fresh_name, is_stale};
use crate::load::LoadSpec;
use crate::page::{Page, Progress};
use crate::workload::Kind;
use crate::workload::group::Group;

/// Where pages for containers live: memory, visible to bind mounts.
pub(super) const PAGE_DIR: &str = "/dev/shm";
/// Label that carries the set's name.
const LABEL: &str = "evenkeel-lab";
/// Where program and page are inside.
const BINARY_INSIDE: &str = "/evenkeel";
const PAGE_INSIDE: &str = "/evenkeel.page";
/// Directories a dynamically linked program finds its loader and libraries in.
pub(crate) const LIBRARIES: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
/// Seconds the engine may take for one answer.
const TIMEOUT_S: u64 = 60;

/// What to start.
pub(super) struct Order<'a> {
    pub binary: &'a Path,
    pub specs: &'a [LoadSpec],
    /// One container for all rather than one each.
    pub one: bool,
    pub cpus: Option<&'a CpuSet>,
    pub engine: Option<&'a Path>,
}

/// Running containers; removed on drop, with their image and page.
#[derive(Debug)]
pub(super) struct Containers {
    engine: Engine,
    name: String,
    image: Option<String>,
    page: PathBuf,
    one: bool,
    /// Id and host pid of the first process.
    containers: Vec<(String, u32)>,
}

/// The engine's API without async: every call runs on a thread of its own, so that it works from anywhere.
#[derive(Debug)]
pub(crate) struct Engine {
    docker: Docker,
    runtime: Runtime,
}

fn refused(what: &str) -> impl Fn(EngineError) -> TenantError {
    move |error| TenantError::NoContainers(format!("{what}: {error}"))
}

impl Engine {
    /// The engine behind a socket, or the usual one.
    pub(crate) fn connect(socket: Option<&Path>) -> Result<Self, TenantError> {
        let no_answer = |error: EngineError| {
            TenantError::NoContainers(format!(
                "no Docker Engine answers ({error}); start dockerd, set DOCKER_HOST to its unix:// socket, or choose \
                 cgroups as the place"
            ))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| TenantError::system("cannot make an event loop", e))?;
        let engine = Self {
            docker: {
                // hyper wants to find the event loop when a client is made.
                let _in_runtime = runtime.enter();
                match socket {
                    Some(socket) => {
                        Docker::connect_with_unix(&socket.to_string_lossy(), TIMEOUT_S, API_DEFAULT_VERSION)
                    }
                    None => Docker::connect_with_unix_defaults(),
                }
                .map_err(no_answer)?
            },
            runtime,
        };
        let docker =
            engine.call(async |docker: Docker| docker.negotiate_version().await).map_err(no_answer)?;
        Ok(Self { docker, ..engine })
    }

    /// Does one thing with a client, and waits for it.
    pub(crate) fn call<T: Send>(&self, work: impl AsyncWork<T>) -> T {
        let docker = self.docker.clone();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| self.runtime.block_on(work.run(docker)));
            match running.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// A closure that makes a future of a client; a trait so that it can cross to another thread.
pub(crate) trait AsyncWork<T>: Send {
    fn run(self, docker: Docker) -> impl Future<Output = T>;
}

impl<T, F, R> AsyncWork<T> for F
where
    F: FnOnce(Docker) -> R + Send,
    R: Future<Output = T>,
{
    fn run(self, docker: Docker) -> impl Future<Output = T> {
        self(docker)
    }
}

impl Containers {
    /// Starts them; the loads then come up by themselves and wait at the page's gate.
    pub fn start(order: &Order<'_>, threads: u32) -> Result<(Self, Page), TenantError> {
        let engine = Engine::connect(order.engine)?;
        let name = fresh_name();
        let path = Path::new(PAGE_DIR).join(&name);
        let page = Page::create(&path, threads)?;
        let mut set = Self { engine, name, image: None, page: path, one: order.one, containers: Vec::new() };
        page.lock_as_owner().map_err(|e| TenantError::system("cannot lock the progress page", e))?;
        set.sweep()?;
        set.make_image()?;
        for (index, arguments) in arguments(order).into_iter().enumerate() {
            set.run(order, index, arguments)?;
        }
        Ok((set, page))
    }

    /// Removes containers of starters that are dead.
    fn sweep(&self) -> Result<(), TenantError> {
        let filters = HashMap::from([("label", vec![LABEL])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found = self
            .engine
            .call(async move |docker: Docker| docker.list_containers(Some(options)).await)
            .map_err(refused("cannot list containers"))?;
        for container in found {
            let owner = container.labels.unwrap_or_default().remove(LABEL).unwrap_or_default();
            if is_stale(&owner)
                && let Some(id) = container.id
            {
                self.remove(&id);
                self.remove_image(&image_of(&owner));
            }
        }
        Ok(())
    }

    fn remove(&self, id: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let gone =
            self.engine.call(async move |docker: Docker| docker.remove_container(id, Some(options)).await);
        if let Err(error) = gone {
            tracing::warn!("cannot remove container {id}: {error}");
        }
    }

    fn remove_image(&self, image: &str) {
        let options = RemoveImageOptionsBuilder::new().force(true).build();
        let gone = self
            .engine
            .call(async move |docker: Docker| docker.remove_image(image, Some(options), None).await);
        if let Err(error) = gone {
            tracing::warn!("cannot remove image {image}: {error}");
        }
    }

    fn make_image(&mut self) -> Result<(), TenantError> {
        let options = CreateImageOptionsBuilder::new().from_src("-").repo(&self.name).tag("empty").build();
        // An empty tar is two blocks of zeros.
        let tar = bollard::body_full(vec![0; 1024].into());
        let steps = self.engine.call(async move |docker: Docker| {
            docker.create_image(Some(options), Some(tar), None).try_collect::<Vec<_>>().await
        });
        steps.map_err(refused("cannot import an empty image"))?;
        self.image = Some(image_of(&self.name));
        Ok(())
    }

    fn run(&mut self, order: &Order<'_>, index: usize, command: Vec<String>) -> Result<(), TenantError> {
        let binary = fs::canonicalize(order.binary)
            .map_err(|e| TenantError::system(order.binary.display().to_string(), e))?;
        let mut binds = vec![
            format!("{}:{BINARY_INSIDE}:ro", binary.display()),
            format!("{}:{PAGE_INSIDE}", self.page.display()),
        ];
        binds.extend(
            LIBRARIES.iter().filter(|dir| Path::new(dir).is_dir()).map(|dir| format!("{dir}:{dir}:ro")),
        );
        let host_config = HostConfig {
            binds: Some(binds),
            network_mode: Some("none".into()),
            cap_drop: Some(vec!["ALL".into()]),
            cpuset_cpus: order.cpus.map(ToString::to_string),
            ..HostConfig::default()
        };
        let body = ContainerCreateBody {
            image: self.image.clone(),
            entrypoint: Some(vec![BINARY_INSIDE.into()]),
            cmd: Some(command),
            labels: Some(HashMap::from([(LABEL.to_owned(), self.name.clone())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(&format!("{}-{index}", self.name)).build();
        let made = self
            .engine
            .call(async move |docker: Docker| docker.create_container(Some(options), body).await)
            .map_err(refused("cannot create a container"))?;
        // Known from here on, so that it is removed whatever happens next.
        self.containers.push((made.id.clone(), 0));
        let id = made.id.as_str();
        let state = self
            .engine
            .call(async move |docker: Docker| {
                docker.start_container(id, None::<StartContainerOptions>).await?;
                docker.inspect_container(id, None::<InspectContainerOptions>).await
            })
            .map_err(refused("cannot start a container"))?
            .state;
        let pid = state.and_then(|s| s.pid).and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let Some(pid) = pid else {
            return Err(TenantError::NoContainers(format!("container {id} ended at once")));
        };
        if let Some(last) = self.containers.last_mut() {
            last.1 = pid;
        }
        Ok(())
    }

    fn of(&self, spec: usize) -> Option<&(String, u32)> {
        self.containers.get(if self.one { 0 } else { spec })
    }

    /// Id of the container a load runs in.
    pub fn id(&self, spec: usize) -> Option<String> {
        self.of(spec).map(|(id, _)| id.clone())
    }

    /// What a load calls its process and thread, in this process's pid namespace.
    pub fn host_ids(&self, spec: usize, inside: &Progress) -> Option<(u32, u32)> {
        let init = self.of(spec)?.1;
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap_or_default();
        let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        let pid = std::iter::once(init)
            .chain(children)
            .find(|pid| inner_pid(&format!("/proc/{pid}/status")) == Some(inside.pid))?;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let mut threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let tid = threads
            .find(|tid: &u32| inner_pid(&format!("/proc/{pid}/task/{tid}/status")) == Some(inside.tid))?;
        Some((pid, tid))
    }

    /// How a load ended, if its container has.
    pub fn ended(&mut self, spec: usize) -> Option<String> {
        let (id, pid) = self.of(spec)?;
        (!Path::new("/proc").join(pid.to_string()).exists()).then(|| format!("container {id} ended"))
    }

    /// Whether all have ended.
    pub fn finished(&mut self) -> bool {
        (0..self.containers.len()).all(|index| self.ended(index).is_some())
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        for (id, _) in &self.containers {
            self.remove(id);
        }
        if let Some(image) = &self.image {
            self.remove_image(image);
        }
        let _ = fs::remove_file(&self.page);
    }
}

fn image_of(name: &str) -> String {
    format!("{name}:empty")
}

/// The pid or tid in its own, innermost namespace: the last number of `NSpid` (proc(5)).
fn inner_pid(status: &str) -> Option<u32> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

/// The arguments of each container's first process.
fn arguments(order: &Order<'_>) -> Vec<Vec<String>> {
    let mut slot = 0;
    let loads: Vec<Vec<String>> = order
        .specs
        .iter()
        .map(|spec| {
            let mut spec = spec.clone();
            spec.common.progress = Some(PAGE_INSIDE.into());
            spec.common.slot = Some(slot);
            spec.common.gate = true;
            spec.common.owned = true;
            slot += spec.common.thread_count();
            spec.arguments()
        })
        .collect();
    let command = |arguments: Vec<String>| std::iter::once("load".to_owned()).chain(arguments).collect();
    if !order.one {
        return loads.into_iter().map(command).collect();
    }
    let member = loads.iter().map(|load| serde_json::Value::from(load.clone()).to_string()).collect();
    vec![command(LoadSpec::new(Kind::Group(Group { member })).arguments())]
}
