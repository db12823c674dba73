//! Carries out [`Plan::pull`](evenkeel_base::Plan): work that waits goes to an idle CPU next to it.
//!
//! Programs in the kernel ([`evenkeel_bpf::pull`]) tell who waits while which CPU is idle. A thread of ours moves the task by
//! pinning it there and taking the pin off again: the only way that ordinary Linux offers. It takes 10 to 25 us of the idle CPU.
//! With [`Plan::before`](evenkeel_base::Plan), it is work that runs which goes, when one of those tasks wakes behind it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_actuate::{Moved, TemporaryPin, be_urgent};
use evenkeel_base::{CpuSet, TaskId};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::pull::{Offer, Role, Watch};
use evenkeel_policy::levers::MakeWay;
use rustix::event::{PollFd, PollFlags, Timespec};

/// How often the thread looks whether to end.
const LOOK: Duration = Duration::from_millis(200);

/// The thread and what it may move.
#[derive(Debug)]
pub(crate) struct Puller {
    shared: Arc<Shared>,
    cpus: CpuSet,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    ending: AtomicBool,
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    watch: Watch,
    tasks: HashMap<u32, TemporaryPin>,
    domains: Vec<CpuSet>,
    served: Vec<TaskId>,
    way: MakeWay,
    began: Instant,
    failed: Vec<TaskId>,
    moves: u64,
}

/// While it lives no task is moved.
pub(crate) struct MigrationsPaused<'a>(#[expect(dead_code, reason = "held, not read")] MutexGuard<'a, Work>);

impl Puller {
    /// Loads the programs and starts the thread; no task is moved yet.
    pub fn start(domains: &[CpuSet]) -> Result<Self, BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let watch = Watch::start(&types, domains)?;
        let descriptor = watch.descriptor().try_clone_to_owned()?;
        let work = Work {
            watch,
            tasks: HashMap::new(),
            domains: domains.to_vec(),
            served: Vec::new(),
            way: MakeWay::default(),
            began: Instant::now(),
            failed: Vec::new(),
            moves: 0,
        };
        let shared = Arc::new(Shared { ending: AtomicBool::new(false), work: Mutex::new(work) });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pull".to_owned()).spawn(move || {
            if let Err(error) = be_urgent() {
                tracing::debug!("the thread that moves waiting work has no priority: {error}");
            }
            while !theirs.ending.load(Ordering::Relaxed) {
                let mut wait = [PollFd::new(&descriptor, PollFlags::IN)];
                let look = Timespec::try_from(LOOK).ok();
                // Interrupted or over: look anyway.
                let _ = rustix::event::poll(&mut wait, look.as_ref());
                evenkeel_linux::fault::point("agent.pull");
                theirs.lock().take_offers();
            }
        })?;
        let cpus = domains.iter().fold(CpuSet::new(), |all, domain| all.union(domain));
        Ok(Self { shared, cpus, thread: Some(thread) })
    }

    /// CPUs that tasks may be moved to.
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// From now on these tasks are moved, and no others: when they wait, or, where `served` names any, when one of those wakes
    /// behind them. Returns those of the last ones that may still be pinned.
    pub fn follow(&self, tasks: Vec<TemporaryPin>, served: &[TaskId]) -> Result<Vec<TaskId>, BpfError> {
        self.shared.lock().follow(tasks, served)
    }

    /// Nobody is moved while the result lives.
    pub fn still(&self) -> MigrationsPaused<'_> {
        MigrationsPaused(self.shared.lock())
    }

    pub fn moves(&self) -> u64 {
        self.shared.lock().moves
    }
}

impl Drop for Puller {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn follow(&mut self, tasks: Vec<TemporaryPin>, served: &[TaskId]) -> Result<Vec<TaskId>, BpfError> {
        // Another role for the same tasks: they are entered again.
        if self.served != served {
            self.forget_all();
        }
        let new: HashMap<u32, TemporaryPin> = tasks.into_iter().map(|task| (task.id.tid, task)).collect();
        let old = std::mem::replace(&mut self.tasks, new);
        let entered = self.enter(&old, served);
        if entered.is_err() {
            // Half of them is nobody's wish.
            self.forget_all();
        }
        entered.map(|()| std::mem::take(&mut self.failed))
    }

    /// Tells the programs what is other than before.
    fn enter(&mut self, old: &HashMap<u32, TemporaryPin>, served: &[TaskId]) -> Result<(), BpfError> {
        let differs = |task: &TemporaryPin, of: &HashMap<u32, TemporaryPin>| {
            of.get(&task.id.tid).is_none_or(|other| other.id != task.id)
        };
        for task in old.values().filter(|task| differs(task, &self.tasks)) {
            self.watch.forget(task.id.tid);
        }
        let role = if served.is_empty() { Role::MovedWhenWaiting } else { Role::Background };
        for task in self.tasks.values().filter(|task| differs(task, old)) {
            self.watch.follow(task.id, role)?;
        }
        if self.served.is_empty() {
            self.served = served.to_vec();
            for id in served {
                self.watch.follow(*id, Role::Served)?;
            }
        }
        Ok(())
    }

    fn forget_all(&mut self) {
        for tid in self.served.drain(..).map(|id| id.tid).chain(self.tasks.drain().map(|(tid, _)| tid)) {
            self.watch.forget(tid);
        }
    }

    fn take_offers(&mut self) {
        while let Some(offer) = self.watch.take() {
            if self.watch.holds(&offer) {
                self.carry_out(&offer);
            }
        }
    }

    fn carry_out(&mut self, offer: &Offer) {
        let Some(task) = self.tasks.get(&offer.tid) else { return };
        let to = if self.served.is_empty() {
            offer.to
        } else {
            let domain = self.domains.iter().find(|domain| domain.contains(offer.from));
            let allowed = domain.map(|domain| domain.intersection(&task.present)).unwrap_or_default();
            self.way.from(offer.from, offer.to, &allowed, self.began.elapsed().as_nanos() as u64)
        };
        let Some(to) = to else { return };
        match task.move_to(to) {
            Moved::Yes => self.moves += 1,
            Moved::No => {}
            Moved::Pinned => {
                self.failed.push(task.id);
                self.tasks.remove(&offer.tid);
                self.watch.forget(offer.tid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks that no kernel has: thread numbers end at 2^22.
    fn pins(numbers: std::ops::Range<u32>) -> Vec<TemporaryPin> {
        let all = CpuSet::first_n(1);
        let pin = |number: u32| TemporaryPin {
            id: TaskId { tgid: number, tid: (1 << 22) + number, start_time: 1 },
            present: all.clone(),
            original: all.clone(),
        };
        numbers.map(pin).collect()
    }

    #[test]
    fn what_found_no_room_takes_none_from_those_who_come_next() {
        let most = evenkeel_bpf::pull::TASKS as u32;
        let started = Puller::start(&[CpuSet::first_n(1)]);
        if !rustix::process::geteuid().is_root() {
            assert!(started.is_err(), "programs in the kernel take root");
            return;
        }
        let puller = started.unwrap();
        puller.follow(pins(0..most - 96), &[]).unwrap();
        puller.follow(pins(0..most + 904), &[]).unwrap_err();
        puller.follow(Vec::new(), &[]).unwrap();
        puller.follow(pins(10_000..10_000 + most), &[]).unwrap();
        // Once more where somebody is served.
        puller
            .follow(pins(0..most), &pins(20_000..20_001).iter().map(|pin| pin.id).collect::<Vec<_>>())
            .unwrap_err();
        puller.follow(pins(10_000..10_000 + most), &[]).unwrap();
    }
}
