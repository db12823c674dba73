//! How far the unfinished block is committed, and the table that holds its parts ([`crate::tail`]).

use evenkeel_base::Sample;

use crate::block::Mark;

/// Made when a history is opened for writing: those of earlier versions do not have it, and these read the others.
pub(crate) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS tail (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES session(id),
    part INTEGER NOT NULL,           -- of its block; 0 is complete in itself, later ones go on from the one before
    first_wall_ns INTEGER NOT NULL,
    last_wall_ns INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    data BLOB NOT NULL               -- zstd, see block.rs
)";

/// How far the pending block is committed.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub(crate) mark: Mark,
    pub(crate) parts: u32,
    pub(crate) last_row: Option<i64>,
    /// Monotonic clock of the last sample that no crash can lose.
    pub(crate) kept_ns: Option<u64>,
    /// Wall clock of the first sample since.
    pub(crate) first_wall_ns: u64,
}

impl Tail {
    /// Nothing of the next block; all until `kept_ns` is in blocks.
    pub(crate) fn after_block(kept_ns: u64) -> Self {
        Self { kept_ns: Some(kept_ns), ..Self::default() }
    }

    /// Samples of the pending block that are committed.
    pub(crate) fn samples(&self) -> u32 {
        self.mark.samples()
    }

    /// Whether to commit now: the next sample, as far away as this one from the one before, would come too late.
    pub(crate) fn is_due(&self, sample: &Sample, before_ns: u64, at_most_ns: u64) -> bool {
        let since = |ns: u64| sample.monotonic_ns.abs_diff(ns);
        self.kept_ns.is_none_or(|kept| since(kept).saturating_add(since(before_ns)) > at_most_ns)
    }
}
