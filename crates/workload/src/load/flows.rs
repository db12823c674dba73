//! What a load's flows did: over the network, or its wake-ups.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::flow::{Latencies, LatencySummary};

/// All flows of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Latency over all flows; `None` without a transaction.
    pub latency: Option<LatencySummary>,
    /// Each flow, in order.
    pub flows: Vec<Flow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub transactions: u64,
    /// Their latency; `None` without a transaction. What was not answered counts with the time it has waited.
    pub latency: Option<LatencySummary>,
    /// Transactions that were due and not finished at the end; of a closed loop one that has waited longer than any before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unanswered: u64,
    /// The other end closed it before the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What the threads of a load counted, by number of the flow.
#[derive(Debug, Clone, Default)]
pub struct Counted(Arc<Mutex<Vec<(u32, FlowCounts)>>>);

/// Two loads are the same by their parameters, whatever they measured.
impl PartialEq for Counted {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Counted {
    /// Keeps what a flow measured.
    pub fn add(&self, flow: u32, counts: FlowCounts) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((flow, counts));
    }

    /// All flows, in order.
    pub fn report(&self) -> FlowReport {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.sort_by_key(|(flow, _)| *flow);
        FlowReport::new(counted.iter().map(|(_, counts)| counts))
    }
}

/// What one flow measured.
#[derive(Debug, Clone, Default)]
pub struct FlowCounts {
    pub transactions: u64,
    /// Transactions due and not finished at the end.
    pub unanswered: u64,
    /// Latencies of both.
    pub latencies: Latencies,
    /// The other end closed it before the end.
    pub lost: bool,
}

impl FlowCounts {
    /// Counts a transaction that has ended, by how long it took.
    pub fn done(&mut self, latency_ns: u64) {
        self.transactions += 1;
        self.latencies.record(latency_ns);
    }

    /// Counts one that is under way at the end of a closed loop, where it has waited longer than any that ended.
    pub fn under_way(&mut self, waited_ns: u64) {
        if waited_ns > self.latencies.longest_ns() {
            self.unanswered(waited_ns);
        }
    }

    /// Counts one that was due and has not ended, by how long it has waited.
    pub fn unanswered(&mut self, waited_ns: u64) {
        self.unanswered += 1;
        self.latencies.record(waited_ns);
    }
}

impl FlowReport {
    pub fn new<'a>(flows: impl Iterator<Item = &'a FlowCounts>) -> Self {
        let mut all = Latencies::default();
        let flows = flows
            .map(|flow| {
                all.add(&flow.latencies);
                let FlowCounts { transactions, unanswered, latencies, lost } = flow;
                let (transactions, unanswered, lost) = (*transactions, *unanswered, *lost);
                Flow { transactions, unanswered, lost, latency: latencies.summary() }
            })
            .collect();
        Self { latency: all.summary(), flows }
    }

    /// Transactions due and not finished at the end, all flows.
    pub fn unanswered(&self) -> u64 {
        self.flows.iter().map(|flow| flow.unanswered).sum()
    }

    /// Flows that the other end closed before the end.
    pub fn lost(&self) -> usize {
        self.flows.iter().filter(|flow| flow.lost).count()
    }
}
