//! Everything solved again for what was observed: who competes with whom, where, and which settings carry what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuSet, Knob, Observation, Setting, Target, TaskId, TaskView};
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_policy::guarantee::pack::Item;
use evenkeel_policy::guarantee::tree::{self, Ground, Reach, SchedEntity};

use super::Source;
use super::keeper::Keeper;
use super::layout::{self, Layout, OutsideCost, Role};
use super::pins::{Pinnable, Signs};
use super::state::GuaranteeState;
use super::usage::Usage;
use crate::bounds::{Bounds, own_tops};
use crate::governor::place::Counted;

/// Demand from which a thread counts as busy, percent of one CPU.
const BUSY_PCT: f64 = 1.0;
/// A factor between weights and points is kept while the new one is within this ratio of it.
const STEADY: f64 = 1.33;
/// Points a promise may be short before its threads are packed onto CPUs.
const SHORT_PCT: f64 = 1.0;
/// Points a promised scope may wait and still be called calm.
const CALM_PCT: f64 = 2.0;
/// Idle and waiting, percent of one CPU, at once: waste.
const WASTE_PCT: f64 = 15.0;
/// What those outside the scope lose is reported from here on, percent of one CPU.
const WORTH_SAYING_PCT: f64 = 0.1;
/// A scope in which tasks were born so recently is not pinned: children would be born on their parent's CPU.
const RESTLESS: Duration = Duration::from_secs(10);

impl Keeper {
    /// Solves everything for what was observed, without what is ours. True when a setting in force is no longer wanted.
    /// What may be changed is within the bounds.
    pub fn resolve(&mut self, observation: &Observation, bounds: &Bounds, now: Instant) -> bool {
        // What cannot be set is tried again with this observation, and told again.
        self.guarantees.iter_mut().for_each(|guarantee| guarantee.problem = None);
        let owner = self.match_tasks(observation, now);
        let cpus: Vec<CpuSet> =
            observation.tasks.iter().map(|task| layout::allowed(observation, task)).collect();
        let supply = self.supply(observation);
        self.admit(observation, &owner, &cpus, &supply);
        // Who is refused competes like everybody else; one who is promised short waits only has no weight to win.
        let admitted: Vec<Option<usize>> = observation
            .tasks
            .iter()
            .zip(&owner)
            .map(|(task, owner)| {
                let guarantee = (*owner)?;
                let carries = self.guarantees[guarantee].refusal.is_none()
                    && self.guarantees[guarantee].pct.is_some()
                    && layout::may_carry(task);
                carries.then_some(guarantee)
            })
            .collect();
        let promised: Vec<f64> =
            self.guarantees.iter().map(|guarantee| guarantee.pct.unwrap_or(0.0)).collect();
        let wants: Vec<f64> = observation
            .tasks
            .iter()
            .map(|task| self.observed.demand.get(&task.id).copied().unwrap_or(0.0))
            .collect();
        let demand = |index: usize| wants[index];
        let carriers = tree::carriers(observation, &admitted, &demand, &promised);
        let promisable = supply.promisable();
        self.pin(observation, &carriers, &cpus, &promisable, now);
        let pins = &self.pins;
        let where_to = |carrier: &tree::EntityShare| -> CpuSet {
            let busy = carrier.tasks.iter().filter(|&&i| demand(i) >= BUSY_PCT || carrier.tasks.len() == 1);
            let sets = busy.map(|&i| match pins.cpu(observation.tasks[i].id) {
                Some(cpu) => CpuSet::single(cpu),
                None => cpus[i].clone(),
            });
            let union = sets.fold(CpuSet::new(), |a, b| a.union(&b));
            if union.is_empty() { observation.topology.online.clone() } else { union }
        };
        let carrier_cpus: Vec<CpuSet> = carriers.iter().map(where_to).collect();
        let reach = |index: u32| match observation.groups.get(index as usize) {
            Some(group) => bounds.reach(&group.reference()),
            None => Reach::Outside,
        };
        let promised_groups: BTreeSet<u32> = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter(|(_, owner)| owner.is_some())
            .filter_map(|(task, _)| task.group)
            .flat_map(|group| observation.path_to_root(group))
            .collect();
        let guarantees = &self.guarantees;
        let contests = tree::contests(
            observation,
            &carriers,
            &Ground {
                found: &|entity| layout::found(observation, entity),
                reach: &reach,
                raises: &|owner| {
                    guarantees.get(owner).is_some_and(|guarantee| guarantee.stated.source == Source::Config)
                },
                lends: &|group| reach(group) == Reach::Own && !promised_groups.contains(&group),
            },
        );
        let slack: Vec<f64> =
            contests.iter().map(|c| tree::slack_pct(c, &carriers, &carrier_cpus, &promisable)).collect();
        let role = |entity: SchedEntity| match entity {
            SchedEntity::Group(group) if reach(group) == Reach::Ancestor => Role::Ancestor,
            _ => Role::Carries,
        };
        let open = contests.iter().flat_map(|c| c.children.iter().filter(|child| !child.due.is_empty()));
        let carrying = open.map(|child| (child.entity, role(child.entity)));
        let lending = contests.iter().flat_map(|c| &c.lenders);
        let lending = lending.map(|(group, _)| (SchedEntity::Group(*group), Role::Lends));
        let held = carrying
            .chain(lending)
            .filter_map(|(entity, role)| Some((entity, layout::held(observation, entity, role)?)))
            .collect();
        let members: Vec<Vec<TaskId>> = carriers
            .iter()
            .map(|carrier| carrier.tasks.iter().map(|&i| observation.tasks[i].id).collect())
            .collect();
        let mixed: BTreeSet<u32> = carriers
            .iter()
            .filter_map(|carrier| match carrier.entity {
                SchedEntity::Task(index) => observation.tasks[index].group,
                SchedEntity::Group(_) => None,
            })
            .filter(|group| observation.groups.get(*group as usize).is_some_and(|g| g.parent.is_some()))
            .collect();
        let mates = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter(|(task, owner)| owner.is_none() && task.group.is_some_and(|g| mixed.contains(&g)))
            .map(|(task, _)| task.id)
            .collect();
        let sched = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter(|(task, owner)| owner.is_some() && layout::may_carry(task))
            .filter_map(|(task, _)| Some((task.id, task.sched?)))
            .collect();
        let owner = observation
            .tasks
            .iter()
            .zip(&owner)
            .filter_map(|(task, guarantee)| Some((task.id, (*guarantee)?)))
            .collect();
        self.layout = Layout {
            owner,
            sched,
            mates,
            carriers,
            members,
            contests,
            slack,
            per_point: BTreeMap::new(),
            held,
            limited: false,
            costs: Vec::new(),
        };
        self.steady_scales(observation);
        let followed: BTreeSet<TaskId> = self.layout.owner.keys().copied().collect();
        self.correction.counters.follow(&followed);
        let targets: BTreeSet<&Target> = self.layout.held.values().map(|held| &held.target).collect();
        self.correction.lags.retain(|target, _| targets.contains(target));
        self.correction.dithers.retain(|id, _| targets.contains(&Target::Task(*id)));
        self.forget_gone(observation);
        self.name_levers();
        self.drop_unwanted()
    }

    /// Finds where the kernel counts what promised scopes use, as far as all of a scope's tasks are in cgroups of its own.
    pub fn follow_usage(&mut self, observation: &Observation, hierarchies: Option<&Hierarchies>) {
        self.usage.resize_with(self.guarantees.len(), Usage::default);
        let Some((all, cpu)) = hierarchies.and_then(|all| Some((all, all.cpu.as_ref()?))) else { return };
        for (index, usage) in self.usage.iter_mut().enumerate() {
            let mine = |task: &TaskView| self.layout.owner.get(&task.id) == Some(&index);
            let named = self.guarantees.get(index).and_then(|own| own.stated.scope.group(observation));
            let mut tops = own_tops(observation, mine, named);
            let is_apart = |task: &TaskView| {
                task.group.is_some_and(|group| tops.iter().any(|top| observation.is_within(group, *top)))
            };
            if !observation.tasks.iter().filter(|task| mine(task)).all(is_apart) {
                tops.clear();
            }
            let path = |at: u32| Some(observation.groups.get(at as usize)?.path.clone());
            usage.follow(tops.into_iter().filter_map(path).collect(), |path| Counted::of(path, cpu, all));
        }
    }

    fn pin(
        &mut self,
        observation: &Observation,
        carriers: &[tree::EntityShare],
        cpus: &[CpuSet],
        promisable: &[(u32, f64)],
        now: Instant,
    ) {
        let mut threads = Vec::new();
        let mut floating = 0.0;
        for carrier in carriers {
            let demand =
                |i: usize| self.observed.demand.get(&observation.tasks[i].id).copied().unwrap_or(0.0);
            let busy: Vec<usize> = match carrier.tasks.as_slice() {
                [only] => vec![*only],
                tasks => tasks.iter().copied().filter(|&i| demand(i) >= BUSY_PCT).collect(),
            };
            let restless =
                self.observed.born.get(&carrier.owner).is_some_and(|at| now.duration_since(*at) < RESTLESS);
            // More threads than CPUs are better balanced by the kernel than one by one from here.
            if restless || busy.is_empty() || busy.len() > 2 * promisable.len() {
                floating += carrier.points;
                continue;
            }
            threads.extend(busy.iter().map(|&i| Pinnable {
                id: observation.tasks[i].id,
                item: Item { points: carrier.points / busy.len() as f64, cpus: cpus[i].clone(), at: None },
                demand: demand(i),
            }));
        }
        let part = floating / promisable.len().max(1) as f64;
        let supply: Vec<(u32, f64)> =
            promisable.iter().map(|(cpu, pct)| (*cpu, (pct - part).max(0.0))).collect();
        let active = || self.guarantees.iter().filter(|guarantee| guarantee.is_active());
        let waiting = active().filter_map(GuaranteeState::waited_pct).fold(0.0, f64::max);
        let idle = observation.host.per_cpu.iter().map(|cpu| 100.0 - cpu.busy_pct).fold(0.0, f64::max);
        let owing = self.correction.lags.values().any(|lag| lag.points_s() > 4.0);
        let signs = Signs {
            short: owing || active().any(|guarantee| guarantee.short_pct() >= SHORT_PCT),
            calm: waiting < CALM_PCT,
            waste: idle >= WASTE_PCT && waiting >= WASTE_PCT,
        };
        self.pins.decide(now, &threads, &supply, signs);
    }

    /// Settles the factor between points and weights of each siblings: the last one while it is near enough.
    fn steady_scales(&mut self, observation: &Observation) {
        let layout = &self.layout;
        let name = |node: Option<u32>| {
            node.and_then(|n| observation.groups.get(n as usize)).map_or(String::new(), |g| g.path.clone())
        };
        let (scales, mut per_point) = (&mut self.correction.scales, BTreeMap::new());
        let gain = vec![1.0; layout.carriers.len()];
        let heaviest =
            |entity: SchedEntity| layout.held.get(&entity).map_or(f64::INFINITY, |held| held.heaviest);
        let capacity = |siblings: &tree::Siblings| layout.capacity(siblings);
        let solved =
            tree::solve(&heaviest, &layout.contests, &layout.carriers, &capacity, &gain, &mut |node, new| {
                let scale = scales.entry(name(node)).or_insert(new);
                if !(new / STEADY..=new * STEADY).contains(scale) {
                    *scale = new;
                }
                per_point.insert(node, *scale);
                *scale
            });
        let limited = solved.iter().any(|s| s.scaled_down.is_some_and(|factor| factor > 2.0));
        let path = |group: &u32| observation.groups.get(*group as usize).map(|group| group.path.clone());
        let costs = layout
            .contests
            .iter()
            .zip(&solved)
            .filter(|(_, solved)| solved.outside_pct.0 - solved.outside_pct.1 > WORTH_SAYING_PCT)
            .map(|(siblings, solved)| OutsideCost {
                node: name(siblings.node),
                neighbours: siblings.outside.iter().filter_map(path).collect(),
                before_pct: solved.outside_pct.0,
                after_pct: solved.outside_pct.1,
            })
            .collect();
        let names: BTreeSet<String> = layout.contests.iter().map(|c| name(c.node)).collect();
        self.correction.scales.retain(|path, _| names.contains(path));
        self.layout.per_point = per_point;
        self.layout.limited = limited;
        self.layout.costs = costs;
    }

    fn name_levers(&mut self) {
        for index in 0..self.guarantees.len() {
            let of: Vec<usize> =
                (0..self.layout.carriers.len()).filter(|&c| self.layout.carriers[c].owner == index).collect();
            let mut names: Vec<String> = of
                .iter()
                .filter_map(|&c| Some(self.layout.held.get(&self.layout.carriers[c].entity)?.name.clone()))
                .collect();
            let more = names.len().saturating_sub(3);
            names.truncate(3);
            let mut text = names.join(", ");
            if more > 0 {
                text += &format!(" and {more} more");
            }
            let pinned =
                self.pins.all().keys().filter(|id| self.layout.owner.get(id) == Some(&index)).count();
            if pinned > 0 {
                text += &format!("; {pinned} pinned");
            }
            let guarantee = &self.guarantees[index];
            let slice = self.config.task_slice && guarantee.is_active();
            if slice && guarantee.stated.promise.wait_p99_ns.is_some() {
                text += if text.is_empty() { "slice" } else { "; slice" };
            }
            self.guarantees[index].lever = text;
        }
    }

    /// Forgets settings for what is not promised any more. True when there were some.
    fn drop_unwanted(&mut self) -> bool {
        let carried: BTreeSet<&Target> = self.layout.held.values().map(|held| &held.target).collect();
        let (owner, pins, guarantees) = (&self.layout.owner, &self.pins, &self.guarantees);
        let task_slice = self.config.task_slice;
        // Who is refused competes like everybody else, however short its waits were to be.
        let has_slice = |id: &TaskId| {
            let of = owner.get(id).map(|of| &guarantees[*of]);
            task_slice && of.is_some_and(|of| of.is_active() && of.stated.promise.wait_p99_ns.is_some())
        };
        let before = self.in_force.len();
        self.in_force.retain(|(target, knob), _| match (target, knob) {
            (Target::Task(id), Knob::Affinity) => pins.cpu(*id).is_some(),
            (Target::Task(id), _) => carried.contains(target) || has_slice(id),
            (target, _) => carried.contains(target),
        });
        self.in_force.len() != before
    }

    /// Where threads are to be.
    pub(super) fn pinned(&self) -> impl Iterator<Item = (TaskId, Setting)> + '_ {
        self.pins.all().iter().map(|(id, cpu)| (*id, Setting::Affinity(CpuSet::single(*cpu))))
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{CpuQuota, Limit, PromiseState, SchedAttr};
    use evenkeel_policy::guarantee::Reservation;

    use super::*;
    use crate::guarantee::{Guarantee, Guarantees};
    use crate::{Scope, testing};

    /// Tasks 10 and 11 in `/web`.
    fn observed() -> Observation {
        let mut observation = testing::observation(&[("/", None), ("/web", Some(0))]);
        observation.tasks = vec![testing::task(10, "web", 1), testing::task(11, "log", 1)];
        observation
    }

    /// What keeps promises after a look.
    fn resolved(observation: &Observation, stated: &[(&str, Reservation)], task_slice: bool) -> Keeper {
        let stated = stated.iter().map(|(name, promise)| Guarantee {
            name: (*name).to_owned(),
            scope: Scope::parse(&[name]).unwrap(),
            promise: *promise,
            source: Source::Config,
        });
        let guarantees = Guarantees { stated: stated.collect(), task_slice, ..Guarantees::default() };
        let mut keeper = Keeper::new(guarantees, Scope::default());
        keeper.resolve(observation, &Bounds::default(), Instant::now());
        keeper
    }

    fn cpu(amount: &str) -> Reservation {
        Reservation { cpu: Some(amount.parse().unwrap()), ..Reservation::default() }
    }

    #[test]
    fn more_than_its_quota_allows_is_refused() {
        let half = CpuQuota { quota_usec: Limit::Value(50_000), ..CpuQuota::UNLIMITED };
        let mut observation = observed();
        observation.groups[1].quota = Some(half);
        for (scope, amount, state) in [
            ("cgroup:/web", "80%", PromiseState::Refused),
            ("cgroup:/web", "50%", PromiseState::Unknown),
            ("pid:10", "80%", PromiseState::Refused),
        ] {
            let mut keeper = resolved(&observation, &[(scope, cpu(amount))], false);
            let status = &keeper.statuses()[0];
            assert_eq!(status.state, state, "{scope} {amount}: {}", status.why);
            let told = keeper.take_notes();
            let why = "refused: it asks 80, but the quota of /web allows 50 (percent of one CPU)";
            assert_eq!(
                told.iter().any(|note| note.contains(why)),
                state == PromiseState::Refused,
                "{told:?}"
            );
        }
        // Tasks outside the quota that come and go do not make weights come and go.
        let mut keeper = resolved(&observation, &[("cgroup:/web", cpu("80%"))], false);
        let looks = (1..=20).find(|_| {
            keeper.resolve(&observed(), &Bounds::default(), Instant::now());
            keeper.statuses()[0].state != PromiseState::Refused
        });
        assert_eq!(looks, Some(10));
    }

    #[test]
    fn quotas_of_several_cgroups_count_together_unless_a_task_is_in_none() {
        let quota = |usec| Some(CpuQuota { quota_usec: Limit::Value(usec), ..CpuQuota::UNLIMITED });
        let mut observation = testing::observation(&[("/", None), ("/web", Some(0)), ("/log", Some(0))]);
        observation.tasks = vec![testing::task(10, "web", 1), testing::task(11, "log", 2)];
        (observation.groups[1].quota, observation.groups[2].quota) = (quota(50_000), quota(20_000));
        let state = |observation: &Observation, amount: &str| {
            let status =
                resolved(observation, &[("comm:^(web|log)$", cpu(amount))], false).statuses().remove(0);
            let why = "asks 80, but the quotas of /log, /web allow 70 (percent of one CPU)";
            assert_eq!(status.why.contains(why), status.state == PromiseState::Refused, "{}", status.why);
            status.state
        };
        assert_eq!(state(&observation, "80%"), PromiseState::Refused);
        assert_eq!(state(&observation, "70%"), PromiseState::Unknown);
        observation.groups[2].quota = None;
        assert_eq!(state(&observation, "80%"), PromiseState::Unknown);
    }

    #[test]
    fn one_whose_tasks_belong_to_another_promise_is_not_said_to_match_none() {
        let stated = [("cgroup:/web", cpu("40%")), ("comm:^log$", cpu("10%")), ("comm:^db$", cpu("10%"))];
        let keeper = resolved(&observed(), &stated, false);
        let whys: Vec<String> = keeper.statuses()[1..].iter().map(|status| status.why.clone()).collect();
        assert!(whys[0].contains("such as that of cgroup:/web, have the tasks of its scope"), "{whys:?}");
        assert!(whys[1].starts_with("no task matches its scope"), "{whys:?}");
    }

    #[test]
    fn a_slice_is_named_only_where_there_are_slices() {
        let promise = Reservation { wait_p99_ns: Some(2_000_000), ..Reservation::default() };
        let lever = |task_slice| {
            let keeper = resolved(&observed(), &[("cgroup:/web", promise)], task_slice);
            keeper.statuses()[0].lever.clone()
        };
        assert_eq!((lever(true).as_str(), lever(false).as_str()), ("slice", ""));
        let nobody = resolved(&observed(), &[("cgroup:/db", promise)], true);
        assert_eq!(nobody.statuses()[0].lever, "", "nothing is set for who is not there");
    }

    #[test]
    fn what_kept_a_promise_goes_when_it_is_refused() {
        let mut observation = observed();
        observation.tasks[0].sched = Some(SchedAttr::DEFAULT);
        let promise = Reservation { wait_p99_ns: Some(2_000_000), ..cpu("80%") };
        let mut keeper = resolved(&observation, &[("pid:10", promise)], true);
        keeper.tick(Instant::now(), true);
        let targets: Vec<Target> = keeper.changes().map(|change| change.target).collect();
        assert_eq!(targets, [Target::Task(observation.tasks[0].id)]);
        assert!(!keeper.resolve(&observation, &Bounds::default(), Instant::now()));
        observation.groups[1].quota =
            Some(CpuQuota { quota_usec: Limit::Value(50_000), ..CpuQuota::UNLIMITED });
        assert!(keeper.resolve(&observation, &Bounds::default(), Instant::now()), "something is to go");
        assert_eq!(keeper.statuses()[0].state, PromiseState::Refused);
        assert_eq!(keeper.changes().count(), 0);
    }

    #[test]
    fn what_stood_in_the_way_once_is_not_told_for_ever() {
        let mut keeper = resolved(&observed(), &[("cgroup:/web", cpu("40%"))], false);
        keeper.guarantees[0].problem = Some("weight of /web could not be set".into());
        assert!(keeper.statuses()[0].why.contains("could not be set"));
        keeper.resolve(&observed(), &Bounds::default(), Instant::now());
        assert!(!keeper.statuses()[0].why.contains("could not be set"), "{:?}", keeper.statuses());
    }
}
