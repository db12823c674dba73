//! Groups that lose their turn get it back: who has it instead is held back by a quota.
//!
//! A group may get nothing at all for seconds though it is ready to run, while one of like weight next to it never lets go
//! (docs/tenants.md, "Groups that lose their turn"). Weights, slices and classes do not end that in every run. A quota does that
//! the other reaches now and then: one that is throttled is out of the queue, and whoever waited has its turn.
//!
//! No test of setting against setting decides here: any change puts the groups out of step for a minute, so the default looks
//! as good. Each quota is judged by what it was set for: the group runs again at once, or it is lowered, or taken back.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::sched::TAKER_PART;

/// Name of what gives groups their turn, next to those of the levers.
pub const TURNS: &str = "turns";

/// So long a group may be ready to run and get nothing before somebody is held back, seconds. A client that counts by whole
/// seconds does not see less than one.
const SILENT_S: f64 = 0.3;
/// It got nothing: less than this part of a CPU.
const NOTHING: f64 = 0.005;
/// It was ready all the time: more than this part of it.
const READY: f64 = 0.8;
/// A quota that did not help is lowered to this part of itself.
const LOWER: f64 = 0.8;
/// Quotas that are tried on one group before it is given up.
const TRIES: u32 = 4;
/// Least use of a group that may have somebody's turn, CPUs. Where so many groups wait that each gets less, one may wait for long and
/// no task has its turn.
const TAKER_CPUS: f64 = 0.3;
/// Slices that it ran meanwhile, at least. The scheduler owes no task more than a slice or two, and those who take turns by long slices
/// wait for long.
const SLICES: f64 = 3.0;
/// Least quota, CPUs.
const LEAST_CPUS: f64 = 0.1;
/// And least quota of a group that is promised CPU, as a part of its promise: under a quota of just that it could never make up for
/// what it once got too little, and the promise would be broken.
const CATCH_UP: f64 = 1.25;
/// A quota is held so long at first, seconds: it may have met somebody who only happened to be there. Twice as long each time that a
/// turn is lost again once it was gone, up to the second.
const HOLD_S: (f64, f64) = (10.0, 3600.0);
/// A tick that took longer says nothing, seconds: the loop itself was held up, and maybe everybody was.
const LONG_S: f64 = 0.25;
/// Time over which use is measured, seconds.
const MEMORY_S: f64 = 0.3;

/// What a group did in a tick.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tick {
    /// CPU it got, seconds.
    pub ran_s: f64,
    /// Its tasks' waits for a CPU, those that go on included, added up, seconds.
    pub waited_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rivals {
    /// How many times as much the first weighs as the second.
    pub times: f64,
    /// The longest slice of their tasks, seconds.
    pub slice_s: f64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// A quota of so many CPUs for `taker`, because `victim` got nothing.
    Hold {
        /// Whom to hold back.
        taker: String,
        /// Who got nothing.
        victim: String,
        cpus: f64,
        /// What `taker` used meanwhile, CPUs.
        used: f64,
    },
    /// The quota goes: it was held for long enough, or the group is not looked at any more.
    Release { taker: String },
    /// The quota goes, and none is set again: `victim` got nothing under any.
    GiveUp {
        taker: String,
        /// Who got nothing.
        victim: String,
    },
}

#[derive(Debug, Default)]
struct Group {
    silent_s: f64,
    ran_s: f64,
    /// What each had run when its silence began, shared by all whose silence began with that tick.
    since: Arc<BTreeMap<String, f64>>,
    /// Average use, CPUs.
    used: f64,
    cap: Option<Cap>,
    hold_s: Option<f64>,
    given_up: bool,
}

#[derive(Debug)]
struct Cap {
    cpus: f64,
    held_s: f64,
    /// In a row, without the victim having run.
    tries: u32,
    victim: String,
}

/// See the module. Groups are known by their paths.
#[derive(Debug, Default)]
pub struct Turns {
    groups: BTreeMap<String, Group>,
}

impl Turns {
    /// Takes a tick of `dt` seconds into account. `rivals(a, b)`: how `a` competes with `b`, which waits for the same
    /// CPUs; `None` where it does not. `promised(a)`: what `a` is promised, CPUs.
    pub fn tick(
        &mut self,
        dt: f64,
        ticks: &BTreeMap<String, Tick>,
        rivals: impl Fn(&str, &str) -> Option<Rivals>,
        promised: impl Fn(&str) -> f64,
    ) -> Vec<Step> {
        let gone = self.groups.extract_if(.., |name, _| !ticks.contains_key(name));
        let gone = gone.filter(|(_, group)| group.cap.is_some());
        let mut steps: Vec<Step> = gone.map(|(taker, _)| Step::Release { taker }).collect();
        let memory = (dt / MEMORY_S).min(1.0);
        for (name, tick) in ticks {
            let group = self.groups.entry(name.clone()).or_default();
            let silent = tick.ran_s < NOTHING * dt && tick.waited_s > READY * dt;
            group.silent_s = if silent && dt <= LONG_S { group.silent_s + dt } else { 0.0 };
            group.ran_s += tick.ran_s;
            group.used += memory * (tick.ran_s / dt - group.used);
            if let Some(cap) = &mut group.cap {
                cap.held_s += dt;
            }
        }
        let ran = ticks
            .iter()
            .filter_map(|(name, tick)| Some((name.clone(), self.groups.get(name)?.ran_s - tick.ran_s)));
        let ran = Arc::new(ran.collect::<BTreeMap<_, _>>());
        for group in self.groups.values_mut() {
            // Silence begins with this tick, or was over.
            if group.silent_s <= dt {
                group.since = Arc::clone(&ran);
            }
        }
        self.forgive(ticks);
        let silent: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, g)| g.silent_s >= SILENT_S)
            .map(|(name, _)| name.clone())
            .collect();
        for victim in silent {
            let before = steps.len();
            steps.extend(self.hold(&victim, &rivals, &promised));
            // From here on for what that did.
            if let Some(group) = self.groups.get_mut(&victim).filter(|_| steps.len() > before) {
                group.silent_s = 0.0;
            }
        }
        steps.extend(self.release());
        steps
    }

    /// Tries count only until the victim runs.
    fn forgive(&mut self, ticks: &BTreeMap<String, Tick>) {
        for cap in self.groups.values_mut().filter_map(|group| group.cap.as_mut()) {
            if ticks.get(&cap.victim).is_none_or(|tick| tick.ran_s > 0.0) {
                cap.tries = 0;
            }
        }
    }

    fn hold(
        &mut self,
        victim: &str,
        rivals: &impl Fn(&str, &str) -> Option<Rivals>,
        promised: &impl Fn(&str) -> f64,
    ) -> Option<Step> {
        let since = Arc::clone(&self.groups.get(victim)?.since);
        let (taker, group) = self
            .groups
            .iter_mut()
            .filter(|(name, group)| *name != victim && !group.given_up && group.used >= TAKER_CPUS)
            // While it used that much of the victim's CPU, the victim should have had its part by weight.
            .filter(|(name, group)| {
                let ran_s = group.ran_s - since.get(*name).copied().unwrap_or(group.ran_s);
                rivals(name, victim).is_some_and(|Rivals { times, slice_s }| {
                    let times = times.max(1.0);
                    group.used.min(1.0) >= TAKER_CPUS * times && ran_s >= SLICES * slice_s * times
                })
            })
            .max_by(|a, b| a.1.used.total_cmp(&b.1.used))?;
        let (taker, used) = (taker.clone(), group.used);
        let before = group.cap.as_ref().map_or(f64::INFINITY, |cap| LOWER * cap.cpus);
        let cpus = (TAKER_PART * used).min(before).max(CATCH_UP * promised(&taker)).max(LEAST_CPUS);
        let tries = group.cap.as_ref().map_or(0, |cap| cap.tries) + 1;
        let no_lower = group.cap.as_ref().is_some_and(|cap| cpus >= cap.cpus);
        if tries > TRIES || no_lower || cpus >= used {
            group.given_up = true;
            let held = group.cap.take().is_some();
            return held.then(|| Step::GiveUp { taker, victim: victim.to_owned() });
        }
        if group.cap.is_none() {
            let longer = group.hold_s.map_or(HOLD_S.0, |held| (2.0 * held).min(HOLD_S.1));
            group.hold_s = Some(longer);
        }
        group.cap = Some(Cap { cpus, held_s: 0.0, tries, victim: victim.to_owned() });
        Some(Step::Hold { taker, victim: victim.to_owned(), cpus, used })
    }

    fn release(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, group) in &mut self.groups {
            let long = group.hold_s.unwrap_or(HOLD_S.0);
            if group.cap.take_if(|cap| cap.held_s >= long).is_some() {
                steps.push(Step::Release { taker: name.clone() });
            }
        }
        steps
    }

    /// The quota that could not be set is not wanted any more, nor another.
    pub fn refused(&mut self, taker: &str) {
        if let Some(group) = self.groups.get_mut(taker) {
            (group.cap, group.given_up) = (None, true);
        }
    }

    /// Quotas in force, CPUs by path.
    pub fn caps(&self) -> impl Iterator<Item = (&str, f64, &str)> {
        self.groups.iter().filter_map(|(name, group)| {
            group.cap.as_ref().map(|cap| (name.as_str(), cap.cpus, cap.victim.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DT: f64 = 0.1;
    const EVENLY: Rivals = Rivals { times: 1.0, slice_s: 0.003 };

    fn ticks(of: &[(&str, f64, f64)]) -> BTreeMap<String, Tick> {
        let tick = |ran: f64, waited: f64| Tick { ran_s: ran * DT, waited_s: waited * DT };
        of.iter().map(|(name, ran, waited)| ((*name).to_owned(), tick(*ran, *waited))).collect()
    }

    fn run(turns: &mut Turns, of: &[(&str, f64, f64)], n: usize) -> Vec<Step> {
        let ticks = ticks(of);
        (0..n).flat_map(|_| turns.tick(DT, &ticks, |_, _| Some(EVENLY), |_| 0.0)).collect()
    }

    const LOCKED: [(&str, f64, f64); 2] = [("/a", 0.9, 3.0), ("/b", 0.0, 1.0)];
    const EVEN: [(&str, f64, f64); 2] = [("/a", 0.5, 1.0), ("/b", 0.4, 1.0)];

    #[test]
    fn who_has_the_turn_of_one_that_gets_nothing_is_held_below_what_it_uses_until_it_is_long_over() {
        let mut turns = Turns::default();
        assert!(run(&mut turns, &LOCKED, 2).is_empty(), "a moment is nothing");
        let steps = run(&mut turns, &LOCKED, 1);
        let [Step::Hold { taker, victim, cpus, used }] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!((taker.as_str(), victim.as_str()), ("/a", "/b"));
        assert!((cpus / used - 0.9).abs() < 1e-9 && (0.5..0.9).contains(cpus), "{cpus} of {used}");
        // It runs again: nothing more is done for ten seconds, then the quota goes.
        let steps = run(&mut turns, &EVEN, 101);
        assert_eq!(steps, [Step::Release { taker: "/a".into() }]);
        assert_eq!(turns.caps().count(), 0);
        // Lost again: held for twice as long.
        assert!(matches!(run(&mut turns, &LOCKED, 4).as_slice(), [Step::Hold { .. }]));
        assert!(run(&mut turns, &EVEN, 190).is_empty());
        assert_eq!(run(&mut turns, &EVEN, 15).len(), 1);
    }

    #[test]
    fn a_quota_that_does_not_help_is_lowered_and_then_taken_back_for_good() {
        let mut turns = Turns::default();
        let steps = run(&mut turns, &LOCKED, 60);
        let quotas: Vec<f64> = steps
            .iter()
            .filter_map(|s| if let Step::Hold { cpus, .. } = s { Some(*cpus) } else { None })
            .collect();
        assert!(quotas.len() == TRIES as usize && quotas.windows(2).all(|w| w[1] < w[0]), "{steps:?}");
        assert_eq!(steps.last(), Some(&Step::GiveUp { taker: "/a".into(), victim: "/b".into() }));
        assert!(turns.caps().next().is_none() && steps.len() == quotas.len() + 1);
    }

    #[test]
    fn who_sleeps_runs_weighs_little_or_is_promised_what_it_uses_is_let_alone() {
        let quiet = |of: &[(&str, f64, f64)]| run(&mut Turns::default(), of, 30).is_empty();
        assert!(quiet(&[("/a", 0.9, 0.0), ("/b", 0.0, 0.0)]), "it sleeps");
        assert!(quiet(&[("/a", 0.9, 0.0), ("/b", 0.05, 1.0)]), "it runs");
        assert!(quiet(&[("/a", 0.2, 1.0), ("/b", 0.0, 1.0)]), "nobody of them has it");
        let held_up = ticks(&[("/a", 0.9, 3.0), ("/b", 0.0, 9.0)]);
        let mut turns = Turns::default();
        assert!(
            (0..9).all(|_| turns.tick(0.4, &held_up, |_, _| Some(EVENLY), |_| 0.0).is_empty()),
            "the loop was held up"
        );
        let locked = ticks(&LOCKED);
        let with = |times: Option<f64>, promised: f64| {
            let mut turns = Turns::default();
            (0..30)
                .flat_map(|_| {
                    turns.tick(DT, &locked, |_, _| Some(Rivals { times: times?, ..EVENLY }), |_| promised)
                })
                .collect::<Vec<_>>()
        };
        assert!(with(None, 0.0).is_empty(), "it is elsewhere");
        assert!(with(Some(10.0), 0.0).is_empty(), "it weighs much more");
        assert!(!with(Some(2.0), 0.0).is_empty(), "it weighs somewhat more");
        assert!(with(Some(1.0), 0.95).is_empty(), "its promise is more than it uses");
        assert!(with(Some(1.0), 0.55).is_empty(), "it would not make up for what it got too little");
        let Some(Step::Hold { cpus, .. }) = with(Some(1.0), 0.48).into_iter().next() else {
            panic!("a promise below")
        };
        assert!((cpus - 0.6).abs() < 1e-9, "{cpus}: room to catch up with 0.48");
    }

    /// Five groups that take turns by slices of 100 ms: each gets nothing for 0.4 s, time and again, and no task has its turn.
    #[test]
    fn turns_by_long_slices_are_nobodys_loss_and_one_that_never_lets_go_is_found_among_them() {
        let rivals = |_: &str, _: &str| Some(Rivals { times: 1.0, slice_s: 0.1 });
        let names = ["/a", "/b", "/c", "/d", "/e"];
        let whose = |turn: usize| {
            let one = |at: usize| if at == turn { (names[at], 1.0, 0.0) } else { (names[at], 0.0, 1.0) };
            ticks(&[one(0), one(1), one(2), one(3), one(4)])
        };
        let mut turns = Turns::default();
        for at in 0..100 {
            assert!(turns.tick(DT, &whose(at % 5), rivals, |_| 0.0).is_empty(), "{at}");
        }
        let steps: Vec<Step> = (0..5).flat_map(|_| turns.tick(DT, &whose(2), rivals, |_| 0.0)).collect();
        assert!(matches!(&steps[0], Step::Hold { taker, .. } if taker == "/c"), "{steps:?}");
    }

    #[test]
    fn what_cannot_be_set_and_what_is_gone_is_forgotten() {
        let mut turns = Turns::default();
        run(&mut turns, &LOCKED, 4);
        turns.refused("/a");
        assert!(turns.caps().next().is_none() && run(&mut turns, &LOCKED, 30).is_empty());
        let mut turns = Turns::default();
        run(&mut turns, &LOCKED, 4);
        let steps = run(&mut turns, &[("/b", 0.0, 1.0)], 10);
        assert_eq!(steps, [Step::Release { taker: "/a".into() }]);
        assert!(turns.caps().next().is_none());
    }

    proptest! {
        /// Whatever happens: a quota is positive, not above what its group used nor below its floor; no task is held back for a
        /// group that ran; the steps tell the quotas in force.
        #[test]
        fn quotas_stay_within_their_bounds(
            history in prop::collection::vec(prop::collection::vec((0.0..1.0f64, 0.0..2.0f64, any::<bool>()), 3), 1..200),
            floor in 0.0..1.0f64,
        ) {
            let mut turns = Turns::default();
            let mut in_force: BTreeMap<String, f64> = BTreeMap::new();
            for tick in history {
                let of: Vec<(&str, f64, f64)> = ["/a", "/b", "/c"]
                    .into_iter()
                    .zip(&tick)
                    .map(|(name, (ran, waited, locked))| if *locked { (name, 0.0, 1.0) } else { (name, *ran, *waited) })
                    .collect();
                let ticks = ticks(&of);
                for step in turns.tick(DT, &ticks, |_, _| Some(EVENLY), |_| floor) {
                    match step {
                        Step::Hold { taker, victim, cpus, used } => {
                            prop_assert!(cpus > 0.0 && cpus < used && cpus >= floor && taker != victim);
                            prop_assert!(ticks[&victim].ran_s < NOTHING * DT);
                            in_force.insert(taker, cpus);
                        }
                        Step::Release { taker } | Step::GiveUp { taker, .. } => {
                            prop_assert!(in_force.remove(&taker).is_some());
                        }
                    }
                }
                let said: BTreeMap<String, f64> = turns.caps().map(|(name, cpus, _)| (name.to_owned(), cpus)).collect();
                prop_assert_eq!(&said, &in_force);
            }
        }
    }
}
