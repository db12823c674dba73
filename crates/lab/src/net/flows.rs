//! A thread of the sender: it asks on its flows, and counts what is answered.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use evenkeel_workload::flow::{Asker, Latencies, ask};

/// Phases of a measurement: traffic before anything is counted, ..
pub(super) const WARM: u8 = 0;
/// .. what is counted, ..
pub(super) const RECORD: u8 = 1;
/// .. and its end.
pub(super) const OVER: u8 = 2;

/// A thread's flows.
struct Threads<'a> {
    counts: Vec<&'a AtomicU64>,
    latencies: Vec<Latencies>,
    broken: Vec<Option<String>>,
    phase: &'a AtomicU8,
}

impl Asker for Threads<'_> {
    fn next(&mut self) -> bool {
        self.phase.load(Ordering::Relaxed) != OVER
    }

    fn done(&mut self, flow: usize, latency_ns: u64, _: u64) {
        // The only writer: no locked instruction needed.
        self.counts[flow].store(self.counts[flow].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if self.phase.load(Ordering::Relaxed) == RECORD {
            self.latencies[flow].record(latency_ns);
        }
    }

    fn idle(&mut self) -> bool {
        self.next()
    }

    fn under_way(&mut self, flow: usize, waited_ns: u64) {
        // One that a server keeps waiting at the end is among the longest.
        let warm = self.phase.load(Ordering::Relaxed) == WARM;
        if !warm && waited_ns > self.latencies[flow].longest_ns() {
            self.latencies[flow].record(waited_ns);
        }
    }

    fn gone(&mut self, flow: usize) {
        self.broken[flow] = Some("a flow ended early: the other end closed it".to_owned());
    }
}

/// Flow, latencies, and why it ended early.
pub(super) type FlowResult = (usize, Latencies, Option<String>);

/// Asks on some of the flows, each with its number, until the phase is [`OVER`]; `counts` are of all flows.
pub(super) fn run_share(
    share: Vec<(usize, TcpStream)>,
    counts: &[AtomicU64],
    phase: &AtomicU8,
) -> Vec<FlowResult> {
    let (numbers, mut sockets): (Vec<usize>, Vec<TcpStream>) = share.into_iter().unzip();
    let mut asker = Threads {
        counts: numbers.iter().map(|flow| &counts[*flow]).collect(),
        latencies: numbers.iter().map(|_| Latencies::default()).collect(),
        broken: vec![None; numbers.len()],
        phase,
    };
    let all = ask(&mut sockets, &mut asker).err().map(|error| format!("a flow ended early: {error}"));
    let of_each = numbers.into_iter().zip(asker.latencies).zip(asker.broken);
    of_each.map(|((flow, latencies), broken)| (flow, latencies, all.clone().or(broken))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use evenkeel_workload::flow::connect;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    #[test]
    fn a_flow_that_ends_while_others_live_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pair = || (connect(address, WITHIN).unwrap(), listener.accept().unwrap().0);
        let ((lives, mut answers), (dies, _)) = (pair(), pair());
        let (counts, phase) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicU8::new(WARM));
        let results = std::thread::scope(|s| {
            let asking = s.spawn(|| run_share(vec![(0, lives), (1, dies)], &counts, &phase));
            for _ in 0..20 {
                let request = answers.read_exact(&mut [0]);
                request.and_then(|()| answers.write_all(b"!")).unwrap();
            }
            phase.store(OVER, Ordering::Relaxed);
            asking.join().unwrap()
        });
        assert!(results[0].2.is_none() && results[1].2.is_some());
    }

    #[test]
    fn what_a_server_keeps_waiting_at_the_end_counts_with_the_time_it_has_waited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let asks = connect(listener.local_addr().unwrap(), WITHIN).unwrap();
        let mut never_answers = listener.accept().unwrap().0;
        let (counts, phase) = ([AtomicU64::new(0)], AtomicU8::new(RECORD));
        let results = std::thread::scope(|s| {
            let asking = s.spawn(|| run_share(vec![(0, asks)], &counts, &phase));
            never_answers.read_exact(&mut [0]).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            phase.store(OVER, Ordering::Relaxed);
            asking.join().unwrap()
        });
        let latencies = &results[0].1;
        assert!(latencies.count() == 1 && latencies.longest_ns() > 150_000_000, "{}", latencies.longest_ns());
        assert_eq!(counts[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_wait_that_ends_with_its_flow_before_anything_is_counted_does_not_count() {
        let counted = |phase: u8| {
            let (phase, latencies) = (AtomicU8::new(phase), vec![Latencies::default()]);
            let mut thread = Threads { counts: vec![], latencies, broken: vec![], phase: &phase };
            thread.under_way(0, 5_000_000);
            thread.under_way(0, 4_000_000);
            thread.latencies[0].count()
        };
        assert_eq!([WARM, RECORD, OVER].map(counted), [0, 1, 1]);
    }
}
