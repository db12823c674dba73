//! `stream`: memory bandwidth, the triad of the STREAM benchmark, a = b + s * c, over arrays larger than the caches;
//! an event is one pass (24 bytes moved an element, not counting write allocation).
//!
//! With `--connect` or `--listen` it is a stream over TCP instead (netperf's TCP_STREAM): the one end sends as fast as it
//! can, the other takes; an event is 64 KiB of payload.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::flow::{connect, is_idle};
use crate::load::{Context, LoadError};

/// Payload of an event of a stream over TCP, bytes.
pub const PAYLOAD: usize = 1 << 16;
/// A stream's progress is told at least this often while it flows, nanoseconds.
const TELL_NS: u64 = 20_000_000;
/// Longest wait for traffic without looking whether it is over.
const WAIT: Duration = Duration::from_millis(100);

/// Elements between two looks at the clock.
const PIECE: usize = 1 << 16;

/// Parameters.
#[derive(Debug, Clone, Default, clap::Args, Serialize, Deserialize)]
pub struct Stream {
    /// Memory of each thread, MiB: three arrays of a third each.
    #[arg(long, value_name = "MIB", default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub memory: u32,
    /// Send over TCP to whoever listens there, a connection a thread.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "listen")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<SocketAddr>,
    /// Take what is sent there over TCP, a connection a thread at a time.
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    #[arg(skip)]
    #[serde(skip)]
    listener: Option<Arc<TcpListener>>,
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        (self.memory, self.connect, self.listen) == (other.memory, other.connect, other.listen)
    }
}

impl Stream {
    /// Moves memory: so many MiB a thread.
    pub fn through(memory_mib: u32) -> Self {
        Self { memory: memory_mib, ..Self::default() }
    }

    /// Sends over TCP.
    pub fn to(address: SocketAddr) -> Self {
        Self { memory: 96, connect: Some(address), ..Self::default() }
    }

    /// Takes over TCP.
    pub fn at(address: SocketAddr) -> Self {
        Self { memory: 96, listen: Some(address), ..Self::default() }
    }

    fn send(&self, address: SocketAddr, context: &mut Context<'_>) -> Result<(), LoadError> {
        let failed = |e| LoadError::system(format!("sending to {address}"), e);
        let mut flow = connect(address, Duration::from_secs(5)).map_err(failed)?;
        flow.set_write_timeout(Some(WAIT)).map_err(failed)?;
        let data = vec![b'e'; PAYLOAD];
        while context.claim() {
            let mut left = &data[..];
            while !left.is_empty() {
                match flow.write(left) {
                    Ok(n) => left = &left[n..],
                    Err(e) if is_idle(&e) => {}
                    // The other end has gone, perhaps because its time was up as well.
                    Err(_) if context.over() => return Ok(()),
                    Err(e) => return Err(failed(e)),
                }
                if context.over() {
                    return Ok(());
                }
            }
            context.done(1);
        }
        Ok(())
    }

    fn take(&self, listener: &TcpListener, context: &mut Context<'_>) -> Result<(), LoadError> {
        let failed = |e| LoadError::system("taking a stream", e);
        let mut buffer = vec![0; PAYLOAD];
        let (mut rest, mut told_ns) = (0, 0);
        while !context.over() {
            let Ok((mut flow, _)) = listener.accept() else {
                context.sleep(crate::burn::monotonic_ns() + 5_000_000);
                continue;
            };
            flow.set_nonblocking(false).and_then(|()| flow.set_read_timeout(Some(WAIT))).map_err(failed)?;
            loop {
                match flow.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) => {
                        rest += n;
                        context.done((rest / PAYLOAD) as u64);
                        rest %= PAYLOAD;
                        // A slow stream costs little CPU time, by which progress is told otherwise.
                        let now = crate::burn::monotonic_ns();
                        if now >= told_ns + TELL_NS {
                            context.tell();
                            told_ns = now;
                        }
                    }
                    Err(e) if is_idle(&e) => {}
                    Err(_) => break,
                }
                if context.over() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Workload for Stream {
    fn wanted_pct(&self) -> Option<f64> {
        // Over the network it takes what the link gives.
        (self.connect.is_none() && self.listen.is_none()).then_some(100.0)
    }

    fn prepare(&mut self, _threads: u32) -> Result<(), LoadError> {
        if let Some(address) = self.listen {
            let listener = TcpListener::bind(address)
                .and_then(|l| l.set_nonblocking(true).map(|()| l))
                .map_err(|e| LoadError::system(format!("cannot listen on {address}"), e))?;
            self.listener = Some(Arc::new(listener));
        }
        Ok(())
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        if let Some(address) = self.connect {
            return self.send(address, context);
        }
        if let Some(listener) = &self.listener {
            return self.take(listener, context);
        }
        let elements = (self.memory as usize * (1 << 20) / 24).max(1);
        let array = |value: f64| -> Result<Vec<f64>, LoadError> {
            let mut array = Vec::new();
            array.try_reserve_exact(elements).map_err(|e| {
                LoadError::system(
                    format!("cannot get {} MiB of memory", self.memory),
                    std::io::Error::other(e),
                )
            })?;
            array.resize(elements, value);
            Ok(array)
        };
        let (mut a, b, c) = (array(0.0)?, array(1.0)?, array(2.0)?);
        while context.claim() {
            for ((a, b), c) in a.chunks_mut(PIECE).zip(b.chunks(PIECE)).zip(c.chunks(PIECE)) {
                triad(a, b, c, black_box(3.0));
                if context.over() {
                    return Ok(());
                }
            }
            context.done(1);
        }
        black_box(&a);
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let mut all = vec!["stream".into(), format!("--memory={}", self.memory)];
        all.extend(self.connect.map(|address| format!("--connect={address}")));
        all.extend(self.listen.map(|address| format!("--listen={address}")));
        all
    }
}

/// a = b + s * c
fn triad(a: &mut [f64], b: &[f64], c: &[f64], s: f64) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + s * c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_sends_the_other_takes() {
        use crate::Kind;
        use crate::load::{LoadSpec, run};
        use std::sync::atomic::{AtomicBool, Ordering};
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let taker =
                scope.spawn(|| run(&LoadSpec::new(Kind::Stream(Stream::at(address))), &stop).unwrap().events);
            let mut sender = LoadSpec::new(Kind::Stream(Stream::to(address)));
            sender.common.events = Some(40);
            assert_eq!(run(&sender, &AtomicBool::new(false)).unwrap().events, 40);
            // The last bytes may still be under way.
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(taker.join().unwrap(), 40);
        });
    }

    #[test]
    fn the_triad_adds_and_multiplies() {
        let mut a = [0.0; 3];
        triad(&mut a, &[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0], 0.5);
        assert_eq!(a, [6.0, 12.0, 18.0]);
    }
}
