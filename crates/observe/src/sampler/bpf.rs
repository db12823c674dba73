//! Raw counters by the task iterator of `evenkeel-bpf`: one pass of the kernel over its threads, a fraction of a
//! microsecond each. Files are read only for what the pass does not tell: the cgroup paths of a combination of groups
//! not seen before.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use evenkeel_base::{Nice, Sample, SchedAttr, SchedPolicy, TICK_NS, TaskId, TaskSample};
use evenkeel_bpf::load::kernel_types;
use evenkeel_bpf::task::{Room, TaskProbe, TaskRecord};
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::{Root, pid_stat, proc_stat};

use super::exits::GroupPaths;
use super::{Remembered, Select};
use crate::ObserveError;
use crate::kernel::schedstat_counts;
use crate::place::{Place, PlaceCache};
use crate::process::TaskMeta;
use crate::topology::hierarchies;

/// After so many samples the paths of all places are read again: a group can be renamed, and the kernel may give the
/// number of one combination of groups to another once no task is in it.
const PLACE_ROUND: u64 = 30;

/// A thread of the last pass.
#[derive(Debug)]
struct Known {
    id: TaskId,
    comm: [u8; 16],
    memberships: u64,
    sched: Sched,
    meta: TaskMeta,
}

/// Scheduling attributes as the kernel has them.
#[derive(Debug, Clone, Copy)]
struct Sched {
    policy: u32,
    nice: i32,
    rt_priority: u32,
    reset_on_fork: bool,
    custom_slice_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct ByBpf {
    root: Root,
    probe: TaskProbe,
    places: PlaceCache,
    /// By the kernel's number for a combination of groups.
    known_places: HashMap<u64, Arc<Place>>,
    paths: GroupPaths,
    /// Whether this kernel counts waits at all.
    counts_waits: bool,
    number: u64,
    /// Ordered by identity.
    table: Vec<Known>,
    records: Vec<TaskRecord>,
    gone: Remembered,
    told_lost: u64,
    note: Option<String>,
}

impl ByBpf {
    /// Loads the programs.
    pub(crate) fn new(root: &Root) -> Result<Self, ObserveError> {
        if !root.path("proc/stat").exists() {
            return Err(ObserveError::NoProc { dir: root.dir().display().to_string() });
        }
        let types = kernel_types()?;
        let probe = TaskProbe::load(&types, Some(Room::default()))?;
        let hierarchies = hierarchies(root)?;
        let cpu = hierarchies.as_ref().and_then(|h| h.cpu.clone());
        Ok(Self {
            root: root.clone(),
            probe,
            places: PlaceCache::new(root.clone(), hierarchies),
            known_places: HashMap::new(),
            paths: GroupPaths::new(root, cpu),
            counts_waits: schedstat_counts(root).unwrap_or(false),
            number: 0,
            table: Vec::new(),
            records: Vec::new(),
            gone: Remembered::default(),
            told_lost: 0,
            note: None,
        })
    }

    pub(crate) fn hierarchies(&self) -> Option<&Hierarchies> {
        self.places.hierarchies()
    }

    pub(crate) fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }

    /// As [`super::Sampler::sample`]. Every thread is passed over, whoever is selected: that is what costs least.
    pub(crate) fn sample(&mut self, select: &Select, switches: &Select) -> Result<Sample, ObserveError> {
        self.number += 1;
        let stat = proc_stat::read(&self.root)?;
        let (monotonic_ns, wall_ns) = crate::kernel::instant(&self.root);
        let mut sample = Sample { monotonic_ns, wall_ns, cpus: stat.cpus, ..Sample::default() };
        if *select == Select::None {
            return Ok(sample);
        }
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        self.probe.read(|record| records.push(record))?;
        // The pass goes by thread id; threads of a process follow its first where nothing was born in between.
        if !records.is_sorted_by_key(key) {
            records.sort_by_key(key);
        }
        // A pass that is interrupted may meet a thread twice.
        records.dedup_by_key(|record| key(record));
        self.take_in(&records);
        sample.tasks = records
            .iter()
            .zip(&self.table)
            .filter(|(_, known)| select.has(known.id))
            .map(|(record, known)| self.counters(record, known.id, switches.has(known.id)))
            .collect();
        self.records = records;
        let exited = self.probe.exited()?;
        sample.exited = self.paths.exited(&exited);
        let round = self.number.is_multiple_of(PLACE_ROUND);
        self.paths.forget_gone(round, &exited, |number| self.probe.forget(number));
        self.tell_lost();
        Ok(sample)
    }

    fn counters(&self, record: &TaskRecord, id: TaskId, switches: bool) -> TaskSample {
        TaskSample {
            id,
            cpu: record.cpu,
            ran_ns: record.ran_ns,
            waited_ns: self.counts_waits.then_some(record.waited_ns),
            timeslices: self.counts_waits.then_some(record.timeslices),
            voluntary: switches.then_some(record.voluntary),
            involuntary: switches.then_some(record.involuntary),
        }
    }

    /// Makes the table that of this pass; both are ordered.
    fn take_in(&mut self, records: &[TaskRecord]) {
        let round = self.number.is_multiple_of(PLACE_ROUND);
        if round {
            self.known_places.clear();
        }
        let old = std::mem::take(&mut self.table);
        self.table.reserve(records.len() + records.len() / 8);
        let mut old = old.into_iter().peekable();
        let mut gone = Vec::new();
        for record in records {
            let id = id_of(record);
            while let Some(known) = old.next_if(|known| known.id < id) {
                gone.push((known.id, known.meta));
            }
            let mut known = match old.next_if(|known| known.id == id) {
                Some(known) => known,
                None => {
                    let place = self.place(record);
                    self.table.push(Known {
                        id,
                        comm: record.comm_bytes(),
                        memberships: record.memberships,
                        sched: Sched::of(record),
                        meta: TaskMeta {
                            comm: name(record),
                            ppid: record.ppid,
                            kernel_thread: record.kernel_thread,
                            place,
                        },
                    });
                    continue;
                }
            };
            if known.comm != record.comm_bytes() {
                known.comm = record.comm_bytes();
                known.meta.comm = name(record);
            }
            if (known.memberships != record.memberships || round) && !record.exiting {
                known.memberships = record.memberships;
                known.meta.place = self.place(record);
            }
            known.meta.ppid = record.ppid;
            known.sched = Sched::of(record);
            self.table.push(known);
        }
        gone.extend(old.map(|known| (known.id, known.meta)));
        self.gone.add(self.number, gone.into_iter());
    }

    /// Where a task is: known by its combination of groups, else by its file.
    fn place(&mut self, record: &TaskRecord) -> Arc<Place> {
        if let Some(place) = self.known_places.get(&record.memberships) {
            return place.clone();
        }
        // The file of a task that is exiting names the root of v1 hierarchies.
        if record.exiting {
            return self.paths.place(record.cgroup_cpu).unwrap_or_else(|| self.places.nowhere());
        }
        let file = self.root.path(format!("proc/{}/task/{}/cgroup", record.tgid, record.tid));
        let place = self.places.read(&file);
        // The task may be another by now, or elsewhere: only what the kernel's number confirms is kept.
        if self.paths.confirms(record.cgroup_cpu, &place) {
            self.known_places.insert(record.memberships, place.clone());
        }
        place
    }

    fn tell_lost(&mut self) {
        let lost = self.probe.lost();
        if lost > self.told_lost {
            self.note = Some(format!(
                "{} tasks that ended found no room in the kernel's table: what groups used is at least what is shown",
                lost - self.told_lost
            ));
            self.told_lost = lost;
        }
    }

    fn known(&self, id: TaskId) -> Option<&Known> {
        let at = self.table.binary_search_by_key(&id, |known| known.id).ok()?;
        self.table.get(at)
    }

    pub(crate) fn meta(&self, id: TaskId) -> Option<&TaskMeta> {
        self.known(id).map(|known| &known.meta).or_else(|| self.gone.get(id))
    }

    pub(crate) fn sched(&self, id: TaskId) -> Option<SchedAttr> {
        self.known(id)?.sched.attr()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = &Arc<Place>> {
        self.table.iter().map(|known| &known.meta.place)
    }

    pub(crate) fn is_alive(&self, id: TaskId) -> bool {
        let file = self.root.path(format!("proc/{}/task/{}/stat", id.tgid, id.tid));
        let stat = read(&file).and_then(|text| pid_stat::parse(&text).ok());
        stat.is_some_and(|stat| stat.start_time == id.start_time)
    }
}

fn read(file: &Path) -> Option<String> {
    evenkeel_linux::root::read_file(file).ok()
}

fn key(record: &TaskRecord) -> (u32, u32, u64) {
    (record.tgid, record.tid, record.start_ns)
}

fn id_of(record: &TaskRecord) -> TaskId {
    TaskId { tgid: record.tgid, tid: record.tid, start_time: record.start_ns / TICK_NS }
}

fn name(record: &TaskRecord) -> Box<str> {
    String::from_utf8_lossy(record.comm()).into()
}

impl Sched {
    fn of(record: &TaskRecord) -> Self {
        Self {
            policy: record.policy,
            nice: record.nice,
            rt_priority: record.rt_priority,
            reset_on_fork: record.reset_on_fork,
            custom_slice_ns: record.slice_ns.filter(|_| record.custom_slice == Some(true)),
        }
    }

    fn attr(self) -> Option<SchedAttr> {
        let policy = SchedPolicy::from_raw(self.policy)?;
        Some(SchedAttr {
            policy,
            nice: Nice::new(self.nice),
            rt_priority: self.rt_priority.min(99) as u8,
            slice_ns: self.custom_slice_ns.filter(|_| policy.is_fair()),
            period_ns: None,
            reset_on_fork: self.reset_on_fork,
        })
    }
}
