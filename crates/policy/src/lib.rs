//! What should change, and is it proved? Pure decisions on observations, no I/O.

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod follow;
pub mod governor;
pub mod guarantee;
pub mod guard;
pub mod levers;
pub mod monitor;
pub mod placement;
pub mod priority;
pub mod protect;
pub mod refine;
pub mod requests;
pub mod trial;
pub mod turns;
pub mod window;
