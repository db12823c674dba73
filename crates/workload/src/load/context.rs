//! What a running thread of a load sees: when to end, where to count, where to tell its progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_base::CpuSet;

use crate::burn::{burn, monotonic_ns, sleep_until, thread_cpu_ns};
use crate::duty::Machine;
use crate::page::{Page, Progress};

/// CPU time after which progress is told even within a cycle.
const PUBLISH_NS: u64 = 5_000_000;
/// Longest sleep without looking at the stop flag (signals interrupt only the main thread's sleep).
const NAP_NS: u64 = 250_000_000;
/// How often a load that must watch its owner does so.
const OWNER_CHECK_NS: u64 = 500_000_000;

/// What all threads of a load share.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    pub stop: &'a AtomicBool,
    /// Events not yet claimed; `None` without a bound.
    pub budget: Option<AtomicU64>,
    pub page: Option<&'a Page>,
    pub first_slot: u32,
    pub owned: bool,
    pub threads: u32,
}

/// One thread's view of its load.
#[derive(Debug)]
pub struct Context<'a> {
    shared: &'a Shared<'a>,
    thread: u32,
    /// `CLOCK_MONOTONIC` at which it ends.
    deadline_ns: Option<u64>,
    cpu_start_ns: u64,
    told_cpu_ns: u64,
    burned_ns: u64,
    owner_checked_ns: u64,
    cpus: CpuSet,
    progress: Progress,
}

impl<'a> Context<'a> {
    /// For the calling thread, from now on.
    pub(super) fn new(
        shared: &'a Shared<'a>,
        thread: u32,
        deadline_ns: Option<u64>,
        progress: Progress,
    ) -> Self {
        let cpu = thread_cpu_ns();
        let mut context = Self {
            shared,
            thread,
            deadline_ns,
            cpu_start_ns: cpu,
            told_cpu_ns: cpu,
            burned_ns: 0,
            owner_checked_ns: progress.started_ns,
            cpus: CpuSet::default(),
            progress,
        };
        context.tell();
        context
    }

    /// `CLOCK_MONOTONIC` at which its time is up, nanoseconds; `None` where it has no end.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Whether it was told to end before its time is up.
    pub fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Number of this thread, from 0.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Number of threads of the load.
    pub fn threads(&self) -> u32 {
        self.shared.threads
    }

    /// Whether the load is to end: its time is up, a signal came, or its owner is gone.
    pub fn over(&mut self) -> bool {
        let cpu = rustix::thread::sched_getcpu() as u32;
        if !self.cpus.contains(cpu) {
            self.cpus.insert(cpu);
        }
        if self.shared.stop.load(Ordering::Relaxed) {
            return true;
        }
        let now = monotonic_ns();
        if self.shared.owned && now > self.owner_checked_ns + OWNER_CHECK_NS {
            self.owner_checked_ns = now;
            if self.shared.page.is_some_and(Page::owner_is_gone) {
                self.shared.stop.store(true, Ordering::Relaxed);
                return true;
            }
        }
        self.deadline_ns.is_some_and(|deadline| now >= deadline)
    }

    /// CPUs it was seen on when it looked whether it was over.
    pub(super) fn cpus(&self) -> CpuSet {
        self.cpus.clone()
    }

    /// Whether the number of events is bounded, so that each must be claimed.
    pub fn bounded(&self) -> bool {
        self.shared.budget.is_some()
    }

    /// May another event begin? `false` when the load is over or all events are claimed.
    pub fn claim(&mut self) -> bool {
        if self.over() {
            return false;
        }
        match &self.shared.budget {
            None => true,
            Some(budget) => {
                budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            }
        }
    }

    /// Counts finished events.
    pub fn done(&mut self, events: u64) {
        self.progress.cycles += events;
        self.tell_now_and_then();
    }

    /// Sleeps until an instant of `CLOCK_MONOTONIC`, or until the load is over.
    pub fn sleep(&mut self, until_ns: u64) {
        let until = self.deadline_ns.map_or(until_ns, |deadline| until_ns.min(deadline));
        loop {
            let now = monotonic_ns();
            if now >= until {
                return;
            }
            // Interrupted or not: the flag tells.
            sleep_until(until.min(now + NAP_NS));
            if until_ns > now + NAP_NS && self.over() || self.shared.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Tells the progress if the last statement may be too old.
    pub fn tell_now_and_then(&mut self) {
        if thread_cpu_ns() - self.told_cpu_ns >= PUBLISH_NS {
            self.tell();
        }
    }

    /// Tells the progress to whoever reads the page.
    pub fn tell(&mut self) {
        self.burned_ns = 0;
        self.told_cpu_ns = thread_cpu_ns();
        self.progress.cpu_ns = self.told_cpu_ns - self.cpu_start_ns;
        self.progress.at_ns = monotonic_ns();
        if let Some(page) = self.shared.page {
            page.write(self.shared.first_slot + self.thread, &self.progress);
        }
    }

    /// The last statement.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }
}

impl Machine for Context<'_> {
    fn now_ns(&mut self) -> u64 {
        monotonic_ns()
    }

    fn cpu_ns(&mut self) -> u64 {
        thread_cpu_ns()
    }

    fn burn(&mut self, ns: u64) {
        burn(ns);
        self.burned_ns += ns;
        if self.burned_ns >= PUBLISH_NS {
            self.tell();
        }
    }

    fn sleep_until(&mut self, at_ns: u64) {
        self.tell();
        self.sleep(at_ns);
    }

    fn over(&mut self) -> bool {
        Context::over(self)
    }

    fn begin_cycle(&mut self) -> bool {
        let claimed = self.claim();
        self.progress.cycles += u64::from(claimed);
        claimed
    }

    fn wants(&mut self, ns: u64) {
        self.progress.wanted_ns += ns;
    }

    fn drops(&mut self, ns: u64) {
        self.progress.dropped_ns += ns;
    }
}
