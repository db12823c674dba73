//! Services next to background work in the loop: who is both, when there is reason to act, and what joins later.

use std::collections::BTreeSet;

use evenkeel_actuate::Left;
use evenkeel_base::{
    Change, FollowingLimit, GroupRef, Histogram, Observation, Plan, Sample, Target, TaskView,
};
use evenkeel_observe::Select;
use evenkeel_policy::levers;
use evenkeel_policy::protect::{FLOOR_NS, keeps};

use crate::agent::Agent;
use crate::bounds::own_groups;
use crate::error::AgentError;
use crate::events::{Event, Watcher};
use crate::governor::quota_now;
use crate::scope::is_own;
use crate::trial::NoTrial;

/// Times the shortest delay that counts which one in a thousand may be delayed, where no bound is stated.
const RARE_TIMES: u64 = 5;

impl Agent {
    /// Whether services are named and the scope is background work.
    pub(crate) fn has_background(&self) -> bool {
        self.config.background.is_some()
    }

    /// At the first look nobody may be both. Later on, who turns out to be is part of the service.
    pub(crate) fn check_tiers(&mut self, observation: &Observation) -> Result<(), AgentError> {
        let checked = std::mem::replace(&mut self.decisions.tiers_checked, true);
        let Some(background) = self.config.background.as_ref().filter(|_| !checked) else { return Ok(()) };
        for task in observation.tasks.iter().filter(|task| background.has(task, observation)) {
            if let Some(service) = self.config.service_of(task, observation) {
                let task = format!("task {} ({})", task.id.tid, task.comm);
                return Err(AgentError::Overlap { task, service: service.protection.name.clone() });
            }
        }
        Ok(())
    }

    /// Why nothing needs to be done for the services, by their waits in so many seconds; `None` where what comes to one is delayed
    /// for too long.
    pub(crate) fn served(&self, waits: &[(Histogram, f64)]) -> Option<NoTrial> {
        let missing = self.components.latency_slos.without_tasks();
        if missing.len() == self.config.protect.len() {
            return Some(NoTrial::Awaited(missing.into_values().collect::<Vec<_>>().join(", ")));
        }
        let mut longest: Option<(u64, &str)> = None;
        let mut kept = None;
        let requests = self.components.latency_slos.keep_requests();
        for ((service, (waits, seconds)), keeps) in self.config.protect.iter().zip(waits).zip(requests) {
            let protection = &service.protection;
            if is_short(keeps, waits, *seconds, protection.wait_p99_ns) {
                return None;
            }
            if keeps == Some(true) {
                kept = kept.or(Some(NoTrial::Kept(protection.name.clone())));
                continue;
            }
            let p99 = waits.delay(0.99, *seconds);
            longest = longest.max(Some((p99, protection.name.as_str())));
        }
        longest.map(|(ns, name)| NoTrial::Served(name.to_owned(), ns as f64 / 1e6)).or(kept)
    }

    /// Whether a service's own quota holds it back: then background work need not run for something to be done.
    pub(crate) fn holds_back_services(&self, observation: &Observation) -> bool {
        let own = own_groups(observation, |task| self.config.service_of(task, observation).is_some());
        let throttled = observation.groups.iter().map(|group| group.throttled_periods);
        own.into_iter().zip(throttled).any(|(own, periods)| own && periods.is_some_and(|(held, _)| held > 0))
    }

    /// The settings in force without those of cgroups that others than background work are in, where there are such: in an idle cgroup
    /// they would wait for everybody. A service counts at once, others where somebody was there at the look before, too, which `came`
    /// says: who only passes would take back what was proved.
    pub(crate) fn without_others(&self, observation: &Observation, came: &mut bool) -> Option<Plan> {
        let is_service = |task: &TaskView| self.config.service_of(task, observation).is_some();
        let all = self.without(observation, |_| true);
        let stayed = std::mem::replace(came, all.is_some());
        if stayed || all.is_none() { all } else { self.without(observation, is_service) }
    }

    fn without(&self, observation: &Observation, frees: impl Fn(&TaskView) -> bool) -> Option<Plan> {
        // Burst is for services.
        if !self.has_background() || self.plan.name == levers::BURST.name {
            return None;
        }
        let others = observation
            .tasks
            .iter()
            .filter(|task| !task.kernel_thread && !is_own(task) && !self.config.scope.has(task, observation))
            .filter(|task| frees(task));
        let holding: BTreeSet<&str> = others
            .filter_map(|task| task.group)
            .flat_map(|group| observation.path_to_root(group))
            .filter_map(|at| Some(observation.groups.get(at as usize)?.path.as_str()))
            .collect();
        let stays = |change: &Change| match &change.target {
            Target::Group(group) => !holding.contains(group.path.as_str()),
            _ => true,
        };
        if self.plan.changes.iter().all(stays) {
            return None;
        }
        let mut plan = self.plan.clone();
        plan.changes.retain(stays);
        plan.follow.retain(|limit| !holding.contains(limit.group.path.as_str()));
        Some(plan)
    }

    /// The settings in force for cgroups of background work, with those that came since; `None` where none did.
    pub(crate) fn with_newcomers(&self, observation: &Observation) -> Option<Plan> {
        let of_groups = |plan: &Plan| plan.changes.iter().any(|c| matches!(c.target, Target::Group(_)));
        if !self.has_background() || !of_groups(&self.plan) {
            return None;
        }
        let wanted = self.propose_named(&self.plan.name, observation)?;
        let is_new = |target: &Target| {
            matches!(target, Target::Group(_)) && !self.plan.changes.iter().any(|c| c.target == *target)
        };
        let more: Vec<_> = wanted.changes.into_iter().filter(|change| is_new(&change.target)).collect();
        if more.is_empty() {
            return None;
        }
        let came = wanted.follow.into_iter().filter(|limit| is_new(&Target::Group(limit.group.clone())));
        let came = came.collect();
        let mut plan = self.plan.clone();
        plan.changes.extend(more);
        // What is left of a quota that they share is to be enough for all of them.
        levers::share_again(&mut plan, came, |_| true);
        Some(plan)
    }

    /// The settings in force as they are to be set now: with those of cgroups that came since, without those of cgroups that are no
    /// more. `None` where nothing came, no cgroup that shares a quota with others ended, and none was made again under its name: such a
    /// one has what its maker gave it.
    pub(crate) fn renewed(&mut self, observation: &Observation) -> Option<Plan> {
        let newcomers = self.with_newcomers(observation);
        let there: BTreeSet<&str> = observation.groups.iter().map(|group| group.path.as_str()).collect();
        let is_there =
            |target: &Target| matches!(target, Target::Group(group) if there.contains(group.path.as_str()));
        let of_groups = |change: &&Change| matches!(change.target, Target::Group(_));
        let changes: Vec<Change> = self.plan.changes.iter().filter(of_groups).cloned().collect();
        let left = self.controls.left(&changes);
        let gone = changes.into_iter().zip(left).filter(|(_, left)| *left == Left::Gone);
        let (again, ended): (Vec<Change>, Vec<Change>) =
            gone.map(|(change, _)| change).partition(|change| is_there(&change.target));
        let allowed = again.iter().any(|change| self.controls.bounds().allows(change));
        let has_ended = |group: &GroupRef| ended.iter().any(|c| c.target == Target::Group(group.clone()));
        let (left, freed): (Vec<&FollowingLimit>, _) =
            self.plan.follow.iter().partition(|limit| !has_ended(&limit.group));
        let makes_room = left.iter().any(|limit| freed.iter().any(|ended| ended.above == limit.above));
        let mut plan = newcomers.or_else(|| (allowed || makes_room).then(|| self.plan.clone()))?;
        let cpu = self.observer.hierarchies().and_then(|found| found.cpu.as_ref());
        levers::reckon_again(&mut plan, &again, |group| quota_now(cpu?, &group.path));
        levers::share_again(&mut plan, Vec::new(), |group| !has_ended(group));
        plan.changes.retain(|change| !ended.iter().any(|ended| ended.target == change.target));
        Some(plan)
    }

    /// Where the host says who may wait: cgroups that it has told so since are background work, those that it tells otherwise are not.
    /// Whether there are any of either.
    pub(crate) fn look_at_units(
        &mut self,
        sample: &Sample,
        observation: &Observation,
        watcher: &mut dyn Watcher,
    ) -> Result<bool, AgentError> {
        let Some(mut told) = self.config.scope.told().cloned().filter(|_| self.units.is_due()) else {
            return Ok(false);
        };
        let wanted = self.units.wanted(observation, &told);
        let seen = self.observer.observe(sample, sample, &Select::Tasks(wanted))?;
        let seen = self.found(seen);
        let (joined, left) = self.units.look(&seen, &mut told);
        for (path, from) in &joined {
            watcher.event(&Event::Note(&format!("cgroup:{path} is background work from now on: {from}")));
        }
        for path in &left {
            let why = "not all of its tasks are told to wait";
            watcher.event(&Event::Note(&format!("cgroup:{path} is background work no more: {why}")));
        }
        let changed = joined.len() + left.len() > 0;
        if changed {
            self.config.scope.tell(told);
            self.log.record.scope = self.config.scope.in_words();
            self.log.recorder.update_run(&self.log.record);
        }
        Ok(changed)
    }
}

/// Whether something is to be done for a service, which keeps what it promises of its requests, or does not; `None` where these do
/// not tell.
fn is_short(keeps: Option<bool>, waits: &Histogram, seconds: f64, bound_ns: Option<u64>) -> bool {
    match keeps {
        Some(true) => false,
        // That requests are slow is a reason to act where waits may be the cause.
        Some(false) => is_delayed(waits, seconds, None),
        None => is_delayed(waits, seconds, bound_ns),
    }
}

/// Whether a service waits longer than it should: the 99th percentile of its waits, or of what comes to it, is beyond the bound that
/// was stated. Without one it is what comes to it, and the percentile in a thousand counts, too, for a second holds few long waits.
fn is_delayed(waits: &Histogram, seconds: f64, bound_ns: Option<u64>) -> bool {
    let beyond = |share: f64, ns: u64| waits.delay(share, seconds) > ns;
    match bound_ns {
        Some(bound) => beyond(0.99, bound) || keeps(waits, bound) == Some(false),
        None => beyond(0.99, FLOOR_NS) || beyond(0.999, RARE_TIMES * FLOOR_NS),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{CpuQuota, Limit, Setting};

    use super::*;
    use crate::{Scope, testing};

    fn host() -> Observation {
        let groups =
            [("/", None), ("/work", Some(0)), ("/work/a", Some(1)), ("/work/b", Some(1)), ("/api", Some(0))];
        let tasks = [("job", 2), ("job", 3), ("api", 4)];
        let tasks = (7..).zip(tasks).map(|(pid, (comm, group))| testing::task(pid, comm, group));
        Observation { tasks: tasks.collect(), ..testing::observation(&groups) }
    }

    fn idle(path: &str) -> Change {
        testing::change(path, Setting::GroupIdle(true))
    }

    #[test]
    fn a_service_that_comes_into_an_idle_cgroup_is_freed() {
        let mut agent = testing::agent_of_services();
        agent.plan = Plan { changes: vec![idle("/work/a"), idle("/work/b")], ..Plan::default() };
        let mut host = host();
        assert_eq!(agent.without_others(&host, &mut true), None);
        host.tasks[2].group = Some(2);
        // Who passes next to it is no reason yet.
        agent.config.scope = Scope::parse(&["comm:^job$"]).unwrap();
        host.tasks.push(testing::task(77, "sh", 3));
        let mut came = false;
        assert_eq!(agent.without_others(&host, &mut came).unwrap().changes, [idle("/work/b")]);
        assert_eq!(agent.without_others(&host, &mut came).unwrap().changes, []);
        agent.plan.changes = vec![idle("/work")];
        assert!(agent.without_others(&host, &mut false).unwrap().changes.is_empty());
        agent.plan.name = levers::BURST.name.to_owned();
        assert_eq!(agent.without_others(&host, &mut true), None);
    }

    /// The cgroup above background work may have held nothing else when that was decided.
    #[test]
    fn who_comes_next_to_background_work_is_freed_with_it() {
        let mut agent = testing::agent_of_services();
        let mut host = testing::observation(&[("/", None), ("/top", Some(0)), ("/top/work", Some(1))]);
        agent.config.scope = Scope::parse(&["cgroup:/top/work"]).unwrap();
        host.tasks = vec![testing::task(7, "job", 2)];
        agent.plan = Plan { changes: vec![idle("/top")], ..Plan::default() };
        let mut came = false;
        let mut freed = |host: &Observation| agent.without_others(host, &mut came).map(|plan| plan.changes);
        assert_eq!(freed(&host), None);
        host.tasks.push(testing::task(8, "sh", 1));
        assert_eq!((freed(&host), freed(&host)), (None, Some(vec![])), "at the second look");
        // One after the other, none of which is there at two looks in a row.
        let passer = host.tasks.pop().unwrap();
        for _ in 0..3 {
            assert_eq!(freed(&host), None);
            host.tasks.push(passer.clone());
            assert_eq!(freed(&host), None);
            host.tasks.pop();
        }
    }

    /// Who was there first had all that was left.
    #[test]
    fn what_is_left_of_a_quota_is_shared_with_background_work_that_comes_later() {
        let mut agent = testing::agent_of_services();
        agent.config.scope = Scope::parse(&["cgroup:/pod/a", "cgroup:/pod/b"]).unwrap();
        let pod = |name| (name, Some(1));
        let groups = [("/", None), ("/pod", Some(0)), pod("/pod/a"), pod("/pod/b"), pod("/pod/api")];
        let mut host = testing::observation(&groups);
        host.groups.iter_mut().for_each(|group| group.raw_weight = Some(100));
        host.groups[1].quota = Some(CpuQuota { quota_usec: Limit::Value(100_000), ..CpuQuota::UNLIMITED });
        host.groups[1].throttled_periods = Some((5, 10));
        let task = |pid, comm, group, cpu_pct| TaskView { cpu_pct, ..testing::task(pid, comm, group) };
        host.tasks = vec![task(7, "job", 2, 30.0), task(9, "api", 4, 20.0)];
        agent.plan = agent.propose_named("headroom", &host).unwrap();
        assert_eq!(agent.with_newcomers(&host), None);
        host.tasks.push(task(8, "job", 3, 30.0));
        // Who sleeps just now is to have its part all the same.
        host.tasks[0].cpu_pct = 0.0;
        let quotas = |plan: &Plan| -> Vec<f64> {
            let pct = |change: &Change| match &change.to {
                Setting::Quota(quota) => quota.pct(),
                _ => None,
            };
            plan.changes.iter().filter_map(pct).collect()
        };
        let plan = agent.with_newcomers(&host).unwrap();
        assert_eq!((quotas(&agent.plan), quotas(&plan)), (vec![75.0], vec![37.5, 37.5]));
        assert_eq!(plan.follow.iter().map(|limit| limit.part).collect::<Vec<_>>(), [0.5, 0.5]);
    }

    /// Such as a log that is compressed in a service's cgroup.
    #[test]
    fn who_turns_out_to_be_both_later_does_not_end_the_run() {
        let mut both = host();
        both.tasks[2].group = Some(2);
        let config = testing::agent_of_services().config;
        assert_eq!(config.background_tasks(&both), [true, true, false], "it is the service's");
        let config = testing::agent("cgroup:/work", |_| ()).config;
        assert!(config.background_tasks(&both).is_empty(), "there is none without services");
        for (first, is_fine) in [(&host(), true), (&both, false)] {
            let mut agent = testing::agent_of_services();
            assert_eq!(agent.check_tiers(first).is_ok(), is_fine);
            assert!(agent.check_tiers(&both).is_ok(), "no trial was held yet");
        }
    }

    #[test]
    fn a_quota_of_its_own_holds_a_service_back_whatever_background_work_does() {
        let (agent, mut host) = (testing::agent_of_services(), host());
        assert!(!agent.holds_back_services(&host));
        host.groups[1].throttled_periods = Some((5, 10));
        assert!(!agent.holds_back_services(&host), "that is not the service's");
        host.groups[4].throttled_periods = Some((0, 10));
        assert!(!agent.holds_back_services(&host));
        host.groups[4].throttled_periods = Some((1, 10));
        assert!(agent.holds_back_services(&host));
    }

    #[test]
    fn one_long_wait_in_a_second_is_a_reason_to_act_unless_a_bound_says_otherwise() {
        let mut waits = Histogram::of(&[(10_000, 1000)]);
        assert!(!is_delayed(&waits, 1.0, None));
        waits.add(3_000_000);
        assert!(is_delayed(&waits, 1.0, None), "a thousandth of the second is 1 ms; 3 ms were waited");
        assert!(!is_delayed(&waits, 1.0, Some(1_000_000)), "less than a hundredth");
        waits.add_many(3_000_000, 10);
        assert!(is_delayed(&waits, 1.0, Some(1_000_000)));
        // What is promised is about waits: a service that wakes seldom waits each time, and little comes to it meanwhile.
        let seldom = Histogram::of(&[(2_000_000, 4), (100_000, 96)]);
        assert!(seldom.delay(0.99, 1.0) < 1_000_000);
        assert!(is_delayed(&seldom, 1.0, Some(1_000_000)) && !is_delayed(&seldom, 1.0, Some(3_000_000)));
        let few = Histogram::of(&[(2_000_000, 1), (100_000, 9)]);
        assert!(!is_delayed(&few, 1.0, Some(1_000_000)), "one of ten says nothing of one in a hundred");
    }

    #[test]
    fn requests_say_whether_there_is_anything_to_do_and_waits_whether_they_may_be_the_cause() {
        let long = Histogram::of(&[(2_000_000, 100)]);
        let short = Histogram::default();
        let bound = Some(1_000_000);
        assert!(!is_short(Some(true), &long, 1.0, bound), "whatever it waits");
        assert!(is_short(Some(false), &long, 1.0, Some(9_000_000)), "whatever it may wait");
        assert!(!is_short(Some(false), &short, 1.0, bound), "no setting here mends that");
        assert!(is_short(None, &long, 1.0, bound) && !is_short(None, &long, 1.0, Some(9_000_000)));
    }
}
