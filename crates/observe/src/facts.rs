//! Reads [`HostFacts`]: what an audit needs beyond rates. Nothing here fails as a whole; a fact that cannot be read
//! carries the reason.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::{HostFacts, Known, Mount, Mounts, Pressure, TaskMemory};
use evenkeel_linux::facts::{autogroup, boot, cpufreq, cpusets, irq, network, numa_maps};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::sysfs::NODE_DIR;
use evenkeel_linux::{ReadError, Root, cgroupfs, pressure, sysfs};

/// For which processes the costly facts are read.
#[derive(Debug, Clone, Default)]
pub struct FactsOptions {
    /// Processes whose autogroup is read.
    pub autogroups_of: Vec<u32>,
    /// Processes whose memory by node is read (on hosts with more than one node).
    pub memory_of: Vec<u32>,
}

/// Reads the facts of a host or a captured tree.
pub fn read_facts(root: &Root, options: &FactsOptions) -> HostFacts {
    let hierarchies = Hierarchies::read(root);
    let mount = |of: fn(&Hierarchies) -> &Option<Hierarchy>| {
        let found = hierarchies.as_ref().ok().and_then(|all| of(all).as_ref());
        found.map(|hierarchy| Mount { path: hierarchy.mount_point.clone(), v2: hierarchy.v2 })
    };
    let cpusets = match &hierarchies {
        Ok(all) => match &all.cpuset {
            Some(hierarchy) => cpusets::read(root, hierarchy).into(),
            None => Known::Unknown("no cgroup hierarchy with the cpuset controller is mounted".to_owned()),
        },
        Err(error) => Known::Unknown(error.to_string()),
    };
    let autogroup = switch(root, "proc/sys/kernel/sched_autogroup_enabled", Some(false));
    let autogroups = match autogroup {
        // Off: no task is in one.
        Known::Value(false) => Known::Value(Vec::new()),
        _ => each(&options.autogroups_of, |tgid| autogroup::read(root, tgid)).into(),
    };
    HostFacts {
        release: sysfs::read_release(root).into(),
        cmdline: boot::read(root).into(),
        irqs: irq::read(root).into(),
        governors: cpufreq::read(root).into(),
        pressure: read_pressure(root),
        autogroup,
        autogroups,
        memory: read_memory(root, &options.memory_of),
        numa_balancing: switch(root, "proc/sys/kernel/numa_balancing", Some(false)),
        cpusets,
        mounts: Mounts { cpu: mount(|all| &all.cpu), cpuset: mount(|all| &all.cpuset) },
        smt_active: switch(root, "sys/devices/system/cpu/smt/active", None),
        sched_ext: read_sched_ext(root),
        network: network::read(root).into(),
        preemption: read_preemption(root),
        huge_pages: root.parse("proc/sys/vm/nr_hugepages", cgroupfs::parse_number).into(),
        rt_runtime_usec: root
            .parse("proc/sys/kernel/sched_rt_runtime_us", cgroupfs::parse_signed)
            .map(|usec| u64::try_from(usec).ok())
            .into(),
        fair_server_off: read_fair_server_off(root).into(),
    }
}

/// Deadline servers of ordinary tasks, a directory for each CPU.
pub(crate) const FAIR_SERVER_DIR: &str = "sys/kernel/debug/sched/fair_server";

fn read_fair_server_off(root: &Root) -> Result<CpuSet, ReadError> {
    let mut off = CpuSet::new();
    for cpu in root.numbered(FAIR_SERVER_DIR, "cpu")? {
        if root.parse(format!("{FAIR_SERVER_DIR}/cpu{cpu}/runtime"), cgroupfs::parse_number)? == 0 {
            off.insert(cpu);
        }
    }
    Ok(off)
}

/// The one in brackets: `none voluntary (full) lazy`.
fn read_preemption(root: &Root) -> Known<String> {
    let path = "sys/kernel/debug/sched/preempt";
    match root.read(path) {
        Ok(text) => match text.split_once('(').and_then(|(_, rest)| rest.split_once(')')) {
            Some((model, _)) => Known::Value(model.to_owned()),
            None => Known::Unknown(format!("/{path}: none of {:?} is in brackets", text.trim())),
        },
        Err(error) => Known::Unknown(error.to_string()),
    }
}

/// One answer a process; those that have ended are left out.
fn each<T>(
    processes: &[u32],
    read: impl Fn(u32) -> Result<Option<T>, ReadError>,
) -> Result<Vec<T>, ReadError> {
    processes.iter().filter_map(|&tgid| read(tgid).transpose()).collect()
}

/// A file of one number, on or off. `absent`: what a living kernel without the file has.
fn switch(root: &Root, file: &str, absent: Option<bool>) -> Known<bool> {
    match root.parse(file, cgroupfs::parse_number) {
        Ok(number) => Known::Value(number != 0),
        Err(error) => match absent {
            Some(value) if error.is_gone() && root.is_live() => Known::Value(value),
            _ => Known::Unknown(error.to_string()),
        },
    }
}

fn read_pressure(root: &Root) -> Known<Pressure> {
    match pressure::read(root) {
        Ok(Some(psi)) => Known::Value(Pressure {
            some_avg10: psi.some_avg[0],
            some_avg60: psi.some_avg[1],
            some_avg300: psi.some_avg[2],
            some_total_usec: psi.some_total_usec,
        }),
        Ok(None) => Known::Unknown(format!(
            "{}: not there, or switched off (the kernel needs CONFIG_PSI; boot with psi=1)",
            root.path("proc/pressure/cpu").display()
        )),
        Err(error) => Known::Unknown(error.to_string()),
    }
}

fn read_memory(root: &Root, processes: &[u32]) -> Known<Vec<TaskMemory>> {
    match root.numbered(NODE_DIR, "node") {
        Ok(nodes) if nodes.len() < 2 => Known::Value(Vec::new()),
        Err(error) if error.is_gone() && root.is_live() => Known::Value(Vec::new()),
        Err(error) => Known::Unknown(error.to_string()),
        Ok(_) => Known::Value(
            processes
                .iter()
                .filter_map(|&tgid| {
                    let bytes_by_node = match numa_maps::read(root, tgid) {
                        Ok(bytes) => Known::Value(bytes?),
                        Err(error) => Known::Unknown(error.to_string()),
                    };
                    Some(TaskMemory { tgid, bytes_by_node })
                })
                .collect(),
        ),
    }
}

fn read_sched_ext(root: &Root) -> Known<Option<String>> {
    match root.read("sys/kernel/sched_ext/state") {
        Ok(state) if state.trim() == "enabled" => {
            let name = root.read("sys/kernel/sched_ext/root/ops").unwrap_or_default();
            Known::Value(Some(name.trim().to_owned()))
        }
        Ok(_) => Known::Value(None),
        Err(error) if error.is_gone() && root.is_live() => Known::Value(None),
        Err(error) => Known::Unknown(error.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree of these files, by name and text.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        evenkeel_linux::testing::lay(dir.path(), files);
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn an_empty_tree_knows_nothing_and_says_which_file() {
        let (dir, root) = tree(&[]);
        let facts = read_facts(&root, &FactsOptions { autogroups_of: vec![1], memory_of: vec![1] });
        let path = dir.path().display().to_string();
        let reasons = [
            facts.release.get().unwrap_err(),
            facts.cmdline.get().unwrap_err(),
            facts.irqs.get().unwrap_err(),
            facts.governors.get().unwrap_err(),
            facts.pressure.get().unwrap_err(),
            facts.autogroup.get().unwrap_err(),
            facts.memory.get().unwrap_err(),
            facts.cpusets.get().unwrap_err(),
            facts.sched_ext.get().unwrap_err(),
            facts.rt_runtime_usec.get().unwrap_err(),
            facts.fair_server_off.get().unwrap_err(),
            facts.preemption.get().unwrap_err(),
            facts.huge_pages.get().unwrap_err(),
        ];
        for reason in reasons {
            assert!(reason.0.starts_with(&path), "{reason} does not name its file");
        }
    }

    #[test]
    fn what_a_tree_holds_is_read() {
        let (_dir, root) = tree(&[
            ("proc/cmdline", "isolcpus=1\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-x\n"),
            ("proc/sys/kernel/sched_autogroup_enabled", "1\n"),
            ("proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
            ("proc/7/autogroup", "/autogroup-3 nice 5\n"),
            ("proc/7/stat", ""),
            ("proc/7/numa_maps", "00 default anon=1 N1=1 kernelpagesize_kB=4\n"),
            ("proc/8/stat", ""),
            ("sys/devices/system/node/node0/cpulist", "0\n"),
            ("sys/devices/system/node/node1/cpulist", "1\n"),
            ("sys/kernel/debug/sched/preempt", "none voluntary (full) lazy\n"),
            ("sys/kernel/debug/sched/fair_server/cpu0/runtime", "50000000\n"),
            ("sys/kernel/debug/sched/fair_server/cpu1/runtime", "0\n"),
            ("proc/sys/vm/nr_hugepages", "0\n"),
            ("sys/kernel/sched_ext/state", "enabled\n"),
            ("sys/kernel/sched_ext/root/ops", "scx_lavd\n"),
        ]);
        let options = FactsOptions { autogroups_of: vec![7, 999], memory_of: vec![7, 8, 999] };
        let facts = read_facts(&root, &options);
        assert_eq!(facts.cmdline.ok().unwrap().value("isolcpus"), Some("1"));
        assert_eq!(facts.autogroups.ok().unwrap().len(), 1, "999 has ended");
        assert_eq!(facts.autogroups.ok().unwrap()[0].group, Some(3));
        let memory = facts.memory.ok().unwrap();
        assert_eq!(memory[0].bytes_by_node, Known::Value(vec![(1, 4096)]));
        assert!(memory[1].bytes_by_node.get().unwrap_err().0.contains("proc/8/numa_maps"));
        assert_eq!(memory.len(), 2);
        assert_eq!(facts.rt_runtime_usec, Known::Value(None));
        assert_eq!(facts.fair_server_off, Known::Value(CpuSet::single(1)));
        assert_eq!((facts.preemption, facts.huge_pages), (Known::Value("full".into()), Known::Value(0)));
        assert_eq!(facts.sched_ext, Known::Value(Some("scx_lavd".into())));
    }
}
