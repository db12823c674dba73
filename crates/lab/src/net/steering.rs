//! Receive packet steering on links of our own namespaces: it vanishes with them, so nothing is to be restored. The
//! one thing it needs of the host, `net.core.rps_sock_flow_entries`, is set through `evenkeel-actuate` and its journal.

use std::fs;
use std::io;
use std::path::Path;

use evenkeel_base::CpuSet;

use super::NetError;
use super::namespace::Namespace;

/// Flow table entries of a receive queue, as the source of these experiments had them.
pub const FLOWS_PER_QUEUE: u64 = 4096;
/// Entries of the host's table of sockets' flows, likewise.
pub const SOCK_FLOW_ENTRIES: u64 = 32_768;

/// Lets packets received on a link be processed on these CPUs (RPS), and, where the host's table of flows is on, on the
/// CPU that runs the reader (RFS): `rps_cpus` and `rps_flow_cnt` of every receive queue.
///
/// # Errors
/// The kernel has no RPS (CONFIG_RPS), or the link is not there.
pub fn steer(namespace: &Namespace, link: &str, cpus: &CpuSet) -> Result<(), NetError> {
    let mask = cpus.to_mask();
    let written = namespace.run_with_sysfs(|sys| {
        let queues = sys.join("class/net").join(link).join("queues");
        for queue in receive_queues(&queues)? {
            fs::write(queue.join("rps_cpus"), &mask)?;
            fs::write(queue.join("rps_flow_cnt"), FLOWS_PER_QUEUE.to_string())?;
        }
        Ok(())
    });
    written.map_err(|error| NetError::system(format!("cannot set receive packet steering of {link}"), error))
}

fn receive_queues(queues: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(queues)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("rx-")) {
            found.push(entry.path());
        }
    }
    Ok(found)
}
