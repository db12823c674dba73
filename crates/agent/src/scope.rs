//! Which tasks a user meant.

use evenkeel_base::{ContainerView, Observation, PodView, TaskView};
use regex::Regex;

/// What is wrong with a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "scope {text:?}: {reason}; expected pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME, vm:NAME or all, \
     with ! in front to exclude"
)]
pub struct ScopeError {
    text: String,
    reason: String,
}

#[derive(Debug, Clone)]
enum Term {
    /// A process with all its threads.
    Pid(u32),
    Comm(Regex),
    /// A cgroup and everything below it.
    Cgroup(String),
    /// By name, or by at least six characters of the id.
    Container(String),
    Pod(Option<String>, String),
    Vm(String),
    All,
}

/// A set of tasks, described; tasks that come later belong to it too.
#[derive(Debug, Clone)]
pub struct Scope {
    include: Vec<Term>,
    exclude: Vec<Term>,
    texts: Vec<String>,
}

impl Scope {
    /// Reads scopes as given on the command line. None at all means all containers and virtual machines.
    ///
    /// # Errors
    /// Names the text that is not a scope.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, ScopeError> {
        let mut scope = Self { include: Vec::new(), exclude: Vec::new(), texts: Vec::new() };
        for text in texts {
            let text = text.as_ref().trim();
            scope.texts.push(text.to_owned());
            match text.strip_prefix('!') {
                Some(rest) => scope.exclude.push(Term::parse(rest, text)?),
                None => scope.include.push(Term::parse(text, text)?),
            }
        }
        Ok(scope)
    }

    /// Leaves out what another scope includes.
    pub fn leave_out(&mut self, other: &Self) {
        self.exclude.extend(other.include.iter().cloned());
    }

    /// As the user gave it.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether every task of the host is meant, which needs an explicit `--apply`.
    pub fn is_all(&self) -> bool {
        self.include.iter().any(|term| matches!(term, Term::All))
    }

    /// Whether nothing was named, so that containers and virtual machines are meant.
    pub fn is_default(&self) -> bool {
        self.include.is_empty()
    }

    /// The cgroup that is named: by its path, or as that of one container, pod or machine.
    pub fn group(&self, observation: &Observation) -> Option<u32> {
        let [term] = self.include.as_slice() else { return None };
        match term {
            Term::Cgroup(path) => {
                let at = observation.groups.iter().position(|group| group.path == *path)?;
                u32::try_from(at).ok()
            }
            Term::Container(name) => observation.containers.iter().find(|c| is_container(c, name))?.group,
            Term::Pod(namespace, name) => {
                observation.pods.iter().find(|pod| is_pod(pod, namespace.as_deref(), name))?.group
            }
            Term::Vm(name) => observation.vms.iter().find(|vm| vm.name == *name)?.group,
            Term::Pid(_) | Term::Comm(_) | Term::All => None,
        }
    }

    /// Whether a task belongs to the scope. Kernel threads, pid 1 and this process never do.
    pub fn has(&self, task: &TaskView, observation: &Observation) -> bool {
        if task.kernel_thread || task.id.tgid == 1 || task.id.tgid == std::process::id() {
            return false;
        }
        let included = if self.include.is_empty() {
            task.container.is_some() || task.vm.is_some()
        } else {
            self.include.iter().any(|term| term.has(task, observation))
        };
        included && !self.exclude.iter().any(|term| term.has(task, observation))
    }
}

fn is_container(container: &ContainerView, name: &str) -> bool {
    container.name == name || (name.len() >= 6 && container.id.starts_with(name))
}

fn is_pod(pod: &PodView, namespace: Option<&str>, name: &str) -> bool {
    (pod.name == name || pod.uid == name) && (namespace.is_none() || pod.namespace.as_deref() == namespace)
}

impl Term {
    fn parse(text: &str, whole: &str) -> Result<Self, ScopeError> {
        let error = |reason: String| ScopeError { text: whole.to_owned(), reason };
        if text == "all" {
            return Ok(Self::All);
        }
        let (kind, value) = text.split_once(':').ok_or_else(|| error("no kind in front".to_owned()))?;
        if value.is_empty() {
            return Err(error("nothing behind the colon".to_owned()));
        }
        Ok(match kind {
            "pid" => Self::Pid(
                value
                    .parse()
                    .ok()
                    .filter(|pid| *pid > 0)
                    .ok_or_else(|| error(format!("{value:?} is no process id")))?,
            ),
            "comm" => Self::Comm(Regex::new(value).map_err(|e| error(e.to_string().replace('\n', " ")))?),
            "cgroup" => {
                if !value.starts_with('/') {
                    return Err(error("a cgroup path starts with /".to_owned()));
                }
                Self::Cgroup(value.trim_end_matches('/').to_owned())
            }
            "container" => Self::Container(value.to_owned()),
            "pod" => match value.split_once('/') {
                Some((namespace, name)) if !name.is_empty() => {
                    Self::Pod((!namespace.is_empty()).then(|| namespace.to_owned()), name.to_owned())
                }
                Some(_) => return Err(error("no pod name behind the slash".to_owned())),
                None => Self::Pod(None, value.to_owned()),
            },
            "vm" => Self::Vm(value.to_owned()),
            other => return Err(error(format!("unknown kind {other:?}"))),
        })
    }

    fn has(&self, task: &TaskView, observation: &Observation) -> bool {
        match self {
            Self::All => true,
            Self::Pid(pid) => task.id.tgid == *pid,
            Self::Comm(regex) => regex.is_match(&task.comm),
            Self::Cgroup(path) => observation.group_of(task).is_some_and(|group| {
                group
                    .path
                    .strip_prefix(path.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }),
            Self::Container(name) => task
                .container
                .and_then(|i| observation.containers.get(i as usize))
                .is_some_and(|container| is_container(container, name)),
            Self::Pod(namespace, name) => task
                .pod
                .and_then(|i| observation.pods.get(i as usize))
                .is_some_and(|pod| is_pod(pod, namespace.as_deref(), name)),
            Self::Vm(name) => {
                task.vm.and_then(|i| observation.vms.get(i as usize)).is_some_and(|vm| vm.name == *name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn observation() -> Observation {
        let container = ContainerView {
            id: "0123456789abcdef".into(),
            name: "web".into(),
            runtime: "docker".into(),
            confirmed: true,
            labels: vec![],
            pod: None,
            group: None,
        };
        let groups = ["/", "/a", "/a/b", "/ab"].map(|path| (path, None));
        Observation { containers: vec![container], ..testing::observation(&groups) }
    }

    fn task(pid: u32, comm: &str, group: u32, container: Option<u32>) -> TaskView {
        TaskView { container, ..testing::task(pid, comm, group) }
    }

    fn has(scope: &[&str], task: &TaskView) -> bool {
        Scope::parse(scope).unwrap().has(task, &observation())
    }

    #[test]
    fn each_kind_finds_its_tasks_and_no_others() {
        let t = task(7, "nginx", 2, Some(0));
        assert!(has(&["pid:7"], &t) && !has(&["pid:8"], &t));
        assert!(has(&["comm:^ngi"], &t) && !has(&["comm:^gin"], &t));
        assert!(has(&["cgroup:/a"], &t) && has(&["cgroup:/a/b/"], &t));
        assert!(!has(&["cgroup:/a"], &task(7, "x", 3, None)), "/ab is not below /a");
        assert!(has(&["cgroup:/"], &t));
        assert!(
            has(&["container:web"], &t) && has(&["container:012345"], &t) && !has(&["container:0123"], &t)
        );
        assert!(has(&["all"], &t) && !has(&["all", "!comm:nginx"], &t));
    }

    #[test]
    fn nothing_named_means_containers_and_vms() {
        assert!(has(&[], &task(7, "x", 1, Some(0))));
        assert!(!has(&[], &task(7, "x", 1, None)));
        assert!(!has(&["!container:web"], &task(7, "x", 1, Some(0))));
    }

    #[test]
    fn what_another_includes_is_left_out() {
        let t = task(7, "nginx", 2, Some(0));
        let mut scope = Scope::parse(&["cgroup:/a"]).unwrap();
        scope.leave_out(&Scope::parse(&["container:db"]).unwrap());
        assert!(scope.has(&t, &observation()));
        scope.leave_out(&Scope::parse(&["container:web"]).unwrap());
        assert!(!scope.has(&t, &observation()));
        assert_eq!(scope.texts(), ["cgroup:/a"], "as it was given");
    }

    #[test]
    fn pid_1_and_kernel_threads_never_belong() {
        let mut kernel = task(50, "kworker", 0, None);
        kernel.kernel_thread = true;
        assert!(!has(&["all"], &kernel) && !has(&["pid:1"], &task(1, "init", 0, None)));
    }

    #[test]
    fn mistakes_are_named() {
        for bad in
            ["", "web", "pid:x", "pid:0", "comm:(", "cgroup:a", "pod:ns/", "volume:x", "container:", "!"]
        {
            let error = Scope::parse(&[bad]).unwrap_err().to_string();
            assert!(error.contains("expected pid:N"), "{bad}: {error}");
        }
    }
}
