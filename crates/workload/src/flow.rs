//! Request and response of one byte on TCP flows, each transaction timed.
//!
//! A thread with one flow blocks in `recv`, as netperf's TCP_RR does: two system calls a transaction and end. Nothing
//! else may hang on its socket: a time limit (`SO_RCVTIMEO`) costs a timer set and cancelled with each wait, membership
//! in an epoll set a callback with each segment, together some 2 % of a transaction. What else there is to look at (is it
//! over, does another flow wait) is looked at when a timer's signal ends the wait, see [`crate::nudge`]. A thread with
//! several flows waits on all of them with epoll. The clock is read once a transaction, when the answer is there: the
//! request leaves at once, so what lies between two readings is the time of one transaction, the reading itself (some
//! 30 ns) and the caller's bookkeeping included.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::burn::monotonic_ns;
use crate::nudge::Nudge;

pub use crate::latency::{Latencies, LatencySummary};

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
    /// The other end of a flow is gone, while others live.
    fn gone(&mut self, _flow: usize) {}
    /// At the end a transaction of a flow is under way, and has waited so long.
    fn under_way(&mut self, _flow: usize, _waited_ns: u64) {}
}

/// Connects a flow; tries again for `within` while nobody listens yet.
///
/// # Errors
/// No one answered within that time; sockets could not be prepared.
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
    flow.set_nonblocking(false)
}

/// Sees to it that blocking reads of a flow by this thread end now and then, as long as the result lives: by a signal,
/// or by a time limit where the kernel has no more timers for us.
fn interruptible(flow: &TcpStream, nudge: &mut Option<Nudge>) -> io::Result<()> {
    if nudge.is_none() {
        *nudge = Nudge::every(WAIT).ok();
    }
    if nudge.is_none() { flow.set_read_timeout(Some(WAIT)) } else { Ok(()) }
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
    let mut nudge = None;
    interruptible(flow, &mut nudge)?;
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
                        asker.under_way(0, monotonic_ns().saturating_sub(began));
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
    let mut began = vec![None; flows.len()];
    let end = exchange(flows, asker, &mut began);
    let now = monotonic_ns();
    for (index, began) in began.into_iter().enumerate() {
        if let Some(began) = began {
            asker.under_way(index, now.saturating_sub(began));
        }
    }
    end
}

/// Asks until the end; `began` tells when the transactions under way began.
fn exchange(flows: &mut [TcpStream], asker: &mut impl Asker, began: &mut [Option<u64>]) -> io::Result<()> {
    let poll = Poll::new()?;
    let mut alive = 0;
    for (index, flow) in flows.iter_mut().enumerate() {
        flow.set_nonblocking(true)?;
        poll.add(flow, index)?;
        if !asker.next() {
            return Ok(());
        }
        let now = monotonic_ns();
        if flow.write_all(b"?").is_ok() {
            began[index] = Some(now);
            alive += 1;
        } else {
            poll.remove(flow);
            asker.gone(index);
        }
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
                    if let Some(began) = began[index].take() {
                        asker.done(index, now - began, now);
                    }
                    if !asker.next() {
                        return Ok(());
                    }
                    let now = monotonic_ns();
                    if flow.write_all(b"?").is_ok() {
                        began[index] = Some(now);
                        continue;
                    }
                }
                Some(false) => began[index] = None,
                None => continue,
            }
            poll.remove(flow);
            asker.gone(index);
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

/// Whether nothing was there yet.
pub(crate) fn is_idle(error: &io::Error) -> bool {
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
    pub fn bind(address: SocketAddr, threads: u32) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, held: (0..threads.max(1)).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Where it listens: for a port chosen by the kernel.
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
    let mut held = Held::new(&listener.socket)?;
    let mut nudge = None;
    let mut ready = Vec::new();
    let mut answered = 0;
    loop {
        if !go_on(std::mem::take(&mut answered)) {
            return Ok(());
        }
        while let Some(flow) = listener.accept(thread) {
            held.take(flow)?;
        }
        if let Some((index, only)) = held.alone()? {
            // Block on it, as a netserver does.
            interruptible(only, &mut nudge)?;
            let (lives, count) = answer_one(only, LOOK_EVERY);
            answered += count;
            if !lives {
                held.forget(index);
                listener.release(thread);
            }
            continue;
        }
        held.poll.wait(&mut ready)?;
        let mut listener_ready = false;
        for &index in &ready {
            let Some(flow) = held.flows.get_mut(index).and_then(Option::as_mut) else {
                listener_ready |= index == usize::MAX;
                continue;
            };
            match exchange_read(flow) {
                Some(true) if flow.write_all(b"!").is_ok() => answered += 1,
                None => {}
                _ => {
                    held.forget(index);
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

/// The flows of a server's thread. They are in the epoll set only while there are several.
struct Held {
    poll: Poll,
    flows: Vec<Option<TcpStream>>,
    polled: bool,
}

impl Held {
    fn new(listener: &TcpListener) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.add(listener, usize::MAX)?;
        Ok(Self { poll, flows: Vec::new(), polled: false })
    }

    fn take(&mut self, flow: TcpStream) -> io::Result<()> {
        let index = self.flows.iter().position(Option::is_none).unwrap_or(self.flows.len());
        if self.polled {
            flow.set_nonblocking(true)?;
            self.poll.add(&flow, index)?;
        }
        match self.flows.get_mut(index) {
            Some(free) => *free = Some(flow),
            None => self.flows.push(Some(flow)),
        }
        Ok(())
    }

    /// The only flow, ready to be blocked on; `None` when there are none or several, which are polled then.
    fn alone(&mut self) -> io::Result<Option<(usize, &mut TcpStream)>> {
        let alone = self.flows.iter().flatten().count() == 1;
        if self.polled == alone {
            for (index, flow) in self.flows.iter().enumerate() {
                let Some(flow) = flow else { continue };
                flow.set_nonblocking(!alone)?;
                match alone {
                    true => self.poll.remove(flow),
                    false => self.poll.add(flow, index)?,
                }
            }
            self.polled = !alone;
        }
        let mut flows = self.flows.iter_mut().enumerate();
        Ok(flows.find_map(|(index, flow)| Some((index, flow.as_mut()?))).filter(|_| alone))
    }

    fn forget(&mut self, index: usize) {
        if let Some(slot) = self.flows.get_mut(index)
            && let Some(flow) = slot.take()
            && self.polled
        {
            self.poll.remove(&flow);
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Count {
        left: u64,
        per_flow: Vec<u64>,
    }

    impl Asker for Count {
        fn next(&mut self) -> bool {
            self.left = self.left.saturating_sub(1);
            // On a busy machine a server's thread may come late: every flow gets its turn.
            self.left > 0 || self.per_flow.contains(&0)
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
                // First, so that a failure below is not waited for by the servers.
                over.store(true, Ordering::Relaxed);
                drop(sockets);
                assert!(asked >= 2000 - flows as u64, "{flows} {threads}: {asked}");
                assert!(asker.per_flow.iter().all(|n| *n > 0), "{:?}", asker.per_flow);
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
