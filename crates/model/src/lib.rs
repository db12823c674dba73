//! What would happen: the scheduler simulator, the fair-share solver and credit models.
//!
//! * [`sim`] simulates the kernel's scheduler; [`predict`] makes a scenario of an observed host and a plan; [`fleet`]: many hosts.
//! * [`fair`] solves for exact fair shares in the long run; [`units`]: lists of units, and their weights.
//! * [`credit`]: rules by which a hypervisor takes CPU back; [`families`]: those of known instance types; [`price`]: what a job costs.
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
