//! `/api/events`: what the dashboard shows, told once an interval to whoever listens (server-sent events).
//!
//! A stream is not bound in time but in what it may hold: one event here, one where it is written, and what the socket takes. Who
//! takes none for [`PATIENCE`] is dropped. Events that were not taken in time are not made up for: the next one has it all.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::board::Board;
use super::server::Lease;
use crate::answer::{number, page};
use crate::documents;

/// Streams at a time. Who comes when there are as many asks again and again instead.
const STREAMS: usize = 16;
/// How long somebody may take nothing.
const PATIENCE: Duration = Duration::from_secs(15);
/// Shortest time between two events: a page drawn more often shows no more.
const PAUSE: Duration = Duration::from_millis(950);
/// After so long without news a line is sent that says nothing, so that a client which has gone is noticed.
const SILENCE: Duration = Duration::from_secs(15);

/// Who listens, and what they are all told.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    room: Arc<Semaphore>,
    news: watch::Receiver<()>,
    /// The part that is the same for all, and of which look it is.
    drawn: Arc<Mutex<(u64, Arc<str>)>>,
    patience: Duration,
}

/// The page, or the owner, or the task that is looked at.
#[derive(Debug, Clone, Copy)]
enum Detail {
    None,
    Owner(u32),
    Task(u32),
}

impl Streams {
    /// Tells whenever there are news.
    pub fn new(news: watch::Receiver<()>) -> Self {
        let room = Arc::new(Semaphore::new(STREAMS));
        Self { room, news, drawn: Arc::new(Mutex::new((0, "".into()))), patience: PATIENCE }
    }

    /// The answer to somebody who wants to listen: `since`, ms, is what he knows of the timeline; `owner` or `task` is what he looks
    /// at.
    pub fn answer(&self, board: impl Fn() -> Arc<Board> + Send + 'static, request: &Request) -> Response {
        let query = request.uri().query().unwrap_or_default();
        let owner = number(query, "owner").map(Detail::Owner);
        let detail = owner.or(number(query, "task").map(Detail::Task)).unwrap_or(Detail::None);
        let mut since = last_event(request.headers()).or(number(query, "since")).unwrap_or(0);
        let streams = self.clone();
        let draw = move || {
            let board = board();
            let seen = board.observation.as_ref()?.wall_ns / 1_000_000;
            let event = streams.event(&board, (seen, since), detail);
            since = seen;
            Some(event)
        };
        self.begin(request, draw)
    }

    fn begin(&self, request: &Request, draw: impl FnMut() -> Option<String> + Send + 'static) -> Response {
        let room = self.room.clone().try_acquire_owned();
        let (Ok(room), Some(lease)) = (room, request.extensions().get::<Arc<Lease>>()) else {
            return (StatusCode::SERVICE_UNAVAILABLE, "evenkeel: too many listen already\n").into_response();
        };
        lease.stream();
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(tell(sender, self.news.clone(), draw, self.patience, (lease.clone(), room)));
        page("text/event-stream", Body::new(Events(receiver)))
    }

    fn event(&self, board: &Board, (seen, since): (u64, u64), detail: Detail) -> String {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.0 != seen || drawn.1.is_empty() {
            *drawn = (seen, documents::live(board).to_string().into());
        }
        let live = Arc::clone(&drawn.1);
        drop(drawn);
        let timeline = documents::timeline(board, since);
        let detail = match detail {
            Detail::None => serde_json::Value::Null,
            Detail::Owner(number) => documents::owner(board, number),
            Detail::Task(tid) => documents::task(board, tid),
        };
        // JSON has no line ends, so each is one line of data.
        format!("id: {seen}\ndata: {{\"live\":{live},\"timeline\":{timeline},\"detail\":{detail}}}\n\n")
    }
}

/// What a browser says that lost its stream and comes again.
fn last_event(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.parse().ok()
}

/// Tells until nobody listens, or he does not take it.
async fn tell(
    sender: mpsc::Sender<String>,
    mut news: watch::Receiver<()>,
    mut draw: impl FnMut() -> Option<String>,
    patience: Duration,
    (lease, _room): (Arc<Lease>, OwnedSemaphorePermit),
) {
    news.mark_changed();
    let mut next = Instant::now();
    loop {
        let changed = tokio::select! {
            () = sender.closed() => return,
            changed = timeout(SILENCE, news.changed()) => changed,
        };
        let event = match changed {
            Ok(Err(_)) => return,
            Ok(Ok(())) => {
                sleep_until(next).await;
                next = Instant::now() + PAUSE;
                news.mark_unchanged();
                draw()
            }
            Err(_) => Some(":\n\n".to_owned()),
        };
        let Some(event) = event else { continue };
        if !matches!(timeout(patience, sender.send(event)).await, Ok(Ok(()))) {
            // Not the body's end: what is written and not taken would wait on.
            return lease.end();
        }
    }
}

/// The body of an answer: one event after the other.
struct Events(mpsc::Receiver<String>);

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event.into()))))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use axum::Router;
    use axum::routing::get;
    use evenkeel_linux::testing::until;

    use super::super::access::Entrance;
    use super::super::server::serve;
    use super::*;

    /// A server whose events are this large and come as fast as they are taken; its address.
    fn server(bytes: usize, patience: Duration) -> (std::net::SocketAddr, Streams) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, news) = watch::channel(());
        let streams = Streams { patience, ..Streams::new(news) };
        let of_route = streams.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stream = get(move |request: Request| async move {
                let event = format!("data: {}\n\n", "x".repeat(bytes));
                of_route.begin(&request, move || Some(event.clone()))
            });
            runtime.block_on(async move {
                tokio::spawn(async move {
                    while sender.send(()).is_ok() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
                let entrance = Entrance { listener, token: Default::default(), tls: None };
                serve(entrance, Router::new().route("/events", stream)).await
            })
        });
        (address, streams)
    }

    fn listen(address: std::net::SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    }

    #[test]
    fn who_takes_nothing_is_dropped_and_held_little_for() {
        const EVENT: usize = 8 << 20;
        let (address, streams) = server(EVENT, Duration::from_millis(300));
        let mut slow = listen(address);
        until("listened to", || streams.room.available_permits() == STREAMS - 1);
        until("dropped", || streams.room.available_permits() == STREAMS);
        let mut taken = Vec::new();
        let _ = slow.read_to_end(&mut taken);
        assert!(taken.len() < EVENT, "{} bytes of unsent events were kept", taken.len());
    }

    #[test]
    fn there_is_room_for_so_many_and_who_goes_makes_room() {
        let (address, streams) = server(10, PATIENCE);
        let mut all: Vec<TcpStream> = (0..STREAMS).map(|_| listen(address)).collect();
        until("full", || streams.room.available_permits() == 0);
        let mut one_more = String::new();
        listen(address).read_to_string(&mut one_more).unwrap();
        assert!(one_more.starts_with("HTTP/1.1 503"), "{one_more}");
        // Connections that do nothing close each other, not the streams.
        let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let first = all.remove(0);
        let mut text = [0; 4096];
        let mut events = 0;
        while events < 3 {
            let n = (&first).read(&mut text).unwrap();
            assert!(n > 0, "the stream has ended");
            events += String::from_utf8_lossy(&text[..n]).matches("data: x").count();
        }
        drop(idle);
        drop(first);
        until("room", || streams.room.available_permits() == 1);
    }
}
