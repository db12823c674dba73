//! Raw counters of every thread, by `/proc`, about a microsecond each.
//!
//! What keeps it cheap: descriptors stay open; nobody is looked for while the kernel's count of forks (`/proc/stat`)
//! stands still; the threads of a process are listed again only when the link count of its `task` directory changed
//! or one of them is gone; the last CPU and the name are read again only for tasks that ran.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_base::{CpuSet, Sample, TaskId, TaskSample};
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::{Root, proc_stat, sys, sysfs};

use super::{Remembered, Select};
use crate::ObserveError;
use crate::kernel::schedstat_counts;
use crate::place::{Place, PlaceCache};
use crate::process::{Budget, Counters, Pass, Process, TaskMeta, Thread};
use crate::topology::hierarchies;

/// Every so many samples each task's cgroup has been read again.
const PLACE_ROUND: u64 = 30;
/// Text of `/proc/PID/stat` is below 1 KiB even with the longest name and numbers.
const BUFFER: usize = 4096;

/// The table of tasks and the descriptors that stay open between samples.
#[derive(Debug)]
pub(crate) struct ByProc {
    root: Root,
    processes: BTreeMap<u32, Process>,
    places: PlaceCache,
    budget: Budget,
    schedstat: bool,
    forks: Option<u64>,
    number: u64,
    at_ns: u64,
    tickless: CpuSet,
    gone: Remembered,
    buffer: Vec<u8>,
}

impl ByProc {
    /// Prepares to sample a host or a tree. Raises this process's limit of descriptors to the hard limit; three
    /// quarters of it are used at most, tasks beyond are read by opening their files each time.
    pub(crate) fn new(root: &Root) -> Result<Self, ObserveError> {
        if !root.path("proc/stat").exists() {
            return Err(ObserveError::NoProc { dir: root.dir().display().to_string() });
        }
        let budget = if root.is_live() { sys::raise_descriptor_limit() / 4 * 3 } else { 0 };
        Ok(Self {
            root: root.clone(),
            processes: BTreeMap::new(),
            places: PlaceCache::new(root.clone(), hierarchies(root)?),
            budget: Budget::new(budget),
            schedstat: schedstat_counts(root).unwrap_or(false),
            forks: None,
            number: 0,
            at_ns: 0,
            tickless: sysfs::tickless(root),
            gone: Remembered::default(),
            buffer: vec![0; BUFFER],
        })
    }

    /// Where the cgroup hierarchies are; `None` on a host without.
    pub(crate) fn hierarchies(&self) -> Option<&Hierarchies> {
        self.places.hierarchies()
    }

    /// Reads the counters of the CPUs and of the tasks selected; for tasks in `switches` the context switches too
    /// (slow, about 15 us a task). [`Sample::groups`] is left empty, see [`crate::Observer`].
    ///
    /// # Errors
    /// `/proc` itself unreadable or `/proc/stat` malformed. Tasks that vanish are left out.
    pub(crate) fn sample(&mut self, select: &Select, switches: &Select) -> Result<Sample, ObserveError> {
        self.number += 1;
        let (monotonic_ns, wall_ns) = crate::kernel::instant(&self.root);
        self.at_ns = monotonic_ns;
        let stat = proc_stat::read(&self.root)?;
        // Forks counted before the listing: whoever is born later makes the count differ next time.
        let quiet = self.root.is_live() && stat.forks.is_some() && stat.forks == self.forks;
        let (refresh, mut wanted): (bool, Vec<u32>) = match select {
            Select::None => (false, Vec::new()),
            Select::All => (!quiet, Vec::new()),
            Select::Tasks(tasks) => (false, tasks.iter().map(|id| id.tgid).collect()),
            Select::Processes(processes) => (false, processes.iter().copied().collect()),
        };
        wanted.dedup();
        if refresh {
            self.refresh_processes()?;
            self.forks = stat.forks;
        }
        let mut processes = std::mem::take(&mut self.processes);
        let mut pass = self.pass();
        for tgid in &wanted {
            if !processes.contains_key(tgid)
                && let Some(process) = Process::open(*tgid, &mut pass)
            {
                processes.insert(*tgid, process);
            }
        }
        let mut tasks = Vec::with_capacity(processes.values().map(|process| process.threads.len()).sum());
        let mut gone = Vec::new();
        let reader = Reader { select, switches, quiet };
        if matches!(select, Select::All) {
            for process in processes.values_mut() {
                reader.read(process, &mut pass, &mut tasks, &mut gone);
            }
        } else {
            for tgid in wanted {
                if let Some(process) = processes.get_mut(&tgid) {
                    reader.read(process, &mut pass, &mut tasks, &mut gone);
                }
            }
        }
        processes.retain(|_, process| !process.threads.is_empty());
        self.processes = processes;
        tasks.sort_unstable_by_key(|task: &TaskSample| task.id);
        self.remember(gone);
        Ok(Sample { monotonic_ns, wall_ns, cpus: stat.cpus, tasks, ..Sample::default() })
    }

    /// Compares the table with the processes there are.
    fn refresh_processes(&mut self) -> Result<(), ObserveError> {
        let pids = self.root.numbers("proc")?;
        let mut old = std::mem::take(&mut self.processes);
        let (mut gone, mut processes) = (Vec::new(), BTreeMap::new());
        let mut pass = self.pass();
        for pid in pids {
            let mut process = old.remove(&pid);
            if let Some(known) = &mut process
                && known.changed()
            {
                gone.extend(known.relist(&mut pass));
            }
            // Nothing left of the one we knew: the number belongs to somebody new.
            if process.as_ref().is_none_or(|known| known.threads.is_empty()) {
                if let Some(dead) = process {
                    gone.extend(dead.close(pass.budget));
                }
                process = Process::open(pid, &mut pass);
            }
            processes.extend(process.map(|process| (pid, process)));
        }
        for (_, dead) in old {
            gone.extend(dead.close(pass.budget));
        }
        self.processes = processes;
        self.remember(gone);
        Ok(())
    }

    /// What reads of this sample share.
    fn pass(&mut self) -> Pass<'_> {
        Pass {
            root: &self.root,
            buffer: &mut self.buffer,
            budget: &mut self.budget,
            places: &mut self.places,
            number: self.number,
            at_ns: self.at_ns,
            tickless: &self.tickless,
            schedstat: self.schedstat,
        }
    }

    fn remember(&mut self, gone: Vec<Thread>) {
        self.gone.add(self.number, gone.into_iter().map(|thread| (thread.id, thread.meta)));
    }

    fn thread(&self, id: TaskId) -> Option<&Thread> {
        let threads = &self.processes.get(&id.tgid)?.threads;
        let thread = &threads[threads.binary_search_by_key(&id.tid, |thread| thread.id.tid).ok()?];
        (thread.id == id).then_some(thread)
    }

    /// What is known of a task, also shortly after its end.
    pub(crate) fn meta(&self, id: TaskId) -> Option<&TaskMeta> {
        self.thread(id).map(|thread| &thread.meta).or_else(|| self.gone.get(id))
    }

    /// Where each thread of the last sample is; the same place may come up many times.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Arc<Place>> {
        self.processes.values().flat_map(|process| &process.threads).map(|thread| &thread.meta.place)
    }

    /// Whether the task's numbers still mean it, right now.
    pub(crate) fn is_alive(&mut self, id: TaskId) -> bool {
        let processes = std::mem::take(&mut self.processes);
        let mut pass = self.pass();
        let thread = processes.get(&id.tgid).and_then(|process| {
            let at = process.threads.binary_search_by_key(&id.tid, |thread| thread.id.tid).ok()?;
            Some(&process.threads[at])
        });
        let alive = thread.is_some_and(|thread| thread.id == id && thread.still_there(&mut pass));
        self.processes = processes;
        alive
    }
}

/// What one sample reads of each process.
struct Reader<'a> {
    select: &'a Select,
    switches: &'a Select,
    /// Nobody was born since the last sample of all.
    quiet: bool,
}

impl Reader<'_> {
    fn read(
        &self,
        process: &mut Process,
        pass: &mut Pass<'_>,
        tasks: &mut Vec<TaskSample>,
        gone: &mut Vec<Thread>,
    ) {
        // A sample of all was preceded by a look at every process; one of some processes looks here.
        if !self.quiet && !matches!(self.select, Select::All) && process.changed() {
            gone.extend(process.relist(pass));
        }
        let mut lost = false;
        for thread in &mut process.threads {
            if !self.select.has(thread.id) {
                continue;
            }
            let asked = self.switches.has(thread.id);
            let Counters::Read { ran_ns, waited_ns, timeslices } = thread.counters(asked, pass) else {
                lost = true;
                continue;
            };
            // A process moved between cgroups does not tell: look again now and then.
            if pass.root.is_live() && (u64::from(thread.id.tid) + pass.number).is_multiple_of(PLACE_ROUND) {
                thread.refresh_place(pass);
            }
            let switches = if asked { thread.switches(pass) } else { None };
            tasks.push(TaskSample {
                id: thread.id,
                cpu: thread.cpu,
                ran_ns,
                waited_ns,
                timeslices,
                voluntary: switches.map(|(voluntary, _)| voluntary),
                involuntary: switches.map(|(_, involuntary)| involuntary),
            });
        }
        if lost {
            gone.extend(process.relist(pass));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_gives_all_descriptors_back() {
        let mut sampler = ByProc::new(&Root::host()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let only = Select::Processes([child.id()].into());
        let mut left = Vec::new();
        for _ in 0..2 {
            sampler.sample(&only, &Select::None).unwrap();
            left.push(sampler.budget.left);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(sampler.processes.is_empty() && left[0] < left[1], "{left:?}");
        assert_eq!(left[1], sys::raise_descriptor_limit() / 4 * 3);
    }
}
