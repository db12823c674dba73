//! Containers, services (cgroups of tasks in no container) and virtual machines: what each used since the page's server
//! began, and over the last interval. Bounded: whoever comes when there is no room is counted under `other`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_base::stats::add_known;
use evenkeel_base::{Histogram, Observation};

use super::lengths::Lengths;

/// Owners told apart. One keeps its place until it is gone.
pub const MOST: usize = 500;
/// Pairs of victim and culprit told apart.
pub const PAIRS: usize = 200;
/// Time from which on a pair is worth a place, seconds.
const WORTH_S: f64 = 0.1;
/// Intervals without growth after which a pair leaves its place to another: cgroups come and go, and so do their names.
const IDLE: u64 = 300;
/// Who came when there was no room, as a name.
pub const OTHER: &str = "other";

evenkeel_base::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Container = "container",
    /// cgroup with tasks that are in no container and no virtual machine.
    Service = "service",
    Vm = "vm",
    /// Everybody for whom there was no room.
    Other = OTHER,
}
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: Kind,
    /// Empty outside Kubernetes.
    pub namespace: String,
    /// Empty outside Kubernetes.
    pub pod: String,
    /// Container or virtual machine; empty for a service.
    pub name: String,
    /// Path of its cgroup below the cpu controller's mount; empty when not known.
    pub path: String,
}

impl Key {
    fn other() -> Self {
        let empty = String::new;
        Self { kind: Kind::Other, namespace: empty(), pod: empty(), name: OTHER.to_owned(), path: empty() }
    }

    /// For people: `namespace/pod/container`, the virtual machine's name, or the cgroup's path.
    pub fn title(&self) -> String {
        match self.kind {
            Kind::Service => self.path.clone(),
            _ if self.pod.is_empty() => self.name.clone(),
            _ if self.namespace.is_empty() => format!("{}/{}", self.pod, self.name),
            _ => format!("{}/{}/{}", self.namespace, self.pod, self.name),
        }
    }
}

/// Times, seconds, or rates, percent of one CPU. What is not known is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Use {
    pub cpu: f64,
    pub wait: Option<f64>,
    pub throttled: Option<f64>,
    pub stolen: Option<f64>,
}

impl Use {
    fn add(&mut self, part: &Self, factor: f64) {
        let times = |part: Option<f64>| part.map(|part| part * factor);
        self.cpu += part.cpu * factor;
        add_known(&mut self.wait, times(part.wait));
        add_known(&mut self.throttled, times(part.throttled));
        add_known(&mut self.stolen, times(part.stolen));
    }
}

#[derive(Debug, Clone)]
pub struct Owner {
    /// Its number on pages: never used again.
    pub number: u32,
    pub key: Key,
    /// Seconds since counting began.
    pub total: Use,
    /// Waited without being throttled, seconds. Never less than it was: the kernel counts the two at different moments.
    pub ready: Option<f64>,
    /// Percent of one CPU in the last interval.
    pub now: Use,
    /// Threads at its end.
    pub tasks: u32,
    /// Lengths of its waits and their sum, seconds, where they are counted one by one.
    pub waits: Option<(Histogram, f64)>,
    /// The same over the last time.
    pub lengths: Lengths,
    /// End of the first interval in which it was there, ms since 1970.
    pub since_ms: u64,
    seen: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Owners {
    by_key: BTreeMap<Key, Owner>,
    numbers: u32,
    rounds: u64,
    /// By task of the last observation, which it is in.
    pub of_task: Vec<Option<u32>>,
    /// For each task of the next observation whether it may wait for services.
    may_wait: Vec<bool>,
    /// Numbers of those whose tasks are all background work, which may wait and be held back.
    pub background: BTreeSet<u32>,
    /// Time by victim and culprit, seconds.
    pub blame: BTreeMap<(String, String), f64>,
    small: HashMap<(String, String), f64>,
    /// When each pair grew last.
    grew: HashMap<(String, String), u64>,
    /// Whether anybody counts who ran while others waited.
    pub blames: bool,
}

impl Owners {
    /// In the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Owner> {
        self.by_key.values()
    }

    pub fn numbered(&self, number: u32) -> Option<&Owner> {
        self.iter().find(|owner| owner.number == number)
    }

    pub fn count(&self) -> usize {
        self.by_key.len()
    }

    /// Whether each task of the observation that comes next is background work.
    pub fn let_wait(&mut self, may_wait: Vec<bool>) {
        self.may_wait = may_wait;
    }

    /// Adds an interval; who is gone is forgotten.
    pub fn observe(&mut self, observation: &Observation) {
        self.rounds += 1;
        let (keys, places, services) = keys(observation);
        let uses = uses(observation, &places, &services, keys.len());
        let mut numbers = Vec::with_capacity(keys.len());
        for (key, (now, tasks)) in keys.into_iter().zip(uses) {
            let full = self.by_key.len() >= MOST && !self.by_key.contains_key(&key);
            let key = if full { Key::other() } else { key };
            let (rounds, next) = (self.rounds, &mut self.numbers);
            let owner = self.by_key.entry(key).or_insert_with_key(|key| {
                *next += 1;
                Owner {
                    number: *next,
                    key: key.clone(),
                    total: Use::default(),
                    ready: None,
                    now: Use::default(),
                    tasks: 0,
                    waits: None,
                    lengths: Lengths::default(),
                    since_ms: observation.wall_ns / 1_000_000,
                    seen: 0,
                }
            });
            if owner.seen != rounds {
                (owner.now, owner.tasks, owner.seen) = (Use::default(), 0, rounds);
            }
            owner.now.add(&now, 1.0);
            owner.tasks += tasks;
            owner.since_ms = owner.since_ms.min(observation.wall_ns / 1_000_000);
            owner.total.add(&now, observation.interval_s / 100.0);
            if let Some(wait) = owner.total.wait {
                let ready = wait - owner.total.throttled.unwrap_or(0.0);
                owner.ready = Some(owner.ready.unwrap_or(0.0).max(ready));
            }
            numbers.push(owner.number);
        }
        // `other` never goes: its counters are of many.
        self.by_key.retain(|key, owner| {
            if owner.seen != self.rounds {
                (owner.now, owner.tasks) = (Use::default(), 0);
            }
            owner.seen == self.rounds || key.kind == Kind::Other
        });
        self.of_task =
            places.into_iter().map(|place| place.and_then(|at| numbers.get(at as usize).copied())).collect();
        let (mut all, mut others) = (BTreeSet::new(), BTreeSet::new());
        for (may_wait, owner) in std::mem::take(&mut self.may_wait).into_iter().zip(&self.of_task) {
            let Some(owner) = owner else { continue };
            if may_wait { &mut all } else { &mut others }.insert(*owner);
        }
        self.background = &all - &others;
    }

    /// Adds waits that ended by an instant (ms since 1970), by the owner's title, with their sum in seconds.
    pub fn add_waits(&mut self, at_ms: u64, title: &str, waits: &Histogram, seconds: f64) {
        if let Some(owner) = self.by_key.values_mut().find(|owner| owner.key.title() == title) {
            let (sum, time) = owner.waits.get_or_insert_with(Default::default);
            sum.merge(waits);
            *time += seconds;
            owner.lengths.add(at_ms, waits);
        }
    }

    /// Adds time that a victim waited while a culprit ran. A pair gets a place of its own once it is worth one, and keeps it
    /// while it grows now and then.
    pub fn add_blame(&mut self, victim: &str, culprit: &str, seconds: f64) {
        let pair = (victim.to_owned(), culprit.to_owned());
        if let Some(sum) = self.blame.get_mut(&pair) {
            *sum += seconds;
            self.grew.insert(pair, self.rounds);
            return;
        }
        if self.small.len() >= 10 * PAIRS {
            self.small.clear();
        }
        let small = self.small.entry(pair.clone()).or_default();
        *small += seconds;
        if *small >= WORTH_S && self.has_room() {
            self.small.remove(&pair);
            self.grew.insert(pair.clone(), self.rounds);
            self.blame.insert(pair, seconds);
        } else {
            *self.blame.entry((OTHER.to_owned(), OTHER.to_owned())).or_default() += seconds;
        }
    }

    /// Whether there is a place for a pair, perhaps that of the one that has not grown for the longest time.
    fn has_room(&mut self) -> bool {
        if self.blame.len() < PAIRS {
            return true;
        }
        let oldest = self.grew.iter().min_by_key(|(_, grew)| **grew);
        let Some((pair, _)) = oldest.filter(|(_, grew)| **grew + IDLE <= self.rounds) else { return false };
        let pair = pair.clone();
        self.grew.remove(&pair);
        self.blame.remove(&pair).is_some()
    }
}

fn pod(observation: &Observation, index: Option<u32>) -> (String, String) {
    let pod = index.and_then(|at| observation.pods.get(at as usize));
    pod.map_or_else(Default::default, |pod| (pod.namespace.clone().unwrap_or_default(), pod.name.clone()))
}

/// Whose an observation's tasks are: the owners, and for each task which it is in.
fn keys(observation: &Observation) -> (Vec<Key>, Vec<Option<u32>>, Vec<Option<u32>>) {
    let path = |group: Option<u32>| {
        group.and_then(|at| observation.groups.get(at as usize)).map_or_else(String::new, |g| g.path.clone())
    };
    let mut keys = Vec::new();
    for container in &observation.containers {
        let (namespace, pod) = pod(observation, container.pod);
        let name = container.name.clone();
        keys.push(Key { kind: Kind::Container, namespace, pod, name, path: path(container.group) });
    }
    let vms = keys.len() as u32;
    for vm in &observation.vms {
        let (name, empty) = (vm.name.clone(), String::new);
        keys.push(Key { kind: Kind::Vm, namespace: empty(), pod: empty(), name, path: path(vm.group) });
    }
    let mut services: Vec<Option<u32>> = vec![None; observation.groups.len()];
    let service = |group: u32, services: &mut Vec<Option<u32>>, keys: &mut Vec<Key>| {
        let service = services.get_mut(group as usize)?;
        Some(*service.get_or_insert_with(|| {
            let empty = String::new;
            let path = path(Some(group));
            keys.push(Key { kind: Kind::Service, namespace: empty(), pod: empty(), name: empty(), path });
            keys.len() as u32 - 1
        }))
    };
    let mut places = Vec::with_capacity(observation.tasks.len());
    for task in &observation.tasks {
        places.push(match (task.vm, task.container, task.group) {
            (Some(vm), _, _) => Some(vms + vm),
            (_, Some(container), _) => Some(container),
            (_, _, Some(group)) if !task.kernel_thread => service(group, &mut services, &mut keys),
            _ => None,
        });
    }
    // Who ended and left nobody behind had an owner, too.
    for (group, _) in observation.ended_in_services() {
        service(group, &mut services, &mut keys);
    }
    (keys, places, services)
}

/// What each used in the interval, and how many threads it has.
fn uses(
    observation: &Observation,
    places: &[Option<u32>],
    services: &[Option<u32>],
    owners: usize,
) -> Vec<(Use, u32)> {
    let mut uses = vec![(Use::default(), 0); owners];
    // Steal is a CPU's: it is divided among those who ran there, by what they ran.
    let top = observation.host.per_cpu.iter().map(|cpu| cpu.cpu as usize + 1).max().unwrap_or(0);
    let mut ran = vec![0.0; top];
    for task in &observation.tasks {
        if let Some(ran) = task.cpu.and_then(|cpu| ran.get_mut(cpu as usize)) {
            *ran += task.cpu_pct;
        }
    }
    let mut steal = vec![None; top];
    for cpu in &observation.host.per_cpu {
        steal[cpu.cpu as usize] = cpu.steal_pct;
    }
    for (task, place) in observation.tasks.iter().zip(places) {
        let Some((sum, tasks)) = place.and_then(|at| uses.get_mut(at as usize)) else { continue };
        *tasks += 1;
        sum.cpu += task.cpu_pct;
        add_known(&mut sum.wait, task.wait_pct);
        let cpu = task.cpu.map(|cpu| cpu as usize);
        if let Some(stolen) = cpu.and_then(|cpu| *steal.get(cpu)?) {
            let all = cpu.and_then(|cpu| ran.get(cpu).copied()).unwrap_or(0.0);
            let part = if all > 0.0 { stolen * task.cpu_pct / all } else { 0.0 };
            add_known(&mut sum.stolen, Some(part));
        }
    }
    for ended in &observation.exited {
        let service = || services.get(ended.group? as usize).copied().flatten();
        if let Some((sum, _)) = ended.container.or_else(service).and_then(|at| uses.get_mut(at as usize)) {
            sum.cpu += ended.cpu_pct;
            add_known(&mut sum.wait, Some(ended.wait_pct));
        }
    }
    let (held, counted) = (observation.held_back_pct(), observation.counted_of_owners());
    let owned =
        observation.containers.iter().map(|c| c.group).chain(observation.vms.iter().map(|vm| vm.group));
    for ((sum, _), at) in uses.iter_mut().zip(owned) {
        // The cgroup's own counter has what ended in between, too.
        sum.cpu = at.and_then(|at| counted.get(&at)).map_or(sum.cpu, |pct| pct.max(sum.cpu));
        sum.throttled = at.and_then(|at| observation.held_back_in(&held, at, sum.wait));
    }
    for (task, place) in observation.tasks.iter().zip(places) {
        let services = observation.containers.len() + observation.vms.len();
        if let Some(at) = place.filter(|at| *at as usize >= services)
            && let Some((sum, _)) = uses.get_mut(at as usize)
        {
            sum.throttled = task.group.and_then(|at| observation.held_back_itself(at, sum.wait));
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{ContainerView, ExitedView, GroupView, VmView};

    use super::*;
    use crate::notices::labelled::host;

    #[test]
    fn what_ended_tasks_of_a_service_used_is_the_services() {
        let mut seen = host(2, 2);
        seen.tasks.pop();
        seen.tasks[0].cpu_pct = 10.0;
        let ended = |group, cpu_pct| ExitedView {
            group: Some(group),
            container: None,
            tasks_per_s: 50.0,
            cpu_pct,
            wait_pct: 5.0,
        };
        // Compilers come and go below a shell; of the other service nobody is left.
        seen.exited = vec![ended(0, 150.0), ended(1, 20.0)];
        let mut owners = Owners::default();
        owners.observe(&seen);
        let used: Vec<_> =
            owners.iter().map(|owner| (owner.key.path.as_str(), owner.now.cpu, owner.tasks)).collect();
        assert_eq!(used, [("/s0", 160.0, 1), ("/s1", 20.0, 0)]);
    }

    #[test]
    fn what_a_container_inside_another_used_is_counted_once() {
        let mut seen = host(2, 2);
        seen.groups[1] = GroupView::of("/s0/inner", Some(0), true);
        (seen.groups[0].cpu_pct, seen.groups[1].cpu_pct) = (Some(120.0), Some(90.0));
        for (at, name) in (0u32..).zip(["outer", "inner"]) {
            seen.containers.push(ContainerView { group: Some(at), ..ContainerView::of(name, "docker") });
            seen.tasks[at as usize].container = Some(at);
        }
        let mut owners = Owners::default();
        owners.observe(&seen);
        let used: Vec<_> = owners.iter().map(|owner| (owner.key.name.as_str(), owner.now.cpu)).collect();
        assert_eq!(used, [("inner", 90.0), ("outer", 30.0)]);
    }

    #[test]
    fn cpu_ready_never_goes_down_however_late_waits_are_counted() {
        let mut owners = Owners::default();
        let mut ready = Vec::new();
        // The quota's part of a wait is counted while it lasts, the wait when it is over.
        for (wait_pct, throttled_pct) in [(30.0, 0.0), (0.0, 50.0), (60.0, 10.0), (20.0, 0.0)] {
            let mut seen = host(1, 2);
            seen.vms.push(VmView { name: "db".to_owned(), group: Some(0), ..VmView::default() });
            (seen.tasks[0].vm, seen.tasks[0].wait_pct) = (Some(0), Some(wait_pct));
            seen.groups[0].throttled_pct = Some(throttled_pct);
            seen.interval_s = 1.0;
            owners.observe(&seen);
            let owner = owners.iter().find(|owner| owner.key.kind == Kind::Vm).unwrap();
            ready.push((owner.ready.unwrap() * 100.0).round());
        }
        assert_eq!(ready, [30.0, 30.0, 30.0, 50.0]);
    }

    #[test]
    fn a_pair_that_no_longer_grows_leaves_its_place_to_one_that_does() {
        let mut owners = Owners::default();
        let pair = |n: usize| ("web".to_owned(), format!("/job-{n}"));
        for n in 0..PAIRS {
            owners.add_blame("web", &pair(n).1, 1.0);
        }
        owners.rounds = IDLE - 1;
        owners.add_blame("web", "/job-0", 1.0);
        owners.add_blame("web", "/late", 1.0);
        assert!(owners.blame.keys().all(|(_, culprit)| culprit != "/late"), "somebody who grew was put out");
        owners.rounds = IDLE;
        owners.add_blame("web", "/late", 1.0);
        assert_eq!(owners.blame.get(&("web".to_owned(), "/late".to_owned())), Some(&1.0));
        assert_eq!(owners.blame.get(&pair(0)), Some(&2.0));
        assert_eq!((owners.blame.len(), owners.grew.len()), (PAIRS + 1, PAIRS));
    }
}
