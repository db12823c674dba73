//! Services and background work: what the host says about who is which.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::{GroupView, Observation, SchedPolicy, TaskView, is_kubepods};

use crate::trusted::Trusted;

/// Label of a container and annotation of a pod that names its tier: `service` or `background`.
pub const TIER_LABEL: &str = "evenkeel.io/tier";
/// Nice values from here on are those of work that may wait.
const NICE: i32 = 10;

evenkeel_base::named! {
/// Whose waits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Waits are to be short.
    Service = "service",
    /// May wait for services.
    Background = "background",
}
}

/// A tier, and what says so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Derived {
    pub tier: Tier,
    /// What says so, in words.
    pub from: String,
}

/// What the host says about a task's tier: labels and annotations, then a pod's quality of service. `None`: it keeps its place.
pub fn of(task: &TaskView, observation: &Observation, trusted: &Trusted) -> Option<Derived> {
    let container = task.container.and_then(|at| observation.containers.get(at as usize));
    let pod = task.pod.and_then(|at| observation.pods.get(at as usize));
    let stated = |labels: &[(String, String)]| {
        labels.iter().find(|(key, _)| key == TIER_LABEL).map(|(_, value)| value.clone())
    };
    let annotation = pod.and_then(|pod| stated(&pod.annotations)).map(|value| (value, "annotation"));
    let label = || container.and_then(|container| stated(&container.labels)).map(|value| (value, "label"));
    // Who writes a pod or starts a container could otherwise have the host's owner's other work wait for his. Background is
    // what anybody may be.
    let heard = || match (pod, container) {
        (Some(pod), _) => trusted.hears_pod(pod).is_ok(),
        (None, Some(container)) => trusted.hears_container(container, observation).is_ok(),
        (None, None) => false,
    };
    if let Some((value, kind)) = annotation.or_else(label) {
        let from = format!("{kind} {TIER_LABEL}={value}");
        match value.as_str() {
            "background" => return Some(Derived { tier: Tier::Background, from }),
            "service" if heard() => {
                return Some(Derived { tier: Tier::Service, from });
            }
            _ => {}
        }
    }
    let path = &observation.group_of(task)?.path;
    let (tier, class) = match quality_of_service(path)? {
        "besteffort" => (Tier::Background, "BestEffort"),
        "guaranteed" => (Tier::Service, "Guaranteed"),
        _ => return None,
    };
    Some(Derived { tier, from: format!("quality of service {class}") })
}

/// A pod's class, by where the kubelet puts its cgroup, with the drivers `cgroupfs` (`/kubepods/besteffort/pod…`) and `systemd`
/// (`/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod….slice`); `None` for what is in no pod.
fn quality_of_service(path: &str) -> Option<&'static str> {
    let mut parts = path.split('/').skip_while(|part| !is_kubepods(part)).skip(1);
    let next = parts.next()?;
    match next.rsplit_once("kubepods-").map_or(next, |(_, own)| own) {
        "besteffort" | "besteffort.slice" => Some("besteffort"),
        "burstable" | "burstable.slice" => Some("burstable"),
        pod if pod.starts_with("pod") => Some("guaranteed"),
        _ => None,
    }
}

/// Cgroups outside of pods and containers whose tasks were all told to wait, as far as that is known: as a whole (`CPUWeight=idle` of
/// systemd), by nice values of 10 and more (`Nice=`), SCHED_IDLE or SCHED_BATCH. Of those whose attributes the observation has.
pub fn told_to_wait(observation: &Observation) -> Vec<(String, String)> {
    // A cgroup's name stands for all that is below it, too.
    let all_wait =
        observation.groups_of(|task| if task.kernel_thread { None } else { was_told(task, observation) });
    let mut whole: BTreeMap<u32, String> = BTreeMap::new();
    let mut groups: BTreeSet<u32> = BTreeSet::new();
    let told = |task: &&TaskView| !task.kernel_thread && was_told(task, observation) == Some(true);
    for group in observation.tasks.iter().filter(told).filter_map(|task| task.group) {
        match idle_above(observation, group) {
            Some((at, idle)) => {
                whole.entry(at).or_insert_with(|| idle.path.clone());
            }
            None if all_wait.get(group as usize) == Some(&true) => {
                groups.insert(group);
            }
            None => {}
        }
    }
    let path = |group: u32| observation.groups.get(group as usize).filter(|group| group.parent.is_some());
    let found = groups.into_iter().filter_map(path);
    let of_all =
        found.map(|group| (group.path.clone(), format!("nice {NICE} or more, or a class that waits")));
    let whole = whole.into_values().map(|path| (path, "cpu.idle (CPUWeight=idle)".to_owned()));
    whole.chain(of_all).collect()
}

/// Whether a task was told to wait, alone or with its cgroup; `None` where that is not known. What is in pods and containers never was.
pub(crate) fn was_told(task: &TaskView, observation: &Observation) -> Option<bool> {
    if task.pod.is_some() || task.container.is_some() {
        return Some(false);
    }
    if task.group.is_some_and(|group| idle_above(observation, group).is_some()) {
        return Some(true);
    }
    let attr = task.sched?;
    Some(match attr.policy {
        SchedPolicy::Idle | SchedPolicy::Batch => true,
        policy => policy.is_fair() && attr.nice.get() >= NICE,
    })
}

/// The highest cgroup from this one on that is idle as a whole.
fn idle_above(observation: &Observation, group: u32) -> Option<(u32, &GroupView)> {
    let idle = |group: &&GroupView| group.v2 && group.parent.is_some() && group.idle;
    let above = observation.path_to_root(group);
    above.filter_map(|at| Some((at, observation.groups.get(at as usize).filter(idle)?))).last()
}

/// What is derived for each pod, container and cgroup that has tasks, by name.
pub fn all(observation: &Observation, trusted: &Trusted) -> BTreeMap<String, Derived> {
    let mut found: BTreeMap<String, Derived> = BTreeMap::new();
    for task in observation.tasks.iter().filter(|task| !task.kernel_thread) {
        let Some(derived) = of(task, observation, trusted) else { continue };
        let pod = task.pod.and_then(|at| observation.pods.get(at as usize));
        let container = task.container.and_then(|at| observation.containers.get(at as usize));
        let name = match (pod, container) {
            (Some(pod), _) => format!("pod:{}/{}", pod.namespace.as_deref().unwrap_or("?"), pod.name),
            (None, Some(container)) => format!("container:{}", container.name),
            (None, None) => {
                observation.group_of(task).map_or_else(String::new, |group| format!("cgroup:{}", group.path))
            }
        };
        found.entry(name).or_insert(derived);
    }
    let waiting = told_to_wait(observation);
    found.extend(
        waiting
            .into_iter()
            .map(|(path, from)| (format!("cgroup:{path}"), Derived { tier: Tier::Background, from })),
    );
    found
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{ContainerView, Nice, PodView, SchedAttr, load_weight};

    use super::*;
    use crate::scope::Scope;
    use crate::testing;

    /// A pod of each class by both drivers, a container with a label, and a unit with `Nice=`.
    fn observation() -> Observation {
        let mut host = testing::observation(&[
            ("/", None),
            ("/kubepods/besteffort/podb/x", Some(0)),
            ("/kubepods/burstable/podu/x", Some(0)),
            ("/kubepods.slice/kubepods-podg.slice/x", Some(0)),
            ("/docker/abc", Some(0)),
            ("/system.slice/backup.service", Some(0)),
            ("/system.slice/web.service", Some(0)),
        ]);
        let pod = |name: &str, annotations: &[(&str, &str)]| PodView {
            annotations: annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..PodView::of("prod", name)
        };
        host.pods = vec![pod("b", &[]), pod("u", &[(TIER_LABEL, "service")]), pod("g", &[])];
        host.containers = vec![ContainerView {
            labels: vec![(TIER_LABEL.into(), "background".into())],
            group: Some(4),
            ..ContainerView::of("ci", "docker")
        }];
        let of = |pid: u32, group: u32, nice: i32| TaskView {
            sched: Some(SchedAttr { nice: Nice::new(nice), ..SchedAttr::DEFAULT }),
            pod: (1..=3).contains(&group).then(|| group - 1),
            container: (group == 4).then_some(0),
            ..testing::task(pid, "work", group)
        };
        host.tasks = vec![
            of(10, 1, 0),
            of(11, 2, 0),
            of(12, 3, 0),
            of(13, 4, 0),
            of(14, 5, 19),
            of(15, 6, 0),
            of(16, 6, 15),
        ];
        host
    }

    fn names(trusted: &Trusted) -> Vec<String> {
        let of = |(name, derived): (String, Derived)| format!("{name} {}", derived.tier.name());
        all(&observation(), trusted).into_iter().map(of).collect()
    }

    #[test]
    fn the_host_says_who_may_wait() {
        let plain = names(&Trusted::default());
        let all = [
            "cgroup:/system.slice/backup.service background",
            "container:ci background",
            "pod:prod/b background",
            "pod:prod/g service",
        ];
        assert_eq!(plain, all);
        // Who writes a pod makes no service of it, unless the host's owner allows its namespace.
        let trusted = names(&Trusted { namespaces: vec!["pr*".into()], ..Trusted::default() });
        assert!(trusted.contains(&"pod:prod/u service".to_owned()), "{trusted:?}");
    }

    /// The task in it is like any other.
    #[test]
    fn a_cgroup_that_was_made_idle_may_wait() {
        let mut host = observation();
        host.groups[6].idle = true;
        let idle = ("/system.slice/web.service".to_owned(), "cpu.idle (CPUWeight=idle)".to_owned());
        assert_eq!(told_to_wait(&host)[0], idle);
        host.groups[6].v2 = false;
        assert!(!told_to_wait(&host).contains(&idle));
        let group = &mut host.groups[6];
        (group.v2, group.idle, group.load_weight) = (true, false, Some(load_weight(1, true)));
        assert!(!told_to_wait(&host).contains(&idle), "the least weight is not told apart from others");
    }

    /// Who is told to wait is named by its cgroup, and that names what is below it, too.
    #[test]
    fn a_cgroup_may_wait_only_if_all_below_it_may() {
        let mut host = observation();
        let said =
            |host: &Observation| told_to_wait(host).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(said(&host), ["/system.slice/backup.service"]);
        host.groups[6].parent = Some(5);
        assert!(said(&host).is_empty(), "a task below it has nice 0");
        host.tasks[5].sched = host.tasks[4].sched;
        assert_eq!(said(&host).len(), 2);
        host.groups[4].parent = Some(5);
        assert_eq!(said(&host), ["/system.slice/web.service"], "a container is below the other");
        // A real-time task waits for nobody, whatever its nice value.
        let fifo = SchedAttr { policy: SchedPolicy::Fifo, nice: Nice::new(19), ..SchedAttr::DEFAULT };
        host.tasks[5].sched = Some(fifo);
        assert!(said(&host).is_empty());
    }

    #[test]
    fn an_annotation_lowers_whatever_the_class_is() {
        let mut host = observation();
        host.pods[2].annotations = vec![(TIER_LABEL.into(), "background".into())];
        let scope = |tier| Scope::of_tier(tier, Trusted::default());
        let task = host.tasks[2].clone();
        assert!(scope(Tier::Background).has(&task, &host) && !scope(Tier::Service).has(&task, &host));
        host.pods[2].annotations[0].1 = "nonsense".into();
        assert!(scope(Tier::Service).has(&task, &host));
    }

    #[test]
    fn classes_are_told_from_the_kubelets_paths() {
        for (path, class) in [
            ("/kubepods/besteffort/podx/y", Some("besteffort")),
            ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/y", Some("burstable")),
            ("/kubepods.slice/kubepods-podx.slice", Some("guaranteed")),
            // Of a kubelet with a root of its own, as in kind.
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podx.slice",
                Some("besteffort"),
            ),
            ("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podx.slice/y", Some("guaranteed")),
            ("/a/kubepods/podx/y", Some("guaranteed")),
            ("/kubepods", None),
            ("/system.slice/kubelet.service", None),
        ] {
            assert_eq!(quality_of_service(path), class, "{path}");
            assert_eq!(testing::group(path).is_kubelets(), path.contains("kubepods"), "{path}");
        }
    }
}
