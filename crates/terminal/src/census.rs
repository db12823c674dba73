//! Who is there: pods, containers, machines, services, processes and threads of one observation in one list, with their
//! numbers and whose they are.

use std::collections::{BTreeMap, HashMap};

use evenkeel_base::{GroupView, NetworkRate, NetworkRates, Observation, TaskId, cut, printable};
use evenkeel_report::ps::{Row, Sum, View, class, limits};

/// Characters of a name that are kept: no one reads more, and somebody may have chosen 4 KB.
const NAME: usize = 200;

/// Who it is, from one observation to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Pod(String),
    Container(String),
    /// A virtual machine's process.
    Vm(u32),
    /// The path of a cgroup with tasks that are in no container and no machine.
    Service(String),
    /// The kernel's threads together.
    Kernel,
    /// Tasks whose cgroup could not be read.
    Unplaced,
    /// A process: its number and the start of its first thread.
    Process(u32, u64),
    Task(TaskId),
    Cpu(u32),
}

/// What it uses and lacks, percent of one CPU. What is not known is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Numbers {
    pub cpu: f64,
    /// Time runnable but not running, throttling included.
    pub wait: Option<f64>,
    pub throttled: Option<f64>,
    /// Voluntary switches per second.
    pub voluntary: Option<f64>,
    /// Involuntary switches per second.
    pub involuntary: Option<f64>,
    /// What its network transfers: of a container with one of its own, and its pod.
    pub network: Option<NetworkRate>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub key: Key,
    /// Index of what it is in; always less than its own.
    pub parent: Option<usize>,
    /// For people; safe to show.
    pub name: String,
    /// Whose it is, of processes and threads; safe to show.
    pub owner: String,
    /// CPU it ran on last.
    pub core: Option<u32>,
    pub numbers: Numbers,
    /// Scheduling class; empty for what has none.
    pub class: String,
    /// Weight, quota, CPUs; empty for what has none.
    pub limits: String,
    /// Whether it ran or waited at all.
    pub busy: bool,
    /// What `why` is asked about it; `None` where it cannot be asked.
    pub target: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Census {
    /// Owners before what is in them.
    pub items: Vec<Item>,
    pub by_key: HashMap<Key, usize>,
}

/// A name as it is shown: short, on one line, without what moves a cursor.
pub fn shown(name: &str) -> String {
    printable(&cut(name, NAME)).replace('\n', "\u{fffd}")
}

impl Census {
    /// Takes everybody from an observation.
    pub fn new(observation: &Observation) -> Self {
        let view = View::new(observation, |_| None, None);
        let mut census = Self::default();
        let pods: Vec<usize> = view.pods().iter().map(|sum| census.pod(sum)).collect();
        let containers = view.containers();
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        containers.iter().for_each(|sum| *names.entry(&sum.name).or_default() += 1);
        let containers: Vec<usize> = containers
            .iter()
            .map(|sum| {
                let pod = sum.what.pod.and_then(|pod| pods.get(pod as usize).copied());
                let target = by_name("container", &sum.name, names.get(sum.name.as_str()) == Some(&1), sum);
                let name = format!("{} ({})", shown(&sum.name), shown(&sum.what.runtime));
                census.owner(Key::Container(sum.what.id.clone()), pod, name, sum, target)
            })
            .collect();
        let vms: Vec<usize> = view
            .vms()
            .iter()
            .map(|sum| {
                let name = format!("{} (VM, pid {})", shown(&sum.name), sum.what.pid);
                let target = Some(format!("pid:{}", sum.what.pid));
                census.owner(Key::Vm(sum.what.pid), None, name, sum, target)
            })
            .collect();
        // Services come by their tasks, and so do the processes in them.
        let owner = |census: &mut Self, row: &Row| -> usize {
            let task = &row.task;
            let known = |list: &[usize], at: Option<u32>| at.and_then(|at| list.get(at as usize).copied());
            let known = known(&vms, task.vm)
                .or_else(|| known(&containers, task.container))
                .or_else(|| known(&pods, task.pod));
            let key = || match (&row.cgroup, task.kernel_thread) {
                (_, true) => Key::Kernel,
                (Some(path), false) => Key::Service(path.clone()),
                (None, false) => Key::Unplaced,
            };
            known.unwrap_or_else(|| census.service(key(), observation.group_of(task)))
        };
        let mut processes: HashMap<u32, usize> = HashMap::new();
        for row in &view.processes {
            let owner = owner(&mut census, row);
            let threads = if row.threads > 1 { format!(" ({} threads)", row.threads) } else { String::new() };
            let name = format!("{} {}{threads}", row.task.id.tgid, shown(&row.task.comm));
            let key = Key::Process(row.task.id.tgid, row.task.id.start_time);
            processes.insert(row.task.id.tgid, census.of_row(key, owner, name, row));
        }
        for row in &view.tasks {
            let Some(process) = processes.get(&row.task.id.tgid) else { continue };
            let name = format!("{} {}", row.task.id.tid, shown(&row.task.comm));
            census.of_row(Key::Task(row.task.id), *process, name, row);
            census.add_to_service(*process, row);
        }
        for (at, ended) in observation.ended_in_services() {
            let Some(group) = observation.groups.get(at as usize) else { continue };
            let key = Key::Service(group.path.clone());
            // Kernel threads are in the root.
            let is_kernel = group.parent.is_none() && !census.by_key.contains_key(&key);
            let service = census.service(if is_kernel { Key::Kernel } else { key }, Some(group));
            let item = &mut census.items[service];
            item.numbers.cpu += ended.cpu_pct;
            item.numbers.wait = item.numbers.wait.map(|sum| sum + ended.wait_pct);
            item.busy = true;
        }
        // A service is held back by its quota, and by one further up for no longer than it waited. What is in it has its own line.
        for (at, group) in (0..).zip(&observation.groups) {
            if let Some(service) = census.by_key.get(&Key::Service(group.path.clone())) {
                let numbers = &mut census.items[*service].numbers;
                numbers.throttled = observation.held_back_itself(at, numbers.wait);
            }
        }
        census.ask_about_the_root_alone();
        census.cpus(observation);
        census
    }

    /// `cgroup:/` is the whole host: it stands for the tasks in the root cgroup itself where nobody else is.
    fn ask_about_the_root_alone(&mut self) {
        let root = Key::Service("/".to_owned());
        let is_other =
            |item: &Item| item.parent.is_none() && item.key != root && !matches!(item.key, Key::Kernel);
        if let Some(at) = self.by_key.get(&root).copied()
            && self.items.iter().any(is_other)
        {
            self.items[at].target = None;
        }
    }

    pub fn add_networks(&mut self, networks: &NetworkRates) {
        for (id, rate) in &networks.containers {
            let container = self.by_key.get(&Key::Container(id.clone())).copied();
            // The containers of a pod share one.
            let pod = container.and_then(|at| self.items[at].parent);
            for at in container.into_iter().chain(pod) {
                self.items[at].numbers.network = Some(*rate);
            }
        }
    }

    /// CPUs, with the waits of those who were there last.
    fn cpus(&mut self, observation: &Observation) {
        let mut waits: BTreeMap<u32, Option<f64>> = BTreeMap::new();
        for item in self.items.iter().filter(|item| matches!(item.key, Key::Task(_))) {
            if let Some(cpu) = item.core {
                let sum = waits.entry(cpu).or_insert(Some(0.0));
                *sum = sum.zip(item.numbers.wait).map(|(sum, wait)| sum + wait);
            }
        }
        for view in &observation.host.per_cpu {
            let place = observation.topology.cpu(view.cpu);
            let isolated = place.is_some_and(|place| place.isolated);
            self.push(Item {
                key: Key::Cpu(view.cpu),
                parent: None,
                name: format!("CPU {}{}", view.cpu, if isolated { "*" } else { "" }),
                owner: String::new(),
                core: Some(view.cpu),
                numbers: Numbers {
                    cpu: view.busy_pct,
                    wait: waits.get(&view.cpu).copied().unwrap_or(Some(0.0)),
                    ..Numbers::default()
                },
                class: String::new(),
                limits: if isolated { "isolated".to_owned() } else { String::new() },
                busy: true,
                target: None,
            });
        }
    }

    pub fn get(&self, key: &Key) -> Option<&Item> {
        self.by_key.get(key).and_then(|at| self.items.get(*at))
    }

    /// Who owns it in the end but one: the container, machine, service, or the pod where it is in none.
    pub fn owner_of(&self, at: usize) -> Option<usize> {
        let above = |at: usize| self.items.get(at)?.parent;
        let process = match self.items.get(at)?.key {
            Key::Task(_) => above(at)?,
            Key::Process(..) => at,
            _ => return Some(at),
        };
        above(process)
    }

    fn push(&mut self, item: Item) -> usize {
        let at = self.items.len();
        // Two of one name are one to whoever follows it; the first is followed.
        self.by_key.entry(item.key.clone()).or_insert(at);
        self.items.push(item);
        at
    }

    fn pod(&mut self, sum: &Sum<'_, evenkeel_base::PodView>) -> usize {
        let whole = sum.what.namespace.is_some() && !sum.what.name.is_empty();
        let target = by_name("pod", &sum.name, whole, sum);
        let name = format!("{} (pod)", shown(&sum.name));
        self.owner(Key::Pod(sum.what.uid.clone()), None, name, sum, target)
    }

    fn owner<T>(
        &mut self,
        key: Key,
        parent: Option<usize>,
        name: String,
        sum: &Sum<'_, T>,
        target: Option<String>,
    ) -> usize {
        let throttled = sum.throttled_pct;
        self.push(Item {
            key,
            parent,
            name,
            owner: String::new(),
            core: None,
            numbers: Numbers { cpu: sum.cpu_pct, wait: sum.wait_pct, throttled, ..Numbers::default() },
            class: String::new(),
            limits: limits(sum.group),
            // Containers, pods and machines are few, and shown whether they do anything or not.
            busy: true,
            target,
        })
    }

    fn of_row(&mut self, key: Key, parent: usize, name: String, row: &Row) -> usize {
        let task = &row.task;
        let above = self.items.get(parent).map_or_else(String::new, |owner| owner.name.clone());
        self.push(Item {
            key,
            parent: Some(parent),
            name,
            owner: if above.is_empty() { "?".to_owned() } else { self.title(parent) },
            core: task.cpu,
            numbers: Numbers {
                cpu: task.cpu_pct,
                wait: task.wait_pct,
                throttled: row.throttled_pct,
                voluntary: task.voluntary_per_s,
                involuntary: task.involuntary_per_s,
                network: None,
            },
            class: task.sched.map_or_else(|| "?".to_owned(), |sched| class(&sched)),
            limits: String::new(),
            busy: row.busy(),
            target: (!task.kernel_thread).then(|| format!("pid:{}", task.id.tgid)),
        })
    }

    /// The owner's name without what it is; of a thread's process its owner.
    fn title(&self, at: usize) -> String {
        match &self.items[at].key {
            Key::Process(..) => self.items[at].owner.clone(),
            Key::Service(_) | Key::Kernel | Key::Unplaced => self.items[at].name.clone(),
            _ => {
                let name = &self.items[at].name;
                name.rsplit_once(" (").map_or(name.as_str(), |(name, _)| name).to_owned()
            }
        }
    }

    /// The service, or what stands for one, of tasks that are in no container and no machine.
    fn service(&mut self, key: Key, group: Option<&GroupView>) -> usize {
        if let Some(at) = self.by_key.get(&key) {
            return *at;
        }
        let (name, target, group) = match &key {
            Key::Service(path) => (shown(path), Some(format!("cgroup:{path}")), group),
            Key::Kernel => ("kernel threads".to_owned(), None, None),
            _ => ("tasks whose cgroup is not known".to_owned(), None, None),
        };
        self.push(Item {
            key,
            parent: None,
            name,
            owner: String::new(),
            core: None,
            // Its tasks are added one by one.
            numbers: Numbers { wait: Some(0.0), throttled: Some(0.0), ..Numbers::default() },
            class: String::new(),
            limits: limits(group),
            busy: false,
            target,
        })
    }

    /// Adds a thread to the service that its process is in, where it is in one.
    fn add_to_service(&mut self, process: usize, row: &Row) {
        let Some(at) = self.items[process].parent else { return };
        let item = &mut self.items[at];
        if matches!(item.key, Key::Service(_) | Key::Kernel | Key::Unplaced) {
            item.numbers.cpu += row.task.cpu_pct;
            item.numbers.wait = item.numbers.wait.zip(row.task.wait_pct).map(|(sum, wait)| sum + wait);
            item.numbers.throttled =
                item.numbers.throttled.zip(row.throttled_pct).map(|(sum, pct)| sum + pct);
            item.busy |= row.busy();
        }
    }
}

/// By its name where that names one, else by its cgroup.
fn by_name<T>(kind: &str, name: &str, one: bool, sum: &Sum<'_, T>) -> Option<String> {
    // What a scope takes off the ends of a text would name something else.
    if one && name.trim() == name && !name.is_empty() {
        return Some(format!("{kind}:{name}"));
    }
    sum.group.map(|group| format!("cgroup:{}", group.path))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::ExitedView;

    use super::*;
    use crate::testing::{host, look};

    #[test]
    fn everybody_is_in_what_owns_him() {
        let census = host();
        let path = |at: usize| -> Vec<&str> {
            std::iter::successors(Some(at), |at| census.items[*at].parent)
                .map(|at| census.items[at].name.as_str())
                .collect()
        };
        let of = |key: &Key| path(census.by_key[key]);
        let web = Key::Task(TaskId { tgid: 100, tid: 101, start_time: 7 });
        assert_eq!(of(&web), ["101 worker", "100 nginx (2 threads)", "web (docker)", "shop/front (pod)"]);
        assert_eq!(of(&Key::Process(300, 7)), ["300 cron", "/system.slice/cron.service"]);
        assert_eq!(of(&Key::Process(2, 7)), ["2 kthreadd", "kernel threads"]);
        assert_eq!(of(&Key::Process(200, 7)), ["200 qemu", "db (VM, pid 200)"]);
        assert!(census.items.iter().enumerate().all(|(at, item)| item.parent.is_none_or(|up| up < at)));
        let task = census.by_key[&web];
        let owner = census.owner_of(task).map(|at| census.items[at].name.as_str());
        assert_eq!((owner, census.items[task].owner.as_str()), (Some("web (docker)"), "web"));
    }

    #[test]
    fn why_can_be_asked_of_what_a_scope_can_name() {
        let census = host();
        let target = |key: &Key| census.get(key).and_then(|item| item.target.clone());
        assert_eq!(target(&Key::Container("c1".into())).as_deref(), Some("container:web"));
        assert_eq!(target(&Key::Pod("uid".into())).as_deref(), Some("pod:shop/front"));
        assert_eq!(
            target(&Key::Service("/system.slice/cron.service".into())).as_deref(),
            Some("cgroup:/system.slice/cron.service")
        );
        assert_eq!(target(&Key::Process(100, 7)).as_deref(), Some("pid:100"));
        assert_eq!(target(&Key::Kernel), None);
        assert_eq!(target(&Key::Process(2, 7)), None);
    }

    #[test]
    fn the_root_cgroup_is_asked_about_where_it_is_the_whole_host() {
        let target = |observation: &Observation| {
            Census::new(observation).get(&Key::Service("/".into())).and_then(|item| item.target.clone())
        };
        let mut observation = look().observation;
        observation.tasks[4].group = Some(0);
        assert_eq!(target(&observation), None, "pods and machines are not what the line shows");
        observation.tasks.retain(|task| task.group == Some(0));
        (observation.containers, observation.pods, observation.vms) = Default::default();
        assert_eq!(target(&observation).as_deref(), Some("cgroup:/"));
    }

    #[test]
    fn two_containers_of_one_name_are_asked_about_by_cgroup() {
        let mut look = look();
        let mut twin = look.observation.containers[0].clone();
        twin.id = "c2".into();
        look.observation.containers.push(twin);
        let census = Census::new(&look.observation);
        let target = census.get(&Key::Container("c2".into())).and_then(|item| item.target.clone());
        assert_eq!(target.as_deref(), Some("cgroup:/kubepods/front/web"));
    }

    #[test]
    fn a_service_is_the_sum_of_its_tasks() {
        let census = host();
        let service = census.get(&Key::Service("/system.slice/cron.service".into()));
        let numbers = service.map(|item| item.numbers);
        assert_eq!(numbers.map(|n| (n.cpu, n.wait, n.throttled)), Some((5.0, Some(2.0), Some(0.0))));
    }

    #[test]
    fn a_quota_further_up_holds_a_service_back_for_no_longer_than_it_waited() {
        let mut look = look();
        look.observation.groups[3].throttled_pct = Some(40.0);
        look.observation.groups[4].parent = Some(3);
        let throttled = |look: &crate::errand::Look| {
            let census = Census::new(&look.observation);
            census.get(&Key::Service("/system.slice/cron.service".into()))?.numbers.throttled
        };
        assert_eq!(throttled(&look), Some(2.0));
        look.observation.tasks[4].wait_pct = Some(90.0);
        assert_eq!(throttled(&look), Some(40.0));
        look.observation.groups[4].throttled_pct = Some(50.0);
        assert_eq!(throttled(&look), Some(50.0));
    }

    #[test]
    fn what_ended_counts_for_the_service_it_was_in() {
        let mut observation = look().observation;
        // In the service; in the machine, whose cgroup counts it; in a service of which nobody is left; a kernel thread.
        for (group, cpu_pct) in [(4, 70.0), (3, 9.0), (5, 20.0), (0, 1.0)] {
            let wait_pct = 3.0;
            observation.exited.push(ExitedView {
                group: Some(group),
                cpu_pct,
                wait_pct,
                ..ExitedView::default()
            });
        }
        observation.groups.push(evenkeel_base::GroupView::of("/system.slice/job.service", Some(0), true));
        let census = Census::new(&observation);
        let of = |name: &str| {
            let item = census.get(&Key::Service(format!("/system.slice/{name}.service")));
            item.map(|item| (item.numbers.cpu, item.numbers.wait, item.busy))
        };
        assert_eq!((of("cron"), of("job")), (Some((75.0, Some(5.0), true)), Some((20.0, Some(3.0), true))));
        assert_eq!(census.get(&Key::Vm(200)).map(|item| item.numbers.cpu), Some(40.0));
        assert!(census.get(&Key::Service("/".into())).is_none() && census.get(&Key::Kernel).is_some());
    }
}
