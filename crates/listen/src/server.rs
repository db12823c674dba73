//! The server behind `--listen`: hyper, with bounds on everything a client can hold. Whoever asks, however many, however
//! slowly, costs a bounded amount of memory and descriptors, and the loop nothing.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use evenkeel_linux::reserve::Reserve;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::access::{Entrance, who_are_you};
use super::tls::Tls;

/// The page that answers without a token: whether the host is watched.
pub(super) const HEALTH: &str = "/healthz";

/// Connections at a time. One more, and the oldest of the address with the most is closed: a request is answered within
/// milliseconds, so the oldest is one that does nothing, and a flood from one host closes its own, not the kubelet's probes.
const CONNECTIONS: usize = 32;
/// Time to send a request's head, and before that to agree on how to encrypt.
const HEAD: Duration = Duration::from_secs(5);
/// Time of a connection from its first byte to its last, unless it is a stream.
const WHOLE: Duration = Duration::from_secs(15);
/// Bytes and lines of a request's head.
const HEAD_BYTES: usize = 16 << 10;
const HEAD_LINES: usize = 64;
/// Bytes of an answer that wait in the socket; the kernel takes twice as much, for what it has to do with them.
const UNSENT: usize = 256 << 10;
/// Pause when the system has no descriptor left for a connection.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Serves until the process ends.
///
/// # Errors
/// The listener cannot be used; clients cannot cause one.
pub(super) async fn serve(entrance: Entrance, router: Router) -> io::Result<()> {
    let Entrance { listener, token, tls } = entrance;
    let names = Names::of(listener.local_addr()?, tls.clone());
    if let Some(tls) = tls.clone() {
        tokio::spawn(tls.follow());
    }
    tokio::spawn(token.clone().follow());
    let asked = token.clone();
    let router = router.layer(from_fn(move |request: Request, next: Next| {
        let known = names.know(request.headers());
        let admitted = request.uri().path() == HEALTH || token.admits(request.headers());
        async move {
            match (known, admitted) {
                (false, _) => stranger(),
                (true, false) => who_are_you(),
                (true, true) => next.run(request).await,
            }
        }
    }));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut open: VecDeque<(AbortHandle, Arc<Lease>, IpAddr)> = VecDeque::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            // Everything is being restored: what the reserve gives up is not for clients that waited.
            Ok(_) if Reserve::is_given_up() => continue,
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) if is_exhausted(&error) => {
                // Its own connections are few; still, they are what can be given up.
                open.drain(..).for_each(|(connection, ..)| connection.abort());
                tokio::time::sleep(EXHAUSTED).await;
                continue;
            }
            // The client has gone already, and the like.
            Err(_) => continue,
        };
        open.retain(|(connection, ..)| !connection.is_finished());
        // Streams are bounded where they begin.
        let others: Vec<usize> = (0..open.len()).filter(|at| !open[*at].1.is_stream()).collect();
        if others.len() >= CONNECTIONS
            && let Some((oldest, ..)) = surplus(&others, |at| open[at].2).and_then(|at| open.remove(at))
        {
            oldest.abort();
        }
        // What a client does not take waits here, and is not much.
        let _ = set_socket_send_buffer_size(&stream, UNSENT);
        let (router, tls, lease) = (router.clone(), tls.clone(), Arc::<Lease>::default());
        let (leased, changes) = (lease.clone(), asked.changes());
        let task = tokio::spawn(async move {
            // What a client does wrong is its own affair.
            tokio::select! {
                () = talk(stream, tls, router, &leased) => {}
                () = leased.expired() => {}
                () = leased.outdated(changes) => {}
            }
        });
        open.push_back((task.abort_handle(), lease, peer));
        // Else a flood would be accepted by the hundred before one that was closed gives its descriptor up.
        tokio::task::yield_now().await;
    }
}

/// Of connections, oldest first, the oldest one of whoever has the most.
fn surplus(open: &[usize], whose: impl Fn(usize) -> IpAddr) -> Option<usize> {
    let count = |peer: IpAddr| open.iter().filter(|at| whose(**at) == peer).count();
    // Of equals the last one is taken: the oldest, looked at from behind.
    open.iter().rev().copied().max_by_key(|at| count(whose(*at)))
}

/// How long a connection may last; a part of each request.
#[derive(Debug, Default)]
pub(super) struct Lease {
    is_stream: AtomicBool,
    over: Notify,
}

impl Lease {
    /// From now on the answer may have no end.
    pub fn stream(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    /// The connection is to be closed.
    pub fn end(&self) {
        self.over.notify_one();
    }

    fn is_stream(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed)
    }

    /// Waits until another token is asked for while this is a stream, which has no end: who listens must send that one.
    async fn outdated(&self, changes: Option<watch::Receiver<Vec<u8>>>) {
        if let Some(mut changes) = changes {
            while changes.changed().await.is_ok() {
                if self.is_stream() {
                    return;
                }
            }
        }
        std::future::pending().await
    }

    /// Waits until the connection is to be closed.
    async fn expired(&self) {
        if tokio::time::timeout(WHOLE, self.over.notified()).await.is_err() && self.is_stream() {
            self.over.notified().await;
        }
    }
}

/// One connection, from its first byte.
async fn talk(stream: TcpStream, tls: Option<Tls>, router: Router, lease: &Arc<Lease>) {
    match tls {
        None => answer(stream, router, lease).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HEAD, tls.accept(stream)).await {
                answer(stream, router, lease).await;
            }
        }
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, lease: &Arc<Lease>) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(lease.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn stranger() -> Response {
    let text =
        "evenkeel: ask by address, by localhost, by this host's name, or by one that the certificate names\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

/// Names by which this server may be asked. A web page that has its own name point at this address (DNS rebinding) asks by
/// that name, and gets nothing.
#[derive(Debug, Clone)]
pub struct Names {
    /// This host's own; none where only this host can ask.
    own: Option<String>,
    /// Whose names count as well.
    tls: Option<Tls>,
}

impl Names {
    fn of(address: SocketAddr, tls: Option<Tls>) -> Self {
        let own = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        Self { own: (!address.ip().is_loopback()).then_some(own), tls }
    }

    /// Of a host of this name; of none where only this host can ask.
    pub fn named(own: Option<String>) -> Self {
        Self { own, tls: None }
    }

    fn know(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        match (hosts.next(), hosts.next()) {
            // HTTP/1.0; a browser always says it.
            (None, _) => true,
            (Some(host), None) => host.to_str().is_ok_and(|host| self.knows(host)),
            _ => false,
        }
    }

    /// Whether a Host header's value is one of them.
    pub fn knows(&self, host: &str) -> bool {
        let name = host_name(host).to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || (!name.is_empty() && self.own.as_ref() == Some(&name))
            || self.tls.as_ref().is_some_and(|tls| tls.covers(&name))
    }
}

/// Without the port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_answered() {
        let names = |own: Option<&str>| Names::named(own.map(str::to_owned));
        for host in
            ["127.0.0.1", "127.0.0.1:9101", "[::1]:9101", "10.1.2.3:80", "localhost", "LOCALHOST:9101"]
        {
            assert!(names(None).knows(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9101", "localhost.evil.example", "127.0.0.1.evil.example", ""]
        {
            assert!(!names(None).knows(host), "{host}");
            assert!(!names(Some("node1")).knows(host), "{host}");
        }
        assert!(!names(None).knows("node1"));
        assert!(names(Some("node1")).knows("Node1:9101"));
        assert!(!names(Some("node1")).knows("node1.evil.example"), "anybody may have a host of that name");
        assert!(!names(Some("")).knows("") && !names(Some("")).knows(".evil.example"));
    }

    #[test]
    fn a_flood_of_one_host_closes_its_own_connections() {
        let peers = [1, 2, 2, 3, 2, 3, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let chosen = |open: &[usize]| surplus(open, |at| peers[at]);
        assert_eq!(chosen(&[0, 1, 2, 3, 4]), Some(1), "not the oldest of all");
        assert_eq!(chosen(&[0, 1, 2, 3, 5]), Some(1), "of equals the oldest");
        assert_eq!((chosen(&[0, 3, 5, 6]), chosen(&[0]), chosen(&[])), (Some(3), Some(0), None));
    }

    #[test]
    fn what_is_no_port_belongs_to_the_name() {
        assert_eq!(host_name("a:80"), "a");
        assert_eq!(host_name("[::1]"), "[::1]");
        assert_eq!(host_name("[::1]:80"), "[::1]");
        assert_eq!(host_name("a"), "a");
    }
}
