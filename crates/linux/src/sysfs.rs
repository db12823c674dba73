//! `/sys/devices/system`: CPUs, caches and NUMA nodes; and the few identifying files of a kernel.

use evenkeel_base::CpuSet;

use crate::cgroupfs::parse_list;
use crate::{ParseError, ReadError, Root};

/// Directory of the CPUs, relative to a root.
pub const CPU_DIR: &str = "sys/devices/system/cpu";
/// Directory of the NUMA nodes, relative to a root.
pub const NODE_DIR: &str = "sys/devices/system/node";

/// A CPU list file; `None` if there is none. The kernel prints `(null)` for an empty `nohz_full`, which is empty here.
pub fn read_list(root: &Root, relative: &str) -> Result<Option<CpuSet>, ReadError> {
    root.parse_optional(
        relative,
        |text| if text.trim() == "(null)" { Ok(CpuSet::new()) } else { parse_list(text) },
    )
}

/// CPUs that may run without a tick (`nohz_full`): the counters of whoever runs there may stand still for a second. None where
/// that is not known.
pub fn tickless(root: &Root) -> CpuSet {
    read_list(root, &format!("{CPU_DIR}/nohz_full")).ok().flatten().unwrap_or_default()
}

/// A file of one number; `None` if there is none or it is negative (an unknown package or core is -1).
pub fn read_number(root: &Root, relative: &str) -> Result<Option<u32>, ReadError> {
    let parse = |text: &str| {
        text.trim()
            .parse::<i64>()
            .map_err(|_| ParseError::expected("a sysfs file", 1, "one number", text.trim_end()))
    };
    Ok(root.parse_optional(relative, parse)?.and_then(|number| u32::try_from(number).ok()))
}

/// One cache of a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// 1, 2, 3, ...
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// CPUs that share it.
    pub shared: CpuSet,
    /// Size as written, such as `32768K`.
    pub size: Option<String>,
}

/// Caches of a CPU by level; empty when the kernel does not say.
pub fn read_caches(root: &Root, cpu: u32) -> Result<Vec<Cache>, ReadError> {
    let dir = format!("{CPU_DIR}/cpu{cpu}/cache");
    let indices = match root.numbered(&dir, "index") {
        Ok(indices) => indices,
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut caches = Vec::new();
    for index in indices {
        let level = read_number(root, &format!("{dir}/index{index}/level"))?;
        let shared = read_list(root, &format!("{dir}/index{index}/shared_cpu_list"))?;
        let text = |name: &str| root.read_optional(format!("{dir}/index{index}/{name}"));
        if let (Some(level), Some(shared)) = (level, shared) {
            let kind = text("type")?.unwrap_or_default().trim().to_owned();
            caches.push(Cache {
                level,
                kind,
                shared,
                size: text("size")?.map(|size| size.trim().to_owned()),
            });
        }
    }
    caches.sort_by_key(|cache| cache.level);
    Ok(caches)
}

/// Memory of a node in bytes, from the `MemTotal` line of its `meminfo`.
pub fn parse_node_meminfo(text: &str) -> Result<u64, ParseError> {
    text.lines()
        .find_map(|line| {
            let (_, value) = line.split_once("MemTotal:")?;
            value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map(|kib| kib.saturating_mul(1024))
        .ok_or_else(|| ParseError::new("node/meminfo", 1, "no `MemTotal: N kB` line"))
}

/// Distances of a node to all nodes, in the order of the online nodes.
pub fn parse_distances(text: &str) -> Result<Vec<u32>, ParseError> {
    text.split_ascii_whitespace()
        .map(|word| {
            word.parse().map_err(|_| ParseError::expected("node/distance", 1, "numbers", text.trim_end()))
        })
        .collect()
}

/// The kernel's release, such as `6.12.3-amd64`.
pub fn read_release(root: &Root) -> Result<String, ReadError> {
    Ok(root.read("proc/sys/kernel/osrelease")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_files() {
        assert_eq!(parse_node_meminfo("\nNode 0 MemTotal:  2 kB\nNode 0 MemFree: 1 kB\n").unwrap(), 2048);
        assert!(parse_node_meminfo("Node 0 MemFree: 1 kB\n").is_err());
        assert_eq!(parse_distances("10 21\n").unwrap(), [10, 21]);
        assert!(parse_distances("10 x").is_err());
    }

    #[test]
    fn lists_and_numbers_as_the_kernel_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        for (name, text) in [("null", "  (null)\n"), ("list", "0-3\n"), ("minus", "-1\n"), ("bad", "x\n")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(read_list(&root, "null").unwrap(), Some(CpuSet::new()));
        assert_eq!(read_list(&root, "list").unwrap().unwrap().len(), 4);
        assert_eq!(read_list(&root, "none").unwrap(), None);
        assert_eq!(read_number(&root, "minus").unwrap(), None);
        assert!(read_number(&root, "bad").unwrap_err().to_string().contains("bad:1: expected one number"));
    }
}
