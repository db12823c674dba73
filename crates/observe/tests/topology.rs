//! Machines as they are read from trees of kernel files.

mod common;

use common::{Tree, numa_host};
use evenkeel_observe::{Scheduler, read_kernel, read_topology};

#[test]
fn two_sockets_with_smt_and_isolated_cpus() {
    let tree = numa_host();
    let topology = read_topology(&tree.root()).unwrap();
    assert_eq!((topology.cpus.len(), topology.cores(), topology.has_smt()), (48, 24, true));
    let (first, isolated, other) = (&topology.cpus[0], &topology.cpus[26], &topology.cpus[25]);
    assert_eq!((first.siblings.to_string(), first.socket, first.node), ("0,24".into(), Some(0), Some(0)));
    assert_eq!((isolated.core, isolated.isolated, isolated.nohz_full), (Some(2), true, true));
    assert_eq!((other.siblings.to_string(), other.socket, other.llc), ("1,25".into(), Some(1), Some(1)));
    assert_eq!(topology.isolated.to_string(), "2,26");
    assert_eq!(topology.rcu_nocbs.to_string(), "2,4,26");
    assert_eq!(topology.nodes[1].distances, [21, 10]);
    assert_eq!(topology.nodes[0].memory_bytes, Some(64 << 20));
    // No cpuset, no status of our own: everything that is online.
    assert_eq!(topology.allowed, topology.online);
}

#[test]
fn a_kernel_without_nohz_full_ignores_the_parameter() {
    let tree = numa_host();
    tree.remove("sys/devices/system/cpu/nohz_full");
    let topology = read_topology(&tree.root()).unwrap();
    assert!(topology.nohz_full.is_empty() && !topology.cpus[26].nohz_full);
    assert_eq!(topology.rcu_nocbs.to_string(), "2,4,26", "it has a parameter of its own");
}

/// As `rcu_nocb_setup` and `housekeeping_setup` do.
#[test]
fn of_several_lists_those_count_that_the_kernel_takes() {
    for (cmdline, rcu) in [
        ("rcu_nocbs=1 rcu-nocbs=2-3", "2-3"),
        ("rcu_nocbs=1 rcu_nocbs=40-N", "40-47"),
        ("rcu_nocbs=1 rcu_nocbs=x", "0-47"),
        ("rcu_nocbs=1 rcu_nocbs", ""),
        ("quiet -- rcu_nocbs=1", ""),
    ] {
        let tree = numa_host();
        tree.file("proc/cmdline", cmdline).remove("sys/devices/system/cpu/nohz_full");
        assert_eq!(read_topology(&tree.root()).unwrap().rcu_nocbs.to_string(), rcu, "{cmdline}");
    }
    for (cmdline, nohz) in
        [("nohz_full=1 nohz_full=2-3", "1"), ("isolcpus=nohz,3", "3"), ("nohz_full=x isolcpus=nohz,2", "2")]
    {
        let tree = Tree::new();
        tree.file("proc/stat", "cpu 1 1 1 1\ncpu0 1 1 1 1\ncpu1 1 1 1 1\ncpu2 1 1 1 1\ncpu3 1 1 1 1\n");
        tree.file("proc/cmdline", cmdline);
        assert_eq!(read_topology(&tree.root()).unwrap().nohz_full.to_string(), nohz, "{cmdline}");
    }
}

#[test]
fn an_offline_cpu_is_there_without_a_place() {
    let tree = numa_host();
    tree.file("sys/devices/system/cpu/online", "0-46\n").remove("sys/devices/system/cpu/cpu47/topology");
    let topology = read_topology(&tree.root()).unwrap();
    let cpu = topology.cpu(47).unwrap();
    assert_eq!(
        (cpu.online, cpu.socket, cpu.core, cpu.siblings.to_string()),
        (false, None, None, "47".into())
    );
    assert_eq!(topology.online.len(), 47);
}

#[test]
fn without_sysfs_the_cpus_come_from_proc_and_the_rest_is_unknown() {
    let tree = Tree::new();
    tree.file("proc/stat", "cpu 1 1 1 1\ncpu0 1 1 1 1\ncpu3 1 1 1 1\n");
    let topology = read_topology(&tree.root()).unwrap();
    assert_eq!(topology.online.to_string(), "0,3");
    assert_eq!((topology.cpus[1].socket, topology.cpus[1].llc), (None, None));
    assert_eq!((topology.nodes.len(), topology.nodes[0].memory_bytes), (1, None));
    assert!(read_topology(&Tree::new().root()).is_err(), "a tree with nothing in it is an error");
}

#[test]
fn isolated_partitions_of_v2_count_as_isolated() {
    let tree = Tree::fixture("v2-kubepods");
    tree.file("1/sys/fs/cgroup/rt.slice/cpuset.cpus.partition", "isolated\n")
        .file("1/sys/fs/cgroup/rt.slice/cpuset.cpus.effective", "1\n");
    assert_eq!(read_topology(&tree.root()).unwrap().isolated.to_string(), "1");
    // Newer kernels list them at the root; then nothing is searched.
    tree.file("1/sys/fs/cgroup/cpuset.cpus.isolated", "0\n");
    assert_eq!(read_topology(&tree.root()).unwrap().isolated.to_string(), "0");
}

#[test]
fn malformed_files_are_named_with_line() {
    let tree = numa_host();
    tree.file("sys/devices/system/cpu/cpu5/topology/core_cpus_list", "5-\n");
    let error = read_topology(&tree.root()).unwrap_err().to_string();
    assert!(error.contains("cpu5/topology/core_cpus_list:1: expected a list"), "{error}");
    let tree = numa_host();
    tree.file("sys/devices/system/node/node1/meminfo", "nonsense\n");
    let error = read_topology(&tree.root()).unwrap_err().to_string();
    assert!(error.contains("node1/meminfo:1:"), "{error}");
}

#[test]
fn kernels_and_what_they_offer() {
    let tree = Tree::fixture("v2-kubepods");
    let kernel = read_kernel(&tree.root());
    assert_eq!((kernel.scheduler, kernel.cgroup.as_deref()), (Some(Scheduler::Cfs), Some("v2")));
    for scheduler in Scheduler::ALL {
        assert_eq!(serde_json::to_value(scheduler).unwrap(), scheduler.name());
    }
    assert_eq!((kernel.features.task_slice, kernel.features.psi), (Some(false), Some(false)));
    tree.file("1/proc/sys/kernel/osrelease", "6.12.1\n")
        .file("1/sys/kernel/sched_ext/state", "enabled\n")
        .file("1/proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    let kernel = read_kernel(&tree.root());
    assert_eq!((kernel.scheduler, kernel.features.task_slice), (Some(Scheduler::Scx), Some(true)));
    assert_eq!(kernel.features.psi, Some(true));
    // Nothing readable: everything unknown, nothing fails.
    let kernel = read_kernel(&Tree::new().root());
    assert_eq!((kernel.release, kernel.scheduler, kernel.features.task_slice), (None, None, None));
}
