//! `/proc/PID/stat` and `/proc/PID/task/TID/stat`.

use evenkeel_base::TICK_NS;

use crate::ParseError;

const FILE: &str = "/proc/PID/stat";
/// `PF_KTHREAD` of the flags field.
const PF_KTHREAD: u64 = 0x0020_0000;

/// What is used of a task's `stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PidStat {
    /// The number in the first field.
    pub pid: u32,
    /// Name: any bytes but NUL, parentheses, spaces and newlines included.
    pub comm: String,
    pub state: char,
    /// Parent process, 0 for none.
    pub ppid: u32,
    /// Process group; 0 for one of another pid namespace.
    pub process_group: u32,
    /// Session; 0 for one of another pid namespace.
    pub session: u32,
    pub kernel_thread: bool,
    /// Time in user and kernel mode, nanoseconds (resolution 10 ms).
    pub cpu_ns: u64,
    /// The same of children that ended and were waited for, with theirs.
    pub children_ns: u64,
    /// Number of threads of the process.
    pub threads: u32,
    /// Start, clock ticks since boot.
    pub start_time: u64,
    /// Address of the bottom of the stack, which `exec` chooses again and `fork` does not; 0 when it is not shown.
    pub start_stack: u64,
    /// CPU it ran on last.
    pub cpu: Option<u32>,
    /// Scheduling policy, the kernel's number.
    pub policy: Option<u32>,
}

/// Reads the one line. The name ends at the last closing parenthesis: it may hold any character itself.
pub fn parse(text: &str) -> Result<PidStat, ParseError> {
    let bad = |what: &str| ParseError::expected(FILE, 1, what, text);
    let (pid, rest) = text.split_once(" (").ok_or_else(|| bad("a number and a name in parentheses"))?;
    let (comm, fields) = rest.rsplit_once(") ").ok_or_else(|| bad("a name that ends in `) `"))?;
    let mut words = fields.split_ascii_whitespace();
    // Fields are numbered as in proc(5); the state is field 3.
    let mut next = 3;
    let mut field = |number: usize| {
        let word = words.nth(number - next);
        next = number + 1;
        word
    };
    let state = field(3).and_then(|w| w.chars().next()).ok_or_else(|| bad("a state letter"))?;
    let mut number = |n: usize, what: &str| -> Result<u64, ParseError> {
        // Process group and session are negative where there is none: as good as 0.
        let read = |word: &str| word.parse().ok().or_else(|| word.parse::<i64>().ok().map(|_| 0));
        field(n).and_then(read).ok_or_else(|| bad(what))
    };
    let ppid = number(4, "the parent as field 4")?;
    let process_group = number(5, "the process group as field 5")?;
    let session = number(6, "the session as field 6")?;
    let flags = number(9, "flags as field 9")?;
    let utime = number(14, "utime as field 14")?;
    let stime = number(15, "stime as field 15")?;
    let cutime = number(16, "cutime as field 16")?;
    let cstime = number(17, "cstime as field 17")?;
    let threads = number(20, "the number of threads as field 20")?;
    let start_time = number(22, "the start time as field 22")?;
    Ok(PidStat {
        pid: pid.trim().parse().map_err(|_| bad("a number first"))?,
        comm: comm.to_owned(),
        state,
        ppid: u32::try_from(ppid).map_err(|_| bad("a parent below 2^32"))?,
        process_group: u32::try_from(process_group).map_err(|_| bad("a process group below 2^32"))?,
        session: u32::try_from(session).map_err(|_| bad("a session below 2^32"))?,
        kernel_thread: flags & PF_KTHREAD != 0,
        cpu_ns: utime.saturating_add(stime).saturating_mul(TICK_NS),
        children_ns: cutime.saturating_add(cstime).saturating_mul(TICK_NS),
        threads: u32::try_from(threads).map_err(|_| bad("threads below 2^32"))?,
        start_time,
        start_stack: field(28).and_then(|w| w.parse().ok()).unwrap_or(0),
        cpu: field(39).and_then(|w| w.parse().ok()),
        policy: field(41).and_then(|w| w.parse().ok()),
    })
}

/// The state's letter alone, without allocating. The rest of the line may be missing.
pub fn state(text: &[u8]) -> Option<char> {
    let close = text.iter().rposition(|&b| b == b')')?;
    text[close + 1..].iter().find(|b| !b.is_ascii_whitespace()).map(|&b| char::from(b))
}

/// Name and CPU alone, without allocating: for the tasks whose CPU is refreshed with every sample.
pub fn comm_and_cpu(text: &[u8]) -> Option<(&[u8], u32)> {
    let open = text.iter().position(|&b| b == b'(')?;
    let close = text.iter().rposition(|&b| b == b')').filter(|&close| close > open)?;
    // The state, field 3, is the first word after the parenthesis; the CPU is field 39.
    let word =
        text[close + 1..].split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty()).nth(39 - 3)?;
    Some((&text[open + 1..close], std::str::from_utf8(word).ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_state_is_found_whatever_the_name() {
        assert_eq!(state(line("a) R (b").as_bytes()), Some('S'));
        assert_eq!(state(b"12 (x) R"), Some('R'));
        assert_eq!((state(b"12 (x"), state(b"12 (x)")), (None, None));
    }

    fn line(comm: &str) -> String {
        format!(
            "12 ({comm}) S 1 12 13 0 -1 4194560 1 0 0 0 7 5 2 1 20 0 3 0 4711 0 0 18446744073709551615 0 0 0 0 0 0 0 \
             0 0 0 0 0 17 1 0 3 0 0 0\n"
        )
    }

    #[test]
    fn awkward_names_are_read_whole() {
        for comm in ["sh", "a) S 2 (b", "x y", ")", "two\nlines", ""] {
            let stat = parse(&line(comm)).unwrap();
            assert_eq!((stat.comm.as_str(), stat.ppid, stat.start_time), (comm, 1, 4711));
            assert_eq!((stat.cpu, stat.threads), (Some(1), 3));
            assert_eq!((stat.cpu_ns, stat.children_ns), (120_000_000, 30_000_000));
            assert_eq!((stat.process_group, stat.session, stat.policy), (12, 13, Some(3)));
            assert!(!stat.kernel_thread);
            assert_eq!(comm_and_cpu(line(comm).as_bytes()), Some((comm.as_bytes(), 1)));
        }
    }

    #[test]
    fn kernel_threads_are_known_by_their_flag() {
        assert!(parse(&line("kworker").replace("4194560", "69238880")).unwrap().kernel_thread);
    }

    #[test]
    fn no_process_group_is_0() {
        let stat = parse(&line("sh").replace("12 13 0", "-1 0 0")).unwrap();
        assert_eq!((stat.process_group, stat.session), (0, 0));
    }

    #[test]
    fn truncated_text_is_an_error() {
        let whole = line("sh");
        for end in 0..whole.find("4711").unwrap() {
            assert!(parse(&whole[..end]).is_err(), "accepted {:?}", &whole[..end]);
        }
    }

    proptest! {
        #[test]
        fn any_name_survives(comm in "[^\0]{0,15}") {
            prop_assert_eq!(parse(&line(&comm)).unwrap().comm, comm);
        }
    }
}
