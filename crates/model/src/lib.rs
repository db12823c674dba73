//! What would happen: the scheduler simulator, the fair-share solver and credit models.
//!
//! Nothing here touches a host: every function takes plain values and gives plain values, the same for the same seed.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod credit;
pub mod fair;
pub mod families;
pub mod fleet;
mod flow;
pub mod predict;
pub mod price;
pub mod sim;
pub mod units;
