//! Waits for a CPU by length, of everybody who runs: of containers for the history, where that was asked for, and of whoever is
//! outside the scope while a trial is held and while a change that is watched is in force.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use evenkeel_base::{Histogram, Observation, TaskView};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Probe, Waited, Watch, WatchOptions};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_policy::window::Owner;

/// The programs have room for some hundred cgroups, ended ones included, and know them by an address that the kernel may
/// use again: they are started again this often, ...
const AGE: Duration = Duration::from_secs(600);
/// ... or when there was no room, but not sooner than this.
pub(crate) const LEAST_AGE: Duration = Duration::from_secs(60);

/// The programs at work.
#[derive(Debug)]
pub(crate) struct RunqLatency {
    probe: Probe,
    last: Waited,
    started: Instant,
    crowded: bool,
}

impl RunqLatency {
    /// Loads the programs.
    pub fn start() -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let probe =
            Probe::start(&types, &Watch::All, &WatchOptions { waits_only: true, ..WatchOptions::default() })?;
        Ok(Self { probe, last: Waited::default(), started: Instant::now(), crowded: false })
    }

    /// A window begins: what waits until now is not part of it.
    pub fn begin(&mut self) -> Result<(), BpfError> {
        self.renew()?;
        self.last = self.probe.waited()?;
        self.probe.begin_window(false)
    }

    /// Waits of the window that began last, by owner: those that began in it, and those that go on with their part of it. A
    /// cgroup's waits cannot be told apart by task: `None` for one of its tasks leaves it out.
    pub fn window(
        &mut self,
        cpu: &Hierarchy,
        observation: &Observation,
        owner: impl FnMut(&TaskView) -> Option<Owner>,
    ) -> Result<BTreeMap<Owner, Histogram>, BpfError> {
        let open = self.probe.open_waits()?;
        self.sum(&owners(cpu, observation, owner), open)
    }

    /// Waits that ended since the last call, by owner, as in [`Self::window`].
    pub fn take(
        &mut self,
        cpu: &Hierarchy,
        observation: &Observation,
        owner: impl FnMut(&TaskView) -> Option<Owner>,
    ) -> Result<BTreeMap<Owner, Histogram>, BpfError> {
        let waits = self.sum(&owners(cpu, observation, owner), BTreeMap::new())?;
        self.renew()?;
        Ok(waits)
    }

    fn renew(&mut self) -> Result<(), BpfError> {
        let age = self.started.elapsed();
        if age > AGE || (self.crowded && age > LEAST_AGE) {
            *self = Self::start()?;
        }
        Ok(())
    }

    fn sum(
        &mut self,
        owners: &HashMap<u64, Owner>,
        open: BTreeMap<Option<u64>, Histogram>,
    ) -> Result<BTreeMap<Owner, Histogram>, BpfError> {
        let now = self.probe.waited()?;
        let mut waits: BTreeMap<Owner, Histogram> = BTreeMap::new();
        for (id, histogram) in now.since(&self.last).chain(open) {
            self.crowded |= id.is_none();
            let Some(owner) = id.and_then(|id| owners.get(&id)) else { continue };
            waits.entry(owner.clone()).or_default().merge(&histogram);
        }
        self.last = now;
        Ok(waits)
    }
}

/// Owners by the inode number of each cgroup all of whose tasks have the same.
fn owners(
    cpu: &Hierarchy,
    observation: &Observation,
    mut owner: impl FnMut(&TaskView) -> Option<Owner>,
) -> HashMap<u64, Owner> {
    let mut groups: BTreeMap<u32, Option<Owner>> = BTreeMap::new();
    for task in observation.tasks.iter().filter(|task| !task.kernel_thread) {
        let Some(group) = task.group else { continue };
        let owner = owner(task);
        groups
            .entry(group)
            .and_modify(|all| {
                if *all != owner {
                    *all = None
                }
            })
            .or_insert(owner);
    }
    let root = Root::host();
    let inode = |group: u32| {
        let path = &observation.groups.get(group as usize)?.path;
        Some(std::fs::metadata(root.path(cpu.dir(path))).ok()?.ino())
    };
    groups.into_iter().filter_map(|(group, owner)| Some((inode(group)?, owner?))).collect()
}
