//! Validation against a real kernel: random mixes that the laboratory runs and the simulator predicts, and the comparison.
//!
//! A mix is an [`Experiment`], drawn from a seed: 2 to 12 loads with random demands, periods, jitter and kinds, and on
//! top of them what may be set on a host: policies, slices, nice, pinning, groups with weights and quotas. A *family*
//! is one set of loads under several levers.

mod compare;
mod draw;

pub use compare::{Comparison, Line, Pair, Record, compare};
pub use draw::{FAMILY_LEVERS, RUNS, draw, family, set};
