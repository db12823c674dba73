//! Loads in real containers of a Docker Engine.
//!
//! No registry is needed: the image is empty (an empty tar, imported on the spot), the program and the libraries it
//! may need are bind-mounted read-only from the host. Without network and without capabilities. Progress and the gate
//! go through a page in memory, whose owner's lock tells the loads whether the starter still lives.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use bollard::errors::Error as EngineError;
use bollard::models::{ContainerCreateBody, HostConfig};
use evenkeel_base::{CpuSet, CpuShares, CpuWeight};

use super::TenantError;
use crate::engine::{BINARY_INSIDE, Engine, LIBRARIES};
use crate::names::{fresh_name, is_stale};
use crate::private::PrivateDir;
use evenkeel_workload::Kind;
use evenkeel_workload::group::Group;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::page::{Page, Progress};

/// The page's file.
const PAGE: &str = "page";
/// Label that carries the set's name.
const LABEL: &str = "evenkeel-lab";
/// Where the page is inside.
const PAGE_INSIDE: &str = "/evenkeel.page";

/// What to start.
pub(super) struct Order<'a> {
    pub binary: &'a Path,
    pub specs: &'a [LoadSpec],
    /// One container for all rather than one each.
    pub one: bool,
    pub cpus: Option<&'a CpuSet>,
    /// Weight of each container, as cgroup v2 counts; empty: the engine's default.
    pub weights: &'a [u64],
    pub engine: Option<&'a Path>,
}

/// Running containers; removed on drop, with their image and page.
#[derive(Debug)]
pub(super) struct Containers {
    engine: Engine,
    name: String,
    image: Option<String>,
    /// Of the page.
    dir: PrivateDir,
    one: bool,
    /// Id and host pid of the first process.
    containers: Vec<(String, u32)>,
}

fn refused(what: &str) -> impl Fn(EngineError) -> TenantError {
    move |error| TenantError::NoContainers(format!("{what}: {error}"))
}

impl Containers {
    /// Starts them; the loads then come up by themselves and wait at the page's gate.
    pub fn start(order: &Order<'_>, threads: u32) -> Result<(Self, Page), TenantError> {
        let engine = Engine::connect(order.engine)?;
        let name = fresh_name();
        let dir = PrivateDir::in_memory().map_err(|e| TenantError::system("a directory for the page", e))?;
        let page = Page::create(&dir.path().join(PAGE), threads)?;
        let mut set = Self { engine, name, image: None, dir, one: order.one, containers: Vec::new() };
        page.lock_as_owner().map_err(|e| TenantError::system("cannot lock the progress page", e))?;
        set.engine.sweep(LABEL, is_stale).map_err(refused("cannot list containers"))?;
        set.image = Some(set.engine.empty_image(&set.name).map_err(refused("cannot import an empty image"))?);
        for (index, arguments) in arguments(order).into_iter().enumerate() {
            set.run(order, index, arguments)?;
        }
        Ok((set, page))
    }

    fn run(&mut self, order: &Order<'_>, index: usize, command: Vec<String>) -> Result<(), TenantError> {
        let binary = fs::canonicalize(order.binary)
            .map_err(|e| TenantError::system(order.binary.display().to_string(), e))?;
        let mut binds = vec![
            format!("{}:{BINARY_INSIDE}:ro", binary.display()),
            format!("{}:{PAGE_INSIDE}", self.dir.path().join(PAGE).display()),
        ];
        binds.extend(
            LIBRARIES.iter().filter(|dir| Path::new(dir).is_dir()).map(|dir| format!("{dir}:{dir}:ro")),
        );
        let host_config = HostConfig {
            binds: Some(binds),
            network_mode: Some("none".into()),
            cap_drop: Some(vec!["ALL".into()]),
            cpuset_cpus: order.cpus.map(ToString::to_string),
            cpu_shares: order
                .weights
                .get(index)
                .map(|weight| u64::from(CpuShares::new(CpuWeight::new(*weight).load_weight()).get()) as i64),
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
        let name = format!("{}-{index}", self.name);
        let id = self.engine.create(&name, body).map_err(refused("cannot create a container"))?;
        // Known from here on, so that it is removed whatever happens next.
        self.containers.push((id.clone(), 0));
        let pid = self.engine.start(&id).map_err(refused("cannot start a container"))?;
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
            self.engine.remove(id);
        }
        if let Some(image) = &self.image {
            self.engine.remove_image(image);
        }
    }
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
