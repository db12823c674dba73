//! Gives tasks their containers, pods and virtual machines: by cgroup path, confirmed and named by the runtimes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use evenkeel_base::{ContainerView, Observation, PodView, TaskView, VmView};
use evenkeel_linux::{Root, cmdline, machine};

use crate::ownership::{Owner, classify, machine_group};
use crate::process::TaskMeta;
use crate::runtimes::{RuntimeFacts, Runtimes};
use crate::vm;

/// How long after its appearance a container's name is asked for.
const ASK_FOR: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Owned {
    pub containers: Vec<ContainerView>,
    pub pods: Vec<PodView>,
    pub vms: Vec<VmView>,
}

/// What a process that looks like an emulator is.
#[derive(Debug, Clone)]
enum Claim {
    Machine(String),
    /// None, looked at so many times: it may just be starting.
    No(u8),
}

/// Looks at a process before it is none for good.
const LOOKS: u8 = 10;

#[derive(Debug)]
pub(crate) struct Owners {
    runtimes: Runtimes,
    /// What looks like an emulator, by main thread: tgid and start time.
    emulators: HashMap<(u32, u64), Claim>,
    /// Names that several machines claimed, told already.
    disputed: BTreeSet<String>,
    notes: Vec<String>,
    /// Containers nobody has named, with the time they were first seen.
    unnamed: HashMap<String, Instant>,
}

impl Owners {
    pub(crate) fn new(runtimes: Runtimes) -> Self {
        Self {
            runtimes,
            emulators: HashMap::new(),
            disputed: BTreeSet::new(),
            notes: Vec::new(),
            unnamed: HashMap::new(),
        }
    }

    pub(crate) fn wait(&self, at_most: Duration) {
        self.runtimes.wait(at_most);
    }

    pub(crate) fn ask_again(&self, at_most: Duration) -> bool {
        self.runtimes.ask_again(at_most)
    }

    /// What people should know, once.
    pub(crate) fn take_note(&mut self) -> Option<String> {
        self.notes.pop()
    }

    /// Fills in the owners of the tasks (`metas` in the same order) and returns them.
    pub(crate) fn assign(
        &mut self,
        root: &Root,
        tasks: &mut [TaskView],
        metas: &[Option<&TaskMeta>],
        groups: &HashMap<&str, u32>,
    ) -> Owned {
        let facts = self.runtimes.facts();
        let mut building = Building {
            facts: &facts,
            groups,
            owned: Owned::default(),
            containers: HashMap::new(),
            pods: HashMap::new(),
        };
        for (task, meta) in tasks.iter_mut().zip(metas) {
            let Some(meta) = meta else { continue };
            let owner = &meta.place.owner;
            let own_group =
                |path: &str| if meta.place.owner_in_cpu { groups.get(path).copied() } else { task.group };
            let by_path = owner.pod.as_ref().map(|pod| (pod.uid.as_str(), own_group(&pod.path)));
            if let Some(container) = &owner.container {
                let group = own_group(&container.path);
                task.container = Some(building.container(&container.id, &container.runtime, group, by_path));
            }
            task.pod = match task.container.and_then(|at| building.owned.containers[at as usize].pod) {
                Some(pod) => Some(pod),
                None => by_path.map(|(uid, group)| building.pod(uid, group)),
            };
        }
        let mut owned = building.owned;
        self.virtual_machines(root, tasks, metas, groups, &mut owned);
        self.ask_for_names(&owned);
        owned
    }

    /// Asks the runtimes again while a container without a name is new: a daemon lists it a moment after its cgroup
    /// appears. One that stays unnamed is nobody's.
    fn ask_for_names(&mut self, owned: &Owned) {
        let now = Instant::now();
        let nameless = owned.containers.iter().filter(|container| !container.confirmed);
        self.unnamed = nameless
            .map(|container| (container.id.clone(), *self.unnamed.get(&container.id).unwrap_or(&now)))
            .collect();
        self.runtimes.want(self.unnamed.values().any(|since| now.duration_since(*since) < ASK_FOR));
    }

    fn virtual_machines(
        &mut self,
        root: &Root,
        tasks: &mut [TaskView],
        metas: &[Option<&TaskMeta>],
        groups: &HashMap<&str, u32>,
        owned: &mut Owned,
    ) {
        let mut by_process: HashMap<u32, u32> = HashMap::new();
        let mut claims: BTreeMap<String, Vec<(u32, Option<u32>)>> = BTreeMap::new();
        let mut seen = HashMap::new();
        for (task, meta) in tasks.iter().zip(metas) {
            let machine = meta.and_then(|meta| meta.place.owner.machine.as_deref());
            let main = task.id.tid == task.id.tgid;
            if !main || task.kernel_thread || !(vm::may_be_emulator(&task.comm) || machine.is_some()) {
                continue;
            }
            let key = (task.id.tgid, task.id.start_time);
            let looked = match self.emulators.remove(&key) {
                Some(Claim::No(times)) if times < LOOKS => Some(times),
                Some(known) => {
                    seen.insert(key, known);
                    None
                }
                None => Some(0),
            };
            if let Some(times) = looked {
                let place = meta.map(|meta| &meta.place);
                let path = place.and_then(|place| {
                    let paths = [&place.cpu, &place.unified, &place.cpuset];
                    let path = paths.into_iter().flatten().find(|path| classify(path).machine.is_some());
                    path.map(String::as_str)
                });
                let in_container =
                    place.is_some_and(|place| place.owner.container.is_some() || place.owner.pod.is_some());
                let found = vm::Found { in_container, machine_path: path };
                let name = emulator_name(root, task.id.tgid, machine, found);
                seen.insert(key, name.map_or(Claim::No(times + 1), Claim::Machine));
            }
            if let Some(Claim::Machine(name)) = seen.get(&key) {
                // libvirt has the emulator in one group of the machine's, and each vCPU in another.
                let own = meta.and_then(|meta| groups.get(machine_group(meta.place.cpu.as_deref()?)?));
                claims.entry(name.clone()).or_default().push((task.id.tgid, own.copied().or(task.group)));
            }
        }
        self.emulators = seen;
        self.disputed.retain(|name| claims.get(name).is_some_and(|claimants| claimants.len() > 1));
        for (name, claimants) in claims {
            let [(pid, group)] = claimants.as_slice() else {
                // What is asked for one of them must not go to the other.
                if self.disputed.insert(name.clone()) {
                    let pids: Vec<String> = claimants.iter().map(|(pid, _)| pid.to_string()).collect();
                    let pids = pids.join(" and ");
                    self.notes.push(format!(
                        "processes {pids} both claim to be the virtual machine {name:?}: neither counts as one"
                    ));
                }
                continue;
            };
            by_process.insert(*pid, owned.vms.len() as u32);
            owned.vms.push(VmView { name, pid: *pid, vcpus: Vec::new(), group: *group });
        }
        for task in tasks {
            let vhost = vm::vhost_owner(&task.comm).filter(|_| task.kernel_thread);
            let Some(&at) = by_process.get(&vhost.unwrap_or(task.id.tgid)) else { continue };
            task.vm = Some(at);
            if vm::vcpu_number(&task.comm).is_some() {
                owned.vms[at as usize].vcpus.push(task.id.tid);
            }
        }
    }
}

/// Forgets the cgroup of a machine, container or pod that shares it with others. Whoever starts an emulator by hand leaves it in the
/// shell's cgroup, or in the root; a container that only another hierarchy tells of (v1, without CPU accounting) is there, too. What is
/// used, throttled and allowed there is not theirs.
pub(crate) fn forget_shared_groups(observation: &mut Observation) {
    let of = |at: Option<u32>| observation.groups.get(at? as usize).map(|group| classify(&group.path));
    let owner = |at, is: &dyn Fn(Owner) -> bool| of(at).is_some_and(|owner| !is(owner));
    let vms = shared(
        observation,
        |task| task.vm,
        &observation.vms,
        |vm| {
            let path =
                vm.group.and_then(|at| observation.groups.get(at as usize)).map(|group| group.path.as_str());
            vm.group.filter(|_| path.is_some_and(|path| machine_group(path) != Some(path)))
        },
    );
    let containers = shared(
        observation,
        |task| task.container,
        &observation.containers,
        |one| {
            let is = |owner: Owner| owner.container.is_some_and(|found| found.id == one.id);
            one.group.filter(|_| owner(one.group, &is))
        },
    );
    let pods = shared(
        observation,
        |task| task.pod,
        &observation.pods,
        |one| {
            let is = |owner: Owner| owner.pod.is_some_and(|found| found.uid == one.uid);
            one.group.filter(|_| owner(one.group, &is))
        },
    );
    let forget = |group: &mut Option<u32>, shared: bool| *group = group.filter(|_| !shared);
    observation.vms.iter_mut().zip(vms).for_each(|(one, shared)| forget(&mut one.group, shared));
    observation
        .containers
        .iter_mut()
        .zip(containers)
        .for_each(|(one, shared)| forget(&mut one.group, shared));
    observation.pods.iter_mut().zip(pods).for_each(|(one, shared)| forget(&mut one.group, shared));
}

/// Which of these share the group that `doubtful` names, which is not theirs by its name, with others.
fn shared<T>(
    observation: &Observation,
    owner: impl Fn(&TaskView) -> Option<u32>,
    all: &[T],
    doubtful: impl Fn(&T) -> Option<u32>,
) -> Vec<bool> {
    let groups: Vec<Option<u32>> = all.iter().map(doubtful).collect();
    if groups.iter().all(Option::is_none) {
        return vec![false; all.len()];
    }
    // By group: whom all tasks in it and below belong to, or that they belong to several or none.
    let mut holders: Vec<Option<Option<u32>>> = vec![None; observation.groups.len()];
    for task in observation.tasks.iter().filter(|task| !task.kernel_thread) {
        let owner = owner(task);
        for at in task.group.into_iter().flat_map(|group| observation.path_to_root(group)) {
            let holder = holders[at as usize].get_or_insert(owner);
            *holder = holder.filter(|one| owner == Some(*one));
        }
    }
    let is_shared = |(at, group): (u32, Option<u32>)| {
        group.is_some_and(|group| holders.get(group as usize) != Some(&Some(Some(at))))
    };
    (0..).zip(groups).map(is_shared).collect()
}

fn emulator_name(root: &Root, pid: u32, machine: Option<&str>, found: vm::Found<'_>) -> Option<String> {
    let args = cmdline::parse(&root.read(format!("proc/{pid}/cmdline")).ok()?);
    if !vm::is_emulator(&args) || !vm::is_trusted(root, pid, found) {
        return None;
    }
    let said = vm::guest_name(&args);
    Some(match machine {
        // A process may write over its command line: in a machine's group only the form of that one name.
        Some(group) => {
            said.filter(|name| machine::is_name_of(name, group)).unwrap_or_else(|| group.to_owned())
        }
        None => said.unwrap_or_else(|| format!("qemu-{pid}")),
    })
}

struct Building<'a> {
    facts: &'a RuntimeFacts,
    groups: &'a HashMap<&'a str, u32>,
    owned: Owned,
    containers: HashMap<String, u32>,
    pods: HashMap<String, u32>,
}

impl Building<'_> {
    fn container(
        &mut self,
        id: &str,
        runtime: &str,
        group: Option<u32>,
        pod_by_path: Option<(&str, Option<u32>)>,
    ) -> u32 {
        if let Some(&at) = self.containers.get(id) {
            return at;
        }
        let facts = self.facts.containers.get(id);
        let pod = match (facts.and_then(|facts| facts.pod.as_deref()), pod_by_path) {
            (_, Some((uid, group))) => Some(self.pod(uid, group)),
            (Some(uid), None) => Some(self.pod(uid, None)),
            (None, None) => None,
        };
        let told = match facts {
            Some(facts) => {
                let labels = facts.labels.clone();
                ContainerView { labels, ..ContainerView::of(&facts.name, &facts.runtime) }
            }
            None => ContainerView { confirmed: false, ..ContainerView::of(id, runtime) },
        };
        let at = self.owned.containers.len() as u32;
        self.owned.containers.push(ContainerView { id: id.to_owned(), pod, group, ..told });
        self.containers.insert(id.to_owned(), at);
        at
    }

    fn pod(&mut self, uid: &str, group: Option<u32>) -> u32 {
        if let Some(&at) = self.pods.get(uid) {
            return at;
        }
        // A CRI pod made without the kubelet has a cgroup of its own choosing.
        debug_assert!(group.is_none_or(|group| (group as usize) < self.groups.len()));
        let facts = self.facts.pods.get(uid);
        let at = self.owned.pods.len() as u32;
        self.owned.pods.push(PodView {
            uid: uid.to_owned(),
            namespace: facts.map(|facts| facts.namespace.clone()),
            name: facts.map_or_else(|| uid.to_owned(), |facts| facts.name.clone()),
            annotations: facts.map(|facts| facts.annotations.clone()).unwrap_or_default(),
            group,
        });
        self.pods.insert(uid.to_owned(), at);
        at
    }
}
