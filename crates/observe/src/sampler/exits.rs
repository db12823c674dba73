//! Paths of groups by the numbers programs know them by, and with them the sums of threads that are gone.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::ExitedSample;
use evenkeel_bpf::task::{Exited, TaskProbe};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;

use crate::place::Place;

/// The tree of groups is walked for unknown numbers this often at most.
const WALK_EVERY: Duration = Duration::from_secs(2);
/// Groups looked at in a walk at most.
const WALK_GROUPS: usize = 100_000;
/// With so many groups in the kernel's table, those that are gone make room.
const MANY_GROUPS: usize = 8192;

/// Groups of the cpu controller by number: the inode of their directory (64 bits, never used twice in one boot).
#[derive(Debug)]
pub(crate) struct GroupPaths {
    root: Root,
    cpu: Option<Hierarchy>,
    known: HashMap<u64, Arc<Place>>,
    walked: Option<Instant>,
    /// Sums of groups no longer in the kernel's table.
    forgotten: BTreeMap<Option<String>, ExitedSample>,
}

impl GroupPaths {
    pub(crate) fn new(root: &Root, cpu: Option<Hierarchy>) -> Self {
        Self { root: root.clone(), cpu, known: HashMap::new(), walked: None, forgotten: BTreeMap::new() }
    }

    /// The number of a group's directory.
    fn number(&self, path: &str) -> Option<u64> {
        let dir = self.root.path(self.cpu.as_ref()?.dir(path));
        std::fs::metadata(dir).ok().map(|meta| meta.ino())
    }

    /// Whether a place is that of the group with this number; notes the path. Where either is unknown (no cpu
    /// controller, or its mount shows only a part), there is nothing to contradict.
    pub(crate) fn confirms(&mut self, number: Option<u64>, place: &Arc<Place>) -> bool {
        let (Some(number), Some(path)) = (number, place.cpu.as_deref()) else { return self.cpu.is_none() };
        match self.number(path) {
            Some(found) if found == number => {
                self.known.insert(number, place.clone());
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    /// A place known by the cpu controller's group alone.
    pub(crate) fn place(&self, number: Option<u64>) -> Option<Arc<Place>> {
        self.known.get(&number?).cloned()
    }

    /// Finds the paths of all groups there are.
    fn walk(&mut self) {
        let Some(cpu) = &self.cpu else { return };
        let top = self.root.path(cpu.dir("/"));
        let mut left = WALK_GROUPS;
        let mut found = Vec::new();
        walk(&top, "", &mut left, &mut found);
        for (number, path) in found {
            self.known.entry(number).or_insert_with(|| Arc::new(Place::of_group(path)));
        }
        self.walked = Some(Instant::now());
    }

    /// The sums by path. Groups that are gone are taken out of the kernel's table when it fills.
    pub(crate) fn exited(&mut self, sums: &[Exited], probe: &mut TaskProbe) -> Vec<ExitedSample> {
        let unknown = sums.iter().any(|sum| !self.known.contains_key(&sum.cgroup_cpu));
        if unknown && self.walked.is_none_or(|at| at.elapsed() > WALK_EVERY) {
            self.walk();
        }
        if sums.len() > MANY_GROUPS {
            self.make_room(sums, probe);
        }
        let mut by_path = self.forgotten.clone();
        for sum in sums {
            add(&mut by_path, self.path(sum.cgroup_cpu), sum);
        }
        by_path.into_values().collect()
    }

    fn path(&self, number: u64) -> Option<String> {
        self.known.get(&number).and_then(|place| place.cpu.clone())
    }

    fn make_room(&mut self, sums: &[Exited], probe: &mut TaskProbe) {
        for sum in sums {
            let path = self.path(sum.cgroup_cpu);
            let there = path.as_deref().and_then(|path| self.number(path)) == Some(sum.cgroup_cpu);
            if !there {
                probe.forget(sum.cgroup_cpu);
                self.known.remove(&sum.cgroup_cpu);
                // Its name is of no use any more, its sums are.
                add(&mut self.forgotten, None, sum);
            }
        }
    }
}

fn add(by_path: &mut BTreeMap<Option<String>, ExitedSample>, path: Option<String>, sum: &Exited) {
    let entry = by_path.entry(path).or_insert_with_key(|path| ExitedSample {
        path: path.clone(),
        tasks: 0,
        ran_ns: 0,
        waited_ns: 0,
    });
    entry.tasks += sum.tasks;
    entry.ran_ns += sum.ran_ns;
    entry.waited_ns += sum.waited_ns;
}

/// Numbers and paths of a directory of groups and those below it.
fn walk(dir: &Path, path: &str, left: &mut usize, found: &mut Vec<(u64, String)>) {
    if let Ok(meta) = std::fs::metadata(dir) {
        found.push((meta.ino(), if path.is_empty() { "/".to_owned() } else { path.to_owned() }));
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if *left == 0 {
            return;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            *left -= 1;
            walk(&entry.path(), &format!("{path}/{}", entry.file_name().to_string_lossy()), left, found);
        }
    }
}
