//! `/proc/pressure/cpu`, `memory` and `io`, and the same of a v2 cgroup, such as `io.pressure` (PSI).

use crate::{ParseError, ReadError, Root};

/// Share of time in which tasks waited for a resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// Averages over 10, 60 and 300 seconds, percent of wall time in which at least one task waited.
    pub some_avg: [f64; 3],
    /// Total of that, microseconds since boot.
    pub some_total_usec: u64,
}

/// Reads the `some` line (`full` means nothing for the whole host's CPUs).
pub fn parse(text: &str) -> Result<Stall, ParseError> {
    let bad = || ParseError::expected("pressure", 1, "`some avg10=.. total=..`", text);
    let words = text.lines().find_map(|line| line.strip_prefix("some ")).ok_or_else(bad)?;
    let value = |key: &str| words.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    // The words `nan` and `inf` are numbers to the reader of numbers.
    let is_share = |pct: &f64| pct.is_finite() && *pct >= 0.0;
    let average = |key: &str| value(key).and_then(|v| v.parse().ok()).filter(is_share).ok_or_else(bad);
    Ok(Stall {
        some_avg: [average("avg10")?, average("avg60")?, average("avg300")?],
        some_total_usec: value("total").and_then(|v| v.parse().ok()).ok_or_else(bad)?,
    })
}

/// Reads the host's CPU pressure; `None` where the kernel has no PSI or has it switched off (`EOPNOTSUPP`).
pub fn read(root: &Root) -> Result<Option<Stall>, ReadError> {
    read_file(root, "proc/pressure/cpu")
}

/// Reads another such file, the host's or a cgroup's; `None` where there is none or PSI is switched off.
pub fn read_file(root: &Root, relative: &str) -> Result<Option<Stall>, ReadError> {
    match root.parse_optional(relative, parse) {
        Err(ReadError::Io { error, .. }) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_with_and_without_full() {
        let some = "some avg10=1.50 avg60=0.00 avg300=0.25 total=42\n";
        let expected = Stall { some_avg: [1.5, 0.0, 0.25], some_total_usec: 42 };
        assert_eq!(parse(some).unwrap(), expected);
        assert_eq!(
            parse(&format!("{some}full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")).unwrap(),
            expected
        );
        assert!(parse("some avg10=x\n").is_err() && parse("").is_err());
        for odd in ["nan", "inf", "-0.5", "1e999"] {
            assert!(parse(&some.replace("1.50", odd)).is_err(), "{odd}");
        }
    }
}
