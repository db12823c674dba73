//! Where tasks are in the cgroup hierarchies: one entry per distinct text of `/proc/PID/cgroup`, shared by all tasks
//! that have it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_linux::mountinfo::{Hierarchies, Hierarchy};
use evenkeel_linux::{Root, cgroup};

use crate::ownership::{Owner, classify};

/// A place in all hierarchies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Group of the cpu controller, below its mount; the nearest ancestor that has the controller on v2.
    pub cpu: Option<String>,
    /// Group of the cpuset controller, below its mount.
    pub cpuset: Option<String>,
    /// Group of v1 cpuacct, below its mount.
    pub cpuacct: Option<String>,
    /// Group of the v2 hierarchy, with or without controllers, below its mount.
    pub unified: Option<String>,
    /// Whose it is, by the path.
    pub owner: Owner,
    /// Whether the owner's paths are those of the cpu hierarchy.
    pub owner_in_cpu: bool,
}

impl Place {
    /// Of somebody of whom only the cpu controller's group is known.
    pub(crate) fn of_group(path: String) -> Self {
        Self { owner: classify(&path), owner_in_cpu: true, cpu: Some(path), ..Self::default() }
    }
}

#[derive(Debug)]
pub(crate) struct PlaceCache {
    root: Root,
    hierarchies: Option<Hierarchies>,
    /// With when it was found.
    known: HashMap<Box<str>, (Arc<Place>, Instant)>,
    /// So many are kept before those where nobody is any more are dropped.
    room: usize,
    nowhere: Arc<Place>,
}

/// Least room for places.
const ROOM: usize = 64;
/// A place is found again after this time: the same text may mean another group of the cpu controller by then. systemd enables it
/// for a slice when the first of its units asks for a weight or a quota, and all its units have groups of their own from then on.
const AGE: Duration = Duration::from_secs(10);

impl PlaceCache {
    pub(crate) fn new(root: Root, hierarchies: Option<Hierarchies>) -> Self {
        Self { root, hierarchies, known: HashMap::new(), room: ROOM, nowhere: Arc::default() }
    }

    /// The place of tasks of which none is known.
    pub(crate) fn nowhere(&self) -> Arc<Place> {
        self.nowhere.clone()
    }

    pub(crate) fn hierarchies(&self) -> Option<&Hierarchies> {
        self.hierarchies.as_ref()
    }

    /// The place a `/proc/.../cgroup` file tells; nowhere when it cannot be read (the task is gone, or it is a tree
    /// without it).
    pub(crate) fn read(&mut self, file: &Path) -> Arc<Place> {
        self.read_at(file, Instant::now())
    }

    fn read_at(&mut self, file: &Path, now: Instant) -> Arc<Place> {
        let Ok(text) = self.root.read_path(file) else { return self.nowhere.clone() };
        let old = self.known.get(text.as_str());
        if let Some((place, found)) = old
            && now.saturating_duration_since(*found) < AGE
        {
            return place.clone();
        }
        let old = old.map(|(place, _)| place.clone());
        if self.known.len() >= self.room {
            self.known.retain(|_, (place, _)| Arc::strong_count(place) > 1);
            self.room = (2 * self.known.len()).max(ROOM);
        }
        let place = match cgroup::parse(&text) {
            Ok(memberships) => Arc::new(self.place(&memberships)),
            Err(error) => {
                tracing::warn!("{}", error.at(file));
                self.nowhere.clone()
            }
        };
        // Tasks share it.
        let place = old.filter(|old| *old == place).unwrap_or(place);
        self.known.insert(text.into(), (place.clone(), now));
        place
    }

    fn place(&self, memberships: &cgroup::Memberships) -> Place {
        let hierarchies = self.hierarchies.as_ref();
        let path_in = |hierarchy: Option<&Hierarchy>, controller: &str| -> Option<String> {
            let hierarchy = hierarchy?;
            let path = if hierarchy.v2 { memberships.v2() } else { memberships.v1(controller) };
            path.map(|path| hierarchy.below(path).to_owned())
        };
        let cpu_full = path_in(hierarchies.and_then(|h| h.cpu.as_ref()), "cpu");
        let cpu = match hierarchies.and_then(|h| h.cpu.as_ref()) {
            Some(hierarchy) if hierarchy.v2 => {
                cpu_full.as_deref().map(|path| self.with_controller(hierarchy, path))
            }
            _ => cpu_full.clone(),
        };
        let in_cpu = cpu_full.as_deref().map(classify).unwrap_or_default();
        let (owner, owner_in_cpu) = if in_cpu.container.is_some() || in_cpu.pod.is_some() {
            (in_cpu, true)
        } else {
            // Another hierarchy may tell more: systemd's own, when CPU accounting is off.
            let others = memberships.0.iter().map(|m| classify(&m.path));
            let best = others.max_by_key(|o| (o.container.is_some(), o.pod.is_some(), o.unit.is_some()));
            match best {
                Some(best) if best != Owner::default() && in_cpu.unit.is_none() => (best, false),
                Some(best) if best.container.is_some() => (best, false),
                _ => (in_cpu, true),
            }
        };
        Place {
            cpu,
            cpuset: path_in(hierarchies.and_then(|h| h.cpuset.as_ref()), "cpuset"),
            cpuacct: path_in(hierarchies.and_then(|h| h.cpuacct.as_ref()), "cpuacct"),
            unified: path_in(hierarchies.and_then(|h| h.unified.as_ref()), ""),
            owner,
            owner_in_cpu,
        }
    }

    /// The nearest group, upwards, for which the v2 cpu controller is enabled: tasks below it compete in it.
    fn with_controller(&self, hierarchy: &Hierarchy, path: &str) -> String {
        let mut at = path;
        while at != "/" {
            if self.root.path(format!("{}/cpu.weight", hierarchy.dir(at))).exists() {
                return at.to_owned();
            }
            match evenkeel_linux::cgroupfs::parent(at) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        "/".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::tree;

    #[test]
    fn places_where_nobody_is_any_more_are_dropped() {
        let (_dir, root) = tree(&[("proc/7/cgroup", "0::/\n")]);
        let (mut cache, file) = (PlaceCache::new(root.clone(), None), root.path("proc/7/cgroup"));
        let mut place = |number: usize| {
            std::fs::write(&file, format!("0::/job-{number}\n")).unwrap();
            cache.read(&file)
        };
        let living: Vec<_> = (0..100).map(&mut place).collect();
        (100..1000).for_each(|number| drop(place(number)));
        assert!((100..=2 * living.len()).contains(&cache.known.len()), "{}", cache.known.len());
    }

    #[test]
    fn a_group_that_gets_the_controller_later_is_a_place_of_its_own_from_then_on() {
        let (_dir, root) =
            tree(&[("proc/7/cgroup", "0::/system.slice/web.service\n"), ("u/cgroup.procs", "")]);
        let mut found = Hierarchies::find(&[], None);
        found.cpu = Some(Hierarchy { mount_point: "/u".into(), root: "/".into(), v2: true });
        let mut cache = PlaceCache::new(root.clone(), Some(found));
        let (file, start) = (root.path("proc/7/cgroup"), Instant::now());
        let first = cache.read_at(&file, start);
        assert_eq!(first.cpu.as_deref(), Some("/"));
        assert!(Arc::ptr_eq(&first, &cache.read_at(&file, start + AGE)), "nothing has changed");
        for group in ["system.slice", "system.slice/web.service"] {
            evenkeel_linux::testing::lay(&root.path(format!("u/{group}")), &[("cpu.weight", "100\n")]);
        }
        assert!(Arc::ptr_eq(&first, &cache.read_at(&file, start + AGE)));
        let later = cache.read_at(&file, start + 2 * AGE);
        assert_eq!(later.cpu.as_deref(), Some("/system.slice/web.service"));
    }
}
