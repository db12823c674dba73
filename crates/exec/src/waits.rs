//! Time a command's tasks waited for a CPU: exactly by taskstats, else from what was seen of living tasks.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};

use evenkeel_linux::{process, schedstat};
use serde::Serialize;

use super::taskstats::Listener;

/// How waits were learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitSource {
    /// Of every task, at its exit, from the kernel.
    Taskstats,
    /// Of tasks seen alive, ten times a second: too low where tasks are short-lived.
    Sampled,
}

/// Follows the waits of a command.
#[derive(Debug)]
pub(super) enum Waits {
    Told(Listener),
    Sampled { seen: HashMap<(u32, u64), u64>, why: String },
}

/// What is known in the end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waited {
    pub waited_ns: Option<u64>,
    pub voluntary: Option<u64>,
    pub involuntary: Option<u64>,
    pub source: WaitSource,
    pub note: Option<String>,
}

impl Waits {
    pub fn start() -> Self {
        match Listener::open() {
            Ok(listener) => Self::Told(listener),
            Err(error) => Self::Sampled { seen: HashMap::new(), why: error.to_string() },
        }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Told(listener) => Some(listener.as_fd()),
            Self::Sampled { .. } => None,
        }
    }

    /// Takes what the kernel told, or looks at the living.
    pub fn look(&mut self, processes: impl FnOnce() -> BTreeSet<u32>) {
        match self {
            Self::Told(listener) => listener.drain_some(processes),
            Self::Sampled { seen, .. } => {
                for pid in processes() {
                    for (tid, start, waited) in threads(pid) {
                        seen.insert((tid, start), waited);
                    }
                }
            }
        }
    }

    /// What was waited by the descendants of this process. `alive`: those that have not ended.
    pub fn finish(mut self, alive: &BTreeSet<u32>) -> Waited {
        self.look(|| alive.clone());
        match self {
            Self::Told(listener) => {
                let (mut sum, lost) = listener.sum(alive);
                for pid in alive {
                    sum.waited_ns += threads(*pid).iter().map(|(_, _, waited)| waited).sum::<u64>();
                }
                Waited {
                    waited_ns: Some(sum.waited_ns),
                    voluntary: Some(sum.voluntary),
                    involuntary: Some(sum.involuntary),
                    source: WaitSource::Taskstats,
                    note: lost.then(|| {
                        "more tasks ended than the kernel could tell of: waits and switches are too low"
                            .into()
                    }),
                }
            }
            Self::Sampled { seen, why } => Waited {
                waited_ns: (!seen.is_empty()).then(|| seen.values().sum()),
                voluntary: None,
                involuntary: None,
                source: WaitSource::Sampled,
                note: Some(format!(
                    "waits are sampled, too low for short-lived tasks: the kernel does not tell of exits here ({why})"
                )),
            },
        }
    }
}

/// Thread, start time and time waited of each thread of a process.
fn threads(pid: u32) -> Vec<(u32, u64, u64)> {
    let mut found = Vec::new();
    for tid in process::threads(pid) {
        let read = || {
            let text = std::fs::read(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
            Some((process::start_time(pid, tid).ok()?, schedstat::parse_bytes(&text)?.waited_ns))
        };
        found.extend(read().map(|(start, waited)| (tid, start, waited)));
    }
    found
}

/// Living descendants of this process, by the kernel's lists of children.
pub(super) fn living_descendants() -> BTreeSet<u32> {
    let own = std::process::id();
    let mut found = BTreeSet::new();
    let mut next = vec![own];
    while let Some(pid) = next.pop() {
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path().join("children")).unwrap_or_default();
            for child in text.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
                if found.insert(child) {
                    next.push(child);
                }
            }
        }
    }
    found
}
