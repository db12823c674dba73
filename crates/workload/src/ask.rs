//! `ask`: asks a service at instants set beforehand, whatever came of earlier requests (an open loop), and measures each
//! answer from the instant at which its request was due. An event is one answer.
//!
//! Any protocol whose answers are all as long as the first: redis, memcached, HTTP. Their length is learnt before the start.
//! Each thread has a connection of its own. What is not answered a second after the end counts with the time it has waited.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use super::Workload;
use crate::burn::{duration_ns, monotonic_ns, to_timespec};
use crate::duty::{Periods, parse_percent};
use crate::flow::connect;
use crate::load::{Context, Counted, FlowCounts, FlowReport, LoadError};
use crate::wakeup::{LINGER_NS, check_schedule, counted_until, still_done};

/// How long a service may take to come up, or to give its first answer.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// After so long a silence the first answer is whole.
const WHOLE_AFTER: Duration = Duration::from_millis(100);
/// Longest wait without looking whether it is over, nanoseconds.
const NAP_NS: u64 = 100_000_000;

/// Parameters.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Ask {
    /// Where the service listens: the path of a socket, or ADDR:PORT.
    #[arg(long, value_name = "PATH|ADDR:PORT")]
    pub address: String,
    /// What is sent; \r, \n and \\ stand for the characters.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub request: String,
    /// Mean time between two requests of a thread.
    #[serde(rename = "period_s", with = "crate::burn::seconds")]
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = humantime::parse_duration)]
    pub period: Duration,
    /// How far each period is drawn from the given one, percent of it, 0 to 100.
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0, value_parser = parse_percent)]
    pub jitter: f64,
    /// Seed of the periods' random numbers; the same seed gives the same periods.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bytes of an answer.
    #[arg(skip)]
    #[serde(skip)]
    answer: usize,
    /// What its threads measured.
    #[arg(skip)]
    #[serde(skip)]
    counted: Counted,
}

impl Ask {
    /// A request each period, drawn within half of it.
    pub fn new(address: impl Into<String>, request: impl Into<String>, period: Duration) -> Self {
        let (address, request) = (address.into(), request.into());
        Self { address, request, period, jitter: 50.0, seed: 1, answer: 0, counted: Counted::default() }
    }
}

/// `\r`, `\n` and `\\` as the characters they stand for.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let character = match character {
            '\\' => match characters.next() {
                Some('r') => '\r',
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        };
        bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
    bytes
}

/// A connection to a service.
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    fn open(address: &str) -> io::Result<Self> {
        match address.parse::<SocketAddr>() {
            Ok(address) => connect(address, FIRST_WITHIN).map(Self::Tcp),
            Err(_) => UnixStream::connect(address).map(Self::Unix),
        }
    }

    fn blocking(&self, within: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(s) => s.set_nonblocking(within.is_none()).and_then(|()| s.set_read_timeout(within)),
            Self::Tcp(s) => s.set_nonblocking(within.is_none()).and_then(|()| s.set_read_timeout(within)),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }

    /// Sends a request and learns how long an answer is.
    fn first(&mut self, request: &[u8], buffer: &mut [u8]) -> io::Result<usize> {
        self.blocking(Some(FIRST_WITHIN))?;
        self.write_all(request)?;
        let mut length = self.read(buffer)?;
        self.blocking(Some(WHOLE_AFTER))?;
        while length > 0 {
            match self.read(buffer) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_silence(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if length == 0 { Err(ErrorKind::ConnectionReset.into()) } else { Ok(length) }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(buffer),
            Self::Tcp(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(bytes),
            Self::Tcp(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A thread's requests under way.
struct Asking<'a> {
    socket: Socket,
    request: &'a [u8],
    /// Bytes of an answer.
    answer: usize,
    periods: Periods,
    /// When the next request is due.
    due: u64,
    /// Bytes of the request at hand that are sent.
    part: usize,
    /// Whether the request at hand may begin: an event is claimed once, however often the socket is full.
    claimed: bool,
    /// Whether the socket took no more when it was last written to.
    full: bool,
    /// When those were due that are sent and not answered.
    waiting: VecDeque<u64>,
    /// Bytes read of the next answer.
    read: usize,
    counts: FlowCounts,
}

impl Asking<'_> {
    /// Sends what is due, as far as the socket takes it and `claim` lets another begin; `false`: no more is to begin.
    fn send(&mut self, claim: impl FnMut() -> bool) -> io::Result<bool> {
        self.send_before(u64::MAX, claim)
    }

    /// The same of what is due before an instant.
    fn send_before(&mut self, end_ns: u64, mut claim: impl FnMut() -> bool) -> io::Result<bool> {
        self.full = false;
        while self.due <= monotonic_ns() && self.due < end_ns {
            self.claimed = self.claimed || claim();
            if !self.claimed {
                return Ok(false);
            }
            match self.socket.write(&self.request[self.part..]) {
                Ok(sent) => self.part += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_silence(&error) => {
                    self.full = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            if self.part == self.request.len() {
                (self.part, self.claimed) = (0, false);
                self.waiting.push_back(self.due);
                self.next_due();
            }
        }
        Ok(true)
    }

    fn next_due(&mut self) {
        self.due = self.due.saturating_add(self.periods.next().map_or(u64::MAX, |p| p.length_ns.max(1)));
    }

    /// Takes the answers that are there; returns how many.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<u64> {
        let mut taken = 0;
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                Ok(bytes) => self.read += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_silence(&error) => return Ok(taken),
                Err(error) => return Err(error),
            }
            let now = monotonic_ns();
            while self.read >= self.answer
                && let Some(due) = self.waiting.pop_front()
            {
                self.read -= self.answer;
                self.counts.done(now.saturating_sub(due));
                taken += 1;
            }
        }
    }

    /// Waits for an answer, for room where the socket is full, or until an instant.
    fn wait(&self, until_ns: u64) {
        let flags = if self.full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let timeout = to_timespec(until_ns.saturating_sub(monotonic_ns()).min(NAP_NS));
        let fd = self.socket.fd();
        // Interrupted or not: what is there is looked at.
        let _ = poll(&mut [PollFd::new(&fd, flags)], Some(&timeout));
    }
}

impl Ask {
    fn failed(&self) -> impl FnOnce(io::Error) -> LoadError {
        let what = format!("asking the service at {}", self.address);
        |error| LoadError::system(what, error)
    }

    fn ask(&self, context: &mut Context<'_>) -> io::Result<FlowCounts> {
        let request = unescaped(&self.request);
        let (thread, threads) = (context.thread(), context.threads().max(1));
        let socket = Socket::open(&self.address)?;
        socket.blocking(None)?;
        let mut buffer = vec![0; 1 << 16];
        let apart = duration_ns(self.period) / u64::from(threads) * u64::from(thread);
        let mut asking = Asking {
            socket,
            request: &request,
            answer: self.answer,
            periods: Periods::new(self.period, self.jitter, 0.0, (self.seed, thread)),
            due: monotonic_ns() + apart,
            part: 0,
            claimed: false,
            full: false,
            waiting: VecDeque::new(),
            read: 0,
            counts: FlowCounts::default(),
        };
        let mut more = true;
        while !context.over() && (more || !asking.waiting.is_empty()) {
            if more {
                more = asking.send(|| !context.bounded() || context.claim())?;
            }
            let taken = asking.take(&mut buffer)?;
            context.done(taken);
            // What is due already and finds the socket full waits for room: no instant is waited for then, and a loop without
            // a wait would take CPU time from the service.
            asking.wait(if more && !asking.full { asking.due } else { u64::MAX });
        }
        // What was due in time is still sent and waited for, unless it was stopped.
        let end = context.deadline_ns().unwrap_or(0);
        while still_done(context, 0) && (more && asking.due < end || !asking.waiting.is_empty()) {
            more = more && asking.due < end && asking.send_before(end, || !context.bounded())?;
            asking.wait(end.saturating_add(LINGER_NS));
            let taken = asking.take(&mut buffer)?;
            context.done(taken);
        }
        let end = monotonic_ns();
        let now = monotonic_ns();
        for due in std::mem::take(&mut asking.waiting) {
            asking.counts.unanswered(now.saturating_sub(due));
        }
        while more && asking.due < counted_until(context, end) {
            asking.counts.unanswered(now - asking.due);
            asking.next_due();
        }
        Ok(asking.counts)
    }
}

impl Workload for Ask {
    fn check(&self) -> Result<(), String> {
        if self.request.is_empty() {
            return Err("--request is empty: give what the service answers to, such as 'PING\\r\\n'".into());
        }
        check_schedule(self.period, self.jitter)
    }

    fn prepare(&mut self, _threads: u32) -> Result<(), LoadError> {
        let first = |mut socket: Socket| socket.first(&unescaped(&self.request), &mut vec![0; 1 << 16]);
        self.answer = Socket::open(&self.address).and_then(first).map_err(self.failed())?;
        Ok(())
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let counts = self.ask(context).map_err(self.failed())?;
        self.counted.add(context.thread(), counts);
        Ok(())
    }

    fn flows(&self) -> Option<FlowReport> {
        Some(self.counted.report())
    }

    fn arguments(&self) -> Vec<String> {
        vec![
            "ask".into(),
            format!("--address={}", self.address),
            format!("--request={}", self.request),
            format!("--period={}", humantime::format_duration(self.period)),
            format!("--jitter={}", self.jitter),
            format!("--seed={}", self.seed),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::load::{LoadReport, LoadSpec, run};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::AtomicBool;

    /// Asks with a request, which is sent as these bytes, a service that answers each with six: the first so many without delay, the
    /// others never. It reads nothing in the first part of its second connection.
    fn asked_of(
        (request, sent, period_ms): (&str, &[u8], u64),
        (answers, silence): (usize, Duration),
        (seconds, events): (f64, Option<u64>),
    ) -> LoadReport {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut read = vec![0; sent.len()];
                let mut seen = 0;
                // The first connection tells how long an answer is.
                for silence in [Duration::ZERO, silence] {
                    let mut flow = listener.accept().unwrap().0;
                    std::thread::sleep(silence);
                    while flow.read_exact(&mut read).is_ok() {
                        assert_eq!(read, sent);
                        seen += 1;
                        if seen <= answers && flow.write_all(b"answer").is_err() {
                            return;
                        }
                    }
                }
            });
            let ask = Ask::new(path.to_str().unwrap(), request, Duration::from_millis(period_ms));
            let mut spec = LoadSpec::new(Kind::Ask(Ask { jitter: 0.0, ..ask }))
                .lasting(Duration::from_secs_f64(seconds));
            spec.common.events = events;
            run(&spec, &AtomicBool::new(false)).unwrap()
        })
    }

    /// Requests of four bytes, of which the first so many are answered.
    fn asked(answers: usize, seconds: f64, events: Option<u64>) -> LoadReport {
        asked_of(("ab\\r\\n", b"ab\r\n", 2), (answers, Duration::ZERO), (seconds, events))
    }

    #[test]
    fn every_request_that_was_due_is_answered_and_counted() {
        let report = asked(usize::MAX, 0.4, None);
        let flows = report.flows.unwrap();
        assert_eq!((flows.flows[0].transactions, flows.unanswered()), (report.events, 0));
        assert!((1..=200).contains(&report.events), "{}", report.events);
        // How long an answer is was learnt before.
        assert!(report.events > 150, "{}", report.events);
        assert_eq!(asked(usize::MAX, 60.0, Some(7)).events, 7);
    }

    /// A request of 2,000 bytes each millisecond, and nobody reads for half a second: far more than a socket holds is due meanwhile.
    fn asked_slow_to_read(seconds: f64, events: Option<u64>) -> LoadReport {
        let request = "a".repeat(2000);
        asked_of(
            (&request, request.as_bytes(), 1),
            (usize::MAX, Duration::from_millis(500)),
            (seconds, events),
        )
    }

    #[test]
    fn a_full_socket_costs_neither_events_nor_cpu_time() {
        assert_eq!(asked_slow_to_read(60.0, Some(300)).events, 300);
        let report = asked_slow_to_read(0.5, None);
        assert!(report.cpu_s < 0.2, "{} s of CPU time to wait for room", report.cpu_s);
        assert_eq!(report.flows.unwrap().unanswered(), 0);
    }

    /// A closed loop would wait with the one unanswered request and show the good latencies alone.
    #[test]
    fn a_service_that_falls_silent_is_seen() {
        let flows = asked(11, 0.4, None).flows.unwrap();
        // The first answer tells how long one is.
        assert_eq!(flows.flows[0].transactions, 10);
        assert!(flows.unanswered() > 0, "{}", flows.unanswered());
        // They were due long before the end, and the end was waited for.
        assert!(flows.latency.unwrap().p99_usec >= 1e6, "{:?}", flows.latency);
    }

    #[test]
    fn a_service_that_is_not_there_is_named() {
        let spec = LoadSpec::new(Kind::Ask(Ask::new("/no/such/socket", "x", Duration::from_millis(1))));
        let error = run(&spec, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("/no/such/socket") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn escapes_are_the_characters_they_stand_for() {
        assert_eq!(unescaped("GET key\\r\\n"), b"GET key\r\n");
        assert_eq!(unescaped("a\\\\nb\\x\\"), b"a\\nbx\\");
    }
}
