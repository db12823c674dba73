//! Outgoing bandwidth of groups of processes: HTB classes below a root discipline of ours, and a classifier that knows
//! a packet's group by its socket.
//!
//! cgroup v1's `net_cls` has a classifier of its own (`cls_cgroup`) on some kernels only, and "u32 by cgroup" exists on
//! none. What every kernel since 4.18 has is a BPF classifier that asks for the socket's cgroup v2 id
//! (`bpf_skb_ancestor_cgroup_id`, descendants included) or for the `net_cls` class id (`bpf_get_cgroup_classid`):
//! [`evenkeel_bpf::classify`].
//!
//! A socket belongs to the cgroup (v2) its process was in when it was made: connections older than a move are not
//! found. Deleting the root discipline takes classes, filter and program with it: that is all there is to undo.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use evenkeel_bpf::BpfError;
use evenkeel_bpf::classify::{self, Classifier};
use serde::{Deserialize, Serialize};

use super::HostError;

/// Whose packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// Sockets of a cgroup v2 and of those below it: its id (the directory's inode) and depth (1 below the root).
    Cgroup {
        /// Inode of its directory.
        id: u64,
        level: u32,
    },
    /// Sockets whose `net_cls.classid` is this.
    ClassId(u32),
}

impl Owner {
    /// A cgroup v2 by its directory and the mount point of its hierarchy.
    pub fn of_cgroup(mount: &Path, dir: &Path) -> Result<Self, HostError> {
        let relative = dir
            .strip_prefix(mount)
            .map_err(|_| HostError::Refused(format!("{} is not below {}", dir.display(), mount.display())))?;
        let level = relative.components().count() as u32;
        if level == 0 {
            return Err(HostError::Refused(format!("{} is the root of all groups", dir.display())));
        }
        let metadata = fs::metadata(dir).map_err(|_| HostError::Gone(dir.display().to_string()))?;
        Ok(Self::Cgroup { id: metadata.ino(), level })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub owner: Owner,
    /// At most this, bits a second, packets' headers included.
    pub bits_per_s: u64,
}

/// What a class has sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCounters {
    /// Minor number: 1 for the first rate given, and so on.
    pub class: u16,
    /// Bytes sent, headers included.
    pub bytes: u64,
    pub packets: u64,
    pub drops: u64,
}

/// Makes a class for each rate below the root discipline `handle:` of a link, which must be ours already (see
/// [`evenkeel_base::NetKnob::RootQdisc`]), and the classifier. Others' packets pass unshaped. The link is one of the calling thread's
/// network namespace.
///
/// # Errors
/// See [`HostError`]; the root discipline stays, and deleting it removes what was made.
pub fn shape(link: &str, handle: u16, rates: &[Rate]) -> Result<(), HostError> {
    if rates.is_empty() || rates.len() > classify::MOST {
        return Err(HostError::Refused(format!("{} groups: expected 1 to {}", rates.len(), classify::MOST)));
    }
    let mut lines = String::new();
    for (index, rate) in rates.iter().enumerate() {
        if rate.bits_per_s < 8_000 {
            return Err(HostError::Refused(format!("{} bit/s: expected at least 8000", rate.bits_per_s)));
        }
        // Two ticks' worth of 4 ms may leave at once, and at least one whole packet of segmentation offload.
        let burst = (rate.bits_per_s / 8 / 125).max(66_000);
        lines += &format!(
            "class add dev {link} parent {handle:x}: classid {handle:x}:{:x} htb rate {}bit ceil {}bit burst {burst} \
             cburst {burst} quantum 60000\n",
            index + 1,
            rate.bits_per_s,
            rate.bits_per_s
        );
    }
    let mut classifier = Classifier::load(&owners(handle, rates)).map_err(refused)?;
    let filter =
        format!("filter add dev {link} parent {handle:x}: protocol all prio 1 bpf object-pinned {PIN}\n");
    in_thread(|| {
        tc(&lines)?;
        // bpffs in a mount namespace that ends with this thread: `tc` finds the program, the host sees no mount.
        private_bpffs().map_err(|error| io_error("mounting bpffs", &error))?;
        classifier.pin(Path::new(PIN)).map_err(refused)?;
        tc(&filter)
    })
}

/// What the classes below `handle:` of a link have sent, in their order.
pub fn counters(link: &str, handle: u16) -> Result<Vec<ClassCounters>, HostError> {
    let output = Command::new("tc").args(["-s", "class", "show", "dev", link]).output();
    let output = output.map_err(|error| io_error("tc", &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(HostError::Io { path: format!("tc -s class show dev {link}"), error: said });
    }
    Ok(parse_counters(&String::from_utf8_lossy(&output.stdout), handle))
}

/// What `tc -s class` prints of the classes below `handle:`: `class htb ee01:1 root ..` and, on the next line, `Sent 10 bytes 2 pkt (dropped 0, overlimits 0 requeues 0)`.
pub fn parse_counters(text: &str, handle: u16) -> Vec<ClassCounters> {
    let mut found = Vec::new();
    let mut class = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["class", "htb", id, ..] => {
                class = id
                    .split_once(':')
                    .filter(|(major, _)| u16::from_str_radix(major, 16) == Ok(handle))
                    .and_then(|(_, minor)| u16::from_str_radix(minor, 16).ok());
            }
            ["Sent", bytes, "bytes", packets, "pkt", rest @ ..] => {
                let drops = rest.iter().skip_while(|word| **word != "(dropped").nth(1);
                let drops = drops.and_then(|word| word.trim_end_matches(',').parse().ok());
                if let (Some(class), Ok(bytes), Ok(packets)) = (class.take(), bytes.parse(), packets.parse())
                {
                    found.push(ClassCounters { class, bytes, packets, drops: drops.unwrap_or(0) });
                }
            }
            _ => {}
        }
    }
    found.sort_by_key(|counters| counters.class);
    found
}

/// Where the program is pinned for an instant, in a mount namespace of its own.
const PIN: &str = "/sys/fs/bpf/evenkeel-classifier";

/// Whose packets get which class of ours.
fn owners(handle: u16, rates: &[Rate]) -> Vec<classify::Owner> {
    let owner = |(class, rate): (u32, &Rate)| {
        let (id, level) = match rate.owner {
            Owner::Cgroup { id, level } => (id, level),
            Owner::ClassId(id) => (u64::from(id), 0),
        };
        classify::Owner { id, level, class: u32::from(handle) << 16 | class }
    };
    (1..).zip(rates).map(owner).collect()
}

fn refused(error: BpfError) -> HostError {
    let path = "the classifier (bpf)".into();
    match error {
        BpfError::NotPermitted { .. } => HostError::Denied(path),
        error => HostError::Io { path, error: error.to_string() },
    }
}

fn private_bpffs() -> io::Result<()> {
    let check = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let (none, root, bpf, at) = (c"none".as_ptr(), c"/".as_ptr(), c"bpf".as_ptr(), c"/sys/fs/bpf".as_ptr());
    // SAFETY: flags and valid C strings; null where the kernel takes none. Acts on the calling thread's mounts only.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(none, root, std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()))?;
        check(libc::mount(bpf, at, bpf, 0, std::ptr::null()))
    }
}

/// A thread of its own: what it does to its namespaces ends with it.
fn in_thread(work: impl FnOnce() -> Result<(), HostError> + Send) -> Result<(), HostError> {
    std::thread::scope(|scope| {
        let failed = |_| Err(io_error("shaping", &io::Error::other("a thread failed")));
        scope.spawn(work).join().unwrap_or_else(failed)
    })
}

fn io_error(path: &str, error: &io::Error) -> HostError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => HostError::Denied(path.to_owned()),
        _ => HostError::Io { path: path.to_owned(), error: error.to_string() },
    }
}

fn tc(lines: &str) -> Result<(), HostError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            HostError::Unsupported("tc is not installed: apt-get install iproute2".into())
        }
        _ => io_error("tc", &error),
    };
    let mut child = Command::new("tc")
        .args(["-batch", "-"])
        // Ctrl-C and `timeout` signal the whole group; what takes things down must not be hit half-way.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ended early says why on its stderr.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    if said.contains("Cannot find device") {
        return Err(HostError::Gone(lines.lines().next().unwrap_or("").to_owned()));
    }
    Err(HostError::Io { path: format!("tc {}", lines.lines().next().unwrap_or("")), error: said })
}

/// A rate such as `24mbit`, `1.5gbit`, `800kbit`, `64000` (bits a second), as `tc` writes them.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &lower[digits.len()..] {
        "" | "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(format!("{text:?} is not a rate such as 24mbit")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("{text:?} is not a rate such as 24mbit"))?;
    let bits = number * factor;
    if bits.is_finite() && (8e3..=1e12).contains(&bits) {
        Ok(bits as u64)
    } else {
        Err(format!("{text:?}: expected 8kbit to 1000gbit"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_tc_writes_them() {
        assert_eq!(parse_rate("24mbit"), Ok(24_000_000));
        assert_eq!(parse_rate("1.5Gbit"), Ok(1_500_000_000));
        assert_eq!(parse_rate("64000"), Ok(64_000));
        for bad in ["", "24", "mbit", "24mb", "-5mbit", "nan", "1e99gbit", "24mbitt"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counters_are_those_of_our_classes() {
        let text = "class htb 1:1 root rate 1Mbit\n Sent 9 bytes 9 pkt (dropped 0, overlimits 0 requeues 0) \n\
            class htb ee01:2 root prio 0 rate 24Mbit ceil 24Mbit burst 66000b\n \
            Sent 1234 bytes 5 pkt (dropped 6, overlimits 7 requeues 0) \n backlog 0b 0p requeues 0\n";
        let expected = ClassCounters { class: 2, bytes: 1234, packets: 5, drops: 6 };
        assert_eq!(parse_counters(text, 0xee01), [expected]);
    }

    #[test]
    fn what_tc_cannot_tell_is_not_nothing() {
        assert!(counters("no-such-link", 0xee01).unwrap_err().to_string().contains("no-such-link"));
    }

    #[test]
    fn each_group_has_a_class_in_its_order() {
        let rate = |owner| Rate { owner, bits_per_s: 8000 };
        let rates = [rate(Owner::Cgroup { id: 0x1_0000_0002, level: 3 }), rate(Owner::ClassId(7))];
        let owner = |id, level, class| classify::Owner { id, level, class };
        assert_eq!(owners(0xee01, &rates), [owner(0x1_0000_0002, 3, 0xee01_0001), owner(7, 0, 0xee01_0002)]);
    }
}
