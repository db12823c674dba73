//! Loads in containers. Progress and the gate go through a page in memory, whose owner's lock tells the loads whether the
//! starter still lives.

use std::fs;
use std::path::Path;

use evenkeel_base::{CpuClaim, CpuSet, CpuWeight};
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
        for (number, mut load) in super::gated(order.specs, &Path::new(INSIDE).join(PAGE)).enumerate() {
            load.common.owned = true;
            let arguments = std::iter::once("load".to_owned()).chain(load.arguments()).collect();
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
        Ok((Self { containers, _dir: dir }, page))
    }

    /// Id of the container a load runs in.
    pub fn id(&self, spec: usize) -> Option<String> {
        Some(self.containers.of(spec)?.0.to_owned())
    }

    /// What a load calls its process and thread, in this process's pid namespace.
    pub fn host_ids(&self, spec: usize, inside: &Progress) -> Option<(u32, u32)> {
        let pid = self.containers.of(spec)?.1;
        let is_it = |tid: &u32| inner_pid(&format!("/proc/{pid}/task/{tid}/status")) == Some(inside.tid);
        let tid = evenkeel_linux::process::threads(pid).into_iter().find(is_it)?;
        Some((pid, tid))
    }

    /// How a load ended, if its container has.
    pub fn ended(&self, spec: usize) -> Option<String> {
        self.containers.ended(spec)
    }
}

/// The pid or tid in its own, innermost namespace: the last number of `NSpid` (proc(5)).
fn inner_pid(status: &str) -> Option<u32> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}
