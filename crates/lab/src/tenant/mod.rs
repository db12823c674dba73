//! Tenants: sets of loads started together, each load a process of its own, in a place of their own.
//!
//! Nothing of them outlives its starter, as of all that is started here ([`crate::launch`]): dropping a [`Tenants`] ends
//! them. Loads in containers notice that the lock on their page is free when the starter is killed, and end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuSet, GroupRef, TaskId};
use serde::{Deserialize, Serialize};

use evenkeel_linux::children::Children;
use evenkeel_workload::burn::monotonic_ns;
use evenkeel_workload::load::{Known, LoadSampler, LoadSpec};
use evenkeel_workload::page::{Page, Progress};

mod container;

use crate::launch::group::LabGroup;
use crate::launch::names::fresh_name;
use crate::launch::{Launch, LaunchError, READY_WITHIN, start, sweep_stale};
use crate::mounts::CgroupMounts;
use container::ContainedLoads;

/// How a set of loads is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Where the starter is. With autogroup the loads share the starter's session.
    #[value(skip)]
    Process,
    /// All in one new cgroup: as processes of one pod, where `nice` acts among them.
    OneCgroup,
    /// Each in a new cgroup of its own: only weights act between them.
    CgroupEach,
    /// Each in a container of its own (needs a Docker Engine).
    ContainerEach,
}

/// One thread of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub pid: u32,
    pub tid: u32,
    /// Start time of the thread, see [`TaskId`].
    pub start_time: u64,
    pub name: String,
    /// Index of the load's spec.
    pub spec: usize,
    /// CPU time wanted, percent of ONE CPU; `None` where it takes what it gets.
    pub wanted_pct: Option<f64>,
    /// The cgroup it was put in, below the cpu controller's mount; `None` for [`Layout::Process`].
    pub cgroup: Option<GroupRef>,
    pub container: Option<String>,
}

impl Member {
    pub fn id(&self) -> TaskId {
        TaskId { tgid: self.pid, tid: self.tid, start_time: self.start_time }
    }
}

/// How to start a set.
#[derive(Debug, Clone)]
pub struct Starter {
    binary: PathBuf,
    layout: Layout,
    cpus: Option<CpuSet>,
    engine: Option<PathBuf>,
    /// Network namespace of each load; empty: that of the starter.
    namespaces: Vec<Arc<OwnedFd>>,
    /// Weight of each load's cgroup, as cgroup v2 counts; empty: left as they come.
    weights: Vec<u64>,
}

impl Starter {
    /// Runs `binary load KIND ...` for each load; normally the running program (`std::env::current_exe`).
    pub fn new(binary: impl Into<PathBuf>, layout: Layout) -> Self {
        Self {
            binary: binary.into(),
            layout,
            cpus: None,
            engine: None,
            namespaces: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Confines the loads to these CPUs by affinity.
    #[must_use]
    pub fn on_cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Uses the Docker Engine behind this socket instead of the usual one.
    #[must_use]
    pub fn engine(mut self, socket: impl Into<PathBuf>) -> Self {
        self.engine = Some(socket.into());
        self
    }

    /// Puts the loads into these network namespaces, one each, in order. Not for containers, which have their own.
    #[must_use]
    pub fn in_namespaces(mut self, namespaces: Vec<OwnedFd>) -> Self {
        self.namespaces = namespaces.into_iter().map(Arc::new).collect();
        self
    }

    /// Gives each load's cgroup a weight, in order, as cgroup v2 counts (100 is the default). Containers get the CPU shares
    /// of the same load weight, which the engine's runtime turns into what this host's cgroups count.
    #[must_use]
    pub fn weighted(mut self, weights: Vec<u64>) -> Self {
        self.weights = weights;
        self
    }

    /// Starts the processes and returns when all of them wait at the gate: none has begun its work.
    pub fn hold(&self, specs: &[LoadSpec]) -> Result<Tenants, LaunchError> {
        sweep_stale();
        for (index, spec) in specs.iter().enumerate() {
            spec.kind
                .workload()
                .check()
                .map_err(|what| LaunchError::Parameters { name: name_of(spec, index), what })?;
        }
        if specs.is_empty() {
            return Err(LaunchError::Parameters { name: "(none)".into(), what: "no load was given".into() });
        }
        let threads: u32 = specs.iter().map(|s| s.common.thread_count()).sum();
        let (running, groups, page) = match self.layout {
            Layout::ContainerEach => {
                let order = container::Order {
                    binary: &self.binary,
                    specs,
                    cpus: self.cpus.as_ref(),
                    weights: &self.weights,
                    engine: self.engine.as_deref(),
                };
                let (loads, page) = ContainedLoads::start(&order, threads)?;
                (Running::Containers(Box::new(loads)), Vec::new(), page)
            }
            Layout::Process | Layout::OneCgroup | Layout::CgroupEach => {
                let page = Page::anonymous(threads)?;
                let groups = self.groups(specs.len())?;
                let processes = start(self.launches(specs, &groups, &page)?)?;
                (Running::Processes(processes), groups, page)
            }
        };
        let mut tenants = Tenants { members: Vec::new(), running, groups, page };
        tenants.members = tenants.wait_until_up(specs, self.layout != Layout::CgroupEach)?;
        tenants.set_weights(&self.weights)?;
        Ok(tenants)
    }

    /// The processes of the loads, in order.
    fn launches(
        &self,
        specs: &[LoadSpec],
        groups: &[LabGroup],
        page: &Page,
    ) -> Result<Vec<Launch>, LaunchError> {
        let file = page.file().try_clone().map_err(|e| LaunchError::system("the progress page", e))?;
        let page: Arc<OwnedFd> = Arc::new(file.into());
        let entrances: Vec<_> = groups
            .iter()
            .map(|group| Ok(Arc::new(group.entrances()?)))
            .collect::<Result<_, LaunchError>>()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", page.as_raw_fd()));
        let loads = gated(specs, &path).enumerate().map(|(index, spec)| {
            let arguments = std::iter::once("load".to_owned()).chain(spec.arguments()).collect();
            Launch {
                entrances: entrances.get(index).or(entrances.first()).cloned().unwrap_or_default(),
                cpus: self.cpus.clone(),
                namespace: self.namespaces.get(index).cloned(),
                inherits: Some(page.clone()),
                ..Launch::new(&self.binary, arguments)
            }
        });
        Ok(loads.collect())
    }

    /// One group for all, one each, or none.
    fn groups(&self, loads: usize) -> Result<Vec<LabGroup>, LaunchError> {
        let count = match self.layout {
            Layout::OneCgroup => 1,
            Layout::CgroupEach => loads,
            Layout::Process | Layout::ContainerEach => return Ok(Vec::new()),
        };
        let mounts = CgroupMounts::find()?;
        (0..count).map(|_| LabGroup::make(&mounts, &fresh_name())).collect()
    }
}

/// What was started.
#[derive(Debug)]
enum Running {
    Processes(Children),
    Containers(Box<ContainedLoads>),
}

impl Running {
    /// How a load ended, if it has.
    fn ended(&mut self, index: usize) -> Option<String> {
        match self {
            Self::Processes(processes) => processes.ended(index).map(|status| status.to_string()),
            Self::Containers(containers) => containers.ended(index),
        }
    }
}

/// The loads as they wait at the gate of a page, each with its slots there.
fn gated(specs: &[LoadSpec], page: &Path) -> impl Iterator<Item = LoadSpec> {
    specs.iter().scan(0, |slot, spec| {
        let mut spec = spec.clone();
        spec.common.progress = Some(page.to_owned());
        spec.common.slot = Some(*slot);
        spec.common.gate = true;
        *slot += spec.common.thread_count();
        Some(spec)
    })
}

fn name_of(spec: &LoadSpec, index: usize) -> String {
    spec.common.name.clone().unwrap_or_else(|| format!("{}-{index}", spec.kind.name()))
}

/// A running set of loads. Dropping it ends them and removes what was made for them.
#[derive(Debug)]
pub struct Tenants {
    /// Every thread of every load, in the order of the specs.
    pub members: Vec<Member>,
    // Dropped in this order: processes first, then the groups they were in.
    running: Running,
    groups: Vec<LabGroup>,
    page: Page,
}

impl Tenants {
    /// Starts the loads and releases them at one instant. `binary` is what runs `load ...`.
    pub fn spawn(binary: &Path, specs: &[LoadSpec], layout: Layout) -> Result<Self, LaunchError> {
        let tenants = Starter::new(binary, layout).hold(specs)?;
        tenants.release();
        Ok(tenants)
    }

    /// Lets all loads begin, at one instant a few milliseconds from now; returns it (`CLOCK_MONOTONIC`).
    pub fn release(&self) -> u64 {
        let start = monotonic_ns() + 10_000_000;
        self.page.release(start);
        start
    }

    /// The threads whose wish for CPU time is known, for a [`LoadSampler`].
    pub fn known(&self) -> Vec<Known> {
        let known = |m: &Member| Some(Known { pid: m.pid, tid: m.tid, wanted_pct: m.wanted_pct? });
        self.members.iter().filter_map(known).collect()
    }

    /// A gauge of all threads whose wish for CPU time is known.
    pub fn gauge(&self) -> LoadSampler {
        LoadSampler::new(self.known())
    }

    /// CPU time wanted by all loads whose wish is known, percent of ONE CPU.
    pub fn wanted_pct(&self) -> f64 {
        self.members.iter().filter_map(|m| m.wanted_pct).sum()
    }

    /// What the thread of a member last told about itself, by the member's index.
    pub fn progress(&self, member: usize) -> Option<Progress> {
        self.page.read(u32::try_from(member).ok()?)
    }

    /// Gives the cgroups made for the set their weights, in order, as cgroup v2 counts (100 is the default). The
    /// groups are ours and go with the set: there is nothing to put back.
    pub fn set_weights(&self, weights: &[u64]) -> Result<(), LaunchError> {
        self.groups.iter().zip(weights).try_for_each(|(group, weight)| group.set_weight(*weight))
    }

    /// The cgroups made for the set.
    pub fn groups(&self) -> Vec<GroupRef> {
        self.groups.iter().map(LabGroup::group_ref).collect()
    }

    /// Waits until every thread has said that it is there.
    fn wait_until_up(&mut self, specs: &[LoadSpec], shared: bool) -> Result<Vec<Member>, LaunchError> {
        let until = Instant::now() + READY_WITHIN;
        let mut members = Vec::new();
        let mut slot = 0;
        for (index, spec) in specs.iter().enumerate() {
            let name = name_of(spec, index);
            let group = self.groups.get(if shared { 0 } else { index }).map(LabGroup::group_ref);
            for _ in 0..spec.common.thread_count() {
                let progress = self.wait_for_slot(slot, index, &name, until)?;
                slot += 1;
                let gone =
                    |what: io::Error| LaunchError::NotUp { name: name.clone(), what: what.to_string() };
                let (pid, tid, container) = self.locate(index, &progress).map_err(gone)?;
                let group = match &container {
                    None => group.clone(),
                    Some(_) => cgroup_of(pid),
                };
                members.push(Member {
                    pid,
                    tid,
                    start_time: evenkeel_linux::process::start_time(pid, tid).map_err(gone)?,
                    name: name.clone(),
                    spec: index,
                    wanted_pct: spec.kind.workload().wanted_pct(),
                    cgroup: group,
                    container,
                });
            }
        }
        Ok(members)
    }

    /// Pid and tid as seen from here, and the container.
    fn locate(&self, spec: usize, progress: &Progress) -> io::Result<(u32, u32, Option<String>)> {
        match &self.running {
            Running::Processes(_) => Ok((progress.pid, progress.tid, None)),
            Running::Containers(containers) => {
                let (pid, tid) = containers
                    .host_ids(spec, progress)
                    .ok_or_else(|| io::Error::other("not found among the processes of its container"))?;
                Ok((pid, tid, containers.id(spec)))
            }
        }
    }

    fn wait_for_slot(
        &mut self,
        slot: u32,
        index: usize,
        name: &str,
        until: Instant,
    ) -> Result<Progress, LaunchError> {
        loop {
            if let Some(progress) = self.page.read(slot)
                && progress.pid != 0
            {
                return Ok(progress);
            }
            let not_up = |what: String| LaunchError::NotUp { name: name.to_owned(), what };
            if let Some(status) = self.running.ended(index) {
                return Err(not_up(format!("it ended with {status}")));
            }
            if Instant::now() >= until {
                return Err(not_up(format!("nothing heard of it for {READY_WITHIN:?}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The cgroup a process is in, in the hierarchy with the cpu controller.
fn cgroup_of(pid: u32) -> Option<GroupRef> {
    let mounts = CgroupMounts::find().ok()?;
    Some(GroupRef { path: mounts.path_of(pid, pid)?, v2: mounts.is_v2() })
}
