//! What would happen: the scheduler simulator, the fair-share solver, credit models and the experiment file's types.
//!
//! Nothing here touches a host: every function takes plain values and gives plain values, the same for the same seed.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod credit;
pub mod experiment;
pub mod fair;
pub mod families;
pub mod fleet;
mod flow;
pub mod laboratory;
pub mod predict;
pub mod sim;
pub mod units;
pub mod validation;
