//! Background work leaves a CPU at the moment a service's task wakes behind it.
//!
//! It changes no setting: as for [`super::pull`], whoever carries the plan out moves tasks, which takes tens of microseconds. The
//! kernel preempts for the service meanwhile where it may, and other background work that waits on the same CPU stays there:
//! what remains to be won is little where that is the case, so the lever is tried only by name.

use std::collections::BTreeMap;

use evenkeel_base::{CpuSet, TaskId};

use super::lever::Lever;
use super::pull::movable;

pub const ASIDE: &str = "aside";

/// A service that has woken on a CPU is taken to be there for so long, nanoseconds.
const STAYS_NS: u64 = 5_000_000;

pub const LEVER: Lever = Lever {
    name: ASIDE,
    why: "background work moves to another CPU when a service's task wakes behind it",
    make_way: |scene| {
        let is_service = |group: u32| scene.services.get(group as usize) == Some(&true);
        let tasks = scene.observation.tasks.iter().filter(|task| !task.kernel_thread);
        let served: Vec<TaskId> =
            tasks.filter(|task| task.group.is_some_and(is_service)).map(|task| task.id).collect();
        // A map of the programs holds both.
        let moved = movable(scene);
        if moved.is_empty() || served.is_empty() || moved.len() + served.len() > super::pull::MOST {
            return (Vec::new(), Vec::new());
        }
        (moved, served)
    },
    ..Lever::NOTHING
};

/// Where who makes way goes.
#[derive(Debug, Clone, Default)]
pub struct MakeWay {
    /// By CPU, when a service woke there last, nanoseconds of any clock.
    woken: BTreeMap<u32, u64>,
}

impl MakeWay {
    /// A service has woken behind a task on CPU `from`: to which of the CPUs that the task may use it goes. That is the idle one if
    /// there is; else the next in turn to which no service has come lately, so that services do not send the same work to and
    /// fro. `None` where there is none.
    pub fn from(&mut self, from: u32, idle: Option<u32>, allowed: &CpuSet, now_ns: u64) -> Option<u32> {
        self.woken.insert(from, now_ns);
        let may = |cpu: &u32| *cpu != from && allowed.contains(*cpu);
        let at_rest = |cpu: &u32| self.woken.get(cpu).is_none_or(|at| now_ns.saturating_sub(*at) > STAYS_NS);
        let free: Vec<u32> = allowed.iter().filter(may).filter(at_rest).collect();
        let next = free.iter().copied().find(|cpu| *cpu > from).or_else(|| free.first().copied());
        idle.filter(may).or(next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_makes_way_goes_to_the_idle_cpu_else_to_the_next_without_a_service() {
        let mut way = MakeWay::default();
        let all = CpuSet::first_n(4);
        assert_eq!(way.from(1, Some(3), &all, 0), Some(3));
        assert_eq!(way.from(1, None, &all, 1), Some(2));
        // A service came to 2 just now, and later it has been long.
        assert_eq!(way.from(2, None, &all, 2), Some(3));
        assert_eq!(way.from(1, None, &all, 3), Some(3));
        assert_eq!(way.from(1, None, &all, 3 + STAYS_NS), Some(2));
        // An idle one counts, even if a service came there before; one it may not use does not.
        assert_eq!(way.from(1, Some(2), &all, 4 + STAYS_NS), Some(2));
        assert_eq!(way.from(0, Some(3), &CpuSet::first_n(3), 5 + 3 * STAYS_NS), Some(1));
        // No other.
        assert_eq!(way.from(0, None, &CpuSet::single(0), u64::MAX), None);
        let mut both = MakeWay::default();
        assert_eq!(both.from(0, None, &CpuSet::first_n(2), 0), Some(1));
        assert_eq!(both.from(1, None, &CpuSet::first_n(2), 1), None);
    }

    proptest! {
        #[test]
        fn nobody_goes_where_it_may_not_or_to_a_service(
            steps in prop::collection::vec((0u32..8, prop::option::of(0u32..8), 0u32..256, 0u64..4_000_000), 1..60),
        ) {
            let mut way = MakeWay::default();
            let mut woken: Vec<(u32, u64)> = Vec::new();
            let mut now = 0;
            for (from, idle, allowed, later) in steps {
                now += later;
                let allowed: CpuSet = (0..8).filter(|cpu| allowed >> cpu & 1 == 1).collect();
                let to = way.from(from, idle, &allowed, now);
                let lately = |cpu: u32| woken.iter().any(|(at, when)| *at == cpu && now - when <= STAYS_NS);
                if let Some(to) = to {
                    prop_assert!(allowed.contains(to) && to != from);
                    prop_assert!(idle == Some(to) || !lately(to));
                } else {
                    prop_assert!(allowed.iter().all(|cpu| cpu == from || lately(cpu)));
                }
                woken.push((from, now));
            }
        }
    }
}
