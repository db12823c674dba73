//! A host for tests: a pod with a container of two threads, a machine, a service, a kernel thread; CPU 1 is isolated.

use evenkeel_base::observation::CpuView;
use evenkeel_base::{
    ContainerView, CpuQuota, GroupView, HostView, NetworkRate, NetworkRates, Observation, PodView, TaskId,
    TaskView, Topology, VmView,
};

use crate::census::Census;
use crate::errand::Look;

fn group(path: &str, parent: Option<u32>, throttled_pct: Option<f64>) -> GroupView {
    GroupView {
        load_weight: Some(1024),
        raw_weight: Some(100),
        quota: Some(CpuQuota::UNLIMITED),
        throttled_pct,
        ..GroupView::of(path, parent, true)
    }
}

/// A thread that started at 7.
pub fn task(tgid: u32, tid: u32, comm: &str, group: u32, cpu: u32, cpu_pct: f64, wait: f64) -> TaskView {
    TaskView {
        ppid: 1,
        cpu: Some(cpu),
        group: Some(group),
        cpu_pct,
        wait_pct: Some(wait),
        voluntary_per_s: Some(1.0),
        involuntary_per_s: Some(2.0),
        ..TaskView::of(TaskId { tgid, tid, start_time: 7 }, comm)
    }
}

/// The host over a second.
pub fn look() -> Look {
    let mut topology = Topology::synthetic(1, 1, 2, 1);
    topology.cpus[1].isolated = true;
    let cpu = |cpu, busy_pct| CpuView { cpu, busy_pct, steal_pct: Some(1.5), irq_pct: Some(2.5) };
    let in_web = |task: TaskView| TaskView { container: Some(0), pod: Some(0), ..task };
    let tasks = vec![
        TaskView { kernel_thread: true, ..task(2, 2, "kthreadd", 0, 0, 0.0, 0.0) },
        in_web(task(100, 100, "nginx", 2, 1, 10.0, 1.0)),
        in_web(task(100, 101, "worker", 2, 0, 60.0, 80.0)),
        TaskView { vm: Some(0), voluntary_per_s: None, ..task(200, 200, "qemu", 3, 1, 40.0, 0.5) },
        task(300, 300, "cron", 4, 0, 5.0, 2.0),
    ];
    let observation = Observation {
        wall_ns: 1_790_000_000_000_000_000,
        host: HostView {
            cpus: 2,
            busy_pct: 115.0,
            steal_pct: Some(3.0),
            per_cpu: vec![cpu(0, 65.0), cpu(1, 50.0)],
        },
        tasks,
        groups: vec![
            group("/", None, None),
            group("/kubepods/front", Some(0), Some(0.0)),
            group("/kubepods/front/web", Some(1), Some(25.0)),
            group("/machine/db", Some(0), Some(0.0)),
            group("/system.slice/cron.service", Some(0), Some(0.0)),
        ],
        containers: vec![ContainerView {
            id: "c1".into(),
            pod: Some(0),
            group: Some(2),
            ..ContainerView::of("web", "docker")
        }],
        pods: vec![PodView { uid: "uid".into(), group: Some(1), ..PodView::of("shop", "front") }],
        vms: vec![VmView { name: "db".into(), pid: 200, vcpus: vec![200], group: Some(3) }],
        ..Observation::of(topology)
    };
    let rate = NetworkRate { received_per_s: 1_234_000.0, sent_per_s: 30_400.0 };
    let networks = NetworkRates { host: Some(rate), containers: [("c1".to_owned(), rate)].into() };
    Look { observation, networks, own_pct: Some(0.4) }
}

pub fn host() -> Census {
    let look = look();
    let mut census = Census::new(&look.observation);
    census.add_networks(&look.networks);
    census
}
