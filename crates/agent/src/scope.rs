//! Which tasks a user meant.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use evenkeel_base::{ExitedView, Matcher, Observation, TaskView, is_at_or_below};
use evenkeel_linux::cgroupfs::parent;

use crate::tiers::{self, Tier};
use crate::trusted::Trusted;

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
    /// A process with all its threads, and when that began, where it is known which process is meant.
    Pid(u32, Found<Option<u64>>),
    /// What else a user names.
    Named(Matcher),
    All,
    /// By the whole id, which nobody can choose.
    ContainerId(String),
    /// By the uid alone.
    PodUid(String),
    /// By what the host says about its tier, see [`crate::tiers`].
    Tier(Tier, Box<Trusted>),
    /// These cgroups, which the host told to wait, see [`crate::tiers::told_to_wait`].
    Told(Found<BTreeSet<String>>),
}

/// What each run finds out again, such as when a process began: it is no part of a configuration, which is told from another by its
/// `Debug` form.
#[derive(Clone, Copy, Default)]
struct Found<T>(T);

impl<T> fmt::Debug for Found<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

/// A set of tasks, described; tasks that come later belong to it too.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    include: Vec<Term>,
    exclude: Vec<Term>,
    texts: Vec<String>,
}

impl Scope {
    /// Reads scopes as given on the command line. None at all means all containers and virtual machines.
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

    /// The container with this id, whatever others are called.
    pub(crate) fn of_container(id: &str) -> Self {
        Self::of(Term::ContainerId(id.to_owned()), format!("container:{id}"))
    }

    /// The pod with this uid, whatever others are called.
    pub(crate) fn of_pod(uid: &str) -> Self {
        Self::of(Term::PodUid(uid.to_owned()), format!("pod:{uid}"))
    }

    /// Those of a tier, as the host says.
    pub fn of_tier(tier: Tier, trusted: Trusted) -> Self {
        let mut scope = Self::of(Term::Tier(tier, Box::new(trusted)), format!("tiers:{}", tier.name()));
        if tier == Tier::Background {
            scope.include.push(Term::Told(Found::default()));
        }
        scope
    }

    /// The cgroups that were told to wait, where the scope is of that tier.
    pub(crate) fn told(&self) -> Option<&BTreeSet<String>> {
        self.include.iter().find_map(|term| match term {
            Term::Told(Found(told)) => Some(told),
            _ => None,
        })
    }

    /// These cgroups were told to wait.
    pub fn tell(&mut self, paths: BTreeSet<String>) {
        for term in &mut self.include {
            if let Term::Told(Found(told)) = term {
                told.clone_from(&paths);
            }
        }
    }

    /// What is meant, with what the host told to wait.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let told = self.told().into_iter().flatten().map(|path| format!("cgroup:{path}"));
        self.texts.iter().cloned().chain(told).collect()
    }

    /// What another names belongs to it, too.
    pub fn take_in(&mut self, other: &Self) {
        self.include.extend(other.include.iter().cloned());
        self.texts.extend(other.texts.iter().cloned());
    }

    fn of(term: Term, text: String) -> Self {
        Self { include: vec![term], exclude: Vec::new(), texts: vec![text] }
    }

    /// Processes that are there by their numbers now are meant, and nobody who gets such a number after them. `began` says
    /// when a process began.
    pub fn bind(&mut self, began: impl Fn(u32) -> Option<u64>) {
        for term in self.include.iter_mut().chain(&mut self.exclude) {
            if let Term::Pid(pid, Found(known @ None)) = term {
                *known = began(*pid);
            }
        }
    }

    /// Leaves out what another scope includes.
    pub fn leave_out(&mut self, other: &Self) {
        self.exclude.extend(other.include.iter().cloned());
    }

    /// As the user gave it.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether every task of the host is meant by name: `all`.
    pub fn is_all(&self) -> bool {
        self.include.iter().any(|term| matches!(term, Term::All))
    }

    /// Whether the whole host is named: `all`, or the root cgroup, which is what `cgroup:/$UNSET` becomes.
    pub fn names_the_host(&self) -> bool {
        self.is_all()
            || self
                .include
                .iter()
                .any(|term| matches!(term, Term::Named(Matcher::Cgroup(path)) if path.is_empty()))
    }

    /// Whether the whole host is named, and nothing is left out.
    pub fn leaves_nothing_out(&self) -> bool {
        self.names_the_host() && self.exclude.is_empty()
    }

    /// Why acting on it takes an explicit `--apply`: the whole host is named, or nearly everything that could be changed
    /// matches, however that is written. `None` where it need not.
    ///
    /// Nearly everything is more than [`WHOLE`] of the tasks there are, and as much of those that ran or waited in the
    /// observation: one busy service on a quiet host is still one service.
    pub fn is_whole_host(&self, observation: &Observation) -> Option<String> {
        if self.names_the_host() {
            return Some("the scope is the whole host".to_owned());
        }
        let changeable =
            || observation.tasks.iter().filter(|task| !is_never_changed(task) && !is_realtime(task));
        let share = |only_running: bool| {
            let counted = |task: &&TaskView| {
                !only_running || task.cpu_pct > 0.0 || task.wait_pct.is_some_and(|pct| pct > 0.0)
            };
            let (mut mine, mut all) = (0u32, 0u32);
            for task in changeable().filter(counted) {
                all += 1;
                mine += u32::from(self.has(task, observation));
            }
            (mine, all)
        };
        let whole = |(mine, all): (u32, u32)| all > 0 && f64::from(mine) > WHOLE * f64::from(all);
        let (mine, all) = share(false);
        (whole((mine, all)) && whole(share(true))).then(|| {
            format!("the scope matches {mine} of the {all} tasks that could be changed on this host")
        })
    }

    /// Whether what a task is called decides about it.
    pub(crate) fn reads_names(&self) -> bool {
        self.include.iter().chain(&self.exclude).any(|term| matches!(term, Term::Named(Matcher::Comm(_))))
    }

    /// Whether what a task of it starts belongs to it for as long as it stays in its cgroup.
    pub(crate) fn has_children(&self) -> bool {
        let by_place = |term: &Term| !matches!(term, Term::Pid(..));
        !self.include.is_empty() && self.include.iter().all(by_place) && !self.reads_names()
    }

    /// Whether a cgroup is left out by its path.
    pub(crate) fn excludes_path(&self, path: &str) -> bool {
        self.exclude
            .iter()
            .any(|term| matches!(term, Term::Named(Matcher::Cgroup(out)) if is_at_or_below(path, out)))
    }

    /// Whether nothing was named, so that containers and virtual machines are meant.
    pub fn is_default(&self) -> bool {
        self.include.is_empty()
    }

    /// The cgroup that is named: by its path, or as that of one container, pod or machine.
    pub fn group(&self, observation: &Observation) -> Option<u32> {
        let [term] = self.include.as_slice() else { return None };
        match term {
            Term::Named(Matcher::Cgroup(path)) => {
                let path = if path.is_empty() { "/" } else { path.as_str() };
                let at = observation.groups.iter().position(|group| group.path == path)?;
                u32::try_from(at).ok()
            }
            Term::Named(Matcher::Container(name)) => {
                observation.containers.iter().find(|c| c.is_meant_by(name))?.group
            }
            Term::Named(Matcher::Pod(namespace, name)) => {
                let mut pods =
                    observation.pods.iter().filter(|pod| pod.is_meant_by(namespace.as_deref(), name));
                // Of several there is no one cgroup.
                pods.next().filter(|_| pods.next().is_none())?.group
            }
            Term::Named(Matcher::Vm(name)) => observation.vms.iter().find(|vm| vm.name == *name)?.group,
            Term::ContainerId(id) => observation.containers.iter().find(|c| c.id == *id)?.group,
            Term::PodUid(uid) => observation.pods.iter().find(|pod| pod.uid == *uid)?.group,
            Term::Pid(..) | Term::Named(_) | Term::All | Term::Tier(..) | Term::Told(_) => None,
        }
    }

    /// Whether a task belongs to the scope. Kernel threads, pid 1 and this process never do.
    pub fn has(&self, task: &TaskView, observation: &Observation) -> bool {
        if is_never_changed(task) {
            return false;
        }
        let included = if self.include.is_empty() {
            task.container.is_some() || task.vm.is_some()
        } else {
            self.include.iter().any(|term| term.has(task, observation))
        };
        included && !self.exclude.iter().any(|term| term.has(task, observation))
    }

    /// Whether threads that ended in a cgroup belonged to the scope, as far as that is known: neither their names nor numbers are.
    pub fn has_ended(&self, ended: &ExitedView, observation: &Observation) -> bool {
        let container = ended.container.and_then(|at| observation.containers.get(at as usize));
        let pod = container.and_then(|container| container.pod);
        let task = TaskView { group: ended.group, container: ended.container, pod, ..TaskView::default() };
        !self.reads_names() && self.has(&task, observation)
    }
}

/// Share of the tasks that could be changed from which a scope is the host.
const WHOLE: f64 = 0.9;

/// The number of this process, asked for once: it is compared with every task's. In tests none that a made-up task has.
pub(crate) fn own_process() -> u32 {
    static OWN: LazyLock<u32> = LazyLock::new(std::process::id);
    if cfg!(test) { u32::MAX } else { *OWN }
}

/// Whether a task is a thread of this process, or of a BPF scheduler that it has started: what such a program uses is part of what
/// its scheduler costs.
pub(crate) fn is_own(task: &TaskView) -> bool {
    task.id.tgid == own_process() || (task.ppid == own_process() && task.comm.starts_with("scx_"))
}

/// Threads of the kernel, pid 1, this process and its scheduler are never changed, whatever the scope.
fn is_never_changed(task: &TaskView) -> bool {
    task.kernel_thread || task.id.tgid == 1 || is_own(task)
}

fn is_realtime(task: &TaskView) -> bool {
    task.sched.is_some_and(|attr| !attr.policy.is_fair())
}

/// Whether a number is seen to be that of another process than the one that began then.
fn is_another(pid: u32, began: u64, observation: &Observation) -> bool {
    let at = observation.tasks.partition_point(|task| (task.id.tgid, task.id.tid) < (pid, pid));
    let main = observation.tasks.get(at).filter(|task| (task.id.tgid, task.id.tid) == (pid, pid));
    main.is_some_and(|main| main.id.start_time != began)
}

/// Whether a cgroup is one of these or below one.
pub(crate) fn is_in_any(path: &str, of: &BTreeSet<String>) -> bool {
    std::iter::successors(Some(path), |path| parent(path)).any(|path| of.contains(path))
}

impl Term {
    fn parse(text: &str, whole: &str) -> Result<Self, ScopeError> {
        let error = |reason: String| ScopeError { text: whole.to_owned(), reason };
        if text == "all" {
            return Ok(Self::All);
        }
        Ok(match text.parse().map_err(error)? {
            Matcher::Pid(pid) => Self::Pid(pid, Found::default()),
            named => Self::Named(named),
        })
    }

    fn has(&self, task: &TaskView, observation: &Observation) -> bool {
        match self {
            Self::All => true,
            Self::Pid(pid, began) => {
                task.id.tgid == *pid && began.0.is_none_or(|began| !is_another(*pid, began, observation))
            }
            Self::Named(matcher) => matcher.matches(observation, task),
            Self::ContainerId(id) => task
                .container
                .and_then(|i| observation.containers.get(i as usize))
                .is_some_and(|container| container.id == *id),
            Self::Tier(tier, trusted) => {
                tiers::of(task, observation, trusted).is_some_and(|derived| derived.tier == *tier)
            }
            Self::Told(Found(told)) => {
                observation.group_of(task).is_some_and(|group| is_in_any(&group.path, told))
            }
            Self::PodUid(uid) => {
                task.pod.and_then(|i| observation.pods.get(i as usize)).is_some_and(|pod| pod.uid == *uid)
            }
        }
    }
}

#[cfg(test)]
mod tests;
