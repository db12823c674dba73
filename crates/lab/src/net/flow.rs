//! Request and response of one byte on TCP flows, each transaction timed.
//!
//! A thread with one flow blocks in `read`, as netperf's TCP_RR does: two system calls a transaction and end. A
//! thread with several waits on all of them with epoll. The clock is read once a transaction, when the answer is
//! there: the request leaves at once, so what lies between two readings is the time of one transaction, the reading
//! itself (some 30 ns) and the caller's bookkeeping included.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::burn::monotonic_ns;

/// Longest wait without looking whether it is over.
const WAIT: Duration = Duration::from_millis(100);
/// How often a server's thread that has one flow looks for a second, in transactions.
const LOOK_EVERY: u32 = 512;

/// What is told about transactions, and who says when it is over.
pub trait Asker {
    /// A transaction is to begin; `false` ends the thread's work.
    fn next(&mut self) -> bool;
    /// A transaction of a flow (by index among the thread's) has ended.
    fn done(&mut self, flow: usize, latency_ns: u64, now_ns: u64);
    /// Nothing happened for a while; `false` ends the thread's work.
    fn idle(&mut self) -> bool;
}

/// Connects a flow; tries again for `within` while nobody listens yet.
///
/// # Errors
/// Nobody answered within that time; sockets could not be prepared.
pub fn connect(address: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(20));
        match TcpStream::connect_timeout(&address, left.min(Duration::from_secs(1))) {
            Ok(flow) => {
                prepare(&flow)?;
                return Ok(flow);
            }
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn prepare(flow: &TcpStream) -> io::Result<()> {
    flow.set_nodelay(true)?;
    flow.set_nonblocking(false)?;
    flow.set_read_timeout(Some(WAIT))
}

/// Asks on these flows, one request under way on each, until the asker ends it.
///
/// # Errors
/// All flows were closed by the other end ([`io::ErrorKind::ConnectionReset`]), or the kernel failed. Flows closed
/// while others live are left out from then on.
pub fn ask(flows: &mut [TcpStream], asker: &mut impl Asker) -> io::Result<()> {
    match flows {
        [] => Ok(()),
        [one] => ask_one(one, asker),
        many => ask_many(many, asker),
    }
}

fn ask_one(flow: &mut TcpStream, asker: &mut impl Asker) -> io::Result<()> {
    let mut byte = [0];
    let mut began = monotonic_ns();
    while asker.next() {
        flow.write_all(&byte)?;
        loop {
            match flow.read(&mut byte) {
                Ok(1) => break,
                Ok(_) => return Err(io::ErrorKind::ConnectionReset.into()),
                Err(error) if is_idle(&error) => {
                    if !asker.idle() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let now = monotonic_ns();
        asker.done(0, now - began, now);
        began = now;
    }
    Ok(())
}

fn ask_many(flows: &mut [TcpStream], asker: &mut impl Asker) -> io::Result<()> {
    let poll = Poll::new()?;
    let mut began = vec![0; flows.len()];
    let mut alive = 0;
    for (index, flow) in flows.iter_mut().enumerate() {
        flow.set_nonblocking(true)?;
        poll.add(flow, index)?;
        if !asker.next() {
            return Ok(());
        }
        began[index] = monotonic_ns();
        flow.write_all(b"?")?;
        alive += 1;
    }
    let mut ready = Vec::with_capacity(flows.len());
    while alive > 0 {
        poll.wait(&mut ready)?;
        if ready.is_empty() && !asker.idle() {
            return Ok(());
        }
        for &index in &ready {
            let flow = &mut flows[index];
            match exchange_read(flow) {
                Some(true) => {
                    let now = monotonic_ns();
                    asker.done(index, now - began[index], now);
                    if !asker.next() {
                        return Ok(());
                    }
                    began[index] = monotonic_ns();
                    if flow.write_all(b"?").is_ok() {
                        continue;
                    }
                }
                Some(false) => {}
                None => continue,
            }
            poll.remove(flow);
            alive -= 1;
        }
    }
    Err(io::ErrorKind::ConnectionReset.into())
}

/// Takes the byte that is there: `Some(true)`; `Some(false)`: the other end is gone; `None`: nothing was there.
fn exchange_read(flow: &mut TcpStream) -> Option<bool> {
    let mut byte = [0];
    match flow.read(&mut byte) {
        Ok(1) => Some(true),
        Ok(_) => Some(false),
        Err(error) if is_idle(&error) => None,
        Err(_) => Some(false),
    }
}

fn is_idle(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// A listening socket whose flows are shared out evenly over the threads that serve it.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// Flows each thread has.
    held: Vec<AtomicU32>,
}

impl Listener {
    /// Listens, for so many threads.
    ///
    /// # Errors
    /// The address is taken or not this host's.
    pub fn bind(address: SocketAddr, threads: u32) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, held: (0..threads.max(1)).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Where it listens: for a port chosen by the kernel.
    ///
    /// # Errors
    /// As `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// A flow that waits, if it is this thread's turn: no other thread has fewer.
    fn accept(&self, thread: usize) -> Option<TcpStream> {
        let mine = self.held.get(thread)?;
        let least = self.held.iter().map(|held| held.load(Ordering::Acquire)).min().unwrap_or(0);
        if mine.load(Ordering::Acquire) > least {
            return None;
        }
        // Counted before it is taken, so that two threads do not both think it is their turn for long.
        mine.fetch_add(1, Ordering::AcqRel);
        match self.socket.accept().and_then(|(flow, _)| prepare(&flow).map(|()| flow)) {
            Ok(flow) => Some(flow),
            Err(_) => {
                self.release(thread);
                None
            }
        }
    }

    fn release(&self, thread: usize) {
        if let Some(held) = self.held.get(thread) {
            let _ = held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        }
    }
}

/// Answers on flows of a listener until `go_on` says no; it is called with the number of answers given since the last
/// call, at least every [`WAIT`].
///
/// # Errors
/// The kernel failed. A flow that breaks is dropped, the others go on.
pub fn answer(listener: &Listener, thread: u32, go_on: &mut impl FnMut(u64) -> bool) -> io::Result<()> {
    let thread = thread as usize;
    let poll = Poll::new()?;
    poll.add(&listener.socket, usize::MAX)?;
    let mut flows: Vec<Option<TcpStream>> = Vec::new();
    let mut ready = Vec::new();
    let mut answered = 0;
    loop {
        if !go_on(std::mem::take(&mut answered)) {
            return Ok(());
        }
        while let Some(flow) = listener.accept(thread) {
            flow.set_nonblocking(true)?;
            let index = flows.iter().position(Option::is_none).unwrap_or(flows.len());
            poll.add(&flow, index)?;
            if index == flows.len() {
                flows.push(Some(flow));
            } else {
                flows[index] = Some(flow);
            }
        }
        if let [Some(only)] = &mut flows[..] {
            // Alone: block on it, as a netserver does.
            only.set_nonblocking(false)?;
            let (lives, count) = answer_one(only, LOOK_EVERY);
            answered += count;
            if lives {
                only.set_nonblocking(true)?;
            } else {
                poll.remove(only);
                flows.clear();
                listener.release(thread);
            }
            continue;
        }
        poll.wait(&mut ready)?;
        let mut listener_ready = false;
        for &index in &ready {
            let Some(slot) = flows.get_mut(index) else {
                listener_ready |= index == usize::MAX;
                continue;
            };
            let Some(flow) = slot else { continue };
            match exchange_read(flow) {
                Some(true) if flow.write_all(b"!").is_ok() => answered += 1,
                None => {}
                _ => {
                    poll.remove(flow);
                    *slot = None;
                    listener.release(thread);
                }
            }
        }
        if listener_ready && ready.len() == 1 {
            // Another thread's turn: do not spin until it takes the flow.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Answers up to `most` requests; whether the flow lives, and how many were answered.
fn answer_one(flow: &mut TcpStream, most: u32) -> (bool, u64) {
    let mut byte = [0];
    let mut count = 0;
    for _ in 0..most {
        match flow.read(&mut byte) {
            Ok(1) if flow.write_all(&byte).is_ok() => count += 1,
            Err(error) if is_idle(&error) => return (true, count),
            _ => return (false, count),
        }
    }
    (true, count)
}

/// An epoll instance.
struct Poll {
    fd: std::os::fd::OwnedFd,
}

impl Poll {
    fn new() -> io::Result<Self> {
        Ok(Self { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    fn add(&self, socket: &impl std::os::fd::AsFd, index: usize) -> io::Result<()> {
        let data = epoll::EventData::new_u64(index as u64);
        Ok(epoll::add(&self.fd, socket, data, epoll::EventFlags::IN)?)
    }

    fn remove(&self, socket: &impl std::os::fd::AsFd) {
        let _ = epoll::delete(&self.fd, socket);
    }

    /// Fills `ready` with the indices of what can be read, empty after [`WAIT`].
    fn wait(&self, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: WAIT.subsec_nanos().into() };
        match epoll::wait(&self.fd, &mut events, Some(&timeout)) {
            Ok((events, _)) => {
                ready.extend(
                    events.iter().map(|event| usize::try_from(event.data.u64()).unwrap_or(usize::MAX)),
                );
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Latencies: from 1 us to a minute, two significant digits (1 % exact), about 10 KiB.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// `None` if hdrhistogram refused its bounds, which are constants it documents as fine: then nothing is known.
    histogram: Option<Histogram<u32>>,
}

/// Lowest and highest latency told apart, nanoseconds.
const RANGE_NS: (u64, u64) = (1_000, 60_000_000_000);

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_bounds(RANGE_NS.0, RANGE_NS.1, 2).ok() }
    }
}

impl Latencies {
    /// Counts one; beyond the range it counts as the range's end.
    pub fn record(&mut self, latency_ns: u64) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(latency_ns);
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        if let (Some(mine), Some(other)) = (&mut self.histogram, &other.histogram) {
            // Same bounds: cannot fail.
            let _ = mine.add(other);
        }
    }

    /// Number counted.
    pub fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::len)
    }

    /// Mean and percentiles; `None` when nothing was counted.
    pub fn summary(&self) -> Option<LatencySummary> {
        let histogram = self.histogram.as_ref().filter(|h| !h.is_empty())?;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Some(LatencySummary {
            mean_usec: histogram.mean() / 1e3,
            p50_usec: at(0.5),
            p90_usec: at(0.9),
            p99_usec: at(0.99),
            max_usec: histogram.max() as f64 / 1e3,
        })
    }

    /// Counts by upper bound in microseconds, zeros left out: for a picture.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let of = |histogram: &Histogram<u32>| {
            let values = histogram.iter_recorded();
            values.map(|v| (v.value_iterated_to() as f64 / 1e3, v.count_since_last_iteration())).collect()
        };
        self.histogram.as_ref().map(of).unwrap_or_default()
    }
}

/// Latencies in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Mean, microseconds.
    pub mean_usec: f64,
    /// Median, microseconds.
    pub p50_usec: f64,
    /// 90 % are at most this, microseconds.
    pub p90_usec: f64,
    /// 99 % are at most this, microseconds.
    pub p99_usec: f64,
    /// The longest, microseconds.
    pub max_usec: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn latencies_are_summed_up_and_added() {
        let mut a = Latencies::default();
        assert_eq!(a.summary(), None);
        (1..=100).for_each(|i| a.record(i * 10_000));
        let mut b = Latencies::default();
        b.record(u64::MAX);
        a.add(&b);
        let s = a.summary().unwrap();
        assert_eq!(a.count(), 101);
        assert!((s.p50_usec / 510.0 - 1.0).abs() < 0.02, "{s:?}");
        assert!((s.p99_usec / 1000.0 - 1.0).abs() < 0.02, "{s:?}");
        assert!(s.max_usec >= 60e6 * 0.99, "{s:?}");
        assert_eq!(a.buckets().iter().map(|(_, n)| n).sum::<u64>(), 101);
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_one_percent(ns in 1_000u64..60_000_000_000) {
            let mut l = Latencies::default();
            l.record(ns);
            let p50 = l.summary().unwrap().p50_usec * 1e3;
            prop_assert!((p50 / ns as f64 - 1.0).abs() < 0.01, "{ns} became {p50}");
        }
    }

    struct Count {
        left: u64,
        per_flow: Vec<u64>,
    }

    impl Asker for Count {
        fn next(&mut self) -> bool {
            self.left = self.left.saturating_sub(1);
            self.left > 0
        }
        fn done(&mut self, flow: usize, latency_ns: u64, _: u64) {
            assert!(latency_ns > 0);
            self.per_flow[flow] += 1;
        }
        fn idle(&mut self) -> bool {
            true
        }
    }

    /// Whatever the numbers of flows and threads: every request is answered, and the ends agree.
    #[test]
    fn one_flow_blocks_and_many_wait_with_the_same_result() {
        for (flows, threads) in [(1, 1), (5, 1), (2, 2), (7, 3)] {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), threads).unwrap();
            let address = listener.local_addr().unwrap();
            let over = std::sync::atomic::AtomicBool::new(false);
            let answered = std::sync::atomic::AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (listener, over, answered) = (&listener, &over, &answered);
                    scope.spawn(move || {
                        let mut go_on = |n| {
                            answered.fetch_add(n, Ordering::Relaxed);
                            !over.load(Ordering::Relaxed)
                        };
                        answer(listener, thread, &mut go_on).unwrap();
                    });
                }
                let mut sockets: Vec<_> =
                    (0..flows).map(|_| connect(address, Duration::from_secs(5)).unwrap()).collect();
                let mut asker = Count { left: 2000, per_flow: vec![0; flows] };
                ask(&mut sockets, &mut asker).unwrap();
                let asked: u64 = asker.per_flow.iter().sum();
                assert!((2000 - flows as u64..2000).contains(&asked), "{flows} {threads}: {asked}");
                assert!(asker.per_flow.iter().all(|n| *n > 0), "{:?}", asker.per_flow);
                drop(sockets);
                over.store(true, Ordering::Relaxed);
            });
            let answered = answered.into_inner();
            assert!(answered >= 2000 - flows as u64, "{flows} {threads}: {answered}");
        }
    }

    #[test]
    fn a_server_that_goes_away_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut flow = [connect(address, Duration::from_secs(5)).unwrap()];
        drop(listener.accept().unwrap());
        drop(listener);
        let error = ask(&mut flow, &mut Count { left: 10, per_flow: vec![0] }).unwrap_err();
        assert!(!is_idle(&error), "{error}");
        assert!(connect(address, Duration::from_millis(50)).is_err());
    }
}
