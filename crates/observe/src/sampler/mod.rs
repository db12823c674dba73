//! Raw counters of every thread: by a BPF iterator where the kernel lets us, else by `/proc`. Both give the same
//! identities and the same counters; the iterator costs a fraction, and counts threads that end between two samples.

mod bpf;
mod exits;
mod proc;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_base::{Sample, SchedAttr, TaskId};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchies;
use serde::{Deserialize, Serialize};

use crate::ObserveError;
use crate::place::Place;
use crate::process::TaskMeta;
use bpf::ByBpf;
use proc::ByProc;

/// Samples for which the facts of a vanished task are remembered, so that intervals ending before can be explained.
const REMEMBER_SAMPLES: u64 = 8;
/// Vanished tasks remembered at most.
const REMEMBER_TASKS: usize = 8192;

/// Which tasks are looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Select {
    None,
    /// Every thread of the host.
    #[default]
    All,
    /// These threads; ones not seen in an earlier sample of all or of their process are looked for.
    Tasks(BTreeSet<TaskId>),
    /// All threads of these processes, new ones included.
    Processes(BTreeSet<u32>),
}

impl Select {
    /// Whether a task is among them.
    pub fn has(&self, id: TaskId) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Tasks(tasks) => tasks.contains(&id),
            Self::Processes(processes) => processes.contains(&id.tgid),
        }
    }
}

/// How tasks are sampled. A captured tree has only `/proc`, whatever is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// By BPF where that works, else by `/proc`, saying why.
    #[default]
    Auto,
    Proc,
    /// By BPF; where that does not work it is an error.
    Bpf,
}

/// The table of tasks, and what is kept between samples to read it cheaply.
#[derive(Debug)]
pub struct Sampler {
    way: Way,
    note: Option<String>,
}

#[derive(Debug)]
enum Way {
    Proc(Box<ByProc>),
    Bpf(Box<ByBpf>),
}

impl Sampler {
    /// Prepares to sample a host or a tree by `/proc`. Raises this process's limit of descriptors to the hard limit;
    /// three quarters of it are used at most, tasks beyond are read by opening their files each time.
    pub fn new(root: &Root) -> Result<Self, ObserveError> {
        Ok(Self { way: Way::Proc(Box::new(ByProc::new(root)?)), note: None })
    }

    /// Prepares to sample in the way asked for.
    pub fn open(root: &Root, sampling: Sampling) -> Result<Self, ObserveError> {
        if sampling == Sampling::Proc || !root.is_live() {
            return Self::new(root);
        }
        match ByBpf::new(root) {
            Ok(way) => Ok(Self { way: Way::Bpf(Box::new(way)), note: None }),
            Err(error) if sampling == Sampling::Bpf => Err(error),
            Err(ObserveError::Bpf(error)) => {
                let note = format!(
                    "tasks are sampled by /proc, which costs more and misses short-lived ones: {error}"
                );
                Ok(Self { note: Some(note), ..Self::new(root)? })
            }
            Err(error) => Err(error),
        }
    }

    /// The way in use: [`Sampling::Bpf`] or [`Sampling::Proc`].
    pub fn sampling(&self) -> Sampling {
        match self.way {
            Way::Proc(_) => Sampling::Proc,
            Way::Bpf(_) => Sampling::Bpf,
        }
    }

    /// What the user should be told since the last call: why `/proc` is used, events lost. Each once.
    pub fn take_note(&mut self) -> Option<String> {
        let later = match &mut self.way {
            Way::Proc(_) => None,
            Way::Bpf(way) => way.take_note(),
        };
        self.note.take().or(later)
    }

    /// Where the cgroup hierarchies are; `None` on a host without.
    pub fn hierarchies(&self) -> Option<&Hierarchies> {
        match &self.way {
            Way::Proc(way) => way.hierarchies(),
            Way::Bpf(way) => way.hierarchies(),
        }
    }

    /// Reads the counters of the CPUs and of the tasks selected; for tasks in `switches` the context switches too
    /// (slow by `/proc`, about 15 us a task). [`Sample::groups`] is left empty, see [`crate::Observer`].
    ///
    /// # Errors
    /// `/proc` itself unreadable or `/proc/stat` malformed, or the kernel refuses the pass. Tasks that vanish are left
    /// out.
    pub fn sample(&mut self, select: &Select, switches: &Select) -> Result<Sample, ObserveError> {
        match &mut self.way {
            Way::Proc(way) => way.sample(select, switches),
            Way::Bpf(way) => way.sample(select, switches),
        }
    }

    /// What is known of a task, also shortly after its end.
    pub(crate) fn meta(&self, id: TaskId) -> Option<&TaskMeta> {
        match &self.way {
            Way::Proc(way) => way.meta(id),
            Way::Bpf(way) => way.meta(id),
        }
    }

    /// Class, nice and slice of a task of the last sample, where they come with it.
    pub(crate) fn sched(&self, id: TaskId) -> Option<SchedAttr> {
        match &self.way {
            Way::Proc(_) => None,
            Way::Bpf(way) => way.sched(id),
        }
    }

    /// Where the tasks of the last sample are, each place once.
    pub(crate) fn places(&self) -> Vec<&Arc<Place>> {
        let mut places: Vec<_> = match &self.way {
            Way::Proc(way) => way.places().collect(),
            Way::Bpf(way) => way.places().collect(),
        };
        // Neighbours are often in the same place: that leaves little to sort.
        places.dedup_by_key(|place| Arc::as_ptr(place));
        places.sort_unstable_by_key(|place| Arc::as_ptr(place));
        places.dedup_by_key(|place| Arc::as_ptr(place));
        places
    }

    /// Directories, relative to the root, of all groups of the cpu, cpuset, cpuacct and v2 hierarchies that own a task
    /// of the last sample, and of their ancestors.
    pub(crate) fn group_dirs(&self, hierarchies: &Hierarchies) -> Vec<String> {
        let mut dirs = Vec::new();
        for place in self.places() {
            let ways = [
                (&hierarchies.cpu, &place.cpu),
                (&hierarchies.cpuset, &place.cpuset),
                (&hierarchies.cpuacct, &place.cpuacct),
                (&hierarchies.unified, &place.unified),
            ];
            for (hierarchy, path) in ways {
                let (Some(hierarchy), Some(path)) = (hierarchy, path) else { continue };
                // Paths here are below the mount already.
                let mount = hierarchy.mount_point.trim_end_matches('/');
                let all = crate::groups::with_ancestors(std::iter::once(path.as_str()));
                dirs.extend(all.into_iter().map(|path| format!("{mount}{}", path.trim_end_matches('/'))));
            }
        }
        dirs
    }

    /// Whether the task's numbers still mean it, right now.
    pub(crate) fn is_alive(&mut self, id: TaskId) -> bool {
        match &mut self.way {
            Way::Proc(way) => way.is_alive(id),
            Way::Bpf(way) => way.is_alive(id),
        }
    }
}

/// Facts of tasks that are gone, with the sample in which that was noticed.
#[derive(Debug, Default)]
struct Remembered(HashMap<TaskId, (TaskMeta, u64)>);

impl Remembered {
    fn add(&mut self, number: u64, gone: impl Iterator<Item = (TaskId, TaskMeta)>) {
        self.0.retain(|_, (_, since)| *since + REMEMBER_SAMPLES > number);
        let room = REMEMBER_TASKS.saturating_sub(self.0.len());
        self.0.extend(gone.take(room).map(|(id, meta)| (id, (meta, number))));
    }

    fn get(&self, id: TaskId) -> Option<&TaskMeta> {
        self.0.get(&id).map(|(meta, _)| meta)
    }
}
