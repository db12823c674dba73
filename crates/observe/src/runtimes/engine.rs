//! A Docker Engine, or Podman that speaks its API, behind a socket: one question a connection.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_fetch::http;
pub use evenkeel_fetch::http::encoded;
use serde::Deserialize;

/// An engine that has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    socket: PathBuf,
    /// Of its API, the newest that it speaks.
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    api_version: String,
}

/// What it says when it does not do what it is asked.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

impl Engine {
    /// Asks the engine behind a socket for its version.
    pub fn connect(socket: &Path, within: Duration) -> Result<Self, String> {
        let body = ask(socket, "GET", "/version", None, within)?;
        // It goes into the path of each question.
        let is_version =
            |text: &String| text.chars().all(|c| c.is_ascii_digit() || c == '.') && text.len() < 16;
        let version = serde_json::from_slice(&body).ok().map(|Version { api_version }| api_version);
        let version = version
            .filter(is_version)
            .ok_or_else(|| format!("{}: says no version of Docker's API", socket.display()))?;
        Ok(Self { socket: socket.to_owned(), version })
    }

    /// Asks for a path of the API, with a body of this kind where there is one; the body of the answer.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &[u8])>,
        within: Duration,
    ) -> Result<Vec<u8>, String> {
        ask(&self.socket, method, &format!("/v{}{path}", self.version), body, within)
    }
}

fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<(&str, &[u8])>,
    within: Duration,
) -> Result<Vec<u8>, String> {
    let answer = http::ask(socket, method, path, body, within)
        .map_err(|error| format!("{}: {error}", socket.display()))?;
    if (200..400).contains(&answer.status) {
        return Ok(answer.body);
    }
    let message = serde_json::from_slice(&answer.body).ok().map(|Refusal { message }| message);
    Err(message.unwrap_or_else(|| format!("answers with status {}", answer.status)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// An engine that answers questions so, by their first lines; its socket is in the directory.
    pub fn played(answers: &'static [(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut asked = [0; 4096];
                let n = stream.read(&mut asked).unwrap_or(0);
                let asked = String::from_utf8_lossy(&asked[..n]).into_owned();
                let answer =
                    answers.iter().find(|(start, _)| asked.starts_with(start)).map(|(_, answer)| answer);
                let _ = stream.write_all(answer.unwrap_or(&"HTTP/1.1 418 No\r\n\r\n").as_bytes());
            }
        });
        (dir, socket)
    }

    #[test]
    fn an_engine_is_asked_in_its_own_version() {
        let (_dir, socket) = played(&[
            ("GET /version ", "HTTP/1.1 200 OK\r\n\r\n{\"ApiVersion\":\"1.41\"}"),
            ("GET /v1.41/containers/json ", "HTTP/1.1 200 OK\r\n\r\n[]"),
            (
                "DELETE /v1.41/containers/x ",
                "HTTP/1.1 404 Not Found\r\n\r\n{\"message\":\"no such container\"}",
            ),
        ]);
        let engine = Engine::connect(&socket, SOON).unwrap();
        assert_eq!(engine.ask("GET", "/containers/json", None, SOON).unwrap(), b"[]");
        assert_eq!(engine.ask("DELETE", "/containers/x", None, SOON).unwrap_err(), "no such container");
        assert_eq!(engine.ask("GET", "/y", None, SOON).unwrap_err(), "answers with status 418");
    }

    #[test]
    fn a_version_that_is_none_is_not_asked_for() {
        for version in ["1.41/../..", "1 HTTP/1.0", "11111111111111111"] {
            let answer = format!("HTTP/1.1 200 OK\r\n\r\n{{\"ApiVersion\":\"{version}\"}}");
            let (_dir, socket) = played(vec![("GET /version ", &*answer.leak())].leak());
            let error = Engine::connect(&socket, SOON).unwrap_err();
            assert!(error.contains("says no version"), "{error}");
        }
    }

    #[test]
    fn why_nobody_answers_is_said_by_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let error = Engine::connect(&dir.path().join("none.sock"), SOON).unwrap_err();
        assert!(error.contains("none.sock: No such file"), "{error}");
    }

    #[test]
    fn an_engine_that_takes_no_connections_is_left_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // The first waits in the queue for its answer, the second for the queue.
        for _ in 0..2 {
            let error = Engine::connect(&socket, Duration::from_millis(200)).unwrap_err();
            assert!(error.contains("no answer in time"), "{error}");
        }
    }

    #[test]
    fn an_engine_that_answers_without_end_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let taken = Arc::<AtomicUsize>::default();
        let counted = taken.clone();
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut part = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[".to_owned();
            while let Ok(n) = stream.write(part.as_bytes()) {
                counted.fetch_add(n, Relaxed);
                part = " ".repeat(1 << 16);
            }
        });
        let error = Engine::connect(&socket, Duration::from_secs(60)).unwrap_err();
        assert!(error.contains("more than 16777216 bytes"), "{error}");
        // What is on its way in the socket comes on top.
        assert!(taken.load(Relaxed) < (16 << 20) + (4 << 20), "{taken:?}");
    }
}
