//! `/proc/PID/numa_maps`: pages of each mapping by node. Reading it walks the process's page tables (some 10 ms a
//! gigabyte), so it is read only for processes asked for.

use std::collections::BTreeMap;

use crate::{ReadError, Root};

/// Page size assumed when a line does not say (kernels before 4.13 and lines without pages).
const DEFAULT_PAGE_KIB: u64 = 4;

/// Bytes on each node, ascending by node. Words that are not `Nn=PAGES` or the page size are skipped: file names
/// may hold anything.
pub fn parse(text: &str) -> Vec<(u32, u64)> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for line in text.lines() {
        // The counts come after the file's name, in which spaces are escaped.
        let page_kib = line
            .split_ascii_whitespace()
            .rev()
            .find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok())
            .unwrap_or(DEFAULT_PAGE_KIB);
        for word in line.split_ascii_whitespace().skip(2) {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|rest| rest.split_once('=')) else {
                continue;
            };
            if let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) {
                let sum = bytes.entry(node).or_default();
                *sum = sum.saturating_add(pages.saturating_mul(page_kib).saturating_mul(1024));
            }
        }
    }
    bytes.into_iter().collect()
}

/// Reads a process's memory by node; `None` if it has ended.
pub fn read(root: &Root, tgid: u32) -> Result<Option<Vec<(u32, u64)>>, ReadError> {
    match root.read(format!("proc/{tgid}/numa_maps")) {
        Ok(text) => Ok(Some(parse(&text))),
        Err(error) if error.is_gone() && !root.path(format!("proc/{tgid}/stat")).exists() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_sizes_are_summed() {
        let text = "559ae7ac0000 default file=/usr/bin/cat mapped=2 N0=2 kernelpagesize_kB=4\n\
                    7f0000000000 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=2048\n\
                    7f1000000000 default file=/N7=9 mapped=1 N1=1 kernelpagesize_kB=4\n\
                    7f2000000000 default\n";
        assert_eq!(parse(text), [(0, 2 * 4096 + (2 << 20)), (1, (4 << 20) + 4096)]);
        assert!(parse("").is_empty());
    }
}
