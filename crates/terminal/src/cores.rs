//! The core map: each CPU with its place, what it does, and who waits for it.

use std::collections::BTreeMap;

use evenkeel_base::Observation;

use crate::census::{Census, Key};

/// Who used a CPU and is not there at the end of an interval.
pub const OTHERS: &str = "(ended or moved on)";

#[derive(Debug, Clone, PartialEq)]
pub struct Core {
    pub cpu: u32,
    /// Left out of the scheduler's load balancing.
    pub isolated: bool,
    pub node: Option<u32>,
    pub socket: Option<u32>,
    /// Core in its package; hardware threads of one core share it.
    pub core: Option<u32>,
    /// Busy, percent.
    pub busy: f64,
    /// Stolen by the hypervisor, percent.
    pub steal: Option<f64>,
    /// Interrupts, percent.
    pub irq: Option<f64>,
    /// Tasks that waited, on average: the time that those who were on it last waited, throttling included, divided by the
    /// interval. `None` where waits are not known.
    pub queue: Option<f64>,
    /// Who ran there most, of those that are there at the end.
    pub most: Option<String>,
    /// Used by nobody who is there at the end, percent: by tasks that ended, or moved on.
    pub others: f64,
}

impl Core {
    /// Its number, starred where it is isolated.
    pub fn name(&self) -> String {
        format!("{}{}", self.cpu, if self.isolated { "*" } else { "" })
    }

    /// Where it is, in words.
    pub fn place(&self) -> String {
        let part = |name: &str, number: Option<u32>| number.map(|number| format!("{name} {number}"));
        let parts = [part("node", self.node), part("socket", self.socket), part("core", self.core)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// CPUs in the order of nodes, sockets, cores.
pub fn cores(observation: &Observation, census: &Census) -> Vec<Core> {
    let mut most: BTreeMap<u32, (f64, &str)> = BTreeMap::new();
    let mut there: BTreeMap<u32, f64> = BTreeMap::new();
    for item in census.items.iter().filter(|item| matches!(item.key, Key::Task(_))) {
        let Some(cpu) = item.core else { continue };
        *there.entry(cpu).or_default() += item.numbers.cpu;
        let best = most.entry(cpu).or_insert((0.0, ""));
        if item.numbers.cpu > best.0 {
            *best = (item.numbers.cpu, &item.name);
        }
    }
    let core = |view: &evenkeel_base::observation::CpuView| {
        let place = observation.topology.cpu(view.cpu);
        let known = there.get(&view.cpu).copied().unwrap_or_default() + view.irq_pct.unwrap_or_default();
        let others = (view.busy_pct - known).max(0.0);
        let most = most.get(&view.cpu).filter(|(pct, _)| *pct > 0.0);
        Core {
            cpu: view.cpu,
            isolated: place.is_some_and(|place| place.isolated),
            node: place.and_then(|place| place.node),
            socket: place.and_then(|place| place.socket),
            core: place.and_then(|place| place.core),
            busy: view.busy_pct,
            steal: view.steal_pct,
            irq: view.irq_pct,
            queue: census.get(&Key::Cpu(view.cpu)).and_then(|item| item.numbers.wait).map(|pct| pct / 100.0),
            most: match most {
                Some((pct, name)) if *pct >= others => Some((*name).to_owned()),
                None if others <= 0.0 => None,
                _ => Some(OTHERS.to_owned()),
            },
            others,
        }
    };
    let mut cores: Vec<Core> = observation.host.per_cpu.iter().map(core).collect();
    // What is not known where it is comes last.
    cores.sort_by_key(|core| (core.node.is_none(), core.node, core.socket, core.core, core.cpu));
    cores
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::look;

    #[test]
    fn isolated_cpus_are_starred_and_queues_are_means() {
        let look = look();
        let census = Census::new(&look.observation);
        let cores = cores(&look.observation, &census);
        let names: Vec<String> = cores.iter().map(Core::name).collect();
        assert_eq!(names, ["0", "1*"]);
        // 101 waited 80 % on CPU 0, cron 2 %.
        assert!(cores[0].queue.is_some_and(|queue| (queue - 0.82).abs() < 1e-9), "{:?}", cores[0].queue);
        assert_eq!(cores[0].most.as_deref(), Some("101 worker"));
        assert_eq!((cores[0].steal, cores[0].irq), (Some(1.5), Some(2.5)));
        assert!(cores[0].place().starts_with("node 0"), "{}", cores[0].place());
    }

    #[test]
    fn who_ended_or_moved_on_is_not_taken_for_somebody_who_is_there() {
        let mut look = look();
        let used: f64 = look.observation.tasks.iter().filter(|t| t.cpu == Some(0)).map(|t| t.cpu_pct).sum();
        let irq = look.observation.host.per_cpu[0].irq_pct.unwrap_or_default();
        let first = |look: &crate::errand::Look| {
            cores(&look.observation, &Census::new(&look.observation)).swap_remove(0)
        };
        look.observation.host.per_cpu[0].busy_pct = used + irq + 1.0;
        assert!((first(&look).others - 1.0).abs() < 1e-9);
        assert_eq!(first(&look).most.as_deref(), Some("101 worker"));
        look.observation.tasks.iter_mut().for_each(|task| task.cpu_pct = 0.5);
        assert_eq!(first(&look).most.as_deref(), Some(OTHERS));
    }

    #[test]
    fn a_queue_is_unknown_where_waits_are() {
        let mut look = look();
        look.observation.tasks.iter_mut().for_each(|task| task.wait_pct = None);
        let census = Census::new(&look.observation);
        assert_eq!(cores(&look.observation, &census)[0].queue, None);
    }
}
