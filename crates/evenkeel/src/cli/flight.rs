//! The flight recorder of `serve --record`: who may have what it kept gets it by a socket in the state directory.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use evenkeel_actuate::{check_private, make_private};
use evenkeel_base::{Observation, Topology};
use evenkeel_bpf::flight::Recorder;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_linux::sys;
use evenkeel_listen::{Seen, Server};
use evenkeel_observe::Observer;
use evenkeel_observe::flight::Recording;
use evenkeel_report::time;

use super::Failure;
use super::ps::MIN_INTERVAL;

const SOCKET: &str = "flight.sock";
/// How long the other side may take to say what it wants, and to take a piece of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A recorder at work, with what is needed to name whom it recorded.
#[derive(Debug)]
pub struct Flight {
    recorder: Recorder,
    cpu: Option<Hierarchy>,
}

/// CPUs that have a ring, which whoever is offline may need later.
fn rings(topology: &Topology) -> u32 {
    let last = topology.present.iter().chain(topology.online.iter()).max();
    last.map_or(1, |last| last + 1)
}

impl Flight {
    /// Loads the programs. `keep` is how long to remember where 20,000 switches a second happen.
    pub fn start(observer: &Observer, keep: Duration) -> Result<Self, evenkeel_bpf::BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let recorder = Recorder::start(&types, rings(&observer.topology()), keep.as_secs_f64())?;
        let cpu = observer.hierarchies().and_then(|found| found.cpu.clone());
        Ok(Self { recorder, cpu })
    }

    /// Bytes that its rings take.
    pub fn bytes(&self) -> u64 {
        self.recorder.bytes()
    }

    /// What happened in the last time, with the names of those seen then.
    pub fn last(&self, time: Duration, observation: Observation) -> Recording {
        let now = sys::monotonic_ns();
        let from = now.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let wall = sys::wall_ns() as i64 - now as i64;
        Recording::new(self.recorder.since(from), observation, self.cpu.as_ref(), wall)
    }
}

/// A socket that hands out recordings; it goes with its guard.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Socket {
    /// Hands out what is asked for, one after the other, in a thread of its own. `now` says who is there.
    ///
    /// # Errors
    /// Another agent has the socket, or the directory does not allow one.
    pub fn open(
        state_dir: &Path,
        flight: Arc<Flight>,
        now: impl Fn() -> Option<Seen> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let path = state_dir.join(SOCKET);
        let context = || format!("cannot listen at {}", path.display());
        make_private(state_dir).with_context(context)?;
        check_private(state_dir)?;
        if UnixStream::connect(&path).is_ok() {
            return Err(anyhow!("another agent listens at {}", path.display()));
        }
        // What an agent left that was killed.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).with_context(context),
            _ => {}
        }
        let listener = UnixListener::bind(&path).with_context(context)?;
        let socket = Self(path.clone());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).with_context(context)?;
        let answer = move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                // Who goes away or says nothing sensible gets nothing; that is its own affair.
                let _ = hand_out(stream, &flight, &now);
            }
        };
        std::thread::Builder::new().name("flight".to_owned()).spawn(answer).with_context(context)?;
        Ok(socket)
    }
}

fn hand_out(mut stream: UnixStream, flight: &Flight, now: &impl Fn() -> Option<Seen>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The socket's mode keeps others out already, where its file system minds it.
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Ok(());
    }
    let mut asked = [0; 8];
    stream.read_exact(&mut asked)?;
    let Some((observation, story)) = now() else { return Ok(()) };
    let recording = flight.last(Duration::from_nanos(u64::from_le_bytes(asked)), (*observation).clone());
    recording.with_story(story).write(&mut stream)
}

/// What `serve` and `run` are asked to record.
#[derive(Debug, Clone, clap::Args)]
pub struct RecordArgs {
    /// Keep every switch and wake-up of so long in memory, for `record --last` and `why --at`: about 1 MiB for each second,
    /// which is enough for 20,000 switches a second, or fewer where CPUs are offline.
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    pub record: Option<Duration>,
}

/// Shortest and longest time that is recorded; what is worth more than a GiB of memory has other tools.
const LEAST_RECORD: Duration = MIN_INTERVAL;
const MAX_RECORD: Duration = Duration::from_secs(900);

impl RecordArgs {
    /// Whether it can be that long.
    pub fn check(&self) -> Result<(), Failure> {
        match self.record {
            Some(keep) if keep < LEAST_RECORD || keep > MAX_RECORD => {
                let why = format!("--record {keep:?}: from {LEAST_RECORD:?} to {MAX_RECORD:?}");
                Err(usage!(why))
            }
            _ => Ok(()),
        }
    }

    /// Begins to record, where that is asked for: for the socket that hands out what was kept, and for notices of the server.
    /// Where the kernel cannot, that is told, and nothing is recorded.
    pub fn start(
        &self,
        observer: &Observer,
        server: &Server,
        state_dir: &Path,
    ) -> Result<Option<Socket>, Failure> {
        let Some(keep) = self.record else { return Ok(None) };
        let flight = match Flight::start(observer, keep) {
            Ok(flight) => Arc::new(flight),
            Err(error) => {
                say!("evenkeel: nothing is recorded: {error}");
                server.note(&format!("nothing is recorded: {error}"));
                return Ok(None);
            }
        };
        say!("evenkeel: recording in {}", time::bytes(flight.bytes()));
        let keeper = Keeper::start(state_dir, Arc::clone(&flight), server.observation());
        let keeper = keeper.map_err(|error| Failure::Cannot(error.into()))?;
        server.on_notice(move |kind| keeper.notice(kind));
        Socket::open(state_dir, flight, server.observation()).map(Some).map_err(Failure::Cannot)
    }
}

/// Minutes before notices, kept on disk: the newest, and no more than these, ...
const KEPT: usize = 8;
/// ... at most one in this time: notices of one trouble come together.
const APART: Duration = Duration::from_secs(60);
/// Where, in the state directory.
const FOLDER: &str = "recordings";
const ENDING: &str = "recording";

/// Keeps the time before a notice on disk, in a thread of its own.
#[derive(Debug)]
pub struct Keeper {
    wanted: SyncSender<String>,
    kept: Mutex<Option<Instant>>,
}

impl Keeper {
    /// For what this recorder keeps in memory.
    pub fn start(
        state_dir: &Path,
        flight: Arc<Flight>,
        now: impl Fn() -> Option<Seen> + Send + 'static,
    ) -> io::Result<Self> {
        let (wanted, asked) = mpsc::sync_channel::<String>(1);
        let folder = state_dir.join(FOLDER);
        std::thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            for kind in asked {
                let Some((observation, story)) = now() else { continue };
                let recording = flight.last(APART, (*observation).clone()).with_story(story);
                match keep(&folder, &kind, &recording) {
                    Ok(file) => say!("evenkeel: the time before it is kept: {}", file.display()),
                    Err(error) => {
                        say!("evenkeel: the time before it is not kept: {}: {error}", folder.display())
                    }
                }
            }
        })?;
        Ok(Self { wanted, kept: Mutex::new(None) })
    }

    /// There is a notice of this kind. Never waits.
    pub fn notice(&self, kind: &str) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none_or(|kept| kept.elapsed() >= APART) && self.wanted.try_send(kind.to_owned()).is_ok() {
            *kept = Some(Instant::now());
        }
    }
}

/// Writes a recording next to the others, of which the oldest go.
fn keep(folder: &Path, kind: &str, recording: &Recording) -> io::Result<PathBuf> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let at = time::short(recording.wall_ns(recording.interval_ns().1)).replace([' ', ':'], "-");
    let file = folder.join(format!("{at}-{kind}.{ENDING}"));
    let unfinished = file.with_extension("part");
    let write = || {
        let mut to =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        recording.write(&mut to)?;
        std::fs::rename(&unfinished, &file)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&unfinished)))?;
    // Names begin with their time; what is later than now is of a clock that was set back since.
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_kept(path))
        .collect();
    all.sort_by_key(|path| (*path <= file, path.clone()));
    let many = all.len().saturating_sub(KEPT);
    all.iter().take(many).try_for_each(std::fs::remove_file)?;
    Ok(file)
}

/// Whether a file is one of those that are kept, or was to be.
fn is_kept(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING || ending == "part")
}

/// Asks the agent of this state directory for the last time.
pub fn ask(state_dir: &Path, last: Duration) -> Result<Recording, Failure> {
    let path = state_dir.join(SOCKET);
    let mut stream = UnixStream::connect(&path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "no agent records here: start `evenkeel serve --record 60s` (or `run --listen ADDR:PORT --record 60s`) before something happens, or record what happens \
                 now with `evenkeel record --for 10s`"
            }
            io::ErrorKind::PermissionDenied => "only root and the agent's own user may have what it recorded",
            _ => "the agent cannot be asked",
        };
        Failure::Cannot(anyhow::Error::from(error).context(format!("{}: {hint}", path.display())))
    })?;
    let asked = u64::try_from(last.as_nanos()).unwrap_or(u64::MAX).to_le_bytes();
    let read = || -> anyhow::Result<Recording> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&asked)?;
        Ok(Recording::read(&mut stream)?)
    };
    let mut read = read;
    read().with_context(|| format!("the agent at {}", path.display())).map_err(Failure::Cannot)
}

#[cfg(test)]
mod tests {
    use evenkeel_base::CpuSet;

    use super::*;

    /// Two threads over 100 ns, see `crates/fuzz/corpus`.
    const SAMPLE: &[u8] = include_bytes!("../../../fuzz/corpus/recording/two-threads");

    #[test]
    fn a_cpu_that_is_offline_has_a_ring() {
        let mut topology = Topology::synthetic(1, 1, 4, 1);
        topology.online = CpuSet::first_n(2);
        assert_eq!(rings(&topology), 4);
    }

    #[test]
    fn the_newest_are_kept_and_nothing_of_others_goes() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join(FOLDER);
        let recording = Recording::read(SAMPLE).unwrap();
        let first = keep(&folder, "starved", &recording).unwrap();
        assert_eq!(first.file_name().unwrap(), "1970-01-01-00-00-00-starved.recording");
        assert_eq!(std::fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Recording::read(std::fs::File::open(&first).unwrap()).unwrap().interval_ns(), (0, 100));
        std::fs::write(folder.join("notes.txt"), "somebody's own").unwrap();
        std::fs::write(folder.join("1969.part"), "of one who was killed").unwrap();
        for kind in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            keep(&folder, kind, &recording).unwrap();
        }
        (0..KEPT).for_each(|n| std::fs::write(folder.join(format!("2030-{n}.{ENDING}")), "").unwrap());
        assert!(keep(&folder, "now", &recording).unwrap().exists(), "the clock was set back");
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), KEPT + 1, "{names:?}");
        assert!(names.contains(&"notes.txt".to_owned()) && !names.iter().any(|name| name.ends_with(".part")));
    }

    #[test]
    fn a_folder_that_cannot_be_written_leaves_nothing_behind() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join(FOLDER);
        std::fs::write(&folder, "a file").unwrap();
        keep(&folder, "starved", &Recording::read(SAMPLE).unwrap()).unwrap_err();
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1);
    }
}
