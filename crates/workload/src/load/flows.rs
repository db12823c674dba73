//! What a load's flows over the network did.

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

/// One flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Transactions finished.
    pub transactions: u64,
    /// Their latency; `None` without a transaction.
    pub latency: Option<LatencySummary>,
}

impl FlowReport {
    /// From each flow's count and latencies.
    pub fn new<'a>(flows: impl Iterator<Item = (u64, &'a Latencies)>) -> Self {
        let mut all = Latencies::default();
        let flows = flows
            .map(|(transactions, latencies)| {
                all.add(latencies);
                Flow { transactions, latency: latencies.summary() }
            })
            .collect();
        Self { latency: all.summary(), flows }
    }
}
