//! The machine as `/sys/devices/system` shows it.

use std::collections::BTreeMap;

use evenkeel_base::facts::{BootedHost, KernelParams, boot_list, release_version};
use evenkeel_base::{Cpu, CpuSet, Node, Topology};
use evenkeel_linux::facts::boot;
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::sysfs::{self, CPU_DIR, NODE_DIR};
use evenkeel_linux::{ReadError, Root, cgroup, cgroupfs, pid_status, proc_stat};

use crate::ObserveError;

/// How deep below the v2 root isolated partitions are looked for on kernels that do not list them (before 6.8).
const PARTITION_DEPTH: usize = 3;

/// Reads the machine. What sysfs does not say is `None` or empty; a host without `/sys` still has its CPUs, from
/// `/proc/stat`, all on node 0.
///
/// # Errors
/// A file that exists and is unreadable or malformed; neither `/sys` nor `/proc/stat`.
pub fn read_topology(root: &Root) -> Result<Topology, ObserveError> {
    let list = |name: &str| sysfs::read_list(root, &format!("{CPU_DIR}/{name}"));
    let listed = list("online")?;
    let has_sysfs = listed.is_some();
    let online = match listed {
        Some(online) => online,
        None => proc_stat::read(root)?.cpus.iter().map(|times| times.cpu).collect(),
    };
    let present = match list("present")? {
        Some(present) => present,
        None => online.union(&directories(root)),
    };
    let possible = list("possible")?.unwrap_or_else(|| present.clone());
    let booted = boot::parse(&root.read_optional("proc/cmdline")?.unwrap_or_default());
    let nohz_full = match list("nohz_full")? {
        Some(cpus) => cpus,
        // A kernel that does not list them in its sysfs is built without CONFIG_NO_HZ_FULL, and ignores the parameter.
        None if has_sysfs => CpuSet::new(),
        None => booted.isolated_from("nohz", &BootedHost { possible: &possible, release: release(root) }),
    };
    // The kernel offloads the RCU callbacks of every nohz_full CPU too.
    let rcu_nocbs = rcu_nocbs(&booted, &possible).union(&nohz_full);
    let hierarchies = hierarchies(root)?;
    let isolated =
        list("isolated")?.unwrap_or_default().union(&isolated_partitions(root, hierarchies.as_ref())?);
    let nodes = read_nodes(root, &present)?;
    let node_of: BTreeMap<u32, u32> =
        nodes.iter().flat_map(|node| node.cpus.iter().map(|cpu| (cpu, node.node))).collect();
    let mut cpus = Vec::new();
    for cpu in present.iter() {
        cpus.push(read_cpu(root, cpu, &online, &isolated, &nohz_full, node_of.get(&cpu).copied())?);
    }
    let allowed = own_cpuset(root, hierarchies.as_ref())?.unwrap_or_else(|| online.clone());
    Ok(Topology { cpus, nodes, possible, present, online, isolated, nohz_full, rcu_nocbs, allowed })
}

fn read_cpu(
    root: &Root,
    cpu: u32,
    online: &CpuSet,
    isolated: &CpuSet,
    nohz_full: &CpuSet,
    node: Option<u32>,
) -> Result<Cpu, ReadError> {
    let number = |name: &str| sysfs::read_number(root, &format!("{CPU_DIR}/cpu{cpu}/{name}"));
    let list = |name: &str| sysfs::read_list(root, &format!("{CPU_DIR}/cpu{cpu}/topology/{name}"));
    // `core_cpus_list` is the newer name (5.2) of `thread_siblings_list`.
    let siblings = match list("core_cpus_list")? {
        Some(cpus) => Some(cpus),
        None => list("thread_siblings_list")?,
    };
    let caches = sysfs::read_caches(root, cpu)?;
    let last = caches.iter().rfind(|cache| cache.kind != "Instruction");
    Ok(Cpu {
        cpu,
        online: online.contains(cpu),
        isolated: isolated.contains(cpu),
        nohz_full: nohz_full.contains(cpu),
        socket: number("topology/physical_package_id")?,
        die: number("topology/die_id")?,
        node,
        core: siblings.as_ref().and_then(CpuSet::first),
        llc: last.and_then(|cache| cache.shared.first()),
        siblings: siblings.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| CpuSet::single(cpu)),
        capacity: number("cpu_capacity")?,
    })
}

fn directories(root: &Root) -> CpuSet {
    root.numbered(CPU_DIR, "cpu").unwrap_or_default().into_iter().collect()
}

/// NUMA nodes; node 0 with every CPU where the kernel has no NUMA.
fn read_nodes(root: &Root, present: &CpuSet) -> Result<Vec<Node>, ReadError> {
    let numbers = match root.numbered(NODE_DIR, "node") {
        Ok(numbers) => numbers,
        Err(error) if error.is_gone() => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut nodes = Vec::new();
    for node in numbers {
        let dir = format!("{NODE_DIR}/node{node}");
        nodes.push(Node {
            node,
            cpus: sysfs::read_list(root, &format!("{dir}/cpulist"))?.unwrap_or_default(),
            memory_bytes: root.parse_optional(format!("{dir}/meminfo"), sysfs::parse_node_meminfo)?,
            distances: root
                .parse_optional(format!("{dir}/distance"), sysfs::parse_distances)?
                .unwrap_or_default(),
        });
    }
    if nodes.is_empty() {
        nodes.push(Node { node: 0, cpus: present.clone(), memory_bytes: None, distances: vec![10] });
    }
    Ok(nodes)
}

/// CPUs whose RCU callbacks the command line offloads: those of the last list, and all where that is not one (`rcu_nocb_setup` in the
/// kernel's `kernel/rcu/tree_nocb.h`).
fn rcu_nocbs(booted: &KernelParams, possible: &CpuSet) -> CpuSet {
    match booted.value("rcu_nocbs") {
        None | Some("") => CpuSet::new(),
        Some(list) => boot_list(list, possible).unwrap_or_else(|| possible.clone()),
    }
}

fn release(root: &Root) -> Option<(u32, u32)> {
    release_version(&sysfs::read_release(root).ok()?)
}

pub(crate) fn hierarchies(root: &Root) -> Result<Option<Hierarchies>, ReadError> {
    match Hierarchies::read(root) {
        Ok(hierarchies) => Ok(Some(hierarchies)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// CPUs in isolated cpuset partitions: listed by the root group since Linux 6.8, searched for before.
fn isolated_partitions(root: &Root, hierarchies: Option<&Hierarchies>) -> Result<CpuSet, ReadError> {
    let Some(cpuset) = hierarchies.and_then(|h| h.cpuset.as_ref()).filter(|h| h.v2) else {
        return Ok(CpuSet::new());
    };
    if let Some(cpus) = sysfs::read_list(root, &format!("{}/cpuset.cpus.isolated", cpuset.mount_point))? {
        return Ok(cpus);
    }
    let mut found = CpuSet::new();
    let mut dirs = vec![(root.path(&cpuset.mount_point), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        let partition = root.read_path(&dir.join("cpuset.cpus.partition")).unwrap_or_default();
        if partition.trim() == "isolated" {
            let cpus = root.read_path(&dir.join("cpuset.cpus.effective")).unwrap_or_default();
            found = found.union(&cgroupfs::parse_list(&cpus)?);
        }
        if depth < PARTITION_DEPTH {
            let children = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            let children = children.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            dirs.extend(children.map(|entry| (entry.path(), depth + 1)));
        }
    }
    Ok(found)
}

/// CPUs the reading process's cpuset leaves it; where there is no cpuset, its affinity.
fn own_cpuset(root: &Root, hierarchies: Option<&Hierarchies>) -> Result<Option<CpuSet>, ReadError> {
    if let Some(cpuset) = hierarchies.and_then(|h| h.cpuset.as_ref()) {
        let memberships = root.parse_optional("proc/self/cgroup", cgroup::parse)?.unwrap_or_default();
        let path = if cpuset.v2 { memberships.v2() } else { memberships.v1("cpuset") };
        let cpus = cgroupfs::read_effective_cpus(root, cpuset, cpuset.below(path.unwrap_or("/")))?;
        if let Some(cpus) = cpus.filter(|cpus| !cpus.is_empty()) {
            return Ok(Some(cpus));
        }
    }
    Ok(root.parse_optional("proc/self/status", pid_status::parse)?.and_then(|status| status.cpus_allowed))
}
