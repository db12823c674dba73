//! From the kernel's numbers to names people know.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use evenkeel_base::{Observation, PodView, is_at_or_below};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;

/// Inode numbers of the cpu controller's groups, and whose groups they are.
#[derive(Debug, Default)]
pub(crate) struct Names {
    paths: HashMap<u64, String>,
    /// Path of a container's group, with its index.
    containers: Vec<(String, usize)>,
}

/// Whose a cgroup is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub container: Option<String>,
    pub pod: Option<String>,
}

impl Names {
    /// Of the groups that own tasks now.
    pub fn read(root: &Root, cpu: Option<&Hierarchy>, observation: &Observation) -> Self {
        Self::read_some(root, cpu, observation, |_| true)
    }

    /// Of the groups among them whose paths are wanted.
    pub fn read_some(
        root: &Root,
        cpu: Option<&Hierarchy>,
        observation: &Observation,
        wanted: impl Fn(&str) -> bool,
    ) -> Self {
        let Some(cpu) = cpu else { return Self::default() };
        let mut paths = HashMap::new();
        for group in observation.groups.iter().filter(|group| wanted(&group.path)) {
            if let Ok(meta) = std::fs::metadata(root.path(cpu.dir(&group.path))) {
                paths.insert(meta.ino(), group.path.clone());
            }
        }
        // The scheduler's root group has no directory of its own number where only a part of the tree is mounted.
        paths.entry(1).or_insert_with(|| "/".to_owned());
        let containers = observation
            .containers
            .iter()
            .enumerate()
            .filter_map(|(index, container)| {
                let group = observation.groups.get(container.group? as usize)?;
                (group.path != "/").then(|| (group.path.clone(), index))
            })
            .collect();
        Self { paths, containers }
    }

    /// Numbers and paths.
    pub fn all(&self) -> impl Iterator<Item = (u64, &str)> {
        self.paths.iter().map(|(id, path)| (*id, path.as_str()))
    }

    pub fn path(&self, id: u64) -> Option<&str> {
        self.paths.get(&id).map(String::as_str)
    }

    /// Index of the container a group belongs to: the innermost one.
    pub fn container(&self, path: &str) -> Option<usize> {
        let holds = self.containers.iter().filter(|(group, _)| is_at_or_below(path, group));
        holds.max_by_key(|(group, _)| group.len()).map(|(_, index)| *index)
    }

    /// Container and pod of a group.
    pub fn owner(&self, path: &str, observation: &Observation) -> Owner {
        let Some(container) = self.container(path).and_then(|at| observation.containers.get(at)) else {
            return Owner::default();
        };
        let pod = container.pod.and_then(|at| observation.pods.get(at as usize));
        Owner { container: Some(container.name.clone()), pod: pod.map(PodView::full_name) }
    }
}
