//! Paths of groups by the numbers programs know them by, and with them the sums of threads that are gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::ExitedSample;
use evenkeel_bpf::task::Exited;
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;

use crate::place::Place;

/// The tree of groups is walked for unknown numbers this often at most.
const WALK_EVERY: Duration = Duration::from_secs(2);
/// Groups looked at in a walk at most.
const WALK_GROUPS: usize = 100_000;
/// With so many groups in the kernel's table, those that are gone make room at once.
const MANY_GROUPS: usize = 8192;

/// Groups of the cpu controller by number: the inode of their directory (64 bits, never used twice in one boot).
#[derive(Debug)]
pub(crate) struct GroupPaths {
    root: Root,
    cpu: Option<Hierarchy>,
    known: HashMap<u64, Arc<Place>>,
    walked: Option<Instant>,
    /// Those that the last walk was for: what it did not find is gone.
    sought: HashSet<u64>,
    /// Those that were gone at the last look.
    gone: HashSet<u64>,
    sums: SumsByPath,
}

/// Sums by path, which only grow: what is new goes to the path that its group has by now. A group's name may become known later
/// than its first sums, and be forgotten again: sums that moved from one name to another would count twice there.
#[derive(Debug, Default)]
struct SumsByPath {
    /// The kernel's, as of the last look.
    last: HashMap<u64, Exited>,
    by_path: BTreeMap<Option<String>, ExitedSample>,
}

impl SumsByPath {
    fn take(&mut self, sums: &[Exited], path: impl Fn(u64) -> Option<String>) -> Vec<ExitedSample> {
        for now in sums {
            let then = self.last.insert(now.cgroup_cpu, *now).unwrap_or_default();
            let path = path(now.cgroup_cpu);
            let entry = self.by_path.entry(path).or_insert_with_key(|path| ExitedSample {
                path: path.clone(),
                tasks: 0,
                ran_ns: 0,
                waited_ns: 0,
            });
            entry.tasks += now.tasks.saturating_sub(then.tasks);
            entry.ran_ns += now.ran_ns.saturating_sub(then.ran_ns);
            entry.waited_ns += now.waited_ns.saturating_sub(then.waited_ns);
        }
        self.by_path.values().cloned().collect()
    }

    /// The kernel begins anew with this group, should it ever come again.
    fn forget(&mut self, number: u64, path: Option<String>) {
        self.last.remove(&number);
        if path.is_some() {
            self.by_path.remove(&path);
        }
    }
}

impl GroupPaths {
    pub(crate) fn new(root: &Root, cpu: Option<Hierarchy>) -> Self {
        let (known, sought, gone, sums) = Default::default();
        Self { root: root.clone(), cpu, known, walked: None, sought, gone, sums }
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

    /// The sums by path.
    pub(crate) fn exited(&mut self, sums: &[Exited]) -> Vec<ExitedSample> {
        let numbers = sums.iter().map(|sum| sum.cgroup_cpu);
        let unknown: HashSet<u64> = numbers.filter(|number| !self.known.contains_key(number)).collect();
        if !unknown.is_subset(&self.sought) && self.walked.is_none_or(|at| at.elapsed() > WALK_EVERY) {
            self.walk();
            self.sought = unknown;
        }
        let known = &self.known;
        self.sums.take(sums, |number| known.get(&number)?.cpu.clone())
    }

    /// Every `round`, forgets groups that are gone, and takes them out of the kernel's table: at the second look, when whoever
    /// compares two samples has seen their last sums; at once where the table fills.
    pub(crate) fn forget_gone(&mut self, round: bool, sums: &[Exited], mut forget: impl FnMut(u64)) {
        let fills = sums.len() > MANY_GROUPS;
        if !round && !fills {
            return;
        }
        let before = std::mem::take(&mut self.gone);
        let numbers = sums.iter().map(|sum| sum.cgroup_cpu).chain(self.known.keys().copied());
        for number in numbers.collect::<HashSet<u64>>() {
            let path = self.known.get(&number).and_then(|place| place.cpu.clone());
            let now = path.as_deref().and_then(|path| self.number(path));
            if now == Some(number) {
                continue;
            }
            if !fills && !before.contains(&number) {
                self.gone.insert(number);
                continue;
            }
            forget(number);
            self.known.remove(&number);
            self.sought.remove(&number);
            // Another group may have the name by now.
            self.sums.forget(number, path.filter(|_| now.is_none()));
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_gone_is_forgotten_at_the_second_look() {
        let (_dir, root) = crate::facts::tests::tree(&[("cpu/pod/app/tasks", ""), ("cpu/stays/tasks", "")]);
        let cpu = Hierarchy { mount_point: "/cpu".into(), root: "/".into(), v2: false };
        let mut paths = GroupPaths::new(&root, Some(cpu));
        let number = |path| std::fs::metadata(root.path(path)).unwrap().ino();
        let (pod, app, stays) = (number("cpu/pod"), number("cpu/pod/app"), number("cpu/stays"));
        let sums = [app, stays].map(|cgroup_cpu| Exited {
            cgroup_cpu,
            ran_ns: 5,
            waited_ns: 0,
            timeslices: 0,
            tasks: 1,
        });
        let shown = |paths: &mut GroupPaths, round: bool| {
            let shown = paths.exited(&sums).len();
            let mut forgotten = HashSet::new();
            paths.forget_gone(round, &sums, |number| _ = forgotten.insert(number));
            (shown, forgotten)
        };
        assert_eq!(shown(&mut paths, true), (2, HashSet::new()));
        std::fs::remove_dir_all(root.path("cpu/pod")).unwrap();
        // What was used there last is in a sample first.
        assert_eq!(shown(&mut paths, true), (2, HashSet::new()));
        assert_eq!(shown(&mut paths, false), (2, HashSet::new()));
        // Also the one in which no task ever was.
        assert_eq!(shown(&mut paths, true), (2, HashSet::from([pod, app])));
        assert!(!paths.known.contains_key(&pod) && paths.known.contains_key(&stays));
        assert_eq!(paths.sums.by_path.keys().flatten().collect::<Vec<_>>(), ["/stays"]);
    }

    #[test]
    fn what_a_walk_did_not_find_is_not_looked_for_again() {
        let (_dir, root) = crate::facts::tests::tree(&[("cpu/stays/tasks", "")]);
        let cpu = Hierarchy { mount_point: "/cpu".into(), root: "/".into(), v2: false };
        let mut paths = GroupPaths::new(&root, Some(cpu));
        let mut walks = |gone: &[u64]| {
            paths.walked = None;
            let sums = gone.iter().map(|number| Exited { cgroup_cpu: *number, ..Exited::default() });
            paths.exited(&sums.collect::<Vec<_>>());
            paths.walked.is_some()
        };
        assert_eq!(
            [&[1][..], &[1], &[1, 2], &[1, 2], &[2]].map(&mut walks),
            [true, false, true, false, false]
        );
    }

    #[test]
    fn what_ended_counts_once_whenever_its_group_gets_a_name_or_goes() {
        let of = |ran_ns| Exited {
            cgroup_cpu: 7,
            ran_ns,
            waited_ns: 2 * ran_ns,
            timeslices: 0,
            tasks: ran_ns / 10,
        };
        let mut sums = SumsByPath::default();
        let shown = |all: Vec<ExitedSample>| -> Vec<_> {
            all.into_iter().map(|one| (one.path, one.tasks, one.ran_ns, one.waited_ns)).collect()
        };
        let name = |_| Some("/a".to_owned());
        assert_eq!(shown(sums.take(&[of(100)], |_| None)), [(None, 10, 100, 200)]);
        // What was counted under no name stays there.
        let both = [(None, 10, 100, 200), (Some("/a".to_owned()), 3, 30, 60)];
        assert_eq!(shown(sums.take(&[of(130)], name)), both);
        assert_eq!(shown(sums.take(&[of(130)], name)), both);
        // The group goes, and its entry in the kernel's table with it: nothing is counted a second time.
        sums.forget(7, name(7));
        assert_eq!(shown(sums.take(&[], name)), both[..1]);
        assert_eq!(shown(sums.take(&[of(20)], name))[1], (Some("/a".to_owned()), 2, 20, 40));
    }
}
