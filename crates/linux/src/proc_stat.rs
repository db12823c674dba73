//! `/proc/stat`: time of each CPU since boot, and the number of forks.

use evenkeel_base::{CpuTimes, TICK_NS};

use crate::{ParseError, ReadError, Root};

const FILE: &str = "/proc/stat";

/// What is used of `/proc/stat`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcStat {
    /// Online CPUs, ascending.
    pub cpus: Vec<CpuTimes>,
    /// Boot, seconds since 1970.
    pub boot_time: Option<u64>,
    /// Processes and threads ever created (`processes`): while this stands still there is nobody new.
    pub forks: Option<u64>,
}

/// Reads the text. Kernels add fields at the end of a line; fields that are missing are unknown.
pub fn parse(text: &str) -> Result<ProcStat, ParseError> {
    let mut stat = ProcStat::default();
    let mut any = false;
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let Some(key) = words.next() else { continue };
        let bad = || ParseError::expected(FILE, index + 1, "`name` and numbers", line);
        if let Some(cpu) = key.strip_prefix("cpu") {
            any = true;
            if !cpu.is_empty() {
                let cpu = cpu.parse().map_err(|_| bad())?;
                stat.cpus.push(cpu_line(cpu, words).ok_or_else(bad)?);
            }
        } else if key == "btime" {
            stat.boot_time = Some(words.next().and_then(|w| w.parse().ok()).ok_or_else(bad)?);
        } else if key == "processes" {
            stat.forks = Some(words.next().and_then(|w| w.parse().ok()).ok_or_else(bad)?);
        }
    }
    if !any {
        return Err(ParseError::new(FILE, 1, "no line starts with `cpu`"));
    }
    stat.cpus.sort_unstable_by_key(|times| times.cpu);
    stat.cpus.dedup_by_key(|times| times.cpu);
    Ok(stat)
}

/// Columns: user nice system idle iowait irq softirq steal guest guest_nice; guest is counted in user already.
fn cpu_line<'a>(cpu: u32, words: impl Iterator<Item = &'a str>) -> Option<CpuTimes> {
    let mut columns = [None; 8];
    for (slot, word) in columns.iter_mut().zip(words) {
        *slot = Some(word.parse::<u64>().ok()?.saturating_mul(TICK_NS));
    }
    let [user, nice, system, idle, iowait, irq, softirq, steal] = columns;
    let irq_ns = irq.unwrap_or(0).saturating_add(softirq.unwrap_or(0));
    Some(CpuTimes {
        cpu,
        busy_ns: user?.saturating_add(nice?).saturating_add(system?).saturating_add(irq_ns),
        idle_ns: idle?.saturating_add(iowait.unwrap_or(0)),
        irq_ns,
        steal_ns: steal,
    })
}

/// Reads `/proc/stat` under a root.
pub fn read(root: &Root) -> Result<ProcStat, ReadError> {
    root.parse("proc/stat", parse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steal_is_neither_busy_nor_idle() {
        let stat = parse("cpu  9 9 9 9\ncpu1 1 2 3 4 5 6 7 8 1 0\nbtime 77\nprocesses 5\n").unwrap();
        assert_eq!((stat.boot_time, stat.forks), (Some(77), Some(5)));
        let cpu = stat.cpus[0];
        assert_eq!((cpu.cpu, cpu.busy_ns / TICK_NS, cpu.idle_ns / TICK_NS), (1, 19, 9));
        assert_eq!((cpu.irq_ns / TICK_NS, cpu.steal_ns), (13, Some(8 * TICK_NS)));
    }

    #[test]
    fn an_old_kernels_line_has_no_steal() {
        assert_eq!(parse("cpu0 1 2 3 4\n").unwrap().cpus[0].steal_ns, None);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, line) in [("", 1), ("cpu 1\ncpu0 x\n", 2), ("cpu0 1 2\n", 1), ("cpux 1 2 3 4\n", 1)] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(rows in proptest::collection::btree_map(0u32..500, proptest::array::uniform10(0u64..1 << 34), 1..20)) {
            let mut text = String::from("cpu  0 0 0 0\n");
            for (cpu, row) in &rows {
                text += &format!("cpu{cpu} {}\n", row.map(|n| n.to_string()).join(" "));
            }
            let stat = parse(&text).unwrap();
            prop_assert_eq!(stat.cpus.len(), rows.len());
            for (times, (cpu, row)) in stat.cpus.iter().zip(&rows) {
                prop_assert_eq!(times.cpu, *cpu);
                prop_assert_eq!(times.busy_ns, (row[0] + row[1] + row[2] + row[5] + row[6]) * TICK_NS);
                prop_assert_eq!(times.steal_ns, Some(row[7] * TICK_NS));
            }
        }
    }
}
