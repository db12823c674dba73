//! What the user expects of a host: the file given with `check --policy`.
//!
//! ```toml
//! isolated = "2-7"            # CPUs that should be isolated; "" for none
//! housekeeping = 2            # CPUs that must be left for everything else
//!
//! [[given]]                   # who may use isolated CPUs
//! cpus = "2-5"
//! to = ["comm:^dpdk", "cgroup:/system.slice/trader.service"]
//!
//! [[numa]]                    # services that belong on one node together
//! name = "database"
//! services = ["comm:^postgres", "container:redis"]
//! node = 1                    # optional: which one
//!
//! [[ignore]]                  # a finding that is known and accepted
//! rule = "governor"
//! subject = "cpus 0-3"        # optional, `*` matches anything
//! reason = "battery powered edge box"
//! ```

use std::collections::BTreeSet;
use std::fmt;

use evenkeel_base::run::{ChangeRecord, GuaranteeStatus};
use evenkeel_base::{CpuSet, Matcher, Observation, TaskView, text};
use serde::Deserialize;

/// What the user expects; the default expects nothing in particular.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectations {
    /// CPUs that should be isolated; `None`: not stated.
    pub isolated: Option<CpuSet>,
    /// CPUs that must be neither isolated nor offline; `None`: not stated.
    pub housekeeping: Option<u32>,
    /// Who may use isolated CPUs. Without an entry, a task whose affinity lies within the isolated CPUs counts as
    /// given them.
    #[serde(default)]
    pub given: Vec<Given>,
    /// Services that belong on one NUMA node.
    #[serde(default)]
    pub numa: Vec<Service>,
    /// Findings known and accepted.
    #[serde(default)]
    pub ignore: Vec<Ignore>,
    /// How promised shares stand; they are stated in the configuration (`--config`) and by labels, not here.
    #[serde(skip)]
    pub guarantees: Vec<GuaranteeStatus>,
    /// Names of those that a run of evenkeel at work keeps.
    #[serde(skip)]
    pub kept_by_run: BTreeSet<String>,
    /// What a run of evenkeel that is at work has in force.
    #[serde(skip)]
    pub set_by_run: Vec<ChangeRecord>,
}

/// Isolated CPUs given to somebody.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    pub cpus: CpuSet,
    pub to: Vec<Matcher>,
}

/// Services that belong on one NUMA node together.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub name: String,
    pub services: Vec<Matcher>,
    /// The node; `None`: any one.
    pub node: Option<u32>,
}

/// A finding known and accepted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ignore {
    pub rule: String,
    /// Subject, `*` standing for any text; `None`: every subject.
    pub subject: Option<String>,
    /// Why it is accepted; shown with the finding.
    pub reason: String,
}

impl Expectations {
    /// Whether an isolated CPU was given to a task; `None` where no `[[given]]` names the CPU.
    pub fn is_given(&self, observation: &Observation, task: &TaskView, cpu: u32) -> Option<bool> {
        let mut owners = self.given.iter().filter(|given| given.cpus.contains(cpu)).peekable();
        owners.peek()?;
        Some(owners.any(|given| given.to.iter().any(|to| to.matches(observation, task))))
    }
}

impl Ignore {
    /// Whether this entry is about that finding.
    pub fn matches(&self, rule: &str, subject: &str) -> bool {
        self.rule == rule && self.subject.as_deref().is_none_or(|pattern| text::glob(pattern, subject))
    }
}

impl fmt::Display for Ignore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rule)?;
        if let Some(subject) = &self.subject {
            write!(f, " of {subject}")?;
        }
        write!(f, " ({})", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_base::{ContainerView, PodView};

    use super::*;
    use crate::testing::World;

    fn refused(text: &str) -> String {
        Expectations::parse(Path::new("p.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn the_documented_example_is_read() {
        let text: String = include_str!("expect.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| format!("{}\n", line.trim_start_matches("//!")))
            .collect();
        let read = Expectations::parse(Path::new("p.toml"), &text).unwrap();
        assert_eq!(read.isolated.unwrap().to_string(), "2-7");
        assert_eq!((read.given.len(), read.numa.len(), read.ignore.len()), (1, 1, 1));
    }

    #[test]
    fn tasks_are_named_as_in_a_scope() {
        let mut world = World::new(2);
        let group = world.group("/kubepods/burstable", 1024);
        let container = ContainerView { id: "0123456789abcdef".into(), ..ContainerView::of("web", "docker") };
        let pod = PodView { uid: "f00d-cafe".into(), ..PodView::of("prod", "api-5d8") };
        world.observation.containers.push(container);
        world.observation.pods.push(pod);
        let task = world.task("sh", 1.0);
        (task.group, task.container, task.pod) = (Some(group), Some(0), Some(0));
        let has = |text: &str| {
            text.parse::<Matcher>().unwrap().matches(&world.observation, &world.observation.tasks[0])
        };
        for scope in [
            "pod:prod/api-5d8",
            "pod:prod/*",
            "pod:pr*/api-*",
            "pod:api-5d8",
            "pod:f00d-cafe",
            "container:web",
            "container:012345",
            "cgroup:/kubepods",
            "cgroup:/kubepods/",
            "cgroup:/",
        ] {
            assert!(has(scope), "{scope}");
        }
        for scope in [
            "pod:prod/api",
            "pod:pro/*",
            "pod:test/f00d-cafe",
            "container:01234",
            "container:we",
            "cgroup:/kube",
        ] {
            assert!(!has(scope), "{scope}");
        }
        for scope in ["pod:prod/", "pod:/api", "container: ", "cgroup:kubepods", "pid:x"] {
            assert!(scope.parse::<Matcher>().is_err(), "{scope}");
        }
    }

    #[test]
    fn mistakes_are_refused_with_the_line_and_what_was_meant() {
        assert!(
            refused("\nisolatd = \"2\"")
                .starts_with("p.toml:2: unknown key `isolatd`, did you mean `isolated`?")
        );
        assert!(refused("[[numa]]\nname = 'x'\nservice = []").starts_with("p.toml:3: unknown key `service`"));
        let rule = refused("[[ignore]]\nrule = \"governer\"\nreason = \"x\"");
        assert_eq!(rule, "p.toml:2: unknown rule `governer`, did you mean `governor`?");
        assert!(refused("[[ignore]]\nrule = \"governor\"").contains("missing field `reason`"));
        assert!(refused("[[given]]\ncpus='2'\nto=['com:x']").contains("did you mean `comm`?"));
        let expected = "; expected pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME or vm:NAME";
        let group = format!("p.toml:3: \"comm:(\": unclosed group{expected}");
        assert_eq!(refused("[[given]]\ncpus='2'\nto=['comm:(']"), group);
        assert!(refused("[[given]]\ncpus='2'\nto=['web']").ends_with(expected));
        assert!(refused("isolated = '3-1'").starts_with("p.toml:1: "));
        assert!(refused("isolated = ").starts_with("p.toml:1: "));
    }
}
