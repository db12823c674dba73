//! What a trial counts as a gain.
//!
//! CPU got by those of the scope that do not take any amount, less a price for what they waited. A busy loop would take
//! whatever others leave: that it gets more is no benefit. On a host without idle time CPU got by one is CPU lost by
//! another: there the sum over the host, busy loops left out, must grow as well.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::TaskId;

use crate::monitor::Seen;
use crate::window::{Rates, Summary};

/// A host is full whose CPUs are idle for less than this share of what there is.
const FULL: f64 = 0.05;

/// One window's values of what is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    /// CPU got by the scope, busy loops left out, percent of one CPU.
    pub got: f64,
    /// The same less the price of its waits.
    pub score: f64,
    /// CPU got by everybody on the host, busy loops left out; `None` where the host is not full, or CPU is counted up to what
    /// is due.
    pub total: Option<f64>,
}

/// What is compared, as learnt from windows before anything was changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Objective {
    wait_price: f64,
    insatiable: BTreeSet<TaskId>,
    full: bool,
}

impl Objective {
    /// Nothing learnt yet; a point of waiting is worth so many points of CPU.
    pub fn new(wait_price: f64) -> Self {
        Self { wait_price, insatiable: BTreeSet::new(), full: false }
    }

    /// Learns from windows under the present state who would take any amount, and whether the host is full.
    pub(super) fn learn(&mut self, windows: &[Summary]) {
        let mut awake: BTreeMap<TaskId, usize> = BTreeMap::new();
        for (id, _) in windows.iter().flat_map(|w| &w.tasks).filter(|(_, rates)| rates.never_sleeps()) {
            *awake.entry(*id).or_default() += 1;
        }
        self.insatiable =
            awake.into_iter().filter(|(_, times)| *times == windows.len()).map(|(id, _)| id).collect();
        let (mut idle, mut busy) = (0.0, 0.0);
        for window in windows {
            // Unknown is not zero: a host that does not tell is not taken for full.
            let (Some(free), Some(outside)) = (window.idle_pct, window.outside_pct) else { return };
            idle += free;
            busy += window.got_pct + outside;
        }
        self.full = busy > 0.0 && idle < FULL * (idle + busy);
    }

    /// Whether somebody of the scope does not take any amount.
    pub(super) fn has_purpose(&self, window: &Summary) -> bool {
        window.tasks.is_empty()
            || window
                .tasks
                .iter()
                .any(|(id, r)| r.in_scope && r.got_pct > 0.0 && !self.insatiable.contains(id))
    }

    pub(super) fn value(&self, window: &Summary) -> Value {
        let of = |in_scope: bool, pick: fn(&Rates) -> f64| -> f64 {
            let them = self.insatiable.iter().filter_map(|id| window.tasks.get(id));
            them.filter(|rates| rates.in_scope == in_scope).map(pick).sum()
        };
        let got = window.got_pct - of(true, |rates| rates.got_pct);
        let waited = window.waited_pct - of(true, |rates| rates.waited_pct.unwrap_or_default());
        let outside = |all: f64| all - of(false, |rates| rates.got_pct);
        Value {
            got,
            score: if window.up_to_due { got } else { got - self.wait_price * waited },
            // What was somebody else's turn is no loss to the host.
            total: window
                .outside_pct
                .filter(|_| self.full && !window.up_to_due)
                .map(|all| got + outside(all)),
        }
    }

    /// What the monitor needs of a window: the same objective as the decision's.
    pub fn seen(&self, window: &Summary) -> Seen {
        let value = self.value(window);
        Seen { cpu_pct: value.got, ..Seen::of(window, value.score) }
    }

    pub(super) fn scores(&self, windows: &[Summary]) -> Vec<f64> {
        windows.iter().map(|window| self.value(window).score).collect()
    }
}
