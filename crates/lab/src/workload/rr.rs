//! `rr`: request and response of one byte each over TCP, one request under way on each of N flows (netperf's TCP_RR);
//! an event is one transaction. `rr server` answers, `rr client` asks; flows are spread over the threads.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::Workload;
use crate::load::{Context, LoadError};

/// How long a client tries to reach a server that may just be starting.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for traffic without looking at the clock.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Answers.
    Server,
    /// Asks.
    Client,
}

/// Parameters.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Rr {
    /// Which end.
    #[arg(value_enum)]
    pub role: Role,
    /// Where the server listens.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7420")]
    pub address: SocketAddr,
    /// Number of flows of a client, over all threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub flows: u32,
    #[arg(skip)]
    #[serde(skip)]
    listener: Option<Arc<TcpListener>>,
}

impl PartialEq for Rr {
    fn eq(&self, other: &Self) -> bool {
        (self.role, self.address, self.flows) == (other.role, other.address, other.flows)
    }
}

impl Rr {
    fn serve(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let mut flows: Vec<TcpStream> = Vec::new();
        while !context.over() {
            let ready = wait_for(Some(listener), &flows)?;
            if ready.first() == Some(&true)
                && let Ok((flow, _)) = listener.accept()
            {
                prepare_flow(&flow).map_err(|e| LoadError::system("cannot prepare a flow", e))?;
                flows.push(flow);
            }
            let mut ready = ready.into_iter().skip(1);
            // A flow accepted just now is not in `ready`: kept.
            flows.retain_mut(|flow| {
                if !ready.next().unwrap_or(false) {
                    return true;
                }
                let lives = exchange(flow);
                context.done(u64::from(lives));
                lives
            });
        }
        Ok(())
    }

    fn ask(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let mine = (0..self.flows).filter(|flow| flow % context.threads() == context.thread()).count();
        let mut flows = Vec::with_capacity(mine);
        for _ in 0..mine {
            let mut flow = self.connect()?;
            let _ = flow.write_all(b"?");
            flows.push(flow);
        }
        while !flows.is_empty() && !context.over() {
            let mut ready = wait_for(None, &flows)?.into_iter();
            let mut enough = false;
            flows.retain_mut(|flow| {
                if enough || !ready.next().unwrap_or(false) {
                    return true;
                }
                if !context.claim() {
                    enough = true;
                    return true;
                }
                let lives = exchange(flow);
                context.done(u64::from(lives));
                lives
            });
            if enough {
                return Ok(());
            }
        }
        if flows.is_empty() && mine > 0 && !context.over() {
            let gone = io::Error::from(io::ErrorKind::ConnectionReset);
            return Err(LoadError::system(format!("the server at {} went away", self.address), gone));
        }
        Ok(())
    }

    fn connect(&self) -> Result<TcpStream, LoadError> {
        let failed = |e| LoadError::system(format!("cannot reach a server at {}", self.address), e);
        let until = Instant::now() + CONNECT_WITHIN;
        let flow = loop {
            match TcpStream::connect(self.address) {
                Ok(flow) => break flow,
                Err(e) if Instant::now() >= until => return Err(failed(e)),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        prepare_flow(&flow).map_err(failed)?;
        Ok(flow)
    }
}

fn prepare_flow(flow: &TcpStream) -> io::Result<()> {
    flow.set_nodelay(true)?;
    flow.set_nonblocking(true)
}

/// Takes the byte that is there and sends one; `false` when the other end is gone.
fn exchange(flow: &mut TcpStream) -> bool {
    let mut byte = [0];
    match flow.read(&mut byte) {
        Ok(1) => flow.write_all(&byte).is_ok(),
        Ok(_) => false,
        Err(e) => matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}

/// Which of the listener (first, if given) and the flows have something to read.
fn wait_for(listener: Option<&TcpListener>, flows: &[TcpStream]) -> Result<Vec<bool>, LoadError> {
    let mut fds: Vec<PollFd<'_>> = listener.map(|l| PollFd::new(l, PollFlags::IN)).into_iter().collect();
    fds.extend(flows.iter().map(|flow| PollFd::new(flow, PollFlags::IN)));
    match poll(&mut fds, Some(&WAIT)) {
        Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(e) => Err(LoadError::system("cannot wait for traffic", e)),
    }
}

impl Workload for Rr {
    fn prepare(&mut self, _threads: u32) -> Result<(), LoadError> {
        if self.role == Role::Server {
            let listener = TcpListener::bind(self.address)
                .and_then(|l| l.set_nonblocking(true).map(|()| l))
                .map_err(|e| LoadError::system(format!("cannot listen on {}", self.address), e))?;
            self.listener = Some(Arc::new(listener));
        }
        Ok(())
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        match self.role {
            Role::Server => self.serve(context),
            Role::Client => self.ask(context),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let role = if self.role == Role::Server { "server" } else { "client" };
        vec![
            "rr".into(),
            role.into(),
            format!("--address={}", self.address),
            format!("--flows={}", self.flows),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{LoadSpec, run};
    use crate::workload::Kind;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn spec(role: Role, address: SocketAddr, flows: u32, threads: u32) -> LoadSpec {
        let mut spec = LoadSpec::new(Kind::Rr(Rr { role, address, flows, listener: None }));
        spec.common.threads = Some(threads);
        spec
    }

    #[test]
    fn every_transaction_is_counted_on_both_ends() {
        // A free port: bound and let go.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| run(&spec(Role::Server, address, 1, 2), &stop).unwrap());
            let mut client = spec(Role::Client, address, 5, 2);
            client.common.events = Some(500);
            let client = run(&client, &AtomicBool::new(false)).unwrap();
            assert_eq!(client.events, 500);
            stop.store(true, Ordering::Relaxed);
            // Answers under way at the end are counted by the server only: at most one a flow, and its first.
            let served = server.join().unwrap().events;
            assert!((500..=520).contains(&served), "{served}");
        });
    }
}
