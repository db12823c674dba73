//! `rr`: request and response of one byte each over TCP, one request under way on each of N flows (netperf's TCP_RR);
//! an event is one transaction. `rr server` answers, `rr client` asks; flows are spread evenly over the threads. With as
//! many threads as flows each thread blocks on its own, as netperf's processes do; see [`crate::flow`].

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Workload;
use crate::flow::{Asker, Listener, answer, ask, connect};
use crate::load::{Context, Counted, FlowCounts, FlowReport, LoadError};

/// How long a client tries to reach a server that may just be starting.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

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
    /// Number of flows of a client, over all threads; as many threads as flows make each block on its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub flows: u32,
    #[arg(skip)]
    #[serde(skip)]
    listener: Option<Arc<Listener>>,
    /// What the client's flows measured.
    #[arg(skip)]
    #[serde(skip)]
    measured: Counted,
}

impl PartialEq for Rr {
    fn eq(&self, other: &Self) -> bool {
        (self.role, self.address, self.flows) == (other.role, other.address, other.flows)
    }
}

/// A thread's flows as the load's context sees them.
struct Thread<'a, 'b> {
    context: &'a mut Context<'b>,
    flows: Vec<FlowCounts>,
    /// Transactions not yet told to the context, and when it was told last.
    untold: u64,
    told_ns: u64,
    over: bool,
}

/// Transactions are told to the context at least this often, nanoseconds: that costs system calls.
const TELL_NS: u64 = 5_000_000;

impl Thread<'_, '_> {
    fn tell(&mut self, now_ns: u64) {
        self.context.done(std::mem::take(&mut self.untold));
        self.told_ns = now_ns;
    }
}

impl Asker for Thread<'_, '_> {
    fn next(&mut self) -> bool {
        // With a bound every transaction is claimed; without, the clock is looked at when transactions are told.
        if self.context.bounded() { self.context.claim() } else { !self.over }
    }

    fn done(&mut self, flow: usize, latency_ns: u64, now_ns: u64) {
        self.untold += 1;
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.done(latency_ns);
        }
        if now_ns.saturating_sub(self.told_ns) >= TELL_NS {
            self.tell(now_ns);
            self.over = self.context.over();
        }
    }

    fn gone(&mut self, flow: usize) {
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.lost = true;
        }
    }

    fn under_way(&mut self, flow: usize, waited_ns: u64) {
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.under_way(waited_ns);
        }
    }

    fn idle(&mut self) -> bool {
        self.over = self.context.over();
        !self.over
    }
}

impl Rr {
    /// With these parameters.
    pub fn new(role: Role, address: SocketAddr, flows: u32) -> Self {
        Self { role, address, flows, listener: None, measured: Counted::default() }
    }

    fn serve(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let thread = context.thread();
        let mut go_on = |answered| {
            context.done(answered);
            !context.over()
        };
        answer(listener, thread, &mut go_on).map_err(|e| LoadError::system("serving", e))
    }

    fn ask(&self, context: &mut Context<'_>) -> Result<(), LoadError> {
        let mine: Vec<u32> =
            (0..self.flows).filter(|flow| flow % context.threads() == context.thread()).collect();
        let failed = |e| LoadError::system(format!("cannot reach a server at {}", self.address), e);
        let mut sockets: Vec<TcpStream> = mine
            .iter()
            .map(|_| connect(self.address, CONNECT_WITHIN))
            .collect::<io::Result<_>>()
            .map_err(failed)?;
        let flows = vec![FlowCounts::default(); mine.len()];
        let mut thread = Thread { context, flows, untold: 0, told_ns: 0, over: false };
        let asked = ask(&mut sockets, &mut thread);
        let now = thread.told_ns;
        thread.tell(now);
        let flows = std::mem::take(&mut thread.flows);
        if let Err(error) = asked
            && !context.over()
        {
            return Err(LoadError::system(format!("the server at {} went away", self.address), error));
        }
        mine.into_iter().zip(flows).for_each(|(flow, counts)| self.measured.add(flow, counts));
        Ok(())
    }
}

impl Workload for Rr {
    fn prepare(&mut self, threads: u32) -> Result<(), LoadError> {
        if self.role == Role::Server {
            let listener = Listener::bind(self.address, threads)
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

    fn flows(&self) -> Option<FlowReport> {
        (self.role == Role::Client).then(|| self.measured.report())
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
    use crate::Kind;
    use crate::load::{LoadSpec, run};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn spec(role: Role, address: SocketAddr, flows: u32, threads: u32) -> LoadSpec {
        let mut spec = LoadSpec::new(Kind::Rr(Rr::new(role, address, flows)));
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
            let flows = client.flows.unwrap();
            // A request claimed may be under way when the last claim fails: at most one a flow.
            assert!((495..=500).contains(&client.events), "{}", client.events);
            assert_eq!(flows.flows.len(), 5);
            assert_eq!(flows.flows.iter().map(|f| f.transactions).sum::<u64>(), client.events);
            let all = flows.latency.unwrap();
            assert!(all.p50_usec <= all.p99_usec && all.p99_usec <= all.max_usec, "{all:?}");
            stop.store(true, Ordering::Relaxed);
            let served = server.join().unwrap().events;
            assert!((client.events..=520).contains(&served), "{served}");
        });
    }

    #[test]
    fn a_flow_that_the_server_closes_is_told() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut kept, dropped) = (server.accept().unwrap().0, server.accept().unwrap().0);
                drop(dropped);
                let mut byte = [0];
                while matches!(kept.read(&mut byte), Ok(1)) && kept.write_all(&byte).is_ok() {}
            });
            let mut client = spec(Role::Client, address, 2, 1);
            client.common.seconds = Some(0.3);
            let flows = run(&client, &AtomicBool::new(false)).unwrap().flows.unwrap();
            assert_eq!((flows.lost(), flows.flows[0].lost, flows.flows[1].lost), (1, false, true));
            assert!(flows.flows[0].transactions > 0);
        });
    }

    #[test]
    fn what_a_server_that_hangs_leaves_unanswered_counts_with_the_time_it_waited() {
        for flows in [1, 2] {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut held: Vec<_> = (0..flows).map(|_| server.accept().unwrap().0).collect();
                    let mut byte = [0];
                    for _ in 0..3 {
                        for flow in &mut held {
                            flow.read_exact(&mut byte).and_then(|()| flow.write_all(&byte)).unwrap();
                        }
                    }
                    std::thread::sleep(Duration::from_millis(900));
                });
                let mut client = spec(Role::Client, address, flows, 1);
                client.common.seconds = Some(0.5);
                let found = run(&client, &AtomicBool::new(false)).unwrap().flows.unwrap();
                let counts = found.flows.iter().map(|flow| (flow.transactions, flow.unanswered));
                assert_eq!(counts.collect::<Vec<_>>(), vec![(3, 1); flows as usize]);
                assert!(found.latency.unwrap().max_usec > 200_000.0, "{:?}", found.latency);
            });
        }
    }

    #[test]
    fn it_ends_when_its_time_is_up() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| run(&spec(Role::Server, address, 1, 3), &stop).unwrap());
            for threads in [1, 3] {
                let mut client = spec(Role::Client, address, 3, threads);
                client.common.seconds = Some(0.3);
                let report = run(&client, &AtomicBool::new(false)).unwrap();
                assert!(report.real_s >= 0.3 && report.events > 10, "{report:?}");
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
