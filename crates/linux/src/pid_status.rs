//! `/proc/PID/status`: context switches and where the task may run. Slow (the kernel formats sixty lines), so it is
//! read only for tasks somebody asked for.

use evenkeel_base::CpuSet;

use crate::ParseError;

/// What is used of a task's `status`. Fields a kernel does not write are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PidStatus {
    /// Process the thread belongs to.
    pub tgid: Option<u32>,
    /// `Cpus_allowed_list`.
    pub cpus_allowed: Option<CpuSet>,
    /// `Mems_allowed_list`: NUMA nodes.
    pub mems_allowed: Option<CpuSet>,
    /// Switches because the task had nothing to do.
    pub voluntary: Option<u64>,
    /// Switches because another task got the CPU.
    pub involuntary: Option<u64>,
    /// Resident memory, bytes.
    pub rss_bytes: Option<u64>,
}

/// Reads the `Key:\tvalue` lines.
pub fn parse(text: &str) -> Result<PidStatus, ParseError> {
    let mut status = PidStatus::default();
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let bad = |what: &str| ParseError::expected("/proc/PID/status", index + 1, what, line);
        let list = || value.parse::<CpuSet>().map_err(|_| bad("a list such as 0-3,8"));
        let number = || value.parse::<u64>().map_err(|_| bad("a number"));
        match key {
            "Tgid" => status.tgid = Some(value.parse().map_err(|_| bad("a number"))?),
            "Cpus_allowed_list" => status.cpus_allowed = Some(list()?),
            "Mems_allowed_list" => status.mems_allowed = Some(list()?),
            "voluntary_ctxt_switches" => status.voluntary = Some(number()?),
            "nonvoluntary_ctxt_switches" => status.involuntary = Some(number()?),
            "VmRSS" => {
                let kib = value.strip_suffix("kB").and_then(|kib| kib.trim().parse::<u64>().ok());
                status.rss_bytes = Some(kib.ok_or_else(|| bad("kibibytes"))?.saturating_mul(1024));
            }
            _ => {}
        }
    }
    Ok(status)
}

/// Voluntary and involuntary switches alone, without allocating; they are the last lines.
pub fn switches(text: &[u8]) -> Option<(u64, u64)> {
    let value = |key: &[u8]| {
        let start = text.windows(key.len()).rposition(|window| window == key)? + key.len();
        let digits = text[start..].split(|b| *b == b'\n').next()?;
        std::str::from_utf8(digits).ok()?.trim().parse().ok()
    };
    Some((value(b"\nvoluntary_ctxt_switches:")?, value(b"\nnonvoluntary_ctxt_switches:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there() {
        let text = "Name:\tx: y\nTgid:\t7\nVmRSS:\t  12 kB\nCpus_allowed_list:\t0-1,5\nvoluntary_ctxt_switches:\t3\n";
        let status = parse(text).unwrap();
        assert_eq!(status.cpus_allowed.unwrap().to_string(), "0-1,5");
        assert_eq!((status.tgid, status.voluntary, status.involuntary), (Some(7), Some(3), None));
        assert_eq!(status.rss_bytes, Some(12 * 1024));
        let text = format!("{text}nonvoluntary_ctxt_switches:\t44\n");
        assert_eq!(switches(text.as_bytes()), Some((3, 44)));
    }

    #[test]
    fn a_bad_value_is_named_by_line() {
        assert_eq!(parse("Name:\ta\nTgid:\tx\n").unwrap_err().line, 2);
    }
}
