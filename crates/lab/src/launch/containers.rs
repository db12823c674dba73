//! Containers of a Docker Engine: its own limits act, as on any container.
//!
//! No registry is needed: the image is empty (an empty tar, imported on the spot), and what a container runs is bound in
//! read-only from the host. No network, no capabilities (but the one to lower a nice value, where that is asked for).

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::LaunchError;
use super::names::is_stale;
use crate::engine::Engine;

/// Where the program is inside.
pub(crate) const BINARY_INSIDE: &str = "/evenkeel";
/// Directories a dynamically linked program finds its loader and libraries in.
pub(crate) const LIBRARIES: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
/// What commands of the host need, libraries included.
pub(crate) const SYSTEM: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"];
/// Where commands are looked for inside.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Label that carries the starter's name.
pub(crate) const LABEL: &str = "evenkeel-lab";

/// What a container runtime is to give, in its numbers; `None`: whatever it gives unasked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// CPU shares, which the runtime converts itself on v2.
    pub shares: Option<i64>,
    /// CPU time and period, microseconds.
    pub quota: Option<(i64, i64)>,
    pub cpuset: Option<String>,
    /// Bytes.
    pub memory: Option<i64>,
}

/// What a container is to be, whichever runtime makes it.
#[derive(Debug)]
pub(crate) struct Container<'a> {
    /// This program, which is what runs in it.
    pub binary: &'a Path,
    pub arguments: Vec<String>,
    /// A directory of the host and where it is inside, to write to.
    pub shared: (&'a Path, &'a Path),
    /// Directories of the host that what it runs is loaded from.
    pub system: &'static [&'static str],
    pub resources: Resources,
    /// It may lower nice values.
    pub may_nice: bool,
}

impl Container<'_> {
    /// Directories of the host that what it runs is loaded from, as far as they are there.
    pub fn system(&self) -> impl Iterator<Item = &'static Path> {
        self.system.iter().map(Path::new).filter(|dir| dir.is_dir())
    }

    /// As the Docker Engine is asked for it, from this image. It takes `null` as what is not said.
    fn body(&self, image: &str, starter: &str) -> Value {
        let bind = |from: &Path, to: &Path| format!("{}:{}", from.display(), to.display());
        let mut binds = vec![
            format!("{}:ro", bind(self.binary, Path::new(BINARY_INSIDE))),
            bind(self.shared.0, self.shared.1),
        ];
        binds.extend(self.system().map(|dir| format!("{}:ro", bind(dir, dir))));
        let Resources { shares, quota, cpuset, memory } = &self.resources;
        json!({
            "Image": image,
            "Entrypoint": [BINARY_INSIDE],
            "Cmd": self.arguments,
            "Env": [format!("PATH={PATH}")],
            "Labels": { LABEL: starter },
            "HostConfig": {
                "Binds": binds,
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "CapAdd": self.may_nice.then_some(["SYS_NICE"]),
                "CpuShares": shares,
                "CpuQuota": quota.map(|(quota, _)| quota),
                "CpuPeriod": quota.map(|(_, period)| period),
                "CpusetCpus": cpuset,
                "Memory": memory,
            },
        })
    }
}

/// Running containers; removed on drop, with their image.
#[derive(Debug)]
pub(crate) struct Containers {
    engine: Engine,
    /// The starter's.
    name: String,
    image: String,
    /// By number: id, and the first process as the host numbers it.
    running: HashMap<usize, (String, u32)>,
}

fn refused(what: &str) -> impl Fn(String) -> LaunchError {
    move |error| LaunchError::NoContainers(format!("{what}: {error}"))
}

impl Containers {
    /// Connects to the engine behind a socket (the usual one unless given), removes what dead starters left, and makes the
    /// image.
    pub fn prepare(name: &str, engine: Option<&Path>) -> Result<Self, LaunchError> {
        let engine = Engine::connect(engine)?;
        engine.sweep(LABEL, is_stale).map_err(refused("cannot list containers"))?;
        let image = engine.empty_image(name).map_err(refused("cannot import an empty image"))?;
        Ok(Self { engine, name: name.to_owned(), image, running: HashMap::new() })
    }

    /// Starts one; gives its first process as the host numbers it.
    pub fn start(&mut self, number: usize, container: &Container<'_>) -> Result<u32, LaunchError> {
        let name = format!("{}-{number}", self.name);
        let body = container.body(&self.image, &self.name);
        let id = self.engine.create(&name, &body).map_err(refused("cannot create a container"))?;
        // Known from here on, so that it is removed whatever happens next.
        self.running.insert(number, (id.clone(), 0));
        let pid = self.engine.start(&id).map_err(refused("cannot start a container"))?;
        let pid = pid.ok_or_else(|| LaunchError::NoContainers(format!("container {id} ended at once")))?;
        self.running.insert(number, (id, pid));
        Ok(pid)
    }

    /// Id and first process of one, as the host numbers it.
    pub fn of(&self, number: usize) -> Option<(&str, u32)> {
        self.running.get(&number).map(|(id, pid)| (id.as_str(), *pid))
    }

    /// How one ended, if it has.
    pub fn ended(&self, number: usize) -> Option<String> {
        let (id, pid) = self.of(number)?;
        let gone = !Path::new("/proc").join(pid.to_string()).exists();
        gone.then(|| format!("container {} ended", id.chars().take(12).collect::<String>()))
    }

    /// Asks one to end (SIGTERM).
    pub fn ask_to_end(&self, number: usize) {
        if let Some((id, _)) = self.of(number) {
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
