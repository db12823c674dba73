//! Where somebody's time went, and who ran on the CPU while it was runnable there, reckoned from events.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_base::{Histogram, TaskView};

use super::{Left, Place, Recording, Threads, What};

/// Where the time of a target's threads went. Times are ns, summed over threads.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// From when to when, `CLOCK_MONOTONIC`, ns.
    pub interval_ns: (u64, u64),
    /// On a CPU, less what was stolen.
    pub ran_ns: u64,
    /// Runnable, not running, not throttled.
    pub waited_ns: u64,
    /// Runnable, from when a quota had been used up until it ran again.
    pub throttled_ns: u64,
    /// On a CPU that the hypervisor had given to others.
    pub stolen_ns: u64,
    pub slept_ns: u64,
    /// Asleep and not interruptible: disk, locks.
    pub blocked_ns: u64,
    /// Stopped by a signal or a tracer.
    pub stopped_ns: u64,
    /// Waits that ended within the time or went on at its end, with their whole length; throttled ones left out.
    pub waits: Histogram,
    /// The longest of them, ns.
    pub longest_ns: u64,
    /// Who had the CPU for which the target waited, by thread number (0 is no task: the CPU was on its way out of idling) and place
    /// among the threads, where they are known; for how long, ns.
    pub blame: BTreeMap<(u32, Option<Place>), u64>,
    /// Times a thread had to leave though it wanted on, throttling left out.
    pub preempted: u64,
    /// Times a thread left by itself.
    pub voluntary: u64,
    /// Times a waiting or running thread was moved.
    pub migrated: u64,
    /// Threads that did or suffered something within the time.
    pub threads: u64,
    /// Threads of which nothing is recorded: they slept, waited or ran all the time.
    pub unseen: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Run { since: u64 },
    Wait { since: u64, began: u64, cpu: u32, held: bool },
    Sleep { since: u64, left: Left },
}

impl State {
    fn since(self) -> u64 {
        match self {
            Self::Run { since } | Self::Wait { since, .. } | Self::Sleep { since, .. } => since,
        }
    }
}

/// Switches of a CPU: since when who has it.
type Hands = Vec<(u64, u32, Option<Place>)>;

/// What a thread does for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// Has a CPU.
    Runs,
    /// Is runnable, and somebody else has the CPU.
    Waits,
    /// Is runnable, and a quota is used up.
    IsHeld,
}

/// Told of each piece of a thread's time in which it could use a CPU: who, what it does, from when to when
/// (`CLOCK_MONOTONIC`, ns).
type Told<'a> = &'a mut dyn FnMut(Place, Does, (u64, u64));

struct Reckoning<'a, 't> {
    told: Told<'t>,
    account: Account,
    from: u64,
    to: u64,
    /// When everything begins to be there.
    start: u64,
    threads: &'a Threads<'a>,
    /// Who has a number now. A thread's last switch comes after its end, so it is kept until then.
    present: HashMap<u32, Option<Place>>,
    /// The target's.
    states: HashMap<u32, State>,
    hands: Vec<Hands>,
    recorded: BTreeSet<Place>,
    within: BTreeSet<Place>,
}

/// Reckons, over a part of a recording (`CLOCK_MONOTONIC`, ns), the time of the threads that `is_target` says.
pub fn account(
    recording: &Recording,
    threads: &Threads<'_>,
    interval_ns: (u64, u64),
    is_target: impl Fn(&TaskView) -> bool,
) -> Account {
    reckon(recording, threads, interval_ns, is_target, &mut |_, _, _| {})
}

/// Tells of each piece of everybody's time in which they could use a CPU.
pub fn tell(recording: &Recording, threads: &Threads<'_>, told: Told<'_>) {
    reckon(recording, threads, recording.interval_ns(), |_| true, told);
}

fn reckon(
    recording: &Recording,
    threads: &Threads<'_>,
    (from, to): (u64, u64),
    is_target: impl Fn(&TaskView) -> bool,
    told: Told<'_>,
) -> Account {
    let (start, end) = recording.interval_ns();
    let (from, to) = (from.max(start), to.min(end));
    let mut events: Vec<(u64, u32, What)> = (0u32..)
        .take(recording.cpus())
        .flat_map(|cpu| recording.events(cpu as usize).map(move |(when, what)| (when, cpu, what)))
        .filter(|(when, ..)| *when <= to)
        .collect();
    events.sort_by_key(|(when, ..)| *when);
    let mut reckoning = Reckoning {
        told,
        account: Account { interval_ns: (from, to), ..Account::default() },
        from,
        to,
        start,
        threads,
        present: HashMap::new(),
        states: HashMap::new(),
        hands: vec![Vec::new(); recording.cpus()],
        recorded: BTreeSet::new(),
        within: BTreeSet::new(),
    };
    for cpu in 0..recording.cpus() {
        if let Some(tid) = recording.holder(cpu) {
            reckoning.begins_on(cpu, tid, &is_target);
        }
    }
    for (when, cpu, what) in events {
        reckoning.take(when, cpu, what, &is_target);
    }
    let open: Vec<u32> = reckoning.states.keys().copied().collect();
    for tid in open {
        reckoning.close(tid, to, true);
    }
    let is_unseen =
        |place: &Place| !reckoning.recorded.contains(place) && threads.view(*place).is_some_and(&is_target);
    let unseen = threads.living().filter(is_unseen).count() as u64;
    let mut account = reckoning.account;
    // Until here it is all the time on a CPU.
    account.stolen_ns = account.stolen_ns.min(account.ran_ns);
    account.ran_ns -= account.stolen_ns;
    account.unseen = unseen;
    account.threads = reckoning.within.len() as u64;
    account
}

impl Reckoning<'_, '_> {
    fn who(&mut self, tid: u32, when: u64) -> Option<Place> {
        let threads = self.threads;
        if tid == 0 { None } else { *self.present.entry(tid).or_insert_with(|| threads.at(tid, when)) }
    }

    /// Whether a thread is the target's now.
    fn is_meant(&mut self, tid: u32, when: u64, is_target: &impl Fn(&TaskView) -> bool) -> bool {
        let Some(place) = self.who(tid, when) else { return false };
        let meant = self.threads.view(place).is_some_and(is_target);
        if meant {
            self.recorded.insert(place);
        }
        meant
    }

    /// Who has a CPU at the beginning.
    fn begins_on(&mut self, cpu: usize, tid: u32, is_target: &impl Fn(&TaskView) -> bool) {
        let start = self.start;
        let place = self.who(tid, start);
        self.hands[cpu].push((start, tid, place));
        if self.is_meant(tid, start, is_target) {
            self.states.insert(tid, State::Run { since: start });
        }
    }

    fn take(&mut self, when: u64, cpu: u32, what: What, is_target: &impl Fn(&TaskView) -> bool) {
        match what {
            What::Switch { next, left, .. } => {
                let before = self.hands.get(cpu as usize).and_then(|hands| hands.last()).map(|hand| hand.1);
                if let Some(tid) = before {
                    if self.is_meant(tid, when, is_target) {
                        self.close(tid, when, false);
                        self.leaves(tid, when, cpu, left);
                    }
                    if left == Left::Ended {
                        self.present.remove(&tid);
                    }
                }
                let place = self.who(next, when);
                if let Some(hands) = self.hands.get_mut(cpu as usize) {
                    hands.push((when, next, place));
                }
                if self.is_meant(next, when, is_target) {
                    // Nothing was seen of it: it has been runnable since before.
                    let since = self.start;
                    let state = State::Wait { since, began: since, cpu, held: false };
                    self.states.entry(next).or_insert(state);
                    self.close(next, when, false);
                    self.states.insert(next, State::Run { since: when });
                }
            }
            What::Wakeup { tid, cpu, held, born: true } => {
                self.present.remove(&tid);
                if self.is_meant(tid, when, is_target) {
                    self.states.insert(tid, State::Wait { since: when, began: when, cpu, held });
                }
            }
            What::Wakeup { tid, cpu, held, .. } if self.is_meant(tid, when, is_target) => {
                let since = self.start;
                let state = *self.states.entry(tid).or_insert(State::Sleep { since, left: Left::Asleep });
                // Who runs or waits is only kept from falling asleep.
                if matches!(state, State::Sleep { .. }) {
                    self.close(tid, when, false);
                    self.states.insert(tid, State::Wait { since: when, began: when, cpu, held });
                }
            }
            What::Migrate { tid, cpu: to } if self.is_meant(tid, when, is_target) => {
                if let Some(State::Wait { since, began, cpu, held }) = self.states.get(&tid).copied() {
                    self.blame(tid, (since, when), cpu, held);
                    self.states.insert(tid, State::Wait { since: when, began, cpu: to, held });
                    self.account.migrated += u64::from(self.has(when));
                }
            }
            What::Stolen { ns } => {
                let running = self.hands.get(cpu as usize).and_then(|hands| hands.last()).copied();
                if let Some((_, tid, _)) = running
                    && self.is_meant(tid, when, is_target)
                    && self.has(when)
                {
                    self.account.stolen_ns += u64::from(ns).min(when - self.from);
                }
            }
            What::Wakeup { .. } | What::Migrate { .. } => {}
        }
    }

    fn has(&self, when: u64) -> bool {
        (self.from..=self.to).contains(&when)
    }

    /// The part of a piece of time that is within the time asked for.
    fn part(&self, since: u64, until: u64) -> u64 {
        until.min(self.to).saturating_sub(since.max(self.from))
    }

    fn tell(&mut self, tid: u32, does: Does, piece: (u64, u64)) {
        if let Some(place) = self.who(tid, piece.1) {
            (self.told)(place, does, piece);
        }
    }

    fn leaves(&mut self, tid: u32, when: u64, cpu: u32, left: Left) {
        let counts = u64::from(self.has(when));
        match left {
            Left::Runnable { held } => {
                self.account.preempted += if held { 0 } else { counts };
                self.states.insert(tid, State::Wait { since: when, began: when, cpu, held });
            }
            Left::Ended => {
                self.states.remove(&tid);
            }
            Left::Asleep | Left::Blocked | Left::Stopped => {
                self.account.voluntary += counts;
                self.states.insert(tid, State::Sleep { since: when, left });
            }
        }
    }

    /// Adds up the state that a thread is in, which ends now; or that goes on, at the end.
    fn close(&mut self, tid: u32, when: u64, goes_on: bool) {
        let Some(state) = self.states.remove(&tid) else { return };
        if let Some(place) = self.who(tid, when)
            && self.part(state.since(), when) > 0
        {
            self.within.insert(place);
        }
        match state {
            State::Run { since } => {
                self.account.ran_ns += self.part(since, when);
                self.tell(tid, Does::Runs, (since, when));
            }
            State::Wait { since, began, cpu, held } => {
                self.blame(tid, (since, when), cpu, held);
                if !held && (goes_on || self.has(when)) {
                    let length = when.saturating_sub(began);
                    self.account.waits.add(length);
                    self.account.longest_ns = self.account.longest_ns.max(length);
                }
            }
            State::Sleep { since, left } => {
                let part = self.part(since, when);
                match left {
                    Left::Blocked => self.account.blocked_ns += part,
                    Left::Stopped => self.account.stopped_ns += part,
                    _ => self.account.slept_ns += part,
                }
            }
        }
    }

    /// A piece of waiting on one CPU, and who had it.
    fn blame(&mut self, tid: u32, (since, until): (u64, u64), cpu: u32, held: bool) {
        let part = self.part(since, until);
        self.tell(tid, if held { Does::IsHeld } else { Does::Waits }, (since, until));
        if held {
            self.account.throttled_ns += part;
            return;
        }
        self.account.waited_ns += part;
        let (since, until) = (since.max(self.from), until.min(self.to));
        let hands = self.hands.get(cpu as usize).map(Vec::as_slice).unwrap_or_default();
        let first = hands.partition_point(|hand| hand.0 <= since).saturating_sub(1);
        for (at, (when, tid, place)) in hands.iter().enumerate().skip(first) {
            if *when >= until {
                break;
            }
            let end = hands.get(at + 1).map_or(until, |next| next.0).min(until);
            let ns = end.saturating_sub((*when).max(since));
            if ns > 0 {
                *self.account.blame.entry((*tid, *place)).or_default() += ns;
            }
        }
    }
}
