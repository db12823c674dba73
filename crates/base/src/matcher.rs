//! Tasks as users name them, in scopes and elsewhere.

use std::str::FromStr;

use regex::Regex;
use serde::{Deserialize, Deserializer};

use crate::file_error::distance;
use crate::{Observation, TaskView, is_at_or_below, nearest, regex_fault};

/// Which tasks are meant.
#[derive(Debug, Clone)]
pub enum Matcher {
    /// `pid:N`: a process with all its threads.
    Pid(u32),
    /// `comm:REGEX`
    Comm(Regex),
    /// `cgroup:/PATH`: the group and those below; without `/` at the end, so the root is empty.
    Cgroup(String),
    /// `container:NAME`, see [`crate::ContainerView::is_meant_by`].
    Container(String),
    /// `pod:NS/NAME` or `pod:NAME`, see [`crate::PodView::is_meant_by`].
    Pod(Option<String>, String),
    /// `vm:NAME`
    Vm(String),
}

impl Matcher {
    /// Whether the task is meant.
    pub fn matches(&self, observation: &Observation, task: &TaskView) -> bool {
        match self {
            Self::Pid(pid) => task.id.tgid == *pid,
            Self::Comm(regex) => regex.is_match(&task.comm),
            Self::Cgroup(path) => {
                observation.group_of(task).is_some_and(|group| is_at_or_below(&group.path, path))
            }
            Self::Container(name) => {
                let container = task.container.and_then(|i| observation.containers.get(i as usize));
                container.is_some_and(|container| container.is_meant_by(name))
            }
            Self::Pod(namespace, name) => {
                let pod = task.pod.and_then(|i| observation.pods.get(i as usize));
                pod.is_some_and(|pod| pod.is_meant_by(namespace.as_deref(), name))
            }
            Self::Vm(name) => {
                task.vm.and_then(|i| observation.vms.get(i as usize)).is_some_and(|vm| vm.name == *name)
            }
        }
    }
}

impl FromStr for Matcher {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once(':').ok_or("no kind in front")?;
        // What a shell makes of an unset variable must not become a wider scope.
        if value.trim().is_empty() {
            return Err("nothing behind the colon".to_owned());
        }
        Ok(match kind {
            "pid" => {
                let pid = value.parse().ok().filter(|pid| *pid > 0);
                Self::Pid(pid.ok_or_else(|| format!("{value:?} is no process id"))?)
            }
            "comm" => Self::Comm(Regex::new(value).map_err(|error| regex_fault(&error))?),
            "cgroup" if value.starts_with('/') => Self::Cgroup(value.trim_end_matches('/').to_owned()),
            "cgroup" => return Err("a cgroup path starts with /".to_owned()),
            "container" => Self::Container(value.to_owned()),
            "pod" => match value.split_once('/') {
                Some((_, "")) => return Err("no pod name behind the slash".to_owned()),
                Some(("", _)) => return Err("no namespace in front of the slash".to_owned()),
                Some((namespace, name)) => Self::Pod(Some(namespace.to_owned()), name.to_owned()),
                None => Self::Pod(None, value.to_owned()),
            },
            "vm" => Self::Vm(value.to_owned()),
            _ => {
                let near = nearest(kind, ["pid", "comm", "cgroup", "container", "pod", "vm"]);
                let near = near.filter(|near| distance(kind, near) <= 2);
                let meant = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
                return Err(format!("unknown kind `{kind}`{meant}"));
            }
        })
    }
}

impl<'de> Deserialize<'de> for Matcher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|why| {
            let forms = "pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME or vm:NAME";
            serde::de::Error::custom(format!("{text:?}: {why}; expected {forms}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_scopes_are_written() {
        for (text, read) in [
            ("pid:7", "Pid(7)"),
            ("comm:^a:b", r#"Comm(Regex("^a:b"))"#),
            ("cgroup:/a/b/", r#"Cgroup("/a/b")"#),
            ("cgroup:/", r#"Cgroup("")"#),
            ("container:we:b", r#"Container("we:b")"#),
            ("pod:prod/api-*", r#"Pod(Some("prod"), "api-*")"#),
            ("pod:api", r#"Pod(None, "api")"#),
            ("vm:a", r#"Vm("a")"#),
        ] {
            assert_eq!(format!("{:?}", text.parse::<Matcher>().unwrap()), read, "{text}");
        }
        for text in
            ["", "web", "container:", "cgroup:a", "pid:x", "pid:-1", "pid:0", "comm:(", "pod:/a", "x:y"]
        {
            assert!(text.parse::<Matcher>().is_err(), "{text}");
        }
        assert_eq!(
            "cgruop:/a".parse::<Matcher>().unwrap_err(),
            "unknown kind `cgruop` (did you mean `cgroup`?)"
        );
        assert_eq!("docker:a".parse::<Matcher>().unwrap_err(), "unknown kind `docker`");
    }
}
