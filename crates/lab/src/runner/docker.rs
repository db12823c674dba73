//! Tenants in containers of a Docker Engine: its own limits act, as on any container.
//!
//! No registry is needed: the image is empty, and what a tenant runs is bound in read-only from the host. No network,
//! no capabilities (but the one to lower a nice value, where that is asked for).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::errors::Error as EngineError;
use bollard::models::{ContainerCreateBody, HostConfig};
use evenkeel_base::CpuShares;

use super::RunError;
use super::groups::Wanted;
use super::scratch::is_stale;
use crate::engine::{BINARY_INSIDE, Engine, LIBRARIES};

/// Label that carries the cell's name.
const LABEL: &str = "evenkeel-lab-run";
/// What commands of the host need besides libraries.
pub(super) const SYSTEM: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"];

/// `cpu.stat` as a container sees its own.
pub(super) fn cpu_stat() -> Vec<PathBuf> {
    ["cpu.stat", "cpu/cpu.stat", "cpu,cpuacct/cpu.stat"]
        .map(|file| Path::new("/sys/fs/cgroup").join(file))
        .into()
}

/// Where commands are looked for inside.
pub(super) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// One tenant to start.
pub(super) struct Request<'a> {
    pub number: usize,
    /// It is to be a pod, not a container of the Docker Engine.
    pub pod: bool,
    pub order: &'a Path,
    pub wanted: &'a Wanted,
    /// Shares or weight are v2's.
    pub v2: bool,
    /// It runs a command of the host.
    pub command: bool,
    /// Its nice value is negative.
    pub may_nice: bool,
}

/// What a container runtime is to give a tenant, in its numbers; `None`: whatever it gives unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resources {
    /// CPU shares, which the runtime converts itself on v2.
    pub shares: Option<i64>,
    /// CPU time and period, microseconds.
    pub quota: Option<(i64, i64)>,
    pub cpuset: Option<String>,
    /// Bytes.
    pub memory: Option<i64>,
}

impl Request<'_> {
    /// Its limits.
    pub fn resources(&self) -> Resources {
        let wanted = self.wanted;
        let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let shares = wanted.weight.map(|w| if self.v2 { w * 1024 / 100 } else { w });
        Resources {
            shares: shares.map(|s| i64::from(CpuShares::new(s).get())),
            quota: wanted.quota.as_ref().and_then(|q| Some((int(q.quota_usec.value()?), int(q.period_usec)))),
            cpuset: wanted.cpus.as_ref().map(ToString::to_string),
            memory: wanted.memory_bytes.map(int),
        }
    }

    /// Directories of the host that what it runs is loaded from, as far as they are there.
    pub fn system(&self) -> impl Iterator<Item = &'static Path> {
        let system: &'static [&'static str] = if self.command { &SYSTEM } else { &LIBRARIES };
        system.iter().map(Path::new).filter(|dir| dir.is_dir())
    }

    /// Arguments of this program inside.
    pub fn arguments(&self) -> Vec<String> {
        vec!["lab".into(), "tenant".into(), self.order.display().to_string()]
    }
}

/// Running containers; removed on drop, with their image.
#[derive(Debug)]
pub(super) struct Containers {
    engine: Engine,
    name: String,
    image: String,
    /// By the tenant's number: id, and the first process as the host numbers it.
    running: HashMap<usize, (String, u32)>,
}

fn refused(what: &str) -> impl Fn(EngineError) -> RunError {
    move |error| RunError::Missing(format!("no containers for tenants: {what}: {error}"))
}

impl Containers {
    /// Connects, removes what dead starters left, and makes the image.
    pub fn prepare(name: &str) -> Result<Self, RunError> {
        let engine = Engine::connect(None).map_err(|e| RunError::Missing(e.to_string()))?;
        engine.sweep(LABEL, is_stale).map_err(refused("cannot list containers"))?;
        let image = engine.empty_image(name).map_err(refused("cannot import an empty image"))?;
        Ok(Self { engine, name: name.to_owned(), image, running: HashMap::new() })
    }

    /// Starts one; gives its first process.
    pub fn start(&mut self, binary: &Path, scratch: &Path, request: &Request<'_>) -> Result<u32, RunError> {
        let mut binds = vec![
            format!("{}:{BINARY_INSIDE}:ro", binary.display()),
            format!("{}:{}", scratch.display(), scratch.display()),
        ];
        binds.extend(request.system().map(|dir| format!("{dir}:{dir}:ro", dir = dir.display())));
        let Resources { shares, quota, cpuset, memory } = request.resources();
        let host_config = HostConfig {
            binds: Some(binds),
            network_mode: Some("none".into()),
            cap_drop: Some(vec!["ALL".into()]),
            cap_add: request.may_nice.then(|| vec!["SYS_NICE".into()]),
            cpu_shares: shares,
            cpu_quota: quota.map(|(quota, _)| quota),
            cpu_period: quota.map(|(_, period)| period),
            cpuset_cpus: cpuset,
            memory,
            ..HostConfig::default()
        };
        let body = ContainerCreateBody {
            image: Some(self.image.clone()),
            entrypoint: Some(vec![BINARY_INSIDE.into()]),
            cmd: Some(request.arguments()),
            env: Some(vec![format!("PATH={PATH}")]),
            labels: Some(HashMap::from([(LABEL.to_owned(), self.name.clone())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        };
        let name = format!("{}-{}", self.name, request.number);
        let id = self.engine.create(&name, body).map_err(refused("cannot create a container"))?;
        // Known from here on, so that it is removed whatever happens next.
        self.running.insert(request.number, (id.clone(), 0));
        let pid = self.engine.start(&id).map_err(refused("cannot start a container"))?;
        let pid = pid.ok_or_else(|| RunError::Missing(format!("container {id} ended at once")))?;
        self.running.insert(request.number, (id, pid));
        Ok(pid)
    }

    /// How a tenant ended, if it has.
    pub fn ended(&self, number: usize) -> Option<String> {
        let (id, pid) = self.running.get(&number)?;
        let gone = !Path::new("/proc").join(pid.to_string()).exists();
        gone.then(|| format!("container {} ended", id.chars().take(12).collect::<String>()))
    }

    /// Asks one to end (SIGTERM).
    pub fn ask_to_end(&self, number: usize) {
        if let Some((id, _)) = self.running.get(&number) {
            self.engine.ask_to_end(id);
        }
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        for (id, _) in self.running.values() {
            self.engine.remove(id);
        }
        self.engine.remove_image(&self.image);
    }
}
