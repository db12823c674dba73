//! Lengths of containers' waits for a CPU, for the history, where that was asked for.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use evenkeel_base::{Histogram, Observation};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Probe, Waited, Watch, WatchOptions};
use evenkeel_kernfs::Root;
use evenkeel_kernfs::mountinfo::Hierarchy;

/// The programs have room for some hundred cgroups, ended ones included, and know them by an address that the kernel may
/// use again: they are started anew this often, ...
const AGE: Duration = Duration::from_secs(600);
/// ... or when there was no room, but not sooner than this.
const LEAST_AGE: Duration = Duration::from_secs(60);

/// The programs at work.
#[derive(Debug)]
pub(crate) struct Lengths {
    probe: Probe,
    last: Waited,
    started: Instant,
    crowded: bool,
}

impl Lengths {
    /// Loads the programs.
    pub fn start() -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let probe = Probe::start(&types, &Watch::All, &WatchOptions::default())?;
        Ok(Self { probe, last: Waited::default(), started: Instant::now(), crowded: false })
    }

    /// Waits that ended since the last call, by container's name.
    pub fn take(
        &mut self,
        root: &Root,
        cpu: Option<&Hierarchy>,
        observation: &Observation,
    ) -> Result<BTreeMap<String, Histogram>, BpfError> {
        let now = self.probe.waited()?;
        let owners = owners(root, cpu, observation);
        let mut waits: BTreeMap<String, Histogram> = BTreeMap::new();
        for (id, histogram) in now.since(&self.last) {
            self.crowded |= id.is_none();
            let Some(name) = id.and_then(|id| owners.get(&id)) else { continue };
            waits.entry((*name).to_owned()).or_default().merge(&histogram);
        }
        self.last = now;
        let age = self.started.elapsed();
        if age > AGE || (self.crowded && age > LEAST_AGE) {
            *self = Self::start()?;
        }
        Ok(waits)
    }
}

/// Containers' names by the inode number of each cgroup that has tasks of theirs.
fn owners<'a>(root: &Root, cpu: Option<&Hierarchy>, observation: &'a Observation) -> HashMap<u64, &'a str> {
    let Some(cpu) = cpu else { return HashMap::new() };
    let mut groups: BTreeMap<u32, &str> = BTreeMap::new();
    for task in &observation.tasks {
        let container = task.container.and_then(|at| observation.containers.get(at as usize));
        if let (Some(group), Some(container)) = (task.group, container) {
            groups.entry(group).or_insert(&container.name);
        }
    }
    let inode = |group: u32| {
        let path = &observation.groups.get(group as usize)?.path;
        Some(std::fs::metadata(root.path(cpu.dir(path))).ok()?.ino())
    };
    groups.into_iter().filter_map(|(group, name)| Some((inode(group)?, name))).collect()
}
