//! Threads that share several CPUs are put on one each, when that is what a promise needs.
//!
//! Between CPUs the kernel balances by load, in its own time; a promise can be broken for a second because two large ones
//! met on one CPU. So when one is short, the promised threads are packed onto the CPUs such that no CPU holds more
//! promises than it can give. Who is promised nothing is never pinned, and uses what the others leave anywhere.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use evenkeel_base::TaskId;
use evenkeel_policy::guarantee::pack::{Item, pack};

/// Time for which threads stay pinned at first, after no task has waited any more; doubled each time it was too short.
const HOLD: Duration = Duration::from_secs(30);
/// Doublings at most.
const DOUBLINGS: u32 = 6;
/// Observations for which waste must last before everything is packed again.
const LASTING: u32 = 3;
/// Threads for each CPU that are still packed one by one.
const MOST_PER_CPU: usize = 16;

/// One thread that may be pinned.
#[derive(Debug, Clone)]
pub struct Pinnable {
    pub id: TaskId,
    pub item: Item,
    /// What it would use, percent of one CPU.
    pub demand: f64,
}

/// What the last observation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// Some promise is short.
    pub short: bool,
    /// Nobody promised anything waits worth mentioning.
    pub calm: bool,
    /// A CPU idles while a promised thread waits on another.
    pub waste: bool,
}

/// Who is pinned where.
#[derive(Debug, Default)]
pub struct Pins {
    at: HashMap<TaskId, u32>,
    calm_since: Option<Instant>,
    rounds: u32,
    wasting: u32,
}

impl Pins {
    pub fn decide(&mut self, now: Instant, threads: &[Pinnable], supply: &[(u32, f64)], signs: Signs) {
        let choice = supply.len() > 1 && threads.iter().any(|t| t.item.cpus.len() > 1);
        if !choice || threads.len() > MOST_PER_CPU * supply.len() {
            self.release();
            return;
        }
        if self.at.is_empty() {
            if signs.short {
                self.pack(threads, supply, true);
                self.rounds += 1;
            }
            return;
        }
        self.calm_since = if signs.calm { self.calm_since.or(Some(now)) } else { None };
        let hold = HOLD * 2u32.pow(self.rounds.saturating_sub(1).min(DOUBLINGS));
        if self.calm_since.is_some_and(|since| now.duration_since(since) >= hold) {
            self.release();
            return;
        }
        self.wasting = if signs.waste { self.wasting + 1 } else { 0 };
        let newcomers = threads.iter().any(|t| !self.at.contains_key(&t.id));
        let gone = self.at.keys().any(|id| threads.iter().all(|t| t.id != *id));
        let over = supply.iter().any(|(cpu, pct)| {
            let on = threads.iter().filter(|t| self.at.get(&t.id) == Some(cpu));
            on.map(|t| t.item.points).sum::<f64>() > pct + 0.5
        });
        if newcomers || gone || over {
            self.pack(threads, supply, false);
        } else if self.wasting >= LASTING {
            self.wasting = 0;
            self.pack(threads, supply, true);
        }
    }

    pub fn cpu(&self, id: TaskId) -> Option<u32> {
        self.at.get(&id).copied()
    }

    /// Everybody as pinned now.
    pub fn all(&self) -> &HashMap<TaskId, u32> {
        &self.at
    }

    fn release(&mut self) {
        self.at.clear();
        self.calm_since = None;
        self.wasting = 0;
    }

    /// Packs promises, and as much of the demand beyond them as can be. `again`: nobody has to stay.
    fn pack(&mut self, threads: &[Pinnable], supply: &[(u32, f64)], anew: bool) {
        for tenths in (0..=10).rev() {
            let of_demand = f64::from(tenths) / 10.0;
            let items: Vec<Item> = threads
                .iter()
                .map(|t| Item {
                    points: t.item.points.max(t.demand.min(100.0) * of_demand),
                    at: if anew { None } else { self.cpu(t.id) },
                    ..t.item.clone()
                })
                .collect();
            if let Some(cpus) = pack(&items, supply) {
                self.at = threads.iter().map(|t| t.id).zip(cpus).collect();
                return;
            }
        }
        // What does not fit whole is left to the kernel's balancing.
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, points: f64, demand: f64) -> Pinnable {
        Pinnable {
            id: TaskId { tgid: tid, tid, start_time: 1 },
            item: Item { points, cpus: "0-1".parse().unwrap(), at: None },
            demand,
        }
    }

    const SUPPLY: [(u32, f64); 2] = [(0, 100.0), (1, 100.0)];
    const SHORT: Signs = Signs { short: true, calm: false, waste: false };
    const CALM: Signs = Signs { short: false, calm: true, waste: false };

    fn on(pins: &Pins, tid: u32) -> Option<u32> {
        pins.cpu(TaskId { tgid: tid, tid, start_time: 1 })
    }

    #[test]
    fn nobody_is_pinned_before_a_promise_is_short() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let threads = [thread(1, 60.0, 100.0), thread(2, 50.0, 100.0), thread(3, 40.0, 100.0)];
        pins.decide(now, &threads, &SUPPLY, CALM);
        assert!(pins.all().is_empty());
        pins.decide(now, &threads, &SUPPLY, SHORT);
        assert_eq!(pins.all().len(), 3);
        assert_ne!(on(&pins, 1), on(&pins, 2));
        // One CPU leaves no choice.
        pins.decide(now, &threads, &SUPPLY[..1], SHORT);
        assert!(pins.all().is_empty());
    }

    #[test]
    fn after_a_calm_time_all_are_free_again_and_the_next_time_lasts_longer() {
        let (mut pins, mut now) = (Pins::default(), Instant::now());
        let threads = [thread(1, 60.0, 50.0), thread(2, 50.0, 50.0)];
        let mut held = Vec::new();
        for _ in 0..3 {
            pins.decide(now, &threads, &SUPPLY, SHORT);
            let mut seconds = 0;
            while !pins.all().is_empty() {
                pins.decide(now, &threads, &SUPPLY, CALM);
                now += Duration::from_secs(1);
                seconds += 1;
            }
            held.push(seconds);
        }
        assert_eq!(held, [31, 61, 121]);
    }

    #[test]
    fn demand_beyond_the_promises_is_spread_and_packed_anew_when_it_wastes() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let mut threads = [thread(1, 30.0, 90.0), thread(2, 30.0, 60.0), thread(3, 30.0, 30.0)];
        pins.decide(now, &threads, &SUPPLY, SHORT);
        assert!(on(&pins, 2) == on(&pins, 3) && on(&pins, 1) != on(&pins, 2));
        (threads[0].demand, threads[1].demand, threads[2].demand) = (30.0, 60.0, 90.0);
        for _ in 0..LASTING {
            pins.decide(now, &threads, &SUPPLY, Signs { short: false, calm: false, waste: true });
        }
        assert!(on(&pins, 1) == on(&pins, 2) && on(&pins, 3) != on(&pins, 2));
    }

    #[test]
    fn newcomers_adapt_to_those_who_are_there() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let mut threads = vec![thread(1, 50.0, 50.0), thread(2, 40.0, 40.0)];
        pins.decide(now, &threads, &SUPPLY, SHORT);
        let before = (on(&pins, 1), on(&pins, 2));
        threads.push(thread(3, 30.0, 30.0));
        pins.decide(now, &threads, &SUPPLY, CALM);
        assert_eq!((on(&pins, 1), on(&pins, 2)), before);
        assert_eq!(on(&pins, 3), before.1);
        threads.push(thread(4, 90.0, 90.0));
        pins.decide(now, &threads, &SUPPLY, CALM);
        assert!(pins.all().is_empty(), "210 do not fit");
    }
}
