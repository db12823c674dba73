//! The whole host: who waited, and who ran meanwhile.

use std::collections::BTreeMap;

use evenkeel_base::{ContainerView, PodView};
use evenkeel_bpf::why::{Culprit, Histogram, Seen};
use evenkeel_report::why::{Cell, Column, Group, Host, Kind, Split, matrix_rows, matrix_table, place};

use super::document::{NS, Window, waits};

/// A column's identity while sums are made.
type Key = (Kind, String, Option<usize>);

pub(super) fn document(window: &Window<'_>, seen: &Seen) -> Host {
    let names = window.names();
    let observation = window.observation;
    // Cells of one container, such as its init and what it put into groups of its own, are one row.
    let mut rows: Vec<(Group, Histogram, u64)> = Vec::new();
    let mut index: BTreeMap<(bool, String), usize> = BTreeMap::new();
    let mut row_of = Vec::with_capacity(seen.cells.len());
    for cell in &seen.cells {
        let path = cell.cgroup.and_then(|id| names.path(id));
        let container =
            path.and_then(|path| names.container(path)).and_then(|at| observation.containers.get(at));
        let (name, kind, pod) = whose(container, path, &observation.pods);
        let at = *index.entry((container.is_some(), name.clone())).or_insert_with(|| {
            let known = Split { throttled_s: Some(0.0), stolen_s: Some(0.0), ..Split::default() };
            let group = Group {
                name,
                pod,
                kind,
                split: known,
                shares_of_wanted: None,
                wait_histogram_usec: waits(&Histogram::default(), 0),
            };
            rows.push((group, Histogram::default(), 0));
            rows.len() - 1
        });
        row_of.push(at);
        let (group, histogram, longest) = &mut rows[at];
        let seconds = |ns: u64| ns as f64 * NS;
        group.split.add(&Split {
            ran_s: seconds(cell.ran_ns),
            waited_s: seconds(cell.waited_ns),
            throttled_s: Some(seconds(cell.throttled_ns)),
            stolen_s: Some(seconds(cell.stolen_ns)),
            slept_s: seconds(cell.slept_ns + cell.disk_ns + cell.stopped_ns),
        });
        histogram.merge(&cell.waits);
        *longest = (*longest).max(cell.max_wait_ns);
    }
    for (group, histogram, longest) in &mut rows {
        group.wait_histogram_usec = waits(histogram, *longest);
        let awake = Split { slept_s: 0.0, ..group.split.clone() };
        group.shares_of_wanted = awake.shares();
    }

    // Rows by what they have waited; those that wanted nothing are left out.
    let mut order: Vec<usize> = (0..rows.len()).filter(|at| rows[*at].0.split.wanted_s() > 0.0).collect();
    order.sort_by(|a, b| rows[*b].0.split.waited_s.total_cmp(&rows[*a].0.split.waited_s));
    let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(new, old)| (*old, new)).collect();

    let mut sums: BTreeMap<(usize, Key), u64> = BTreeMap::new();
    for blame in &seen.blame {
        let Some(&victim) = row_of.get(blame.cell).and_then(|row| place.get(row)) else { continue };
        let key = match &blame.culprit {
            Culprit::Idle => (Kind::Idle, "idle".to_owned(), None),
            Culprit::Task { comm, kernel_thread: true, .. } => (Kind::KernelThread, family(comm), None),
            Culprit::Task { comm, .. } => (Kind::Task, comm.clone(), None),
            Culprit::Group(cell) => {
                let row = row_of.get(*cell).and_then(|row| place.get(row)).copied();
                let name = row_of.get(*cell).map(|row| rows[*row].0.name.clone()).unwrap_or_default();
                (Kind::Container, name, row)
            }
            Culprit::Irq(number, name) if name.is_empty() => (Kind::Irq, number.to_string(), None),
            Culprit::Irq(_, name) => (Kind::Irq, name.clone(), None),
            Culprit::SoftIrq(name) => (Kind::Softirq, (*name).to_owned(), None),
        };
        *sums.entry((victim, key)).or_default() += blame.ns;
    }
    let mut columns: BTreeMap<&Key, u64> = BTreeMap::new();
    let mut waited: BTreeMap<usize, u64> = BTreeMap::new();
    for ((victim, key), ns) in &sums {
        *columns.entry(key).or_default() += ns;
        *waited.entry(*victim).or_default() += ns;
    }
    let mut sorted: Vec<(&Key, u64)> = columns.into_iter().filter(|(_, ns)| *ns > 0).collect();
    sorted.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let at: BTreeMap<&Key, usize> = sorted.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
    let matrix = sums
        .iter()
        .filter(|(_, ns)| **ns > 0)
        .filter_map(|((victim, key), ns)| {
            Some(Cell {
                victim: *victim,
                culprit: *at.get(key)?,
                seconds: *ns as f64 * NS,
                share_pct: 100.0 * *ns as f64 / (*waited.get(victim)?).max(1) as f64,
            })
        })
        .collect();
    let culprits = sorted
        .iter()
        .map(|((kind, name, group), ns)| Column {
            kind: *kind,
            name: name.clone(),
            group: *group,
            seconds: *ns as f64 * NS,
        })
        .collect();
    Host {
        schema: "evenkeel.why-all/v1",
        started: window.started(),
        wall_s: seen.interval_ns.1.saturating_sub(seen.interval_ns.0) as f64 * NS,
        cpus: window.observer.topology().online.len() as u32,
        groups: order.iter().map(|at| rows[*at].0.clone()).collect(),
        culprits,
        matrix,
        at_least: seen.lost > 0,
        lost: seen.lost,
    }
}

/// What a row is called, what it is, and its pod. Rows of one name are one: names of containers are told apart by their pods.
fn whose(
    container: Option<&ContainerView>,
    path: Option<&str>,
    pods: &[PodView],
) -> (String, &'static str, Option<String>) {
    match (container, path) {
        (Some(container), _) => {
            let pod = container.pod.and_then(|at| pods.get(at as usize)).map(PodView::full_name);
            (place(&container.name, pod.as_deref()), "container", pod)
        }
        (None, Some("/")) => ("/ (root cgroup)".to_owned(), "group", None),
        (None, Some(path)) => (path.to_owned(), "group", None),
        (None, None) => ("(gone or not told apart)".to_owned(), "group", None),
    }
}

/// Threads of the kernel by what they are: `kworker/1:0` and `kworker/u8:3` are kworkers.
fn family(comm: &str) -> String {
    comm.split('/').next().unwrap_or(comm).to_owned()
}

pub(super) fn csv(host: &Host) -> String {
    matrix_table().csv(&matrix_rows(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_one_name_in_two_pods_are_two_rows() {
        let pods = ["api", "batch"].map(|name| PodView::of("prod", name));
        let main = |pod: Option<u32>| ContainerView { pod, ..ContainerView::of("main", "containerd") };
        let row = |pod| whose(Some(&main(pod)), None, &pods);
        assert_eq!(row(Some(0)), ("prod/api/main".into(), "container", Some("prod/api".into())));
        assert_eq!(row(Some(1)).0, "prod/batch/main");
        assert_eq!(row(None), ("main".into(), "container", None));
        assert_eq!(whose(None, Some("/"), &[]).0, "/ (root cgroup)", "as the dashboard says");
    }

    #[test]
    fn workers_are_a_family() {
        assert_eq!((family("kworker/u8:3"), family("rcu_preempt")), ("kworker".into(), "rcu_preempt".into()));
    }
}
