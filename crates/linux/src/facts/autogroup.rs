//! `/proc/PID/autogroup`: `/autogroup-10 nice 0`, empty for a task in none.

use evenkeel_base::facts::Autogroup;

use crate::{ParseError, ReadError, Root};

/// Number and nice value of an autogroup; `None` for the empty file of a task in none.
pub fn parse(text: &str) -> Result<Option<(u64, i32)>, ParseError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let split = text.strip_prefix("/autogroup-").and_then(|rest| rest.split_once(" nice "));
    let read = split.and_then(|(group, nice)| Some((group.parse().ok()?, nice.parse().ok()?)));
    read.map(Some).ok_or_else(|| {
        ParseError::expected("/proc/PID/autogroup", 1, "`/autogroup-NUMBER nice NUMBER`", text)
    })
}

/// Reads a process's autogroup; `None` if it has ended.
pub fn read(root: &Root, tgid: u32) -> Result<Option<Autogroup>, ReadError> {
    let read = root.parse_optional(format!("proc/{tgid}/autogroup"), parse)?;
    Ok(read.map(|found| Autogroup {
        tgid,
        group: found.map(|(group, _)| group),
        nice: found.map_or(0, |(_, nice)| nice),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_group_in_none_and_malformed() {
        assert_eq!(parse("/autogroup-10 nice -5\n").unwrap(), Some((10, -5)));
        assert_eq!(parse("").unwrap(), None);
        assert!(parse("/autogroup-x nice 0").is_err() && parse("10").is_err());
    }
}
