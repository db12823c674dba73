//! Promises that containers' labels and pods' annotations make.
//!
//! They count only where the configuration says so ([`LabelRules`]), up to the most that it allows, and only within the scope of
//! the run.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::Observation;
use evenkeel_policy::guarantee::Reservation;

use super::keeper::Keeper;
use super::state::GuaranteeState;
use crate::scope::Scope;
use crate::stated::{CPU_LABEL, Guarantee, LabelRules, Source, WAIT_LABEL};

/// A label found, before it is known whether it counts.
struct Found<'a> {
    stated: Guarantee,
    labels: &'a [(String, String)],
    allowed: Result<(), String>,
}

impl Keeper {
    /// Containers' labels and pods' annotations.
    pub(super) fn take_labels(&mut self, observation: &Observation) {
        let Some(rules) = self.config.labels.clone() else { return };
        // What the configuration says about the same name counts.
        let mut all: Vec<Found<'_>> = labelled_ones(&rules, &self.scope, observation)
            .into_iter()
            .filter(|found| !self.config.stated.iter().any(|stated| stated.name == found.stated.name))
            .collect();
        all.sort_by(|a, b| a.stated.name.cmp(&b.stated.name));
        let mut counted: BTreeMap<String, Guarantee> = BTreeMap::new();
        let mut sum_pct = 0.0;
        for found in all {
            let cpus = observation.host.cpus;
            let checked = found.allowed.and_then(|()| promise_of(found.labels)).and_then(|promise| {
                sum_pct += rules.amount(&promise, cpus, sum_pct)?;
                Ok(promise)
            });
            let name = found.stated.name.clone();
            match checked {
                Ok(promise) => {
                    counted.insert(name, Guarantee { promise, ..found.stated });
                }
                Err(why) => {
                    let note = format!(
                        "what the {} of {name} asks is not promised: {why}",
                        found.stated.source.name()
                    );
                    if self.messages.is_new(&note) {
                        self.messages.notes.push(note);
                    }
                }
            }
        }
        // What is gone is forgotten.
        let same =
            |a: &Guarantee, b: &Guarantee| a.promise == b.promise && a.scope.texts() == b.scope.texts();
        self.guarantees.retain(|guarantee| {
            guarantee.stated.source == Source::Config
                || counted.get(&guarantee.stated.name).is_some_and(|stated| same(stated, &guarantee.stated))
        });
        for (name, stated) in &counted {
            if !self.guarantees.iter().any(|guarantee| guarantee.stated.name == *name) {
                self.guarantees.push(GuaranteeState::new(stated.clone()));
            }
        }
    }
}

/// Labelled containers and annotated pods with tasks in the scope.
fn labelled_ones<'a>(rules: &LabelRules, scope: &Scope, observation: &'a Observation) -> Vec<Found<'a>> {
    let mine = || observation.tasks.iter().filter(|task| scope.has(task, observation));
    let containers: BTreeSet<u32> = mine().filter_map(|task| task.container).collect();
    let pods: BTreeSet<u32> = mine().filter_map(|task| task.pod).collect();
    let stated = |name: String, scope: Scope, source| Guarantee {
        name,
        scope,
        promise: Reservation::default(),
        source,
    };
    let mut all = Vec::new();
    for container in containers.iter().filter_map(|at| observation.containers.get(*at as usize)) {
        if is_labelled(&container.labels) {
            let name = format!("container:{}", container.name);
            all.push(Found {
                stated: stated(name, Scope::of_container(&container.id), Source::Label),
                labels: &container.labels,
                allowed: rules.trusted.hears_container(container, observation),
            });
        }
    }
    for pod in pods.iter().filter_map(|at| observation.pods.get(*at as usize)) {
        if is_labelled(&pod.annotations) {
            let name = format!("pod:{}/{}", pod.namespace.as_deref().unwrap_or(""), pod.name);
            all.push(Found {
                stated: stated(name, Scope::of_pod(&pod.uid), Source::Annotation),
                labels: &pod.annotations,
                allowed: rules.trusted.hears_pod(pod),
            });
        }
    }
    all
}

pub(super) fn is_labelled(labels: &[(String, String)]) -> bool {
    labels.iter().any(|(key, _)| key == CPU_LABEL || key == WAIT_LABEL)
}

fn promise_of(labels: &[(String, String)]) -> Result<Reservation, String> {
    let value = |name: &str| labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let cpu = value(CPU_LABEL)
        .map(|text| text.parse().map_err(|error| format!("{CPU_LABEL}: {error}")))
        .transpose()?;
    let wait_p99_ns = value(WAIT_LABEL)
        .map(|text| wait_ns(text).map_err(|error| format!("{WAIT_LABEL}: {error}")))
        .transpose()?;
    Ok(Reservation { cpu, wait_p99_ns, ..Reservation::default() })
}

/// Reads a promised wait such as `2ms`, nanoseconds.
pub fn wait_ns(text: &str) -> Result<u64, String> {
    let split = text.trim().find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.trim().len());
    let (number, unit) = text.trim().split_at(split);
    let factor = match unit.trim() {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("{text:?} is no wait: expected a duration such as \"2ms\"")),
    };
    let ns = number.parse::<f64>().map_err(|_| format!("{text:?} is no wait: no number"))? * factor;
    if (1e5..=1e10).contains(&ns) {
        Ok(ns as u64)
    } else {
        Err(format!("{text:?} cannot be promised: 0.1 ms to 10 s can"))
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{ContainerView, SchedAttr, TaskView};
    use evenkeel_observe::Detail;

    use super::*;
    use crate::component::{Component, Next, Seen};
    use crate::config::Config;
    use crate::controls::Controls;
    use crate::guarantee::{Guarantees, Promises};
    use crate::testing;
    use crate::trusted::Trusted;

    /// What gave way to it gives way to nobody then.
    #[test]
    fn what_keeps_the_last_label_goes_with_its_container() {
        let scope = Scope::parse(&["cgroup:/a", "cgroup:/b"]).unwrap();
        let trusted = Trusted { runtimes: vec!["docker".into()], ..Trusted::default() };
        let max = "100%".parse().unwrap();
        let labels = Some(LabelRules { trusted, max, total: None, wait_p99_ns: None });
        let guarantees = Guarantees { labels, ..Guarantees::default() };
        let config = Config { guarantees, ..Config::new(scope.clone(), "/nonexistent") };
        let mut promises = Promises::new(&config, false);
        let mut controls = Controls::none(false);
        let mut look = |host: &Observation| {
            controls.observe(host, &scope, &[], false, None);
            promises.with_missing(&Detail::None, host);
            let next = promises.on_window(
                Seen { observation: host, scope: &scope, hierarchies: None, default_slice_ns: None },
                &mut controls,
            );
            (next, promises.changes().len(), promises.keeper().governs(testing::task(10, "web", 1).id))
        };
        let mut host = testing::observation(&[("/", None), ("/a", Some(0)), ("/b", Some(0))]);
        for (group, raw) in host.groups[1..].iter_mut().zip([100, 10_000]) {
            (group.raw_weight, group.load_weight) = (Some(raw), Some(raw));
        }
        let busy = |pid, group| TaskView {
            sched: Some(SchedAttr::DEFAULT),
            cpu_pct: 50.0,
            wait_pct: Some(50.0),
            ..testing::task(pid, "web", group)
        };
        host.tasks = vec![TaskView { container: Some(0), ..busy(10, 1) }, busy(11, 2)];
        host.containers = vec![ContainerView {
            labels: vec![(CPU_LABEL.to_owned(), "80%".to_owned())],
            group: Some(1),
            ..ContainerView::of("a", "docker")
        }];
        let (next, changes, governs) = look(&host);
        assert!(next == Next::Stays && changes > 0 && governs, "{changes}");
        host.containers.clear();
        host.tasks.remove(0);
        host.groups.remove(1);
        host.tasks[0].group = Some(1);
        assert_eq!(look(&host), (Next::SetAll, 0, false));
        assert_eq!(look(&host), (Next::Stays, 0, false));
    }
}
