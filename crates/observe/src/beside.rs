//! What a cgroup uses and waits for next to CPU: memory, stalls on memory and I/O (PSI), and the network.

use evenkeel_base::{BesideCpu, NetworkUse};
use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{Root, cgroupfs, net, pressure};

/// Of a cgroup, by its path below the cpu controller's mount. The other hierarchies are asked for the same path: where a
/// manager places differently there, nothing is known. A process of it tells the network namespace. Five files are read.
pub fn read_beside_cpu(root: &Root, hierarchies: &Hierarchies, path: &str, pid: Option<u32>) -> BesideCpu {
    let file = |hierarchy: &Hierarchy, name: &str| format!("{}/{name}", hierarchy.dir(path));
    let memory = hierarchies
        .memory
        .as_ref()
        .and_then(|memory| root.read_optional(file(memory, "memory.stat")).ok().flatten());
    let stalled = |name: &str| {
        let unified = hierarchies.unified.as_ref()?;
        Some(pressure::read_file(root, &file(unified, name)).ok()??.some_avg[0])
    };
    BesideCpu {
        rss_bytes: memory.as_deref().and_then(cgroupfs::parse_rss),
        memory_pressure_pct: stalled("memory.pressure"),
        io_pressure_pct: stalled("io.pressure"),
        network: pid.and_then(|pid| own_network(root, pid)).map(|(_, used)| used).unwrap_or_default(),
    }
}

/// The network namespace that this process is in, and what it transferred; `None` where it is the host's, or that cannot be
/// told.
pub(crate) fn own_network(root: &Root, pid: u32) -> Option<(u64, NetworkUse)> {
    let (own, hosts) = (net::namespace(root, pid)?, net::namespace(root, HOST)?);
    (own != hosts).then(|| (own, used(net::read(root, pid).unwrap_or_default())))
}

/// The process that is in the host's namespace.
const HOST: u32 = 1;

/// Of the host's network namespace.
pub fn read_host_network(root: &Root) -> NetworkUse {
    used(net::read_host(root).unwrap_or_default())
}

fn used(counted: net::Counters) -> NetworkUse {
    NetworkUse {
        net_received_bytes: counted.received_bytes,
        net_sent_bytes: counted.sent_bytes,
        tcp_retransmits: counted.retransmits,
    }
}

/// For how long at least one task waited for I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoStalled {
    /// Since boot, or since the cgroup was made, microseconds.
    pub total_usec: u64,
    /// Of the cgroup alone; otherwise of the whole host.
    pub own: bool,
}

/// Of a cgroup (path as above) where the kernel tells it, else of the host; `None` where it tells neither.
pub fn read_io_stalled(
    root: &Root,
    hierarchies: Option<&Hierarchies>,
    path: Option<&str>,
) -> Option<IoStalled> {
    let read = |file: &str| Some(pressure::read_file(root, file).ok()??.some_total_usec);
    let unified = hierarchies.and_then(|found| found.unified.as_ref());
    let own =
        unified.zip(path).and_then(|(unified, path)| read(&format!("{}/io.pressure", unified.dir(path))));
    match own {
        Some(total_usec) => Some(IoStalled { total_usec, own: true }),
        None => read("proc/pressure/io").map(|total_usec| IoStalled { total_usec, own: false }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::tree;

    const PSI: &str =
        "some avg10=12.50 avg60=0.00 avg300=0.00 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";

    fn hierarchy(mount_point: &str, v2: bool) -> Option<Hierarchy> {
        Some(Hierarchy { mount_point: mount_point.into(), root: "/".into(), v2 })
    }

    #[test]
    fn a_network_of_its_own_is_told_and_the_hosts_is_not_taken_for_one() {
        let dev = "Inter-|\n face |\n  lo: 9 0 0 0 0 0 0 0 9 0\n eth0: 70 0 0 0 0 0 0 0 30 0\n";
        let snmp = "Tcp: OutSegs RetransSegs\nTcp: 5 2\n";
        let (_dir, root) = tree(&[
            ("proc/1/net/dev", "Inter-|\n face |\n eth0: 7000 0 0 0 0 0 0 0 3000 0\n"),
            ("proc/7/net/dev", dev),
            ("proc/7/net/snmp", snmp),
            ("proc/9/net/dev", "no such\nfile\nat all\n"),
        ]);
        let found = Hierarchies::find(&[], None);
        let of = |pid| read_beside_cpu(&root, &found, "/web", Some(pid)).network;
        // One file for all processes of a namespace.
        std::fs::create_dir_all(root.path("proc/8/net")).unwrap();
        std::fs::hard_link(root.path("proc/1/net/dev"), root.path("proc/8/net/dev")).unwrap();
        let own =
            NetworkUse { net_received_bytes: Some(70), net_sent_bytes: Some(30), tcp_retransmits: Some(2) };
        assert_eq!(of(7), own);
        assert_eq!(of(8), NetworkUse::default(), "it shares the host's");
        assert_eq!(of(9), NetworkUse::default());
        assert_eq!(of(99), NetworkUse::default(), "gone");
        assert_eq!(read_host_network(&root).net_received_bytes, Some(7000));
        assert_eq!(read_host_network(&root).tcp_retransmits, None, "not told, which is not none");
        std::fs::remove_file(root.path("proc/1/net/dev")).unwrap();
        assert_eq!(of(7), NetworkUse::default(), "nobody says which is the host's");
    }

    #[test]
    fn both_layouts_are_read_and_what_is_not_told_is_unknown() {
        let (_dir, root) = tree(&[
            ("m/web/memory.stat", "cache 7\nrss 5\ntotal_cache 9\ntotal_rss 4096\n"),
            ("u/web/memory.stat", "file 1\nanon_thp 3\nanon 8192\n"),
            ("u/web/memory.pressure", PSI),
            ("u/web/io.pressure", "some avg10=nan\n"),
            ("proc/pressure/io", PSI),
        ]);
        let mut found = Hierarchies::find(&[], None);
        assert_eq!(read_beside_cpu(&root, &found, "/web", None), BesideCpu::default());
        (found.memory, found.unified) = (hierarchy("/m", false), hierarchy("/u", true));
        let v1 = read_beside_cpu(&root, &found, "/web", None);
        assert_eq!(
            (v1.rss_bytes, v1.memory_pressure_pct, v1.io_pressure_pct),
            (Some(4096), Some(12.5), None)
        );
        found.memory = hierarchy("/u", true);
        assert_eq!(read_beside_cpu(&root, &found, "/web", None).rss_bytes, Some(8192));
        assert_eq!(read_beside_cpu(&root, &found, "/none", None), BesideCpu::default());
        // What the cgroup does not tell, the host does.
        let host = Some(IoStalled { total_usec: 42, own: false });
        assert_eq!(read_io_stalled(&root, Some(&found), Some("/web")), host);
        std::fs::write(root.path("u/web/io.pressure"), PSI.replace("42", "7")).unwrap();
        let own = read_io_stalled(&root, Some(&found), Some("/web"));
        assert_eq!(own, Some(IoStalled { total_usec: 7, own: true }));
        assert_eq!(read_io_stalled(&root, None, None), host);
        std::fs::remove_file(root.path("proc/pressure/io")).unwrap();
        assert_eq!(read_io_stalled(&root, None, None), None);
    }
}
