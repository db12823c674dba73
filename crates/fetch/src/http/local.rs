//! A server of this host, behind a Unix socket.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::wire::{Bounded, in_time};
use super::{Answer, MOST, taken_apart, whole};

/// Asks for a path, with a body of this kind where there is one. The whole answer has so long, and 16 MiB.
///
/// # Errors
/// No one answers at the socket in time, the answer is too large, or it is no HTTP.
pub fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<(&str, &[u8])>,
    within: Duration,
) -> io::Result<Answer> {
    let until = Instant::now() + within;
    let mut stream = Bounded::new(connect(socket, within).map_err(in_time)?, until);
    // HTTP/1.0: the answer comes in one piece, and ends where the connection does.
    let mut asked =
        format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: evenkeel\r\n").into_bytes();
    if let Some((kind, body)) = body {
        asked.extend(format!("Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes());
        asked.extend(body);
    } else {
        asked.extend(b"\r\n");
    }
    stream.write_all(&asked)?;
    taken_apart(&whole(&mut stream, MOST)?)
}

/// Connects in time: a server that takes no connections any more lets them wait once its queue is full.
fn connect(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(within))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What was asked, and what came of it, of a server that answers so.
    fn asked(answer: &'static str, body: Option<(&str, &[u8])>) -> (String, io::Result<Answer>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut said = [0; 4096];
            let n = stream.read(&mut said).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&said[..n]).into_owned()
        });
        let answer = ask(&socket, "POST", "/v1/x?y=z", body, Duration::from_secs(20));
        (server.join().unwrap(), answer)
    }

    #[test]
    fn a_server_behind_a_socket_is_asked() {
        let (said, answer) =
            asked("HTTP/1.0 201 Created\r\nX: y\r\n\r\n{}", Some(("application/json", b"[1]")));
        assert!(said.starts_with("POST /v1/x?y=z HTTP/1.0\r\n"), "{said}");
        assert!(said.contains("Content-Length: 3\r\n") && said.ends_with("\r\n\r\n[1]"), "{said}");
        let answer = answer.unwrap();
        assert_eq!((answer.status, &*answer.body), (201, &b"{}"[..]));
        let (said, answer) = asked("SSH-2.0\r\n", None);
        assert!(said.ends_with("\r\n\r\n") && !said.contains("Content"), "{said}");
        assert_eq!(answer.unwrap_err().to_string(), "the answer is no HTTP");
    }
}
