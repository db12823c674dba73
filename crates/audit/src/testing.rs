//! A small made-up host for the rules' tests: what a test does not say is right and readable.

use std::path::Path;
use std::sync::Arc;

use evenkeel_base::facts::{
    Autogroup, CpusetGroup, Governor, Irq, KernelParams, Mount, Mounts, Network, Pressure, TaskMemory,
};
use evenkeel_base::observation::CpuView;
use evenkeel_base::run::ChangeRecord;
use evenkeel_base::{
    ContainerView, CpuQuota, CpuSet, GroupView, HostFacts, HostView, Known, Limit, Nice, Observation,
    SchedAttr, SchedPolicy, TaskId, TaskView, Topology,
};

use super::{Expectations, Finding, Input, RULES};

/// Facts, observation and expectations of a test.
#[derive(Debug, Clone)]
pub struct World {
    pub facts: HostFacts,
    pub observation: Observation,
    pub expectations: Expectations,
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

impl World {
    /// One node, no SMT, cgroup v1.
    pub fn new(cpus: u32) -> Self {
        Self::with(Topology::synthetic(1, 1, cpus, 1))
    }

    /// Like [`World::new`] on cgroup v2.
    pub fn v2(cpus: u32) -> Self {
        let mut world = Self::new(cpus);
        world.facts.mounts = Mounts {
            cpu: Some(Mount { path: "/sys/fs/cgroup".into(), v2: true }),
            cpuset: Some(Mount { path: "/sys/fs/cgroup".into(), v2: true }),
        };
        world.observation.groups[0].v2 = true;
        world
    }

    /// Two threads a core: CPUs 0..cores and their siblings.
    pub fn smt(cores: u32) -> Self {
        Self::with(Topology::synthetic(1, 1, cores, 2))
    }

    /// Nodes of this many CPUs each.
    pub fn numa(nodes: u32, cpus: u32) -> Self {
        Self::with(Topology::synthetic(nodes, 1, cpus, 1))
    }

    pub fn with(topology: Topology) -> Self {
        let cpus = topology.online.len() as u32;
        let root = GroupView {
            load_weight: Some(1024),
            raw_weight: Some(1024),
            quota: Some(CpuQuota::UNLIMITED),
            cpuset: Some(topology.online.clone()),
            ..GroupView::of("/", None, false)
        };
        let facts = HostFacts {
            release: Known::Value("6.18.0".into()),
            cmdline: Known::Value(KernelParams::default()),
            irqs: Known::Value(vec![]),
            governors: Known::Value(vec![]),
            pressure: Known::Value(Pressure {
                some_avg10: 0.0,
                some_avg60: 0.0,
                some_avg300: 0.0,
                some_total_usec: 0,
            }),
            autogroup: Known::Value(false),
            autogroups: Known::Value(vec![]),
            memory: Known::Value(vec![]),
            numa_balancing: Known::Value(false),
            cpusets: Known::Value(vec![]),
            mounts: Mounts {
                cpu: Some(Mount { path: "/sys/fs/cgroup/cpu".into(), v2: false }),
                cpuset: Some(Mount { path: "/sys/fs/cgroup/cpuset".into(), v2: false }),
            },
            smt_active: Known::Value(false),
            sched_ext: Known::Value(None),
            network: Known::Value(Network {
                received_by_cpu: vec![],
                sock_flow_entries: Known::Value(0),
                links: vec![],
            }),
            preemption: Known::default(),
            huge_pages: Known::default(),
            rt_runtime_usec: Known::default(),
            fair_server_off: Known::default(),
        };
        let observation = Observation {
            host: HostView::evenly(cpus, 0.0),
            groups: vec![root],
            ..Observation::of(topology)
        };
        Self { facts, observation, expectations: Expectations::default() }
    }

    /// A fact that may not be read.
    pub fn denied<T>(path: &str) -> Known<T> {
        Known::Unknown(format!("{path}: permission denied (os error 13)"))
    }

    pub fn run(&self, rule: &str) -> Vec<Finding> {
        let rule = RULES.iter().find(|r| r.name == rule).unwrap();
        rule.sum_up(rule.findings(&self.input()))
    }

    pub fn only(&self, rule: &str) -> Finding {
        let mut findings = self.run(rule);
        assert_eq!(findings.len(), 1, "{findings:#?}");
        findings.remove(0)
    }

    pub fn input(&self) -> Input<'_> {
        Input { facts: &self.facts, observation: &self.observation, expectations: &self.expectations }
    }

    pub fn topology(&mut self) -> &mut Topology {
        Arc::make_mut(&mut self.observation.topology)
    }

    pub fn isolated(mut self, cpus: &str) -> Self {
        let cpus = set(cpus);
        let topology = self.topology();
        for cpu in &mut topology.cpus {
            cpu.isolated = cpus.contains(cpu.cpu);
        }
        topology.isolated = cpus;
        self
    }

    pub fn cmdline(mut self, text: &str) -> Self {
        let params = text.split_whitespace().map(|word| match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.to_owned(), None),
        });
        self.facts.cmdline = Known::Value(KernelParams { text: text.to_owned(), params: params.collect() });
        self
    }

    pub fn expect(mut self, policy: &str) -> Self {
        self.expectations = Expectations::parse(Path::new("test.toml"), policy).unwrap();
        self
    }

    /// Busy percentages of CPUs 0, 1, ...; those not given are unread.
    pub fn busy(&mut self, pct: &[f64]) {
        let view =
            |(cpu, &busy_pct)| CpuView { cpu: cpu as u32, busy_pct, steal_pct: Some(0.0), irq_pct: None };
        self.observation.host.per_cpu = pct.iter().enumerate().map(view).collect();
    }

    /// A new process; the first is 100, the next 101 and so on.
    pub fn task(&mut self, comm: &str, cpu_pct: f64) -> &mut TaskView {
        let pid = 100 + self.observation.tasks.len() as u32;
        self.thread_of(pid, pid, comm, cpu_pct)
    }

    /// Another thread of a process.
    pub fn thread(&mut self, tgid: u32, comm: &str, cpu_pct: f64) -> &mut TaskView {
        let tid = 100 + self.observation.tasks.len() as u32;
        self.thread_of(tgid, tid, comm, cpu_pct)
    }

    fn thread_of(&mut self, tgid: u32, tid: u32, comm: &str, cpu_pct: f64) -> &mut TaskView {
        self.observation.tasks.push(TaskView {
            ppid: 1,
            cpu: Some(0),
            affinity: Some(self.observation.topology.online.clone()),
            sched: Some(SchedAttr::DEFAULT),
            group: Some(0),
            cpu_pct,
            wait_pct: Some(0.0),
            ..TaskView::of(TaskId { tgid, tid, start_time: 1 }, comm)
        });
        self.observation.tasks.last_mut().unwrap()
    }

    /// A group below the root with this raw weight (shares on v1).
    pub fn group(&mut self, path: &str, weight: u64) -> u32 {
        let v2 = self.observation.groups[0].v2;
        let mut group = self.observation.groups[0].clone();
        group.path = path.into();
        group.parent = Some(0);
        group.raw_weight = Some(weight);
        group.load_weight = Some(if v2 { weight * 1024 / 100 } else { weight });
        self.observation.groups.push(group);
        self.observation.groups.len() as u32 - 1
    }

    pub fn quota(&mut self, group: u32, usec: u64, period: u64, throttled: Option<(u64, u64)>) -> &mut Self {
        let view = &mut self.observation.groups[group as usize];
        view.quota = Some(CpuQuota { quota_usec: Limit::Value(usec), period_usec: period, burst_usec: 0 });
        view.throttled_periods = throttled;
        self
    }

    /// Its threads stood still for a part of the time, percent summed over CPUs.
    pub fn stood_still(&mut self, group: u32, pct: f64) -> &mut Self {
        self.observation.groups[group as usize].throttled_pct = Some(pct);
        self
    }

    pub fn used(&mut self, group: u32, pct: f64) {
        self.observation.groups[group as usize].cpu_pct = Some(pct);
    }

    /// A run at work has set this of a cgroup, which had that.
    pub fn set_by_run(&mut self, group: &str, knob: &str, from: &str) {
        let (group, knob, from) = (Some(group.to_owned()), knob.to_owned(), from.to_owned());
        self.expectations.set_by_run.push(ChangeRecord { group, knob, from, ..ChangeRecord::default() });
    }

    pub fn container(&mut self, name: &str, runtime: &str, group: u32) {
        self.observation.containers.push(ContainerView {
            id: "0123456789ab".repeat(5),
            group: Some(group),
            ..ContainerView::of(name, runtime)
        });
    }

    pub fn irq(
        &mut self,
        irq: u32,
        name: &str,
        affinity: &str,
        effective: Option<&str>,
        counts: &[(u32, u64)],
    ) {
        let effective = effective.map_or_else(|| Self::denied("/proc/irq"), |text| Known::Value(set(text)));
        let Known::Value(irqs) = &mut self.facts.irqs else { panic!("no irqs") };
        irqs.push(Irq {
            irq,
            name: name.into(),
            affinity: Known::Value(set(affinity)),
            effective,
            counts: counts.to_vec(),
        });
    }

    pub fn governors(&mut self, governors: &[&str], driver: Option<&str>) {
        let one = |(cpu, governor): (usize, &&str)| Governor {
            cpu: cpu as u32,
            governor: (*governor).into(),
            driver: driver.map(Into::into),
            preference: None,
        };
        self.facts.governors = Known::Value(governors.iter().enumerate().map(one).collect());
    }

    pub fn pressure(&mut self, avg10: f64, avg60: f64) {
        self.facts.pressure = Known::Value(Pressure {
            some_avg10: avg10,
            some_avg60: avg60,
            some_avg300: 0.0,
            some_total_usec: 0,
        });
    }

    pub fn autogroup(&mut self, tgid: u32, group: u64) -> &mut Self {
        let Known::Value(all) = &mut self.facts.autogroups else { panic!("no autogroups") };
        all.push(Autogroup { tgid, group: Some(group), nice: 0 });
        self
    }

    pub fn memory(&mut self, tgid: u32, bytes: &[(u32, u64)]) {
        self.facts.memory =
            Known::Value(vec![TaskMemory { tgid, bytes_by_node: Known::Value(bytes.to_vec()) }]);
    }

    pub fn cpuset(&mut self, path: &str, cpus: &str, mems: &str) -> &mut CpusetGroup {
        let Known::Value(all) = &mut self.facts.cpusets else { panic!("no cpusets") };
        all.push(CpusetGroup {
            path: path.into(),
            cpus: set(cpus),
            effective: Some(set(cpus)),
            mems: set(mems),
            effective_mems: Some(set(mems)),
            memory_migrate: None,
            partition: None,
        });
        all.last_mut().unwrap()
    }
}

/// Shorthand to change one property of a task.
pub trait TaskExt {
    fn cpu(&mut self, cpu: u32) -> &mut Self;
    fn no_cpu(&mut self) -> &mut Self;
    fn affinity(&mut self, cpus: &str) -> &mut Self;
    fn no_affinity(&mut self) -> &mut Self;
    fn kernel(&mut self) -> &mut Self;
    fn wait(&mut self, pct: f64) -> &mut Self;
    fn no_wait(&mut self) -> &mut Self;
    fn nice(&mut self, nice: i32) -> &mut Self;
    fn policy(&mut self, policy: SchedPolicy) -> &mut Self;
    fn no_sched(&mut self) -> &mut Self;
    fn in_group(&mut self, group: u32) -> &mut Self;
}

impl TaskExt for TaskView {
    fn cpu(&mut self, cpu: u32) -> &mut Self {
        self.cpu = Some(cpu);
        self
    }
    fn no_cpu(&mut self) -> &mut Self {
        self.cpu = None;
        self
    }
    fn affinity(&mut self, cpus: &str) -> &mut Self {
        self.affinity = Some(set(cpus));
        self
    }
    fn no_affinity(&mut self) -> &mut Self {
        self.affinity = None;
        self
    }
    fn kernel(&mut self) -> &mut Self {
        self.kernel_thread = true;
        self
    }
    fn wait(&mut self, pct: f64) -> &mut Self {
        self.wait_pct = Some(pct);
        self
    }
    fn no_wait(&mut self) -> &mut Self {
        self.wait_pct = None;
        self
    }
    fn nice(&mut self, nice: i32) -> &mut Self {
        self.sched = Some(SchedAttr { nice: Nice::new(nice), ..SchedAttr::DEFAULT });
        self
    }
    fn policy(&mut self, policy: SchedPolicy) -> &mut Self {
        self.sched = Some(SchedAttr { policy, rt_priority: 1, ..SchedAttr::DEFAULT });
        self
    }
    fn no_sched(&mut self) -> &mut Self {
        self.sched = None;
        self
    }
    fn in_group(&mut self, group: u32) -> &mut Self {
        self.group = Some(group);
        self
    }
}
