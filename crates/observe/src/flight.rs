//! What a flight recorder kept, with the names that belong to it: a recording. It is what an agent hands out and keeps on disk,
//! and what a trace and an account of somebody's time are made from.

mod account;
mod perfetto;
mod story;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::MetadataExt;

use evenkeel_base::{ContainerView, Observation, TaskId, TaskView};
use evenkeel_bpf::flight::{Event, Snapshot};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchy;
use serde::{Deserialize, Serialize};

pub use account::{Account, Does, account, tell};
pub use evenkeel_bpf::flight::{Left, What};
pub use perfetto::trace;

const SCHEMA: &str = "evenkeel.recording/v1";
/// Bytes of a recording's first line, and of its events, at most: several times what an agent can write.
const MOST_HEAD: u64 = 256 << 20;
const MOST_EVENTS: u64 = 4 << 30;
/// Longest time of a recording, ns: an idle host's rings hold days.
const LONGEST_NS: u64 = 30 * 86_400_000_000_000;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("reading a recording: {0}")]
    Read(#[from] io::Error),
    #[error("not a recording ({SCHEMA}): {0}")]
    Other(String),
}

/// A thread that ended, as [`evenkeel_bpf::flight::Ended`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EndedThread {
    when_ns: u64,
    tid: u32,
    tgid: u32,
    comm: String,
    cgroup: u64,
}

/// The first line. Events follow, CPU after CPU, 16 bytes each.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    schema: String,
    /// Everything from then to then is there, `CLOCK_MONOTONIC`, ns.
    from_ns: u64,
    to_ns: u64,
    /// What to add for the wall clock, ns since 1970.
    wall_ns: i64,
    /// Events by CPU.
    events: Vec<u64>,
    ended: Vec<EndedThread>,
    /// Inode numbers of the directories of the observation's groups.
    cgroups: Vec<Option<u64>>,
    observation: Observation,
    #[serde(default)]
    story: Story,
}

/// What an agent said meanwhile of its promises, and what it changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Story {
    /// Guarantees, and services with a bound.
    pub promises: Vec<Promise>,
    /// What its loop did: wall clock's ms since 1970, words.
    pub marks: Vec<(u64, String)>,
}

/// A promise over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// What its track is called.
    pub title: String,
    /// What is told of it, with its unit.
    pub unit: String,
    /// By what its state is judged, in that unit; `None` where unknown.
    pub bound: Option<f64>,
    /// Wall clock's ms since 1970, what there was in that unit (`None`: unknown), state such as `kept`.
    pub moments: Vec<(u64, Option<f64>, String)>,
}

/// What happened over a time, and to whom.
#[derive(Debug, Clone)]
pub struct Recording {
    head: Head,
    cpus: Vec<Vec<Event>>,
}

impl Recording {
    /// Of what was kept, and who was there at about its end. `wall_ns` is what to add to `CLOCK_MONOTONIC` for nanoseconds
    /// since 1970.
    pub fn new(snapshot: Snapshot, observation: Observation, cpu: Option<&Hierarchy>, wall_ns: i64) -> Self {
        let root = Root::host();
        let inode = |path: &str| Some(std::fs::metadata(root.path(cpu?.dir(path))).ok()?.ino());
        let cgroups = observation.groups.iter().map(|group| inode(&group.path)).collect();
        Self::of(snapshot, observation, cgroups, wall_ns)
    }

    fn of(snapshot: Snapshot, observation: Observation, cgroups: Vec<Option<u64>>, wall_ns: i64) -> Self {
        let ended = snapshot.ended.into_iter().map(|one| EndedThread {
            when_ns: one.when_ns,
            tid: one.tid,
            tgid: one.tgid,
            comm: one.comm,
            cgroup: one.cgroup,
        });
        let head = Head {
            schema: SCHEMA.to_owned(),
            from_ns: snapshot.from_ns,
            to_ns: snapshot.to_ns,
            wall_ns,
            events: snapshot.cpus.iter().map(|events| events.len() as u64).collect(),
            ended: ended.collect(),
            cgroups,
            observation,
            story: Story::default(),
        };
        Self { head, cpus: snapshot.cpus }
    }

    /// With as much of a story as belongs to its time.
    #[must_use]
    pub fn with_story(mut self, mut story: Story) -> Self {
        let (from, to) = self.interval_ns();
        let ms = (self.wall_ns(from) / 1_000_000)..=(self.wall_ns(to) / 1_000_000);
        story.marks.retain(|(at, _)| ms.contains(at));
        story.promises.iter_mut().for_each(|promise| promise.moments.retain(|(at, ..)| ms.contains(at)));
        story.promises.retain(|promise| !promise.moments.is_empty());
        self.head.story = story;
        self
    }

    /// What the agent said meanwhile.
    pub fn story(&self) -> &Story {
        &self.head.story
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut to = io::BufWriter::with_capacity(1 << 16, to);
        serde_json::to_writer(&mut to, &self.head)?;
        to.write_all(b"\n")?;
        for event in self.cpus.iter().flatten() {
            to.write_all(&event.to_bytes())?;
        }
        to.flush()
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(from: impl Read) -> Result<Self, RecordingError> {
        let other = |why: &str| RecordingError::Other(why.to_owned());
        let mut from = io::BufReader::with_capacity(1 << 16, from);
        let mut line = Vec::new();
        (&mut from).take(MOST_HEAD).read_until(b'\n', &mut line)?;
        let head: Head =
            serde_json::from_slice(&line).map_err(|error| RecordingError::Other(error.to_string()))?;
        if head.schema != SCHEMA {
            return Err(RecordingError::Other(format!("its schema is {:?}", head.schema)));
        }
        let bytes = head.events.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        let bytes = bytes.and_then(|events| events.checked_mul(Event::BYTES as u64));
        let length = head.to_ns.checked_sub(head.from_ns);
        let may_be = bytes.is_some_and(|bytes| bytes <= MOST_EVENTS)
            && length.is_some_and(|length| length <= LONGEST_NS)
            && head.wall_ns > i64::MIN;
        if !may_be {
            return Err(other("its sums cannot be"));
        }
        let mut cpus = Vec::new();
        for count in &head.events {
            let mut events = Vec::new();
            let mut before = 0;
            for _ in 0..*count {
                let mut bytes = [0; Event::BYTES];
                from.read_exact(&mut bytes).map_err(|_| other("it is cut off"))?;
                let event = Event::from_bytes(bytes);
                if event.when_ns < before {
                    return Err(other("time goes back"));
                }
                before = event.when_ns;
                events.push(event);
            }
            cpus.push(events);
        }
        Ok(Self { head, cpus })
    }

    /// From when to when everything is there, `CLOCK_MONOTONIC`, ns.
    pub fn interval_ns(&self) -> (u64, u64) {
        (self.head.from_ns, self.head.to_ns)
    }

    /// The wall clock's nanoseconds since 1970 at an instant of `CLOCK_MONOTONIC`.
    pub fn wall_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add_signed(self.head.wall_ns)
    }

    /// The other way round.
    pub fn monotonic_ns(&self, wall_ns: u64) -> u64 {
        wall_ns.saturating_add_signed(-self.head.wall_ns)
    }

    /// Who was there, at about its end.
    pub fn observation(&self) -> &Observation {
        &self.head.observation
    }

    /// Events by CPU, each in order of time; those before everything is there are left out, as are what is none.
    pub fn events(&self, cpu: usize) -> impl Iterator<Item = (u64, What)> + '_ {
        let events = self.cpus.get(cpu).map(Vec::as_slice).unwrap_or_default();
        let (from, to) = self.interval_ns();
        events
            .iter()
            .filter(move |event| (from..=to).contains(&event.when_ns))
            .filter_map(|event| Some((event.when_ns, event.what()?)))
    }

    /// Who has a CPU at the beginning, 0 for nobody; `None` where that is not known.
    pub fn holder(&self, cpu: usize) -> Option<u32> {
        let events = self.cpus.get(cpu)?.iter().take_while(|event| event.when_ns < self.head.from_ns);
        let next = |what| if let What::Switch { next, .. } = what { Some(next) } else { None };
        events.filter_map(|event| next(event.what()?)).last()
    }

    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Who had which number when.
    pub fn threads(&self) -> Threads<'_> {
        let observation = self.observation();
        let mut threads = Threads::default();
        for task in &observation.tasks {
            threads.living.insert(task.id.tid, threads.views.len());
            threads.views.push(Cow::Borrowed(task));
        }
        let groups: HashMap<u64, u32> =
            self.head.cgroups.iter().zip(0..).filter_map(|(id, at)| Some(((*id)?, at))).collect();
        let relatives: HashMap<u32, &TaskView> =
            observation.tasks.iter().map(|task| (task.id.tgid, task)).collect();
        for one in &self.head.ended {
            let relative = relatives.get(&one.tgid).copied();
            let view = ended_view(one, observation, groups.get(&one.cgroup).copied(), relative);
            threads.ended.entry(one.tid).or_default().push((one.when_ns, threads.views.len()));
            threads.views.push(Cow::Owned(view));
        }
        threads.ended.values_mut().for_each(|ended| ended.sort_by_key(|(when, _)| *when));
        threads
    }
}

/// A thread that is no more, as far as it is known. A relative is a thread of its process that lives.
fn ended_view(
    one: &EndedThread,
    observation: &Observation,
    group: Option<u32>,
    relative: Option<&TaskView>,
) -> TaskView {
    let container = relative.and_then(|task| task.container).or_else(|| container_of(observation, group?));
    let pod = container.and_then(|at| observation.containers.get(at as usize)?.pod);
    TaskView {
        group,
        container,
        pod: relative.and_then(|task| task.pod).or(pod),
        vm: relative.and_then(|task| task.vm),
        ..TaskView::of(TaskId { tgid: one.tgid, tid: one.tid, start_time: 0 }, &one.comm)
    }
}

/// The container a group belongs to: the innermost one.
fn container_of(observation: &Observation, group: u32) -> Option<u32> {
    let holds = |container: &ContainerView, at: u32| container.group == Some(at);
    let mut up = observation.path_to_root(group);
    up.find_map(|at| {
        let place = observation.containers.iter().position(|container| holds(container, at))?;
        u32::try_from(place).ok()
    })
}

/// Who had which thread number when.
#[derive(Debug, Default)]
pub struct Threads<'a> {
    /// The living, then the ended.
    views: Vec<Cow<'a, TaskView>>,
    living: HashMap<u32, usize>,
    ended: HashMap<u32, Vec<(u64, usize)>>,
}

/// A thread's place among [`Threads`].
pub type Place = usize;

impl Threads<'_> {
    /// Who had a number at an instant (`CLOCK_MONOTONIC`, ns); `None` where nobody is known. On its way out a thread is none any
    /// more.
    pub fn at(&self, tid: u32, when_ns: u64) -> Option<Place> {
        let ended = self.ended.get(&tid).and_then(|all| all.iter().find(|(end, _)| *end >= when_ns));
        ended.map(|(_, place)| *place).or_else(|| self.living.get(&tid).copied())
    }

    /// What is known of a thread.
    pub fn view(&self, place: Place) -> Option<&TaskView> {
        self.views.get(place).map(AsRef::as_ref)
    }

    /// Everybody.
    pub fn all(&self) -> impl Iterator<Item = &TaskView> {
        self.views.iter().map(AsRef::as_ref)
    }

    pub fn living(&self) -> impl Iterator<Item = Place> + '_ {
        self.living.values().copied()
    }
}
