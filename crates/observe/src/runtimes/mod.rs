//! Container runtimes: who is asked, and what they said.
//!
//! A thread of its own asks, so that a slow or dead daemon never delays a sample: at once at the start, when a
//! container appears that no one named (at most once a second), and every half minute for changed labels.

pub mod connect;
mod cri;
mod docker;
pub mod engine;
pub mod facts;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_linux::Root;

pub use facts::{Address, ContainerFacts, PodFacts, RuntimeFacts};

/// A runtime that has not answered by then is taken as not answering, and its containers are left without names.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Least time between two rounds.
const LEAST: Duration = Duration::from_secs(1);
/// Time between two rounds when nothing unknown shows up.
const EVERY: Duration = Duration::from_secs(30);
/// File of a captured tree with what the runtimes said.
pub(crate) const FACTS_FILE: &str = "evenkeel/runtimes.json";

/// Sockets of container runtimes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Sockets that speak the Docker Engine API (Docker, Podman), with the runtime's name.
    pub docker: Vec<(String, PathBuf)>,
    /// Sockets that speak CRI v1.
    pub cri: Vec<PathBuf>,
}

impl Endpoints {
    pub fn none() -> Self {
        Self::default()
    }

    /// Where the runtimes listen by default, and where `DOCKER_HOST` and `CONTAINER_RUNTIME_ENDPOINT` point when
    /// they name a local socket.
    pub fn well_known() -> Self {
        let mut endpoints = Self {
            docker: vec![
                ("docker".into(), "/run/docker.sock".into()),
                ("podman".into(), "/run/podman/podman.sock".into()),
            ],
            cri: connect::CRI_SOCKETS.iter().chain(&["/run/cri-dockerd.sock"]).map(PathBuf::from).collect(),
        };
        let socket = |name: &str| {
            let value = std::env::var(name).ok()?;
            value.strip_prefix("unix://").map(PathBuf::from)
        };
        if let Some(path) =
            socket("DOCKER_HOST").filter(|path| endpoints.docker.iter().all(|(_, p)| p != path))
        {
            endpoints.docker.push(("docker".into(), path));
        }
        if let Some(path) = socket("CONTAINER_RUNTIME_ENDPOINT").filter(|path| !endpoints.cri.contains(path))
        {
            endpoints.cri.push(path);
        }
        endpoints
    }
}

/// Asks every runtime whose socket exists, once, in the calling thread; at most about two seconds. Those that do not
/// answer are told on stderr at level info and left out: `None` when none answered.
pub fn ask_once(endpoints: &Endpoints) -> Option<RuntimeFacts> {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    executor.block_on(ask(endpoints, None, &mut Answers::new()))
}

/// As [`ask_once`], and where the pods with this annotation and value are reached.
pub fn ask_located(endpoints: &Endpoints, annotation: (&str, &str)) -> Option<RuntimeFacts> {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    executor.block_on(ask(endpoints, Some(annotation), &mut Answers::new()))
}

/// What a Docker Engine's list of containers says, as it comes in the body of its answer; `None` where it is none.
pub fn decode_docker(body: &[u8]) -> Option<RuntimeFacts> {
    docker::decode(body)
}

/// What a CRI runtime's lists of sandboxes and of containers say, as they come over the wire; `None` where they are none.
pub fn decode_cri(sandboxes: &[u8], containers: &[u8]) -> Option<RuntimeFacts> {
    cri::decode(sandboxes, containers)
}

/// What was answered last, by socket.
type Answers = HashMap<PathBuf, RuntimeFacts>;

/// Asks those whose socket exists. One that does not answer, as a daemon that restarts, still has its containers.
async fn ask(
    endpoints: &Endpoints,
    located: Option<(&str, &str)>,
    last: &mut Answers,
) -> Option<RuntimeFacts> {
    let mut take = |socket: &PathBuf, answer: Result<RuntimeFacts, String>| match answer {
        Ok(facts) => drop(last.insert(socket.clone(), facts)),
        Err(error) => tracing::info!("{}: {error}", socket.display()),
    };
    // One after the other, and nothing else runs here: that an engine is waited for without async holds up no one.
    for (runtime, socket) in endpoints.docker.iter().filter(|(_, socket)| socket.exists()) {
        take(socket, docker::ask(runtime, socket, TIMEOUT));
    }
    for socket in endpoints.cri.iter().filter(|socket| socket.exists()) {
        let answer = tokio::time::timeout(TIMEOUT, cri::ask(socket, TIMEOUT, located)).await;
        take(socket, answer.unwrap_or_else(|_| Err(format!("no answer in {TIMEOUT:?}"))));
    }
    let sockets = endpoints.docker.iter().map(|(_, socket)| socket).chain(&endpoints.cri);
    sockets.filter_map(|socket| last.get(socket).cloned()).reduce(|mut all, facts| {
        all.merge(facts);
        all
    })
}

#[derive(Debug, Default)]
struct Shared {
    facts: Mutex<(Arc<RuntimeFacts>, u64)>,
    answered: Condvar,
}

/// The runtimes asked in the background; dropping it ends the asking.
#[derive(Debug)]
pub(crate) struct Runtimes {
    shared: Arc<Shared>,
    /// `None` when nobody is asked: a captured tree, or no endpoints.
    wake: Option<Sender<()>>,
}

impl Runtimes {
    pub(crate) fn start(root: &Root, endpoints: &Endpoints) -> Self {
        let shared = Arc::<Shared>::default();
        if !root.is_live() {
            let text = root.read_optional(FACTS_FILE).ok().flatten();
            let facts = text.and_then(|text| match serde_json::from_str(&text) {
                Ok(facts) => Some(facts),
                Err(error) => {
                    tracing::warn!("{}: {error}", root.path(FACTS_FILE).display());
                    None
                }
            });
            shared.publish(facts);
            return Self { shared, wake: None };
        }
        if *endpoints == Endpoints::none() {
            return Self { shared, wake: None };
        }
        let (wake, woken) = channel();
        let (for_thread, endpoints) = (shared.clone(), endpoints.clone());
        let thread = std::thread::Builder::new().name("runtimes".into()).stack_size(512 << 10);
        let started = thread.spawn(move || keep_asking(&endpoints, &for_thread, &woken));
        Self { shared, wake: started.ok().map(|_| wake) }
    }

    pub(crate) fn facts(&self) -> Arc<RuntimeFacts> {
        self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Says that a container showed up that nobody has named.
    pub(crate) fn want(&self, unknown: bool) {
        if let Some(wake) = self.wake.as_ref().filter(|_| unknown) {
            let _ = wake.send(());
        }
    }

    /// Asks once more and waits for the answers; whether they came. Where the first round has not ended, nothing is waited
    /// for: who did not answer then does not answer now.
    pub(crate) fn ask_again(&self, at_most: Duration) -> bool {
        let known = self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner).1;
        self.want(known > 0);
        known > 0 && self.wait_beyond(known, at_most)
    }

    /// Waits for the first round to end.
    pub(crate) fn wait(&self, at_most: Duration) {
        self.wait_beyond(0, at_most);
    }

    /// Waits until more than so many rounds have ended; whether they have. At once where nobody is asked.
    fn wait_beyond(&self, known: u64, at_most: Duration) -> bool {
        if self.wake.is_none() {
            return false;
        }
        let facts = self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.shared.answered.wait_timeout_while(facts, at_most, |(_, rounds)| *rounds == known);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Shared {
    /// A round has ended; `None` while no one has ever answered.
    fn publish(&self, facts: Option<RuntimeFacts>) {
        let mut shared = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = facts {
            shared.0 = Arc::new(facts);
        }
        shared.1 += 1;
        self.answered.notify_all();
    }
}

fn keep_asking(endpoints: &Endpoints, shared: &Shared, woken: &Receiver<()>) {
    let Ok(executor) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let mut last = Answers::new();
    loop {
        let start = Instant::now();
        shared.publish(executor.block_on(ask(endpoints, None, &mut last)));
        match woken.recv_timeout(EVERY) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Not more often than this, whatever shows up; requests meanwhile are one request.
        std::thread::sleep(LEAST.saturating_sub(start.elapsed()));
        loop {
            match woken.try_recv() {
                Ok(()) => {}
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::engine::tests::played;
    use super::*;

    #[test]
    fn a_daemon_that_restarts_still_has_its_containers_whoever_else_answers() {
        const VERSION: (&str, &str) = ("GET /version ", "HTTP/1.1 200 OK\r\n\r\n{\"ApiVersion\":\"1.41\"}");
        let (_one, docker) =
            played(&[VERSION, ("GET /v1.41/", "HTTP/1.1 200 OK\r\n\r\n[{\"Id\":\"1\"},{\"Id\":\"2\"}]")]);
        let (_other, podman) = played(&[VERSION, ("GET /v1.41/", "HTTP/1.1 200 OK\r\n\r\n[{\"Id\":\"3\"}]")]);
        let named =
            [("docker", &docker), ("podman", &podman)].map(|(name, at)| (name.to_owned(), at.clone()));
        let endpoints = Endpoints { docker: named.into(), cri: Vec::new() };
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut last = Answers::new();
        let mut count = || executor.block_on(ask(&endpoints, None, &mut last)).unwrap().containers.len();
        assert_eq!(count(), 3);
        std::fs::remove_file(&docker).unwrap();
        assert_eq!(count(), 3);
    }
}
