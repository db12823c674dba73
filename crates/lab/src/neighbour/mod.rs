//! What does a service feel of batch work next to it, and what keeps it from that? The experiment `neighbour`.
//!
//! ```text
//! ladder of batch load   0      quarter    half    whole    twice      of the machine
//! arms                 alone    kernel default, each lever, evenkeel's choice (from its start, and after that)
//! ```
//!
//! A cell is one repetition at one point (a service, a batch, its load, an arm), everything started again; [`run`] makes and
//! measures it, the loop around the cells is [`crate::runner::bench`]. Every figure is held against that of the same
//! repetition, so that a host that drifts does not look like a lever that works. From the [`record`] alone comes the
//! [`study`], and from that the report.

mod batch;
mod evenkeel;
pub mod plan;
pub mod record;
pub mod run;
mod scene;
mod service;
pub mod study;
#[cfg(test)]
mod testing;
mod verdict;
