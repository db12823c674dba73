//! The real host: files under `/proc` and `/sys`, and `tc` for queueing disciplines.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use evenkeel_base::{CpuSet, NetKnob};

use super::HostError;
use super::knob::{file, is_mask};

/// Files under a root directory.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
}

impl Default for Files {
    fn default() -> Self {
        Self::new()
    }
}

/// The queues of a link, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queues {
    /// Those it receives by.
    pub receive: Vec<u32>,
    /// Those it sends by.
    pub transmit: Vec<u32>,
}

impl Files {
    pub fn new() -> Self {
        Self { root: "/".into() }
    }

    /// A tree's, for tests.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Queues of a link.
    pub fn queues(&self, link: &str) -> Result<Queues, HostError> {
        let dir = self.root.join("sys/class/net").join(link).join("queues");
        let entries = fs::read_dir(&dir).map_err(|error| of_file(&error, link))?;
        let names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let numbered = |prefix: &str| {
            let mut found: Vec<u32> =
                names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
            found.sort_unstable();
            found
        };
        Ok(Queues { receive: numbered("rx-"), transmit: numbered("tx-") })
    }

    /// Links of this network namespace.
    pub fn links(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("sys/class/net")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

impl Files {
    /// A value in the one form used for comparing.
    pub fn normal(knob: &NetKnob, value: &str) -> Result<String, HostError> {
        super::normal(knob, value).map_err(HostError::Refused)
    }

    /// The present value, in the form in which it is written.
    pub fn read(&self, knob: &NetKnob) -> Result<String, HostError> {
        let Some(file) = file(knob) else { return root_qdisc(knob.link().unwrap_or_default()) };
        let text = fs::read_to_string(self.root.join(&file)).map_err(|error| of_file(&error, &file))?;
        let bad = |error: String| HostError::Io { path: file.clone(), error };
        if is_mask(knob) {
            return CpuSet::parse_mask(&text).map(|cpus| cpus.to_string()).map_err(|e| bad(e.to_string()));
        }
        if matches!(knob, NetKnob::IrqAffinity { .. }) {
            return text.parse::<CpuSet>().map(|cpus| cpus.to_string()).map_err(|e| bad(e.to_string()));
        }
        Ok(text.trim().to_owned())
    }

    /// Writes a value; does not read it back.
    pub fn write(&self, knob: &NetKnob, value: &str) -> Result<(), HostError> {
        let Some(file) = file(knob) else { return set_root_qdisc(knob.link().unwrap_or_default(), value) };
        let text = if is_mask(knob) {
            value.parse::<CpuSet>().map(|cpus| cpus.to_mask()).unwrap_or_default()
        } else {
            value.to_owned()
        };
        let opened = OpenOptions::new().write(true).open(self.root.join(&file));
        let written = opened.and_then(|mut handle| handle.write_all(format!("{text}\n").as_bytes()));
        written.map_err(|error| of_file(&error, &file))
    }

    /// The index of its link, which no other link has, also not one recreated under the same name; 0 where there is none.
    pub fn identity(&self, knob: &NetKnob) -> Result<u64, HostError> {
        knob.link().map_or(Ok(0), |link| self.index(link))
    }

    /// The same property of the link with this index, whatever its name is now; `None` when there is no such link.
    pub fn renamed(&self, knob: &NetKnob, index: u64) -> Option<NetKnob> {
        knob.link()?;
        let link = self.links().into_iter().find(|link| self.index(link) == Ok(index))?;
        Some(knob.on_link(&link))
    }

    fn index(&self, link: &str) -> Result<u64, HostError> {
        let file = format!("sys/class/net/{link}/ifindex");
        let text = fs::read_to_string(self.root.join(&file)).map_err(|error| of_file(&error, link))?;
        text.trim()
            .parse()
            .map_err(|_| HostError::Io { path: file, error: format!("expected a number: {text:?}") })
    }
}

fn of_file(error: &io::Error, path: &str) -> HostError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => HostError::Gone(path.to_owned()),
        Some(libc::EPERM | libc::EACCES | libc::EROFS) => HostError::Denied(path.to_owned()),
        Some(libc::EOPNOTSUPP) => {
            HostError::Unsupported(format!("{path}: not supported by this link's driver"))
        }
        // Interrupts the kernel manages (multi-queue NVMe) cannot be moved: EIO.
        Some(libc::EIO) => HostError::Unsupported(format!("{path}: the kernel manages this one itself")),
        _ => HostError::Io { path: path.to_owned(), error: error.to_string() },
    }
}

fn tc(arguments: &[&str]) -> Result<String, HostError> {
    let command = format!("tc {}", arguments.join(" "));
    let output =
        Command::new("tc").args(arguments).process_group(0).output().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                HostError::Unsupported("tc is not installed: apt-get install iproute2".into())
            }
            _ => HostError::Io { path: command.clone(), error: error.to_string() },
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(match said.as_str() {
        said if said.contains("Cannot find device") => HostError::Gone(command),
        said if said.contains("Operation not permitted") => HostError::Denied(command),
        said => HostError::Io { path: command, error: said.to_owned() },
    })
}

fn root_qdisc(link: &str) -> Result<String, HostError> {
    Ok(parse_root(&tc(&["qdisc", "show", "dev", link])?))
}

/// A discipline nobody set has handle 0: what the kernel gives a link by itself comes back when ours is deleted.
fn parse_root(text: &str) -> String {
    let roots = text.lines().filter(|line| line.split_ascii_whitespace().any(|word| word == "root"));
    let mut set = roots.filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != "qdisc").skip(1);
        let (kind, handle) = (words.next()?, words.next()?);
        (handle != "0:").then(|| format!("{kind} {handle}"))
    });
    set.next_back().unwrap_or_else(|| "default".to_owned())
}

fn set_root_qdisc(link: &str, value: &str) -> Result<(), HostError> {
    match value.split_once(' ') {
        None => tc(&["qdisc", "del", "dev", link, "root"]).map(drop),
        Some((kind, handle)) => {
            tc(&["qdisc", "add", "dev", link, "root", "handle", handle, kind, "default", "0"]).map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_gave_a_link_is_the_default() {
        assert_eq!(parse_root("qdisc noqueue 0: root refcnt 2 \n"), "default");
        assert_eq!(parse_root("qdisc mq 0: root\nqdisc fq_codel 0: parent :1 limit 10240p\n"), "default");
        assert_eq!(
            parse_root(
                "qdisc htb ee01: root refcnt 2 r2q 10 default 0\nqdisc clsact ffff: parent ffff:fff1\n"
            ),
            "htb ee01:"
        );
        assert_eq!(parse_root(""), "default");
    }
}
