//! Cgroups that the host tells to wait while the loop runs: units begin, end, and are told otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_base::{Observation, TaskId, TaskView, is_at_or_below};

use crate::scope::is_in_any;
use crate::tiers::{told_to_wait, was_told};

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(10);
/// Looks in a row at which a cgroup must have been told: a unit may first start something that has another nice value.
const LOOKS: u32 = 2;
/// Every so many looks what is settled is looked at again: somebody may have set nice values since.
const AGAIN: u32 = 6;
/// Of more cgroups that were told, those without a task are forgotten. Below that, a unit that comes again need not be looked at first.
const MOST: usize = 1000;

/// How often a cgroup was looked at, and at how many of the last looks in a row it was told to wait.
type Looks = (u32, u32);

#[derive(Debug, Default)]
pub(crate) struct Units {
    looks: BTreeMap<String, Looks>,
    looked: Option<Instant>,
}

impl Units {
    /// Whether it is time for a look.
    pub fn is_due(&mut self) -> bool {
        let due = self.looked.is_none_or(|then| then.elapsed() >= PAUSE);
        if due {
            self.looked = Some(Instant::now());
        }
        due
    }

    /// Tasks to look at: of cgroups of which it is not settled whether they were told, or not lately, and of those that were.
    pub fn wanted(&self, observation: &Observation, told: &BTreeSet<String>) -> BTreeSet<TaskId> {
        let settled = |(looks, told): &Looks| *looks >= LOOKS && *told == 0 && looks % AGAIN != 0;
        let open = |path: &str| is_in_any(path, told) || !self.looks.get(path).is_some_and(settled);
        // What is told of a cgroup is told of all below it.
        let is_below_open = |group: u32| {
            let mut above =
                observation.path_to_root(group).filter_map(|at| observation.groups.get(at as usize));
            above.any(|group| self.looks.get(&group.path).is_some_and(|looks| !settled(looks)))
        };
        let wanted = |task: &&TaskView| {
            task.pod.is_none()
                && task.container.is_none()
                && (group_of(task, observation).is_some_and(|(path, _)| open(path))
                    || task.group.is_some_and(is_below_open))
        };
        observation.tasks.iter().filter(wanted).map(|task| task.id).collect()
    }

    /// Takes in a look. Returns the cgroups that wait from now on, with what says so, and those that do no more.
    pub fn look(
        &mut self,
        observation: &Observation,
        told: &mut BTreeSet<String>,
    ) -> (Vec<(String, String)>, Vec<String>) {
        let members: Vec<(&str, &TaskView)> =
            observation.tasks.iter().filter_map(|task| group_of(task, observation)).collect();
        let there: BTreeSet<&str> = members.iter().map(|(path, _)| *path).collect();
        let others = members.iter().filter(|(_, task)| was_told(task, observation) == Some(false));
        let others: BTreeSet<&str> = others.map(|(path, _)| *path).collect();
        let left = |path: &&String| others.iter().any(|other| is_at_or_below(other, path));
        let left: Vec<String> = told.iter().filter(left).cloned().collect();
        told.retain(|path| !left.contains(path));
        if told.len() > MOST {
            told.retain(|path| there.iter().any(|at| is_at_or_below(at, path)));
        }
        self.looks.retain(|path, _| there.contains(path.as_str()));
        let found = told_to_wait(observation);
        let mut joined = Vec::new();
        for path in there {
            if is_in_any(path, told) {
                continue;
            }
            let says = found.iter().find(|(whole, _)| is_at_or_below(path, whole));
            let (looks, in_row) = self.looks.entry(path.to_owned()).or_default();
            *looks += 1;
            *in_row = says.map_or(0, |_| *in_row + 1);
            if let Some((whole, from)) = says.filter(|_| *in_row >= LOOKS) {
                told.insert(whole.clone());
                joined.push((whole.clone(), from.clone()));
            }
        }
        (joined, left)
    }
}

/// The cgroup of a task that may be told to wait; the root is not.
fn group_of<'a, 'b>(task: &'b TaskView, observation: &'a Observation) -> Option<(&'a str, &'b TaskView)> {
    let group = observation.group_of(task).filter(|group| group.parent.is_some() && !task.kernel_thread)?;
    Some((group.path.as_str(), task))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{Nice, SchedAttr};

    use super::*;
    use crate::testing;

    /// Units and what each of their tasks has for a nice value; `None` is not known.
    fn host(units: &[(&str, &[Option<i32>])]) -> Observation {
        let mut groups = vec![("/", None), ("/system.slice", Some(0))];
        groups.extend(units.iter().map(|(path, _)| (*path, Some(1))));
        let mut host = testing::observation(&groups);
        for (at, (_, tasks)) in units.iter().enumerate() {
            for (pid, nice) in tasks.iter().enumerate() {
                let sched = nice.map(|nice| SchedAttr { nice: Nice::new(nice), ..SchedAttr::DEFAULT });
                let task = testing::task((100 * at + pid) as u32 + 10, "work", at as u32 + 2);
                host.tasks.push(TaskView { sched, ..task });
            }
        }
        host
    }

    const BACKUP: &str = "/system.slice/backup.service";
    const WEB: &str = "/system.slice/web.service";

    #[test]
    fn a_unit_that_begins_later_is_told_to_wait_at_two_looks_in_a_row() {
        let (mut units, mut told) = (Units::default(), BTreeSet::new());
        let web: (&str, &[Option<i32>]) = (WEB, &[Some(0)]);
        let backup: (&str, &[Option<i32>]) = (BACKUP, &[Some(19), None]);
        assert_eq!(units.look(&host(&[web]), &mut told), (vec![], vec![]));
        assert_eq!(units.look(&host(&[web, backup]), &mut told), (vec![], vec![]));
        let (joined, left) = units.look(&host(&[web, backup]), &mut told);
        assert_eq!((joined[0].0.as_str(), joined.len(), left), (BACKUP, 1, vec![]));
        assert!(told.contains(BACKUP));
        // What is settled is not looked at again, but who waits is.
        let tasks: Vec<u32> = units.wanted(&host(&[web, backup]), &told).iter().map(|id| id.tid).collect();
        assert_eq!(tasks, [110, 111]);
        // It comes again; for a moment nothing is known of it; it is told otherwise.
        assert_eq!(units.look(&host(&[web]), &mut told), (vec![], vec![]));
        assert_eq!(units.look(&host(&[web, (BACKUP, &[None])]), &mut told), (vec![], vec![]));
        let otherwise: (&str, &[Option<i32>]) = (BACKUP, &[Some(19), Some(0)]);
        assert_eq!(units.look(&host(&[web, otherwise]), &mut told), (vec![], vec![BACKUP.to_owned()]));
        assert!(told.is_empty());
    }

    #[test]
    fn what_a_unit_starts_first_does_not_make_background_work_of_it() {
        let (mut units, mut told) = (Units::default(), BTreeSet::new());
        for nice in [19, 0, 0] {
            assert_eq!(units.look(&host(&[(WEB, &[Some(nice)])]), &mut told), (vec![], vec![]));
        }
        assert!(units.wanted(&host(&[(WEB, &[Some(19)])]), &told).is_empty());
        // Nice values may be set a moment after the unit began.
        for (nice, joins) in [(0, 0), (19, 0), (19, 1)] {
            assert_eq!(units.look(&host(&[(BACKUP, &[Some(nice)])]), &mut told).0.len(), joins);
        }
    }

    /// `renice` of a unit that has long been there.
    #[test]
    fn a_unit_that_is_told_to_wait_later_is_seen_within_some_looks() {
        let (mut units, mut told) = (Units::default(), BTreeSet::new());
        let mut joins = Vec::new();
        for look in 0..16 {
            // Nice values are known of those only that are looked at.
            let wanted = !units.wanted(&host(&[(WEB, &[Some(0)])]), &told).is_empty();
            let nice = wanted.then_some(if look < 4 { 0 } else { 19 });
            if !units.look(&host(&[(WEB, &[nice])]), &mut told).0.is_empty() {
                joins.push(look);
            }
        }
        assert_eq!(joins, [7], "looked at when new, and from the sixth look on");
    }

    #[test]
    fn with_a_cgroup_all_below_it_is_looked_at() {
        let above = format!("{WEB}/above");
        let mut host = host(&[(WEB, &[Some(19)]), (&above, &[Some(0)])]);
        host.groups[3].parent = Some(2);
        let settled = |looks| (looks, 0);
        let looks = [(WEB.to_owned(), settled(AGAIN)), (above, settled(AGAIN - 1))];
        let units = Units { looks: looks.into(), ..Units::default() };
        assert_eq!(units.wanted(&host, &BTreeSet::new()).len(), 2);
    }

    #[test]
    fn of_many_units_that_were_told_those_that_are_gone_are_forgotten() {
        let mut told: BTreeSet<String> =
            (0..=MOST).map(|at| format!("/system.slice/run-{at}.scope")).collect();
        told.insert(BACKUP.to_owned());
        Units::default().look(&host(&[(BACKUP, &[Some(19)])]), &mut told);
        assert_eq!(told.into_iter().collect::<Vec<_>>(), [BACKUP]);
    }
}
