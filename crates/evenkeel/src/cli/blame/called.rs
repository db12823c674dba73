//! What victims and culprits are called. A cgroup that lives for some seconds may be gone when its time is read: names are
//! kept.

use std::collections::{BTreeMap, HashMap, HashSet};

use evenkeel_base::{Observation, VmView, is_at_or_below};
use evenkeel_bpf::why::Culprit;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_linux::{Root, machine};

use super::Taker;
use crate::cli::why::Names;

/// Names kept of cgroups that are gone.
const MOST: usize = 4096;

/// A cgroup that is or was there.
#[derive(Debug, Clone)]
struct Known {
    path: String,
    /// As [`crate::cli::listen`] names owners: a virtual machine's name, a container's pod and name, else the cgroup's path.
    title: String,
}

/// cgroups by the inode number of their directory.
#[derive(Debug, Default)]
pub(super) struct Called {
    known: HashMap<u64, Known>,
    paths: HashSet<String>,
}

impl Called {
    /// Takes note of cgroups with paths that were not there before.
    pub fn learn_new(&mut self, cpu: Option<&Hierarchy>, observation: &Observation) {
        if observation.groups.iter().any(|group| !self.paths.contains(&group.path)) {
            self.learn(cpu, observation, false);
        }
    }

    /// Takes note of all cgroups: one may have been made again under its old path.
    pub fn learn_all(&mut self, cpu: Option<&Hierarchy>, observation: &Observation) {
        self.learn(cpu, observation, true);
    }

    fn learn(&mut self, cpu: Option<&Hierarchy>, observation: &Observation, all: bool) {
        let names =
            Names::read_some(&Root::host(), cpu, observation, |path| all || !self.paths.contains(path));
        let machines = machines(observation);
        if self.known.len() > MOST {
            self.known.clear();
        }
        for (id, path) in names.all() {
            let container = names.container(path).and_then(|at| observation.containers.get(at));
            let title = match (machines.get(path), container) {
                (Some(machine), _) => (*machine).to_owned(),
                (None, Some(container)) => observation.container_title(container),
                (None, None) => path.to_owned(),
            };
            self.known.insert(id, Known { path: path.to_owned(), title });
        }
        self.paths = observation.groups.iter().map(|group| group.path.clone()).collect();
    }

    pub fn title(&self, id: u64) -> Option<&str> {
        self.known.get(&id).map(|known| known.title.as_str())
    }

    /// What keeps a victim from running. `ran`: by cgroup, ns since the last reading.
    pub fn taker(&self, taker: &Taker, victim: u64, ran: &BTreeMap<u64, u64>) -> String {
        match taker {
            Taker::Culprit(culprit) => self.culprit(culprit),
            Taker::Hypervisor => "the hypervisor".to_owned(),
            Taker::Quota(by) => {
                let whose = self.title(*by).map_or_else(|| "a cgroup".to_owned(), str::to_owned);
                match self.user_of(*by, victim, ran) {
                    Some(user) => format!("quota of {whose}, used up by {user}"),
                    None => format!("quota of {whose}"),
                }
            }
        }
    }

    /// Who used most of a quota; `None` if that is the victim itself.
    fn user_of(&self, quota: u64, victim: u64, ran: &BTreeMap<u64, u64>) -> Option<&str> {
        let top = &self.known.get(&quota)?.path;
        let mut users: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, ns) in ran {
            if let Some(known) = self.known.get(id).filter(|known| is_at_or_below(&known.path, top)) {
                *users.entry(&known.title).or_default() += ns;
            }
        }
        let (user, most) = users.into_iter().max_by_key(|(_, ns)| *ns)?;
        (most > 0 && Some(user) != self.title(victim) && Some(user) != self.title(quota)).then_some(user)
    }

    fn culprit(&self, culprit: &Culprit) -> String {
        let group = |id: u64| self.title(id).map_or_else(|| "ended cgroups".to_owned(), str::to_owned);
        match culprit {
            Culprit::Idle => "idle CPU waking up".to_owned(),
            Culprit::Task { kernel_thread: true, .. } => "kernel threads".to_owned(),
            Culprit::Task { cgroup, .. } => group(*cgroup),
            Culprit::Irq(..) => "interrupts".to_owned(),
            Culprit::SoftIrq(name) => format!("softirq {name}"),
            Culprit::Group(_) => "ended cgroups".to_owned(),
        }
    }
}

/// Paths of the cgroups that hold tasks of one virtual machine and no others, with its name: libvirt has one for the emulator, one
/// for each vCPU, and the machine's own above them, which may have a quota.
fn machines(observation: &Observation) -> HashMap<&str, &str> {
    if observation.vms.is_empty() {
        return HashMap::new();
    }
    let mut holds: HashMap<u32, Option<u32>> = HashMap::new();
    for task in &observation.tasks {
        if let Some(group) = task.group {
            let of = holds.entry(group).or_insert(task.vm);
            if *of != task.vm {
                *of = None;
            }
        }
    }
    let named = holds.into_iter().filter_map(|(group, vm)| {
        let group = observation.groups.get(group as usize)?;
        Some((group.path.as_str(), observation.vms.get(vm? as usize)?.name.as_str()))
    });
    let own = |vm: &VmView| observation.groups.get(vm.group? as usize).map(|group| group.path.as_str());
    let whole: HashMap<&str, &str> =
        observation.vms.iter().filter_map(|vm| Some((own(vm)?, vm.name.as_str()))).collect();
    let above = observation.groups.iter().filter_map(|group| {
        let place = machine::place(&group.path)?;
        Some((group.path.as_str(), *whole.get(place.path)?))
    });
    named.chain(above).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(groups: &[(u64, &str, &str)]) -> Called {
        let known = groups
            .iter()
            .map(|(id, path, title)| (*id, Known { path: (*path).to_owned(), title: (*title).to_owned() }));
        Called { known: known.collect(), paths: HashSet::new() }
    }

    #[test]
    fn a_quota_is_named_with_whoever_used_it_up() {
        let called = called(&[
            (1, "/", "/"),
            (2, "/pod", "/pod"),
            (3, "/pod/web", "shop/web-1/web"),
            (4, "/pod/log", "shop/web-1/log"),
            (5, "/pod/log/a", "shop/web-1/log"),
            (6, "/pods", "/pods"),
        ]);
        let name = |by, victim, ran: &[(u64, u64)]| {
            called.taker(&Taker::Quota(by), victim, &ran.iter().copied().collect())
        };
        // What runs below a neighbour counts as its own; a name that only begins alike does not.
        let ran = [(3, 30), (4, 20), (5, 20), (6, 500), (1, 500)];
        assert_eq!(name(2, 3, &ran), "quota of /pod, used up by shop/web-1/log");
        assert_eq!(name(2, 4, &ran), "quota of /pod");
        assert_eq!(name(3, 3, &ran), "quota of shop/web-1/web");
        assert_eq!(name(2, 3, &[]), "quota of /pod");
        assert_eq!(name(99, 3, &ran), "quota of a cgroup");
        assert_eq!(called.taker(&Taker::Hypervisor, 3, &BTreeMap::new()), "the hypervisor");
    }
}
