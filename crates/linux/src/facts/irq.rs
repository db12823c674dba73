//! `/proc/interrupts` and `/proc/irq/N/`: numbered interrupts, where they may go, where they go, how often.

use std::collections::BTreeMap;

use evenkeel_base::CpuSet;
use evenkeel_base::facts::{Irq, Known};

use crate::{ParseError, ReadError, Root, cgroupfs};

/// Name and counts of one line of `/proc/interrupts`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// Actions, empty for none.
    pub name: String,
    /// Served, by CPU; zeros left out.
    pub counts: Vec<(u32, u64)>,
}

/// Reads the numbered lines of `/proc/interrupts`; each CPU's own (`LOC`, `RES`, ...) are left out.
pub fn parse(text: &str) -> Result<BTreeMap<u32, Line>, ParseError> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let cpus: Option<Vec<u32>> =
        header.split_ascii_whitespace().map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let cpus = cpus
        .filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| ParseError::expected("/proc/interrupts", 1, "`CPU0 CPU1 ...`", header))?;
    let mut irqs = BTreeMap::new();
    for line in lines {
        let Some((label, rest)) = line.split_once(':') else { continue };
        let Ok(irq) = label.trim().parse() else { continue };
        let mut rest = rest;
        let mut counts = Vec::new();
        for &cpu in &cpus {
            let trimmed = rest.trim_start();
            let end = trimmed.find(' ').unwrap_or(trimmed.len());
            // A line may have fewer counts than CPUs (`ERR: 0`).
            let Ok(count) = trimmed[..end].parse() else { break };
            if count > 0 {
                counts.push((cpu, count));
            }
            rest = &trimmed[end..];
        }
        irqs.insert(irq, Line { name: action(rest), counts });
    }
    Ok(irqs)
}

/// The actions in `IO-APIC   5-edge      ACPI:Ged` or `GICv3  27 Level     arch_timer`: what follows the last
/// run of spaces, unless that is the chip's own description.
fn action(description: &str) -> String {
    let Some(last) = description.rsplit("  ").next().map(str::trim) else { return String::new() };
    let first_word = last.split(' ').next().unwrap_or_default();
    let is_trigger = ["-edge", "-fasteoi", "-level"].iter().any(|end| last.ends_with(end));
    // `27 Level`: the hardware's number comes first.
    let is_number = first_word.parse::<u64>().is_ok();
    if is_trigger || is_number || description.trim() == last { String::new() } else { last.to_owned() }
}

/// Reads every numbered interrupt, ascending. One whose files vanish meanwhile is left out.
pub fn read(root: &Root) -> Result<Vec<Irq>, ReadError> {
    let mut lines = root.parse("proc/interrupts", parse)?;
    let mut irqs = Vec::new();
    for irq in root.numbers("proc/irq")? {
        let list = |name: &str| -> Option<Known<CpuSet>> {
            match root.parse(format!("proc/irq/{irq}/{name}"), cgroupfs::parse_list) {
                Ok(cpus) => Some(Known::Value(cpus)),
                Err(error)
                    if error.is_gone()
                        && root.is_live()
                        && !root.path(format!("proc/irq/{irq}")).exists() =>
                {
                    None
                }
                Err(error) => Some(Known::Unknown(error.to_string())),
            }
        };
        let (Some(affinity), Some(effective)) = (list("smp_affinity_list"), list("effective_affinity_list"))
        else {
            continue;
        };
        let Line { name, counts } = lines.remove(&irq).unwrap_or_default();
        irqs.push(Irq { irq, name, affinity, effective, counts });
    }
    Ok(irqs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "           CPU0       CPU1       \n \
        24:          1          0  IO-APIC   5-edge      ACPI:Ged\n \
        30:          0         15  PCI-MSIX-0000:00:05.0   1-edge      nvme0q1, other\n \
        31:          0          0  PCI-MSIX-0000:00:05.0   2-edge\n \
        11:      23456      24567     GICv3  27 Level     arch_timer\n\
        LOC:      44974      44069   Local timer interrupts\n\
        ERR:          0\n";

    #[test]
    fn numbered_lines_with_names_and_counts() {
        let irqs = parse(TEXT).unwrap();
        assert_eq!(irqs.keys().copied().collect::<Vec<_>>(), [11, 24, 30, 31]);
        assert_eq!(irqs[&24], Line { name: "ACPI:Ged".into(), counts: vec![(0, 1)] });
        assert_eq!(irqs[&30], Line { name: "nvme0q1, other".into(), counts: vec![(1, 15)] });
        assert_eq!(irqs[&31], Line::default());
        assert_eq!(irqs[&11].name, "arch_timer");
        assert_eq!(parse("nonsense\n").unwrap_err().line, 1);
    }

    #[test]
    fn affinities_and_their_absence() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("proc/interrupts", TEXT), ("proc/irq/24/smp_affinity_list", "0-1\n")];
        crate::testing::lay(dir.path(), &files);
        let irqs = read(&Root::at(dir.path())).unwrap();
        assert_eq!(irqs.len(), 1);
        assert_eq!(irqs[0].affinity.ok().unwrap().to_string(), "0-1");
        let reason = irqs[0].effective.get().unwrap_err().to_string();
        assert!(reason.contains("proc/irq/24/effective_affinity_list: No such file"), "{reason}");
    }
}
