//! Loads in containers. Progress and the gate go through a page in memory, whose owner's lock tells the loads whether the
//! starter still lives.

use std::fs;
use std::path::Path;

use evenkeel_base::{CpuClaim, CpuSet, CpuWeight};
use evenkeel_workload::Kind;
use evenkeel_workload::group::Group;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::page::{Page, Progress};

use crate::launch::containers::LIBRARIES;
use crate::launch::names::fresh_name;
use crate::launch::{Container, Containers, LaunchError, Resources};
use crate::private::PrivateDir;

const PAGE: &str = "page";
/// Where its directory is inside.
const INSIDE: &str = "/evenkeel.page";

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

/// Loads in running containers; removed on drop, with their page.
#[derive(Debug)]
pub(super) struct ContainedLoads {
    containers: Containers,
    /// Of the page.
    _dir: PrivateDir,
    one: bool,
}

impl ContainedLoads {
    /// Starts them; the loads then come up by themselves and wait at the page's gate.
    pub fn start(order: &Order<'_>, threads: u32) -> Result<(Self, Page), LaunchError> {
        let mut containers = Containers::prepare(&fresh_name(), order.engine)?;
        let dir = PrivateDir::in_memory().map_err(|e| LaunchError::system("a directory for the page", e))?;
        let page = Page::create(&dir.path().join(PAGE), threads)?;
        page.lock_as_owner().map_err(|e| LaunchError::system("cannot lock the progress page", e))?;
        let binary = fs::canonicalize(order.binary)
            .map_err(|e| LaunchError::system(order.binary.display().to_string(), e))?;
        for (number, arguments) in arguments(order).into_iter().enumerate() {
            let weight = order.weights.get(number).map(|weight| CpuWeight::new(*weight));
            let shares = weight.map(|weight| CpuClaim::Weight(weight).shares());
            let container = Container {
                binary: &binary,
                arguments,
                shared: (dir.path(), Path::new(INSIDE)),
                system: &LIBRARIES,
                resources: Resources {
                    shares: shares.map(i64::from),
                    cpuset: order.cpus.map(ToString::to_string),
                    ..Resources::default()
                },
                may_nice: false,
            };
            containers.start(number, &container)?;
        }
        Ok((Self { containers, _dir: dir, one: order.one }, page))
    }

    fn container_of(&self, spec: usize) -> usize {
        if self.one { 0 } else { spec }
    }

    /// Id of the container a load runs in.
    pub fn id(&self, spec: usize) -> Option<String> {
        Some(self.containers.of(self.container_of(spec))?.0.to_owned())
    }

    /// What a load calls its process and thread, in this process's pid namespace.
    pub fn host_ids(&self, spec: usize, inside: &Progress) -> Option<(u32, u32)> {
        let init = self.containers.of(self.container_of(spec))?.1;
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
    pub fn ended(&self, spec: usize) -> Option<String> {
        self.containers.ended(self.container_of(spec))
    }

    /// Whether all have ended.
    pub fn finished(&self) -> bool {
        self.containers.finished()
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
    let page = Path::new(INSIDE).join(PAGE);
    let loads: Vec<Vec<String>> = super::gated(order.specs, &page)
        .map(|mut spec| {
            spec.common.owned = true;
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
