//! Files of the kernel under `/proc` and `/sys`.

use evenkeel_base::CpuSet;
use evenkeel_base::facts::BootedHost;
use evenkeel_linux::facts::{autogroup, boot, irq, network, numa_maps};
use evenkeel_linux::mountinfo::{self, Hierarchies};
use evenkeel_linux::{
    cgroup, cgroupfs, cmdline, pid_stat, pid_status, pressure, proc_stat, schedstat, sysfs,
};

use super::amount::amount;
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target::text("pid-stat", |text| {
        let _ = pid_stat::parse(text);
    }),
    Target::bytes("pid-stat-short", |bytes| {
        if let Some((comm, _)) = pid_stat::comm_and_cpu(bytes) {
            assert!(comm.len() < bytes.len());
        }
    }),
    Target::text("pid-status", |text| {
        let _ = pid_status::parse(text);
        let _ = pid_status::switches(text.as_bytes());
    }),
    Target::text("proc-stat", |text| {
        if let Ok(stat) = proc_stat::parse(text) {
            assert!(stat.cpus.is_sorted_by(|a, b| a.cpu < b.cpu));
        }
    }),
    Target::bytes("schedstat", |bytes| {
        let short = schedstat::parse_bytes(bytes);
        if let Ok(text) = std::str::from_utf8(bytes) {
            assert_eq!(schedstat::parse(text).ok(), short);
        }
    }),
    Target::text("pressure", |text| {
        if let Ok(pressure) = pressure::parse(text) {
            pressure.some_avg.iter().for_each(|pct| amount("an average", *pct));
        }
    }),
    Target::text("cpu-stat", |text| {
        let _ = cgroupfs::parse_cpu_stat(text);
    }),
    Target::text("cpu-max", |text| {
        if let Ok(quota) = cgroupfs::parse_cpu_max(text)
            && let Some(pct) = quota.pct()
        {
            amount("a limit", pct);
        }
    }),
    Target::text("cgroup-number", |text| {
        let _ = cgroupfs::parse_number(text);
        let _ = cgroupfs::parse_signed(text);
        let _ = (cgroupfs::parse_list(text), cgroupfs::parent(text));
    }),
    Target::text("cgroup", |text| {
        if let Ok(memberships) = cgroup::parse(text) {
            assert!(memberships.0.iter().all(|membership| membership.path.starts_with('/')));
        }
        let _ = cgroup::container(text, "", false);
    }),
    Target::text("mountinfo", |text| {
        if let Ok(mounts) = mountinfo::parse(text) {
            let _ = Hierarchies::find(&mounts, None);
            let found = Hierarchies::find(&mounts, Some("cpu cpuset"));
            for hierarchy in [found.cpu, found.cpuset, found.cpuacct, found.unified].into_iter().flatten() {
                let _ = (hierarchy.dir("/a/b"), hierarchy.dir(text));
            }
        }
    }),
    Target::text("cmdline", |text| {
        let words = cmdline::parse(text);
        assert!(words.iter().map(String::len).sum::<usize>() <= text.len());
    }),
    Target::text("boot", |text| {
        let params = boot::parse(text);
        let on = BootedHost { possible: &CpuSet::first_n(8), release: None };
        assert!(params.isolcpus(&on).len() <= params.values("isolcpus").count());
        evenkeel_base::facts::release_version(text);
    }),
    Target::text("interrupts", |text| {
        let _ = irq::parse(text);
    }),
    Target::text("softirqs", |text| {
        let _ = network::parse_softirqs(text, "NET_RX");
    }),
    Target::text("numa", |text| {
        numa_maps::parse(text);
        let _ = sysfs::parse_node_meminfo(text);
        let _ = sysfs::parse_distances(text);
    }),
    Target::text("autogroup", |text| {
        let _ = autogroup::parse(text);
    }),
];
