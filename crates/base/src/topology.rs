//! The machine: sockets, dies, NUMA nodes, caches, cores, SMT siblings, isolation.

use serde::{Deserialize, Serialize};

use crate::CpuSet;

/// The CPUs of a host and how they relate.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Topology {
    /// Every present CPU, ascending by number; offline ones included.
    pub cpus: Vec<Cpu>,
    /// NUMA nodes, ascending; one node 0 on a host without NUMA.
    pub nodes: Vec<Node>,
    /// CPUs the kernel could ever bring up (`possible`).
    pub possible: CpuSet,
    /// CPUs physically there.
    pub present: CpuSet,
    /// CPUs running now.
    pub online: CpuSet,
    /// CPUs outside the scheduler's load balancing: `isolcpus=` and isolated cpuset partitions.
    pub isolated: CpuSet,
    /// CPUs without a periodic tick (`nohz_full=`).
    pub nohz_full: CpuSet,
    /// CPUs whose RCU callbacks run elsewhere (`rcu_nocbs=`).
    pub rcu_nocbs: CpuSet,
    /// CPUs this process may use (its effective cpuset).
    pub allowed: CpuSet,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Logical number.
    pub cpu: u32,
    /// Whether it is running.
    pub online: bool,
    /// See [`Topology::isolated`].
    pub isolated: bool,
    /// See [`Topology::nohz_full`].
    pub nohz_full: bool,
    /// Socket (`physical_package_id`); `None` while offline.
    pub socket: Option<u32>,
    /// Die within the socket.
    pub die: Option<u32>,
    pub node: Option<u32>,
    /// Physical core, numbered uniquely over the whole host by its lowest logical CPU.
    pub core: Option<u32>,
    /// Last-level cache, numbered by its lowest logical CPU.
    pub llc: Option<u32>,
    /// Logical CPUs of the same physical core, this one included.
    pub siblings: CpuSet,
    /// `cpu_capacity` (1024 is the biggest core), where the kernel tells.
    pub capacity: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Node number.
    pub node: u32,
    /// Its CPUs (may be none).
    pub cpus: CpuSet,
    pub memory_bytes: Option<u64>,
    /// Distance to each node in the order of [`Topology::nodes`]; 10 is local.
    pub distances: Vec<u32>,
}

impl Topology {
    /// An in-memory machine for tests and simulations, numbered as Linux usually does: first threads of all cores,
    /// then their siblings.
    ///
    /// ```
    /// // node 0: cores 0 1 (threads 0,4 1,5), node 1: cores 2 3 (threads 2,6 3,7)
    /// let t = evenkeel_base::Topology::synthetic(2, 1, 2, 2);
    /// assert_eq!(t.cpus[0].siblings.to_string(), "0,4");
    /// assert_eq!(t.nodes[1].cpus.to_string(), "2-3,6-7");
    /// ```
    pub fn synthetic(nodes: u32, llcs_per_node: u32, cores_per_llc: u32, threads: u32) -> Self {
        let cores = nodes * llcs_per_node * cores_per_llc;
        let mut cpus = Vec::new();
        for thread in 0..threads {
            for core in 0..cores {
                let llc = core / cores_per_llc.max(1);
                let node = llc / llcs_per_node.max(1);
                cpus.push(Cpu {
                    cpu: thread * cores + core,
                    online: true,
                    isolated: false,
                    nohz_full: false,
                    socket: Some(node),
                    die: Some(0),
                    node: Some(node),
                    core: Some(core),
                    llc: Some(llc * cores_per_llc),
                    siblings: (0..threads).map(|t| t * cores + core).collect(),
                    capacity: None,
                });
            }
        }
        let all = CpuSet::first_n(cores * threads);
        let nodes = (0..nodes)
            .map(|node| Node {
                node,
                cpus: cpus.iter().filter(|c| c.node == Some(node)).map(|c| c.cpu).collect(),
                memory_bytes: None,
                distances: (0..nodes).map(|other| if other == node { 10 } else { 20 }).collect(),
            })
            .collect();
        Self {
            cpus,
            nodes,
            possible: all.clone(),
            present: all.clone(),
            online: all.clone(),
            isolated: CpuSet::new(),
            nohz_full: CpuSet::new(),
            rcu_nocbs: CpuSet::new(),
            allowed: all,
        }
    }

    /// The entry of a logical CPU.
    pub fn cpu(&self, cpu: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&cpu, |c| c.cpu).ok().map(|index| &self.cpus[index])
    }

    /// Whether any core has more than one online thread.
    pub fn has_smt(&self) -> bool {
        self.cpus.iter().any(|c| c.siblings.intersection(&self.online).len() > 1)
    }

    /// Number of physical cores with an online CPU.
    pub fn cores(&self) -> usize {
        let mut cores: Vec<_> = self.cpus.iter().filter(|c| c.online).filter_map(|c| c.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.len()
    }
}
