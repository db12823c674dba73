//! The flight recorder of `serve --record`: who may have what it kept gets it by a socket in the state directory.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_base::Observation;
use evenkeel_bpf::flight::Recorder;
use evenkeel_linux::mountinfo::Hierarchy;
use evenkeel_linux::sys;
use evenkeel_observe::Observer;
use evenkeel_observe::flight::Recording;

use super::Failure;

const SOCKET: &str = "flight.sock";
/// How long the other side may take to say what it wants, and to take a piece of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A recorder at work, with what is needed to name whom it recorded.
#[derive(Debug)]
pub struct Flight {
    recorder: Recorder,
    cpu: Option<Hierarchy>,
}

impl Flight {
    /// Loads the programs. `keep` is how long to remember where 20,000 switches a second happen.
    ///
    /// # Errors
    /// The kernel cannot or may not.
    pub fn start(observer: &Observer, keep: Duration) -> Result<Self, evenkeel_bpf::BpfError> {
        let types = evenkeel_bpf::load::kernel_types()?;
        let cpus = observer.topology().online.iter().last().map_or(1, |last| last + 1);
        let recorder = Recorder::start(&types, cpus, keep.as_secs_f64())?;
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
        now: impl Fn() -> Option<Arc<Observation>> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let path = state_dir.join(SOCKET);
        let context = || format!("cannot listen at {}", path.display());
        std::fs::create_dir_all(state_dir).with_context(context)?;
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

fn hand_out(
    mut stream: UnixStream,
    flight: &Flight,
    now: &impl Fn() -> Option<Arc<Observation>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The socket's mode keeps others out already, where its file system minds it.
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Ok(());
    }
    let mut asked = [0; 8];
    stream.read_exact(&mut asked)?;
    let Some(observation) = now() else { return Ok(()) };
    flight.last(Duration::from_nanos(u64::from_le_bytes(asked)), (*observation).clone()).write(&mut stream)
}

/// Asks the agent of this state directory for the last time.
///
/// # Errors
/// No agent records, or it does not answer.
pub fn ask(state_dir: &Path, last: Duration) -> Result<Recording, Failure> {
    let path = state_dir.join(SOCKET);
    let mut stream = UnixStream::connect(&path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "no agent records here: start `evenkeel serve --record 60s` before something happens, or record what happens \
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
